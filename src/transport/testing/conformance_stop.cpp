// SPDX-License-Identifier: Apache-2.0
// "Stopped" is a state: after a cancel, a fence or the end of a connection no byte moves any more.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "transport/testing/conformance.h"

namespace mooncake::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportStops);

std::vector<Slice> TransportStops::pieces(uint64_t length) const {
    std::vector<Slice> made;
    for (uint64_t at = 0; at + length <= kAreaBytes; at += length) made.push_back(slice(at, at, length));
    return made;
}

namespace {

constexpr std::byte kPoison{0xa5};

/// Slices shared out among some completions, in turn.
struct Load {
    Load(std::vector<Slice> made, size_t count) : slices(std::move(made)), completions(count) {
        for (size_t i = 0; i < slices.size(); ++i) {
            slices[i].completion = &completions[i % count];
            completions[i % count].add(1);
        }
    }
    std::vector<Slice> slices;
    std::vector<Completion> completions;
};

TEST_P(TransportStops, CancelOfWhatIsDoneChangesNothing) {
    std::vector<Slice> one{slice(0, 0, 100)};
    Load load(one, 1);
    peer->submit(Direction::kWrite, load.slices, Submit::kWait);
    ASSERT_TRUE(peer->wait(load.completions[0], patience()));
    EXPECT_EQ(peer->cancel(load.completions[0], reason, patience()), Stopped::kEverywhere);
    EXPECT_EQ(load.completions[0].result().value_or(0), 100u);
}

TEST_P(TransportStops, CancelAtAnyMomentEndsTheCompletionAndItsAccesses) {
    const Deadline deadline = patience();
    int stopped = 0;  // on a busy machine the copies may win some races against us
    int lost = 0, round = 0;
    for (; round < 32 || (stopped < 5 && !deadline.passed()); ++round) {
        const auto direction = round % 2 == 0 ? Direction::kWrite : Direction::kRead;
        TestMemory& destination = direction == Direction::kWrite ? *remote : *local;
        // Some rounds in large slices that are cut, some in many small ones.
        auto load = std::make_unique<Load>(pieces(round % 4 < 2 ? 6 << 20 : 16 << 10), 1);
        Completion& completion = load->completions[0];
        peer->submit(direction, load->slices, Submit::kLeave);
        const uint32_t all = completion.pending();
        const auto wait_for = static_cast<uint32_t>(random() % (all + 1));
        while (completion.pending() > wait_for && !completion.done()) std::this_thread::yield();

        const Stopped result = peer->cancel(completion, reason, patience());

        ASSERT_TRUE(completion.done());
        EXPECT_EQ(result, Stopped::kEverywhere);
        if (!completion.result()) {
            ++stopped;
            EXPECT_EQ(completion.result().error().code(), reason.code());
        }
        load.reset();
        destination.fill(kPoison);
        for (int i = 0; i < 20; ++i) std::this_thread::yield();
        // The connection still works, unless a busy machine could not end in time what was under way; then it says so.
        if (!peer->usable()) {
            ++lost;
            peer = pair->connect();
        }
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 0, 1)));
        destination.data()[0] = kPoison;
        ASSERT_TRUE(destination.all(kPoison)) << "a byte landed after cancel() in round " << round;
    }
    EXPECT_GE(stopped, 5);
    EXPECT_LE(lost, round / 8) << "cancelling is not meant to cost the connection";
}

TEST_P(TransportStops, CancelLeavesTheOtherCompletionsOfTheSubmissionAlone) {
    for (int round = 0; round < 10; ++round) {
        constexpr size_t kCompletions = 4;
        local->fill_random(static_cast<uint64_t>(round));
        remote->fill(kPoison);
        Load load(pieces(round % 2 == 0 ? 3 << 20 : 32 << 10), kCompletions);
        peer->submit(Direction::kWrite, load.slices, Submit::kLeave);

        peer->cancel(load.completions[1], reason, patience());
        EXPECT_TRUE(load.completions[1].done());
        peer->cancel(load.completions[3], reason, patience());
        EXPECT_TRUE(load.completions[3].done());

        for (const size_t kept : {0, 2}) {
            ASSERT_TRUE(peer->wait(load.completions[kept], patience()));
            ASSERT_TRUE(load.completions[kept].result()) << load.completions[kept].result().error().to_string();
        }
        for (size_t i = 0; i < load.slices.size(); ++i) {
            if (i % 2 == 1) continue;
            const Slice& one = load.slices[i];
            ASSERT_EQ(std::memcmp(one.local, reinterpret_cast<const void*>(one.remote), one.length), 0);
        }
    }
}

