// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/pointers.h"

#include <algorithm>
#include <array>

#include "base/log.h"

namespace mooncake::cuda {

namespace {

/// The answers of one question; each has eight bytes, of which the driver fills as many as it likes.
struct Answers {
    uint64_t managed = 0, type = 0, ordinal = 0, buffer_id = 0, range_start = 0, range_size = 0, device_pointer = 0;
};

abi::Status ask_attributes(const abi::Functions& functions, uint64_t address, Answers& answers) {
    std::array<int, 7> attributes{abi::kAttributeIsManaged,    abi::kAttributeMemoryType, abi::kAttributeDeviceOrdinal,
                                  abi::kAttributeBufferId,     abi::kAttributeRangeStart, abi::kAttributeRangeSize,
                                  abi::kAttributeDevicePointer};
    std::array<void*, 7> data{&answers.managed,     &answers.type,       &answers.ordinal,       &answers.buffer_id,
                              &answers.range_start, &answers.range_size, &answers.device_pointer};
    return functions.get_pointer_attributes(static_cast<uint32_t>(attributes.size()), attributes.data(), data.data(), address);
}

/// Answers of a driver that has not been initialised, or has nothing to be initialised with.
bool knows_nothing(abi::Status status) noexcept {
    return status == abi::kNotInitialized || status == abi::kStub || status == abi::kNoDevice;
}

const void* as_pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }

Unexpected unusable(uint64_t address, uint64_t length, uint64_t at, std::string_view why) {
    return fail(Code::kInvalidArgument, "[{}, +{}): {} at {}", as_pointer(address), length, why, as_pointer(at));
}

}  // namespace

Result<Pointer> ask(Driver& driver, uint64_t address) {
    const abi::Functions* const functions = driver.functions();
    if (functions == nullptr) return Pointer{};
    Answers answers;
    const abi::Status status = ask_attributes(*functions, address, answers);
    if (knows_nothing(status)) return Pointer{};
    driver.note_use();
    if (status == abi::kInvalidValue) return Pointer{};  // what older drivers say of memory they do not know
    const int device = static_cast<int>(static_cast<int32_t>(answers.ordinal));
    if (status != abi::kSuccess) {
        // Host memory can be used all the same: this is no answer about it.
        const Error why = driver.failure(driver.only_device(), "cuPointerGetAttributes", status);
        if (!driver.gone()) MC_LOG_WARNING_EVERY(60s, "no memory of GPUs is recognised: {}", why.message());
        return Pointer{.place = Place::kUnknown};
    }

    Pointer pointer{.managed = static_cast<uint32_t>(answers.managed) != 0,
                    .device = device,
                    .start = answers.range_start,
                    .length = answers.range_size,
                    .reservation = answers.range_start,
                    .allocation = answers.buffer_id};
    const auto type = static_cast<uint32_t>(answers.type);
    if (pointer.managed) {
        // Perhaps it lies with the host now: any GPU copies it.
        pointer.device = std::max(device, 0);
        pointer.place = Place::kDevice;
    } else if (type == abi::kMemoryTypeHost) {
        // A thread without a context is not told where a GPU finds it.
        if (answers.device_pointer == 0)
            if (const auto scope = Scope::enter(driver, std::max(device, 0)))
                if (ask_attributes(**scope, address, answers) != abi::kSuccess) answers.device_pointer = 0;
        // Where nobody knows that, it is as good as pageable.
        pointer.place = answers.device_pointer != 0 ? Place::kPinned : Place::kPageable;
        pointer.device_offset = static_cast<int64_t>(answers.device_pointer - address);
    } else if (type == abi::kMemoryTypeDevice) {
        pointer.place = Place::kDevice;
        // Of reserved addresses the attributes tell the whole range, mapped or not; this tells what is mapped there.
        MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver, device));
        size_t length = 0;
        MC_RETURN_IF_ERROR(driver.check(device, "cuMemGetAddressRange", scope->get_address_range(&pointer.start, &length, address)));
        pointer.length = length;
    }
    return pointer;
}

Result<std::vector<Pointer>> mappings_of(Driver& driver, uint64_t address, uint64_t length) {
    MC_ASSIGN_OR_RETURN(const Pointer first, ask(driver, address));
    std::vector<Pointer> all;
    if (first.place != Place::kDevice) return all;
    if (!first.holds(address, 1)) return unusable(address, length, address, "CUDA does not say how far its memory reaches");
    const uint64_t last = address + (length - 1);
    uint64_t end = first.start + first.length;
    all.push_back(first);
    while (end - 1 < last) {
        // Expandable segments are reserved at once and mapped in chunks.
        auto next = ask(driver, end);
        if (!next) return Unexpected(std::move(next).error());
        if (next->place != Place::kDevice) return unusable(address, length, end, "the GPU's memory ends");
        if (next->device != first.device || next->managed != first.managed || next->reservation != first.reservation ||
            next->start != end || next->length == 0)
            return unusable(address, length, end, "another allocation begins");
        end += next->length;
        all.push_back(*next);
    }
    if (first.managed)
        MC_LOG_WARNING_EVERY(24h, "managed memory at {} is registered as memory of GPU {}: it is copied by way of the host, never shared",
                             as_pointer(address), first.device);
    return all;
}

}  // namespace mooncake::cuda
