// SPDX-License-Identifier: Apache-2.0
// What is ordered by streams and events of the program: transfers behind its work, and its work behind transfers.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/error_copy.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"

namespace mooncake::cuda {

namespace {

bool is_default(abi::Stream stream) noexcept {
    return stream == nullptr || stream == abi::legacy_stream() || stream == abi::per_thread_stream();
}

/// The handle by which we name a stream: never null, which the driver takes for another one in some builds of a program.
abi::Stream stream_from(const WorkPoint& point) noexcept {
    return point.handle == 0 ? abi::legacy_stream() : reinterpret_cast<abi::Stream>(point.handle);
}

/// Events of ours behind the work.
class Work final : public PendingWork {
public:
    explicit Work(Driver& driver) : driver_(driver) {}
    ~Work() override {
        while (!marks_.empty()) drop();
    }

    /// Before an event is made that is added.
    void make_room() { marks_.reserve(marks_.size() + 1); }
    void add(Lanes& lanes, abi::Event event, abi::Stream own_stream = nullptr) noexcept { marks_.push_back({&lanes, event, own_stream}); }

    Result<bool> over() override {
        while (!marks_.empty()) {
            const Mark& mark = marks_.back();
            const int device = mark.lanes->device();
            MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
            const abi::Status status = scope->event_query(mark.event);
            if (status == abi::kNotReady) return false;
            MC_RETURN_IF_ERROR(driver_.check(device, "cuEventQuery", status));
            drop();
        }
        return true;
    }

private:
    struct Mark {
        Lanes* lanes = nullptr;
        abi::Event event = nullptr;
        abi::Stream own_stream = nullptr;
    };

    void drop() {
        const Mark mark = marks_.back();
        marks_.pop_back();
        mark.lanes->put_event(mark.event);  // also one that has not happened: the next who takes it records it anew
        if (mark.own_stream == nullptr || driver_.silent() || driver_.dead(mark.lanes->device())) return;
        // The driver keeps what is still on it.
        if (const auto scope = Scope::enter(driver_, mark.lanes->device())) driver_.notice((*scope)->stream_destroy(mark.own_stream));
    }

    Driver& driver_;
    std::vector<Mark> marks_;
};

class Gate final : public StreamGate {
public:
    Gate(StreamWords& words, StreamWords::Ticket ticket) : words_(words), ticket_(ticket) {}
    ~Gate() override { open(); }

    void open() noexcept override {
        if (opened_.exchange(true, std::memory_order_acq_rel)) return;
        ticket_.word->raise(ticket_.number);
        words_.put(ticket_);
    }

private:
    StreamWords& words_;
    const StreamWords::Ticket ticket_;
    std::atomic<bool> opened_{false};
};

/// On a thread of CUDA's, which must call nothing of CUDA.
void wait_on_host(void* argument) {
    const std::unique_ptr<StreamWords::Ticket> ticket(static_cast<StreamWords::Ticket*>(argument));
    ticket->word->wait_for(ticket->number);
}

/// By the GPU itself, where it can; kNotSupported: it cannot.
abi::Status wait_on_device(const Scope& scope, int device, abi::Stream stream, const StreamWords::Ticket& ticket) {
    abi::DeviceHandle handle = -1;
    int able = 0;
    if (scope->stream_wait_value == nullptr || scope->get_device(&handle, device) != abi::kSuccess ||
        scope->get_device_attribute(&able, abi::kDeviceStreamMemops64, handle) != abi::kSuccess || able == 0)
        return abi::kNotSupported;
    auto address = reinterpret_cast<abi::DevicePointer>(&ticket.word->value);
    if (scope->host_device_pointer != nullptr && scope->host_device_pointer(&address, &ticket.word->value, 0) != abi::kSuccess)
        return abi::kNotSupported;
    return scope->stream_wait_value(stream, address, ticket.number, abi::kWaitGreaterOrEqual);
}

}  // namespace

std::vector<int> CudaDevice::devices_in_use() {
    std::vector<int> devices;
    int count = 0;
    const abi::Functions* const functions = driver_.functions();
    if (functions == nullptr || functions->get_device_count(&count) != abi::kSuccess) return devices;
    for (int device = 0; device < count && Driver::valid(device); ++device)
        if (driver_.context(device)) devices.push_back(device);
    return devices;
}

Result<std::vector<int>> CudaDevice::devices_of(const WorkPoint& point) {
    std::vector<int> used = devices_in_use();
    if (used.empty()) return fail(Code::kUnavailable, "CUDA is not used in this process: there are no streams");
    const abi::Stream stream = stream_from(point);
    if (is_default(stream)) {
        if (point.device < 0) return used;
        if (std::find(used.begin(), used.end(), point.device) == used.end())
            return fail(Code::kInvalidArgument, "GPU {} is not used in this process", point.device);
        return std::vector<int>{point.device};
    }
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, used.front()));
    abi::Context context = nullptr;
    if (scope->stream_context == nullptr) return fail(Code::kNotSupported, "this CUDA driver does not say whose a stream is");
    if (auto asked = driver_.check(used.front(), "cuStreamGetCtx", scope->stream_context(stream, &context)); !asked)
        return fail(Code::kInvalidArgument, "{:#x} is no stream: {}", point.handle, asked.error().message());
    for (const int device : used)
        if (const auto own = driver_.context(device); own && *own == context) return std::vector<int>{device};
    return fail(Code::kInvalidArgument, "the stream {:#x} is of no primary context", point.handle);
}

