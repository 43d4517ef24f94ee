// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/boot_clock.h"
#include "base/error.h"
#include "base/incarnation.h"
#include "base/time.h"
#include "store/member/holdings.h"
#include "store/member/master_link.h"

namespace mooncake::store {

/// What the pool tells its member. keys_changed(), all_keys_changed() and copy_ordered() are called on the event stream's thread, one at a time;
/// master_answered(), master_lost() and master_found() on the membership's own, never two at once. None may call the membership's mount(), unmount() or stop().
class MembershipListener {
public:
    virtual ~MembershipListener() = default;
    /// These values changed or went. (Or, with all_keys_changed(), nobody would tell us.)
    virtual void keys_changed(const std::vector<KeyChanged>& /*keys*/) {}
    virtual void all_keys_changed() {}
    /// The master has heard of us and will not give us up before this moment: until then, and no longer, bytes of writes it planned may move.
    /// Whoever moves them looks at the clock itself: this process may have been stopped, and then nobody tells it anything in time.
    virtual void master_answered(BootTime /*good_until*/) {}
    /// The master was lost, or another took over: writes it planned must end before this returns, nothing it said holds any more.
    virtual void master_lost() {}
    /// Answered from then on.
    virtual void master_found(uint64_t /*epoch*/) {}
    /// To be carried out, and reported with MasterApi::end_task().
    virtual void copy_ordered(const CopyOrder& /*order*/) {}
};

struct MembershipOptions {
    Duration heartbeat_interval = 1s;
    Duration node_heartbeat_interval = 300ms;  // who lends memory is missed sooner: MasterOptions::silent_after
    Duration retry_interval = 100ms;           // while the master does not answer
    size_t report_entries_max = 5'000;         // in one request
    Incarnation life{};                        // of this process; none: it does not say
    std::optional<FormerLife> restarted{};     // it takes the place of one that is gone, under its id
};

/// Keeps this process a member of the pool: heartbeats on a thread of its own, follows the event stream, mounts again (with all they hold) whenever the
/// master does not know us. Thread-safe; start() once.
class Membership {
public:
    /// All must outlive it. `holdings`: what is lent; a plain Holdings for who lends nothing.
    static std::unique_ptr<Membership> create(MasterApi& master, ClientId client, MembershipListener& listener, Holdings& holdings,
                                              MembershipOptions options);
    virtual ~Membership() = default;

    /// Makes us known; fails with the error of the first try.
    virtual Result<> start(Deadline deadline) = 0;
    /// Stops following and sending heartbeats, says goodbye (within a second) unless the next life of this process shall take its place, joins. Idempotent.
    virtual void stop(bool goodbye = true) = 0;

    /// Mounted again by itself after a change of master, until unmounted. While no master answers both fail at once, with its last error; a
    /// mount that failed is not tried again.
    virtual Result<StoreCode> mount(const SegmentSpec& segment, Deadline deadline) = 0;
    virtual Result<StoreCode> unmount(const SegmentId& segment, Duration grace, Deadline deadline) = 0;

    /// The life of the master whose answers hold; 0: none.
    virtual uint64_t epoch() const noexcept = 0;
    /// Whether the master answered when it was last asked.
    virtual bool answering() const = 0;
};

}  // namespace mooncake::store
