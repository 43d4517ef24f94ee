// SPDX-License-Identifier: Apache-2.0
// Streams, events and copies.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "state.h"

namespace mooncake::cuda::abi {

StreamObject::~StreamObject() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        changed_.notify_all();
    }
    if (thread.joinable()) thread.join();
}

void StreamObject::add(std::function<void()> step) {
    const std::lock_guard lock(mutex_);
    steps_.push_back(std::move(step));
    changed_.notify_all();
}

bool StreamObject::idle() {
    const std::lock_guard lock(mutex_);
    return steps_.empty() && !busy_;
}

void StreamObject::drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return steps_.empty() && !busy_; });
}

void StreamObject::run() {
    fake::State& s = fake::state();
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return ending_ || !steps_.empty(); });
        if (steps_.empty()) return;
        const auto step = std::move(steps_.front());
        steps_.pop_front();
        busy_ = true;
        lock.unlock();
        {
            std::unique_lock gate(s.gate_mutex);
            ++s.held;
            s.gate_opened.wait(gate, [&] { return legacy ? !s.hold_legacy : !s.hold_streams; });
            --s.held;
        }
        if (s.delay_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(s.delay_us));
        step();
        lock.lock();
        busy_ = false;
        changed_.notify_all();
    }
}

}  // namespace mooncake::cuda::abi

namespace fake {

namespace {

/// One end of a copy from here on: where its bytes are for us, and how many of them.
struct Stretch {
    std::byte* at = nullptr;
    uint64_t length = 0;
    bool host = false;
};

Stretch stretch_at(uint64_t address, uint64_t length) {
    State& s = state();
    const auto found = mapping_at(address);
    if (found != s.mappings.end()) {
        const uint64_t offset = address - found->first;
        const uint64_t here = std::min(length, found->second.length - offset);
        if (!found->second.physical) return {reinterpret_cast<std::byte*>(address), here, false};
        return {found->second.physical->alias + found->second.offset + offset, here, false};
    }
    const auto next = s.mappings.upper_bound(address);
    if (next != s.mappings.end()) length = std::min(length, next->first - address);
    return {reinterpret_cast<std::byte*>(address), length, true};
}

/// As a GPU does: an address that is not there is an error, and no crash.
bool move_bytes(const Stretch& to, const Stretch& from, uint64_t length) {
    const iovec here{from.at, length}, there{to.at, length};
    if (to.host) return ::process_vm_writev(::getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(length);
    return ::process_vm_readv(::getpid(), &there, 1, &here, 1, 0) == static_cast<ssize_t>(length);
}

}  // namespace

namespace {

/// Memory at reserved addresses is for those GPUs that were let in.
bool may_touch(uint64_t address, int device) {
    const auto found = mapping_at(address);
    return found == state().mappings.end() || (found->second.kind != Kind::kVmm && found->second.kind != Kind::kPoolImport) ||
           found->second.access.contains(device);
}

}  // namespace

Status copy_now(uint64_t to, uint64_t from, uint64_t length, int device) {
    while (length > 0) {
        if (!may_touch(to, device) || !may_touch(from, device)) return abi::kIllegalAddress;
        const Stretch source = stretch_at(from, length), target = stretch_at(to, length);
        const uint64_t now = std::min(source.length, target.length);
        if (!move_bytes(target, source, now)) return abi::kIllegalAddress;
        to += now;
        from += now;
        length -= now;
    }
    return abi::kSuccess;
}

void poison(int device, Status status) {
    if (is_sticky(status)) state().devices[static_cast<size_t>(device)]->poison = status;
}

namespace {

/// What a range of one end is; a host range lies in one registration or in none.
Status check_end(uint64_t address, uint64_t length, bool& device) {
    State& s = state();
    const auto mapping = mapping_at(address);
    device = mapping != s.mappings.end();
    if (device) {
        for (uint64_t at = address; at < address + length;) {
            const auto part = mapping_at(at);
            if (part == s.mappings.end() || part->second.reservation != mapping->second.reservation) return abi::kInvalidValue;
            at = part->first + part->second.length;
        }
        return abi::kSuccess;
    }
    const auto first = pinned_at(address), last = pinned_at(address + length - 1);
    if (first != last) return abi::kInvalidValue;
    if (first == s.pinned.end() && application_depth == 0) count("pageable");
    return abi::kSuccess;
}

Status check_copy(uint64_t to, uint64_t from, uint64_t length) {
    bool to_device = false, from_device = false;
    if (const Status status = check_end(to, length, to_device); status != abi::kSuccess) return status;
    if (const Status status = check_end(from, length, from_device); status != abi::kSuccess) return status;
    if (application_depth == 0) {
        count("copies");
        count("bytes", length);
    }
    return abi::kSuccess;
}

void run_copy(uint64_t to, uint64_t from, uint64_t length, int device) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.devices[static_cast<size_t>(device)]->poison != 0) return;
    if (s.async_nth > 0 && --s.async_nth == 0) return poison(device, s.async_status);
    poison(device, copy_now(to, from, length, device));
}

}  // namespace