TEST_P(TransportStops, CancelFromAnotherThreadEndsAWaitingSubmission) {
    int lost = 0;
    for (int round = 0; round < 10; ++round) {
        Load load(pieces(8 << 20), 1);
        Completion& completion = load.completions[0];
        std::atomic<bool> submitting{false};
        std::jthread canceller([&] {
            while (!submitting.load()) std::this_thread::yield();
            peer->cancel(completion, reason, patience());
        });
        submitting = true;
        peer->submit(Direction::kRead, load.slices, Submit::kWait);
        ASSERT_TRUE(peer->wait(completion, patience()));
        canceller.join();
        if (peer->usable()) continue;
        ++lost;  // as above
        peer = pair->connect();
    }
    EXPECT_LE(lost, 2);
    ASSERT_TRUE(transfer(*peer, Direction::kRead, slice(0, 0, 1000)));
}

TEST_P(TransportStops, DestructionEndsWhatIsOutstanding) {
    for (int round = 0; round < 10; ++round) {
        auto load = std::make_unique<Load>(pieces(round % 2 == 0 ? 5 << 20 : 4 << 10), 3);
        peer->submit(Direction::kRead, load->slices, Submit::kLeave);
        peer.reset();
        for (const Completion& completion : load->completions) EXPECT_TRUE(completion.done());
        load.reset();
        local->fill(kPoison);
        peer = pair->connect();
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 0, 1000)));
        EXPECT_TRUE(local->all(kPoison));
    }
}

TEST_P(TransportStops, CloseEndsEverythingWhileOthersSubmit) {
    for (int round = 0; round < 10; ++round) {
        std::atomic<int> moved{0}, strange{0};
        std::vector<std::jthread> submitters;
        for (uint64_t t = 0; t < 4; ++t) {
            submitters.emplace_back([&, t] {
                for (;;) {
                    const auto how = t % 2 == 0 ? Submit::kWait : Submit::kLeave;
                    const Code code = code_of(transfer(*peer, Direction::kRead, slice(t * (5 << 20), 0, t < 2 ? 4096 : 5 << 20), how));
                    if (code == reason.code()) return;
                    if (code != Code::kOk) ++strange;
                    ++moved;
                }
            });
        }
        while (moved.load() < 8) std::this_thread::yield();

        peer->close(reason);

        EXPECT_FALSE(peer->usable());
        local->fill(kPoison);
        submitters.clear();
        EXPECT_EQ(strange, 0);
        EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, slice(0, 0, 8 << 20))), reason.code());
        peer->close(Error(Code::kInternal, "again"));
        EXPECT_TRUE(local->all(kPoison)) << "a byte landed after close()";
        peer = pair->connect();
    }
}

TEST_P(TransportStops, UnregisteringIsAFenceUnderLoad) {
    constexpr uint64_t kLength = 512 << 10;
    for (int round = 0; round < 10; ++round) {
        const TestMemory fenced(4 * kLength, GetParam().target_memory);
        const MemoryRegion* const region = pair->target().add(fenced);
        std::atomic<bool> over{false};
        std::atomic<int> begun{0}, strange{0};
        std::vector<std::jthread> writers;
        for (uint64_t t = 0; t < 4; ++t) {
            writers.emplace_back([&, t] {
                while (!over.load()) {
                    Slice one = slice(t * kLength, 0, kLength);
                    one.remote = fenced.address() + t * kLength;
                    const Code code = code_of(transfer(*peer, Direction::kWrite, one, t % 2 == 0 ? Submit::kWait : Submit::kLeave));
                    if (code != Code::kOk && code != Code::kNotRegistered) ++strange;
                    ++begun;
                }
            });
        }
        while (begun.load() < 8) std::this_thread::yield();

        ASSERT_TRUE(pair->target().remove(region));

        fenced.fill(kPoison);
        const int seen = begun.load();
        while (begun.load() < seen + 20) std::this_thread::yield();
        EXPECT_TRUE(fenced.all(kPoison)) << "a byte landed behind the fence";
        over = true;
        writers.clear();
        EXPECT_TRUE(fenced.all(kPoison)) << "a byte landed behind the fence";
        EXPECT_EQ(strange, 0);
    }
}

