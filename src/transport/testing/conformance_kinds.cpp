// SPDX-License-Identifier: Apache-2.0
// Memory that is not the host's: a transport carries a pair of kinds, or says that it does not, and never touches such memory by CPU.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "transport/testing/conformance.h"

namespace mooncake::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportKinds);

void TransportKinds::SetUp() {
    const auto& [kind, local_kind, remote_kind] = GetParam();
    pair.emplace(kind, allocator.devices());
    remote = allocator.allocate(remote_kind, kBytes);
    local = allocator.allocate(local_kind, kBytes);
    remote_region = pair->target().add(remote->region());
    local_region = pair->initiator().add(local->region());
    peer = pair->connect();
}

void TransportKinds::TearDown() {
    allocator.device().resume();
    peer.reset();
    pair.reset();
}

Slice TransportKinds::slice(uint64_t local_offset, uint64_t remote_offset, uint64_t length) const {
    return {.local = local->data() + local_offset, .remote = remote->address() + remote_offset, .length = length, .region = local_region};
}

bool TransportKinds::wait_until_held(const Completion& completion) {
    while (allocator.device().held() == 0) {
        if (completion.done()) return false;
        std::this_thread::yield();
    }
    return true;
}

namespace {

std::vector<std::byte> noise(uint64_t length, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(length);
    for (uint64_t i = 0; i + sizeof(uint64_t) <= length; i += sizeof(uint64_t)) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, sizeof word);
    }
    return bytes;
}

/// As one slice, in pieces so short that not all of them are begun at once.
std::vector<Slice> pieces_of(const Slice& slice, Completion& completion) {
    constexpr uint64_t kPiece = 256;
    std::vector<Slice> pieces;
    for (uint64_t at = 0; at < slice.length; at += kPiece) {
        Slice piece = slice;
        piece.local += at;
        piece.remote += at;
        piece.length = std::min(kPiece, slice.length - at);
        piece.completion = &completion;
        pieces.push_back(piece);
    }
    completion.add(static_cast<uint32_t>(pieces.size()));
    return pieces;
}

