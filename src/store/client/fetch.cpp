// SPDX-License-Identifier: Apache-2.0
#include "store/client/fetch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/memory_probe.h"
#include "store/client/asked_keys.h"
#include "store/member/own_copies.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

// A replica is given up after these when there is another, or when there is none: a fixed time, and one for each byte.
constexpr Duration kHedge = 50ms, kPatience = 2s;
constexpr Duration kHedgePerByte = 10ns, kPatiencePerByte = 100ns;
constexpr uint64_t kRoundBytes = 1 << 30;  // leases are looked at between rounds
constexpr uint64_t kStep = 64 << 20;       // moved at one go; from near by nothing can stop that
constexpr uint64_t kHedgedStep = 4 << 20;  // given up, and read elsewhere, at one go
constexpr int kBehindMemory = 10;          // distance of a disk: farther than any memory

/// Brings the replicas into the order in which this client tries them: nearest first, equally near ones spread over the keys.
void order_replicas(ClientCore& core, SegmentLookup& segments, std::string_view key, Place& place) {
    if (place.replica_count < 2) return;
    std::array<std::pair<int, ReplicaLocation>, Place::kReplicasMax> order;
    const size_t count = place.replica_count;
    for (size_t i = 0; i < count; ++i) {
        const SegmentLookup::Found& found = segments.find(place.epoch, place.replicas[i].segment);
        const bool disk = found.segment && found.segment->spec.kind == SegmentKind::kDisk;
        order[i] = {found.distance + (disk ? kBehindMemory : 0), place.replicas[i]};
    }
    std::stable_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    size_t nearest = 1;
    while (nearest < count && order[nearest].first == order[0].first) ++nearest;
    const uint64_t turn = (std::hash<std::string_view>()(key) ^ core.pool.id.low) % nearest;
    std::rotate(order.begin(), order.begin() + static_cast<ptrdiff_t>(turn), order.begin() + static_cast<ptrdiff_t>(nearest));
    for (size_t i = 0; i < count; ++i) place.replicas[i] = order[i].second;
}

Place place_of(const GetReply& reply, const GetItem& item, Time asked) {
    Place place{.generation = item.generation,
                .length = item.length,
                .checksum = item.checksum,
                .epoch = reply.epoch,
                .lease_end = asked + reply.lease};
    place.replica_count = std::min<uint32_t>(item.replica_count, Place::kReplicasMax);
    for (size_t i = 0; i < place.replica_count; ++i) place.replicas[i] = reply.replicas[item.first_replica + i];
    return place;
}

/// False: its bytes are not there.
bool copy_from_file(const Block& block) {
    if (block.copier != nullptr) block.copier->begin(block.local, block.length);
    if (!copy_if_there(block.local, reinterpret_cast<const std::byte*>(block.remote), block.length)) return false;
    if (block.copier != nullptr) block.copier->passed(block.local, block.local, block.length);
    return true;
}

bool makes_sense(const GetReply& reply, size_t keys) {
    return reply.items.size() == keys && std::all_of(reply.items.begin(), reply.items.end(), [&](const GetItem& item) {
               return item.code != StoreCode::kOk ||
                      (item.generation != 0 && item.replica_count > 0 && item.first_replica <= reply.replicas.size() &&
                       item.replica_count <= reply.replicas.size() - item.first_replica);
           });
}

}  // namespace

void ask_places(ClientCore& core, std::span<const std::string_view> batch, std::span<Place> places, std::span<StoreCode> codes,
                std::span<const SegmentHandle> failed) {
    const AskedKeys asked_keys(batch);
    const std::span<const std::string_view> keys = asked_keys.keys();
    if (!asked_keys.all()) std::fill(codes.begin(), codes.end(), StoreCode::kInvalidParams);
    if (keys.empty()) return;
    const LeaseCache::Ticket ticket = core.leases.ticket();
    const Time asked = Clock::now();
    std::vector<uint32_t> unreachable;
    if (!core.pool.directory.all_reachable()) unreachable = core.pool.directory.unreachable(asked, failed);
    const KeysRequest request{.tenant = core.config.tenant, .keys = keys, .unreachable = unreachable};
    PoolAccess& pool = core.pool;
    const auto reply = pool.ask_twice(MasterCall::kGetReplicas, [&] { return pool.master->get_replicas(request, pool.rpc_deadline()); });
    if (!reply || !makes_sense(*reply, keys.size())) {
        const StoreCode why = reply ? StoreCode::kRpcFail : core.pool.code_of(reply.error());
        for (size_t i = 0; i < keys.size(); ++i) codes[asked_keys.place(i)] = why;
        return;
    }
    SegmentLookup segments(core.pool);
    for (size_t i = 0; i < keys.size(); ++i) {
        const GetItem& item = reply->items[i];
        Place& place = places[asked_keys.place(i)];
        codes[asked_keys.place(i)] = item.code;
        place = {};
        if (item.code != StoreCode::kOk) continue;
        place = place_of(*reply, item, asked);
        order_replicas(core, segments, keys[i], place);
    }
    core.leases.remember(batch, places, ticket);
}

