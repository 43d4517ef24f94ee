// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/options.h"
#include "base/shared_memory.h"
#include "base/time.h"
#include "device/device.h"
#include "transport/access.h"
#include "transport/descriptor.h"
#include "transport/transport.h"

namespace mooncake {

namespace metrics {
class Registry;
}

struct EngineConfig {
    std::string local_name;                 // "10.0.0.1", "10.0.0.1:12345", "[::1]:80", "host:1:npu_0"
    std::string metadata = "P2PHANDSHAKE";  // or "http://...", "etcd://...", "redis://...", "host:port", "memory://x"
    std::string protocol;                   // the transport preferred between hosts; unknown or absent ones fall back to tcp, loudly
    std::vector<std::string> devices;       // NIC allow-list; empty = all
    EngineOptions options;
    Devices* memory = &Devices::of_process();  // the kinds of memory there are; outlives the engine
};

/// One piece of a transfer.
struct Block {
    std::byte* local = nullptr;
    uint64_t remote = 0;
    uint64_t length = 0;       // 0 moves nothing and succeeds
    Copier* copier = nullptr;  // of this block alone; must live as long as the transfer
};

using SegmentId = int32_t;  // 0 is our own segment
using BatchId = uint64_t;   // a generation-checked slot number: never 0, never 2^64-1, never reused soon

struct Notification {
    std::string name;
    std::string message;
};
constexpr size_t kNotificationBytesMax = (1 << 20) - 1024;  // of both together; as much as fits an RPC of any engine
/// kInvalidArgument: too long.
Result<> check_notification(const Notification& notification);

struct Request {
    Direction direction = Direction::kRead;
    std::byte* local = nullptr;
    SegmentId segment = 0;
    uint64_t remote = 0;
    uint64_t length = 0;
};

enum class TransferState : uint8_t { kWaiting = 0, kPending = 1, kInvalid = 2, kCancelled = 3, kCompleted = 4, kTimedOut = 5, kFailed = 6 };

/// What a submit() does where there is no connection: makes one, which may take seconds, or leaves that to the batch and returns at once.
enum class Connect : uint8_t { kFirst, kMeanwhile };

struct TransferStatus {
    TransferState state = TransferState::kWaiting;
    uint64_t bytes = 0;
    Error error;  // only in a failed state
};

/// A transfer whose lists were checked, merged and resolved once, to be posted any number of times at the cost of the posting
/// alone. It is for one life of the peer: once that has restarted every post fails with kStale, and the plan must be prepared again. Thread-safe: calls from several threads run one after another. Must not outlive its Engine.
class MC_EXPORT PreparedTransfer {
public:
    virtual ~PreparedTransfer() = default;
    virtual Result<uint64_t> run(Direction direction, const WorkPoint& after = {}) = 0;    // as Engine::transfer
    virtual Result<BatchId> submit(Direction direction, const WorkPoint& after = {}) = 0;  // as Engine::submit
};

/// Moves bytes between registered memory of any two processes. Whoever reaches its ports may read and write what is registered. They
/// listen on all addresses of the machine, unless it calls itself by a loopback address ("127.0.0.1", "localhost", "::1": then only
/// there) or options.bind_address names one ("0.0.0.0": all, whatever the name). Everything may be called from any thread at any time; after
/// close(), and in a forked child, every call fails with kUnavailable.
class MC_EXPORT Engine {
public:
    static Result<std::unique_ptr<Engine>> create(EngineConfig config);
    /// Closes if still open. In a forked child it does nothing.
    virtual ~Engine() = default;
    /// Refuses new calls, cancels running ones, takes all memory back from the peers, removes our directory entries, joins all threads. A
    /// fence: once it returned success nobody touches registered memory any more. kBusy: a process of this host may still be about to;
    /// everything else is done. Calling it again waits for that anew, and otherwise does nothing.
    virtual Result<> close() = 0;

    // ---- identity
    virtual const std::string& segment_name() const noexcept = 0;  // what peers open: "10.0.0.1:15123"
    virtual uint16_t rpc_port() const noexcept = 0;
    virtual Incarnation incarnation() const noexcept = 0;
    virtual const EngineOptions& options() const noexcept = 0;
    virtual metrics::Registry& metrics() noexcept = 0;
    virtual std::string topology_json() const = 0;
    /// Whether transfers with peers on this host are copies of memory that is mapped here, done by the caller's thread.
    virtual bool maps_peers() const noexcept = 0;

