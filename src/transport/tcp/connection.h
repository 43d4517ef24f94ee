// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "net/socket.h"
#include "transport/tcp/device_message.h"
#include "transport/tcp/io_thread.h"
#include "transport/tcp/policy.h"
#include "transport/tcp/stream.h"

namespace mooncake::tcp {

class Server;

/// The target's end of one connection: checks what the initiator asks for, and moves bytes between its socket and our memory.
/// Lives on one I/O thread; only shut() may be called from others. Owned by the Server, which it asks to be destroyed when the
/// connection ends.
class Connection final : public IoHandler {
public:
    Connection(Server& server, IoThread& io, net::Socket socket);
    ~Connection();

    /// Begins to serve. May be destroyed by the I/O thread at any time afterwards.
    Result<> start();
    /// When it returns, no byte of this connection touches our memory any more. The I/O thread cleans up later.
    void shut();

    void on_ready(uint32_t events) override;
    bool poll() override;
    void on_tick(Time now) override;
    void on_exception() noexcept override { retire(); }

    // Written by the Server, under its mutex.
    Incarnation initiator;
    SessionId session;      // zero before it greeted
    bool numbered = false;  // its session has a number instead

private:
    enum class Phase : uint8_t { kHello, kOpen, kParting, kClosed };
    struct Reply {
        Outgoing out;
        uint64_t id = 0;                        // of its first answer
        size_t answers = 0;                     // short ones may share it
        uint64_t checked_version = 0;           // of the AccessTable, when out.payload() was checked
        std::shared_ptr<DeviceMessage> device;  // of a read: `out` is in its slots
        bool waiting = false;                   // for `device`: nothing of it can be sent
    };

    // All under mutex_. False: the connection is of no use any more.
    bool work() MC_REQUIRES(mutex_);
    bool work(size_t& done) MC_REQUIRES(mutex_);
    bool receive_hello(std::optional<Hello>& hello) MC_REQUIRES(mutex_);
    bool welcome(const HelloReply& answer) MC_REQUIRES(mutex_);
    bool receive(IoResult& result) MC_REQUIRES(mutex_);
    bool handle_inbox() MC_REQUIRES(mutex_);
    bool handle_head(bool& complete) MC_REQUIRES(mutex_);
    std::span<const AddressRange> moved_ranges(const Header& header) const MC_REQUIRES(mutex_) {
        return std::span(ranges_).subspan(header.part ? 1 : 0);
    }
    void begin_write(const Header& header) MC_REQUIRES(mutex_);
    void begin_read(const Header& header) MC_REQUIRES(mutex_);
    IoResult receive_payload() MC_REQUIRES(mutex_);
    void take_payload() MC_REQUIRES(mutex_);
    void recheck_write() MC_REQUIRES(mutex_);
    void end_write() MC_REQUIRES(mutex_);
    bool flush(size_t& moved) MC_REQUIRES(mutex_);
    bool send_answers(size_t& moved) MC_REQUIRES(mutex_);
    bool recheck_reads() MC_REQUIRES(mutex_);
    bool may_receive() const MC_REQUIRES(mutex_);
    Status refusal_status(AddressRange range, Access access) const MC_REQUIRES(mutex_);
    void refuse_write(AddressRange range) MC_REQUIRES(mutex_);

    // Memory of devices (connection_devices.cpp)
    std::shared_ptr<DeviceMessage> device_message(const Header& header, Access access) MC_REQUIRES(mutex_);
    bool begin_device_write(const Header& header) MC_REQUIRES(mutex_);
    bool begin_device_read(const Header& header) MC_REQUIRES(mutex_);
    bool end_device_write(std::shared_ptr<DeviceMessage> message) MC_REQUIRES(mutex_);
    void post(Reply& answer, std::shared_ptr<DeviceMessage> message) MC_REQUIRES(mutex_);
    void receive_into_slots() MC_REQUIRES(mutex_);
    bool collect() MC_REQUIRES(mutex_);
    void fill(Reply& answer) MC_REQUIRES(mutex_);