size_t find_places(ClientCore& core, std::span<const std::string_view> keys, std::span<Place> places, std::span<StoreCode> codes,
                   Time now) {
    const size_t known = core.leases.find(keys, now, places);
    core.metrics.lease_hits.add(known);
    if (known == keys.size()) return known;
    core.metrics.lease_misses.add(keys.size() - known);
    if (known == 0) {
        ask_places(core, keys, places, codes);
        return 0;
    }
    std::vector<uint32_t> where;
    std::vector<std::string_view> wanted;
    for (uint32_t i = 0; i < keys.size(); ++i) {
        if (places[i]) continue;
        where.push_back(i);
        wanted.push_back(keys[i]);
    }
    std::vector<Place> found(wanted.size());
    std::vector<StoreCode> said(wanted.size(), StoreCode::kOk);
    ask_places(core, wanted, found, said);
    for (size_t i = 0; i < where.size(); ++i) {
        places[where[i]] = found[i];
        codes[where[i]] = said[i];
    }
    return known;
}

Fetch::Fetch(ClientCore& core, std::vector<std::string_view> keys)
    : core_(core), keys_(std::move(keys)), segments_(core.pool), items_(keys_.size()) {}

void Fetch::run() {
    // One value is read as often as many, and then two allocations would be felt.
    Place place;
    StoreCode code = StoreCode::kOk;
    if (keys_.size() == 1) return run({&place, 1}, {&code, 1});
    std::vector<Place> places(keys_.size());
    std::vector<StoreCode> codes(keys_.size(), StoreCode::kOk);
    run(places, codes);
}

void Fetch::run(std::span<Place> places, std::span<StoreCode> codes) {
    if (find_places(core_, keys_, places, codes, now_) < keys_.size()) now_ = Clock::now();
    for (size_t i = 0; i < keys_.size(); ++i) {
        items_[i].begin(places[i]);
        if (codes[i] == StoreCode::kOk) codes[i] = plan(i, places[i]);
        if (codes[i] != StoreCode::kOk) items_[i].finish(codes[i]);
    }
    go_on();
}

void Fetch::run_at(std::span<const Place> places) {
    may_ask_ = false;
    for (size_t i = 0; i < keys_.size(); ++i) {
        items_[i].begin(places[i]);
        if (const StoreCode code = plan(i, places[i]); code != StoreCode::kOk) items_[i].finish(code);
    }
    go_on();
}

void Fetch::go_on() {
    if (items_.size() == 1) return go_on_with_one();
    std::vector<uint32_t> pending;
    for (uint32_t i = 0; i < items_.size(); ++i)
        if (!items_[i].done()) pending.push_back(i);
    while (!pending.empty()) {
        if (core_.closing()) {
            for (const uint32_t i : pending) items_[i].finish(StoreCode::kUnavailableInCurrentStatus);
            return;
        }
        const std::vector<uint32_t> round = take_round(pending);
        if (may_ask_) renew_ending(round);
        step(round);
        for (const uint32_t i : round)
            if (!items_[i].done()) pending.push_back(i);
        if (!pending.empty()) now_ = Clock::now();
    }
}

void Fetch::go_on_with_one() {
    constexpr std::array<uint32_t, 1> kRound{0};
    while (!items_[0].done()) {
        if (core_.closing()) return items_[0].finish(StoreCode::kUnavailableInCurrentStatus);
        if (may_ask_) renew_ending(kRound);
        step(kRound);
        if (!items_[0].done()) now_ = Clock::now();
    }
}

