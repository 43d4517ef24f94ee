// SPDX-License-Identifier: Apache-2.0
#include "store/bridge/client/host_memory.h"

#include <linux/memfd.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <map>

#include "base/log.h"
#include "base/options.h"
#include "base/pages.h"
#include "base/thread_annotations.h"
#include "store/process/store_options.h"

namespace mooncake::store::bridge {

namespace {

/// What was handed out, by address.
struct Allocations {
    Mutex mutex;
    std::map<const std::byte*, std::shared_ptr<HostBlock>> blocks MC_GUARDED_BY(mutex);
};
/// Never destroyed, and whole in a forked child, which may free what was allocated before the fork.
Allocations& allocations() {
    static Allocations& all = []() -> Allocations& {
        ::pthread_atfork([] { allocations().mutex.lock(); }, [] { allocations().mutex.unlock(); }, [] { allocations().mutex.unlock(); });
        return *new Allocations;
    }();
    return all;
}

/// Nobody else may have these: where they punch a hole there may be no other page.
Result<std::shared_ptr<HostBlock>> allocate_huge(uint64_t length, uint64_t page) {
    const unsigned size_flag = static_cast<unsigned>(std::countr_zero(page)) << MFD_HUGE_SHIFT;
    const UniqueFd file(::memfd_create("mooncake_host_memory", MFD_CLOEXEC | MFD_HUGETLB | size_flag));
    if (file.get() < 0) return fail_errno(Code::kNoSpace, errno, "memfd_create");
    if (::ftruncate(file.get(), static_cast<off_t>(length)) != 0) return fail_errno(Code::kNoSpace, errno, "{} bytes", length);
    void* const address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (address == MAP_FAILED) return fail_errno(Code::kNoSpace, errno, "mapping {} bytes", length);
    return std::make_shared<HostBlock>(Mapping(address, length), MemoryFile());
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

Result<std::shared_ptr<HostBlock>> HostBlock::allocate(uint64_t size, uint64_t huge_page_bytes, bool present) {
    if (size == 0 || size > static_cast<uint64_t>(INT64_MAX) / 2) return fail(Code::kInvalidArgument, "{} bytes", size);
    const uint64_t page = huge_page_bytes != 0 ? huge_page_bytes : page_bytes();
    const uint64_t length = (size + page - 1) / page * page;
    if (huge_page_bytes != 0) return allocate_huge(length, page);
    MC_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::create("mooncake_host_memory", length));
    MC_ASSIGN_OR_RETURN(Mapping mapping, file.map(true, length));
    if (present) (void)populate_pages(mapping.address(), length);  // otherwise they come one by one
    return std::make_shared<HostBlock>(std::move(mapping), std::move(file));
}

HostBlock::~HostBlock() {
    // In a child the descriptor is closed already, and its number may be somebody else's by now.
    if (born_ != fork_generation()) [[maybe_unused]]
        const auto* const kept_for_ever = new MemoryFile(std::move(file_));
}

Result<void*> allocate_host_memory(uint64_t size) {
    const StoreOptions options = load_store_options(process_environment());
    MC_ASSIGN_OR_RETURN(std::shared_ptr<HostBlock> block,
                        HostBlock::allocate(size, options.huge_pages ? options.huge_page_bytes : 0, true));
    void* const address = block->data();
    Allocations& all = allocations();
    const Lock lock(all.mutex);
    all.blocks.emplace(block->data(), std::move(block));
    return address;
}

Result<> free_host_memory(void* address) {
    Allocations& all = allocations();
    std::shared_ptr<HostBlock> block;
    const Lock lock(all.mutex);
    const auto found = all.blocks.find(static_cast<std::byte*>(address));
    if (found == all.blocks.end()) return fail(Code::kNotFound, "nothing was allocated at {}", address);
    block = std::move(found->second);
    all.blocks.erase(found);
    return {};
}

std::shared_ptr<HostBlock> find_host_memory(const void* address, uint64_t length) {
    const auto* const at = static_cast<const std::byte*>(address);
    Allocations& all = allocations();
    const Lock lock(all.mutex);
    auto found = all.blocks.upper_bound(at);
    if (found == all.blocks.begin()) return nullptr;
    const std::shared_ptr<HostBlock>& block = (--found)->second;
    const auto offset = static_cast<uint64_t>(at - block->data());
    return offset < block->length() && length <= block->length() - offset ? block : nullptr;
}

uintptr_t allocate_function() noexcept { return reinterpret_cast<uintptr_t>(&allocate_for_plugins); }
uintptr_t free_function() noexcept { return reinterpret_cast<uintptr_t>(&free_for_plugins); }

}  // namespace mooncake::store::bridge