TEST_P(TransportStops, AClosedTargetIsNotTouchedAnyMore) {
    constexpr uint64_t kLength = 512 << 10;
    const TestMemory shared(4 << 20, MemorySource::kShared);  // as the engine allocates it
    pair->target().add(shared);
    std::atomic<bool> over{false};
    std::atomic<int> begun{0}, refused{0};
    std::vector<std::jthread> peers;
    for (uint64_t t = 0; t < 4; ++t) {
        peers.emplace_back([&, t] {
            while (!over.load()) {
                Slice one = slice(t * kLength, t * kLength, kLength);
                if (t % 2 == 0) one.remote = shared.address() + t * kLength;
                const auto how = t < 2 ? Submit::kWait : Submit::kLeave;
                if (!transfer(*peer, Direction::kWrite, one, how) && peer->usable()) ++refused;
                ++begun;
            }
        });
    }
    while (begun.load() < 8) std::this_thread::yield();

    ASSERT_TRUE(pair->target().close());

    remote->fill(kPoison);
    shared.fill(kPoison);
    const int seen = begun.load();
    while (begun.load() < seen + 20) std::this_thread::yield();
    over = true;
    peers.clear();
    EXPECT_TRUE(remote->all(kPoison)) << "a byte landed in memory of a closed target";
    EXPECT_TRUE(shared.all(kPoison)) << "a byte landed in memory of a closed target";
    EXPECT_FALSE(transfer(*peer, Direction::kRead, slice(0, 0, 100))) << "nor is it read";
    EXPECT_TRUE(pair->target().close()) << "again";
    // Whoever comes new reaches nothing either.
    auto late = pair->initiator().transport().connect(pair->target().describe(), Deadline::after(2s));
    if (late) {
        EXPECT_FALSE(transfer(**late, Direction::kWrite, slice(0, 0, 100)));
        EXPECT_TRUE(remote->all(kPoison));
    }
}

TEST_P(TransportStops, FindsMemoryRegisteredAgainAtTheSameAddress) {
    for (int round = 0; round < 100; ++round) {
        local->fill_random(static_cast<uint64_t>(round), 5000);
        ASSERT_TRUE(pair->target().remove(remote_region));
        EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, slice(0, 0, 5000))), Code::kNotRegistered);
        remote_region = pair->target().add(*remote);
        const auto written = transfer(*peer, Direction::kWrite, slice(0, 0, 5000));
        ASSERT_TRUE(written) << written.error().to_string();
        ASSERT_EQ(std::memcmp(local->data(), remote->data(), 5000), 0);
    }
}

TEST_P(TransportOfTwo, PeerIsNotUsableOnceTheTargetHasLeft) {
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 0, 1000)));
    EXPECT_TRUE(peer->usable());

    pair->target().shut_down();

    const Deadline deadline = patience();
    while (peer->usable() && !deadline.passed()) {
        const Code code = code_of(transfer(*peer, Direction::kWrite, slice(0, 0, 1000)));
        EXPECT_TRUE(code == Code::kUnavailable || code == Code::kStale || code == Code::kNotRegistered) << code_name(code);
    }
    EXPECT_FALSE(peer->usable());
    const Code code = code_of(transfer(*peer, Direction::kRead, slice(0, 0, 8 << 20), Submit::kLeave));
    EXPECT_TRUE(code == Code::kUnavailable || code == Code::kStale) << code_name(code);
}

}  // namespace

}  // namespace mooncake::testing
