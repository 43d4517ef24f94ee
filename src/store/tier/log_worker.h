// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/completion.h"
#include "base/time.h"
#include "store/tier/appender.h"
#include "store/tier/index.h"
#include "store/tier/log_tier.h"

namespace mooncake::store::log {

/// A value that is to be written again elsewhere, if it still counts where it was.
struct Move {
    RecordHeader header;
    std::span<const std::byte> value;
    LogFile* file = nullptr;
    uint32_t block = 0;
};

/// A removal that nobody waits for. Who owns the tier hears of it when the value cannot be found any more.
struct OwnRemoval final : CompletionHook {
    void on_done(Completion&) noexcept override {
        const TierObject object{.tenant = tenant, .key = key, .generation = remove.generation};
        if (observer != nullptr) observer->on_gone(std::span(&object, 1));
    }

    TierObserver* observer = nullptr;
    std::string tenant, key;
    TierRemove remove;
    Completion completion{nullptr, this};
};

/// What waits for the log thread. One of these is set.
struct Request {
    std::span<TierWrite> writes{};
    std::span<TierRemove> removes{};
    const Move* move = nullptr;
    std::shared_ptr<LogFile> retire{};
    Completion* completion = nullptr;
    Deadline deadline = Deadline::never();
    std::unique_ptr<OwnRemoval> own{};
    uint64_t id = 0, timer = 0;

    size_t objects() const noexcept { return writes.size() + removes.size(); }
};

/// What the log thread does: carries out requests in groups, makes room, deletes files. Decisions only; files and records are the Appender's. Not
/// thread-safe but for the counters.
class LogWorker {
public:
    LogWorker(Disk& disk, FileTable& files, Index& index, const LogTierOptions& options);
    Result<> start() { return appender_.start(); }
    Appender& appender() noexcept { return appender_; }

    /// In this order. Everything is answered when it returns.
    void carry_out(std::span<Request> requests);
    /// Deletes what nothing counts in any more.
    void tidy_up();
    /// The current file gets its directory.
    void finish();
    /// Forgets removals that nothing is left of.
    void sweep();

    std::atomic<uint64_t> written_bytes{0}, moved_bytes{0}, evicted{0}, errors{0}, commits{0};

private:
    struct Answer {
        Code* result = nullptr;  // null: of something that has none
        Completion* completion = nullptr;
        uint64_t bytes = 0;
    };

    void write(TierWrite& object, Deadline deadline, Completion& completion);
    void remove(TierRemove& object, Completion& completion);
    void move(const Move& move, Completion& completion);
    void commit_group();
    void answer(const Answer& to, const Result<>& result);

    /// Why it may not be written; nothing: it may.
    static Result<> check(const TierWrite& object);
    Result<> check_rank(const TierObject& object) const;
    /// Puts it into the group, or writes it alone. Answers what does not get into the group. `must`: as for provide_file().
    void stage(const RecordHeader& header, std::span<const std::byte> value, const Answer& to, bool must);
    /// Ends the group if this key is in it: then it is first written what came before.
    void separate(std::string_view tenant, std::string_view key);
    /// A removal must lie behind what it removes: the file that is appended to is older than one that has a single value.
    void stay_behind(uint32_t number);
    /// A current file with so much room. `must`: whatever the watermarks say.
    Result<> provide_file(uint64_t record_bytes, bool must);
    Result<> make_room(uint64_t bytes);
    /// Whether it may be evicted, and what all those take of the disk.
    bool may_go(const LogFile& file, Time now) const;
    uint64_t evictable_bytes() const;
    std::shared_ptr<LogFile> pick_victim() const;
    /// Writes again what of it was read since it was written: at most half of it, so that room is made.
    void keep_used(LogFile& file);
    /// Leaves behind what it must, and deletes it. False: the disk refused, and it is still there.
    bool retire(LogFile& file);
    /// Writes removals for what others of lie elsewhere.
    bool leave_removals(LogFile& file);
    void report_gone(LogFile& file);

    Disk& disk_;
    FileTable& files_;
    Index& index_;
    const LogTierOptions options_;
    Appender appender_;
    std::vector<Answer> answers_;  // of the group
    std::unordered_set<std::string> group_keys_;
    Time next_sweep_{};
    bool over_capacity_ = false;  // the current file was made although there was no room for it

    // values of a file that is about to go
    std::vector<TierObject> gone_;
    std::vector<std::string> gone_texts_;
};

}  // namespace mooncake::store::log
