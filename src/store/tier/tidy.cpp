// SPDX-License-Identifier: Apache-2.0
#include "store/tier/tidy.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "store/tier/arena.h"

namespace mooncake::store::log {

namespace {

constexpr Duration kInterval = 200ms;
constexpr Duration kStandBack = 5ms;
constexpr Duration kStuckInterval = 1s;
constexpr uint64_t kRemovalsFew = 65'536;
constexpr size_t kMovedTogether = 64;
constexpr uint64_t kMovedBytes = 8 << 20;  // or one value

}  // namespace

Tidy::Tidy(const FileTable& files, const Index& index, const Reader& reader, const LogTierOptions& options, Post post)
    : files_(files), index_(index), reader_(reader), options_(options), post_(std::move(post)) {}

void Tidy::run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
        if (run_once(stop)) continue;
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, stop, kInterval, [] { return false; });
    }
}

std::shared_ptr<LogFile> Tidy::pick() const {
    const double used = static_cast<double>(files_.bytes());
    const bool full = used > static_cast<double>(options_.capacity_bytes) * options_.low_watermark;
    const bool held_back = index_.removals() > std::max(kRemovalsFew, index_.values() / 4);
    std::shared_ptr<LogFile> best;
    double best_share = 0.5;
    for (const auto& file : files_.all()) {
        if (!file->closed || (file == stuck_ && Clock::now() < stuck_until_)) continue;
        if (file->damaged || held_back) return file;  // the oldest of them
        const double share = static_cast<double>(file->live_bytes) / static_cast<double>(std::max<uint64_t>(file->bytes, 1));
        if (!full || share >= best_share) continue;
        best_share = share;
        best = file;
    }
    return best;
}

bool Tidy::run_once(const std::stop_token& stop) {
    const auto file = pick();
    if (file == nullptr) return false;
    if (empty(file, stop)) {
        stuck_ = nullptr;
    } else {
        stuck_ = file;
        stuck_until_ = Clock::now() + kStuckInterval;
    }
    return true;
}

bool Tidy::empty(const std::shared_ptr<LogFile>& file, const std::stop_token& stop) {
    const ScannedFile scanned = scan_file(*file->disk, file->salt);
    for (std::span<const FoundRecord> rest(scanned.records); !rest.empty();) {
        const auto bytes = stop.stop_requested() ? std::nullopt : move_some(file, rest);
        if (!bytes) return false;
        pause(*bytes, stop);
    }
    // What counts in it all the same could not be read, and goes with it.
    Completion completion;
    completion.add(1);
    if (!post_({.retire = file, .completion = &completion})) return false;
    completion.wait(Deadline::never());
    return !completion.failed();
}

std::optional<uint64_t> Tidy::move_some(const std::shared_ptr<LogFile>& file, std::span<const FoundRecord>& records) {
    uint64_t bytes = 0;
    std::vector<Pages> values;
    std::vector<Move> moves;
    values.reserve(kMovedTogether);
    moves.reserve(kMovedTogether);
    for (; !records.empty() && moves.size() < kMovedTogether && bytes < kMovedBytes; records = records.subspan(1)) {
        const FoundRecord& found = records.front();
        const RecordHeader header = found.parse(file->salt);
        if (header.kind != RecordKind::kValue) continue;
        const auto counts = index_.find(header.tenant, header.key);
        if (!counts || counts->file != file || counts->block != found.block) continue;
        auto pages = Pages::create(round_to_blocks(header.payload_bytes()));
        if (!pages) return std::nullopt;
        const auto payload = pages->bytes().first(header.payload_bytes());
        const auto read = read_value(*file->disk, found.block, header, payload);
        if (!read && read.error().code() == Code::kCorrupt) continue;
        if (!read) return std::nullopt;
        bytes += header.bytes();
        moves.push_back({header, payload.first(header.length), file.get(), found.block});
        values.push_back(std::move(*pages));
    }
    Completion completion;
    bool posted = true;
    for (const Move& one : moves) {
        completion.add(1);
        posted = post_({.move = &one, .completion = &completion});
        if (!posted) {
            completion.fail(error(Code::kCancelled, "closed"));
            break;
        }
    }
    completion.wait(Deadline::never());
    return posted && !completion.failed() ? std::optional(bytes) : std::nullopt;
}

void Tidy::pause(uint64_t bytes, const std::stop_token& stop) {
    const auto time = std::chrono::duration<double>(static_cast<double>(bytes) /
                                                    static_cast<double>(std::max<uint64_t>(options_.moved_bytes_per_s, 1)));
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, std::chrono::duration_cast<Duration>(time), [] { return false; });
    while (reader_.is_pressed() && !stop.stop_requested()) wake_.wait_for(lock, stop, kStandBack, [] { return false; });
}

}  // namespace mooncake::store::log
