// SPDX-License-Identifier: Apache-2.0
// What tests tell the driver, and ask it. See src/device/cuda/testing/fake_cuda.h.
#include "state.h"

namespace fake {

/// The n-th call of a function by the code under test from now on answers `status`; "*": of any function.
FAKE_API void fake_cuda_fail(const char* name, int nth, Status status) {
    const std::lock_guard lock(state().mutex);
    state().faults.push_back({name, nth, status});
}

/// The n-th copy that a stream does from now on fails there.
FAKE_API void fake_cuda_fail_async(int nth, Status status) {
    const std::lock_guard lock(state().mutex);
    state().async_nth = nth;
    state().async_status = status;
}

/// Forgets faults, counts and lost devices, and the contexts of this thread. Memory stays.
FAKE_API void fake_cuda_reset() {
    State& s = state();
    {
        const std::lock_guard gate(s.gate_mutex);
        s.hold_streams = s.hold_legacy = false;
        s.gate_opened.notify_all();
    }
    const std::lock_guard lock(s.mutex);
    s.faults.clear();
    s.counts.clear();
    s.async_nth = 0;
    s.delay_us = 0;
    s.captures = s.ended = s.capture_global = false;
    s.ipc_status = 0;
    s.memory_max = 0;
    for (const auto& device : s.devices) device->poison = 0;
    context_stack.clear();
    capture_mode = abi::kCaptureGlobal;
}

/// From now on streams wait before their next step: those that were made, or the default ones.
FAKE_API void fake_cuda_hold(int legacy, int hold) {
    State& s = state();
    const std::lock_guard gate(s.gate_mutex);
    (legacy != 0 ? s.hold_legacy : s.hold_streams) = hold != 0;
    s.gate_opened.notify_all();
}

FAKE_API void fake_cuda_delay_us(uint64_t us) {
    const std::lock_guard lock(state().mutex);
    state().delay_us = us;
}

FAKE_API void fake_cuda_poison(int device, Status status) {
    const std::lock_guard lock(state().mutex);
    state().devices[static_cast<size_t>(device)]->poison = status;
}

/// As if the memory had been freed and other memory been given its address.
FAKE_API void fake_cuda_replace(uint64_t address) {
    const std::lock_guard lock(state().mutex);
    if (const auto found = mapping_at(address); found != state().mappings.end()) found->second.buffer_id = state().next_id++;
}

FAKE_API void fake_cuda_attribute(int device, int attribute, int value) {
    const std::lock_guard lock(state().mutex);
    state().devices[static_cast<size_t>(device)]->attributes[attribute] = value;
}

/// There are at least so many from now on.
FAKE_API void fake_cuda_devices(int number) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    for (int i = static_cast<int>(s.devices.size()); i < number; ++i) s.devices.push_back(make_device(i));
}

/// There is no more memory than this.
FAKE_API void fake_cuda_memory(uint64_t bytes) {
    const std::lock_guard lock(state().mutex);
    state().memory_max = bytes;
}

/// Whether GPUs reach each other's memory.
FAKE_API void fake_cuda_peers(int reach) {
    const std::lock_guard lock(state().mutex);
    state().peers = reach != 0;
}

/// Somebody captures a graph on a stream that waits for the default one.
FAKE_API void fake_cuda_capture(int on) {
    const std::lock_guard lock(state().mutex);
    state().captures = on != 0;
}

/// Calls of this thread are those of the program, not of the code under test: neither counted nor failed. Nests.
FAKE_API void fake_cuda_application(int on) { application_depth += on != 0 ? 1 : -1; }

FAKE_API void fake_cuda_ipc_error(Status status) {
    const std::lock_guard lock(state().mutex);
    state().ipc_status = status;
}

/// Of what the code under test did, or what exists now ("live:...").
FAKE_API uint64_t fake_cuda_count(const char* what) {
    State& s = state();
    const std::string name = what;
    if (name == "held") {
        const std::lock_guard gate(s.gate_mutex);
        return s.held;
    }
    const std::lock_guard lock(s.mutex);
    if (name == "live:streams") return s.streams.size();
    if (name == "live:busy") {  // streams on which something has not happened yet
        uint64_t busy = 0;
        for (const abi::Stream stream : s.streams) busy += stream->idle() ? 0 : 1;
        return busy;
    }
    if (name == "live:events") return s.events.size();
    if (name == "live:pinned") return s.pinned.size();
    if (name == "live:modules") return s.modules.size();
    if (name == "live:memory") return s.mappings.size();
    if (name == "live:handles") return s.handles.size();
    if (name == "live:reservations") return s.reservations.size();
    if (name == "live:bytes") return physical_bytes;
    if (name == "live:pools") return s.pools.size();
    if (name == "live:contexts") {
        uint64_t references = 0;
        for (const auto& device : s.devices) references += static_cast<uint64_t>(device->primary.references);
        return references + s.contexts.size();
    }
    if (name == "stack") return context_stack.size();
    if (name == "mode") return static_cast<uint64_t>(capture_mode);
    return s.counts[name];
}

}  // namespace fake
