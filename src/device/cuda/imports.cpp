// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/imports.h"

#include "base/log.h"

namespace mooncake::cuda {

namespace {

/// What the driver takes for a file.
void* as_handle(int file) noexcept { return reinterpret_cast<void*>(static_cast<uintptr_t>(file)); }

abi::AccessDescription access_of(int device) noexcept {
    return {.location = {.type = abi::kLocationDevice, .id = device}, .flags = abi::kAccessReadWrite};
}

Unexpected unreached(Driver& driver, int device, std::string_view call, abi::Status status) {
    return fail(Code::kNotSupported, "GPU {} does not reach the peer's memory: {}", device, driver.failure(device, call, status).message());
}

/// Calls `use` for each other GPU that this process uses.
template <typename Use>
void for_other_devices(const Driver& driver, int device, const Use& use) {
    for (int other = 0; Driver::valid(other); ++other)
        if (other != device && driver.in_use(other)) use(other);
}

}  // namespace

Result<uint64_t> Imports::open(const Ticket& ticket, int device, const MemoryFile& file) {
    Lock lock(mutex_);
    if (ticket.way != Way::kIpc) {
        if (const auto same = by_key_.find({ticket.owner, ticket.base, ticket.allocation}); same != by_key_.end()) {
            ++opened_.at(same->second).times;
            return same->second;
        }
        if (!file) return fail(Code::kNotSupported, "the peer's memory comes without its file");
    }
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
    switch (ticket.way) {
        case Way::kIpc: return open_handle(scope, ticket, device);
        case Way::kDescriptor: return open_chunk(scope, ticket, device, file.fd());
        case Way::kPool: return open_of_pool(scope, ticket, device, file.fd());
    }
    return fail(Code::kNotSupported, "memory of a GPU is shared in a way we do not know");
}

Result<uint64_t> Imports::open_handle(const Scope& scope, const Ticket& ticket, int device) {
    if (scope->ipc_open == nullptr || scope->ipc_close == nullptr) return fail(Code::kNotSupported, "this CUDA driver shares no memory");
    abi::DevicePointer base = 0;
    if (const abi::Status status = scope->ipc_open(&base, ticket.handle, abi::kIpcLazyPeerAccess); status != abi::kSuccess)
        return unreached(driver_, device, "cuIpcOpenMemHandle", status);
    const auto [opened, fresh] = opened_.try_emplace(base, Opened{.device = device, .length = ticket.length});
    if (!fresh) ++opened->second.times;
    return base;
}

// ---- chunks at reserved addresses

bool Imports::in_use(uint64_t start, uint64_t length) const {
    auto next = opened_.upper_bound(start);
    if (next != opened_.end() && next->first - start < length) return true;
    return next != opened_.begin() && (--next, start - next->first < next->second.length);
}

std::optional<uint64_t> Imports::beside_others(const Scope& scope, const Ticket& ticket) {
    const auto& [reservation, reserved] = ticket.chunk;
    const uint64_t offset = ticket.base - reservation;
    if (ticket.base < reservation || offset > reserved || ticket.length > reserved - offset) return std::nullopt;
    const std::pair<uint64_t, uint64_t> of(ticket.owner, reservation);
    auto known = range_of_.find(of);
    if (known == range_of_.end()) {
        abi::DevicePointer start = 0;
        const abi::Status status = scope->vmm_reserve(&start, reserved, 0, 0, 0);
        driver_.notice(status);
        if (status != abi::kSuccess) return std::nullopt;
        ranges_[start] = {.length = reserved, .of = of};
        known = range_of_.emplace(of, start).first;
    }
    const uint64_t start = known->second;
    // What the owner had there before may still be open, or its reservation be another one by now.
    if (ranges_.at(start).length != reserved || in_use(start + offset, ticket.length)) return std::nullopt;
    return start;
}

Result<std::pair<uint64_t, uint64_t>> Imports::place(const Scope& scope, const Ticket& ticket, int device) {
    if (const auto range = beside_others(scope, ticket)) return std::pair(*range + (ticket.base - ticket.chunk.reservation), *range);
    if (!answers(device)) return fail(Code::kNotSupported, "CUDA cannot be used any more");
    abi::DevicePointer start = 0;
    if (const abi::Status status = scope->vmm_reserve(&start, ticket.length, 0, 0, 0); status != abi::kSuccess)
        return unreached(driver_, device, "cuMemAddressReserve", status);
    ranges_[start] = {.length = ticket.length};
    return std::pair(start, start);
}

void Imports::spoil(uint64_t range) noexcept {
    const auto found = ranges_.find(range);
    if (const auto of = range_of_.find(found->second.of); of != range_of_.end() && of->second == range) range_of_.erase(of);
    found->second.spoilt = true;
}

void Imports::free_range(const abi::Functions& functions, uint64_t start) noexcept {
    const auto found = ranges_.find(start);
    if (found->second.chunks > 0 || found->second.spoilt) return;
    if (const abi::Status status = functions.vmm_free(start, found->second.length); status != abi::kSuccess)
        MC_LOG_WARNING_EVERY(60s, "cuMemAddressFree: {}", driver_.name_of(status));
    if (const auto of = range_of_.find(found->second.of); of != range_of_.end() && of->second == start) range_of_.erase(of);
    ranges_.erase(found);
}

Result<uint64_t> Imports::open_chunk(const Scope& scope, const Ticket& ticket, int device, int file) {
    if (scope->vmm_import == nullptr || scope->vmm_map == nullptr || scope->vmm_set_access == nullptr || scope->vmm_unmap == nullptr ||
        scope->vmm_reserve == nullptr || scope->vmm_free == nullptr || scope->vmm_release == nullptr)
        return fail(Code::kNotSupported, "this CUDA driver shares no memory at reserved addresses");
    abi::Handle handle = 0;
    if (const abi::Status status = scope->vmm_import(&handle, as_handle(file), static_cast<int>(abi::kHandleDescriptor));
        status != abi::kSuccess)
        return unreached(driver_, device, "cuMemImportFromShareableHandle", status);
    Result<uint64_t> mapped = [&]() MC_REQUIRES(mutex_) -> Result<uint64_t> {
        MC_ASSIGN_OR_RETURN(const auto where, place(scope, ticket, device));
        const auto [base, range] = where;
        if (const abi::Status status = scope->vmm_map(base, ticket.length, 0, handle, 0); status != abi::kSuccess) {
            Unexpected why = unreached(driver_, device, "cuMemMap", status);
            if (answers(device)) free_range(*scope, range);
            return why;
        }
        const abi::AccessDescription access = access_of(device);
        const abi::Status status = scope->vmm_set_access(base, ticket.length, &access, 1);
        ++ranges_.at(range).chunks;
        const Opened opened{.way = Way::kDescriptor,
                            .device = device,
                            .length = ticket.length,
                            .key = {ticket.owner, ticket.base, ticket.allocation},
                            .range = range};
        if (status != abi::kSuccess) {
            Unexpected why = unreached(driver_, device, "cuMemSetAccess", status);
            if (answers(device)) give_back(*scope, base, opened);
            return why;
        }
        opened_[base] = opened;
        by_key_[opened.key] = base;
        return base;
    }();
    if (answers(device)) driver_.notice(scope->vmm_release(handle));  // the mapping keeps the memory
    if (!mapped) return mapped;
    for_other_devices(driver_, device, [&](int other) {
        const abi::AccessDescription access = access_of(other);
        if (answers(device))
            driver_.notice(scope->vmm_set_access(*mapped, ticket.length, &access, 1));  // who cannot has to copy by way of another GPU
    });
    return mapped;
}

// ---- pools

Result<Imports::Pool*> Imports::find_pool(const Scope& scope, const Ticket& ticket, int device, int file) {
    const std::pair<uint64_t, uint64_t> number(ticket.owner, ticket.pool);
    if (const auto known = pools_.find(number); known != pools_.end()) return &known->second;
    abi::Pool handle = nullptr;
    if (const abi::Status status = scope->pool_import(&handle, as_handle(file), static_cast<int>(abi::kHandleDescriptor), 0);
        status != abi::kSuccess)
        return unreached(driver_, device, "cuMemPoolImportFromShareableHandle", status);
    const abi::AccessDescription access = access_of(device);
    if (const abi::Status status = scope->pool_set_access(handle, &access, 1); status != abi::kSuccess) {
        Unexpected why = unreached(driver_, device, "cuMemPoolSetAccess", status);
        if (answers(device)) driver_.notice(scope->pool_destroy(handle));
        return why;
    }
    for_other_devices(driver_, device, [&](int other) {
        const abi::AccessDescription more = access_of(other);
        if (answers(device)) driver_.notice(scope->pool_set_access(handle, &more, 1));
    });
    return &pools_.emplace(number, Pool{.handle = handle}).first->second;
}

void Imports::free_pool(const abi::Functions& functions, std::pair<uint64_t, uint64_t> number) noexcept {
    const auto found = pools_.find(number);
    if (found->second.users > 0) return;
    driver_.notice(functions.pool_destroy(found->second.handle));
    pools_.erase(found);
}

Result<uint64_t> Imports::open_of_pool(const Scope& scope, const Ticket& ticket, int device, int file) {
    if (scope->pool_import == nullptr || scope->pool_import_pointer == nullptr || scope->pool_set_access == nullptr ||
        scope->pool_destroy == nullptr || scope->memory_free == nullptr)
        return fail(Code::kNotSupported, "this CUDA driver shares no pools");
    MC_ASSIGN_OR_RETURN(Pool* const pool, find_pool(scope, ticket, device, file));
    abi::PoolPointer pointer = ticket.pointer;
    abi::DevicePointer base = 0;
    const std::pair<uint64_t, uint64_t> number(ticket.owner, ticket.pool);
    if (const abi::Status status = scope->pool_import_pointer(&base, pool->handle, &pointer); status != abi::kSuccess) {
        Unexpected why = unreached(driver_, device, "cuMemPoolImportPointer", status);
        if (answers(device)) free_pool(*scope, number);
        return why;
    }
    ++pool->users;
    const Key key(ticket.owner, ticket.base, ticket.allocation);
    opened_[base] = {.way = Way::kPool, .device = device, .length = ticket.length, .key = key, .pool = number};
    by_key_[key] = base;
    return base;
}

// ---- closing

void Imports::give_back(const abi::Functions& functions, uint64_t base, const Opened& opened) noexcept {
    const auto check = [this](const char* call, abi::Status status) {
        driver_.notice(status);
        if (status != abi::kSuccess) MC_LOG_WARNING_EVERY(60s, "{}: {}", call, driver_.name_of(status));
        return status == abi::kSuccess;
    };
    switch (opened.way) {
        case Way::kIpc: check("cuIpcCloseMemHandle", functions.ipc_close(base)); break;
        case Way::kDescriptor:
            if (!check("cuMemUnmap", functions.vmm_unmap(base, opened.length))) spoil(opened.range);
            --ranges_.at(opened.range).chunks;
            if (answers(opened.device)) free_range(functions, opened.range);
            break;
        case Way::kPool:
            check("cuMemFree", functions.memory_free(base));
            --pools_.at(opened.pool).users;
            if (answers(opened.device)) free_pool(functions, opened.pool);
            break;
    }
}

bool Imports::close(uint64_t base) noexcept {
    Lock lock(mutex_);
    const auto found = opened_.find(base);
    if (found == opened_.end()) return false;
    const Opened opened = found->second;
    const bool last = --found->second.times == 0;
    if (last) {
        if (opened.way != Way::kIpc) by_key_.erase(opened.key);
        opened_.erase(found);
    }
    // The driver counts its handles itself.
    if (!last && opened.way != Way::kIpc) return true;
    if (driver_.dead(opened.device) || driver_.silent()) return true;
    if (const auto scope = Scope::enter(driver_, opened.device)) give_back(**scope, base, opened);
    else if (opened.way == Way::kDescriptor) spoil(opened.range);
    return true;
}

void Imports::let_in(int device) noexcept {
    Lock lock(mutex_);
    if (opened_.empty() || driver_.silent()) return;
    const auto scope = Scope::enter(driver_, device);
    if (!scope) return;
    const abi::AccessDescription access = access_of(device);
    for (const auto& [base, opened] : opened_)
        if (opened.way == Way::kDescriptor && opened.device != device && answers(device))
            driver_.notice((*scope)->vmm_set_access(base, opened.length, &access, 1));
    for (const auto& [number, pool] : pools_)
        if (answers(device)) driver_.notice((*scope)->pool_set_access(pool.handle, &access, 1));
}

}  // namespace mooncake::cuda
