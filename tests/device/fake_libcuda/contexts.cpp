// SPDX-License-Identifier: Apache-2.0
// Start, devices and contexts.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "state.h"

namespace fake {

namespace {

Device* device_of(int number) {
    State& s = state();
    return number >= 0 && static_cast<size_t>(number) < s.devices.size() ? s.devices[static_cast<size_t>(number)].get() : nullptr;
}

}  // namespace

FAKE_API Status cuInit(uint32_t) {
    const Call call("cuInit", Needs::kNothing);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.devices.empty()) return abi::kNoDevice;
    s.initialized = true;
    s.process = ::getpid();
    return abi::kSuccess;
}

FAKE_API Status cuDriverGetVersion(int* version) {
    *version = 13000;
    return abi::kSuccess;
}

FAKE_API Status cuGetErrorName(Status status, const char** name) {
    static const std::map<Status, const char*> names{
        {0, "CUDA_SUCCESS"},
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {4, "CUDA_ERROR_DEINITIALIZED"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {400, "CUDA_ERROR_INVALID_HANDLE"},
        {600, "CUDA_ERROR_NOT_READY"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
        {999, "CUDA_ERROR_UNKNOWN"},
    };
    const auto found = names.find(status);
    if (found == names.end()) return abi::kInvalidValue;
    *name = found->second;
    return abi::kSuccess;
}

FAKE_API Status cuDeviceGetCount(int* number) {
    const Call call("cuDeviceGetCount", Needs::kInit);
    if (call.status == abi::kSuccess) *number = static_cast<int>(state().devices.size());
    return call.status;
}

FAKE_API Status cuDeviceGet(abi::DeviceHandle* device, int ordinal) {
    const Call call("cuDeviceGet", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    if (device_of(ordinal) == nullptr) return abi::kInvalidDevice;
    *device = ordinal;
    return abi::kSuccess;
}

FAKE_API Status cuDeviceGetUuid_v2(abi::Uuid* uuid, abi::DeviceHandle device) {
    const Call call("cuDeviceGetUuid_v2", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    *uuid = {};
    uuid->bytes[0] = 0xfa;
    uuid->bytes[15] = static_cast<uint8_t>(device);
    return abi::kSuccess;
}

FAKE_API Status cuDeviceGetPCIBusId(char* text, int length, abi::DeviceHandle device) {
    const Call call("cuDeviceGetPCIBusId", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
    return abi::kSuccess;
}

FAKE_API Status cuDeviceGetAttribute(int* value, int attribute, abi::DeviceHandle device) {
    const Call call("cuDeviceGetAttribute", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Device* const found = device_of(device);
    if (found == nullptr) return abi::kInvalidDevice;
    const auto known = found->attributes.find(attribute);
    *value = known == found->attributes.end() ? 0 : known->second;
    return abi::kSuccess;
}

FAKE_API Status cuDeviceCanAccessPeer(int* can, abi::DeviceHandle one, abi::DeviceHandle other) {
    const Call call("cuDeviceCanAccessPeer", Needs::kInit);
    if (call.status == abi::kSuccess) *can = state().peers && one != other ? 1 : 0;
    return call.status;
}

FAKE_API Status cuCtxEnablePeerAccess(abi::Context, uint32_t) {
    const Call call("cuCtxEnablePeerAccess", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    return state().peers ? abi::kSuccess : abi::kPeerAccessUnsupported;
}

FAKE_API Status cuDevicePrimaryCtxGetState(abi::DeviceHandle device, uint32_t* flags, int* active) {
    const Call call("cuDevicePrimaryCtxGetState", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Device* const found = device_of(device);
    if (found == nullptr) return abi::kInvalidDevice;
    *flags = 0;
    *active = found->primary.references > 0 ? 1 : 0;
    return abi::kSuccess;
}

FAKE_API Status cuDevicePrimaryCtxRetain(abi::Context* context, abi::DeviceHandle device) {
    const Call call("cuDevicePrimaryCtxRetain", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Device* const found = device_of(device);
    if (found == nullptr) return abi::kInvalidDevice;
    if (found->primary.references++ == 0 && application_depth == 0) count("contexts");
    *context = &found->primary;
    return abi::kSuccess;
}

FAKE_API Status cuDevicePrimaryCtxRelease_v2(abi::DeviceHandle device) {
    const Call call("cuDevicePrimaryCtxRelease_v2", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Device* const found = device_of(device);
    if (found == nullptr || found->primary.references == 0) return abi::kInvalidContext;
    --found->primary.references;
    return abi::kSuccess;
}

/// A context of one's own, beside the primary one.
FAKE_API Status cuCtxCreate_v2(abi::Context* context, uint32_t, abi::DeviceHandle device) {
    const Call call("cuCtxCreate_v2", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (device_of(device) == nullptr) return abi::kInvalidDevice;
    if (application_depth == 0) count("contexts");
    *context = new abi::ContextObject{.device = device, .references = 1};
    s.contexts.insert(*context);
    context_stack.push_back(*context);
    return abi::kSuccess;
}

FAKE_API Status cuCtxDestroy_v2(abi::Context context) {
    const Call call("cuCtxDestroy_v2", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.contexts.erase(context) == 0) return abi::kInvalidContext;
    std::erase(context_stack, context);
    delete context;
    return abi::kSuccess;
}

FAKE_API Status cuCtxPushCurrent_v2(abi::Context context) {
    const Call call("cuCtxPushCurrent_v2", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    context_stack.push_back(context);
    return abi::kSuccess;
}

FAKE_API Status cuCtxPopCurrent_v2(abi::Context* context) {
    const Call call("cuCtxPopCurrent_v2", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    if (context_stack.empty()) return abi::kInvalidContext;
    *context = context_stack.back();
    context_stack.pop_back();
    return abi::kSuccess;
}

FAKE_API Status cuCtxSetCurrent(abi::Context context) {
    const Call call("cuCtxSetCurrent", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    if (!context_stack.empty()) context_stack.pop_back();
    if (context != nullptr) context_stack.push_back(context);
    return abi::kSuccess;
}

FAKE_API Status cuCtxGetCurrent(abi::Context* context) {
    const Call call("cuCtxGetCurrent", Needs::kInit);
    if (call.status == abi::kSuccess) *context = context_stack.empty() ? nullptr : context_stack.back();
    return call.status;
}

FAKE_API Status cuThreadExchangeStreamCaptureMode(int* mode) {
    const Call call("cuThreadExchangeStreamCaptureMode", Needs::kInit);
    if (call.status == abi::kSuccess) std::swap(*mode, capture_mode);
    return call.status;
}

}  // namespace fake
