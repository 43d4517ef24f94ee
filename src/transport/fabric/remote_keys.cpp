// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/remote_keys.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace mooncake::fabric {

RemoteKeys::Answered RemoteKeys::add(const ResolveAnswer& answer, uint64_t asked_address) {
    if (answer.complete) chunks_.clear();
    if (answer.probe) probe_ = answer.probe;
    for (const ChunkRecord& chunk : answer.chunks) {
        const uint64_t last = chunk.address + (chunk.length - 1);
        auto old = chunks_.upper_bound(chunk.address);
        if (old != chunks_.begin()) {
            const auto before = std::prev(old);
            if (chunk.address - before->first < before->second.length) old = before;
        }
        while (old != chunks_.end() && old->first <= last) old = chunks_.erase(old);
        chunks_.insert_or_assign(chunk.address, chunk);
    }
    if (answer.complete) return {.first = 0, .last = std::numeric_limits<uint64_t>::max(), .generation = generation_};
    // From what was asked for on nothing was left out, up to where there was no more room.
    if (answer.chunks.empty()) return {};
    const ChunkRecord& highest = answer.chunks.back();
    return {.first = asked_address, .last = highest.address + (highest.length - 1), .generation = generation_};
}

const ChunkRecord* RemoteKeys::find(uint64_t address, Direction direction) const {
    const auto next = chunks_.upper_bound(address);
    if (next == chunks_.begin()) return nullptr;
    const ChunkRecord& chunk = std::prev(next)->second;
    if (direction == Direction::kWrite && chunk.read_only) return nullptr;
    return address - chunk.address < chunk.length ? &chunk : nullptr;
}

uint64_t RemoteKeys::covered(const WantedKeys& wanted) const {
    const auto [address, length, direction] = wanted;
    if (length == 0 || address + (length - 1) < address) return 0;
    uint64_t done = 0;
    while (done < length) {
        const ChunkRecord* const chunk = find(address + done, direction);
        if (chunk == nullptr) return done;
        done += std::min(length - done, chunk->length - (address + done - chunk->address));
    }
    return done;
}

bool RemoteKeys::lacks(const WantedKeys& wanted, const Answered& answered) const {
    const auto [address, length, direction] = wanted;
    if (length == 0 || address + (length - 1) < address) return true;
    const uint64_t known = covered(wanted);
    if (known == length || answered.generation != generation_) return false;
    return address + known >= answered.first && address + known <= answered.last;
}

const ChunkRecord* RemoteKeys::probe(uint32_t rail) const {
    if (probe_ && probe_->key(rail)) return &*probe_;
    for (const auto& [address, chunk] : chunks_)
        if (chunk.key(rail)) return &chunk;
    return nullptr;
}

}  // namespace mooncake::fabric
