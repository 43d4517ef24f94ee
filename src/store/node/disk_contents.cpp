// SPDX-License-Identifier: Apache-2.0
#include "store/node/disk_contents.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

constexpr size_t kSweptAtOnce = 1024;
constexpr size_t kTextBytesMax = 256 << 10;  // of a part of a report, which is bounded
constexpr uint64_t kNameStep = 4096;         // offsets are names only; every value has room behind its own
constexpr Duration kRetry = 1s;

/// A part of a report, built from what the disk knows.
class Part {
public:
    Part(const SegmentSpec& spec, const std::function<bool(const HeldSegment&)>& hand_out) : spec_(spec), hand_out_(hand_out) {}

    bool add(std::span<const TierObject> objects) {
        for (const TierObject& object : objects) {
            objects_.push_back({.tenant = object.tenant,
                                .key = object.key,
                                .group = object.group,
                                .offset = next_,
                                .length = object.length,
                                .generation = object.generation,
                                .checksum = object.checksum,
                                .data_type = object.data_type,
                                .hard_pin = object.hard_pin,
                                .soft_pin_left = object.soft_pin_left,
                                .writer = object.writer});
            next_ += (stored_bytes(object.length) + kNameStep - 1) / kNameStep * kNameStep;
            text_bytes_ += object.key.size() + object.group.size() + object.tenant.size();
            if (text_bytes_ >= kTextBytesMax && !hand_over(/*more=*/true)) return false;
        }
        return objects_.empty() || hand_over(/*more=*/true);
    }
    bool hand_over(bool more) {
        const bool go_on = hand_out_({.segment = spec_, .objects = objects_, .writes = {}, .quarantined = {}, .exact = true, .more = more});
        objects_.clear();
        text_bytes_ = 0;
        return go_on;
    }

private:
    const SegmentSpec& spec_;
    const std::function<bool(const HeldSegment&)>& hand_out_;
    std::vector<HeldObject> objects_;
    size_t text_bytes_ = 0;
    uint64_t next_ = 0;
};

}  // namespace

TierObject DiskContents::Plan::object(uint64_t generation, uint64_t checksum, Time now) const {
    return {.tenant = tenant,
            .key = key,
            .group = group,
            .length = length,
            .generation = generation,
            .checksum = checksum,
            .data_type = data_type,
            .hard_pin = hard_pin,
            .soft_pin_left = std::max<Duration>(soft_pin_end - now, Duration::zero()),
            .writer = writer};
}

DiskContents::DiskContents(StorageTier& tier, SegmentSpec spec, TierMetrics& metrics, OnMissing on_missing)
    : tier_(tier), spec_(std::move(spec)), on_missing_(std::move(on_missing)), removals_(tier, metrics),
      thread_(start_thread("mc-disk-house", [this](const std::stop_token& stop) { run(stop); })) {}

bool DiskContents::add_segment(const SegmentSpec& segment) {
    if (!is_ours(segment.id)) return false;
    Lock lock(mutex_);
    return !std::exchange(lent_, true);
}

void DiskContents::remove_segment(const SegmentId& segment) {
    if (!is_ours(segment)) return;
    Lock lock(mutex_);
    lent_ = false;
    planned_.clear();  // what lies on the disk stays for the next time
}

bool DiskContents::lends() const {
    Lock lock(mutex_);
    return lent_;
}

size_t DiskContents::planned() const {
    Lock lock(mutex_);
    return planned_.size();
}

bool DiskContents::settled() const {
    Lock lock(mutex_);
    return following_ && !sweeping_;
}

// ---- what the master tells

void DiskContents::apply(const EventView& update, Time now) {
    std::vector<Planned> missing;
    std::vector<uint64_t> generations;
    {
        Lock lock(mutex_);
        if (update.reset) {
            streaming_ = true;
            following_ = false;
            round_ = !round_;
            told_.clear();
        }
        if (lent_) {
            for (const RangePlannedView& event : update.planned)
                if (is_ours(event.segment)) plan_locked(event, now);
            for (const RangeFilled& event : update.filled)
                if (is_ours(event.segment)) fill_locked(event, missing, generations);
            for (const RangeDropped& event : update.dropped)
                if (is_ours(event.segment)) drop_locked(event.generation);
        }
        if (update.complete && streaming_) complete_locked();
    }
    std::vector<TierObject> objects;
    for (size_t i = 0; i < missing.size(); ++i) objects.push_back(missing[i].plan.object(generations[i], 0, now));
    if (!objects.empty()) on_missing_(objects);
}

void DiskContents::plan_locked(const RangePlannedView& event, Time now) {
    if (event.key.empty()) return;  // only in quarantine: nothing that a disk has to know
    removals_.forget(event.generation);
    if (streaming_) told_.push_back(event.generation);
    if (sweeping_) fresh_.insert(event.generation);
    planned_[event.generation] = {.plan = {.tenant = std::string(event.tenant),
                                           .key = std::string(event.key),
                                           .group = std::string(event.group),
                                           .length = event.length,
                                           .data_type = event.data_type,
                                           .hard_pin = event.hard_pin,
                                           .soft_pin_end = event.soft_pin_left > Duration::zero() ? now + event.soft_pin_left : Time{},
                                           .writer = event.writer},
                                  .round = round_};
}

