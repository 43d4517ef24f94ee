// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/stored_form.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "store/protocol/copy_hash.h"
#include "store/protocol/hash_avx2.h"

namespace mooncake::store {

namespace {

constexpr uint64_t never_zero(uint64_t hash) { return hash == 0 ? 1 : hash; }

/// Cuts pieces into chunks and hashes each.
class ChunkHasher {
public:
    explicit ChunkHasher(std::vector<uint64_t>& table) : table_(table) {}

    void add(std::span<const std::byte> piece) {
        while (!piece.empty()) {
            if (in_chunk_ == 0 && piece.size() >= kChunkBytes) {  // whole, so without the copies of streaming
                table_.push_back(hash_bytes(piece.first(kChunkBytes)));
                piece = piece.subspan(kChunkBytes);
                continue;
            }
            if (in_chunk_ == 0) XXH3_64bits_reset(&state_);
            const auto part = piece.first(std::min<size_t>(piece.size(), kChunkBytes - in_chunk_));
            XXH3_64bits_update(&state_, part.data(), part.size());
            in_chunk_ += part.size();
            piece = piece.subspan(part.size());
            if (in_chunk_ == kChunkBytes) finish();
        }
    }
    void finish() {
        if (in_chunk_ == 0) return;
        table_.push_back(never_zero(XXH3_64bits_digest(&state_)));
        in_chunk_ = 0;
    }

private:
    std::vector<uint64_t>& table_;
    uint64_t in_chunk_ = 0;
    XXH3_state_t state_;
};

}  // namespace

static_assert(std::endian::native == std::endian::little, "tables are stored as they lie in memory");

uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept {
    static const bool wide = have_avx2();
    constexpr size_t kShort = 240;  // no vectors are used up to here
    if (wide && bytes.size() > kShort) return never_zero(hash_avx2(bytes.data(), bytes.size()));
    return never_zero(XXH3_64bits(bytes.data(), bytes.size()));
}

uint64_t copy_and_hash(std::byte* to, const std::byte* from, uint64_t length) noexcept {
    static const bool wide = have_avx2();
    return never_zero(wide ? copy_and_hash_avx2(to, from, length) : copy_and_hash_blocks(to, from, length));
}

uint64_t hash_table(std::span<const uint64_t> table) noexcept { return hash_bytes(std::as_bytes(table)); }

uint64_t hash_value(std::span<const std::span<const std::byte>> pieces, std::vector<uint64_t>& table) {
    table.clear();
    if (pieces.size() == 1 && pieces[0].size() <= kChunkBytes) return hash_bytes(pieces[0]);
    ChunkHasher hasher(table);
    for (const auto& piece : pieces) hasher.add(piece);
    hasher.finish();
    if (table.size() > 1) return hash_table(table);
    const uint64_t only = table.empty() ? hash_bytes({}) : table.front();
    table.clear();
    return only;
}

}  // namespace mooncake::store