TEST_P(TransportKinds, APairIsCarriedOrNotSupported) {
    uint64_t seed = 0;
    for (const uint64_t length : {uint64_t{1}, uint64_t{4096}, uint64_t{100'001}, kBytes - 5000}) {
        for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
            for (const Submit how : {Submit::kWait, Submit::kLeave}) {
                constexpr uint64_t kFrom = 77, kTo = 4097;
                KindMemory& source = direction == Direction::kWrite ? *local : *remote;
                KindMemory& destination = direction == Direction::kWrite ? *remote : *local;
                const auto from = noise(kBytes, ++seed), before = noise(kBytes, ++seed);
                source.write(from);
                destination.write(before);

                const Slice one = direction == Direction::kWrite ? slice(kFrom, kTo, length) : slice(kTo, kFrom, length);
                const auto moved = transfer(*peer, direction, one, how);

                auto expected = before;
                if (moved) std::copy_n(from.begin() + kFrom, length, expected.begin() + kTo);
                EXPECT_EQ(source.read(), from);
                EXPECT_EQ(destination.read(), expected) << (moved ? "carried" : "refused");
                if (moved) continue;
                EXPECT_EQ(moved.error().code(), Code::kNotSupported) << moved.error().to_string();
                EXPECT_FALSE(carried()) << moved.error().to_string();
            }
        }
    }
    EXPECT_TRUE(peer->usable()) << "a pair that is not carried does not cost the connection";
}

TEST_P(TransportKinds, WhatIsNotCarriedLeavesTheRestOfTheSubmissionAlone) {
    const auto host_there = allocator.allocate(MemoryKind::kHost, kBytes), host_here = allocator.allocate(MemoryKind::kHost, kBytes);
    pair->target().add(host_there->region());
    const MemoryRegion* const region = pair->initiator().add(host_here->region());
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            host_here->write(noise(kBytes, 1));
            host_there->write(noise(kBytes, 2));
            Completion good, doubtful;
            good.add(2);
            doubtful.add(1);
            const Slice host{
                .local = host_here->data(), .remote = host_there->address(), .length = 70'000, .completion = &good, .region = region};
            Slice slices[] = {host, slice(0, 0, 70'000), host};
            slices[1].completion = &doubtful;
            slices[2].local += 100'000;
            slices[2].remote += 100'000;

            peer->submit(direction, slices, how);

            ASSERT_TRUE(peer->wait(doubtful, patience()));
            ASSERT_TRUE(peer->wait(good, patience()));
            EXPECT_EQ(good.result().value_or(0), 140'000u);
            const auto here = host_here->read(), there = host_there->read();
            EXPECT_TRUE(std::equal(here.begin(), here.begin() + 70'000, there.begin()));
            EXPECT_TRUE(std::equal(here.begin() + 100'000, here.begin() + 170'000, there.begin() + 100'000));
            const Code code = code_of(doubtful.result());
            EXPECT_TRUE(code == Code::kOk || code == Code::kNotSupported) << code_name(code);
        }
    }
}

TEST_P(TransportKinds, ManySmallPiecesOfACarriedPairArriveWhole) {
    if (!carried()) GTEST_SKIP() << "not carried";
    constexpr uint64_t kPiece = 1000, kApart = 1500, kCount = 2000;  // more than one chunk takes
    static_assert(kCount * kApart <= kBytes);
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        KindMemory& source = direction == Direction::kWrite ? *local : *remote;
        KindMemory& destination = direction == Direction::kWrite ? *remote : *local;
        const auto from = noise(kBytes, 1);
        auto expected = noise(kBytes, 2);
        source.write(from);
        destination.write(expected);
        std::vector<Slice> slices;
        for (uint64_t i = 0; i < kCount; ++i) {
            // Each to the place of another.
            const uint64_t here = i * kApart, there = (kCount - 1 - i) * kApart;
            slices.push_back(slice(here, there, kPiece));
            const uint64_t source_at = direction == Direction::kWrite ? here : there, to = direction == Direction::kWrite ? there : here;
            std::copy_n(from.begin() + static_cast<ptrdiff_t>(source_at), kPiece, expected.begin() + static_cast<ptrdiff_t>(to));
        }
        const auto moved = transfer(*peer, direction, slices);
        ASSERT_TRUE(moved) << moved.error().to_string();
        EXPECT_EQ(*moved, kCount * kPiece);
        EXPECT_EQ(destination.read(), expected);
    }
}

/// Keeps what it is shown of local memory of a device, and must never be asked to touch that.
class Onlooker final : public Copier {
public:
    explicit Onlooker(const Slice& slice) : local_(slice.local), kept_(slice.length) {}

    void begin(const std::byte*, uint64_t) noexcept override {}
    void copy(std::byte*, const std::byte*, uint64_t) noexcept override { ADD_FAILURE() << "no CPU copies this"; }
    void passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept override {
        std::memcpy(kept_.data() + (local - local_), bytes, length);
        seen_.fetch_add(length);
    }
    uint64_t seen() const { return seen_.load(); }
    const std::vector<std::byte>& kept() const { return kept_; }

private:
    const std::byte* const local_;
    std::vector<std::byte> kept_;
    std::atomic<uint64_t> seen_{0};
};

TEST_P(TransportKinds, OfADevicesMemoryTheHostsSideIsShownOrNothing) {
    if (!carried() || local->region().kind == MemoryKind::kHost) GTEST_SKIP() << "not carried, or not a device's";
    const bool host_side = remote->region().kind == MemoryKind::kHost;
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            local->write(noise(kBytes, 1));
            remote->write(noise(kBytes, 2));
            std::vector<Slice> slices{slice(0, 64, 70'001), slice(70'001, 70'065, 1), slice(100'000, 90'000, kBytes - 200'000)};
            std::deque<Onlooker> watchers;
            for (Slice& one : slices) one.copier = &watchers.emplace_back(one);
            const auto moved = transfer(*peer, direction, slices, how);
            ASSERT_TRUE(moved) << moved.error().to_string();
            const bool shown = watchers[0].seen() > 0;
            EXPECT_TRUE(shown || !host_side || pair->initiator().transport().capabilities().name == "fabric");
            const auto here = local->read();
            for (size_t i = 0; i < slices.size(); ++i) {
                ASSERT_EQ(watchers[i].seen(), shown ? slices[i].length : 0) << "slice " << i;
                if (!shown) continue;
                EXPECT_TRUE(
                    std::equal(watchers[i].kept().begin(), watchers[i].kept().end(), here.begin() + (slices[i].local - local->data())));
            }
        }
    }
}

TEST_P(TransportKinds, CancelIsAFenceForWhatADeviceCopies) {
    if (!carried()) GTEST_SKIP() << "not carried";
    const Deadline deadline = patience();
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        KindMemory& destination = direction == Direction::kWrite ? *remote : *local;
        bool stopped = false;
        while (!stopped && !deadline.passed()) {  // until cancel() was faster than the copies that go on
            Completion completion;
            const auto all = pieces_of(slice(0, 0, kBytes), completion);
            allocator.device().hold();
            peer->submit(direction, all, Submit::kLeave);
            if (!wait_until_held(completion)) GTEST_SKIP() << "no device copies here";
            std::atomic<bool> begun{false}, over{false};
            std::jthread canceller([&] {
                begun = true;
                peer->cancel(completion, Error(Code::kTimedOut, "the test gave up"), patience());
                over = true;
            });
            while (!begun.load()) std::this_thread::yield();
            for (int i = 0; i < 100; ++i) std::this_thread::yield();
            const auto poison = noise(kBytes, 3);
            const bool early = over.load();
            if (copies_apart() && direction == Direction::kRead) {
                // What the target's device copies meanwhile goes nowhere.
                if (early) destination.write(poison);
            } else {
                EXPECT_FALSE(early) << "a copy is under way";
                EXPECT_FALSE(completion.done());
            }

            allocator.device().resume();

            canceller.join();
            ASSERT_TRUE(completion.done());
            stopped = !completion.result();
            EXPECT_EQ(code_of(completion.result()), stopped ? Code::kTimedOut : Code::kOk);
            while (early && allocator.device().held() > 0) std::this_thread::yield();
            EXPECT_EQ(allocator.device().held(), 0u);
            if (!early) destination.write(poison);
            ASSERT_TRUE(transfer(*peer, direction, slice(0, 0, 1)));
            EXPECT_TRUE(std::equal(poison.begin() + 1, poison.end(), destination.read().begin() + 1)) << "a byte landed after cancel()";
        }
        EXPECT_TRUE(stopped);
    }
}

TEST_P(TransportKinds, UnregisteringIsAFenceForWhatADeviceCopies) {
    if (!carried()) GTEST_SKIP() << "not carried";
    Completion completion;
    const auto all = pieces_of(slice(0, 0, kBytes), completion);
    allocator.device().hold();
    peer->submit(Direction::kWrite, all, Submit::kLeave);
    if (!wait_until_held(completion)) GTEST_SKIP() << "no device copies here";

    const auto removed = pair->target().remove(remote_region, Deadline::after(1ms));
    // Where each side copies for itself the target may not have been touched yet.
    if (!copies_apart() || kinds().local == MemoryKind::kHost) {
        EXPECT_EQ(code_of(removed), Code::kBusy);
    }
    allocator.device().resume();
    if (!removed) {
        ASSERT_TRUE(pair->target().remove(remote_region));
    }

    const auto poison = noise(kBytes, 4);
    remote->write(poison);
    ASSERT_TRUE(peer->wait(completion, patience()));
    EXPECT_EQ(code_of(completion.result()), Code::kNotRegistered);
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, slice(0, 0, 100))), Code::kNotRegistered);
    EXPECT_EQ(remote->read(), poison) << "a byte landed behind the fence";
}