std::vector<uint32_t> Fetch::take_round(std::vector<uint32_t>& pending) const {
    uint64_t total = 0;
    size_t count = 0;
    while (count < pending.size() && (count == 0 || total + bytes(pending[count]) <= kRoundBytes)) total += bytes(pending[count++]);
    if (count == pending.size()) return std::exchange(pending, {});
    const auto end = pending.begin() + static_cast<ptrdiff_t>(count);
    std::vector<uint32_t> round(pending.begin(), end);
    pending.erase(pending.begin(), end);
    return round;
}

void Fetch::renew_ending(std::span<const uint32_t> round) {
    uint64_t total = 0;
    for (const uint32_t i : round) total += bytes(i);
    const Time needed = now_ + std::chrono::nanoseconds(total);  // at a gigabyte a second
    std::vector<uint32_t> ending;
    for (const uint32_t i : round)
        if (items_[i].place().lease_end < needed && items_[i].may_renew()) ending.push_back(i);
    if (!ending.empty()) ask_again(ending, Why::kLeaseEnds);
}

void Fetch::step(std::span<const uint32_t> round) {
    std::vector<uint32_t> without, again;
    sort_into_groups(round, without);
    run_groups();
    groups_.clear();
    for (const uint32_t i : without) {
        if (may_ask_ && items_[i].may_restart()) again.push_back(i);
        else items_[i].give_up();
    }
    if (!again.empty()) ask_again(again, Why::kNothingLeft);
    settle_doubtful();
}

void Fetch::settle_doubtful() {
    if (doubtful_.empty()) return;
    std::vector<uint32_t> again;
    std::vector<std::pair<uint64_t, ReplicaLocation>> came_from;  // generation, where
    for (const uint32_t i : std::exchange(doubtful_, {})) {
        if (!may_ask_ || !items_[i].may_renew()) {
            items_[i].finish(StoreCode::kLeaseExpired);
            continue;
        }
        again.push_back(i);
        came_from.emplace_back(items_[i].place().generation, items_[i].chosen());
    }
    if (again.empty()) return;
    ask_again(again, Why::kLeaseEnds);
    for (size_t n = 0; n < again.size(); ++n) {
        // The same value at the same place: it was not touched in between, so what we have is right.
        FetchItem& item = items_[again[n]];
        const auto& [generation, from] = came_from[n];
        const auto now_at = item.place().all_replicas();
        if (!item.done() && item.place().generation == generation && std::find(now_at.begin(), now_at.end(), from) != now_at.end())
            item.finish(StoreCode::kOk);
    }
}

void Fetch::ask_again(std::span<const uint32_t> items, Why why) {
    std::vector<std::string_view> keys;
    for (const uint32_t i : items) keys.push_back(keys_[i]);
    std::vector<Place> places(keys.size());
    std::vector<StoreCode> codes(keys.size(), StoreCode::kOk);
    core_.leases.forget(keys);
    ask_places(core_, keys, places, codes, failed_);
    now_ = Clock::now();
    for (size_t n = 0; n < items.size(); ++n) {
        FetchItem& item = items_[items[n]];
        if (codes[n] == StoreCode::kOk) codes[n] = plan(items[n], places[n]);
        if (codes[n] != StoreCode::kOk) item.finish(codes[n]);
        else if (why == Why::kLeaseEnds) item.renew(places[n]);
        else item.restart(places[n]);
    }
}

bool Fetch::usable(const FetchItem& item, size_t replica) {
    if (item.tried(replica)) return false;
    const Place& place = item.place();
    const SegmentLookup::Found& found = segments_.find(place.epoch, place.replicas[replica].segment);
    if (!found.segment) return false;
    const uint64_t size = found.segment->spec.size, offset = place.replicas[replica].offset;
    const bool disk = found.segment->spec.kind == SegmentKind::kDisk;             // where offsets are names
    if (disk && !found.own && found.segment->spec.service.empty()) return false;  // its node answers nobody
    if (!disk && (offset > size || stored_bytes(place.length) > size - offset)) return false;
    if (found.own || core_.pool.directory.all_reachable() || core_.pool.directory.reachable(found.segment, Clock::now())) return true;
    note_failed(found.segment);
    return false;
}

