// SPDX-License-Identifier: Apache-2.0
// What arrives, and what must not.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "transport/testing/conformance.h"

namespace mooncake::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

namespace {

constexpr std::byte kPoison{0xa5};

/// Log-uniform, so that every magnitude gets its share.
uint64_t random_length(std::mt19937_64& random, uint64_t max) {
    const auto bits = std::uniform_int_distribution<int>(0, 63 - __builtin_clzll(max))(random);
    return std::min(max, (uint64_t{1} << bits) + random() % (uint64_t{1} << bits));
}

TEST_P(TransportConformance, MovesAnyLengthAtAnyOffsetBothWays) {
    for (int round = 0; round < 40; ++round) {
        const uint64_t length = round == 0 ? 16 << 20 : round == 1 ? 1 : random_length(random, 16 << 20);
        const uint64_t from = random() % (kAreaBytes - length), to = random() % (kAreaBytes - length);
        const auto direction = round % 2 == 0 ? Direction::kWrite : Direction::kRead;
        const auto how = round % 4 < 2 ? Submit::kWait : Submit::kLeave;
        TestMemory& source = direction == Direction::kWrite ? *local : *remote;
        TestMemory& target = direction == Direction::kWrite ? *remote : *local;
        source.fill_random(static_cast<uint64_t>(round));
        target.fill(kPoison);

        const auto moved = transfer(*peer, direction, direction == Direction::kWrite ? slice(from, to, length) : slice(to, from, length),
                                    how);

        ASSERT_TRUE(moved) << moved.error().to_string();
        EXPECT_EQ(*moved, length);
        ASSERT_EQ(std::memcmp(target.data() + to, source.data() + from, length), 0) << "round " << round << ", length " << length;
        std::memset(target.data() + to, static_cast<int>(kPoison), length);
        ASSERT_TRUE(target.all(kPoison)) << "bytes outside were touched in round " << round;
    }
}

/// Keeps what it is shown of a slice, as it was then.
class Watcher final : public Copier {
public:
    Watcher(const Slice& slice, Direction direction) : local_(slice.local), direction_(direction), kept_(slice.length) {}

    void begin(const std::byte*, uint64_t) noexcept override {}
    void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override {
        std::memcpy(to, from, length);
        const std::byte* const local = direction_ == Direction::kRead ? to : from;
        passed(local, local, length);
    }
    void passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept override {
        std::memcpy(kept_.data() + (local - local_), bytes, length);
        seen_.fetch_add(length);
    }
    uint64_t seen() const { return seen_.load(); }
    std::span<const std::byte> kept() const { return kept_; }

private:
    const std::byte* const local_;
    const Direction direction_;
    std::vector<std::byte> kept_;
    std::atomic<uint64_t> seen_{0};
};

TEST_P(TransportConformance, ShowsACopierEveryByteOnceOrNothing) {
    constexpr uint64_t kGap = 4 << 20;
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            local->fill_random(5);
            remote->fill_random(6);
            std::vector<Slice> slices;
            std::deque<Watcher> watchers;
            for (const uint64_t length : {1ul, 4096ul, 70'001ul, (3ul << 20) + 5}) {
                Slice one = slice(slices.size() * kGap, slices.size() * kGap + 77, length);
                one.copier = &watchers.emplace_back(one, direction);
                slices.push_back(one);
            }
            const auto moved = transfer(*peer, direction, slices, how);
            ASSERT_TRUE(moved) << moved.error().to_string();
            const bool shown = watchers[0].seen() > 0;
            for (size_t i = 0; i < slices.size(); ++i) {
                ASSERT_EQ(watchers[i].seen(), shown ? slices[i].length : 0) << "slice " << i;
                if (!shown) continue;
                ASSERT_EQ(std::memcmp(watchers[i].kept().data(), slices[i].local, slices[i].length), 0) << "slice " << i;
            }
        }
    }
}

TEST_P(TransportConformance, MovesAHundredThousandSlicesInOneSubmission) {
    constexpr uint64_t kSlices = 100'000, kLength = 100;
    std::vector<Slice> slices;
    for (uint64_t i = 0; i < kSlices; ++i) slices.push_back(slice(i * kLength, (kSlices - 1 - i) * kLength, kLength));
    for (const Submit how : {Submit::kWait, Submit::kLeave}) {
        local->fill_random(3);
        remote->fill(kPoison);
        const auto written = transfer(*peer, Direction::kWrite, slices, how);
        ASSERT_TRUE(written) << written.error().to_string();
        EXPECT_EQ(*written, kSlices * kLength);
        for (const Slice& one : slices) ASSERT_EQ(std::memcmp(one.local, reinterpret_cast<const void*>(one.remote), one.length), 0);

        remote->fill_random(4);
        const auto read = transfer(*peer, Direction::kRead, slices, how);
        ASSERT_TRUE(read) << read.error().to_string();
        for (const Slice& one : slices) ASSERT_EQ(std::memcmp(one.local, reinterpret_cast<const void*>(one.remote), one.length), 0);
    }
}

