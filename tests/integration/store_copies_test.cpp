// SPDX-License-Identifier: Apache-2.0
// Copies between nodes one of which hangs, in a pool whose master is in this process, to be looked into.
#include "store/service/master_server.h"
#include "tests/integration/failing_pool.h"

namespace mooncake::store {

namespace {

class CopiesToAHungNode : public FailingPool {
protected:
    void SetUp() override {
        MasterServerOptions options;
        options.core.silent_after = options.core.client_ttl = 300s;  // a node that hangs is a target all the same
        auto made = MasterServer::create(options);
        ASSERT_TRUE(made) << made.error().to_string();
        server_ = std::move(*made);
        server_->start();
        port_ = server_->port();
        from_ = lender(from_name_);
        to_ = lender(to_name_);
    }
    void TearDown() override {
        if (server_) server_->stop();
    }
    /// What became of a copy of this value to the second node.
    TaskStatus copied(StoreClient& client, std::string_view key) {
        const TaskReply created = client.create_task({.type = TaskType::kCopy, .tenant = "default", .key = key, .targets = {to_name_}});
        EXPECT_EQ(created.code, StoreCode::kOk);
        TaskStatus status = TaskStatus::kPending;
        EXPECT_TRUE(eventually([&] {
            const auto task = client.query_task(created.task);
            if (task) status = task->status;
            return status == TaskStatus::kSuccess || status == TaskStatus::kFailed;
        }));
        return status;
    }
    uint64_t quarantined() {
        return server_->master().look([&](const MasterState& state, Time) {
            const std::span<const SegmentNumber> numbers = state.segments().find_name(to_name_);
            return numbers.empty() ? 0 : state.segments()[numbers[0]].quarantined_bytes;
        });
    }

    std::unique_ptr<MasterServer> server_;
    std::string from_name_, to_name_;
    std::unique_ptr<RoleProcess> from_, to_;
};
INSTANTIATE_TEST_SUITE_P(By, CopiesToAHungNode, ::testing::Values("tcp"), [](const auto& path) { return std::string(path.param); });

TEST_P(CopiesToAHungNode, LeaveTheirRangeInQuarantineUntilItAnswersAgain) {
    const auto writer = client();
    auto value = pattern(kMiB, 1);
    for (const char* key : {"before", "during"})
        ASSERT_EQ(put(*writer, key, value, {.hard_pin = true, .preferred_segments = {from_name_}}), StoreCode::kOk);
    ASSERT_EQ(copied(*writer, "before"), TaskStatus::kSuccess);  // from now on they are connected
    to_->stop();
    EXPECT_EQ(copied(*writer, "during"), TaskStatus::kFailed);
    EXPECT_GE(quarantined(), kMiB) << "its bytes may still land there";
    to_->go_on();
    EXPECT_TRUE(eventually([&] { return quarantined() == 0; })) << "by now they cannot";
    EXPECT_EQ(copied(*writer, "during"), TaskStatus::kSuccess);
}

}  // namespace

}  // namespace mooncake::store