bool Fetch::choose(FetchItem& item, bool& hedged) {
    size_t candidates = 0, best = 0;
    bool best_is_slow = false;
    const Place& place = item.place();
    for (size_t i = 0; i < place.replica_count; ++i) {
        if (!usable(item, i)) continue;
        const SegmentLookup::Found& found = segments_.find(place.epoch, place.replicas[i].segment);
        const bool slow = core_.slow.contains(found.segment->spec.id, now_);
        if (candidates++ == 0 || (best_is_slow && !slow)) {
            best = i;
            best_is_slow = slow;
        }
    }
    item.choose(best);
    hedged = candidates > 1;
    return candidates > 0;
}

void Fetch::sort_into_groups(std::span<const uint32_t> round, std::vector<uint32_t>& without) {
    for (const uint32_t i : round) {
        FetchItem& item = items_[i];
        if (item.done()) continue;
        bool hedged = false;
        if (!choose(item, hedged)) {
            without.push_back(i);
            continue;
        }
        const uint64_t epoch = item.place().epoch;
        const uint32_t number = item.chosen().segment;
        const auto same = [&](const Group& group) {
            return group.from.number == number && group.from.epoch == epoch && group.hedged == hedged;
        };
        auto group = groups_.empty() || !same(groups_.back()) ? std::find_if(groups_.begin(), groups_.end(), same) : groups_.end() - 1;
        if (group == groups_.end()) {
            groups_.push_back({.from = segments_.find(epoch, number), .hedged = hedged, .items = {}});
            group = groups_.end() - 1;
            group->items.reserve(round.size());
        }
        group->items.push_back(i);
    }
}

uint64_t Fetch::stored_at(const FetchItem& item, const SegmentLookup::Found& from) {
    const uint64_t base = from.own ? reinterpret_cast<uint64_t>(from.own->base) : from.segment->spec.base;
    return base + item.chosen().offset;
}

std::span<const uint32_t> Fetch::take_items(std::span<const uint32_t>& rest, uint64_t bytes_max) const {
    size_t count = 1;
    uint64_t total = bytes(rest[0]);
    while (count < rest.size() && total + bytes(rest[count]) <= bytes_max) total += bytes(rest[count++]);
    const auto items = rest.first(count);
    rest = rest.subspan(count);
    return items;
}

Move Fetch::move_for(const Group& group, std::span<const uint32_t> items, uint64_t before) {
    Move move{.segment = group.from.segment, .blocks = {}, .bytes = 0, .patience = {}, .outcome = {}};
    move.blocks.reserve(items.size());
    for (const uint32_t i : items) {
        add_blocks(i, stored_at(items_[i], group.from), move.blocks);
        move.bytes += bytes(i);
    }
    const uint64_t waits_for = before + move.bytes;
    move.patience = group.hedged ? kHedge + kHedgePerByte * waits_for : kPatience + kPatiencePerByte * waits_for;
    // One that failed is tried again at little cost to whoever happens to do it.
    if (const auto trial = core_.pool.directory.trial(group.from.segment))
        move.patience = std::min<Duration>(move.patience, *trial + kHedgePerByte * waits_for);
    return move;
}

void Fetch::run_groups() {
    std::vector<Move> moves;
    std::vector<Share> shares;  // of each move
    std::vector<Group*> own_disks, far_disks;
    for (Group& group : groups_) {
        if (group.from.segment->spec.kind == SegmentKind::kDisk) {
            (group.from.own ? own_disks : far_disks).push_back(&group);
            continue;
        }
        const bool near = !group.from.own && core_.pool.mover.near(group.from.segment->spec);
        if (group.from.own) copy_own(group);
        else if (near && groups_.size() == 1) copy_near(group);
        else {
            uint64_t before = 0;
            for (std::span<const uint32_t> rest = group.items; !rest.empty();) {
                const auto items = take_items(rest, group.hedged && !near ? kHedgedStep : kStep);
                before += moves.emplace_back(move_for(group, items, before)).bytes;
                shares.push_back({&group, items});
            }
        }
    }
    const auto is_over = [&](Move& move) {
        const Share& share = shares[static_cast<size_t>(&move - moves.data())];
        judge(*share.group, share.items, move.outcome);
    };
    if (!moves.empty()) core_.pool.mover.run(Direction::kRead, moves, is_over);
    for (Group* const group : own_disks) read_own_disk(*group);
    if (!far_disks.empty()) read_far_disks(far_disks);
}

