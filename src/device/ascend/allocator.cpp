// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/allocator.h"

#include <algorithm>

#include "base/log.h"

namespace mooncake::ascend {

namespace {

constexpr uint64_t kSmallPage = uint64_t{2} << 20, kGiB = uint64_t{1} << 30;

/// Calls it in the device's context.
template <typename Body>
auto in_context(const Library& library, int device, Body body) -> decltype(body()) {
    MC_ASSIGN_OR_RETURN(const abi::Context context, library.acl.context_of(device));
    MC_ASSIGN_OR_RETURN(const auto scope, ContextScope::enter(library.acl, context));
    return body();
}

/// What was made so far, undone in reverse unless it is kept.
class Undo {
public:
    ~Undo() {
        for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) (*step)();
    }
    void add(std::function<void()> step) { steps_.push_back(std::move(step)); }
    std::vector<std::function<void()>> keep() { return std::exchange(steps_, {}); }

private:
    std::vector<std::function<void()>> steps_;
};

Result<std::unique_ptr<HostAllocation>> allocate_pages(const std::shared_ptr<const Library>& library, int device, uint64_t length,
                                                       const PageAttempt& attempt) {
    const Acl& acl = library->acl;
    const abi::Runtime& f = acl.functions;
    const int node = near_node(acl.physical_id(device));
    abi::PhysicalProperties properties{.attribute = attempt.attribute};
    properties.location = {.id = attempt.near ? static_cast<uint32_t>(node) : 0,
                           .type = static_cast<uint32_t>(attempt.near ? abi::kLocationNuma : abi::kLocationHost)};
    Undo undo;
    abi::PhysicalHandle handle = nullptr;
    MC_RETURN_IF_ERROR(acl.check("aclrtMallocPhysical", f.allocate_physical(&handle, length, &properties, 0), device));
    undo.add([&f, handle, library] { (void)f.free_physical(handle); });
    void* address = nullptr;
    MC_RETURN_IF_ERROR(acl.check("aclrtReserveMemAddress", f.reserve(&address, length, 0, nullptr, abi::kReserveHuge), device));
    undo.add([&f, address, library] { (void)f.release(address); });
    MC_RETURN_IF_ERROR(acl.check("aclrtMapMem", f.map(address, length, 0, handle, 0), device));
    undo.add([&f, address, library] { (void)f.unmap(address); });
    if (f.set_access != nullptr) {
        int32_t logical = device;
        if (f.logical_id != nullptr) (void)f.logical_id(device, &logical);
        abi::AccessDescription access;
        access.location = {.id = static_cast<uint32_t>(logical), .type = abi::kLocationDevice};
        MC_RETURN_IF_ERROR(acl.check("aclrtMemSetAccess", f.set_access(address, length, &access, 1), device));
    }
    const HostAllocation::What what{.address = static_cast<std::byte*>(address),
                                    .length = length,
                                    .page_bytes = attempt.page_bytes,
                                    .numa_node = attempt.near ? node : -1,
                                    .device = device};
    return std::make_unique<HostAllocation>(what, [steps = undo.keep()] {
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) (*step)();
    });
}

Result<std::unique_ptr<HostAllocation>> allocate_by_vendor(const std::shared_ptr<const Library>& library, int device, uint64_t length) {
    void* address = nullptr;
    const abi::Status status = library->engine.allocate(abi::kMemoryHost, length, &address);
    if (status != abi::kSuccess)
        return fail(Code::kNoSpace, "{}: MallocMem of {} bytes on device {} answered {}", library->file, length, device, status);
    return std::make_unique<HostAllocation>(
        HostAllocation::What{.address = static_cast<std::byte*>(address), .length = length, .device = device},
        [library, address] { (void)library->engine.free(address); });
}

}  // namespace

Result<std::unique_ptr<HostAllocation>> allocate_pinned(std::shared_ptr<const Library> library, int device, uint64_t length) {
    return in_context(*library, device, [&]() -> Result<std::unique_ptr<HostAllocation>> {
        void* address = nullptr;
        const Acl& acl = library->acl;
        MC_RETURN_IF_ERROR(acl.check("aclrtMallocHost", acl.functions.allocate_host(&address, length), device));
        return std::make_unique<HostAllocation>(
            HostAllocation::What{.address = static_cast<std::byte*>(address), .length = length, .device = device},
            [library, address] { (void)library->acl.functions.free_host(address); });
    });
}

Result<std::unique_ptr<HostAllocation>> allocate_fabric(std::shared_ptr<const Library> library, int device, uint64_t length,
                                                        std::span<const PageAttempt> ladder) {
    if (length == 0 || length % kSmallPage != 0) return fail(Code::kInvalidArgument, "{} bytes are not whole pages of 2 MiB", length);
    const abi::Runtime& f = library->acl.functions;
    const bool direct = f.allocate_physical != nullptr && f.free_physical != nullptr && f.reserve != nullptr && f.release != nullptr &&
                        f.map != nullptr && f.unmap != nullptr;
    return in_context(*library, device, [&]() -> Result<std::unique_ptr<HostAllocation>> {
        if (library->engine.allocate != nullptr && library->engine.free != nullptr) return allocate_by_vendor(library, device, length);
        if (!direct) return fail(Code::kNotSupported, "{} has no functions for fabric memory", library->file);
        std::string answers;
        for (const PageAttempt& attempt : ladder) {
            if (length % attempt.page_bytes != 0) continue;
            auto made = allocate_pages(library, device, length, attempt);
            if (made) return made;
            answers += format_text("; pages of {} MiB{}: {}", attempt.page_bytes >> 20, attempt.near ? " nearby" : "",
                                   made.error().message());
        }
        return fail(Code::kNoSpace, "no fabric memory of {} bytes{}", length, answers);
    });
}

std::vector<uint64_t> best_effort_lengths(uint64_t wish) {
    std::vector<uint64_t> lengths;
    for (uint64_t percent = 100; percent >= 50; percent -= 10) {
        // Not wish * percent, which may not fit.
        const uint64_t length = (wish / 100 * percent + wish % 100 * percent / 100) / kGiB * kGiB;
        if (length == 0 || length < wish / 2) break;
        if (lengths.empty() || lengths.back() != length) lengths.push_back(length);
    }
    return lengths;
}

}  // namespace mooncake::ascend
