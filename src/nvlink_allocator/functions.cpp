// SPDX-License-Identifier: Apache-2.0
// nvlink_allocator.so: memory for torch.cuda.MemPool, as C functions of a library that needs neither CUDA nor the rest of the package to be
// loaded. See device/cuda/allocator.h.
#include <sys/types.h>

#include "base/log.h"
#include "base/options.h"
#include "device/cuda/allocator.h"

using mooncake::cuda::Allocator;

namespace {

Allocator& allocator() {
    // Never destroyed: PyTorch may free what it has while the process ends.
    static Allocator& only = *[] {
        const mooncake::Environment environment = mooncake::process_environment();
        mooncake::configure_log(mooncake::load_options(environment).log);
        return new Allocator(mooncake::load_cuda_options(environment).allocator_cache);
    }();
    return only;
}

using Stream = mooncake::cuda::abi::Stream;

}  // namespace

extern "C" {

MC_EXPORT void* mc_allocator_malloc(ssize_t length, int device, Stream) try {
    return length <= 0 ? nullptr : allocator().allocate(static_cast<uint64_t>(length), device);
} catch (const std::exception&) {
    return nullptr;
}

MC_EXPORT void mc_allocator_free(void* address, ssize_t, int, Stream stream) try {
    allocator().free(address, stream);
} catch (const std::exception& why) {
    MC_LOG_WARNING_EVERY(std::chrono::seconds(60), "memory at {} is lost: {}", address, why.what());
}

/// 0: as that of cudaMalloc; 1: over NVLink between hosts; 2: nobody knows.
MC_EXPORT int mc_allocator_probe(int device) try { return static_cast<int>(allocator().probe(device)); } catch (const std::exception&) {
    return static_cast<int>(Allocator::Backend::kUnknown);
}

// As they were called before.

MC_EXPORT void* mc_nvlink_malloc(ssize_t length, int device, Stream stream) { return mc_allocator_malloc(length, device, stream); }

MC_EXPORT void mc_nvlink_free(void* address, ssize_t length, int device, Stream stream) {
    mc_allocator_free(address, length, device, stream);
}

/// 1 where mc_allocator_probe() says 1, else 0.
MC_EXPORT int mc_probe_fabric_support(int device) {
    return mc_allocator_probe(device) == static_cast<int>(Allocator::Backend::kFabric) ? 1 : 0;
}

}  // extern "C"
