// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/incarnation.h"
#include "base/time.h"

// Requests and replies over framed TCP connections. Bodies are FlatBuffers (schema/*.fbs), verified by the callee before use.
// At connect both sides say protocol version, feature bits and incarnation; an incompatible peer is refused with a text that
// names both versions. docs/wire/rpc.md describes the frames.
namespace mooncake::rpc {

using Bytes = std::vector<std::byte>;

/// Methods are numbered once for all services; never renumber.
enum class Method : uint16_t {
    kProbe = 1,     // empty -> empty
    kDescribe = 2,  // engine.fbs DescribeRequest -> DescribeReply
    kNotify = 3,    // engine.fbs NotifyRequest -> empty
    kControl = 4,   // engine.fbs ControlRequest -> what the transport says

    // the store's master (store.fbs)
    kStoreExist = 32,
    kStoreGetReplicas = 33,
    kStorePutStart = 34,
    kStorePutEnd = 35,
    kStorePutRevoke = 36,
    kStoreRemove = 37,
    kStoreRemoveMatching = 38,
    kStoreReplicaClear = 39,
    kStoreMount = 40,
    kStoreRemount = 41,
    kStoreUnmount = 42,
    kStorePing = 43,
    kStoreGoodbye = 44,
    kStoreReportFailures = 45,
    kStoreSegments = 46,
    kStoreFollow = 47,  // answered in parts, for as long as the client lives
    kStoreAcknowledge = 48,
    kStoreCreateTask = 49,
    kStoreQueryTask = 50,
    kStoreEndTask = 51,
    kStoreEndCopies = 52,
    kStoreReplicasGone = 53,
    // of a node
    kNodeStage = 64,
    kNodeRelease = 65,
};

constexpr uint16_t kProtocolMajor = 1;  // both sides must agree
constexpr uint16_t kProtocolMinor = 0;  // grows with additions that old peers may ignore

struct Hello {
    Incarnation incarnation;
    uint64_t features = 0;  // bits; what both sides have may be used
    std::string software;   // "mooncake 1.0.0a1", for error texts
};

struct PeerInfo {
    Incarnation incarnation;
    uint64_t features = 0;  // the intersection
    std::string address;    // for logs
};

/// Answers one request, once, from any thread; answering after the caller went away is harmless. Dropping it unanswered sends
/// kInternal.
class Responder {
public:
    virtual ~Responder() = default;
    virtual void reply(Bytes body) = 0;
    virtual void fail(const Error& error) = 0;
    /// One part of an answer to call_stream(), before the reply() or fail() that ends it. Parts arrive in the order of the calls. When it
    /// returns, the part is with the kernel, unless the peer reads too slowly. False: nobody listens (any more), the peer takes no
    /// messages of that length, or too much waits to be sent (stream_bytes_max); nothing was queued.
    bool part(Bytes body) { return part(std::move(body), Haste::kNow); }
    /// kLater: the kernel may keep it for about a millisecond and send it with what follows. It is sent even if this process ends meanwhile.
    enum class Haste : uint8_t { kNow, kLater };
    virtual bool part(Bytes body, Haste haste) = 0;
    /// Of all that was sent to this peer, so many bytes have not been taken by the kernel: they would be lost with this process.
    virtual uint64_t unsent_bytes() const noexcept { return 0; }
    /// Ends it as fail() does, but by breaking the connection: the peer learns that it has not got everything, even if this process ends
    /// right afterwards.
    virtual void break_off(const Error& error) { fail(error); }
    /// True when nobody waits for the answer any more (deadline, cancel, connection lost).
    virtual bool abandoned() const noexcept = 0;
    /// Only in the handler: the caller's next request comes within this time, more likely than not, and is short of waiting. Before the I/O thread
    /// sleeps it looks for it that long.
    virtual void expect_next(Duration within) { (void)within; }
    virtual Deadline deadline() const noexcept = 0;
    virtual const PeerInfo& peer() const noexcept = 0;
};

/// Runs on an I/O thread and must not block; `body` is valid only during the call.
using Handler = std::function<void(std::span<const std::byte> body, std::unique_ptr<Responder> responder)>;

struct ServerOptions {
    std::string host{};  // empty: all addresses of both families
    uint16_t port = 0;   // 0: any from the range
    uint16_t port_min = 15000, port_max = 17000;
    int backlog = 128;
    int threads = 1;
    uint64_t message_bytes_max = 1 << 20;
    uint64_t stream_bytes_max = 64 << 20;  // waiting to be sent on one connection; then it gets no more parts
    size_t connections_max = 4096;
    size_t queued_requests_max = 1024;         // per connection; then it is not read until answers leave
    Duration hello_timeout = 5s;               // from accept to a complete hello
    Duration idle_body_timeout = 30s;          // a started message, ours or the peer's, must make progress
    uint16_t protocol_major = kProtocolMajor;  // what we claim to speak; others only in tests
    Hello hello;
};

/// Listens and dispatches. A connection that sends nonsense (port scanner, HTTP, TLS, random bytes, zero or huge lengths) is
/// closed and delays nobody. Thread-safe.
class MC_EXPORT Server {
public:
    static Result<std::unique_ptr<Server>> create(ServerOptions options);
    virtual ~Server() = default;

