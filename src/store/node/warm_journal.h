// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/standing.h"
#include "store/node/catalogue.h"
#include "store/node/warm_format.h"

namespace mooncake::store {

/// Where the bytes of a journal go. Called by one thread at a time.
class JournalFile {
public:
    virtual ~JournalFile() = default;
    virtual Result<> append(std::span<const std::byte> bytes) = 0;
    /// What is appended from now on is another one, which takes the place of this one with commit().
    virtual Result<> begin_anew() = 0;
    virtual Result<> commit() = 0;
    /// It is of no use any more.
    virtual void discard() noexcept = 0;
};

/// What a node writes down of the event stream, so that its next life knows what lies in the memory that outlives it (docs/adr/0026). Thread-safe. Borrows the file
/// and the catalogue.
class WarmJournal {
public:
    struct Setup {
        JournalFile& file;
        const Catalogue& catalogue;
        warm::Header header;
    };
    /// `written`: how long the file is already, with what `remembered` says; 0: nothing, and start_anew() is next.
    WarmJournal(Setup setup, Remembered remembered, uint64_t written);

    /// Writes everything there is into a new file.
    Result<> start_anew(Time now);
    /// The catalogue has applied this.
    void heard(const EventView& update, Time now);
    void stream_ended(bool orderly, Time now);
    void stands(const Standing& standing);
    /// Holdings::begin_missed() and end_missed(), which the catalogue was told before.
    void missed(bool begins);
    /// Nothing is written any more. Idempotent.
    void discard();

    bool broken() const;

private:
    static constexpr uint64_t kBytesMin = 1 << 20;  // before it is written anew

    void append(warm::RecordKind kind, std::span<const std::byte> payload) MC_REQUIRES(mutex_);
    void append_standing() MC_REQUIRES(mutex_);
    void flush() MC_REQUIRES(mutex_);
    void write_all(Time now) MC_REQUIRES(mutex_);
    void give_up(const Error& why) MC_REQUIRES(mutex_);

    JournalFile& file_;
    const Catalogue& catalogue_;
    const warm::Header header_;
    mutable Mutex mutex_;
    uint64_t salt_ MC_GUARDED_BY(mutex_);
    Remembered remembered_ MC_GUARDED_BY(mutex_);
    std::vector<std::byte> buffer_ MC_GUARDED_BY(mutex_);  // records that are not written yet
    uint64_t written_ MC_GUARDED_BY(mutex_) = 0;
    uint64_t compact_at_ MC_GUARDED_BY(mutex_) = 0;
    bool dead_ MC_GUARDED_BY(mutex_) = false;
};

/// What was written down.
struct WarmReplay {
    Remembered remembered;
    uint64_t bytes = 0;    // of the file, that count
    uint64_t updates = 0;  // in it
    bool whole = true;     // nothing lay behind
    /// The catalogue knows exactly what is in use, if the master tells it what it has missed since.
    bool exact = false;
};
/// Tells the catalogue, which has the segment and nothing in it; null: only how the node stood is wanted. Nothing that was written is later than `now`.
WarmReplay replay_journal(std::span<const std::byte> file, const warm::Header& header, Catalogue* catalogue, Time now);

}  // namespace mooncake::store
