// SPDX-License-Identifier: Apache-2.0
#include "store/client/parts_plan.h"

#include <algorithm>
#include <utility>

#include "store/protocol/stored_form.h"

namespace mooncake::store {

void PartsPlan::begin(uint64_t value_length, bool verified) {
    value_length_ = value_length;
    verified_ = verified;
    told_ = false;
    bytes_ = 0;
    blocks_.clear();
    chunks_.clear();
    copies_.clear();
    table_.clear();
    scratch_.clear();
    seen_.clear();
}

void PartsPlan::add(std::byte* to, uint64_t offset, uint64_t length, bool host) {
    if (!verified_) {
        blocks_.push_back({.local = to, .remote = offset, .length = length});
        return;
    }
    const uint64_t end = offset + length;
    const uint64_t whole = table_bytes(value_length_) == 0 ? std::max<uint64_t>(value_length_, 1) : kChunkBytes;
    for (uint64_t number = offset / whole; number * whole < end; ++number) {
        const uint64_t from = number * whole, until = std::min(from + whole, value_length_);
        if (offset <= from && end >= until) {
            add_chunk(number, to + (from - offset), from, until - from, host);
            continue;
        }
        const std::byte* const at = scratch_chunk(number, from, until - from);
        const uint64_t copy_from = std::max(from, offset), copy_until = std::min(until, end);
        copies_.push_back({.to = to + (copy_from - offset), .from = at + (copy_from - from), .length = copy_until - copy_from});
    }
}

void PartsPlan::finish() {
    if (!chunks_.empty() && table_bytes(value_length_) > 0) {
        table_.resize(chunk_count(value_length_));
        blocks_.push_back(
            {.local = reinterpret_cast<std::byte*>(table_.data()), .remote = value_length_, .length = table_bytes(value_length_)});
    }
    for (const Block& block : blocks_) bytes_ += block.length;
}

void PartsPlan::expect(uint64_t chunk, uint64_t hash) {
    if (chunk >= table_.size()) return;
    if (!std::exchange(told_, true)) std::fill(table_.begin(), table_.end(), 0);
    table_[chunk] = hash;
}

void PartsPlan::add_chunk(uint64_t number, std::byte* at, uint64_t from, uint64_t length, bool host) {
    if (!host) seen_.push_back(std::make_unique<SeenPiece>(at, from, length, value_length_));
    SeenPiece* const seen = host ? nullptr : seen_.back().get();
    chunks_.push_back({.number = number, .at = at, .length = length, .seen = seen});
    blocks_.push_back({.local = at, .remote = from, .length = length, .copier = seen});
}

const std::byte* PartsPlan::scratch_chunk(uint64_t number, uint64_t from, uint64_t length) {
    const auto [known, added] = scratch_.try_emplace(number);
    std::unique_ptr<std::byte[]>& memory = known->second;
    if (added) {
        memory.reset(new std::byte[length]);
        add_chunk(number, memory.get(), from, length, true);
    }
    return memory.get();
}

}  // namespace mooncake::store
