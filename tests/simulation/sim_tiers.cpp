// SPDX-License-Identifier: Apache-2.0
// What a node does with its disk: it writes what it is ordered to, tells what it has after a restart, and gives up what it has no room for.
#include "tests/simulation/sim_node.h"

#include <algorithm>
#include <utility>

namespace mooncake::store::simulation {

void SimNode::lose_disk() {
    if (endpoint.up || !has_disk()) return;
    world_.note("node{} loses its disk with {} values", number_, disk_.size());
    for (const auto& [generation, record] : disk_) master_.lost_on_disk(generation);
    disk_.clear();
    ++disks_;
}

/// In any case: what its master knows already is counted once.
void SimNode::add_disk_parts(Report& report, size_t entries_max) {
    if (!has_disk()) return;
    report.parts.push_back({.exact = true, .disk = true});
    uint64_t name = 0;
    for (const auto& [generation, record] : disk_) {
        if (report.parts.back().objects.size() == entries_max) {
            report.parts.back().more = true;
            report.parts.push_back({.exact = true, .disk = true});
        }
        HeldObject held{.offset = name += 4096, .length = record.length, .generation = generation, .checksum = record.checksum};
        report.parts.back().objects.push_back({record.tenant, record.key, record.group, held});
    }
}

void SimNode::remove_from_disk(uint64_t generation) {
    disk_plans_.erase(generation);
    disk_.erase(generation);
    gone_.erase(generation);
}

void SimNode::hear_of_disk(const EventUpdate& update) {
    if (!has_disk()) return;
    if (update.reset) {
        disk_told_.clear();
        disk_streaming_ = true;
    }
    for (const RangePlanned& planned : update.planned) {
        if (planned.segment != disk_spec_.id) continue;
        disk_plans_[planned.generation] = {planned.tenant, planned.key, planned.group, planned.length, 0};
        gone_.erase(planned.generation);
        if (disk_streaming_) disk_told_.insert(planned.generation);
    }
    for (const RangeFilled& filled : update.filled) {
        if (filled.segment != disk_spec_.id || disk_.contains(filled.generation)) continue;
        if (const auto plan = disk_plans_.find(filled.generation); plan != disk_plans_.end()) gone_[filled.generation] = plan->second;
    }
    for (const RangeDropped& dropped : update.dropped)
        if (dropped.segment == disk_spec_.id) remove_from_disk(dropped.generation);
    if (!update.complete || !std::exchange(disk_streaming_, false)) return;
    std::erase_if(disk_, [&](const auto& one) { return !disk_told_.contains(one.first); });
    std::erase_if(disk_plans_, [&](const auto& one) { return !disk_told_.contains(one.first); });
}

void SimNode::evict_from_disk() {
    if (!endpoint.up || disk_.empty()) return;
    for (uint64_t count = 1 + world_.random.below(disk_.size()); count != 0; --count) {
        const auto oldest = disk_.begin();
        world_.note("node{} gives up {} of generation {}", number_, oldest->second.key, oldest->first);
        master_.lost_on_disk(oldest->first);
        gone_[oldest->first] = oldest->second;
        disk_.erase(oldest);
        ++gone;
    }
    tell_gone();
}

/// Over a connection, one call at a time: not lost while both live.
void SimNode::tell_gone() {
    if (telling_ || gone_.empty() || view_ != master_.view()) return;
    telling_ = true;
    const Duration cut = std::max<Duration>(endpoint.cut_until - world_.now(), 0s);
    world_.after(cut + world_.between(1ms, 100ms), [this, id = id_, life = endpoint.life, view = view_] {
        if (life != endpoint.life) return;
        telling_ = false;
        if (view != view_ || view != master_.view() || !master_.endpoint.up || endpoint.cut_until > world_.now()) return;
        std::vector<GoneReplica> items;
        const std::map<uint64_t, Record> told = std::exchange(gone_, {});
        for (const auto& [generation, record] : told) items.push_back({record.tenant, record.key, generation});
        master_.run(
            [&](Transaction& t) { return replicas_gone(t, {.client = id, .segment = disk_spec_.id, .items = items}, world_.now()); });
    });
}

void SimNode::take_tier_order(const CopyOrder& order) {
    auto work = std::make_shared<Work>();
    work->order = order;
    works_[order.task] = work;
    const SegmentTable& segments = master_.state().segments();
    if (!segments.exists(order.source.segment) || !segments.exists(order.targets[0].segment))
        return end_tier_work(work, StoreCode::kReplicaIsGone);
    const bool promotion = segments[order.source.segment].spec.id == disk_spec_.id;
    const Duration delay = world_.chance(0.1) ? world_.between(100ms, 4s) : world_.between(1ms, 60ms);
    world_.after(delay, [this, work, promotion, life = endpoint.life] {
        if (work->stopped || life != endpoint.life) return;
        if (promotion) promote(work, *this);
        else offload(work);
    });
}

void SimNode::offload(const std::shared_ptr<Work>& work) {
    const CopyOrder& order = work->order;
    const auto plan = disk_plans_.find(order.generation);
    if (plan == disk_plans_.end()) return end_tier_work(work, StoreCode::kObjectNotFound);
    if (world_.chance(0.03)) return end_tier_work(work, StoreCode::kWriteFail);
    if (!read(order.source.offset, order.length, order.generation)) {
        const bool wanted = view_ == master_.view() && master_.state().find_tier_copy(order.task) != 0;
        if (wanted && !master_.doubtful(order.generation))
            world_.violated(format_text("an offload of generation {} had other bytes as its source", order.generation));
        return end_tier_work(work, StoreCode::kChecksumMismatch);
    }
    Record record = plan->second;
    record.checksum = order.checksum;
    disk_[order.generation] = std::move(record);
    ++offloads;
    end_tier_work(work, StoreCode::kOk);
    uint64_t used = 0;
    for (const auto& [generation, one] : disk_) used += one.length;
    if (used > disk_size_) evict_from_disk();
}

void SimNode::promote(const std::shared_ptr<Work>& work, SimNode& to) {
    const CopyOrder& order = work->order;
    if (!disk_.contains(order.generation)) return end_tier_work(work, StoreCode::kObjectNotFound);
    to.land(order.targets[0].offset, order.length, order.generation);
    ++promotions;
    end_tier_work(work, world_.chance(0.03) ? StoreCode::kTransferFail : StoreCode::kOk);
}

void SimNode::end_tier_work(const std::shared_ptr<Work>& work, StoreCode code) {
    work->stopped = true;
    const uint64_t window = world_.chance(0.1) ? 1 << (20 + world_.random.below(4)) : 0;
    for (int i = 0; i < 3; ++i)
        world_.after(i * 200ms, [this, work, code, window, id = id_, life = endpoint.life, view = view_] {
            if (life != endpoint.life || view != view_) return;
            world_.send(endpoint, master_.endpoint, [this, work, code, window, id, view] {
                if (view == master_.view()) master_.end_copies(id, {{.task = work->order.task, .code = code}}, window);
            });
        });
}

}  // namespace mooncake::store::simulation