void DiskContents::fill_locked(const RangeFilled& event, std::vector<Planned>& missing, std::vector<uint64_t>& generations) {
    const auto found = planned_.find(event.generation);
    if (found == planned_.end()) return;
    std::string texts;
    if (!tier_.find(event.generation, texts) && !writing_.contains(event.generation)) {
        missing.push_back(std::move(found->second));
        generations.push_back(event.generation);
    }
    planned_.erase(found);
}

void DiskContents::drop_locked(uint64_t generation) {
    DiskRemovals::Removal removal{.generation = generation};
    if (const auto found = planned_.find(generation); found != planned_.end()) {
        removal.tenant = std::move(found->second.plan.tenant);
        removal.key = std::move(found->second.plan.key);
        planned_.erase(found);
        // Nothing of it was handed to the disk: there is nothing to remove.
        std::string texts;
        if (!writing_.contains(generation) && !tier_.find(generation, texts)) return;
    } else {
        std::string texts;
        const auto object = tier_.find(generation, texts);
        if (!object) return;
        removal.tenant = object->tenant;
        removal.key = object->key;
    }
    std::vector<DiskRemovals::Removal> removals;
    removals.push_back(std::move(removal));
    removals_.add(std::move(removals));
}

void DiskContents::complete_locked() {
    streaming_ = false;
    following_ = true;
    std::erase_if(planned_, [this](const auto& one) MC_REQUIRES(mutex_) { return one.second.round != round_; });
    if (!lent_) return;
    to_sweep_ = std::exchange(told_, {});
    sweeping_ = true;
    fresh_.clear();
    changed_.notify_all();
}

void DiskContents::stream_ended(bool) {
    Lock lock(mutex_);
    streaming_ = following_ = false;
    told_.clear();
    // Whoever comes next is told what is there: what its predecessor did not name is for that one to say.
    if (!to_sweep_) return;
    to_sweep_.reset();
    sweeping_ = false;
    fresh_.clear();
}

bool DiskContents::report(size_t entries_max, Time, const std::function<bool(const HeldSegment&)>& part) const {
    if (!lends()) return true;
    Part parts(spec_, part);
    const bool told = tier_.report(std::max<size_t>(entries_max, 1),
                                   [&](std::span<const TierObject> objects) { return parts.add(objects); });
    return told && parts.hand_over(/*more=*/false);
}

// ---- writes

std::optional<DiskContents::Plan> DiskContents::find_planned(uint64_t generation) const {
    Lock lock(mutex_);
    const auto found = planned_.find(generation);
    if (found == planned_.end()) return std::nullopt;
    return found->second.plan;
}

void DiskContents::begin_writes(std::span<const uint64_t> generations, const std::function<void(const std::vector<bool>&)>& submit) {
    Lock lock(mutex_);
    std::vector<bool> wanted(generations.size());
    for (size_t i = 0; i < generations.size(); ++i) {
        wanted[i] = lent_ && planned_.contains(generations[i]);
        if (wanted[i]) writing_.insert(generations[i]);
    }
    submit(wanted);
}

void DiskContents::ended_write(uint64_t generation, bool written, const Plan& plan, bool orphan) {
    Lock lock(mutex_);
    writing_.erase(generation);
    // A stream that is not complete yet decides about it with everything else.
    if (!written || !orphan || !following_) return;
    if (planned_.contains(generation)) return;
    std::vector<DiskRemovals::Removal> removals;
    removals.push_back({.tenant = plan.tenant, .key = plan.key, .generation = generation});
    removals_.add(std::move(removals));
}

// ---- tidying up

void DiskContents::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
}

void DiskContents::run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
        std::optional<std::vector<uint64_t>> told;
        {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, stop, kRetry, [this]() MC_NO_THREAD_ANALYSIS { return to_sweep_.has_value(); });
            told = std::exchange(to_sweep_, std::nullopt);
        }
        if (stop.stop_requested()) return;
        if (told) sweep(std::move(*told));
        Lock lock(mutex_);  // what is planned afterwards is behind it
        removals_.retry();
    }
}

void DiskContents::sweep(std::vector<uint64_t> told) {
    std::sort(told.begin(), told.end());
    std::vector<DiskRemovals::Removal> unnamed;
    tier_.report(kSweptAtOnce, [&](std::span<const TierObject> objects) {
        for (const TierObject& object : objects)
            if (!std::binary_search(told.begin(), told.end(), object.generation))
                unnamed.push_back({std::string(object.tenant), std::string(object.key), object.generation});
        return true;
    });
    Lock lock(mutex_);
    // Another stream has begun, whose master was told what is there: that one decides.
    if (following_ && !to_sweep_) {
        std::erase_if(unnamed, [this](const DiskRemovals::Removal& one) MC_REQUIRES(mutex_) { return fresh_.contains(one.generation); });
        if (!unnamed.empty()) MC_LOG_INFO("{} values on the disk are not known to the master, and go", unnamed.size());
        removals_.add(std::move(unnamed));
    }
    sweeping_ = to_sweep_.has_value();
    if (!sweeping_) fresh_.clear();
}

}  // namespace mooncake::store
