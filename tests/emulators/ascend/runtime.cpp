// SPDX-License-Identifier: Apache-2.0
// Devices, contexts, memory.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "tests/emulators/ascend/state.h"

namespace emu {

namespace {

constexpr int kNone = 0, kParam = 107000, kContextNull = 107002, kNoMemory = 207001, kUnsupportedFeature = 207000;

struct Allocation {
    size_t length = 0;
    Place place = Place::kHost;
    int device = -1;
    std::byte* alias = nullptr;
    uint32_t numa = 0;
    void* handle = nullptr;  // physical memory that is mapped there
};

/// Physical memory: a file.
struct Physical {
    int file = -1;
    size_t length = 0;
    uint32_t attribute = 0;
    bool host = true;
    uint32_t id = 0;  // device or NUMA node
};

struct Memory {
    std::mutex mutex, copies;
    std::map<uintptr_t, Allocation> allocations;
    std::map<uintptr_t, size_t> reserved;
    std::set<Physical*> physical;
    std::vector<std::unique_ptr<Context>> contexts;
};

Memory& memory() {
    static Memory& only = *new Memory;
    return only;
}

thread_local Context* thread_context = nullptr;
thread_local std::string last_error;

int complain(int code, const char* why) {
    last_error = why;
    return code;
}

std::vector<int> visible() {
    std::vector<int> list;
    std::string text = setting("ASCEND_RT_VISIBLE_DEVICES", "");
    while (!text.empty()) {
        const size_t comma = text.find(',');
        list.push_back(static_cast<int>(std::strtol(text.substr(0, comma).c_str(), nullptr, 10)));
        text = comma == std::string::npos ? "" : text.substr(comma + 1);
    }
    if (list.empty())
        for (int i = 0; i < std::strtol(setting("ASCEND_EMU_DEVICES", "4").c_str(), nullptr, 10); ++i) list.push_back(i);
    return list;
}

size_t page_rounded(size_t length) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    return (length + page - 1) / page * page;
}

int allocate_device(void** address, size_t length, int device) {
    length = page_rounded(length);
    const int file = ::memfd_create("npu", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(length)) != 0) return complain(kNoMemory, "no memory");
    void* const handed = ::mmap(nullptr, length, PROT_NONE, MAP_SHARED, file, 0);
    void* const alias = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (handed == MAP_FAILED || alias == MAP_FAILED) return complain(kNoMemory, "no addresses");
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.allocations[reinterpret_cast<uintptr_t>(handed)] = {length, Place::kDevice, device, static_cast<std::byte*>(alias), 0, nullptr};
    *address = handed;
    return kNone;
}

/// Whether the page kind has room on that node: ASCEND_EMU_QUOTA_1G, "NODE:COUNT,..."; without a node: anywhere.
bool has_room(uint32_t attribute, bool by_node, uint32_t node, size_t length) {
    const std::string name = attribute == 17 ? "ASCEND_EMU_QUOTA_1G" : "ASCEND_EMU_QUOTA_2M";
    const std::string quota = setting(name.c_str(), "");
    if (quota.empty()) return true;
    const std::string key = (by_node ? std::to_string(node) : std::string("any")) + ":";
    const size_t at = quota.find(key);
    if (at == std::string::npos) return false;
    const size_t page = attribute == 17 ? size_t{1} << 30 : size_t{2} << 20;
    return static_cast<size_t>(std::strtoull(quota.c_str() + at + key.size(), nullptr, 10)) * page >= length;
}

}  // namespace

Context* current() { return thread_context; }
int devices() { return static_cast<int>(visible().size()); }
int logical_of(int device) { return visible()[static_cast<size_t>(device)]; }
int physical_of(int device) {
    return logical_of(device) + static_cast<int>(std::strtol(setting("ASCEND_EMU_PHYSICAL_BASE", "0").c_str(), nullptr, 10));
}

std::unique_lock<std::mutex> no_frees() { return std::unique_lock<std::mutex>(memory().copies); }

Found find(const void* address, size_t length) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto at = reinterpret_cast<uintptr_t>(address);
    Found found;
    found.usable = reinterpret_cast<std::byte*>(at);
    const auto next = all.allocations.upper_bound(at);
    if (next == all.allocations.begin()) return found;
    const auto& [start, allocation] = *std::prev(next);
    if (at - start >= allocation.length) return found;
    found.place = allocation.place;
    found.device = allocation.device;
    found.numa = allocation.numa;
    found.inside = length <= allocation.length - (at - start);
    if (allocation.alias != nullptr) found.usable = allocation.alias + (at - start);
    return found;
}

