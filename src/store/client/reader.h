// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store/client/fetch.h"
#include "store/client/host_view.h"
#include "store/client/parts_plan.h"
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
    /// What one key needs.
    struct Wanted {
        std::vector<uint32_t> parts;
        PartsPlan plan;
    };

    StoreCode plan(size_t item, const Place& place) override;
    uint64_t bytes(size_t item) const override { return wanted_[item].plan.bytes(); }
    void add_blocks(size_t item, uint64_t stored_at, std::vector<Block>& blocks) override;
    StoreCode verify(size_t item) override;
    void expect(size_t item, uint64_t chunk, uint64_t hash) override;
    StoreCode accept(size_t item) override;
    Result<uint64_t> hash_of(const PartsPlan::Chunk& chunk);

    bool can_be_filled(const PartToRead& part);

    const std::span<const PartToRead> parts_;
    const std::vector<uint32_t> item_of_part_;
    std::vector<Wanted> wanted_;
    std::vector<bool> beyond_;  // parts that do not lie in their value, or have no memory to go to
    HostView view_;
};

std::vector<int64_t> read_value_parts(ClientCore& core, std::span<const PartToRead> parts);

}  // namespace mooncake::store
