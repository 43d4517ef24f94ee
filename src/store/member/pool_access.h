// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "store/member/holdings.h"
#include "store/member/local_segments.h"
#include "store/member/master_link.h"
#include "store/member/member_metrics.h"
#include "store/member/membership.h"
#include "store/member/mover.h"
#include "store/member/segment_directory.h"
#include "store/member/write_fence.h"
#include "store/protocol/codes.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

/// One process's place in a pool: who it is, its way to the master and to everybody's segments, and the right to write. Its node and its
/// client share one; either may be alone with it. The parts are thread-safe each; the rest is constant after construction. Must outlive
/// node and client, which end their calls between begin_closing() and leave().
class PoolAccess final : private MembershipListener {
public:
    struct Setup {
        std::shared_ptr<Engine> engine;
        std::unique_ptr<MasterApi> master;
        std::string name;  // of our segments: host:port
        Duration rpc_timeout = 30s;
        std::string cluster_id{};  // for metrics
        ClientId id{};             // of who was here before; none: a new one
    };
    explicit PoolAccess(Setup setup);
    ~PoolAccess() override { leave(); }

    const ClientId id;
    const std::string name;
    const std::string host;
    const std::shared_ptr<Engine> engine;
    const std::unique_ptr<MasterApi> master;
    const Duration rpc_timeout;
    MemberMetrics metrics;
    SegmentDirectory directory;
    LocalSegments local;
    Mover mover;
    WriteFence fence;
    std::atomic<bool> closing{false};

    /// Becomes a member, once. `listeners` (told in this order) and `holdings` must last until leave().
    Result<> join(std::vector<MembershipListener*> listeners, Holdings& holdings, MembershipOptions options, Deadline deadline);
    /// After join(). Whoever mounts has the memory in `local` before: others may be told of it at once.
    Membership& membership() noexcept { return *membership_; }
    /// Whether the master answered lately.
    bool master_reachable() const { return membership_ && membership_->epoch() != 0 && membership_->answering(); }

    /// Ends all waiting and all transfers; calls are about to be refused.
    void begin_closing();
    /// Says goodbye, so that our segments leave the pool (unless the next life of this process is to have them), and gives their memory back. Idempotent.
    void leave(bool goodbye = true);

    Deadline rpc_deadline() const { return Deadline::after(rpc_timeout); }
    /// Asks the master, counts and times it.
    template <typename Call>
    auto ask(MasterCall which, Call&& call) {
        const Time started = Clock::now();
        auto answer = call();
        MemberMetrics::PerCall& counted = metrics.of(which);
        counted.count->add();
        counted.latency->observe(static_cast<uint64_t>((Clock::now() - started).count()));
        return answer;
    }
    /// As ask(), once more if the connection was lost; only for what may be repeated.
    template <typename Call>
    auto ask_twice(MasterCall which, Call&& call) {
        auto answer = ask(which, call);
        if (!answer && answer.error().code() == Code::kUnavailable && !closing.load(std::memory_order_acquire)) answer = ask(which, call);
        return answer;
    }
    /// Waits; false: we are closing.
    bool pause(Duration time);
    /// What a call answers whose question to the master failed.
    StoreCode code_of(const Error& error) const;

    /// Whether nothing that we sent to this process before can land there any more. Asks it, but not for long.
    bool fence_peer(const std::string& endpoint) const;
    /// The same, but only if it answers: to fence it ends what others of our threads move there just now.
    bool fence_if_alive(const std::string& endpoint) const;
    /// The segment could not be read or written: others are preferred for a while, and the hook runs. Errors that are not the segment's
    /// (memory that is not there, here or any more over there; stopped by us) change nothing. True: it is the segment's.
    bool segment_failed(const SegmentHandle& segment, const Error& error);
    /// Runs whenever a segment has failed, on the thread that met it. Set before join().
    void on_segment_failed(std::function<void()> hook) { segment_failed_ = std::move(hook); }

private:
    void keys_changed(const std::vector<KeyChanged>& keys) override;
    void all_keys_changed() override;
    void master_answered(BootTime good_until) override { fence.renew(good_until); }
    void master_lost() override;
    void master_found(uint64_t epoch) override;
    void copy_ordered(const CopyOrder& order) override;

    Mutex pause_mutex_;
    std::condition_variable_any closing_changed_;
    std::function<void()> segment_failed_ = [] {};
    std::vector<MembershipListener*> listeners_;
    std::unique_ptr<Membership> membership_;
};

/// The segments one call meets, found once each. Not thread-safe.
class SegmentLookup {
public:
    explicit SegmentLookup(PoolAccess& pool) : pool_(pool) {}

    struct Found {
        uint64_t epoch = 0;
        uint32_t number = 0;
        SegmentHandle segment;                           // null: not known
        std::shared_ptr<const LocalSegments::Held> own;  // null: not in this process
        int distance = 3;                                // 0: this process, 1: this host, 2: elsewhere
    };
    /// The reference is good until the next call.
    const Found& find(uint64_t epoch, uint32_t number);

private:
    PoolAccess& pool_;
    std::vector<Found> found_;
    size_t last_ = 0;
};

}  // namespace mooncake::store