TEST_P(TransportConformance, MovesRunsThatAreAdjacentOnOneSideOnly) {
    constexpr uint64_t kSlices = 600, kLength = 4096;
    local->fill_random(1);
    remote->fill(kPoison);
    std::vector<Slice> slices;
    for (uint64_t i = 0; i < kSlices; ++i) slices.push_back(slice(i * kLength, (i * 2 + i / 7) * kLength, kLength));

    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slices));

    for (const Slice& one : slices) ASSERT_EQ(std::memcmp(one.local, reinterpret_cast<const void*>(one.remote), one.length), 0);
}

TEST_P(TransportConformance, KeepsTheCompletionsOfOneSubmissionApart) {
    constexpr size_t kCompletions = 50, kSlices = 2'000;
    for (const Submit how : {Submit::kWait, Submit::kLeave}) {
        local->fill_random(5);
        std::vector<Completion> completions(kCompletions);
        std::vector<uint64_t> expected(kCompletions);
        std::vector<Slice> slices;
        for (size_t i = 0; i < kSlices; ++i) {
            const uint64_t length = 1 + random() % 10'000;
            const size_t which = random() % kCompletions;
            slices.push_back(slice(i * 10'000, i * 10'000, length));
            slices.back().completion = &completions[which];
            completions[which].add(1);
            expected[which] += length;
        }
        peer->submit(Direction::kWrite, slices, how);
        for (size_t i = 0; i < kCompletions; ++i) {
            ASSERT_TRUE(peer->wait(completions[i], patience()));
            EXPECT_EQ(completions[i].result().value_or(0), expected[i]);
        }
        for (const Slice& one : slices) ASSERT_EQ(std::memcmp(one.local, reinterpret_cast<const void*>(one.remote), one.length), 0);
    }
}

TEST_P(TransportConformance, ServesEightThreadsThatReadAndWriteAtOnce) {
    constexpr uint64_t kThreads = 8, kShare = kAreaBytes / kThreads;
    local->fill_random(6);
    std::atomic<int> wrong{0};
    {
        std::vector<std::jthread> threads;
        for (uint64_t t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
                std::mt19937_64 own(t);
                for (int round = 0; round < 60; ++round) {
                    const uint64_t length = random_length(own, kShare / 4);
                    const uint64_t from = t * kShare + own() % (kShare / 4), to = t * kShare + own() % (kShare / 4);
                    const auto how = round % 3 == 0 ? Submit::kLeave : Submit::kWait;
                    const uint64_t back = t * kShare + kShare / 2 + own() % (kShare / 4);
                    if (!transfer(*peer, Direction::kWrite, slice(from, to, length), how)) ++wrong;
                    if (!transfer(*peer, Direction::kRead, slice(back, to, length), how)) ++wrong;
                    if (std::memcmp(local->data() + from, local->data() + back, length) != 0) ++wrong;
                }
            });
        }
    }
    EXPECT_EQ(wrong, 0);
}

TEST_P(TransportConformance, ServesBothEndsAsInitiatorsAtOnce) {
    const auto back = pair->target().transport().connect(pair->initiator().describe(), patience());
    ASSERT_TRUE(back) << back.error().to_string();
    constexpr uint64_t kHalf = kAreaBytes / 2;
    local->fill_random(8);
    remote->fill_random(9);
    std::atomic<int> wrong{0};
    {
        std::jthread there([&] {
            for (int round = 0; round < 10; ++round)
                if (!transfer(*peer, Direction::kWrite, slice(0, 0, kHalf))) ++wrong;
        });
        std::jthread here([&] {
            for (int round = 0; round < 10; ++round) {
                const Slice one{
                    .local = remote->data() + kHalf, .remote = local->address() + kHalf, .length = kHalf, .region = remote_region};
                if (!transfer(**back, Direction::kWrite, one)) ++wrong;
            }
        });
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(std::memcmp(local->data(), remote->data(), kAreaBytes), 0);
}

TEST_P(TransportConformance, ReachesAcrossAdjacentRegions) {
    const TestMemory pieces(3 * 4096, GetParam().target_memory);
    for (uint64_t i = 0; i < 3; ++i) pair->target().add(pieces.region(i * 4096, 4096));
    local->fill_random(1);
    Slice across = slice(0, 0, 3 * 4096 - 20);
    across.remote = pieces.address() + 10;

    const auto written = transfer(*peer, Direction::kWrite, across);

    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_EQ(std::memcmp(local->data(), pieces.data() + 10, across.length), 0);
}

TEST_P(TransportConformance, SeesRegionsAddedAfterConnecting) {
    for (int round = 0; round < 50; ++round) {
        const TestMemory late(64 << 10, GetParam().target_memory);
        Slice one = slice(0, 0, late.length());
        one.remote = late.address();
        EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, one)), Code::kNotRegistered);
        const MemoryRegion* const region = pair->target().add(late);
        local->fill_random(static_cast<uint64_t>(round), late.length());
        const auto written = transfer(*peer, Direction::kWrite, one);
        ASSERT_TRUE(written) << written.error().to_string();
        EXPECT_EQ(std::memcmp(late.data(), local->data(), late.length()), 0);
        ASSERT_TRUE(pair->target().remove(region));
        EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, one)), Code::kNotRegistered);
    }
}