Result<std::unique_ptr<PendingWork>> CudaDevice::follow(const WorkPoint& point) {
    if (driver_.silent() || driver_.functions() == nullptr) return fail(Code::kUnavailable, "CUDA cannot be used in this process");
    auto work = std::make_unique<Work>(driver_);
    if (point.what == WorkPoint::What::kStream) {
        MC_ASSIGN_OR_RETURN(const auto devices, devices_of(point));
        for (const int device : devices) {
            MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
            Lanes& own = lanes(device);
            work->make_room();
            MC_ASSIGN_OR_RETURN(const abi::Event event, own.mark(scope, stream_from(point)));
            work->add(own, event);
        }
        return work;
    }
    const auto theirs = reinterpret_cast<abi::Event>(point.handle);
    if (point.what == WorkPoint::What::kNothing || theirs == nullptr) return work;  // one that was never recorded
    const std::vector<int> used = devices_in_use();
    if (used.empty()) return fail(Code::kUnavailable, "CUDA is not used in this process: there are no events");
    const int device = used.front();  // any will do
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
    const abi::Status status = scope->event_query(theirs);
    if (status == abi::kSuccess) return work;
    if (status != abi::kNotReady)
        return fail(Code::kInvalidArgument, "the event cannot be waited for: {}",
                    driver_.failure(device, "cuEventQuery", status).message());
    if (scope->stream_wait_event == nullptr) return fail(Code::kNotSupported, "this CUDA driver has no cuStreamWaitEvent");
    // The program may record it again, or destroy it, as soon as we return. What it means now is kept by a stream that waits for it.
    work->make_room();
    Lanes& own = lanes(device);
    abi::Stream stream = nullptr;
    MC_RETURN_IF_ERROR(driver_.check(device, "cuStreamCreate", scope->stream_create(&stream, abi::kStreamNonBlocking)));
    auto waits = driver_.check(device, "cuStreamWaitEvent", scope->stream_wait_event(stream, theirs, 0));
    auto event = waits ? contained([&] { return own.mark(scope, stream); }) : Result<abi::Event>(Unexpected(std::move(waits).error()));
    if (event) {
        work->add(own, *event, stream);
        return work;
    }
    if (!driver_.silent() && !driver_.dead(device)) driver_.notice(scope->stream_destroy(stream));
    return Unexpected(std::move(event).error());
}

Result<std::unique_ptr<PendingWork>> CudaDevice::unnamed_work(const void* address) {
    if (!options_.caller_sync || driver_.silent() || driver_.functions() == nullptr) return nullptr;
    MC_ASSIGN_OR_RETURN(const Pointer pointer, ask(driver_, reinterpret_cast<uint64_t>(address)));
    if (pointer.place != Place::kDevice) return nullptr;  // who copies it says what is wrong
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, pointer.device));
    Lanes& own = lanes(pointer.device);
    MC_ASSIGN_OR_RETURN(const bool idle, own.default_stream_is_idle(scope));
    if (idle) return nullptr;
    auto work = std::make_unique<Work>(driver_);
    work->make_room();
    MC_ASSIGN_OR_RETURN(const abi::Event event, own.mark(scope, abi::legacy_stream(), 0s));
    work->add(own, event);
    return work;
}

Result<std::unique_ptr<StreamGate>> CudaDevice::hold(const WorkPoint& point) {
    if (driver_.silent() || driver_.functions() == nullptr) return fail(Code::kUnavailable, "CUDA cannot be used in this process");
    if (point.what != WorkPoint::What::kStream) return fail(Code::kInvalidArgument, "only a stream can be held");
    MC_ASSIGN_OR_RETURN(const auto devices, devices_of(point));
    const int device = devices.front();
    const abi::Stream stream = stream_from(point);
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
    int capturing = 0;
    if (scope->stream_is_capturing != nullptr && (scope->stream_is_capturing(stream, &capturing) != abi::kSuccess || capturing != 0))
        return fail(Code::kInvalidArgument, "a graph is being captured on the stream");
    MC_ASSIGN_OR_RETURN(const StreamWords::Ticket ticket, words_.take(driver_, scope, device));
    auto gate = std::make_unique<Gate>(words_, ticket);  // raises the word if nothing waits for it
    const abi::Status status = wait_on_device(scope, device, stream, ticket);
    if (status == abi::kSuccess) return gate;
    if (status != abi::kNotSupported) return Unexpected(driver_.failure(device, "cuStreamWaitValue64", status));
    if (scope->launch_host_function == nullptr) return fail(Code::kNotSupported, "this CUDA driver has no cuLaunchHostFunc");
    auto argument = std::make_unique<StreamWords::Ticket>(ticket);
    MC_RETURN_IF_ERROR(driver_.check(device, "cuLaunchHostFunc", scope->launch_host_function(stream, wait_on_host, argument.get())));
    (void)argument.release();
    return gate;
}

Result<std::string> CudaDevice::state() {
    const abi::Functions* const functions = driver_.functions();
    if (driver_.silent())
        return fail(Code::kUnavailable, "a GPU of this process has failed, or the process was forked from one that used it");
    if (functions == nullptr) return fail(Code::kUnavailable, "nobody in this process has loaded libcuda.so.1");
    int version = 0, count = 0;
    if (functions->get_driver_version != nullptr) (void)functions->get_driver_version(&version);
    if (const abi::Status status = functions->get_device_count(&count); status != abi::kSuccess)
        return fail(Code::kUnavailable, "libcuda.so.1 is loaded, but nobody has initialised it, or it has no GPU: {}",
                    driver_.name_of(status));
    return format_text("CUDA {}.{}, {} GPUs, {} in use", version / 1000, version % 1000 / 10, count, devices_in_use().size());
}

}  // namespace mooncake::cuda
