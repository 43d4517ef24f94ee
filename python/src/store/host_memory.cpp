// SPDX-License-Identifier: Apache-2.0
#include "host_memory.h"

#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <unordered_map>

#include "base/log.h"
#include "base/options.h"
#include "base/thread_annotations.h"
#include "base/unique_fd.h"
#include "store/process/store_options.h"

namespace mooncake::python {

namespace {

/// What was handed out, by address.
struct Allocations {
    Mutex mutex;
    std::unordered_map<void*, uint64_t> lengths MC_GUARDED_BY(mutex);
};
/// Never destroyed, and whole in a forked child, which may free what was allocated before the fork.
Allocations& allocations() {
    static Allocations& all = []() -> Allocations& {
        ::pthread_atfork([] { allocations().mutex.lock(); }, [] { allocations().mutex.unlock(); }, [] { allocations().mutex.unlock(); });
        return *new Allocations;
    }();
    return all;
}

Result<void*> map_shared(uint64_t length, unsigned memfd_flags) {
    const UniqueFd file(::memfd_create("mooncake_host_memory", MFD_CLOEXEC | memfd_flags));
    if (file.get() < 0) return fail_errno(Code::kNoSpace, errno, "memfd_create");
    if (::ftruncate(file.get(), static_cast<off_t>(length)) != 0) return fail_errno(Code::kNoSpace, errno, "{} bytes", length);
    void* const address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (address == MAP_FAILED) return fail_errno(Code::kNoSpace, errno, "mapping {} bytes", length);
    return address;
}

extern "C" {

void* allocate_for_plugins(size_t size) {
    const Result<void*> address = allocate_host_memory(size);
    if (address) return *address;
    MC_LOG_ERROR("host memory: {}", address.error().to_string());
    return nullptr;
}

void free_for_plugins(void* address) { (void)free_host_memory(address); }

}  // extern "C"

}  // namespace

Result<void*> allocate_host_memory(uint64_t size) {
    if (size == 0 || size > static_cast<uint64_t>(INT64_MAX) / 2) return fail(Code::kInvalidArgument, "{} bytes", size);
    const store::StoreOptions options = store::load_store_options(process_environment());
    const uint64_t page = options.huge_pages ? options.huge_page_bytes : static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t length = (size + page - 1) / page * page;
    const unsigned flags = options.huge_pages ? MFD_HUGETLB | static_cast<unsigned>(std::countr_zero(page)) << MFD_HUGE_SHIFT : 0;
    MC_ASSIGN_OR_RETURN(void* const address, map_shared(length, flags));
    Allocations& all = allocations();
    const Lock lock(all.mutex);
    all.lengths.emplace(address, length);
    return address;
}

Result<> free_host_memory(void* address) {
    Allocations& all = allocations();
    uint64_t length = 0;
    {
        const Lock lock(all.mutex);
        const auto found = all.lengths.find(address);
        if (found == all.lengths.end()) return fail(Code::kNotFound, "nothing was allocated at {}", address);
        length = found->second;
        all.lengths.erase(found);
    }
    if (::munmap(address, length) != 0) return fail_errno(Code::kInternal, errno, "munmap");
    return {};
}

uintptr_t allocate_function() noexcept { return reinterpret_cast<uintptr_t>(&allocate_for_plugins); }
uintptr_t free_function() noexcept { return reinterpret_cast<uintptr_t>(&free_for_plugins); }

Result<> prefer_memory_of_node(int node) {
    constexpr int kNodesMax = 1024, kBits = 8 * sizeof(unsigned long);
    if (node < 0 || node >= kNodesMax) return fail(Code::kInvalidArgument, "node {}", node);
    unsigned long nodes[kNodesMax / kBits] = {};
    nodes[node / kBits] = 1UL << (node % kBits);
    if (::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, kNodesMax + 1) != 0)
        return fail_errno(Code::kNotSupported, errno, "node {}", node);
    return {};
}

}  // namespace mooncake::python
