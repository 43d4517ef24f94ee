// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/lane.h"

#include <atomic>

#include "base/error_copy.h"
#include "base/futex.h"

namespace mooncake::cuda {

namespace {

constexpr Duration kSpin = 2ms;            // longer than most copies take
constexpr Duration kNap = 100us;           // between two questions after that
constexpr Duration kHungAfter = 60s;       // 16 MiB in this time: nobody waits for such a GPU
constexpr Duration kCallerPatience = 30s;  // for what a caller left on the default stream

/// Nobody wakes us: CUDA's own way to sleep would not come back from a GPU that hangs.
void nap(Duration time) {
    const std::atomic<uint32_t> nothing{0};
    futex_wait(nothing, 0, Deadline::after(time));
}

bool is_capture(abi::Status status) noexcept { return status >= 900 && status <= 908; }

template <typename T>
void make_room(std::vector<T>& list, size_t count) {
    if (list.capacity() < count) list.reserve(2 * count);
}

}  // namespace

Result<abi::Stream> Lanes::stream(const Scope& scope, Direction direction) {
    Lock lock(mutex_);
    abi::Stream& stream = streams_[static_cast<size_t>(direction)];
    if (stream == nullptr)
        MC_RETURN_IF_ERROR(driver_.check(device_, "cuStreamCreate", scope->stream_create(&stream, abi::kStreamNonBlocking)));
    return stream;
}

Result<abi::Event> Lanes::take_event(const Scope& scope) {
    {
        Lock lock(mutex_);
        if (!events_.empty()) {
            const abi::Event event = events_.back();
            events_.pop_back();
            return event;
        }
        make_room(events_, ++events_made_);
    }
    abi::Event event = nullptr;
    MC_RETURN_IF_ERROR(driver_.check(device_, "cuEventCreate", scope->event_create(&event, abi::kEventDisableTiming)));
    return event;
}

void Lanes::put_event(abi::Event event) noexcept {
    Lock lock(mutex_);
    events_.push_back(event);
}

Result<Lanes::Ring> Lanes::take_ring(const Scope& scope) {
    {
        Lock lock(mutex_);
        while (rings_.empty() && rings_made_ == kRingsMax) ring_free_.wait(mutex_);
        if (!rings_.empty()) {
            const Ring ring = rings_.back();
            rings_.pop_back();
            return ring;
        }
        ++rings_made_;
    }
    void* memory = nullptr;
    if (const abi::Status status = scope->host_allocate(&memory, kSlots * kSlotBytes, abi::kHostPortable); status != abi::kSuccess) {
        lose_ring();
        return Unexpected(driver_.failure(device_, "cuMemHostAlloc", status));
    }
    return Ring{.memory = static_cast<std::byte*>(memory)};
}

void Lanes::put_ring(Ring ring) noexcept {
    Lock lock(mutex_);
    rings_.push_back(ring);
    ring_free_.notify_one();
}

void Lanes::lose_ring() noexcept {
    Lock lock(mutex_);
    --rings_made_;
    ring_free_.notify_one();
}

Result<CopyKernel::Piece*> Lanes::take_list(const Scope& scope) {
    {
        Lock lock(mutex_);
        if (!lists_.empty()) {
            CopyKernel::Piece* const list = lists_.back();
            lists_.pop_back();
            return list;
        }
        make_room(lists_, ++lists_made_);
    }
    void* memory = nullptr;
    MC_RETURN_IF_ERROR(driver_.check(device_, "cuMemHostAlloc", scope->host_allocate(&memory, CopyKernel::kListBytes, abi::kHostPortable)));
    return static_cast<CopyKernel::Piece*>(memory);
}

void Lanes::put_list(CopyKernel::Piece* list) noexcept {
    Lock lock(mutex_);
    lists_.push_back(list);
}

Result<bool> Lanes::poll(const Scope& scope, abi::Event event, Deadline deadline) {
    const Deadline spin = Deadline::after(kSpin);
    SpinPause pause;
    while (true) {
        const abi::Status status = scope->event_query(event);
        if (status == abi::kSuccess) return true;
        if (status != abi::kNotReady) return Unexpected(driver_.failure(device_, "cuEventQuery", status));
        if (!spin.passed()) {
            pause();
            continue;
        }
        if (deadline.passed()) return false;
        nap(kNap);
    }
}

Result<> Lanes::wait(const Scope& scope, abi::Event event) {
    MC_ASSIGN_OR_RETURN(const bool happened, poll(scope, event, Deadline::after(kHungAfter)));
    if (happened) return {};
    driver_.bury(device_, abi::kNotReady);
    return fail(Code::kUnavailable, "GPU {} has not ended a copy for {} s", device_, kHungAfter / 1s);
}

Result<> Lanes::settle(const Scope& scope, abi::Event event) noexcept {
    Result<> waited;
    for (int attempt = 0; attempt < 2; ++attempt) {
        waited = contained([&]() -> Result<> {
            if (driver_.dead(device_) || driver_.silent()) return fail(Code::kUnavailable, "GPU {} was lost during a copy", device_);
            return wait(scope, event);
        });
        if (waited || driver_.dead(device_) || driver_.silent()) return waited;
    }
    driver_.bury(device_, abi::kNotReady);
    return waited;
}

Result<abi::Event> Lanes::mark(const Scope& scope, abi::Stream stream, Duration patience) {
    const Deadline captured = Deadline::after(patience);
    MC_ASSIGN_OR_RETURN(const abi::Event event, take_event(scope));
    while (true) {
        // A question that does no harm to a graph that is being captured; recording an event might.
        int capturing = 0;
        abi::Status status = abi::kSuccess;
        if (scope->stream_is_capturing != nullptr) status = scope->stream_is_capturing(stream, &capturing);
        if (status == abi::kSuccess && capturing != 0) {
            put_event(event);
            return fail(Code::kInvalidArgument, "a graph is being captured on the stream");
        }
        if (status == abi::kSuccess) status = scope->event_record(event, stream);
        if (status == abi::kSuccess) return event;
        if (!is_capture(status) || captured.passed()) {
            put_event(event);
            return Unexpected(driver_.failure(device_, "cuEventRecord", status));
        }
        nap(kNap);
    }
}

Result<bool> Lanes::default_stream_is_idle(const Scope& scope) {
    if (scope->stream_query == nullptr || scope->stream_is_capturing == nullptr) return false;
    // Mostly it is, which is quickly told: streams that it waits for count, too.
    int capturing = 0;
    abi::Status status = scope->stream_is_capturing(abi::legacy_stream(), &capturing);
    if (status == abi::kSuccess) status = scope->stream_query(abi::legacy_stream());
    if (status != abi::kSuccess && status != abi::kNotReady && !is_capture(status))
        return Unexpected(driver_.failure(device_, "cuStreamQuery of the default stream", status));
    return status == abi::kSuccess;
}

Result<> Lanes::wait_for_default_stream(const Scope& scope) {
    MC_ASSIGN_OR_RETURN(const bool idle, default_stream_is_idle(scope));
    if (idle) return {};
    MC_ASSIGN_OR_RETURN(const abi::Event event, mark(scope, abi::legacy_stream()));
    const auto happened = poll(scope, event, Deadline::after(kCallerPatience));
    put_event(event);
    if (!happened) return Unexpected(happened.error());
    if (!*happened)
        return fail(Code::kTimedOut, "the default stream of GPU {} has been busy for {} s (MC_CUDA_CALLER_SYNC=0 does not wait for it)",
                    device_, kCallerPatience / 1s);
    return {};
}

void Lanes::give_back(const Scope& scope) {
    Lock lock(mutex_);
    const auto quietly = [this](auto* function, auto what) {
        if (!driver_.gone()) driver_.notice(function(what));
    };
    for (const abi::Event event : events_) quietly(scope->event_destroy, event);
    for (const abi::Stream stream : streams_)
        if (stream != nullptr) quietly(scope->stream_destroy, stream);
    for (const Ring& ring : rings_) quietly(scope->host_free, ring.memory);
    for (CopyKernel::Piece* const list : lists_) quietly(scope->host_free, list);
    kernel_.give_back(scope);
    events_.clear();
    streams_ = {};
    rings_.clear();
    lists_.clear();
}

}  // namespace mooncake::cuda
