// SPDX-License-Identifier: Apache-2.0
// A client in a process that lends nothing: this program does not even link a node.
#include "store/client/pool_client.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/incarnation.h"
#include "store/service/testing/local_master.h"

namespace mooncake::store::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

Deadline soon() { return Deadline::after(20s); }

std::shared_ptr<Engine> make_engine() {
    auto engine = Engine::create({.local_name = "127.0.0.1", .protocol = "tcp"});
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
    return engine ? std::shared_ptr<Engine>(std::move(*engine)) : nullptr;
}

/// Somebody elsewhere who lends memory, by the master's messages alone.
class Lender {
public:
    explicit Lender(LocalMaster& master) : master_(master.connect()) {
        EXPECT_TRUE(master_->remount({.client = id_}, soon()));
        const auto memory = engine_->allocate_memory(4 * kMiB);
        EXPECT_TRUE(memory);
        const SegmentSpec spec{.id = {.high = random_u64(), .low = random_u64()},
                               .name = "127.0.0.1:1",
                               .base = reinterpret_cast<uint64_t>(*memory),
                               .size = 4 * kMiB,
                               .endpoint = engine_->segment_name(),
                               .protocol = "tcp"};
        EXPECT_EQ(master_->mount({.client = id_, .segment = spec}, soon()).value_or(StoreCode::kRpcFail), StoreCode::kOk);
    }

private:
    const ClientId id_{random_u64(), random_u64()};
    const std::unique_ptr<MasterApi> master_;
    const std::shared_ptr<Engine> engine_ = make_engine();
};

class PoolClientTest : public ::testing::Test {
protected:
    PoolClientTest()
        : pool_({.engine = make_engine(), .master = master_.connect(), .name = "127.0.0.1:2"}), client_(pool_, {.buffer_bytes = kMiB}) {
        const auto joined = pool_.join({&client_}, nothing_, {.heartbeat_interval = 20ms, .retry_interval = 5ms}, soon());
        EXPECT_TRUE(joined) << joined.error().to_string();
        EXPECT_EQ(client_.start(), StoreCode::kOk);
    }
    ~PoolClientTest() override { stop(); }
    void stop() {
        pool_.begin_closing();
        client_.close();
        pool_.leave();
    }
    StoreCode put(std::string_view key, std::vector<std::byte>& value) {
        const Piece piece{value.data(), value.size()};
        const ValueToWrite one{.key = key, .pieces = {&piece, 1}};
        return client_.write({&one, 1}, {}, false).at(0);
    }
    int64_t get(std::string_view key, std::vector<std::byte>& into) {
        const Piece piece{into.data(), into.size()};
        const ValueToRead one{.key = key, .pieces = {&piece, 1}};
        return client_.read({&one, 1}).at(0);
    }

    LocalMaster master_;
    Holdings nothing_;
    PoolAccess pool_;
    PoolClient client_;
};

TEST_F(PoolClientTest, WritesAndReadsValuesWithoutANode) {
    const Lender lender(master_);
    std::vector<std::byte> value(100'000, std::byte{7}), into(100'000);
    ASSERT_EQ(put("k", value), StoreCode::kOk);
    EXPECT_EQ(get("k", into), 100'000);
    EXPECT_EQ(into, value);
    const std::string_view key = "k";
    EXPECT_EQ(client_.exist({&key, 1}).at(0), 1);
    EXPECT_EQ(client_.find({&key, 1}).at(0).replicas.at(0).segment_name, "127.0.0.1:1");
    EXPECT_EQ(client_.remove({&key, 1}, true).at(0), StoreCode::kOk);
    EXPECT_EQ(get("k", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_TRUE(client_.master_reachable());
    EXPECT_TRUE(client_.stage(1000));
}

TEST_F(PoolClientTest, AnswersNothingAfterItsEnd) {
    std::vector<std::byte> value(100);
    EXPECT_EQ(put("k", value), StoreCode::kNoAvailableHandle) << "nobody lends anything";
    stop();
    EXPECT_EQ(put("k", value), StoreCode::kUnavailableInCurrentStatus);
    EXPECT_FALSE(client_.master_reachable());
    EXPECT_FALSE(client_.stage(1));
}

}  // namespace
}  // namespace mooncake::store::testing
