// SPDX-License-Identifier: Apache-2.0
// What happens because time passes, and in which order: on a network in memory, with a clock that the test sets, no thread but the test's, and
// every step taken by hand.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <list>

#include "transport/fabric/fabric_peer.h"
#include "transport/fabric/testing/fake_fabric.h"
#include "transport/testing/conformance.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::TestMemory;

constexpr uint64_t kArea = 1 << 20;
constexpr uint64_t kStripe = 64 << 10;

class ManualTime final : public TimeSource {
public:
    Time now() const noexcept override { return now_; }
    void pass(Duration duration) noexcept { now_ += duration; }

private:
    Time now_{1h};
};

/// Tasks that the test runs.
class HandTasks final : public Tasks {
public:
    void post(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
    /// The next one. False: there is none.
    bool run_one() {
        if (tasks_.empty()) return false;
        const auto task = std::move(tasks_.front());
        tasks_.pop_front();
        task();
        return true;
    }
    /// How many there were.
    size_t run() {
        size_t count = 0;
        while (run_one()) ++count;
        return count;
    }

private:
    std::deque<std::function<void()>> tasks_;
};

/// Speaks to the memory of the other side at once, and counts what it was asked.
class DirectControl final : public ControlPlane {
public:
    void serve(std::string, Handler) override {}
    Result<Bytes> call(const SegmentDescriptor&, const std::string&, Bytes request, Deadline) override {
        MC_ASSIGN_OR_RETURN(const Request decoded, decode_request(request, target->rails().rails.size()));
        if (const auto* const resolve = std::get_if<ResolveRequest>(&decoded.body)) return encode_answer(target->resolve(*resolve));
        if (const auto* const fence = std::get_if<FenceRequest>(&decoded.body)) {
            ++fences;
            if (before_fence && !before_fence()) return fail(Code::kTimedOut, "no answer");
            MC_ASSIGN_OR_RETURN(const RailsAnswer rails, target->fence(*fence));
            return encode_answer(rails);
        }
        ++looks;
        return encode_answer(target->rails());
    }

    FabricMemory* target = nullptr;
    std::function<bool()> before_fence;  // false: no answer
    int fences = 0, looks = 0;
};

/// The rails and the memory of one host.
struct Side {
    Side(FakeNetwork& network, const std::string& name, size_t count, const ProviderProfile& profile, const TimeSource& time) {
        std::vector<FakeNic> nics(count);
        for (size_t i = 0; i < count; ++i) nics[i].name = name + std::to_string(i);
        fabric = std::make_unique<FakeFabric>(network, nics);
        const std::vector<Offer> offers = fabric->offers({.provider = "net"}).value();
        for (const Offer& offer : offers)
            rails.push_back(Rail::open(*fabric, offer,
                                       {.index = static_cast<uint32_t>(rails.size()),
                                        .profile = profile,
                                        .window_bytes = profile.flight_bytes_max,
                                        .run_bytes = 4 * kStripe,
                                        .metrics = &metrics.emplace_back(registry, offer.nic),
                                        .time = &time})
                                .value());
        memory = std::make_unique<FabricMemory>(pointers(), FabricMemory::Settings{});
        memory->lend_probe();
    }
    std::vector<Rail*> pointers() const {
        std::vector<Rail*> all;
        for (const auto& rail : rails) all.push_back(rail.get());
        return all;
    }
    void step() {
        Endings endings;
        for (const auto& rail : rails) rail->drive(endings);
    }

