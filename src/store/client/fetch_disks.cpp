// SPDX-License-Identifier: Apache-2.0
// How a Fetch reads what lies on disks: its own process's straight from there, others' by way of their staging memory (docs/tiers.md).
#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "store/client/disk_extents.h"
#include "store/client/fetch.h"
#include "store/client/node_calls.h"
#include "store/member/any_memory.h"
#include "store/protocol/messages_tiers.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

// As for memory, but a disk may take its time.
constexpr Duration kHedge = 200ms, kPatience = 2s;
constexpr Duration kHedgePerByte = 10ns, kPatiencePerByte = 100ns;
constexpr uint64_t kStraight = 256 << 10;     // pieces of that length are read one by one, shorter ones together with their neighbours
constexpr uint64_t kWindow = 4 << 20;         // of a value, read at one go to be spread afterwards
constexpr uint64_t kWindowsBytes = 32 << 20;  // of all windows at a time
constexpr uint64_t kAskedBytes = 128 << 20;   // of one node at a time
constexpr size_t kAskedItems = 1024;
constexpr size_t kAskedTextBytes = 512 << 10;  // a node takes messages of twice that
constexpr Duration kPauseMin = 1ms, kPauseMax = 50ms;

StoreCode reader_code(StoreCode code) {
    switch (code) {
        case StoreCode::kObjectNotFound:
        case StoreCode::kSegmentNotFound: return StoreCode::kObjectNotFound;
        case StoreCode::kChecksumMismatch:
        case StoreCode::kNoAvailableHandle:
        case StoreCode::kUnavailableInCurrentStatus: return code;
        default: return StoreCode::kTransferFail;
    }
}

}  // namespace

Duration Fetch::disk_patience(const Group& group) const {
    uint64_t total = 0;
    for (const uint32_t i : group.items) total += bytes(i);
    const Duration patience = group.hedged ? kHedge + kHedgePerByte * total : kPatience + kPatiencePerByte * total;
    const auto trial = core_.pool.directory.trial(group.from.segment);
    return trial ? std::min<Duration>(patience, *trial + kHedgePerByte * total) : patience;
}

// ---- of this process

/// Some bytes of a value between the disk and pieces that are too short, or a device's.
struct Fetch::OwnWindow {
    uint32_t item = 0;
    uint64_t begin = 0, end = 0;
    std::vector<Block> blocks;  // their remote side counts from `begin`
    std::unique_ptr<std::byte[]> bytes;
};

void Fetch::read_own_disk(Group& group) {
    const Deadline deadline = Deadline::after(disk_patience(group));
    std::vector<StoreCode> codes(items_.size(), StoreCode::kOk);
    std::vector<DiskRead> straight;
    std::vector<uint32_t> item_of;
    std::vector<OwnWindow> windows;
    for (const uint32_t i : group.items) {
        std::vector<Block> blocks;
        add_blocks(i, 0, blocks);
        const auto is_straight = [&](const Block& block) {
            return (block.length >= kStraight || blocks.size() == 1) && is_host(*core_.pool.engine, block.local, block.length);
        };
        std::vector<Block> rest;
        for (const Block& block : blocks) {
            if (block.remote >= items_[i].place().length || block.length == 0) continue;
            if (!is_straight(block)) {
                rest.push_back(block);
                continue;
            }
            straight.push_back(
                {.key = keys_[i], .generation = items_[i].place().generation, .offset = block.remote, .into = {block.local, block.length}});
            item_of.push_back(i);
        }
        const DiskExtents extents(std::move(rest), items_[i].place().length);
        for (const DiskExtents::Extent& extent : extents.extents())
            for (uint64_t begin = extent.begin; begin < extent.end;) {
                const uint64_t end = std::min(extent.end, (begin + kWindow) / kChunkBytes * kChunkBytes);
                OwnWindow& window = windows.emplace_back(OwnWindow{.item = i, .begin = begin, .end = end, .blocks = {}, .bytes = {}});
                extents.place(begin, end, 0, window.blocks);
                begin = end;
            }
    }
    if (!straight.empty()) group.from.own->disk->read(straight, deadline);
    for (size_t n = 0; n < straight.size(); ++n)
        if (straight[n].code != StoreCode::kOk) codes[item_of[n]] = straight[n].code;
    read_windows(group, windows, codes, deadline);
    for (const uint32_t i : group.items) finish_own_disk(i, codes[i]);
}

