// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "store/client/values.h"

namespace mooncake::store {

/// The checksum of one value that is moved: chunks are hashed as they pass, in the cache, where the engine lets our copiers see them;
/// checksum() hashes the others where they lie in our memory. Of a read only bytes that have arrived are hashed, never those at the other side, which
/// may change: what a reader is given is what was verified. Pieces of a device are not shown to anybody, and are hashed through a host buffer. Not thread-safe, except for the copiers during a transfer. Must not be moved while they are in use.
class ValueHash {
public:
    /// `pieces` of the value in our memory, which must last as long as this; longer than the value, perhaps.
    /// `engine`: knows what memory they are, and outlives this; null: all is the host's.
    void start(std::span<const Piece> pieces, uint64_t length, Direction direction, const Engine* engine = nullptr);

    /// Of the piece with this number; nothing is copied through it twice at a time. Null: the piece is not the host's.
    Copier* copier(size_t piece) {
        Part& part = piece == 0 ? first_ : more_[piece - 1];
        return part.is_host() ? &part : nullptr;
    }

    /// After the transfer. Fails where a device does.
    Result<uint64_t> checksum();
    /// As hash_value() gives it; filled by checksum().
    std::span<const uint64_t> table() const noexcept { return table_; }

private:
    class Part final : public Copier {
    public:
        Part() = default;
        Part(ValueHash* owner, const std::byte* local, uint64_t offset, uint64_t length, bool host)
            : owner_(owner), local_(local), offset_(offset), length_(length), host_(host) {}
        bool is_host() const noexcept { return host_; }
        void begin() noexcept override { owner_->forget(offset_, length_); }
        void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override;
        void passed(const std::byte* local, uint64_t length) noexcept override;

    private:
        ValueHash* owner_ = nullptr;
        const std::byte* local_ = nullptr;
        uint64_t offset_ = 0, length_ = 0;  // in the value
        bool host_ = true;
    };

    void forget(uint64_t offset, uint64_t length) noexcept;
    void copy(uint64_t offset, std::byte* to, const std::byte* from, uint64_t length) noexcept;
    void look(uint64_t offset, const std::byte* at, uint64_t length) noexcept;
    uint64_t chunk_end(uint64_t chunk) const noexcept;
    uint64_t hash_chunk(uint64_t chunk) const;
    /// All chunks that are not known, seen through a host buffer.
    Result<> hash_from_devices();
    uint64_t& entry(uint64_t chunk) noexcept { return table_.empty() ? only_ : table_[chunk]; }

    std::span<const Piece> pieces_;
    uint64_t length_ = 0;
    Direction direction_ = Direction::kRead;
    const Engine* devices_ = nullptr;  // some of the pieces are not the host's; null: all are
    uint64_t only_ = 0;                // of a value of one chunk; 0: not known
    std::vector<uint64_t> table_;      // of one of more, likewise
    Part first_;
    std::vector<Part> more_;
};

}  // namespace mooncake::store