    metrics::Registry registry;
    std::list<RailMetrics> metrics;  // by rail
    std::unique_ptr<FakeFabric> fabric;
    std::vector<std::unique_ptr<Rail>> rails;
    std::unique_ptr<FabricMemory> memory;
};

struct FabricTime : ::testing::Test {
    void open(size_t count, const char* name = "tcp") {
        profile = *find_profile(name);
        profile.stripe_bytes = kStripe;
        a = std::make_unique<Side>(network, "a", count, profile, time);
        b = std::make_unique<Side>(network, "b", count, profile, time);
        registration = b->memory->add(remote.region(0, kArea)).value();
        control.target = b->memory.get();
        shared = std::unique_ptr<FabricShared>(new FabricShared{.incarnation = Incarnation{1},
                                                                .profile = profile,
                                                                .options = {},
                                                                .rails = a->pointers(),
                                                                .order = RailOrder({}, names(count)),
                                                                .memory = *a->memory,
                                                                .control = control,
                                                                .doubts = doubts,
                                                                .pool = tasks,
                                                                .time = time});
        EndpointBlob blob;
        for (const auto& rail : b->rails) blob.rails.push_back(rail->record());
        peer = FabricPeer::connect(*shared, {.name = "b", .incarnation = Incarnation{2}}, blob, Deadline::never()).value();
    }
    static std::vector<std::string> names(size_t count) {
        std::vector<std::string> all;
        for (size_t i = 0; i < count; ++i) all.push_back("a" + std::to_string(i));
        return all;
    }
    /// Everybody does what there is to do now.
    void settle() {
        for (int quiet = 0; quiet < 5;) {
            const uint64_t before = moved();
            a->step();
            b->step();
            quiet = tasks.run() == 0 && moved() == before ? quiet + 1 : 0;
        }
    }
    uint64_t moved() const {
        uint64_t sum = 0;
        for (const char* nic : {"a0", "a1"}) sum += network.counts(nic).posted + network.counts(nic).bytes;
        return sum;
    }
    /// In steps as short as the rails' own.
    void pass(Duration duration) {
        constexpr Duration kStep = 10ms;
        for (; duration > Duration::zero(); duration -= kStep) {
            time.pass(std::min<Duration>(duration, kStep));
            settle();
        }
    }
    /// A write of everything, in pieces, begun.
    void submit(Direction direction = Direction::kWrite) {
        completion = std::make_unique<Completion>();
        completion->add(1);
        slices = {{.local = local.data(), .remote = remote.address(), .length = kArea, .completion = completion.get(), .region = &region}};
        peer->submit(direction, slices, Submit::kLeave);
        for (Rail* const rail : shared->rails) rail->announce(*peer);
        settle();
    }
    bool good() const {
        return completion->done() && completion->result().has_value() && std::memcmp(local.data(), remote.data(), kArea) == 0;
    }
    /// Of rail a1.
    uint64_t paths_lost() const { return a->rails[1]->metrics()->paths_lost->value(); }
    int64_t paths(PathState state) const {
        PathCounts counts(a->rails.size());
        peer->count_paths(counts);
        return counts[1][static_cast<size_t>(state)];
    }
    size_t endpoints(const char* nic) const { return network.counts(nic).endpoints; }
    void TearDown() override {
        if (peer) peer->leave();
        tasks.run();
        peer.reset();
        shared.reset();
        registration.reset();
    }

