// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "store/client/partial_chunks.h"

namespace mooncake::store {

/// What has to be fetched for some parts of one value, and what becomes of it. Parts may overlap and come in any order; the cost of one
/// does not depend on how many there are. Not thread-safe.
class PartsPlan {
public:
    /// Bytes of one chunk that must hash to what the table says.
    struct Chunk {
        uint64_t number = 0;
        std::byte* at = nullptr;
        uint64_t length = 0;
        const SeenPiece* seen = nullptr;  // not null: it goes to a device
    };
    struct Copy {
        std::byte* to = nullptr;
        const std::byte* from = nullptr;
        uint64_t length = 0;
    };

    /// Of a value of so many bytes. Verified: chunks are fetched whole, and those that a part has no room for go to memory of ours.
    void begin(uint64_t value_length, bool verified);
    /// [offset, offset + length) of the value goes to `to`. Host: the CPU may touch that.
    void add(std::byte* to, uint64_t offset, uint64_t length, bool host);
    void finish();
    /// The table comes with the bytes.
    void expect_table() noexcept { told_ = false; }
    /// Or a node says what the chunks are that it gives: those it says nothing of are not right. Of one chunk the master knows the hash.
    void expect(uint64_t chunk, uint64_t hash);

    /// `remote` is the offset in the stored form.
    std::span<const Block> blocks() const noexcept { return blocks_; }
    std::span<const Chunk> chunks() const noexcept { return chunks_; }
    /// Empty: the value has none, or nothing is verified.
    std::span<const uint64_t> table() const noexcept { return table_; }
    /// The table is what a node said.
    bool told() const noexcept { return told_; }
    /// To be made once the chunks are known to be right.
    std::span<const Copy> copies() const noexcept { return copies_; }
    uint64_t bytes() const noexcept { return bytes_; }

private:
    void add_chunk(uint64_t number, std::byte* at, uint64_t from, uint64_t length, bool host);
    /// Our memory for a chunk of which a part wants some bytes only.
    const std::byte* scratch_chunk(uint64_t number, uint64_t from, uint64_t length);

    uint64_t value_length_ = 0, bytes_ = 0;
    bool verified_ = false, told_ = false;
    std::vector<Block> blocks_;
    std::vector<Chunk> chunks_;
    std::vector<Copy> copies_;
    std::vector<uint64_t> table_;
    std::unordered_map<uint64_t, std::unique_ptr<std::byte[]>> scratch_;  // by chunk
    std::vector<std::unique_ptr<SeenPiece>> seen_;
};

}  // namespace mooncake::store
