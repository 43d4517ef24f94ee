// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// How a value lies in its range, and what its checksum is. Values of more than one chunk are followed by a table with the XXH3-64 of
/// each chunk, so that any part can be verified without the rest; the object's checksum is that of the table. Of a smaller value it is
/// that of the value itself. 0 means not known: nothing is verified. Pure functions.
namespace mooncake::store {

constexpr uint64_t kChunkBytes = 64 << 10;

constexpr uint64_t chunk_count(uint64_t length) { return (length + kChunkBytes - 1) / kChunkBytes; }
/// Bytes of the table behind the value; it begins right at its end.
constexpr uint64_t table_bytes(uint64_t length) { return length <= kChunkBytes ? 0 : chunk_count(length) * sizeof(uint64_t); }
/// What a value of this length takes.
constexpr uint64_t stored_bytes(uint64_t length) { return length + table_bytes(length); }

/// XXH3-64, never 0.
uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept;
/// Copies, and hashes what was copied: hash_bytes() of the copy.
uint64_t copy_and_hash(std::byte* to, const std::byte* from, uint64_t length) noexcept;
/// Of a value given in pieces. `table` gets one entry per chunk, and stays empty where one chunk is enough.
uint64_t hash_value(std::span<const std::span<const std::byte>> pieces, std::vector<uint64_t>& table);
/// The checksum that belongs to a table.
uint64_t hash_table(std::span<const uint64_t> table) noexcept;

}  // namespace mooncake::store