    Reply& new_reply(uint64_t id) MC_REQUIRES(mutex_);
    std::vector<std::byte>& head_for_answer(uint64_t id) MC_REQUIRES(mutex_);
    void answer_error(uint64_t id, Status status, const std::string& text) MC_REQUIRES(mutex_);
    void append_error(std::vector<std::byte>& head, uint64_t id, Status status, std::string_view text) const MC_REQUIRES(mutex_);
    void update_interest() MC_REQUIRES(mutex_);
    bool overdue(Time now) MC_REQUIRES(mutex_);
    void retire();

    Reply& reply(size_t index) MC_REQUIRES(mutex_) { return replies_[(first_reply_ + index) % kAnswersMax]; }

    Server& server_;
    IoThread& io_;
    IoThread::Token token_ = 0;

    Mutex mutex_;  // held by the I/O thread while it works; shut() waits for it
    net::Socket socket_ MC_GUARDED_BY(mutex_);
    Phase phase_ MC_GUARDED_BY(mutex_) = Phase::kHello;
    bool checked_ MC_GUARDED_BY(mutex_) = false;        // checksums were agreed
    bool knows_kinds_ MC_GUARDED_BY(mutex_) = false;    // it understands that memory of a device is not supported
    bool knows_devices_ MC_GUARDED_BY(mutex_) = false;  // and that a device has failed
    uint32_t interest_ MC_GUARDED_BY(mutex_) = 0;       // epoll events
    bool ticking_ MC_GUARDED_BY(mutex_) = false;
    Time accepted_at_ MC_GUARDED_BY(mutex_);
    // The tick after bytes last came in; the one after bytes last went out, or an answer began to wait. Nobody reads the clock in between: that would
    // take as long as much else of a short message.
    Time received_at_ MC_GUARDED_BY(mutex_);
    Time sent_at_ MC_GUARDED_BY(mutex_);
    bool received_ MC_GUARDED_BY(mutex_) = false;  // since the last tick
    bool sent_ MC_GUARDED_BY(mutex_) = false;

    // The message being received
    Inbox inbox_ MC_GUARDED_BY(mutex_);
    size_t ahead_bytes_ MC_GUARDED_BY(mutex_) = kAheadBytes;  // read ahead where a message may begin
    bool conversing_ MC_GUARDED_BY(mutex_) = false;           // the last that came was one short question, which is answered
    bool paused_ MC_GUARDED_BY(mutex_) = false;               // and nothing has come since
    bool one_question_ MC_GUARDED_BY(mutex_) = false;         // so that nothing follows the present one, probably, before it is answered
    bool writing_ MC_GUARDED_BY(mutex_) = false;              // its payload is coming in
    Incoming incoming_ MC_GUARDED_BY(mutex_);
    uint64_t write_id_ MC_GUARDED_BY(mutex_) = 0;
    uint64_t checked_version_ MC_GUARDED_BY(mutex_) = 0;
    Status refusal_ MC_GUARDED_BY(mutex_) = Status::kOk;
    std::string refusal_text_ MC_GUARDED_BY(mutex_);
    std::vector<AddressRange> ranges_ MC_GUARDED_BY(mutex_);

    // The answers we owe: a ring
    std::vector<Reply> replies_ MC_GUARDED_BY(mutex_) = std::vector<Reply>(kAnswersMax);
    size_t first_reply_ MC_GUARDED_BY(mutex_) = 0;
    size_t reply_count_ MC_GUARDED_BY(mutex_) = 0;
    size_t answers_owed_ MC_GUARDED_BY(mutex_) = 0;  // in all of them
    size_t reply_descriptors_ MC_GUARDED_BY(mutex_) = 0;

    // Memory of devices
    std::shared_ptr<DeviceGate> gate_ MC_GUARDED_BY(mutex_);      // null: it was never asked for
    std::shared_ptr<DeviceMessage> write_ MC_GUARDED_BY(mutex_);  // null: what is coming in is for the host's
    bool waiting_for_slots_ MC_GUARDED_BY(mutex_) = false;        // it cannot come in yet
    size_t device_messages_ MC_GUARDED_BY(mutex_) = 0;            // that have slots or want some
};

}  // namespace mooncake::tcp
