// SPDX-License-Identifier: Apache-2.0
#include "device/testing/fake_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/log.h"
#include "base/pages.h"

namespace mooncake::testing {

FakeDevice::~FakeDevice() {
    Lock lock(mutex_);
    for (const auto& [address, allocation] : allocations_) {
        ::munmap(const_cast<std::byte*>(address), allocation.length);
        ::munmap(allocation.alias, allocation.length);
    }
}

std::byte* FakeDevice::allocate(uint64_t length) {
    length = (length + page_bytes() - 1) / page_bytes() * page_bytes();
    const UniqueFd file(::memfd_create("fake-device", MFD_CLOEXEC));
    MC_CHECK(file && ::ftruncate(file.get(), static_cast<off_t>(length)) == 0);
    void* const address = ::mmap(nullptr, length, PROT_NONE, MAP_SHARED, file.get(), 0);
    void* const alias = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    MC_CHECK(address != MAP_FAILED && alias != MAP_FAILED);
    Lock lock(mutex_);
    auto* const bytes = static_cast<std::byte*>(address);
    allocations_[bytes] = {.length = length, .alias = static_cast<std::byte*>(alias), .number = next_number_++};
    return bytes;
}

void FakeDevice::free(std::byte* address) {
    Lock lock(mutex_);
    const auto found = allocations_.find(address);
    MC_CHECK(found != allocations_.end());
    ::munmap(address, found->second.length);
    ::munmap(found->second.alias, found->second.length);
    allocations_.erase(found);
}

std::byte* FakeDevice::alias_of(const std::byte* address, uint64_t length) {
    const auto next = allocations_.upper_bound(address);
    if (next == allocations_.begin()) return const_cast<std::byte*>(address);
    const auto& [start, allocation] = *std::prev(next);
    const auto offset = static_cast<uint64_t>(address - start);
    if (offset >= allocation.length) return const_cast<std::byte*>(address);
    MC_CHECK(length <= allocation.length - offset);
    return allocation.alias + offset;
}

void FakeDevice::write(std::byte* to, std::span<const std::byte> from) {
    Lock lock(mutex_);
    std::memcpy(alias_of(to, from.size()), from.data(), from.size());
}

std::vector<std::byte> FakeDevice::read(const std::byte* from, uint64_t length) {
    Lock lock(mutex_);
    const std::byte* const alias = alias_of(from, length);
    return {alias, alias + length};
}

Result<std::optional<MemoryInfo>> FakeDevice::describe(const void* address, uint64_t length) {
    const auto* const bytes = static_cast<const std::byte*>(address);
    Lock lock(mutex_);
    const auto next = allocations_.upper_bound(bytes);
    if (next == allocations_.begin()) return std::nullopt;
    const auto& [start, allocation] = *std::prev(next);
    const auto offset = static_cast<uint64_t>(bytes - start);
    if (offset >= allocation.length) return std::nullopt;
    if (length > allocation.length - offset)
        return fail(Code::kInvalidArgument, "[{}, +{}) reaches beyond its allocation of {} bytes", address, length, allocation.length);
    return MemoryInfo{.kind = kind_,
                      .device = 0,
                      .base = reinterpret_cast<uint64_t>(start),
                      .length = allocation.length,
                      .allocation = allocation.number,
                      .writable = true};
}

void FakeDevice::hold() {
    Lock lock(hold_mutex_);
    hold_ = true;
}

void FakeDevice::resume() {
    Lock lock(hold_mutex_);
    hold_ = false;
    resumed_.notify_all();
}

unsigned FakeDevice::held() const {
    Lock lock(hold_mutex_);
    return held_;
}

void FakeDevice::wait_while_held() {
    Lock lock(hold_mutex_);
    ++held_;
    while (hold_) resumed_.wait(hold_mutex_);
    --held_;
}

Result<> FakeDevice::copy(MemoryKind, MemoryKind, std::span<const CopyPart> parts) {
    wait_while_held();
    if (broken_.load(std::memory_order_relaxed)) return fail(Code::kUnavailable, "the device is broken");
    copies_.fetch_add(1, std::memory_order_relaxed);
    Lock lock(mutex_);
    for (const CopyPart& part : parts) std::memcpy(alias_of(part.to, part.length), alias_of(part.from, part.length), part.length);
    return {};
}

}  // namespace mooncake::testing