bool move_bytes(void* to, const void* from, size_t length) {
    iovec here{const_cast<void*>(from), length}, there{to, length};
    // The kernel looks whether it is mapped.
    while (length > 0) {
        const ssize_t moved = ::process_vm_writev(::getpid(), &here, 1, &there, 1, 0);
        if (moved <= 0) return false;
        length -= static_cast<size_t>(moved);
        here = {static_cast<char*>(here.iov_base) + moved, length};
        there = {static_cast<char*>(there.iov_base) + moved, length};
    }
    return true;
}

}  // namespace emu

using namespace emu;  // NOLINT(google-build-using-namespace): the functions below have no namespace

#define ENTER(name) \
    if (const auto verdict = enter(#name); verdict.answer) return static_cast<int>(*verdict.answer)
#define NEEDS_CONTEXT() \
    if (current() == nullptr) return complain(kContextNull, "no context on this thread")

EMU_API const char* aclGetRecentErrMsg() { return last_error.empty() ? nullptr : last_error.c_str(); }

EMU_API int aclrtGetDeviceCount(uint32_t* count) {
    ENTER(aclrtGetDeviceCount);
    *count = static_cast<uint32_t>(devices());
    return kNone;
}

EMU_API int aclrtGetDevice(int32_t* device) {
    ENTER(aclrtGetDevice);
    NEEDS_CONTEXT();
    *device = current()->device;
    return kNone;
}

EMU_API int aclrtSetDevice(int32_t device) {
    ENTER(aclrtSetDevice);
    if (device < 0 || device >= devices()) return complain(kParam, "no such device");
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& context : all.contexts)
        if (context->device == device) return thread_context = context.get(), kNone;
    all.contexts.push_back(std::make_unique<Context>());
    thread_context = all.contexts.back().get();
    thread_context->device = device;
    return kNone;
}

EMU_API int aclrtGetCurrentContext(void** context) {
    ENTER(aclrtGetCurrentContext);
    NEEDS_CONTEXT();
    *context = current();
    return kNone;
}

EMU_API int aclrtSetCurrentContext(void* context) {
    ENTER(aclrtSetCurrentContext);
    if (context == nullptr) return complain(kParam, "the context is null");
    thread_context = static_cast<Context*>(context);
    return kNone;
}

EMU_API int aclrtGetPhyDevIdByLogicDevId(int32_t device, int32_t* physical) {
    ENTER(aclrtGetPhyDevIdByLogicDevId);
    if (device < 0 || device >= devices()) return complain(kParam, "no such device");
    *physical = physical_of(device);
    return kNone;
}

EMU_API int aclrtGetLogicDevIdByUserDevId(int32_t device, int32_t* logical) {
    ENTER(aclrtGetLogicDevIdByUserDevId);
    if (device < 0 || device >= devices()) return complain(kParam, "no such device");
    *logical = logical_of(device);
    return kNone;
}

EMU_API int aclrtMalloc(void** address, size_t length, int) {
    ENTER(aclrtMalloc);
    NEEDS_CONTEXT();
    if (address == nullptr || length == 0) return complain(kParam, "nothing is asked for");
    return allocate_device(address, length, current()->device);
}

EMU_API int aclrtMallocHost(void** address, size_t length) {
    ENTER(aclrtMallocHost);
    NEEDS_CONTEXT();
    if (address == nullptr || length == 0) return complain(kParam, "nothing is asked for");
    length = page_rounded(length);
    void* const made = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return complain(kNoMemory, "no memory");
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.allocations[reinterpret_cast<uintptr_t>(made)] = {length, Place::kHost, current()->device, nullptr, 0, nullptr};
    *address = made;
    return kNone;
}

namespace {

int release(void* address, Place place) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> no_copies(all.copies);
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (found == all.allocations.end() || found->second.place != place || found->second.handle != nullptr)
        return complain(kParam, "not an allocation of this kind");
    ::munmap(address, found->second.length);
    if (found->second.alias != nullptr) ::munmap(found->second.alias, found->second.length);
    all.allocations.erase(found);
    return kNone;
}

}  // namespace

EMU_API int aclrtFree(void* address) {
    ENTER(aclrtFree);
    return release(address, Place::kDevice);
}

EMU_API int aclrtFreeHost(void* address) {
    ENTER(aclrtFreeHost);
    return release(address, Place::kHost);
}

EMU_API int aclrtPointerGetAttributes(const void* address, uint32_t* attributes) {
    ENTER(aclrtPointerGetAttributes);
    if (address == nullptr || attributes == nullptr) return complain(kParam, "null");
    const Found found = find(address, 1);
    std::memset(attributes, 0, 28);
    attributes[0] = static_cast<uint32_t>(found.place == Place::kDevice ? found.device : 0);
    attributes[1] = found.place == Place::kDevice ? 1 : found.place == Place::kHost ? 0 : 2;
    attributes[2] = 4096;
    return kNone;
}

// ---- physical memory

struct PhysicalProperties {
    uint32_t handle_type, allocation_type, attribute, id, type;
    uint32_t padding;
    uint64_t reserved;
};