    // ---- memory. Codes: kInvalidArgument (null, no bytes, not mapped; the text says where), kOverlap (crosses a registered range's
    // border, or may be written inside one that may not), kNotRegistered. Exact duplicates and ranges inside a registered one are counted
    // and need as many unregister calls.
    /// Peers may do with it what `most` says and the memory bears: what is mapped read-only can be read, and writes are refused.
    virtual Result<> register_memory(void* address, uint64_t length, std::string_view location = "*", bool remote_accessible = true,
                                     Access most = Access::kWrite) = 0;
    virtual Result<> register_memory_batch(std::span<const Permission> ranges, std::string_view location = "*") = 0;  // all or none
    /// A fence: once it returned success no peer touches the memory any more. So it is when it says kUnavailable, because close() is one,
    /// too.
    virtual Result<> unregister_memory(void* address) = 0;
    virtual Result<> unregister_memory_batch(std::span<void* const> addresses) = 0;  // goes on after an error, returns the first
    /// Registered memory that same-host peers map, so copies to it run at memory speed. Page-aligned.
    virtual Result<void*> allocate_memory(uint64_t length, std::string_view location = "*") = 0;
    /// The same with memory that exists: as much of it as is mapped.
    virtual Result<void*> adopt_memory(SharedMemory memory, std::string_view location = "*") = 0;
    /// Takes back whatever is registered of it, and gives it to the system. kOverlap: it is registered together with memory beside it.
    virtual Result<> free_memory(void* address) = 0;
    virtual std::vector<BufferRecord> buffers() const = 0;
    /// What lies there, as registered: of a device if its first or its last byte is; the host's where nobody knows better. Costs a look at a
    /// flag as long as only host memory has been registered.
    virtual MemoryKind memory_kind(const void* address, uint64_t length) const noexcept = 0;
    /// The kinds of memory there are, and who copies between them.
    virtual const Devices& devices() const noexcept = 0;

    // ---- segments. Opening is lazy and single-flight per name; a dead peer never delays the others.
    virtual Result<SegmentId> open_segment(const std::string& name, Deadline deadline) = 0;
    /// Connects for who has addresses already, of this life: kStale when another one lives there now. Unlike open_segment() it says nothing of
    /// the addresses that others have.
    virtual Result<> connect_to(const std::string& name, Incarnation life, Deadline deadline) = 0;
    /// Connects for who has addresses already, from elsewhere: unlike open_segment() it does not say whose they are.
    virtual Result<SegmentId> connect_segment(const std::string& name, Deadline deadline) = 0;
    /// Opens it and has the transport do ahead of the first transfer what that would have to do otherwise. Idempotent. Without a
    /// transport that gains by it, it is only a hint and never fails.
    virtual Result<> warm_up(const std::string& name, Deadline deadline) = 0;
    /// Asks again who the name means; transfers under way go on. Empty name: all, at their next use.
    virtual Result<> refresh_segment(const std::string& name, Deadline deadline) = 0;
    /// The same for who has no addresses, or knows whose they are: like connect_to() it says nothing of those that others have.
    virtual Result<> reconnect(const std::string& name, Deadline deadline) = 0;
    virtual Result<std::string> segment_name_of(SegmentId segment) const = 0;
    virtual Result<SegmentDescriptor> describe(const std::string& name, uint32_t buffers_max, Deadline deadline) = 0;
    virtual Result<> probe(const std::string& name, Deadline deadline) = 0;
    /// Whether a submit() to this segment finds a connection that works. Where it does not, it may have to wait for one.
    virtual bool connected(const std::string& name) = 0;

