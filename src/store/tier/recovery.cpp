// SPDX-License-Identifier: Apache-2.0
#include "store/tier/recovery.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "store/tier/scan.h"

namespace mooncake::store::log {

namespace {

class Recovery {
public:
    Recovery(Disk& disk, FileTable& files, Index& index) : disk_(disk), files_(files), index_(index) {}

    Result<> list() {
        MC_ASSIGN_OR_RETURN(const auto entries, disk_.list());
        for (const DiskEntry& entry : entries)
            if (const auto number = parse_file_name(entry.name)) numbers_.push_back(*number);
        std::sort(numbers_.begin(), numbers_.end());
        return {};
    }

    void scan_all(size_t threads_max) {
        std::vector<std::jthread> threads;
        for (size_t i = 1; i < std::min(threads_max, numbers_.size()); ++i) {
            auto thread = try_start_thread("mc-tier-scan", [this] { scan_some(); });
            if (!thread) break;
            threads.push_back(std::move(*thread));
        }
        scan_some();
    }

    /// Those that were not closed in order.
    void seal(Appender& appender) {
        const Lock lock(mutex_);
        for (auto& [file, scanned] : unsealed_) {
            file->end_block = file->synced_block = scanned.end_block;
            for (const FoundRecord& record : scanned.records)
                append_to_directory(file->directory, record.block, record.header, record.removals);
            appender.seal(*file);
        }
        for (const std::string& name : useless_) (void)disk_.remove(name);
    }

    uint32_t next_number() const { return numbers_.empty() ? 1 : numbers_.back() + 1; }
    TierFound found() {
        const Lock lock(mutex_);
        TierFound found = found_;
        found.files = files_.size();
        found.objects = index_.values();
        found.removals = index_.removals();
        return found;
    }

private:
    void scan_some() {
        for (size_t i = next_.fetch_add(1); i < numbers_.size(); i = next_.fetch_add(1)) scan(numbers_[i]);
    }

    void scan(uint32_t number) {
        const std::string name = file_name(number);
        auto opened = disk_.open(name);
        if (!opened) return leave_alone(number, opened.error(), true);
        const auto header = read_file_header(**opened);
        if (!header) {
            if (header.error().code() != Code::kCorrupt)
                return leave_alone(number, header.error(), header.error().code() == Code::kUnavailable);
            const Lock lock(mutex_);
            MC_LOG_WARNING("{} has no header, and goes: {}", name, header.error().to_string());
            ++found_.dropped;
            useless_.push_back(name);
            return;
        }
        if (header->number != number) return leave_alone(number, error(Code::kCorrupt, "it is number {}", header->number), false);
        auto file = std::make_shared<LogFile>(number, header->salt, std::move(*opened));
        file->bytes = file->disk->size();
        file->closed = true;
        file->ordered = header->version >= kOrderedVersion;
        ScannedFile scanned = scan_file(*file->disk, file->salt);
        take(std::move(file), std::move(scanned));
    }

    void take(std::shared_ptr<LogFile> file, ScannedFile scanned) {
        const Lock lock(mutex_);
        files_.add(file);
        found_.dropped += scanned.dropped;
        found_.unreadable += scanned.unreadable;
        if (scanned.unreadable != 0) {
            file->damaged = true;
            index_.set_floor(file->number);
        }
        for (const FoundRecord& record : scanned.records) {
            const RecordHeader header = record.parse(file->salt);
            if (header.kind == RecordKind::kValue) index_.merge({State::kValue, record.block, header, file.get()});
            for_each_removal(record.removals, [&](const Removal& removal) {
                Fact fact{.state = State::kRemoved, .block = record.block, .file = file.get()};
                fact.header.tenant = removal.tenant;
                fact.header.key = removal.key;
                fact.header.generation = removal.generation;
                index_.merge(fact);
            });
        }
        if (!scanned.has_directory && scanned.unreadable == 0) unsealed_.emplace_back(std::move(file), std::move(scanned));
    }

    void leave_alone(uint32_t number, const Error& why, bool may_be_ours) {
        const Lock lock(mutex_);
        MC_LOG_WARNING("{} is left alone: {}", file_name(number), why.to_string());
        ++found_.left_alone;
        if (!may_be_ours) return;
        files_.add_unreadable(number);
        index_.set_floor(number);
    }

    Disk& disk_;
    FileTable& files_;
    Index& index_;
    std::vector<uint32_t> numbers_;
    std::atomic<size_t> next_{0};
    Mutex mutex_;  // also of the index, while there is no log thread
    TierFound found_ MC_GUARDED_BY(mutex_);
    std::vector<std::pair<std::shared_ptr<LogFile>, ScannedFile>> unsealed_ MC_GUARDED_BY(mutex_);
    std::vector<std::string> useless_ MC_GUARDED_BY(mutex_);
};

}  // namespace

Result<TierFound> recover_files(Disk& disk, FileTable& files, Index& index, Appender& appender, size_t threads_max) {
    Recovery recovery(disk, files, index);
    MC_RETURN_IF_ERROR(recovery.list());
    recovery.scan_all(threads_max);
    recovery.seal(appender);
    appender.set_next_number(recovery.next_number());
    return recovery.found();
}

}  // namespace mooncake::store::log