void Fetch::read_windows(Group& group, std::vector<OwnWindow>& windows, std::vector<StoreCode>& codes, Deadline deadline) {
    for (size_t first = 0; first < windows.size();) {
        std::vector<DiskRead> reads;
        size_t last = first;
        for (uint64_t total = 0; last < windows.size() && (last == first || total < kWindowsBytes); ++last) {
            OwnWindow& window = windows[last];
            const uint64_t length = window.end - window.begin;
            total += length;
            window.bytes.reset(new std::byte[length]);
            reads.push_back({.key = keys_[window.item],
                             .generation = items_[window.item].place().generation,
                             .offset = window.begin,
                             .into = {window.bytes.get(), length}});
        }
        group.from.own->disk->read(reads, deadline);
        for (size_t n = first; n < last; ++n) {
            OwnWindow& window = windows[n];
            StoreCode& code = codes[window.item];
            if (reads[n - first].code != StoreCode::kOk) code = reads[n - first].code;
            for (const Block& block : window.blocks) {
                if (code != StoreCode::kOk) break;
                if (auto copied = copy_any(*core_.pool.engine, block.local, window.bytes.get() + block.remote, block.length); !copied) {
                    MC_LOG_WARNING_EVERY(1s, "key {}: {}", keys_[window.item], copied.error().to_string());
                    code = StoreCode::kTransferFail;
                }
            }
            window.bytes.reset();
        }
        first = last;
    }
}

void Fetch::finish_own_disk(uint32_t i, StoreCode code) {
    if (code == StoreCode::kOk) code = accept(i);
    if (code == StoreCode::kOk) {
        core_.metrics.own_disk_hits.add();
        return items_[i].finish(code);
    }
    if (code == StoreCode::kChecksumMismatch) core_.metrics.checksum_failures.add();
    // Who is right, the master or the disk, it will say when it is asked again.
    core_.leases.forget(keys_[i]);
    items_[i].chosen_failed(reader_code(code));
}

// ---- of other processes

/// What is wanted from one of them.
struct Fetch::DiskShare {
    struct Wanted {
        uint32_t item = 0;
        DiskExtents extents;
        bool over = false;
    };
    /// A part that was asked for in this round.
    struct Asked {
        size_t wanted = 0, extent = 0;
        uint64_t offset = 0, length = 0, moved = 0;
    };

    Group* group = nullptr;
    Time give_up{};
    std::vector<Wanted> wanted;
    std::vector<StageItem> items;
    std::vector<Asked> asked;  // of each item
    NodeCalls::Question question;
    Duration pause = kPauseMin;
    bool progress = false;

    bool over() const {
        return std::all_of(wanted.begin(), wanted.end(), [](const Wanted& one) { return one.over; });
    }
};

void Fetch::read_far_disks(std::span<Group* const> groups) {
    std::vector<std::unique_ptr<DiskShare>> shares;
    for (Group* const group : groups) {
        auto& share = shares.emplace_back(std::make_unique<DiskShare>());
        share->group = group;
        share->give_up = Clock::now() + disk_patience(*group);
        for (const uint32_t i : group->items) {
            std::vector<Block> blocks;
            add_blocks(i, 0, blocks);
            share->wanted.push_back({.item = i, .extents = DiskExtents(std::move(blocks), items_[i].place().length)});
        }
    }
    while (true) {
        std::vector<DiskShare*> round;
        std::vector<NodeCalls::Question> questions;
        const Time now = Clock::now();
        for (const auto& share : shares) {
            if (share->over()) continue;
            if (core_.closing()) fail_disk(*share, Error(Code::kCancelled, "the client stops"));
            else if (ask_disk(*share, now)) {
                round.push_back(share.get());
                questions.push_back(std::move(share->question));
            }
        }
        if (round.empty()) return;
        core_.nodes.stage(questions);
        std::vector<Move> moves(round.size());
        for (size_t n = 0; n < round.size(); ++n) {
            round[n]->question = std::move(questions[n]);
            take_answer(*round[n], moves[n]);
        }
        std::vector<Move> real;
        std::vector<DiskShare*> owners;
        for (size_t n = 0; n < round.size(); ++n) {
            if (moves[n].blocks.empty()) continue;
            real.push_back(std::move(moves[n]));
            owners.push_back(round[n]);
        }
        if (!real.empty()) core_.pool.mover.run(Direction::kRead, real);
        for (size_t n = 0; n < real.size(); ++n) judge_disk(*owners[n], real[n]);
        Duration pause = Duration::zero();
        for (DiskShare* const share : round)
            if (!share->progress && !share->over()) pause = share->pause = std::min<Duration>(share->pause * 2, kPauseMax);
        if (pause != Duration::zero() && real.empty()) core_.pool.pause(pause);
    }
}