    // ---- transfers. A failed, timed-out or cancelled one moves no byte any more; the error names peer, path, stage and errno. The first one
    // of each thread after the peer has restarted fails with kStale, since its addresses may be those of the former life; unless the segment
    // was opened or refreshed since, or this thread was given the peer's buffers by describe(). What fails later, in a batch, tells whoever asks
    // for the outcome; who submitted it and does not ask is told by a submit that is refused. Who knows the `life` that its addresses belong
    // to says so: then it fails with kStale whenever another one lives there, and is no news for this thread. `after`: work of a device that
    // has to be over before any byte is read or written; what is put on its stream later does not count. It is waited for on the host and within
    // the deadline, and takes the place of the default stream, which is waited for otherwise.
    /// transfer_timeout + 1 ns per byte, from now.
    virtual Deadline transfer_deadline(uint64_t bytes) const noexcept = 0;
    /// Blocks until all is at its destination. `notification`, if not null, is delivered to the peer afterwards; an error that names it
    /// means that the bytes are there and the notification is not.
    virtual Result<uint64_t> transfer(const std::string& target, Direction direction, std::span<const Block> blocks, Deadline deadline,
                                      const Notification* notification = nullptr, Incarnation life = {}, const WorkPoint& after = {}) = 0;
    virtual Result<std::unique_ptr<PreparedTransfer>> prepare(const std::string& target, std::span<const Block> blocks) = 0;

    // ---- batches: allocate -> submit, possibly several times -> poll or wait -> free
    virtual Result<BatchId> allocate_batch(size_t capacity) = 0;
    /// kNoSpace beyond the capacity; kStale. Each request is one task, numbered in submission order.
    virtual Result<> submit(BatchId batch, std::span<const Request> requests, const Notification* notification = nullptr) = 0;
    /// A batch with one task for all the blocks together.
    virtual Result<BatchId> submit(const std::string& target, Direction direction, std::span<const Block> blocks,
                                   const Notification* notification = nullptr, Incarnation life = {}, Connect connect = Connect::kFirst,
                                   const WorkPoint& after = {}) = 0;
    /// Puts a transfer on a stream of a device: it begins when all is over that is on it now, and what is put on it afterwards waits for its end.
    /// The batch is freed by itself. A failure that comes later is logged and ends the process, or is what the next of these calls returns
    /// (EngineOptions::stream_failure_ends); that of close() is only logged. kInvalidArgument: a graph is being captured on the stream, or
    /// there is no such stream; kUnavailable: this process uses no device.
    virtual Result<BatchId> transfer_on_stream(const std::string& target, Direction direction, std::span<const Block> blocks,
                                               const WorkPoint& stream) = 0;
    virtual Result<TransferStatus> task_status(BatchId batch, size_t task) = 0;  // kNotFound: no such batch; kInvalidArgument: no such task
    /// Worst state of all tasks, kTimedOut and kCancelled kept apart; kCompleted for an empty batch.
    virtual Result<TransferStatus> batch_status(BatchId batch) = 0;
    /// Blocks until terminal (the batch's own deadline ends it at the latest) or until `deadline`, which cancels nothing. The calling
    /// thread does the transport's work meanwhile where that is faster.
    virtual Result<TransferStatus> wait_batch(BatchId batch, Deadline deadline = Deadline::never()) = 0;
    /// The same without the outcome, of which nobody is told: false at `deadline`.
    virtual Result<bool> await_batch(BatchId batch, Deadline deadline = Deadline::never()) = 0;
    virtual Result<> cancel_batch(BatchId batch) = 0;
    /// The same without waiting, by threads of the engine's own: on_batch_done() tells when it has stopped.
    virtual Result<> begin_cancel(BatchId batch) = 0;
    /// kBusy while a task runs.
    virtual Result<> free_batch(BatchId batch) = 0;
    /// Calls back once, when the batch is terminal (at once if it already is), on one of our threads; must not block.
    virtual Result<> on_batch_done(BatchId batch, std::function<void()> callback) = 0;

    // ---- notifications. A peer keeps a bounded number of them until they are taken: kNoSpace.
    virtual Result<> send_notification(const std::string& target, const Notification& notification, Deadline deadline) = 0;
    virtual std::vector<Notification> take_notifications() = 0;
};

/// The text of a protocol by which a transport of this build is asked for, or its name; null if there is none. Lives as long as the process.
MC_EXPORT const char* find_protocol(std::string_view protocol) noexcept;

/// Something that this build can do, and whether it can be done in this process.
struct Feature {
    std::string name;
    bool usable = false;
    std::string reason;  // what there is, or why not
};
/// The transports and the kinds of memory. Changes nothing, and loads nothing that no transport would.
MC_EXPORT std::vector<Feature> list_features();

/// Whether protocol `efa` can work here: there is such a device, and libfabric can be loaded. Loads it only if there is.
MC_EXPORT bool efa_usable();

}  // namespace mooncake
