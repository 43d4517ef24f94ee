// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "conductor/schedule/prefix_index.h"

namespace mooncake::conductor {

/// One thing that an engine says about its cache. Its hashes are its own, and mean something to itself only.
struct KvEvent {
    enum class Kind : uint8_t { kStored, kRemoved, kCleared };
    Kind kind = Kind::kCleared;
    std::vector<uint64_t> hashes{};
    std::optional<uint64_t> parent{};  // the block before the first one that was stored
    std::vector<uint32_t> tokens{};    // of all blocks that were stored
    uint32_t block_tokens = 0;         // 0: not said
};

/// What engines publish, in msgpack: [time, [event, ...], ...], where an event is an array (["BlockStored", hashes, parent, tokens, block size, ...],
/// ["BlockRemoved", hashes], ["AllBlocksCleared"]) or a map (event_type stored, removed or cleared). Kinds that are not known are left out. kCorrupt.
Result<std::vector<KvEvent>> parse_kv_events(std::string_view payload);

/// What one publisher has, by its own names, so that what it removes is known by ours. Not thread-safe.
class KvView {
public:
    KvView(uint64_t seed, uint32_t block_tokens) noexcept : seed_(seed), block_tokens_(block_tokens) {}
    /// Writes it to the index. Blocks whose parent is not known cannot be named, and are left out.
    void apply(const KvEvent& event, PrefixIndex& index, InstanceId instance);
    /// Forgets everything.
    void clear(PrefixIndex& index, InstanceId instance);
    size_t size() const noexcept { return ours_.size(); }

private:
    void store(const KvEvent& event, PrefixIndex& index, InstanceId instance);

    const uint64_t seed_;
    const uint32_t block_tokens_;
    std::unordered_map<uint64_t, BlockHash> ours_;
};

/// What becomes of the numbers of a publisher's messages.
enum class Turn : uint8_t { kNext, kOld, kGap, kRestarted };
Turn turn_of(std::optional<uint64_t> last, uint64_t number) noexcept;

}  // namespace mooncake::conductor
