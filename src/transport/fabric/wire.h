// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/incarnation.h"

// What travels in the segment descriptor and over the control plane (schema/fabric.fbs, docs/wire/fabric.md). Pure functions. Decoders
// accept any bytes: what fails verification or goes beyond the limits is kCorrupt; every rail they name exists in the blob of the target, which
// the caller knows (`rails`). Encoders do not check.
namespace mooncake::fabric {

constexpr uint16_t kWireVersion = 1;
constexpr size_t kRailsMax = 64;
constexpr size_t kNameBytesMax = 256;
constexpr size_t kTextBytesMax = 256;
constexpr size_t kChunksMax = 4096;           // in one answer
constexpr size_t kAnswerBytesMax = 48 << 10;  // leaves room in a message of the control plane

/// One NIC that serves.
struct RailRecord {
    std::string nic;
    std::string provider;
    uint32_t protocol = 0;
    uint32_t address_format = 0;
    std::vector<std::byte> name;  // of its serving endpoint
    uint64_t epoch = 0;           // counted up when that is opened anew; not 0
    bool virtual_addresses = false;
    uint64_t operation_bytes_max = 0;
    uint64_t speed_bits = 0;
    int32_t numa_node = -1;

    friend bool operator==(const RailRecord&, const RailRecord&) = default;
};

/// What stands in our descriptor.
struct EndpointBlob {
    std::string profile;
    std::vector<RailRecord> rails;

    friend bool operator==(const EndpointBlob&, const EndpointBlob&) = default;
};
std::string encode_endpoint(const EndpointBlob& blob);
/// kRefused: a version we do not speak.
Result<EndpointBlob> decode_endpoint(std::string_view bytes);

/// A rail as it is now.
struct RailState {
    uint32_t rail = 0;
    uint64_t epoch = 0;
    std::vector<std::byte> name;  // empty: it does not serve now

    friend bool operator==(const RailState&, const RailState&) = default;
};

/// Memory registered as one, with the keys of the rails that have it. With offset addressing its first byte is offset 0.
struct ChunkRecord {
    uint64_t address = 0;
    uint64_t length = 0;
    uint64_t rails = 0;          // bit per rail
    std::vector<uint64_t> keys;  // one per bit, lowest first
    bool read_only = false;

    std::optional<uint64_t> key(uint32_t rail) const noexcept;
    void set_key(uint32_t rail, uint64_t key);
    friend bool operator==(const ChunkRecord&, const ChunkRecord&) = default;
};

/// Which keys are there around a range?
struct ResolveRequest {
    uint64_t address = 0;
    uint64_t length = 0;
    friend bool operator==(const ResolveRequest&, const ResolveRequest&) = default;
};
struct ResolveAnswer {
    std::vector<ChunkRecord> chunks;  // ascending, apart
    bool complete = false;            // these are all there are
    std::vector<RailState> rails;
    std::optional<ChunkRecord> probe;  // the target's own, for reading: whether a path works
    friend bool operator==(const ResolveAnswer&, const ResolveAnswer&) = default;
};

/// Make sure that nothing lands any more that was sent to these endpoints.
struct FenceRequest {
    struct Closed {
        uint32_t rail = 0;
        uint64_t epoch = 0;
        friend bool operator==(const Closed&, const Closed&) = default;
    };
    std::vector<Closed> rails;
    friend bool operator==(const FenceRequest&, const FenceRequest&) = default;
};
/// Are you there? Also tells our addresses, where the target must know them.
struct PingRequest {
    std::vector<RailRecord> rails;
    friend bool operator==(const PingRequest&, const PingRequest&) = default;
};
/// The answer to a fence and to a ping.
struct RailsAnswer {
    std::vector<RailState> rails;
    friend bool operator==(const RailsAnswer&, const RailsAnswer&) = default;
};

struct Request {
    Incarnation initiator;
    std::variant<ResolveRequest, FenceRequest, PingRequest> body;
};
std::vector<std::byte> encode_request(const Request& request);
/// `rails`: how many the target (who decodes) has.
Result<Request> decode_request(std::span<const std::byte> bytes, size_t rails);

std::vector<std::byte> encode_answer(const ResolveAnswer& answer);
std::vector<std::byte> encode_answer(const RailsAnswer& answer);
/// `rails`: how many the target (who answered) has.
Result<ResolveAnswer> decode_resolve_answer(std::span<const std::byte> bytes, size_t rails);
Result<RailsAnswer> decode_rails_answer(std::span<const std::byte> bytes, size_t rails);

/// About how many bytes a chunk takes in an answer, to stay within kAnswerBytesMax.
size_t encoded_bytes(const ChunkRecord& chunk) noexcept;

}  // namespace mooncake::fabric
