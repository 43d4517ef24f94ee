// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/completion.h"
#include "base/thread_annotations.h"
#include "base/timer_queue.h"
#include "store/tier/index.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store::log {

/// One read from its beginning to its answer: which parts of the record it needs, what they hash to, whether that is the value. Knows
/// nothing of disks and buffers. Thread-safe: pieces come back on any thread, and the clock may end it at any time. Once it has ended, neither
/// the caller's memory nor the request is touched.
class ReadState {
public:
    /// Bytes of the stored form that are fetched together: whole chunks, or a part of the table.
    struct Part {
        uint64_t at = 0, bytes = 0;  // in the stored form
        bool table = false;
    };

    ReadState(TierRead& request, Index::Location location, Completion& completion);

    /// The next part to be fetched, of at most `bytes_max`; nothing: no more, or it has ended.
    std::optional<Part> take_part(uint64_t bytes_max);
    /// What take_part() would give, without taking it.
    std::optional<Part> peek_part(uint64_t bytes_max);
    /// Where a part may be read to without a copy: the request is direct, the part lies in it as a whole, both are aligned. Null: nowhere.
    std::byte* straight_to(const Part& part) const noexcept;

    /// A part came: `bytes` are those of the stored form.
    void accept(const Part& part, std::span<const std::byte> bytes);
    void refuse(const Part& part, Error error);
    /// Ends it, also when parts are with the disk; a direct one when those are back.
    void stop(Error error);
    /// After any of these: true, once, when it is over and is to be answered.
    bool claim_answer();
    /// By who claimed it; the completion may be gone afterwards.
    void answer();

    const Index::Location& location() const noexcept { return location_; }
    Code code() const noexcept { return code_; }  // after claim_answer()
    const TierRead& request() const noexcept { return request_; }
    TimerQueue::TimerId timer = 0;  // set before it is shared

private:
    bool is_over() const MC_REQUIRES(mutex_);
    void verify() MC_REQUIRES(mutex_);
    void accept_chunks(const Part& part, std::span<const std::byte> bytes) MC_REQUIRES(mutex_);
    std::optional<Part> next_part(uint64_t bytes_max) const MC_REQUIRES(mutex_);

    TierRead& request_;
    const Index::Location location_;
    Completion& completion_;
    const uint64_t begin_, end_;  // of the value, that were asked for
    const uint64_t first_chunk_, chunks_;
    const bool needs_table_;
    const bool direct_;

    Mutex mutex_;
    uint64_t next_chunk_ MC_GUARDED_BY(mutex_) = 0;  // counted from first_chunk_
    uint64_t next_table_ MC_GUARDED_BY(mutex_) = 0;  // bytes
    uint32_t out_ MC_GUARDED_BY(mutex_) = 0;         // parts that were taken and are not back
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    bool claimed_ MC_GUARDED_BY(mutex_) = false;
    std::vector<uint64_t> hashes_ MC_GUARDED_BY(mutex_);
    std::vector<uint64_t> table_ MC_GUARDED_BY(mutex_);
    Code code_ = Code::kOk;
    Error error_;
};

}  // namespace mooncake::store::log
