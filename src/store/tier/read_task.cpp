// SPDX-License-Identifier: Apache-2.0
#include "store/tier/read_task.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mooncake::store::log {

ReadState::ReadState(TierRead& request, Index::Location location, Completion& completion)
    : request_(request), location_(std::move(location)), completion_(completion), begin_(request.offset),
      end_(request.offset + request.into.size()), first_chunk_(begin_ / kChunkBytes), chunks_(chunk_count(end_) - first_chunk_),
      needs_table_(table_bytes(location_.length) != 0 && (begin_ != 0 || end_ != location_.length)), direct_(request.direct),
      hashes_(chunks_, 0), table_(needs_table_ ? chunk_count(location_.length) : 0, 0) {}

std::optional<ReadState::Part> ReadState::next_part(uint64_t bytes_max) const {
    if (stopped_) return std::nullopt;
    if (next_chunk_ < chunks_) {
        const uint64_t at = (first_chunk_ + next_chunk_) * kChunkBytes;
        const uint64_t end = std::min((first_chunk_ + chunks_) * kChunkBytes, location_.length);
        return Part{at, std::min(bytes_max / kChunkBytes * kChunkBytes, end - at), false};
    }
    const uint64_t table = needs_table_ ? table_bytes(location_.length) : 0;
    if (next_table_ < table) return Part{location_.length + next_table_, std::min(bytes_max, table - next_table_), true};
    return std::nullopt;
}

std::optional<ReadState::Part> ReadState::peek_part(uint64_t bytes_max) {
    const Lock lock(mutex_);
    return next_part(bytes_max);
}

std::optional<ReadState::Part> ReadState::take_part(uint64_t bytes_max) {
    const Lock lock(mutex_);
    const auto part = next_part(bytes_max);
    if (!part) return part;
    if (part->table) {
        next_table_ += part->bytes;
    } else {
        next_chunk_ += chunk_count(part->bytes);
    }
    ++out_;
    return part;
}

std::byte* ReadState::straight_to(const Part& part) const noexcept {
    if (!direct_ || part.table || part.at < begin_ || part.at + part.bytes > end_ || part.bytes % kBlockBytes != 0) return nullptr;
    std::byte* const to = request_.into.data() + (part.at - begin_);
    const bool aligned = reinterpret_cast<uintptr_t>(to) % kBlockBytes == 0 && (location_.payload_offset() + part.at) % kBlockBytes == 0;
    return aligned ? to : nullptr;
}

void ReadState::accept_chunks(const Part& part, std::span<const std::byte> bytes) {
    for (uint64_t done = 0; done < part.bytes; done += kChunkBytes) {
        const uint64_t at = part.at + done;
        const auto chunk = bytes.subspan(done, std::min(kChunkBytes, part.bytes - done));
        uint64_t& hash = hashes_[at / kChunkBytes - first_chunk_];
        std::byte* const to = request_.into.data() + (at - begin_);  // of the chunk, if it is wanted as a whole
        if (at >= begin_ && at + chunk.size() <= end_) {
            hash = to == chunk.data() ? hash_bytes(chunk) : copy_and_hash(to, chunk.data(), chunk.size());
            continue;
        }
        hash = hash_bytes(chunk);
        const uint64_t from = std::max(at, begin_), until = std::min(at + chunk.size(), end_);
        std::memcpy(request_.into.data() + (from - begin_), chunk.data() + (from - at), until - from);
    }
}

void ReadState::accept(const Part& part, std::span<const std::byte> bytes) {
    const Lock lock(mutex_);
    --out_;
    if (stopped_) return;
    if (part.table) {
        std::memcpy(reinterpret_cast<std::byte*>(table_.data()) + (part.at - location_.length), bytes.data(), part.bytes);
    } else {
        accept_chunks(part, bytes);
    }
    if (out_ == 0 && !next_part(kChunkBytes)) verify();
}

void ReadState::verify() {
    const bool whole = begin_ == 0 && end_ == location_.length;
    bool right = false;
    if (chunks_ == 0) {
        right = true;
    } else if (table_bytes(location_.length) == 0) {
        right = hashes_[0] == location_.checksum;
    } else if (whole) {
        right = hash_table(hashes_) == location_.checksum;
    } else {
        right = hash_table(table_) == location_.checksum &&
                std::equal(hashes_.begin(), hashes_.end(), table_.begin() + static_cast<std::ptrdiff_t>(first_chunk_));
    }
    if (right) return;
    code_ = Code::kCorrupt;
    error_ = error(Code::kCorrupt, "the value of '{}' fails its check", request_.key);
}

void ReadState::refuse(const Part&, Error error) {
    const Lock lock(mutex_);
    --out_;
    if (stopped_) return;
    stopped_ = true;
    code_ = error.code();
    error_ = std::move(error);
}

void ReadState::stop(Error error) {
    const Lock lock(mutex_);
    if (stopped_ || claimed_) return;
    stopped_ = true;
    code_ = error.code();
    error_ = std::move(error);
}

bool ReadState::is_over() const {
    if (stopped_) return !direct_ || out_ == 0;
    return out_ == 0 && !next_part(kChunkBytes);
}

bool ReadState::claim_answer() {
    const Lock lock(mutex_);
    if (claimed_ || !is_over()) return false;
    claimed_ = true;
    stopped_ = true;
    return true;
}

void ReadState::answer() {
    request_.result = code_;
    if (code_ == Code::kOk) return completion_.succeed(end_ - begin_);
    completion_.fail(std::move(error_));
}

}  // namespace mooncake::store::log