/// False: there is nothing to ask for any more.
bool Fetch::ask_disk(DiskShare& share, Time now) const {
    share.items.clear();
    share.asked.clear();
    share.progress = false;
    uint64_t total = 0, text_bytes = 0;
    const auto ask = [&](size_t n, size_t number, const DiskExtents::Extent& extent) {
        if (share.items.size() >= kAskedItems || total >= kAskedBytes || text_bytes >= kAskedTextBytes) return;
        const DiskShare::Wanted& one = share.wanted[n];
        const uint64_t length = extent.end - extent.begin;
        share.items.push_back({.tenant = core_.config.tenant,
                               .key = keys_[one.item],
                               .generation = items_[one.item].place().generation,
                               .offset = extent.begin,
                               .length = length});
        share.asked.push_back({.wanted = n, .extent = number, .offset = extent.begin, .length = length});
        total += length;
        text_bytes += keys_[one.item].size() + core_.config.tenant.size();
    };
    for (size_t n = 0; n < share.wanted.size(); ++n) {
        const DiskShare::Wanted& one = share.wanted[n];
        if (one.over) continue;
        const auto& extents = one.extents.extents();
        if (extents.empty()) ask(n, 0, {});  // of nothing one still wants to know whether it is there
        for (size_t e = 0; e < extents.size(); ++e)
            if (extents[e].begin < extents[e].end) ask(n, e, extents[e]);
    }
    if (share.items.empty()) return false;
    const SegmentSpec& spec = share.group->from.segment->spec;
    share.question = {
        .service = spec.service, .request = {.segment = spec.id, .items = share.items}, .deadline = Deadline(std::max(share.give_up, now))};
    return true;
}

void Fetch::take_answer(DiskShare& share, Move& move) {
    const SegmentHandle& segment = share.group->from.segment;
    move.segment = segment;
    if (!share.question.reply) return fail_disk(share, share.question.reply.error());
    const StageReply& reply = *share.question.reply;
    if (reply.engine != segment->spec.incarnation) return fail_disk(share, Error(Code::kStale, "another life of the node answers"));
    bool starved = false;
    for (size_t n = 0; n < reply.parts.size(); ++n) {
        const StagedPart& part = reply.parts[n];
        DiskShare::Asked& asked = share.asked[n];
        DiskShare::Wanted& one = share.wanted[asked.wanted];
        if (one.over) continue;
        if (part.code == StoreCode::kNoAvailableHandle) {
            starved = true;
            continue;
        }
        const uint64_t end = asked.offset + part.length;
        const uint64_t chunks = part.length == 0 ? 0 : chunk_count(end) - asked.offset / kChunkBytes;
        const bool makes_sense = part.hash_count == chunks && (part.length != 0 || asked.length == 0);
        if (part.code != StoreCode::kOk || !makes_sense) {
            one.over = true;
            items_[one.item].chosen_failed(part.code == StoreCode::kOk ? StoreCode::kTransferFail : reader_code(part.code));
            core_.leases.forget(keys_[one.item]);
            continue;
        }
        asked.moved = part.length;
        share.progress = true;
        if (part.length == 0) {
            one.over = true;
            arrived(one.item);
            continue;
        }
        one.extents.place(asked.offset, end, part.address, move.blocks);
        const uint64_t value_end = items_[one.item].place().length;
        for (uint64_t chunk = asked.offset / kChunkBytes, hash = part.first_hash; chunk * kChunkBytes < end; ++chunk, ++hash)
            if (chunk * kChunkBytes >= asked.offset && std::min((chunk + 1) * kChunkBytes, value_end) <= end)
                expect(one.item, chunk, reply.hashes[hash]);
    }
    for (const Block& block : move.blocks) move.bytes += block.length;
    const Time now = Clock::now();
    move.patience = std::min(share.give_up, share.question.sent + reply.lease_time) - now;
    if (starved && !share.progress && now >= share.give_up) {
        for (DiskShare::Wanted& one : share.wanted) {
            if (std::exchange(one.over, true)) continue;
            items_[one.item].chosen_failed(StoreCode::kNoAvailableHandle);
        }
    }
}

void Fetch::judge_disk(DiskShare& share, const Move& move) {
    const StageReply& reply = *share.question.reply;
    std::vector<uint64_t> leases;
    for (const StagedPart& part : reply.parts)
        if (part.lease != 0) leases.push_back(part.lease);
    core_.nodes.release(share.group->from.segment->spec.service, leases);
    const bool in_time = Clock::now() < share.question.sent + reply.lease_time;
    if (!move.outcome) return fail_disk(share, move.outcome.error());
    if (!in_time) return fail_disk(share, Error(Code::kTimedOut, "what was staged may have been used for something else"));
    if (!core_.pool.directory.all_reachable()) core_.pool.directory.worked(share.group->from.segment);
    for (const DiskShare::Asked& asked : share.asked) {
        DiskShare::Wanted& one = share.wanted[asked.wanted];
        if (asked.moved == 0 || one.over) continue;
        one.extents.advance(asked.extent, asked.offset + asked.moved);
        if (!one.extents.done()) continue;
        one.over = true;
        core_.metrics.disk_hits.add();
        arrived(one.item);
    }
}

void Fetch::fail_disk(DiskShare& share, const Error& why) {
    std::vector<uint32_t> items;
    for (DiskShare::Wanted& one : share.wanted)
        if (!std::exchange(one.over, true)) items.push_back(one.item);
    judge(*share.group, items, Unexpected(why));
}

}  // namespace mooncake::store
