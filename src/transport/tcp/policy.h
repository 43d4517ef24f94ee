// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

// The measured constants of the data path, in one place. bench/tcp_bench.cpp is what they were measured with.
namespace mooncake::tcp {

// Initiator
inline constexpr int kLanesMax = 16;
inline constexpr int kLanesByCores = 8;  // as many as half of the cores, but no more: each is a descriptor and memory on both sides
inline constexpr uint32_t kMessageBytes = 1 << 20;   // a message is cut here: long enough to make its head cheap
inline constexpr uint64_t kPageBytes = 4096;         // where it is cut
inline constexpr size_t kFlightsMax = 32;            // messages of one lane without an answer
inline constexpr uint64_t kWindowBytes = 4 << 20;    // payload of one lane without an answer
inline constexpr uint64_t kUnsentBytes = 256 << 10;  // a lane takes more work only below this, so that slow lanes take less
inline constexpr size_t kLaneStepBytes = 1 << 20;    // then the driver looks at the next lane
inline constexpr size_t kLeaveBytes = 256 << 10;     // what submit(kLeave) may send before it returns
inline constexpr size_t kPokeBytes = 64 << 10;       // what poke() moves of each lane: enough for what is worth being polled for

inline constexpr Duration kDrainTime = 250ms;   // how long cancel() lets writes that are under way end by themselves
inline constexpr Duration kMendTime = 1s;       // how long the target is asked for new lanes when one cannot go on, before the peer breaks
inline constexpr Duration kFarewellMin = 30ms;  // how long one that leaves waits for the target's word, and
inline constexpr int kFarewellTrips = 8;        // this many round trips in addition, but
inline constexpr Duration kFarewellMax = 1s;    // never longer

// Both
inline constexpr int kIoThreadsByCores = 8;     // likewise
inline constexpr size_t kAheadBytes = 8 << 10;  // read ahead of need where no payload is expected, or the length of the head is not known
inline constexpr size_t kSendBytes = 1 << 20;   // gathered for one sendmsg()

// Target
inline constexpr size_t kAnswersMax = 64;  // answers a connection may owe before we stop reading from it
inline constexpr size_t kReplyDescriptorsMax = 4096;
inline constexpr size_t kDeviceMessagesMax = 4;          // of a connection, which hold memory that all of them share
inline constexpr size_t kConnectionStepBytes = 2 << 20;  // then the next connection has its turn
inline constexpr size_t kConnectionsMax = 8192;
inline constexpr size_t kSessionsRemembered = 1024;  // of initiators that have no connection at the moment
inline constexpr Duration kHelloTimeout = 5s;
inline constexpr Duration kMessageTimeout = 60s;  // no byte of a started message
inline constexpr Duration kReplyTimeout = 30s;    // no byte of an answer taken
inline constexpr Duration kTick = 1s;             // how precisely those are kept

// Waiting. Blocking costs 5-50 us of wake-up, so everybody spins a little first, as long as that tends to pay off.
inline constexpr Duration kIoSpin = 100us;
inline constexpr int kPolls = 3;     // a spinning I/O thread asks its busiest connection so often before it asks epoll,
inline constexpr int kPollsMax = 8;  // and serves it so often in a row,
inline constexpr size_t kConversationBytes =
    8 << 10;  // while questions and answers are short: to ask for a long one is in the way of its arrival
inline constexpr Duration kWaitSpin = 200us;
inline constexpr Duration kShortSpin = 5us;
inline constexpr Duration kSleepMax = 10ms;  // of a driver, in case its completion is finished by somebody else's work

/// Decides how long to spin before blocking, from whether it paid off lately. Any thread may use it; statistics may get lost.
class SpinPolicy {
public:
    explicit SpinPolicy(Duration full) noexcept : full_(full) {}

    Duration budget() noexcept {
        if (hits_.load(std::memory_order_relaxed) >= kWorthIt) return full_;
        // Look again now and then whether times have changed.
        return tries_.fetch_add(1, std::memory_order_relaxed) % 16 == 0 ? full_ : kShortSpin;
    }
    void ended(bool hit, Duration budget) noexcept {
        if (!hit && budget < full_) return;  // says nothing about what a full one would have brought
        const uint32_t hits = hits_.load(std::memory_order_relaxed);
        hits_.store(hits - hits / 8 + (hit ? kAlways / 8 : 0), std::memory_order_relaxed);
    }

private:
    static constexpr uint32_t kAlways = 1024;
    static constexpr uint32_t kWorthIt = kAlways / 4;

    const Duration full_;
    std::atomic<uint32_t> hits_{kAlways};  // moving average
    std::atomic<uint32_t> tries_{0};
};

}  // namespace mooncake::tcp
