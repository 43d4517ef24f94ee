// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "engine/engine.h"

namespace mooncake::store {

/// Bytes of chunks that are seen in parts, as those of scattered pieces are, kept until all of a chunk is there and can be hashed. Thread-safe.
class PartialChunks {
public:
    using Range = std::pair<uint64_t, uint64_t>;  // from, to: in a chunk

    /// [from, from + length) of a chunk of `whole` bytes. Returns its hash, once, when all of it has been seen; otherwise 0, also when there is no memory
    /// for it.
    uint64_t add(uint64_t chunk, uint64_t whole, uint64_t from, const std::byte* bytes, uint64_t length) noexcept;
    /// It has to be seen again.
    void forget(uint64_t chunk, Range range) noexcept;
    /// Writes what was seen of a chunk to its place in `to`, forgets it and says what is missing.
    std::vector<Range> take(uint64_t chunk, uint64_t whole, std::byte* to);

private:
    static constexpr size_t kSparesMax = 4;

    struct Partial {
        std::unique_ptr<std::byte[]> bytes;
        std::vector<Range> seen;  // in order and apart
    };
    static void insert(std::vector<Range>& seen, Range range);

    Mutex mutex_;
    std::unordered_map<uint64_t, Partial> partials_ MC_GUARDED_BY(mutex_);
    std::vector<std::unique_ptr<std::byte[]>> spares_ MC_GUARDED_BY(mutex_);
};

/// Hashes of the chunks of a value that are wholly in one piece of a device's memory, from the host's side of its way. Thread-safe as a Copier.
class SeenPiece final : public Copier {
public:
    /// The piece is [offset, offset + length) of a value of `value_length` bytes.
    SeenPiece(const std::byte* local, uint64_t offset, uint64_t length, uint64_t value_length);

    void begin(const std::byte* local, uint64_t length) noexcept override;
    /// Never called: no CPU copies it.
    void copy(std::byte*, const std::byte*, uint64_t) noexcept override {}
    void passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept override;

    /// 0: not seen, or not wholly of this piece. After the transfer.
    uint64_t hash(uint64_t chunk) const noexcept {
        return chunk < first_ || chunk - first_ >= hashes_.size() ? 0 : hashes_[chunk - first_];
    }

private:
    const std::byte* const local_;
    const uint64_t offset_, value_length_, first_;
    std::vector<uint64_t> hashes_;
    PartialChunks partials_;
};

}  // namespace mooncake::store