void Fetch::copy_near(Group& group) {
    std::span<const uint32_t> rest = group.items;
    Result<> outcome;
    while (!rest.empty()) {
        const auto items = take_items(rest, kStep);
        if (outcome) {
            Move move = move_for(group, items);
            core_.pool.mover.run(Direction::kRead, {&move, 1});
            outcome = std::move(move.outcome);
        }
        judge(group, items, outcome);
    }
}

void Fetch::copy_own(const Group& group) {
    const Engine& engine = *core_.pool.engine;
    std::vector<Block> blocks;
    std::vector<uint32_t> under_way;  // what a device copies into
    OwnCopies by_device(engine, Direction::kRead);
    core_.metrics.memory_hits.add(group.items.size());
    for (const uint32_t i : group.items) {
        bool whole = true, there = true;
        blocks.clear();
        add_blocks(i, stored_at(items_[i], group.from), blocks);
        for (const Block& block : blocks) {
            const auto* const from = reinterpret_cast<const std::byte*>(block.remote);
            if (const MemoryKind kind = engine.memory_kind(block.local, block.length); kind != MemoryKind::kHost) {
                by_device.add(i, block, kind);
                whole = false;
            } else if (group.from.own->of_file) {
                there = there && copy_from_file(block);
            } else if (block.copier != nullptr) {
                block.copier->begin(block.local, block.length);
                block.copier->copy(block.local, from, block.length);
            } else {
                std::memcpy(block.local, from, block.length);
            }
        }
        if (!there) {
            MC_LOG_WARNING_EVERY(1s, "key {}: the file that it lies in was cut off", keys_[i]);
            items_[i].chosen_failed(StoreCode::kTransferFail);
        } else if (whole) {
            arrived(i);
        } else {
            under_way.push_back(i);
        }
    }
    by_device.flush();
    for (const auto& [i, error] : by_device.failures()) MC_LOG_WARNING_EVERY(1s, "key {}: {}", keys_[i], error.to_string());
    for (const uint32_t i : under_way) {
        const auto of_item = [i](const auto& failure) { return failure.first == i; };
        if (std::none_of(by_device.failures().begin(), by_device.failures().end(), of_item)) arrived(i);
        else items_[i].chosen_failed(StoreCode::kTransferFail);
    }
}

void Fetch::judge(Group& group, std::span<const uint32_t> items, const Result<>& outcome) {
    if (outcome) {
        if (!core_.pool.directory.all_reachable()) core_.pool.directory.worked(group.from.segment);
        core_.metrics.memory_hits.add(items.size());
        for (const uint32_t i : items) arrived(i);
        return;
    }
    const Error& error = outcome.error();
    const bool lagged = group.hedged && error.code() == Code::kTimedOut;
    const bool first = !std::exchange(group.blamed, true);  // one failure of the segment, however many moves it ends
    if (lagged) core_.slow.add(group.from.segment->spec.id, Clock::now());
    else if (first && core_.pool.segment_failed(group.from.segment, error)) note_failed(group.from.segment);
    for (const uint32_t i : items) items_[i].chosen_failed(StoreCode::kTransferFail);
}

void Fetch::arrived(uint32_t i) {
    FetchItem& item = items_[i];
    if (verified(item.place())) {
        const StoreCode code = verify(i);
        if (code == StoreCode::kOk) return item.finish(code);
        if (code != StoreCode::kChecksumMismatch) return item.chosen_failed(code);
        core_.metrics.checksum_failures.add();
        core_.leases.forget(keys_[i]);
        MC_LOG_WARNING_EVERY(1s, "key {}: a replica does not hold the value's bytes", keys_[i]);
        return item.chosen_failed(StoreCode::kChecksumMismatch);
    }
    if (Clock::now() < item.place().lease_end) return item.finish(StoreCode::kOk);
    doubtful_.push_back(i);
}

void Fetch::note_failed(const SegmentHandle& segment) {
    if (std::find(failed_.begin(), failed_.end(), segment) == failed_.end()) failed_.push_back(segment);
}

}  // namespace mooncake::store
