// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "transport/access.h"

// What two Ascend transports tell each other beside the library. See docs/wire/ascend.md.
namespace mooncake::ascend {

/// One engine of the library, as peers see it.
struct EndpointRecord {
    std::string name;            // "ip:port", the library's own name for it
    int physical = -1;           // number of its device on its host
    bool client_server = false;  // can be linked to from its own device

    bool operator==(const EndpointRecord&) const = default;
};

std::string encode_endpoints(std::span<const EndpointRecord> endpoints);
Result<std::vector<EndpointRecord>> decode_endpoints(std::string_view text);

constexpr size_t kRangesMax = 1000;   // in one question
constexpr size_t kRecordsMax = 1600;  // in one answer: 64 KiB
constexpr size_t kEnginesMax = 64;

/// Which memory lies there: asked before it is first touched, and after each new link.
struct ResolveRequest {
    std::vector<AddressRange> ranges;
};
struct RegionRecord {
    uint64_t address = 0, length = 0;
    uint64_t since = 0;   // the version in which it came
    uint32_t engine = 0;  // where it can be reached
    bool writable = false;

    uint64_t end() const noexcept { return address + length; }
    bool operator==(const RegionRecord&) const = default;
};
struct ResolveAnswer {
    uint64_t version = 0;               // of all memory: grows whenever some is added
    std::vector<RegionRecord> regions;  // that overlap the ranges, by address; of some memory several, one for each engine
};

std::vector<std::byte> encode(const ResolveRequest& request);
std::vector<std::byte> encode(const ResolveAnswer& answer);
Result<ResolveRequest> decode_request(std::span<const std::byte> bytes);
Result<ResolveAnswer> decode_answer(std::span<const std::byte> bytes);

}  // namespace mooncake::ascend
