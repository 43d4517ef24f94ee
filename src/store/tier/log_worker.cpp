// SPDX-License-Identifier: Apache-2.0
#include "store/tier/log_worker.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "store/tier/arena.h"
#include "store/tier/scan.h"

namespace mooncake::store::log {

namespace {

constexpr Duration kSweepInterval = 1s;
constexpr uint64_t kSweepAtOnce = 4096;  // removals
constexpr Duration kRetryInterval = 1s;
constexpr uint64_t kKeptBytes = 8 << 20;  // are read before they are written again

std::string joined(std::string_view tenant, std::string_view key) { return std::string(tenant).append(1, '\0').append(key); }

std::vector<Entry*> entries_of(const LogFile& file) {
    std::vector<Entry*> entries;
    for (Entry* entry = file.first_value; entry != nullptr; entry = entry->next) entries.push_back(entry);
    for (Entry* entry = file.first_removal; entry != nullptr; entry = entry->next) entries.push_back(entry);
    return entries;
}

}  // namespace

LogWorker::LogWorker(Disk& disk, FileTable& files, Index& index, const LogTierOptions& options)
    : disk_(disk), files_(files), index_(index), options_(options), appender_(disk, files, index, options.file_bytes) {}

// requests ---------------------------------------------------------------------------------------------------------------

void LogWorker::carry_out(std::span<Request> requests) {
    for (Request& request : requests) {
        for (TierWrite& object : request.writes) write(object, request.deadline, *request.completion);
        for (TierRemove& object : request.removes) remove(object, *request.completion);
        if (request.move != nullptr) move(*request.move, *request.completion);
        if (request.retire != nullptr) {
            commit_group();
            const bool gone = !request.retire->closed || retire(*request.retire);
            answer({nullptr, request.completion, 0}, gone ? Result<>() : fail(Code::kUnavailable, "not deleted"));
        }
    }
    commit_group();
    tidy_up();
}

void LogWorker::answer(const Answer& to, const Result<>& result) {
    if (to.result != nullptr) *to.result = result ? Code::kOk : result.error().code();
    if (result) return to.completion->succeed(to.bytes);
    to.completion->fail(result.error());
}

Result<> LogWorker::check(const TierWrite& write) {
    const TierObject& object = write.object;
    if (object.key.empty() || object.key.size() > kTierKeyBytesMax)
        return fail(Code::kInvalidArgument, "a key of {} bytes", object.key.size());
    if (object.tenant.size() > kTierNameBytesMax || object.group.size() > kTierNameBytesMax)
        return fail(Code::kInvalidArgument, "a name is too long");
    if (object.length == 0 || object.length > kTierValueBytesMax || object.length != write.value.size()) {
        return fail(Code::kInvalidArgument, "a value of {} bytes, {} were given", object.length, write.value.size());
    }
    return {};
}

Result<> LogWorker::check_rank(const TierObject& object) const {
    const Entry* known = index_.look(object.tenant, object.key);
    if (known == nullptr || known->generation < object.generation) return {};
    if (known->generation > object.generation) return fail(Code::kStale, "'{}' is newer", object.key);
    if (known->state == State::kValue) return fail(Code::kAlreadyExists, "'{}' is there", object.key);
    if (known->state == State::kRemoved && known->in_doubt()) return fail(Code::kStale, "'{}' may be newer", object.key);
    return {};
}

void LogWorker::write(TierWrite& object, Deadline deadline, Completion& completion) {
    const Answer to{&object.result, &completion, object.object.length};
    if (auto wrong = check(object); !wrong) return answer(to, wrong);
    if (deadline.passed()) return answer(to, fail(Code::kTimedOut, "'{}' was queued for too long", object.object.key));
    separate(object.object.tenant, object.object.key);
    if (auto outranked = check_rank(object.object); !outranked) return answer(to, outranked);
    stage(Appender::header_of(object.object), object.value, to, false);
}

void LogWorker::stage(const RecordHeader& header, std::span<const std::byte> value, const Answer& to, bool must) {
    if (appender_.is_alone(header.bytes())) {
        commit_group();
        auto done = make_room(appender_.new_file_bytes(header.bytes()));
        if (done) {
            done = appender_.write_alone(header, value);
            ++commits;
        }
        if (done) {
            written_bytes += header.bytes();
        } else {
            ++errors;
        }
        return answer(to, done);
    }
    auto done = provide_file(header.bytes(), must);
    if (done) done = appender_.stage(header, value);
    if (!done) {
        ++errors;
        // Part of it may be in the group, which still needs its texts: they are the caller's, who may take them back once he is answered.
        if (appender_.has_staged()) commit_group();
        return answer(to, done);
    }
    answers_.push_back(to);
    group_keys_.insert(joined(header.tenant, header.key));
}

void LogWorker::remove(TierRemove& object, Completion& completion) {
    const Answer to{&object.result, &completion, 0};
    if (object.key.empty() || object.key.size() > kTierKeyBytesMax || object.tenant.size() > kTierNameBytesMax) {
        return answer(to, fail(Code::kInvalidArgument, "no such key"));
    }
    separate(object.tenant, object.key);
    const Entry* known = index_.look(object.tenant, object.key);
    uint64_t generation = object.generation;
    if (known != nullptr) {
        const bool is_gone = known->state == State::kRemoved && !known->in_doubt();
        if (is_gone || (generation != 0 && known->generation > generation)) return answer(to, {});
        if (generation == 0) generation = std::max(known->generation, known->doubt);
        stay_behind(known->high);
    } else if (!index_.has_floor() || generation == 0) {
        return answer(to, {});  // there is nothing of it
    }
    const Removal removal{object.tenant, object.key, generation};
    if (auto done = provide_file(round_to_blocks(removal_bytes(removal) + kFixedHeaderBytes), true); !done) {
        ++errors;
        known = index_.look(object.tenant, object.key);  // what was tried may have changed it
        if (known != nullptr) index_.hide(object.tenant, object.key, *known->file);
        return answer(to, done);
    }
    appender_.stage(removal);
    answers_.push_back(to);
    group_keys_.insert(joined(object.tenant, object.key));
}

void LogWorker::stay_behind(uint32_t number) {
    if (appender_.current() == nullptr || appender_.current()->number >= number) return;
    commit_group();
    appender_.close_current();
}

void LogWorker::move(const Move& move, Completion& completion) {
    const Answer to{nullptr, &completion, move.header.bytes()};
    RecordHeader header = move.header;
    lay_out(header);
    separate(header.tenant, header.key);
    // Whatever the capacity: the file it comes from frees more than this takes. Before the look, as it may evict.
    if (auto room = provide_file(header.bytes(), true); !room) return answer(to, room);
    const Entry* known = index_.look(header.tenant, header.key);
    if (known == nullptr || known->state != State::kValue || known->file != move.file || known->block != move.block) return answer(to, {});
    moved_bytes += header.bytes();
    stage(header, move.value, to, true);
}

void LogWorker::separate(std::string_view tenant, std::string_view key) {
    if (group_keys_.contains(joined(tenant, key))) commit_group();
}

void LogWorker::commit_group() {
    if (appender_.has_staged()) {
        const uint64_t bytes = appender_.staged_bytes();
        const auto committed = appender_.commit();
        ++commits;
        if (committed) {
            written_bytes += bytes;
        } else {
            errors += answers_.size();
        }
        for (const Answer& to : answers_) answer(to, committed);
    }
    answers_.clear();
    group_keys_.clear();
}

// room -------------------------------------------------------------------------------------------------------------------

Result<> LogWorker::provide_file(uint64_t record_bytes, bool must) {
    if (appender_.staged_bytes() + record_bytes > options_.group_bytes_max) commit_group();
    if (over_capacity_ && !must) {
        // What was made beyond the capacity is for moves and removals, or others would fill it as fast as these make room.
        commit_group();
        MC_RETURN_IF_ERROR(make_room(0));
        over_capacity_ = false;
    }
    if (appender_.fits(record_bytes)) return {};
    commit_group();
    const uint64_t bytes = appender_.new_file_bytes(record_bytes);
    if (auto room = make_room(bytes); !room) {
        if (!must) return room;
        over_capacity_ = true;
    }
    if (appender_.fits(record_bytes)) return {};  // behind what was kept
    auto rolled = appender_.roll(bytes);
    if (rolled || rolled.error().code() != Code::kNoSpace) return rolled;
    // The disk has less room than we may use.
    auto victim = pick_victim();
    if (victim == nullptr || !retire(*victim)) return rolled;
    victim = nullptr;  // its bytes are free when nobody has it open
    return appender_.current() != nullptr ? Result<>() : appender_.roll(bytes);
}

Result<> LogWorker::make_room(uint64_t bytes) {
    const auto no_room = [&] {
        return fail(Code::kNoSpace, "{} of {} bytes are used, {} are needed", files_.bytes(), options_.capacity_bytes, bytes);
    };
    // For what has no place even then nothing goes.
    if (files_.bytes() - std::min(files_.bytes(), evictable_bytes()) + bytes > options_.capacity_bytes) return no_room();
    const auto limit = [&](double watermark) { return static_cast<uint64_t>(static_cast<double>(options_.capacity_bytes) * watermark); };
    if (files_.bytes() + bytes > limit(options_.high_watermark) || index_.values() >= options_.objects_max) {
        while (files_.bytes() + bytes > limit(options_.low_watermark) || index_.values() >= options_.objects_max) {
            const auto victim = pick_victim();
            if (victim == nullptr) break;
            if (options_.eviction == TierEviction::kLru) keep_used(*victim);
            (void)retire(*victim);  // one that stays is not picked again soon
        }
    }
    if (files_.bytes() + bytes <= options_.capacity_bytes && index_.values() < options_.objects_max) return {};
    return no_room();
}

bool LogWorker::may_go(const LogFile& file, Time now) const {
    return options_.eviction != TierEviction::kNone && file.closed && file.pinned == 0 && file.retire_not_before <= now;
}

uint64_t LogWorker::evictable_bytes() const {
    uint64_t sum = 0;
    const Time now = Clock::now();
    for (const auto& file : files_.all()) sum += may_go(*file, now) ? file->bytes.load() : 0;
    return sum;
}

std::shared_ptr<LogFile> LogWorker::pick_victim() const {
    const Time now = Clock::now();
    for (const auto& file : files_.all())  // the oldest
        if (may_go(*file, now)) return file;
    return nullptr;
}

void LogWorker::keep_used(LogFile& file) {
    uint64_t left = file.bytes / 2;
    std::vector<const Entry*> used;
    for (const Entry* entry = file.first_value; entry != nullptr; entry = entry->next) {
        const uint64_t bytes = entry->record_bytes();
        if (!std::atomic_ref(entry->used).load(std::memory_order_relaxed) || bytes > left || appender_.is_alone(bytes)) continue;
        left -= bytes;
        used.push_back(entry);
    }
    std::vector<Pages> values;  // until they are written
    const auto commit = [&] {
        if (!appender_.has_staged()) return true;
        ++commits;
        const bool done = appender_.commit().has_value();
        values.clear();
        return done;
    };
    for (const Entry* entry : used) {
        const RecordHeader header = Appender::header_of(entry->object(wall_clock_ms()));
        RecordHeader there = header;
        there.payload_at = entry->payload_at;
        if (appender_.staged_bytes() + header.bytes() > kKeptBytes && !commit()) return;
        if (!appender_.fits(header.bytes()) && (!commit() || !appender_.roll(appender_.new_file_bytes(header.bytes())))) return;
        auto pages = Pages::create(round_to_blocks(header.payload_bytes()));
        if (!pages) break;
        const auto payload = pages->bytes().first(header.payload_bytes());
        if (!read_value(*file.disk, entry->block, there, payload)) continue;
        if (!appender_.stage(header, payload.first(header.length))) break;
        moved_bytes += header.bytes();
        values.push_back(std::move(*pages));
    }
    (void)commit();
}

bool LogWorker::retire(LogFile& leaving) {
    const auto file = leaving.shared_from_this();
    report_gone(*file);
    auto done = leave_removals(*file) ? Result<>() : fail(Code::kUnavailable, "removals could not be written");
    if (done) done = disk_.remove(file_name(file->number));
    if (!done && done.error().code() == Code::kNotFound) done = {};
    if (done) done = disk_.sync_names();
    if (!done) {
        MC_LOG_WARNING_EVERY(10s, "{} cannot be deleted: {}", file_name(file->number), done.error().to_string());
        file->retire_not_before = Clock::now() + kRetryInterval;
        std::erase_if(gone_, [&](const TierObject& object) { return index_.find(object.tenant, object.key).has_value(); });
    } else {
        for (Entry* entry : entries_of(*file)) index_.forget(*entry);
        files_.remove(file->number);
    }
    if (!gone_.empty() && options_.observer != nullptr) options_.observer->on_gone(gone_);
    evicted += gone_.size();
    return done.has_value();
}

bool LogWorker::leave_removals(LogFile& file) {
    std::vector<Entry*> needed;
    for (Entry* entry : entries_of(file))
        if (files_.any_other(entry->low, entry->high, file.number)) needed.push_back(entry);
    if (needed.empty()) return true;
    const auto is_ahead = [&](const Entry* entry) { return files_.any_other(appender_.current()->number + 1, entry->high, file.number); };
    if (appender_.current() != nullptr && std::any_of(needed.begin(), needed.end(), is_ahead)) appender_.close_current();
    if (appender_.current() == nullptr && !appender_.roll(appender_.new_file_bytes(kBlockBytes))) return false;
    for (size_t done = 0; done < needed.size();) {
        for (; done < needed.size() && appender_.staged_bytes() < kRemovalsBytesMax; ++done) {
            const Entry& entry = *needed[done];
            appender_.stage(Removal{entry.tenant(), entry.key(), std::max(entry.generation, entry.doubt)});
        }
        ++commits;
        if (!appender_.commit()) return false;
    }
    return true;
}

void LogWorker::report_gone(LogFile& file) {
    gone_.clear();
    gone_texts_.clear();
    gone_texts_.reserve(file.values);
    const uint64_t now_ms = wall_clock_ms();
    for (const Entry* entry = file.first_value; entry != nullptr; entry = entry->next) {
        TierObject object = entry->object(now_ms);
        const std::string& text = gone_texts_.emplace_back(entry->texts(), entry->memory_bytes() - sizeof(Entry));
        object.tenant = std::string_view(text).substr(0, entry->tenant_bytes);
        object.group = std::string_view(text).substr(entry->tenant_bytes, entry->group_bytes);
        object.key = std::string_view(text).substr(entry->tenant_bytes + entry->group_bytes);
        gone_.push_back(object);
    }
}

void LogWorker::tidy_up() {
    const Time now = Clock::now();
    bool any = false;
    for (const auto& file : files_.all()) {
        if (file->closed && file->values == 0 && file->retire_not_before <= now) any |= retire(*file);
    }
    if ((any && index_.removals() <= kSweepAtOnce) || now >= next_sweep_) sweep();
}

void LogWorker::sweep() {
    next_sweep_ = Clock::now() + kSweepInterval;
    if (index_.removals() == 0) return;
    for (const auto& file : files_.all()) {
        for (Entry* entry = file->first_removal; entry != nullptr;) {
            Entry* const next = entry->next;
            if (entry->state == State::kRemoved && !entry->in_doubt() && !files_.any_other(entry->low, entry->high, file->number))
                index_.forget(*entry);
            entry = next;
        }
    }
}

void LogWorker::finish() { appender_.close_current(); }

}  // namespace mooncake::store::log
