// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/device_message.h"

#include <exception>
#include <new>

#include "base/format.h"
#include "base/futex.h"

namespace mooncake::tcp {

bool DeviceGate::enter() {
    Lock lock(mutex_);
    if (closed_) return false;
    ++inside_;
    return true;
}

void DeviceGate::leave() {
    Lock lock(mutex_);
    --inside_;
    left_.notify_all();
}

void DeviceGate::wake() {
    Lock lock(mutex_);
    if (!forgotten_) io_.wake(token_);
}

void DeviceGate::close() {
    Lock lock(mutex_);
    closed_ = true;
}

bool DeviceGate::closed() const {
    Lock lock(mutex_);
    return closed_;
}

bool DeviceGate::copying() const {
    Lock lock(mutex_);
    return inside_ > 0;
}

void DeviceGate::wait_until_left() const {
    Lock lock(mutex_);
    while (inside_ > 0) left_.wait(mutex_);
}

void DeviceGate::forget() {
    Lock lock(mutex_);
    closed_ = forgotten_ = true;
}

DeviceMessage::DeviceMessage(Means means, Access access, std::vector<AddressRange> ranges, MemoryKind device, uint32_t bytes)
    : means_(std::move(means)), access_(access), ranges_(std::move(ranges)), bytes_(bytes), copies_(access == Access::kRead) {
    kind = device;
    slots_wanted = StagingSlots::count_for(bytes);
}

void DeviceMessage::begin_copy() noexcept {
    copies_ = true;
    done_.store(false, std::memory_order_relaxed);
}

void DeviceMessage::run() noexcept {
    if (trouble) {
        status = trouble->code() == Code::kInvalidArgument ? Status::kDeviceFailed : Status::kNoSpace;
        try {
            text = trouble->message();
        } catch (const std::bad_alloc&) {  // the status says enough
        }
    } else if (copies_ && means_.gate->enter()) {
        try {
            copy();
        } catch (const std::exception&) {
            status = Status::kNoSpace;
        }
        // A write is done with them, and others wait.
        if (access_ == Access::kWrite || status != Status::kOk) slots.release();
        means_.gate->leave();
    }
    const auto gate = means_.gate;
    done_.store(true, std::memory_order_release);
    gate->wake();
}

bool DeviceMessage::wait_for_unnamed_work() {
    constexpr Duration kPatience = 30s, kNap = 100us;
    if (access_ != Access::kRead) return true;
    const auto work = means_.staging.devices().unnamed_work(kind, reinterpret_cast<const void*>(ranges_.front().address));
    if (!work || !*work) return true;  // what is wrong the copy will say
    for (const Deadline end = Deadline::after(kPatience);;) {
        if (const auto over = (*work)->over(); !over || *over) return true;
        if (end.passed()) {
            status = Status::kDeviceFailed;
            text = format_text("the program that has the memory has kept its device busy for {} s", kPatience / 1s);
            return false;
        }
        if (means_.gate->closed()) return false;
        const std::atomic<uint32_t> nothing{0};
        futex_wait(nothing, 0, Deadline::after(kNap));
    }
}

void DeviceMessage::copy() {
    std::vector<CopyPart> parts;
    parts.reserve(ranges_.size() + StagingSlots::count_for(bytes_));
    uint64_t offset = 0;
    for (const AddressRange& range : ranges_) {
        auto* at = reinterpret_cast<std::byte*>(range.address);
        slots.pieces(offset, range.length, [&](std::byte* slot, uint64_t length) {
            parts.push_back({.to = access_ == Access::kWrite ? at : slot, .from = access_ == Access::kWrite ? slot : at, .length = length});
            at += length;
        });
        offset += range.length;
    }
    if (!wait_for_unnamed_work()) return;
    const auto section = means_.access.section();
    for (const AddressRange& range : ranges_) {
        if (means_.access.kind_of(range, access_) == kind) continue;
        status = Status::kNotRegistered;
        text = means_.access.refusal(range, access_);
        return;
    }
    const Devices& devices = means_.staging.devices();
    const auto copied = access_ == Access::kWrite ? devices.copy(kind, MemoryKind::kHost, parts)
                                                  : devices.copy(MemoryKind::kHost, kind, parts);
    if (copied) return means_.staging.copied().add(access_ == Access::kWrite ? Direction::kWrite : Direction::kRead, bytes_);
    status = copied.error().code() == Code::kNoSpace ? Status::kNoSpace : Status::kDeviceFailed;
    text = copied.error().message();
}

}  // namespace mooncake::tcp