    FakeNetwork network;
    ManualTime time;
    HandTasks tasks;
    DirectControl control;
    DoubtTable doubts;
    ProviderProfile profile;
    TestMemory local{kArea}, remote{kArea};
    const MemoryRegion region = local.region(0, kArea);
    std::unique_ptr<Side> a, b;
    std::unique_ptr<Registration> registration;
    std::unique_ptr<FabricShared> shared;
    std::shared_ptr<FabricPeer> peer;
    std::unique_ptr<Completion> completion;
    std::vector<Slice> slices;
};

TEST_F(FabricTime, AStallIsNoticedAfterItsTimeAndNotBefore) {
    open(2);
    local.fill_random(1);
    network.cut("a1", "b1");
    submit();
    EXPECT_FALSE(completion->done());
    pass(profile.stall_timeout - 20ms);
    EXPECT_FALSE(completion->done());
    EXPECT_EQ(endpoints("a1"), 2u);
    EXPECT_EQ(control.fences, 0);
    pass(60ms);
    EXPECT_TRUE(good());
    EXPECT_EQ(control.fences, 1) << "what was moved may be complete only after a fence";
    EXPECT_EQ(endpoints("a1"), 2u) << "a new initiating one, and the old one closed";
}

TEST_F(FabricTime, AMovedWriteIsNotCompleteBeforeItsFenceIsAnswered) {
    open(2);
    local.fill_random(2);
    network.cut("a1", "b1");
    // As long as nobody answers the question is repeated. Everything else could be done meanwhile, and is.
    control.before_fence = [&] {
        if (control.fences > 5) return true;
        time.pass(1s);
        a->step();
        b->step();
        EXPECT_FALSE(completion->done());
        return false;
    };
    submit();
    pass(profile.stall_timeout + 100ms);
    EXPECT_GT(control.fences, 5);
    EXPECT_TRUE(good());
}

TEST_F(FabricTime, ATargetThatDoesNotAnswerTakesAThreadForOneQuestionAtATime) {
    open(2);
    network.cut("a1", "b1");
    control.before_fence = [&] { return control.fences > 3; };
    submit();
    time.pass(profile.stall_timeout + 100ms);
    for (int i = 0; i < 10 && control.fences == 0; ++i) {
        a->step();
        b->step();
        tasks.run_one();
    }
    EXPECT_EQ(control.fences, 1) << "between two questions come the tasks of others";
    settle();
    EXPECT_GT(control.fences, 3) << "but it is asked again";
}

TEST_F(FabricTime, WritesToASilentTargetWaitForItsWordTogether) {
    open(1);
    network.stop("b0");
    std::array<Completion, 5> completions;
    std::vector<Slice> writes;
    for (size_t i = 0; i < completions.size(); ++i) {
        completions[i].add(1);
        writes.push_back({.local = local.data() + i * 1000,
                          .remote = remote.address() + i * 1000,
                          .length = 1000,
                          .completion = &completions[i],
                          .region = &region});
    }
    // Nobody runs the tasks, so nobody answers.
    constexpr Duration kPatience = 2s;
    const Time began = Clock::now();
    for (size_t i = 0; i < completions.size(); ++i) {
        peer->submit(Direction::kWrite, {&writes[i], 1}, Submit::kLeave);
        EXPECT_EQ(peer->cancel(completions[i], Error(Code::kTimedOut, "late"), Deadline::after(kPatience)), Stopped::kRemoteInDoubt);
    }
    EXPECT_LT(Clock::now() - began, (completions.size() - 1) * kPatience);
    // Once it has answered the next one waits for it again.
    network.go_on("b0");
    settle();
    network.stop("b0");
    completions[0].reset();
    completions[0].add(1);
    peer->submit(Direction::kWrite, {writes.data(), 1}, Submit::kLeave);
    settle();
    const Deadline deadline = Deadline::after(kPatience);
    EXPECT_EQ(peer->cancel(completions[0], Error(Code::kTimedOut, "late"), deadline), Stopped::kRemoteInDoubt);
    EXPECT_TRUE(deadline.passed());
    network.go_on("b0");
}

TEST_F(FabricTime, WithAGraceItIsCompleteAfterThat) {
    open(2, "efa");
    local.fill_random(3);
    network.cut("a1", "b1");
    submit();
    pass(profile.stall_timeout + 50ms);
    EXPECT_FALSE(completion->done());
    EXPECT_EQ(control.fences, 0);
    Duration waited{};
    for (Duration passed{}; passed < profile.fence_grace + 300ms && !completion->done(); passed += 50ms) {
        pass(50ms);
        peer->sweep(time.now());
        waited = passed;
    }
    EXPECT_TRUE(good());
    EXPECT_GE(waited, profile.fence_grace - 150ms);
}

TEST_F(FabricTime, HealthyOperationsGetAMomentBeforeTheirEndpointIsClosed) {
    open(1);
    auto c = std::make_unique<Side>(network, "c", 1, profile, time);
    TestMemory third(kArea);
    auto lent = c->memory->add(third.region(0, kArea)).value();
    // A second peer on the same rail, whose operation is under way while the first one's is hopeless.
    DirectControl other_control;
    other_control.target = c->memory.get();
    FabricShared other_shared{.incarnation = Incarnation{1},
                              .profile = profile,
                              .options = {},
                              .rails = a->pointers(),
                              .order = RailOrder({}, names(1)),
                              .memory = *a->memory,
                              .control = other_control,
                              .doubts = doubts,
                              .pool = tasks,
                              .time = time};
    EndpointBlob blob;
    blob.rails.push_back(c->rails[0]->record());
    auto other = FabricPeer::connect(other_shared, {.name = "c", .incarnation = Incarnation{3}}, blob, Deadline::never()).value();
    network.stop("b0");
    submit(Direction::kRead);
    pass(profile.stall_timeout - 20ms);
    Completion healthy;
    healthy.add(1);
    const std::vector<Slice> one{
        {.local = local.data(), .remote = third.address(), .length = 1000, .completion = &healthy, .region = &region}};
    other->submit(Direction::kRead, one, Submit::kLeave);
    settle();  // nobody polls at c: it stays under way
    pass(60ms);
    EXPECT_EQ(endpoints("a0"), 3u) << "serving, initiating, and the old one with what is healthy on it";
    EXPECT_FALSE(healthy.done());
    c->step();
    settle();
    EXPECT_TRUE(healthy.done());
    EXPECT_TRUE(healthy.result().has_value());
    pass(20ms);
    EXPECT_EQ(endpoints("a0"), 2u);
    network.go_on("b0");
    other->leave();
    tasks.run();
    other.reset();
    lent.reset();
}

TEST_F(FabricTime, AConnectionThatIsNotMadeIsGivenUpAfterItsTimeAndNotBefore) {
    open(1);
    network.again("a0", UINT32_MAX);
    submit();
    pass(profile.connect_timeout - 50ms);
    EXPECT_FALSE(completion->done());
    EXPECT_TRUE(peer->usable());
    EXPECT_GT(control.looks, 0) << "is the endpoint still there?";
    EXPECT_LT(control.looks, 20) << "but not all the time";
    pass(100ms);
    EXPECT_TRUE(completion->done());
    EXPECT_FALSE(completion->result().has_value());
    EXPECT_FALSE(peer->usable());
    network.again("a0", 0);
}

TEST_F(FabricTime, WhileAConnectionIsMadeTheRailWantsToBeDrivenWithinMilliseconds) {
    open(1);
    local.fill_random(5);
    network.again("a0", 5);
    submit();
    EXPECT_FALSE(completion->done());
    EXPECT_LE(a->rails[0]->wake_at(), time.now() + Route::kBackoffMax);
    pass(50ms);
    EXPECT_TRUE(good());
}

TEST_F(FabricTime, AFullQueueIsNotTakenForAMissingConnection) {
    open(1);
    local.fill_random(4);
    network.stop("b0");
    submit();  // something is under way
    network.again("a0", UINT32_MAX);
    pass(profile.stall_timeout - 100ms);
    EXPECT_TRUE(peer->usable());
    network.again("a0", 0);
    network.go_on("b0");
    settle();
    pass(50ms);
    EXPECT_TRUE(good());
}

TEST_F(FabricTime, APathThatIsDownIsProbedLessAndLessAndComesBack) {
    open(2);
    const auto every = [&](auto&& change) {
        for (const char* there : {"b0", "b1"}) change("a1", there);
    };
    every([&](const char* from, const char* to) { network.cut(from, to); });
    submit();
    pass(profile.stall_timeout + 500ms);
    ASSERT_TRUE(completion->done());
    // One stall is enough to know that it may be the rail: only probes try it now, so that no request has to wait, whatever the fences have renewed.
    const uint64_t before = network.counts("a1").posted;
    for (int i = 0; i < 300; ++i) {
        submit();
        ASSERT_TRUE(good()) << i;
        pass(100ms);
    }
    const uint64_t probes = network.counts("a1").posted - before;
    EXPECT_GE(probes, 4u);
    EXPECT_LE(probes, 30u) << "in 30 seconds, to two rails";
    every([&](const char* from, const char* to) { network.heal(from, to); });
    const uint64_t bytes = network.counts("a1").bytes;
    Duration passed{};
    for (; network.counts("a1").bytes < bytes + kStripe && passed < 60s; passed += 100ms) {
        submit();
        pass(100ms);
    }
    EXPECT_LE(passed, 14s) << "not later than the longest pause and a stall";
}

TEST_F(FabricTime, APathToATargetWhoseMemoryIsGoneIsFound) {
    open(1);
    network.poison(remote.data());  // as where the pages behind it were given back after it was registered
    const auto reached = [&] { return peer->reach(Deadline::after(Duration::zero())).has_value(); };
    EXPECT_FALSE(reached()) << "nothing was read yet";
    settle();
    EXPECT_TRUE(reached());
    network.poison(nullptr);
}

TEST_F(FabricTime, APathThatStallsCountsAsLostOnceWhileItsRailGoesOnOverAnother) {
    open(2);
    submit();
    ASSERT_TRUE(good());
    EXPECT_EQ(paths(PathState::kReady), 1);
    network.cut("a1", "b1");
    submit();
    EXPECT_EQ(paths_lost(), 0u);
    pass(profile.stall_timeout + 60ms);
    ASSERT_TRUE(good());
    EXPECT_EQ(paths_lost(), 1u);
    // For as long as the path is cut: the other one has shown in a probe that it works.
    for (int i = 0; i < 20; ++i) {
        submit();
        ASSERT_TRUE(good()) << i;
        pass(100ms);
        EXPECT_EQ(paths(PathState::kReady), 1) << i;
        EXPECT_EQ(paths(PathState::kDown), 1) << i;
    }
    EXPECT_EQ(paths_lost(), 1u);
    network.heal("a1", "b1");
    for (int i = 0; i < 200 && paths(PathState::kDown) != 0; ++i) {
        submit();
        pass(100ms);
    }
    EXPECT_EQ(paths(PathState::kReady), 2);
}

TEST_F(FabricTime, APathThatNobodyUsesIsForgottenAfterTenMinutes) {
    open(1);
    submit();
    ASSERT_TRUE(good());
    EXPECT_EQ(network.counts("a0").addresses, 1u);
    time.pass(10min - 20s);
    settle();
    EXPECT_EQ(network.counts("a0").addresses, 1u);
    time.pass(30s);
    settle();
    EXPECT_EQ(network.counts("a0").addresses, 0u);
    submit();
    EXPECT_TRUE(good()) << "and made anew when it is";
}

}  // namespace
}  // namespace mooncake::fabric
