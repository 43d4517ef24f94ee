// SPDX-License-Identifier: Apache-2.0
#include "store/tier/testing/tier_calls.h"

#include <cstring>
#include <random>

#include "base/error.h"

namespace mooncake::store::tier_calls {

namespace {

constexpr Duration kHang = 120s;

Bytes make_checked(size_t length) { return Bytes(length, std::byte{0xee}); }

}  // namespace

Bytes make_bytes(uint64_t seed, size_t length) {
    std::mt19937_64 random(seed);
    Bytes bytes(length);
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + at, &word, std::min(sizeof word, length - at));
    }
    return bytes;
}

Code put(StorageTier& tier, std::string_view key, uint64_t generation, const Bytes& bytes, std::string_view tenant) {
    TierWrite write;
    write.object.tenant = tenant;
    write.object.key = key;
    write.object.length = bytes.size();
    write.object.generation = generation;
    write.value = bytes;
    Completion completion;
    tier.write(std::span(&write, 1), Deadline::never(), completion);
    MC_CHECK(completion.wait(Deadline::after(kHang)));
    MC_CHECK(completion.failed() == (write.result != Code::kOk));
    return write.result;
}

Got get(StorageTier& tier, std::string_view key, size_t length, std::string_view tenant, Deadline deadline) {
    Got got{Code::kOk, make_checked(length)};
    TierRead read;
    read.tenant = tenant;
    read.key = key;
    read.into = got.bytes;
    Completion completion;
    tier.read(std::span(&read, 1), deadline, completion);
    MC_CHECK(completion.wait(Deadline::after(kHang)));
    MC_CHECK(completion.failed() == (read.result != Code::kOk));
    got.code = read.result;
    return got;
}

Got get_part(StorageTier& tier, std::string_view key, uint64_t offset, size_t length, Deadline deadline) {
    Got got{Code::kOk, make_checked(length)};
    TierRead read;
    read.tenant = "default";
    read.key = key;
    read.offset = offset;
    read.into = got.bytes;
    Completion completion;
    tier.read(std::span(&read, 1), deadline, completion);
    MC_CHECK(completion.wait(Deadline::after(kHang)));
    got.code = read.result;
    return got;
}

Code remove(StorageTier& tier, std::string_view key, uint64_t generation, std::string_view tenant) {
    TierRemove remove{.tenant = tenant, .key = key, .generation = generation};
    Completion completion;
    tier.remove(std::span(&remove, 1), completion);
    MC_CHECK(completion.wait(Deadline::after(kHang)));
    return remove.result;
}

std::map<std::string, Listed> list(const StorageTier& tier, size_t part) {
    std::map<std::string, Listed> listed;
    tier.report(part, [&](std::span<const TierObject> objects) {
        for (const TierObject& object : objects) {
            listed[std::string(object.tenant) + "/" + std::string(object.key)] = {
                object.generation, object.length,        object.checksum,  std::string(object.group),
                object.hard_pin,   object.soft_pin_left, object.data_type, object.writer};
        }
        return true;
    });
    return listed;
}

}  // namespace mooncake::store::tier_calls
