// SPDX-License-Identifier: Apache-2.0
// Modules and kernels. One kernel is known by its name, and done in C++: nothing here understands the text.
#include <cstring>

#include "device/cuda/copy_kernel.h"
#include "state.h"

namespace fake {

namespace {

using mooncake::cuda::CopyKernel;

/// A kernel has no driver that looks after it: an address which the GPU does not reach is a fault.
bool reached(uint64_t address, uint64_t length, int device) {
    State& s = state();
    for (uint64_t at = address; at < address + length;) {
        if (const auto mapping = mapping_at(at); mapping != s.mappings.end()) {
            if (mapping->second.physical && mapping->second.physical->device != device) return false;
            at = mapping->first + mapping->second.length;
        } else if (const auto pinned = pinned_at(at); pinned != s.pinned.end()) {
            at = pinned->first + pinned->second.length;
        } else {
            return false;
        }
    }
    return true;
}

void copy_pieces(const CopyKernel::Piece* list, uint32_t number, int device) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    for (uint32_t i = 0; i < number && s.devices[static_cast<size_t>(device)]->poison == 0; ++i) {
        const CopyKernel::Piece& piece = list[i];
        if (s.async_nth > 0 && --s.async_nth == 0) return poison(device, s.async_status);
        if (!reached(piece.from, piece.length, device) || !reached(piece.to, piece.length, device))
            return poison(device, abi::kIllegalAddress);
        count("kernel_bytes", piece.length);
        poison(device, copy_now(piece.to, piece.from, piece.length, device));
    }
}

}  // namespace

FAKE_API Status cuModuleLoadData(abi::Module* module, const void* text) {
    const Call call("cuModuleLoadData", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    *module = new abi::ModuleObject{static_cast<const char*>(text)};
    state().modules[*module] = std::make_unique<abi::FunctionObject>(abi::FunctionObject{*module});
    return abi::kSuccess;
}

FAKE_API Status cuModuleUnload(abi::Module module) {
    const Call call("cuModuleUnload", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    if (state().modules.erase(module) == 0) return abi::kInvalidHandle;
    delete module;
    return abi::kSuccess;
}

FAKE_API Status cuModuleGetFunction(abi::Function* function, abi::Module module, const char* name) {
    const Call call("cuModuleGetFunction", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    const auto found = state().modules.find(module);
    if (found == state().modules.end()) return abi::kInvalidHandle;
    if (std::strcmp(name, CopyKernel::kName) != 0 || module->text.find(std::string(".visible .entry ") + name) == std::string::npos)
        return abi::kNotFound;
    *function = found->second.get();
    return abi::kSuccess;
}

FAKE_API Status cuLaunchKernel(abi::Function function, uint32_t blocks, uint32_t, uint32_t, uint32_t threads, uint32_t, uint32_t, uint32_t,
                               abi::Stream stream, void** parameters, void**) {
    const Call call("cuLaunchKernel", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (function == nullptr || blocks == 0 || threads == 0 || threads > 1024) return abi::kInvalidValue;
    if (stream == nullptr || stream == abi::legacy_stream() || !s.streams.contains(stream)) return abi::kInvalidHandle;
    const CopyKernel::Piece* list = nullptr;
    uint32_t number = 0;
    std::memcpy(&list, parameters[0], sizeof list);
    std::memcpy(&number, parameters[1], sizeof number);
    if (application_depth == 0) count("kernels");
    const int device = call.ordinal;
    stream->add([=] { copy_pieces(list, number, device); });
    return abi::kSuccess;
}

}  // namespace fake
