// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "store/client/partial_chunks.h"
#include "store/client/values.h"

namespace mooncake::store {

/// The checksum of one value that is moved: chunks are hashed as they pass, in the cache, where the engine lets our copiers see them;
/// checksum() hashes the others where they lie in our memory. Of a read only bytes that have arrived are hashed, never those at the other side, which
/// may change: what a reader is given is what was verified. Of pieces of a device the host's side of the way is hashed, also across pieces; where nobody
/// was shown that, they are copied to a host buffer for it. Not thread-safe, except for the copiers during a transfer. Must not be moved while they are
/// in use.
class ValueHash {
public:
    /// `pieces` of the value in our memory, which must last as long as this; longer than the value, perhaps.
    /// `engine`: knows what memory they are, and outlives this; null: all is the host's.
    void start(std::span<const Piece> pieces, uint64_t length, Direction direction, const Engine* engine = nullptr);

    /// Of the piece with this number; nothing is copied through it twice at a time.
    Copier* copier(size_t piece) { return piece == 0 ? &first_ : &more_[piece - 1]; }
    /// Whether some piece is a device's: then there is nothing to be hashed before the transfer.
    bool of_devices() const noexcept { return devices_ != nullptr; }

    /// After the transfer. Fails where a device does.
    Result<uint64_t> checksum();
    /// As hash_value() gives it; filled by checksum().
    std::span<const uint64_t> table() const noexcept { return table_; }

private:
    class Part final : public Copier {
    public:
        Part() = default;
        Part(ValueHash* owner, const std::byte* local, uint64_t offset) : owner_(owner), local_(local), offset_(offset) {}
        uint64_t offset() const noexcept { return offset_; }
        void begin(const std::byte* local, uint64_t length) noexcept override { owner_->forget(offset_of(local), length); }
        void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override;
        void passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept override;

    private:
        uint64_t offset_of(const std::byte* local) const noexcept { return offset_ + static_cast<uint64_t>(local - local_); }

        ValueHash* owner_ = nullptr;
        const std::byte* local_ = nullptr;
        uint64_t offset_ = 0;  // in the value
    };
    using PartsByKind = std::array<std::vector<CopyPart>, kMemoryKinds>;

    void forget(uint64_t offset, uint64_t length) noexcept;
    void copy(uint64_t offset, std::byte* to, const std::byte* from, uint64_t length) noexcept;
    void look(uint64_t offset, const std::byte* at, uint64_t length) noexcept;
    uint64_t chunk_end(uint64_t chunk) const noexcept;
    uint64_t hash_chunk(uint64_t chunk) const;
    void look_at_part(uint64_t chunk, uint64_t offset, const std::byte* at, uint64_t length) noexcept;
    /// All chunks that are not known; what of them was not seen is copied to a host buffer.
    Result<> hash_from_devices();
    Result<> hash_gathered(std::span<const uint64_t> chunks, std::byte* buffer);
    /// Where [from, to) of the value lies.
    void gather(uint64_t from, uint64_t to, std::byte* into, PartsByKind& parts) const;
    uint64_t& entry(uint64_t chunk) noexcept { return table_.empty() ? only_ : table_[chunk]; }

    std::span<const Piece> pieces_;
    uint64_t length_ = 0;
    Direction direction_ = Direction::kRead;
    const Engine* devices_ = nullptr;          // some of the pieces are not the host's; null: all are
    uint64_t only_ = 0;                        // of a value of one chunk; 0: not known
    std::vector<uint64_t> table_;              // of one of more, likewise
    std::unique_ptr<PartialChunks> partials_;  // where some pieces are a device's
    Part first_;
    std::vector<Part> more_;
};

}  // namespace mooncake::store
