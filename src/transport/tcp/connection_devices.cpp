// SPDX-License-Identifier: Apache-2.0
// The part of a connection that is about memory of devices: its bytes pass through slots of pinned memory, and other threads have the devices copy. The
// connection goes on meanwhile; answers keep their order, and one that waits for a device holds up those behind it.
#include <algorithm>

#include "transport/tcp/connection.h"
#include "transport/tcp/server.h"

namespace mooncake::tcp {

/// Null: not all of it is memory of one kind of device that we copy.
std::shared_ptr<DeviceMessage> Connection::device_message(const Header& header, Access access) {
    const auto kind = server_.access().kind_of(ranges_.front(), access);
    if (!kind || *kind == MemoryKind::kHost || server_.staging().devices().between(*kind, MemoryKind::kHost) == nullptr) return nullptr;
    for (const AddressRange& range : ranges_)
        if (server_.access().kind_of(range, access) != kind) return nullptr;
    if (!gate_) gate_ = std::make_shared<DeviceGate>(io_, token_);
    const auto moved = moved_ranges(header);
    return std::make_shared<DeviceMessage>(DeviceMessage::Means{server_.access(), server_.staging(), gate_}, access,
                                           std::vector<AddressRange>(moved.begin(), moved.end()), *kind, header.payload_bytes);
}

bool Connection::begin_device_write(const Header& header) {
    auto message = device_message(header, Access::kWrite);
    if (!message) return false;
    ++device_messages_;
    write_ = std::move(message);
    write_->slots = server_.staging().try_take(write_->slots_wanted);
    if (!write_->slots.empty()) {
        write_->slots_wanted = 0;
        receive_into_slots();
        return true;
    }
    waiting_for_slots_ = true;
    if (auto posted = server_.staging().post(write_); !posted) {
        write_->status = Status::kNoSpace;
        write_->text = posted.error().message();
        receive_into_slots();
    }
    return true;
}

void Connection::receive_into_slots() {
    waiting_for_slots_ = false;
    if (write_->status == Status::kOk)
        return write_->slots.pieces(0, write_->bytes(), [this](std::byte* at, uint64_t length) {
            mutex_.is_held();
            incoming_.into().append(at, length);
        });
    refusal_ = write_->status;
    refusal_text_ = write_->text;
    incoming_.discard();
}

/// False: it is refused like any other.
bool Connection::end_device_write(std::shared_ptr<DeviceMessage> message) {
    if (incoming_.faulted() || refusal_ != Status::kOk || !incoming_.intact()) {
        --device_messages_;
        return false;
    }
    message->begin_copy();
    post(new_reply(write_id_), std::move(message));
    return true;
}

bool Connection::begin_device_read(const Header& header) {
    auto message = device_message(header, Access::kRead);
    if (!message) return false;
    ++device_messages_;
    message->slots = server_.staging().try_take(message->slots_wanted);
    if (!message->slots.empty()) message->slots_wanted = 0;
    post(new_reply(header.id), std::move(message));
    return true;
}

void Connection::post(Reply& answer, std::shared_ptr<DeviceMessage> message) {
    answer.device = std::move(message);
    answer.waiting = true;
    auto posted = server_.staging().post(answer.device);
    if (posted) return;
    answer.device->status = Status::kNoSpace;
    answer.device->text = posted.error().message();
    fill(answer);
}

/// Looks what the copying threads have done. False: the connection is of no use any more.
bool Connection::collect() {
    if (waiting_for_slots_ && write_->done()) receive_into_slots();
    for (size_t i = 0; i < reply_count_; ++i)
        if (reply(i).waiting && reply(i).device->done()) {
            fill(reply(i));
            if (i == 0) sent_ = true;
        }
    return inbox_.bytes().empty() || handle_inbox();
}

void Connection::fill(Reply& answer) {
    answer.waiting = false;
    DeviceMessage& message = *answer.device;
    const bool read = message.access() == Access::kRead;
    if (message.status != Status::kOk) {
        const bool known = message.status != Status::kDeviceFailed || knows_devices_;
        append_error(answer.out.head(), answer.id, known ? message.status : Status::kNotRegistered, message.text);
    } else if (!read) {
        append_head({.kind = Kind::kWritten, .id = answer.id}, {}, checked_, answer.out.head());
    } else {
        answer.out.start(checked_);
        append_head({.kind = Kind::kData, .payload_bytes = message.bytes(), .id = answer.id}, {}, checked_, answer.out.head());
        message.slots.pieces(0, message.bytes(), [&](std::byte* at, uint64_t length) { answer.out.payload().append(at, length); });
        reply_descriptors_ += answer.out.payload().rest().size();
        return;
    }
    answer.device.reset();
    --device_messages_;
}

}  // namespace mooncake::tcp
