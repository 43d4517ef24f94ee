// SPDX-License-Identifier: Apache-2.0
#include "store/service/contain.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/memory_reserve.h"
#include "base/testing/little_memory.h"
#include "store/master/testing/check.h"
#include "store/master/ops/object_ops.h"
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
    (*server)->handle(rpc::Method::kStoreExist,
                      contained("exist", [](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> answer) {
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
class CountingSink final : public EventSink {
public:
    void flush() override { ++flushes; }
    void catch_up(Transaction& /*transaction*/, Time /*now*/) override { ++operations; }
    int flushes = 0, operations = 0;
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
    EXPECT_TRUE(
        master.run([](Transaction& transaction, Time now) { return heartbeat(transaction, kNode, now).status == HeartbeatStatus::kOk; }));
}

/// Hears everything and keeps nothing.
class Listener final : public rpc::Responder {
public:
    void reply(rpc::Bytes) override {}
    void fail(const Error&) override {}
    bool part(rpc::Bytes, Haste) override { return true; }
    bool abandoned() const noexcept override { return false; }
    Deadline deadline() const noexcept override { return Deadline::after(600s); }
    const rpc::PeerInfo& peer() const noexcept override { return peer_; }

private:
    const rpc::PeerInfo peer_{};
};

/// Puts values until there is no memory for more, and takes some away again. 0: nothing was lost.
int use_up_the_memory() {
    constexpr size_t kValuesMax = 10'000'000, kMiB = 1 << 20;
    MemoryReserve::keep(32 * kMiB);
    EventHub hub;
    LockedMaster master({}, &hub, &hub);
    SegmentSpec segment = Caller::segment(1);
    segment.size = uint64_t{1} << 40;
    master.run([&](Transaction& transaction, Time now) {
        remount(transaction, {.client = kNode, .segments = {}}, now);
        hub.follow(transaction.state(), transaction.state().clients().find(kNode), std::make_unique<Listener>());
        return mount_segment(transaction, {.client = kNode, .segment = segment}, now);
    });
    size_t values = 0;
    for (; values < kValuesMax && MemoryReserve::whole(); ++values) {
        const std::string key = format_text("{:0200}", values);
        master.run([&](Transaction& transaction, Time now) {
            const PutItem item{.key = key, .length = 64};
            return put_start(transaction, {.client = kNode, .items = {&item, 1}}, now);
        });
        master.run([&](Transaction& transaction, Time now) {
            const PutEndItem item{.key = key};
            return put_end(transaction, {.client = kNode, .items = {&item, 1}}, now);
        });
    }
    if (values == kValuesMax) return 1;
    for (size_t i = 0; i < values; ++i) {
        const std::string key = format_text("{:0200}", i);
        const std::string_view keys = key;
        const CodesReply reply = master.run([&](Transaction& transaction, Time now) {
            return store::remove(transaction, {.keys = {&keys, 1}, .force = true}, now);
        });
        if (reply.codes[0] != StoreCode::kOk) return 2;
    }
    return master.look([](const MasterState& state, Time) { return state.objects().size() == 0; }) ? 0 : 3;
}

TEST(Contain, AMasterThatFindsNoMoreMemoryLives) {
    if (mooncake::testing::kCannotLimitMemory) GTEST_SKIP() << "not with this sanitizer";
    EXPECT_EQ(mooncake::testing::in_a_process_with(72 << 20, use_up_the_memory), 0);
}

std::atomic<int> growing_jobs{0}, other_jobs{0};

/// Runs jobs while there is memory, and while there is none. 0: those that make the state grow waited.
int run_jobs_without_memory() {
    static constexpr Job kJobs[] = {
        {"grows", [](Transaction&, Time, EvictionRun&) { ++growing_jobs; }, /*grows=*/true},
        {"other",
         [](Transaction&, Time, EvictionRun& result) {
             ++other_jobs;
             result.more = true;
         }},
    };
    const auto run_some = [] {
        const int before = other_jobs;
        return eventually([before] { return other_jobs >= before + 2; });
    };
    MemoryReserve::keep(8 << 20);
    EventHub hub;
    LockedMaster master({}, &hub, &hub);
    MasterMetrics metrics;
    JobRunner jobs(master, hub, metrics, kJobs);
    jobs.start();
    if (!run_some() || growing_jobs == 0) return 1;
    std::vector<std::unique_ptr<char[]>> taken;
    taken.reserve(1000);
    while (MemoryReserve::whole() && taken.size() < 1000) taken.push_back(std::make_unique_for_overwrite<char[]>(1 << 20));
    if (!run_some()) return 2;
    const int before = growing_jobs;
    if (!run_some() || growing_jobs != before) return 3;
    taken.clear();
    return eventually([before] { return growing_jobs > before; }) ? 0 : 4;
}

TEST(Contain, JobsThatMakeTheStateGrowWaitForMemory) {
    if (mooncake::testing::kCannotLimitMemory) GTEST_SKIP() << "not with this sanitizer";
    EXPECT_EQ(mooncake::testing::in_a_process_with(256 << 20, run_jobs_without_memory), 0);
}

std::atomic<int> later_jobs{0};

TEST(Contain, AJobThatThrowsDoesNotKeepTheOthersFromRunning) {
    static constexpr Job kJobs[] = {
        {"throws", [](Transaction&, Time, EvictionRun&) { throw std::bad_optional_access(); }},
        {"later",
         [](Transaction&, Time, EvictionRun& result) {
             ++later_jobs;
             result.more = true;
         }},
    };
    EventHub hub;
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
