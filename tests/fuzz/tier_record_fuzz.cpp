// SPDX-License-Identifier: Apache-2.0
// What lies in the files of a tier may be anything: no parser may read beyond the bytes, and what it accepts must mean the same after it was written and
// read again. The first bytes say which place the rest claims.
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "store/tier/record.h"

using namespace mooncake;
using namespace mooncake::store;
using namespace mooncake::store::log;

namespace {

void check_record(std::span<const std::byte> bytes, Place place) {
    RecordHeader header;
    if (parse_record(bytes, place, header) != Parsed::kRecord) return;
    MC_CHECK(header.header_bytes <= bytes.size());
    MC_CHECK(!header.known_kind() || header.payload_at + header.payload_bytes() <= header.bytes());
    std::vector<std::byte> encoded(header.header_bytes);
    encode_record(header, place, encoded.data());
    RecordHeader again;
    MC_CHECK(parse_record(encoded, place, again) == Parsed::kRecord);
    MC_CHECK(again.key == header.key && again.tenant == header.tenant && again.group == header.group);
    MC_CHECK(again.generation == header.generation && again.length == header.length && again.checksum == header.checksum);
}

/// Damage that a hash would catch hides what lies behind it: so the hash is made right here, as an attacker or a bug of ours would.
void check_forged(std::span<const std::byte> bytes, Place place) {
    if (bytes.size() < kFixedHeaderBytes) return;
    RecordHeader header;
    header.kind = static_cast<RecordKind>(bytes[0]);
    std::memcpy(&header.length, bytes.data() + 1, sizeof header.length);
    std::memcpy(&header.generation, bytes.data() + 9, sizeof header.generation);
    std::memcpy(&header.payload_at, bytes.data() + 17, sizeof header.payload_at);
    std::memcpy(&header.blocks, bytes.data() + 21, sizeof header.blocks);
    header.key = {reinterpret_cast<const char*>(bytes.data()) + 25, std::min<size_t>(bytes.size() - 25, kTierKeyBytesMax)};
    header.header_bytes = static_cast<uint32_t>(kFixedHeaderBytes + header.key.size());
    std::vector<std::byte> encoded(header.header_bytes);
    encode_record(header, place, encoded.data());
    check_record(encoded, place);
}

void check_lists(std::span<const std::byte> bytes, uint64_t salt) {
    std::vector<std::byte> again;
    if (for_each_removal(bytes, [&](const Removal& removal) { append_removal(again, removal); })) {
        MC_CHECK(again.size() == bytes.size());
    }
    for_each_in_directory(bytes, salt, [](uint32_t, const RecordHeader& header, std::span<const std::byte> removals) {
        for_each_removal(removals, [](const Removal&) {});
        MC_CHECK(header.header_bytes >= kFixedHeaderBytes);
    });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const Place place{size > 0 ? data[0] : 0u, size > 1 ? data[1] : 0u};
    const auto rest = bytes.subspan(std::min<size_t>(size, 2));
    check_record(rest, place);
    check_forged(rest, place);
    check_lists(rest, place.salt);
    (void)parse_trailer(rest, place);
    (void)parse_file_header(rest);
    (void)parse_file_name({reinterpret_cast<const char*>(data), size});
    return 0;
}