abi::StreamObject* stream_of(abi::Stream stream, Device& device, int ordinal) {
    if (stream != nullptr && stream != abi::legacy_stream() && stream != abi::per_thread_stream()) return stream;
    if (device.legacy == nullptr) {
        device.legacy = std::make_unique<abi::StreamObject>(ordinal);
        device.legacy->legacy = true;
    }
    return device.legacy.get();
}

Status enqueue_copy(uint64_t to, uint64_t from, uint64_t length, abi::StreamObject& stream) {
    if (length == 0) return abi::kSuccess;
    if (const Status status = check_copy(to, from, length); status != abi::kSuccess) return status;
    const int device = stream.device;
    stream.add([=] { run_copy(to, from, length, device); });
    return abi::kSuccess;
}

namespace {

/// The stream of a call, and whether it may be used now.
Status enter_stream(const Call& call, abi::Stream stream, abi::StreamObject*& found) {
    State& s = state();
    const bool legacy = stream == nullptr || stream == abi::legacy_stream() || stream == abi::per_thread_stream();
    if (application_depth == 0) {
        if (stream == nullptr) count("null_stream");
        else if (legacy) count("legacy_stream");
    }
    if (!legacy && !s.streams.contains(stream)) return abi::kInvalidHandle;
    if (legacy && s.captures) {
        if (application_depth == 0) count("captures_broken");
        s.capture_broken = true;
        return abi::kCaptureImplicit;
    }
    found = stream_of(stream, *call.device, call.ordinal);
    if (found->capturing && application_depth == 0) count("captured");
    return abi::kSuccess;
}

Status copy_call(const char* name, uint64_t to, uint64_t from, size_t length, abi::Stream stream) {
    const Call call(name, Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    abi::StreamObject* found = nullptr;
    if (const Status status = enter_stream(call, stream, found); status != abi::kSuccess) return status;
    return enqueue_copy(to, from, length, *found);
}

Status batch_call(const char* name, uint64_t* to, uint64_t* from, const size_t* lengths, size_t number, size_t groups, size_t* failed,
                  abi::Stream stream) {
    const Call call(name, Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    if (stream == nullptr || stream == abi::legacy_stream() || number == 0 || groups == 0) return abi::kInvalidValue;
    const std::lock_guard lock(state().mutex);
    abi::StreamObject* found = nullptr;
    if (const Status status = enter_stream(call, stream, found); status != abi::kSuccess) return status;
    count("batches");
    for (size_t i = 0; i < number; ++i)
        if (const Status status = enqueue_copy(to[i], from[i], lengths[i], *found); status != abi::kSuccess) {
            if (failed != nullptr) *failed = i;
            return status;
        }
    return abi::kSuccess;
}

Status sync_copy(const char* name, uint64_t to, uint64_t from, size_t length) {
    const Call call(name, Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    abi::StreamObject* found = nullptr;
    {
        const std::lock_guard lock(state().mutex);
        if (const Status status = enter_stream(call, nullptr, found); status != abi::kSuccess) return status;
        if (const Status status = enqueue_copy(to, from, length, *found); status != abi::kSuccess) return status;
    }
    found->drain();
    return call.device->poison;
}

}  // namespace

FAKE_API Status cuMemcpyAsync(abi::DevicePointer to, abi::DevicePointer from, size_t length, abi::Stream stream) {
    return copy_call("cuMemcpyAsync", to, from, length, stream);
}
FAKE_API Status cuMemcpyHtoDAsync_v2(abi::DevicePointer to, const void* from, size_t length, abi::Stream stream) {
    return copy_call("cuMemcpyHtoDAsync_v2", to, reinterpret_cast<uint64_t>(from), length, stream);
}
FAKE_API Status cuMemcpyDtoHAsync_v2(void* to, abi::DevicePointer from, size_t length, abi::Stream stream) {
    return copy_call("cuMemcpyDtoHAsync_v2", reinterpret_cast<uint64_t>(to), from, length, stream);
}
FAKE_API Status cuMemcpyDtoDAsync_v2(abi::DevicePointer to, abi::DevicePointer from, size_t length, abi::Stream stream) {
    return copy_call("cuMemcpyDtoDAsync_v2", to, from, length, stream);
}
FAKE_API Status cuMemcpy(abi::DevicePointer to, abi::DevicePointer from, size_t length) { return sync_copy("cuMemcpy", to, from, length); }
FAKE_API Status cuMemcpyHtoD_v2(abi::DevicePointer to, const void* from, size_t length) {
    return sync_copy("cuMemcpyHtoD_v2", to, reinterpret_cast<uint64_t>(from), length);
}
FAKE_API Status cuMemcpyDtoH_v2(void* to, abi::DevicePointer from, size_t length) {
    return sync_copy("cuMemcpyDtoH_v2", reinterpret_cast<uint64_t>(to), from, length);
}

FAKE_API Status cuMemcpyBatchAsync_v2(abi::DevicePointer* to, abi::DevicePointer* from, size_t* lengths, size_t number,
                                      abi::CopyAttributes*, size_t*, size_t groups, abi::Stream stream) {
    return batch_call("cuMemcpyBatchAsync_v2", to, from, lengths, number, groups, nullptr, stream);
}
FAKE_API Status cuMemcpyBatchAsync(abi::DevicePointer* to, abi::DevicePointer* from, size_t* lengths, size_t number, abi::CopyAttributes*,
                                   size_t*, size_t groups, size_t* failed, abi::Stream stream) {
    return batch_call("cuMemcpyBatchAsync", to, from, lengths, number, groups, failed, stream);
}

// ---- streams

FAKE_API Status cuStreamCreate(abi::Stream* stream, uint32_t flags) {
    const Call call("cuStreamCreate", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    *stream = new abi::StreamObject(call.ordinal);
    (*stream)->blocking = (flags & abi::kStreamNonBlocking) == 0;
    const std::lock_guard lock(state().mutex);
    state().streams.insert(*stream);
    return abi::kSuccess;
}

FAKE_API Status cuStreamDestroy_v2(abi::Stream stream) {
    const Call call("cuStreamDestroy_v2", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    {
        const std::lock_guard lock(state().mutex);
        if (state().streams.erase(stream) == 0) return abi::kInvalidHandle;
    }
    delete stream;
    return abi::kSuccess;
}

FAKE_API Status cuStreamQuery(abi::Stream stream) {
    const Call call("cuStreamQuery", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    abi::StreamObject* found = nullptr;
    if (const Status status = enter_stream(call, stream, found); status != abi::kSuccess) return status;
    // The default stream is busy while one is that it waits for.
    const auto busy = [&](abi::Stream other) {
        return found->legacy && other->blocking && other->device == call.ordinal && !other->idle();
    };
    const bool idle = found->idle() && std::none_of(state().streams.begin(), state().streams.end(), busy);
    return idle ? abi::kSuccess : abi::kNotReady;
}

FAKE_API Status cuStreamSynchronize(abi::Stream stream) {
    const Call call("cuStreamSynchronize", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    abi::StreamObject* found = nullptr;
    {
        const std::lock_guard lock(state().mutex);
        found = stream_of(stream, *call.device, call.ordinal);
    }
    found->drain();
    return call.device->poison;
}

FAKE_API Status cuCtxSynchronize() {
    const Call call("cuCtxSynchronize", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    std::vector<abi::StreamObject*> all;
    {
        State& s = state();
        const std::lock_guard lock(s.mutex);
        if (s.captures) return abi::kCaptureUnsupported;
        for (const abi::Stream stream : s.streams)
            if (stream->device == call.ordinal) all.push_back(stream);
        if (call.device->legacy != nullptr) all.push_back(call.device->legacy.get());
    }
    for (abi::StreamObject* const stream : all) stream->drain();
    return call.device->poison;
}

/// Of the streams that were made; the default ones have the current context.
FAKE_API Status cuStreamGetCtx(abi::Stream stream, abi::Context* context) {
    const Call call("cuStreamGetCtx", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (stream == nullptr || stream == abi::legacy_stream() || stream == abi::per_thread_stream()) {
        *context = context_stack.back();
        return abi::kSuccess;
    }
    if (!s.streams.contains(stream)) return abi::kInvalidHandle;
    *context = &s.devices[static_cast<size_t>(stream->device)]->primary;
    return abi::kSuccess;
}

FAKE_API Status cuStreamIsCapturing(abi::Stream stream, int* capturing) {
    const Call call("cuStreamIsCapturing", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    *capturing = 0;
    const std::lock_guard lock(state().mutex);
    if (stream != nullptr && stream != abi::legacy_stream() && stream != abi::per_thread_stream()) {
        if (!state().streams.contains(stream)) return abi::kInvalidHandle;
        *capturing = stream->capturing ? 1 : 0;
        return abi::kSuccess;
    }
    return state().captures && (stream == nullptr || stream == abi::legacy_stream()) ? abi::kCaptureImplicit : abi::kSuccess;
}

/// One at a time, and nothing is kept of it.
FAKE_API Status cuStreamBeginCapture_v2(abi::Stream stream, int mode) {
    const Call call("cuStreamBeginCapture_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.capture_global = mode == abi::kCaptureGlobal;
    s.captures = stream->blocking;
    stream->capturing = true;
    s.capture_broken = false;
    return abi::kSuccess;
}

FAKE_API Status cuStreamEndCapture(abi::Stream stream, void** graph) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    stream->capturing = false;
    s.captures = s.capture_global = false;
    *graph = nullptr;
    return s.capture_broken ? abi::kCaptureUnsupported + 1 : abi::kSuccess;
}

FAKE_API Status cuLaunchHostFunc(abi::Stream stream, void (*function)(void*), void* argument) {
    const Call call("cuLaunchHostFunc", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    abi::StreamObject* found = nullptr;
    if (const Status status = enter_stream(call, stream, found); status != abi::kSuccess) return status;
    const int device = found->device;
    found->add([=] {
        // Not called any more once the context is lost, and never under the library's lock: it may wait for anything.
        if (state().devices[static_cast<size_t>(device)]->poison == 0) function(argument);
    });
    return abi::kSuccess;
}

FAKE_API Status cuStreamWriteValue64_v2(abi::Stream stream, abi::DevicePointer address, uint64_t value, uint32_t) {
    const Call call("cuStreamWriteValue64_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    stream_of(stream, *call.device, call.ordinal)->add([=] {
        const std::lock_guard inner(state().mutex);
        const Stretch target = stretch_at(address, sizeof value);
        reinterpret_cast<std::atomic<uint64_t>*>(target.at)->store(value);
    });
    return abi::kSuccess;
}

FAKE_API Status cuStreamWaitValue64_v2(abi::Stream stream, abi::DevicePointer address, uint64_t value, uint32_t) {
    const Call call("cuStreamWaitValue64_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    abi::StreamObject* found = nullptr;
    if (const Status status = enter_stream(call, stream, found); status != abi::kSuccess) return status;
    if (pinned_at(address) == state().pinned.end()) return abi::kInvalidValue;
    auto* const word = reinterpret_cast<std::atomic<uint64_t>*>(address);
    const int device = found->device;
    found->add([=] {
        while (word->load() < value && state().devices[static_cast<size_t>(device)]->poison == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    });
    return abi::kSuccess;
}

// ---- events

FAKE_API Status cuEventCreate(abi::Event* event, uint32_t) {
    const Call call("cuEventCreate", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    *event = new abi::EventObject;
    (*event)->device = call.ordinal;
    const std::lock_guard lock(state().mutex);
    state().events.insert(*event);
    return abi::kSuccess;
}

FAKE_API Status cuEventDestroy_v2(abi::Event event) {
    const Call call("cuEventDestroy_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    if (state().events.erase(event) == 0) return abi::kInvalidHandle;
    auto& destroyed = state().destroyed_events;
    destroyed.push_back(event);
    std::erase_if(destroyed, [](abi::Event one) {
        const bool unused = one->recorded.load() == one->happened.load() && one->waiting.load() == 0;
        if (unused) delete one;
        return unused;
    });
    return abi::kSuccess;
}

FAKE_API Status cuEventRecord(abi::Event event, abi::Stream stream) {
    const Call call("cuEventRecord", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    abi::StreamObject* found = nullptr;
    if (const Status status = enter_stream(call, stream, found); status != abi::kSuccess) return status;
    if (!state().events.contains(event) || event->device != found->device) return abi::kInvalidHandle;
    const uint64_t number = event->recorded.fetch_add(1) + 1;
    found->add([=] { event->happened.store(number); });
    return abi::kSuccess;
}

FAKE_API Status cuEventQuery(abi::Event event) {
    const Call call("cuEventQuery", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    if (!state().events.contains(event)) return abi::kInvalidHandle;
    return event->recorded.load() == event->happened.load() ? abi::kSuccess : abi::kNotReady;
}

FAKE_API Status cuEventSynchronize(abi::Event event) {
    const Call call("cuEventSynchronize", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    while (event->recorded.load() != event->happened.load()) std::this_thread::yield();
    return call.device->poison;
}

FAKE_API Status cuStreamWaitEvent(abi::Stream stream, abi::Event event, uint32_t) {
    const Call call("cuStreamWaitEvent", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    abi::StreamObject* found = nullptr;
    if (!state().events.contains(event)) return abi::kInvalidHandle;
    if (const Status status = enter_stream(call, stream, found); status != abi::kSuccess) return status;
    const uint64_t number = event->recorded.load();
    event->waiting.fetch_add(1);
    found->add([=] {
        while (event->happened.load() < number) std::this_thread::sleep_for(std::chrono::microseconds(50));
        event->waiting.fetch_sub(1);
    });
    return abi::kSuccess;
}

}  // namespace fake
