// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "store/client/client_metrics.h"
#include "store/client/doubtful_writes.h"
#include "store/client/key_turns.h"
#include "store/client/lease_cache.h"
#include "store/client/local_segments.h"
#include "store/client/mover.h"
#include "store/client/slow_segments.h"
#include "store/client/store_options.h"
#include "store/client/write_fence.h"
#include "store/node/master_link.h"
#include "store/node/segment_directory.h"
#include "store/protocol/codes.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

/// What the parts of one client share. The parts are thread-safe each; the rest is constant after construction.
struct ClientCore {
    ClientCore(StoreConfig client_config, std::shared_ptr<Engine> client_engine, std::unique_ptr<MasterApi> client_master,
               std::string client_name);

    const StoreConfig config;
    const ClientId id;
    const std::string name;  // of our segments
    const std::string host;
    const std::shared_ptr<Engine> engine;
    const std::unique_ptr<MasterApi> master;
    ClientMetrics metrics;
    SegmentDirectory directory;
    LeaseCache leases;
    LocalSegments local;
    Mover mover;
    SlowSegments slow;
    WriteFence fence;
    DoubtfulWrites doubts;
    KeyTurns replacing;  // whose value one of our threads is replacing
    std::atomic<bool> closing{false};
    std::atomic<uint64_t> next_request{1};  // names put_start requests; 0 would mean none
    std::atomic<Time> settles_at{};         // after a change of master: until then other nodes may not have come back yet

    Deadline rpc_deadline() const { return Deadline::after(config.options.rpc_timeout); }

    /// Asks the master, counts and times it.
    template <typename Call>
    auto ask(MasterCall which, Call&& call) {
        const Time started = Clock::now();
        auto answer = call();
        ClientMetrics::PerCall& counted = metrics.of(which);
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
    /// Ends all waiting; calls are about to be refused.
    void begin_closing();
    /// Waits; false: the client is closing.
    bool pause(Duration time);
    /// What a call answers whose question to the master failed.
    StoreCode code_of(const Error& error) const;
    /// Of a write whose right ended before its bytes had moved: kTransferFail if it is worth beginning again.
    StoreCode lost_code() const { return fence.mark().epoch != 0 ? StoreCode::kTransferFail : StoreCode::kRpcFail; }

    /// Whether nothing that we sent to this process before can land there any more. Asks it, but not for long.
    bool fence_peer(const std::string& endpoint) const;

    /// The segment could not be read or written: others are preferred for a while, and nothing that relies on it is promised any more.
    /// Errors that are not the segment's (memory that is not there, here or any more over there; stopped by us) change nothing.
    /// True: it is the segment's.
    bool segment_failed(const SegmentHandle& segment, const Error& error);

private:
    DoubtfulWrites::Hooks doubt_hooks();

    Mutex pause_mutex_;
    std::condition_variable_any closing_changed_;
};

/// The segments one call meets, found once each. Not thread-safe.
class SegmentLookup {
public:
    explicit SegmentLookup(ClientCore& core) : core_(core) {}

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
    ClientCore& core_;
    std::vector<Found> found_;
    size_t last_ = 0;
};

}  // namespace mooncake::store
