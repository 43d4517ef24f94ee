// SPDX-License-Identifier: Apache-2.0
#include "store/service/contain.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>

#include "store/master/check.h"
#include "store/master/ops/segment_ops.h"
#include "store/service/master_calls.h"
#include "store/service/testing/served_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;

constexpr ClientId kNode{1, 1};

TEST(Contain, TellsWhetherTheWorkCameToItsEnd) {
    EXPECT_TRUE(contain("work", [] {}));
    EXPECT_FALSE(contain("work", [] { throw std::runtime_error("no"); }));
    EXPECT_FALSE(contain("work", [] { throw std::bad_alloc(); }));
}

TEST(Contain, ACallThatThrowsIsAnsweredWithAnErrorAndCostsNobodyElse) {
    auto server = rpc::Server::create({.host = "127.0.0.1", .threads = 1});
    ASSERT_TRUE(server);
    (*server)->handle(rpc::Method::kStoreExist, contained("exist", [](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> answer) {
                          if (body.empty()) throw std::bad_alloc();
                          answer->reply({});
                      }));
    (*server)->start();
    auto client = rpc::Client::create({});
    const std::string address = format_text("127.0.0.1:{}", (*server)->port());
    const rpc::Bytes empty, some(1);
    for (int i = 0; i < 2; ++i) {
        const auto failed = client->call(address, rpc::Method::kStoreExist, empty, soon());
        ASSERT_FALSE(failed);
        EXPECT_EQ(failed.error().code(), Code::kInternal);
        EXPECT_TRUE(client->call(address, rpc::Method::kStoreExist, some, soon()));
    }
    client->stop();
}

/// Counts the calls.
class CountingSink final : public FeedSink {
public:
    void flush() override { ++flushes; }
    int flushes = 0;
};

TEST(Contain, AnOperationThatThrowsLeavesWholeChangesAndFreesTheLock) {
    CountingSink sink;
    LockedMaster master({}, nullptr, &sink);
    const auto operation = [](Transaction& transaction, Time now) -> bool {
        remount(transaction, {.client = kNode, .segments = {}}, now);
        mount_segment(transaction, {.client = kNode, .segment = Caller::segment(1)}, now);
        throw std::bad_alloc();
    };
    EXPECT_THROW(master.run(operation), std::bad_alloc);
    EXPECT_EQ(sink.flushes, 1) << "what it did counts";
    EXPECT_TRUE(master.look([](const MasterState& state, Time) { return check_state(state).has_value(); }));
    EXPECT_EQ(master.look([](const MasterState& state, Time) { return state.segments().size(); }), 1u);
    EXPECT_TRUE(master.run([](Transaction& transaction, Time now) { return ping(transaction, kNode, now).status == PingStatus::kOk; }));
}

std::atomic<int> later_jobs{0};

TEST(Contain, AJobThatThrowsDoesNotKeepTheOthersFromRunning) {
    static constexpr Job kJobs[] = {
        {"throws", [](Transaction&, Time, EvictionRun&) { throw std::bad_optional_access(); }},
        {"later", [](Transaction&, Time, EvictionRun& result) {
             ++later_jobs;
             result.more = true;
         }},
    };
    FeedHub hub;
    LockedMaster master({}, &hub, &hub);
    MasterMetrics metrics;
    JobRunner jobs(master, hub, metrics, kJobs);
    jobs.start();
    EXPECT_TRUE(eventually([] { return later_jobs.load() >= 2; }));
    jobs.stop();
}

TEST(Contain, ALongCallThatThrowsDoesNotKeepTheNextFromRunning) {
    std::atomic<bool> ran = false;
    ThreadPool worker({.name = "mc-test", .tasks_max = 2});
    EXPECT_TRUE(worker.post(contained_task("a long call", [] { throw std::runtime_error("no"); })));
    EXPECT_TRUE(worker.post(contained_task("a long call", [&] { ran = true; })));
    EXPECT_TRUE(eventually([&] { return ran.load(); }));
    worker.stop();
}

}  // namespace
}  // namespace mooncake::store