EMU_API int aclrtMallocPhysical(void** handle, size_t length, const PhysicalProperties* properties, uint64_t flags) {
    ENTER(aclrtMallocPhysical);
    NEEDS_CONTEXT();
    if (handle == nullptr || properties == nullptr || flags != 0 || length == 0) return complain(kParam, "wrong arguments");
    const size_t page = properties->attribute == 17 ? size_t{1} << 30 : size_t{2} << 20;
    if (length % page != 0) return complain(kParam, "not whole pages");
    const bool by_node = properties->type == 4;
    if (!has_room(properties->attribute, by_node, properties->id, length)) return complain(kNoMemory, "no pages of that kind there");
    auto* const made = new Physical;
    made->file = ::memfd_create("physical", MFD_CLOEXEC);
    if (made->file < 0 || ::ftruncate(made->file, static_cast<off_t>(length)) != 0) return complain(kNoMemory, "no memory");
    made->length = length;
    made->attribute = properties->attribute;
    made->host = properties->type != 1;
    made->id = properties->id;
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.physical.insert(made);
    *handle = made;
    return kNone;
}

EMU_API int aclrtFreePhysical(void* handle) {
    ENTER(aclrtFreePhysical);
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto* const physical = static_cast<Physical*>(handle);
    if (all.physical.erase(physical) == 0) return complain(kParam, "no such handle");
    for (const auto& [start, allocation] : all.allocations)
        if (allocation.handle == handle) return all.physical.insert(physical), complain(kParam, "still mapped");
    ::close(physical->file);
    delete physical;
    return kNone;
}

EMU_API int aclrtReserveMemAddress(void** address, size_t length, size_t alignment, void* wanted, uint64_t flags) {
    ENTER(aclrtReserveMemAddress);
    NEEDS_CONTEXT();
    if (alignment != 0 || wanted != nullptr || flags != 1) return complain(kParam, "wrong arguments");
    void* const made = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return complain(kNoMemory, "no addresses");
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.reserved[reinterpret_cast<uintptr_t>(made)] = length;
    *address = made;
    return kNone;
}

EMU_API int aclrtReleaseMemAddress(void* address) {
    ENTER(aclrtReleaseMemAddress);
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.reserved.find(reinterpret_cast<uintptr_t>(address));
    if (found == all.reserved.end() || all.allocations.count(found->first) != 0) return complain(kParam, "not reserved, or mapped");
    ::munmap(address, found->second);
    all.reserved.erase(found);
    return kNone;
}

EMU_API int aclrtMapMem(void* address, size_t length, size_t offset, void* handle, uint64_t flags) {
    ENTER(aclrtMapMem);
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto* const physical = static_cast<Physical*>(handle);
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (flags != 0 || offset != 0 || all.physical.count(physical) == 0 || all.reserved.count(at) == 0 || length > physical->length)
        return complain(kParam, "wrong arguments");
    const int rights = physical->host ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (::mmap(address, length, rights, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical->file, 0) == MAP_FAILED)
        return complain(kNoMemory, "cannot map");
    void* alias = nullptr;
    if (!physical->host) alias = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, physical->file, 0);
    all.allocations[at] = {length,
                           physical->host ? Place::kHost : Place::kDevice,
                           physical->host ? -1 : static_cast<int>(physical->id),
                           static_cast<std::byte*>(alias),
                           physical->id,
                           handle};
    return kNone;
}

EMU_API int aclrtUnmapMem(void* address) {
    ENTER(aclrtUnmapMem);
    Memory& all = memory();
    const std::lock_guard<std::mutex> no_copies(all.copies);
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (found == all.allocations.end() || found->second.handle == nullptr) return complain(kParam, "not mapped");
    ::mmap(address, found->second.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (found->second.alias != nullptr) ::munmap(found->second.alias, found->second.length);
    all.allocations.erase(found);
    return kNone;
}

EMU_API int aclrtMemSetAccess(void* address, size_t, void*, size_t count) {
    ENTER(aclrtMemSetAccess);
    return find(address, 1).place != Place::kUnregistered && count > 0 ? kNone : complain(kParam, "not mapped");
}

/// Where memory lies and on which kind of page: "host NODE ATTRIBUTE" for tests of the ladder. -1: nowhere.
EMU_API long ascend_emu_numa(const void* address) {
    const Found found = find(address, 1);
    return found.place == Place::kUnregistered ? -1 : static_cast<long>(found.numa);
}

/// What a program on the device would see and do.
EMU_API int ascend_emu_poke(void* to, const void* from, size_t length) {
    const Found found = find(to, length);
    if (!found.inside) return 1;
    std::memcpy(found.usable, from, length);
    return 0;
}

EMU_API int ascend_emu_peek(void* to, const void* from, size_t length) {
    const Found found = find(from, length);
    if (!found.inside) return 1;
    std::memcpy(to, found.usable, length);
    return 0;
}
