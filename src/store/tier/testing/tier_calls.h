// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/tier/storage_tier.h"

/// Calls of a tier that wait, one value at a time.
namespace mooncake::store::tier_calls {

using Bytes = std::vector<std::byte>;

/// Always the same for a seed.
Bytes make_bytes(uint64_t seed, size_t length);
Code put(StorageTier& tier, std::string_view key, uint64_t generation, const Bytes& bytes, std::string_view tenant = "default");
struct Got {
    Code code = Code::kOk;
    Bytes bytes;
};
/// The whole value, whose length is asked for by report() if `length` is not given.
Got get(StorageTier& tier, std::string_view key, size_t length, std::string_view tenant = "default",
        Deadline deadline = Deadline::after(60s));
Got get_part(StorageTier& tier, std::string_view key, uint64_t offset, size_t length, Deadline deadline = Deadline::after(60s));
Code remove(StorageTier& tier, std::string_view key, uint64_t generation = 0, std::string_view tenant = "default");

struct Listed {
    uint64_t generation = 0, length = 0, checksum = 0;
    std::string group;
    bool hard_pin = false;
    Duration soft_pin_left{0};
    ObjectDataType data_type = ObjectDataType::kUnknown;
    ClientId writer;
};
/// By tenant, '/' and key.
std::map<std::string, Listed> list(const StorageTier& tier, size_t part = 1000);

}  // namespace mooncake::store::tier_calls
