// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "conductor/schedule/blocks.h"

namespace mooncake::conductor {

using InstanceId = uint32_t;  // small numbers, used again when an instance is gone

/// Which instance holds which blocks, as far as is known. Each instance's blocks are kept in the order of their use; beyond its capacity
/// the longest unused is taken for evicted. Not thread-safe.
class PrefixIndex {
public:
    /// From then on `id` can hold blocks; capacity 0: none.
    void add_instance(InstanceId id, size_t capacity_blocks);
    void remove_instance(InstanceId id);

    /// The instance has, or is about to have, all blocks of a prompt: they become the youngest, the first one of all.
    void use(InstanceId id, std::span<const BlockHash> blocks);
    void insert(InstanceId id, BlockHash block);
    void remove(InstanceId id, BlockHash block);
    void clear(InstanceId id);
    bool holds(InstanceId id, BlockHash block) const;
    size_t size(InstanceId id) const;

    /// How many blocks each instance holds from the first on without a gap, by id (`lengths` is filled; its size is the highest id + 1).
    void match(std::span<const BlockHash> blocks, std::vector<uint32_t>& lengths) const;

private:
    using Order = std::list<BlockHash>;  // the youngest first
    struct View {
        bool known = false;
        size_t capacity = 0;
        Order order;
        std::unordered_map<BlockHash, Order::iterator> places;
    };

    void forget(InstanceId id, BlockHash block);
    void shrink(InstanceId id);

    std::vector<View> views_;                                         // by id
    std::unordered_map<BlockHash, std::vector<InstanceId>> holders_;  // no empty ones
};

}  // namespace mooncake::conductor
