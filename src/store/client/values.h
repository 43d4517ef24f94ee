// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "store/protocol/codes.h"

/// What calls about values are given, and what they answer.
namespace mooncake::store {

/// Memory of the caller. Need not be registered; registered memory is faster on networks that read and write it by themselves.
struct Piece {
    std::byte* data = nullptr;
    uint64_t length = 0;
};

/// A value is the concatenation of its pieces.
struct ValueToWrite {
    std::string_view key;
    std::span<const Piece> pieces;
    std::string_view group;  // empty: none
};
/// Filled in order; together at least as long as the value.
struct ValueToRead {
    std::string_view key;
    std::span<const Piece> pieces;
    bool unsure = false;  // bare addresses, not registered: the kernel is asked whether they can be written before we try
};
struct PartToRead {
    std::string_view key;
    uint64_t offset = 0;  // in the value
    Piece to;
    bool unsure = false;  // as in ValueToRead
};
struct PartToWrite {
    std::string_view key;
    uint64_t offset = 0;
    Piece from;
};

struct ReplicaInfo {
    std::string segment_name;  // host:port of the owner
    std::string endpoint;
    std::string protocol;
    uint64_t address = 0, length = 0;
    bool on_disk = false;  // then there is no address
};
struct ValueInfo {
    StoreCode code = StoreCode::kOk;
    uint64_t length = 0;
    std::vector<ReplicaInfo> replicas;
};

/// A place of this length for a value that is written in parts.
struct Reservation {
    std::string_view key;
    uint64_t length = 0;
    std::string_view group;
};

/// A piece of the client's staging buffer; gives itself back. Must not outlive its client.
class MC_EXPORT StagingBuffer {
public:
    StagingBuffer() = default;
    StagingBuffer(StagingBuffer&& other) noexcept : owner_(other.owner_), data_(other.data_), size_(other.size_), block_(other.block_) {
        other.owner_ = nullptr;
    }
    StagingBuffer& operator=(StagingBuffer&& other) noexcept;
    ~StagingBuffer();

    std::byte* data() const noexcept { return data_; }
    uint64_t size() const noexcept { return size_; }
    explicit operator bool() const noexcept { return owner_ != nullptr; }

private:
    friend class StagingPool;
    class StagingPool* owner_ = nullptr;
    std::byte* data_ = nullptr;
    uint64_t size_ = 0;
    uint32_t block_ = 0;
};

}  // namespace mooncake::store
