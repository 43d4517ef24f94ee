// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/completion.h"
#include "base/gate.h"
#include "engine/engine.h"
#include "engine/memory_registry.h"
#include "engine/service.h"
#include "engine/session.h"

namespace mooncake {

/// Sends a notification to whoever owns a segment. Thread-safe.
class Notifier {
public:
    virtual ~Notifier() = default;
    /// `life`: whom it is for, and nobody else (kStale). None: for whoever has the name now.
    virtual Result<> notify(Session& session, const Notification& notification, Incarnation life, Deadline deadline) = 0;
};

/// What a transfer waits for. `patient`: its deadline counts from the end of that.
struct Behind {
    std::unique_ptr<PendingWork> work;
    bool patient = false;
};

/// What the parts of a running engine share. Constant after creation, outlives every transfer.
struct EngineCore {
    const Devices* devices = nullptr;  // none: nobody has work that is to be waited for
    MemoryRegistry* registry = nullptr;
    SessionTable* sessions = nullptr;
    Service* service = nullptr;
    Notifier* notifier = nullptr;
    std::atomic<bool> closing{false};  // no retries any more
};

/// How often one transfer may start over on a new link, and how long a stopped one waits for the peer's word.
constexpr int kAttemptsMax = 3;
constexpr Duration kFenceTime = 500ms;

/// True when another attempt, on a new link or another transport, may help.
bool worth_another_attempt(const Error& error) noexcept;
/// True when the transport of that attempt cannot carry this memory between these peers; another may.
bool is_unfit(const Error& error) noexcept;
/// What a failed attempt means for the link: drops it if it broke. A refusal by a peer that is just going away, or that has made
/// place for a successor, becomes kStale: it was not meant for us.
Error judge_failure(Session& session, const std::shared_ptr<Link>& link, Error error, Deadline deadline);
/// Before an attempt that failed is repeated on another link: whether nothing of it can land any more. Within a transport the new connection
/// sees to that; another transport cannot, so the old peer is asked.
bool may_go_over(Link& failed, const Link& next, Direction direction, Completion& completion);
/// The error of a transfer that was stopped, saying what that means for the peer's memory.
Error stopped_error(Code code, std::string_view why, Stopped stopped);
/// The error a transfer ends with: names peer and path, and says so when a write broke off at a peer nobody could ask.
Error final_error(const Error& error, Direction direction, const Session& session, const Link& link);
/// The error of a transfer that found no link. `tried`: it had one before, so that a write may have left bytes on the way.
Error unreachable_error(const Error& error, Direction direction, bool tried);
/// Checks what needs no network: null and wrapping addresses.
Result<> check_blocks(std::span<const Block> blocks);

/// Whether the local memory of long slices can be there at all, so that a length that is a mistake is refused before it is cut into
/// millions of pieces. kNotRegistered.
Result<> check_reach(std::span<const Slice> slices);

/// Waits on the calling thread until the work is over, the deadline (kTimedOut) or the engine's end (kCancelled).
Result<> wait_for_work(const EngineCore& core, const Devices& devices, const WorkPoint& point, Deadline deadline);
/// What a transfer depends on that nobody named: work of this process on the devices whose memory it reads. `known`: that is all, and other waiting need
/// not be done; `work`: to be waited for, if any is under way.
struct UnnamedWork {
    bool known = false;
    std::unique_ptr<PendingWork> work;
};
UnnamedWork unnamed_work(const EngineCore& core, Direction direction, std::span<const Slice> slices);
/// Waits for it as wait_for_work(). True: the slices may be marked as ordered.
Result<bool> wait_for_unnamed_work(const EngineCore& core, Direction direction, std::span<const Slice> slices, Deadline deadline);
/// What they depend on has been waited for.
void mark_ordered(std::span<Slice> slices) noexcept;

/// Runs one transfer on the calling thread, attempts and all, inside a section of the sessions. `slices` name `completion`; `life` as for
/// Session::link_to(); `began`: for the metrics.
Result<uint64_t> run_transfer(EngineCore& core, Session& session, Incarnation& life, Direction direction, std::span<const Slice> slices,
                              Completion& completion, Deadline deadline, Time began);

}  // namespace mooncake
