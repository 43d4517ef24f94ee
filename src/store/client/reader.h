// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "store/client/fetch.h"
#include "store/client/host_view.h"
#include "store/client/partial_chunks.h"
#include "store/client/values.h"

/// Reads of whole values and of parts. As StoreClient::read() and read_parts(); thread-safe.
namespace mooncake::store {

std::vector<int64_t> read_values(ClientCore& core, std::span<const ValueToRead> values);

/// Parts of values, grouped by key; whatever chunks they touch are fetched whole and verified, unless nothing can be verified.
class PartsFetch final : public Fetch {
public:
    /// The distinct keys of the parts, and for each part which of them it is of.
    struct Keys {
        std::vector<std::string_view> keys;
        std::vector<uint32_t> of_part;
    };
    static Keys group(std::span<const PartToRead> parts);

    PartsFetch(ClientCore& core, std::span<const PartToRead> parts, Keys keys);

    /// After run(): bytes, or a StoreCode.
    std::vector<int64_t> results() const;

private:
    /// Bytes of one chunk that must hash to what the table says.
    struct Chunk {
        uint64_t number = 0;
        std::byte* at = nullptr;
        uint64_t length = 0;
        bool scratch = false;
        const SeenPiece* seen = nullptr;  // not null: it goes to a device
    };
    struct Copy {
        std::byte* to = nullptr;
        const std::byte* from = nullptr;
        uint64_t length = 0;
    };
    /// What one key needs.
    struct Plan {
        std::vector<uint32_t> parts;
        std::vector<Block> blocks;  // `remote` is the offset in the stored form
        std::vector<Chunk> chunks;
        std::vector<Copy> copies;
        std::vector<uint64_t> table;
        bool expected = false;  // the table is what a node says of the chunks that it has given
        std::vector<std::unique_ptr<std::byte[]>> scratch;
        std::vector<std::unique_ptr<SeenPiece>> seen;
        uint64_t bytes = 0;
    };

    StoreCode plan(size_t item, const Place& place) override;
    uint64_t bytes(size_t item) const override { return plans_[item].bytes; }
    void add_blocks(size_t item, uint64_t stored_at, std::vector<Block>& blocks) override;
    StoreCode verify(size_t item) override;
    void expect(size_t item, uint64_t chunk, uint64_t hash) override;
    StoreCode accept(size_t item) override;
    Result<uint64_t> hash_of(const Chunk& chunk);

    bool can_be_filled(const PartToRead& part);
    void plan_verified(Plan& plan, const PartToRead& part, const Place& place);
    std::byte* scratch_chunk(Plan& plan, uint64_t number, uint64_t length);

    const std::span<const PartToRead> parts_;
    const std::vector<uint32_t> item_of_part_;
    std::vector<Plan> plans_;
    std::vector<bool> beyond_;  // parts that do not lie in their value, or have no memory to go to
    HostView view_;
};

std::vector<int64_t> read_value_parts(ClientCore& core, std::span<const PartToRead> parts);

}  // namespace mooncake::store