TEST_P(TransportConformance, RefusesRangesThatAreNotRegisteredAndLeavesMemoryAlone) {
    const TestMemory stranger(1 << 20), half(8 << 20, GetParam().target_memory);
    stranger.fill(kPoison);
    half.fill(kPoison);
    pair->target().add(half.region(0, 4 << 20));
    struct Bad {
        uint64_t address, length;
    };
    const Bad bad[] = {
        {stranger.address(), 100},                // never registered
        {half.address() + (4 << 20) - 100, 200},  // its end is not
        {half.address() + 4096, 6 << 20},         // the same, in several chunks
        {half.address() + (4 << 20), 1},          // just behind
        {half.address() - 1, 2},                  // just before
        {remote->address() + kAreaBytes - 1, 2},  // over the end
        {0, 8},
        {~uint64_t{0} - 50, 100},  // wraps around
    };
    for (const Bad& range : bad) {
        for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
            for (const Submit how : {Submit::kWait, Submit::kLeave}) {
                local->fill(std::byte{1});
                remote->fill(std::byte{2});
                Completion good, refused;
                good.add(2);
                refused.add(1);
                Slice slices[] = {slice(0, 0, 1000), slice(1 << 20, 0, range.length), slice(2000, 2000, 1000)};
                slices[1].remote = range.address;
                slices[0].completion = slices[2].completion = &good;
                slices[1].completion = &refused;

                peer->submit(direction, slices, how);

                ASSERT_TRUE(peer->wait(refused, patience()));
                ASSERT_TRUE(peer->wait(good, patience()));
                ASSERT_FALSE(refused.result());
                EXPECT_EQ(refused.result().error().code(), Code::kNotRegistered) << refused.result().error().to_string();
                EXPECT_EQ(good.result().value_or(0), 2000u);
                EXPECT_TRUE(stranger.all(kPoison));
                EXPECT_TRUE(half.all(kPoison));
                if (direction == Direction::kRead) {
                    EXPECT_EQ(local->data()[1 << 20], std::byte{1});
                }
            }
        }
    }
    EXPECT_TRUE(peer->usable());
}

TEST_P(TransportConformance, MovesUnregisteredLocalMemory) {
    const TestMemory plain(3 << 20);
    plain.fill_random(1);
    remote->fill(kPoison);
    const Slice one{.local = plain.data() + 1, .remote = remote->address() + 3, .length = plain.length() - 1};

    ASSERT_TRUE(transfer(*peer, Direction::kWrite, one));
    EXPECT_EQ(std::memcmp(plain.data() + 1, remote->data() + 3, one.length), 0);

    remote->fill_random(2);
    ASSERT_TRUE(transfer(*peer, Direction::kRead, one, Submit::kLeave));
    EXPECT_EQ(std::memcmp(plain.data() + 1, remote->data() + 3, one.length), 0);
}

TEST_P(TransportConformance, ReportsLocalMemoryThatIsNotMapped) {
    TestMemory holed(3 << 20);
    ASSERT_EQ(::mprotect(holed.data() + (2 << 20), 1 << 20, PROT_NONE), 0);
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        for (const uint64_t hole : {uint64_t{2 << 20}, uint64_t{0}}) {
            remote->fill(kPoison);
            Completion good, bad;
            good.add(2);
            bad.add(1);
            Slice slices[] = {slice(0, 0, 5000), slice(0, 1 << 20, 3 << 20), slice(8192, 8192, 5000)};
            slices[0].completion = slices[2].completion = &good;
            slices[1] = {.local = hole != 0 ? holed.data() : holed.data() + (2 << 20),
                         .remote = remote->address() + (8 << 20),
                         .length = hole != 0 ? 3u << 20 : 100,
                         .completion = &bad};

            peer->submit(direction, slices, Submit::kWait);

            ASSERT_TRUE(peer->wait(bad, patience()));
            ASSERT_TRUE(peer->wait(good, patience()));
            EXPECT_EQ(good.result().value_or(0), 10'000u);
            ASSERT_FALSE(bad.result());
            EXPECT_EQ(bad.result().error().code(), Code::kNotRegistered) << bad.result().error().to_string();
        }
    }
    EXPECT_TRUE(peer->usable());
    ASSERT_EQ(::mprotect(holed.data() + (2 << 20), 1 << 20, PROT_READ | PROT_WRITE), 0);
}

TEST_P(TransportConformance, DoesNotConnectToAnotherIncarnation) {
    SegmentDescriptor descriptor = pair->target().describe();
    descriptor.incarnation = Incarnation::random();
    const auto connected = pair->initiator().transport().connect(descriptor, patience());
    ASSERT_FALSE(connected);
    const Code code = connected.error().code();
    EXPECT_TRUE(code == Code::kStale || code == Code::kNotSupported) << connected.error().to_string();
}

}  // namespace

}  // namespace mooncake::testing
