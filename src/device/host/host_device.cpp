// SPDX-License-Identifier: Apache-2.0
#include "device/host/host_device.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/memory_probe.h"
#include "base/pages.h"
#include "base/unique_fd.h"

namespace mooncake {

namespace {

// The kernel's PROCMAP_QUERY (since 6.11), which Debian 12's headers do not have.
struct MappingQuery {
    uint64_t size = sizeof(MappingQuery);
    uint64_t flags = 0;
    uint64_t address = 0;
    uint64_t start = 0, end = 0, permissions = 0, page_bytes = 0, file_offset = 0, inode = 0;
    uint32_t device_major = 0, device_minor = 0;
    uint32_t name_bytes = 0, build_id_bytes = 0;
    uint64_t name = 0, build_id = 0;
};
static_assert(sizeof(MappingQuery) == 104);
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);
constexpr uint64_t kThisOrTheNext = 0x10;
constexpr uint64_t kReadable = 0x01, kWritable = 0x02;

const void* as_pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }

Unexpected unusable(uint64_t address, uint64_t length, uint64_t at, std::string_view why) {
    return fail(Code::kInvalidArgument, "[{}, +{}): {} at {}", as_pointer(address), length, why, as_pointer(at));
}

MemoryInfo host_info(uint64_t address, uint64_t length, bool writable) {
    return {.kind = MemoryKind::kHost, .base = address, .length = length, .writable = writable};
}

class HostDevice final : public Device {
public:
    MemoryKind kind() const noexcept override { return MemoryKind::kHost; }

    Result<std::optional<MemoryInfo>> describe(const void* address, uint64_t length) override {
        const auto start = reinterpret_cast<uint64_t>(address);
        auto known = detail::describe_by_mappings(start, length, detail::find_mapping);
        if (!known && known.error().code() == Code::kNotSupported) return detail::describe_by_probing(start, length);
        return known;
    }

    Result<> copy(MemoryKind, MemoryKind, std::span<const CopyPart> parts) override {
        for (const CopyPart& part : parts) std::memcpy(part.to, part.from, part.length);
        return {};
    }
};

}  // namespace

namespace detail {

Result<HostMapping> find_mapping(uint64_t address) {
    // Opened each time: a descriptor would speak of the parent's memory in a forked child, and the call costs but a microsecond or two.
    const UniqueFd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    if (!maps) return fail(Code::kNotSupported, "/proc/self/maps cannot be opened");
    MappingQuery query{.flags = kThisOrTheNext, .address = address};
    if (::ioctl(maps.get(), kQueryMapping, &query) != 0) {
        if (errno == ENOENT) return fail(Code::kNotFound, "nothing is mapped from {} on", as_pointer(address));
        return fail(Code::kNotSupported, "the kernel does not say what is mapped");
    }
    return HostMapping{.start = query.start,
                       .end = query.end,
                       .readable = (query.permissions & kReadable) != 0,
                       .writable = (query.permissions & kWritable) != 0};
}

Result<std::optional<MemoryInfo>> describe_by_mappings(uint64_t address, uint64_t length,
                                                       const std::function<Result<HostMapping>(uint64_t)>& find) {
    bool writable = true;
    const uint64_t last = address + (length - 1);
    for (uint64_t at = address;;) {
        auto mapping = find(at);
        if (!mapping && mapping.error().code() != Code::kNotFound) return Unexpected(std::move(mapping).error());
        if (!mapping || mapping->start > at) {
            if (at == address) return std::nullopt;
            return unusable(address, length, at, "nothing is mapped");
        }
        if (!mapping->readable) return unusable(address, length, at, "no access is allowed");
        writable = writable && mapping->writable;
        if (mapping->end == 0 || mapping->end - 1 >= last) return host_info(address, length, writable);
        at = mapping->end;
    }
}

Result<std::optional<MemoryInfo>> describe_by_probing(uint64_t address, uint64_t length) {
    const uint64_t start = address - address % page_bytes();
    // Looks at the mappings and at nothing else: there is nothing to be written back now.
    if (::msync(reinterpret_cast<void*>(start), address - start + length, MS_ASYNC) != 0 && errno == ENOMEM) {
        if (!is_mapped(static_cast<const std::byte*>(as_pointer(address)))) return std::nullopt;
        return fail(Code::kInvalidArgument, "[{}, +{}): not all of it is mapped", as_pointer(address), length);
    }
    const uint64_t last = address + (length - 1);
    bool writable = true;
    for (const uint64_t at : {address, last}) {
        auto* const byte = reinterpret_cast<std::byte*>(at);
        if (!is_readable(byte, 1)) return unusable(address, length, at, "no access is allowed");
        writable = writable && is_writable(byte, 1);
    }
    return host_info(address, length, writable);
}

}  // namespace detail

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

}  // namespace mooncake
