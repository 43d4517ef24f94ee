// SPDX-License-Identifier: Apache-2.0
#include "store/service/byte_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mooncake::store {

uint64_t ByteLog::append(std::span<const std::byte> text) {
    if (blocks_.empty() || blocks_.back().bytes - blocks_.back().used < text.size()) {
        Block block{.memory = {}, .bytes = std::max(text.size(), kBlockBytes), .begin = end_};
        if (block.bytes == kBlockBytes && spares_ != 0) {
            block.memory = std::move(spare_[--spares_]);
        } else {
            block.memory.reset(new std::byte[block.bytes]);  // not made zero
        }
        blocks_.push_back(std::move(block));
    }
    Block& last = blocks_.back();
    if (!text.empty()) std::memcpy(last.memory.get() + last.used, text.data(), text.size());
    last.used += text.size();
    const uint64_t position = end_;
    end_ += text.size();
    return position;
}

std::span<const std::byte> ByteLog::read(uint64_t position, size_t bytes) const {
    // The first that begins after it is behind the one it is in.
    const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), position,
                                        [](uint64_t wanted, const Block& block) { return wanted < block.begin; });
    const Block& block = *std::prev(after);
    return {block.memory.get() + (position - block.begin), bytes};
}

void ByteLog::drop_before(uint64_t position) noexcept {
    while (!blocks_.empty() && blocks_.front().begin + blocks_.front().used <= position) {
        Block& first = blocks_.front();
        if (first.bytes == kBlockBytes && spares_ < kSpareMax) spare_[spares_++] = std::move(first.memory);
        blocks_.pop_front();
    }
}

}  // namespace mooncake::store