    /// Only before start().
    virtual void handle(Method method, Handler handler) = 0;
    virtual void start() = 0;
    virtual uint16_t port() const noexcept = 0;
    /// Closes everything and joins; no handler runs afterwards. Not from a handler. Idempotent.
    virtual void stop() = 0;
};

struct ClientOptions {
    int threads = 1;
    Duration connect_timeout = 5s;
    Duration idle_timeout = 60s;               // an unused connection is closed
    uint64_t message_bytes_max = 128 << 20;    // of a reply
    size_t pending_calls_max = 65536;          // per connection; more fail with kNoSpace
    uint16_t protocol_major = kProtocolMajor;  // what we claim to speak; others only in tests
    Hello hello;
};

using Callback = std::function<void(Result<Bytes>)>;
using PartCallback = std::function<void(std::span<const std::byte> part)>;  // valid only during the call

/// Tells, of the error that ended a call, whether the other side closed the connection (errno 0 or EPIPE), as a process does by ending: then
/// everything it had sent has been received. Not so when it was reset (ECONNRESET: the other side ended with requests unread, and bytes
/// its kernel had not sent yet are lost), for silence (ETIMEDOUT and the like: host or network lost), for nonsense (EPROTO), and for errors
/// that are not about the connection.
MC_EXPORT bool peer_closed(const Error& error) noexcept;

/// Calls any number of servers; one shared connection per address, opened on first use, requests pipelined. A dead server costs
/// only its own callers. Thread-safe.
class MC_EXPORT Client {
public:
    static std::unique_ptr<Client> create(ClientOptions options);
    virtual ~Client() = default;

    /// `address` is "host:port". Fails with kUnavailable (no connection, connection lost), kTimedOut, kCancelled (client
    /// stopped), kRefused (versions), or the error the server sent.
    virtual Result<Bytes> call(const std::string& address, Method method, std::span<const std::byte> body, Deadline deadline) {
        return call(address, method, body, deadline, nullptr);
    }
    /// `meanwhile` runs once the request is on its way, on this thread: work for which the answer is not needed. It must not call this client, and
    /// must be short: answers to others may wait for it.
    virtual Result<Bytes> call(const std::string& address, Method method, std::span<const std::byte> body, Deadline deadline,
                               const std::function<void()>& meanwhile) = 0;
    /// The callback runs on an I/O thread, exactly once, and must not block. Returns an id for cancel().
    virtual uint64_t call_async(const std::string& address, Method method, Bytes body, Deadline deadline, Callback callback) = 0;
    /// As call_async(), for answers in parts: `on_part` any number of times, in order, then `on_end` once. Both on one I/O thread; a part that
    /// takes long to handle delays the connection. There is no deadline: the connection stays open while the call lasts, and a host that
    /// vanishes is noticed within about 10 s. How the connection ended: see peer_closed().
    virtual uint64_t call_stream(const std::string& address, Method method, Bytes body, PartCallback on_part, Callback on_end) = 0;
    /// The callback (kCancelled, unless it already ran or is about to) fires soon. Unknown ids are ignored.
    virtual void cancel(uint64_t call) = 0;
    /// Only from a part's callback: nobody is in a hurry for what comes next on its connection, replies to other calls included. It is left in
    /// the kernel's buffer until this much later, or until there is much of it, so that one wake-up serves for many parts.
    virtual void linger(const std::string& address, Duration time) = 0;
    /// What the server said at connect; kNotFound while there is no connection.
    virtual Result<PeerInfo> peer(const std::string& address) = 0;
    /// Fails everything outstanding with kCancelled and joins. Not from a callback. Idempotent. Later calls fail at once, their
    /// callbacks run on the calling thread.
    virtual void stop() = 0;
};

}  // namespace mooncake::rpc