TEST_P(TransportKinds, AClosedTargetIsNotTouchedAnyMore) {
    if (!carried()) GTEST_SKIP() << "not carried";
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 0, kBytes)));
    ASSERT_TRUE(pair->target().close());
    const auto before = noise(kBytes, 5);
    remote->write(before);
    EXPECT_FALSE(transfer(*peer, Direction::kWrite, slice(0, 0, 100)));
    EXPECT_FALSE(transfer(*peer, Direction::kWrite, slice(0, 0, kBytes), Submit::kLeave));
    EXPECT_FALSE(transfer(*peer, Direction::kRead, slice(0, 0, 100)));
    EXPECT_EQ(remote->read(), before);
}

TEST_P(TransportKinds, ADeviceThatFailsCostsAnErrorAndNotTheConnection) {
    if (!carried() || kinds().host()) GTEST_SKIP() << "no device copies here";
    const uint64_t copies = allocator.device().copies();
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 0, 100)));
    if (allocator.device().copies() == copies) GTEST_SKIP() << "no device copies here";
    allocator.device().break_down();
    for (const Direction direction : {Direction::kWrite, Direction::kRead})
        for (const uint64_t length : {uint64_t{100}, kBytes})
            EXPECT_EQ(code_of(transfer(*peer, direction, slice(0, 0, length))), Code::kInvalidArgument);
    EXPECT_TRUE(peer->usable());
}

TEST_P(TransportKinds, LocalMemoryThatNobodyRegisteredIsNotTouchedByCpu) {
    Slice one = slice(0, 0, 50'000);
    one.region = nullptr;
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        const Code code = code_of(transfer(*peer, direction, one));
        EXPECT_TRUE(code == Code::kOk || code == Code::kNotRegistered || code == Code::kNotSupported) << code_name(code);
    }
    EXPECT_TRUE(peer->usable());
}

}  // namespace

}  // namespace mooncake::testing
