// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/simulation/sim_master.h"

namespace mooncake::store::simulation {

/// A node: a segment with real (simulated) bytes, the list of what lies in it, and the duties that the master relies on.
class SimNode {
public:
    static constexpr uint64_t kUnit = 64;

    SimNode(World& world, SimMaster& master, uint64_t number, uint64_t size)
        : world_(world), master_(master), number_(number), size_(size) {
        start();
        beat();
    }

    /// The process dies with its memory, and comes back empty as another.
    void crash() {
        world_.note("{} crashes", spec_.name);
        endpoint.up = false;
        ++endpoint.life;
        spec_.id = {};  // nobody finds the dead one
        world_.after(world_.between(100ms, 6000ms), [this] { start(); });
    }
    /// Unmounts its memory and mounts it again under another id, as nothing.
    void renew_segment() {
        if (view_ == 0) return;
        world_.note("{} mounts its memory anew", spec_.name);
        unmounting_ = spec_.id;
        view_ = 0;
        spec_.id.low += 1'000;
        objects_.clear();  // what is being written may still land
        unmount();
    }

    // What writers ask. The node knows which master's plans it may follow.
    bool announce(uint64_t view, const SegmentId& segment, const HeldObject& planned) {
        if (view != view_ || segment != spec_.id) return false;
        world_.note("{}: {} of generation {} is to be written to {}+{}", spec_.name, planned.key, planned.generation, planned.offset,
                    planned.length);
        const auto overlaps = [&](uint64_t offset, uint64_t length) {
            return offset < planned.offset + planned.length && planned.offset < offset + length;
        };
        std::erase_if(objects_, [&](const auto& entry) { return overlaps(entry.second.held.offset, entry.second.held.length); });
        std::erase_if(writes_, [&](const auto& entry) { return overlaps(entry.second.held.offset, entry.second.held.length); });
        writes_[planned.generation] = {.held = {.offset = planned.offset, .length = planned.length, .writer = planned.writer},
                                       .since = world_.now()};
        return true;
    }
    void land(uint64_t offset, uint64_t length, uint64_t generation) {
        for (uint64_t at = offset / kUnit; at < (offset + length + kUnit - 1) / kUnit; ++at) memory_[at] = generation;
    }
    /// The write is complete: from now on the node knows the value.
    bool commit(const HeldObject& held) {
        world_.note("{}: generation {} is complete", spec_.name, held.generation);
        const auto write = writes_.find(held.generation);
        if (write == writes_.end()) return false;
        writes_.erase(write);
        Entry entry{.key = std::string(held.key), .group = std::string(held.group), .held = held};
        objects_[held.generation] = std::move(entry);
        return true;
    }
    void forget(uint64_t generation) {
        world_.note("{}: generation {} is to be forgotten", spec_.name, generation);
        objects_.erase(generation);
        writes_.erase(generation);
    }
    bool read(uint64_t offset, uint64_t length, uint64_t generation) const {
        for (uint64_t at = offset / kUnit; at < (offset + length + kUnit - 1) / kUnit; ++at)
            if (memory_[at] != generation) return false;
        return true;
    }

    const SegmentSpec& spec() const { return spec_; }
    bool mounted() const { return endpoint.up && view_ == master_.view() && master_.state().segments().find(spec_.id) != 0; }
    bool holds(uint64_t generation) const { return objects_.contains(generation); }

    Endpoint endpoint;

private:
    struct Entry {
        std::string key, group;
        HeldObject held;
    };
    struct Announced {
        HeldWrite held;
        Time since{};
    };

    void start() {
        endpoint.up = true;
        id_ = {2, number_ * 1'000'000 + endpoint.life};
        spec_ = {.id = {3, number_ * 1'000'000'000 + endpoint.life * 1'000'000},
                 .name = format_text("node{}:1", number_),
                 .base = number_ << 32,
                 .size = size_};
        memory_.assign(size_ / kUnit, 0);
        objects_.clear();
        writes_.clear();
        view_ = 0;
        attached_view_ = 0;
        unmounting_ = {};
    }
    /// Twice a second: says that it lives, or does what it takes to be known.
    void beat() {
        world_.after(world_.between(400ms, 600ms), [this] {
            beat();
            if (!endpoint.up || !master_.endpoint.up) return;
            world_.send(endpoint, master_.endpoint, [this, id = id_] {
                const PingReply reply = master_.run([&](Transaction& t) { return ping(t, id, world_.now()); });
                world_.send(master_.endpoint, endpoint, [this, reply, view = master_.view()] { pinged(reply, view); });
            });
        });
    }
    void pinged(const PingReply& reply, uint64_t view) {
        if (view != master_.view()) return;  // an answer of an earlier master
        if (reply.status == PingStatus::kNeedRemount) {
            unmounting_ = {};  // it is gone with all the rest
            report();
        } else if (unmounting_) {
            unmount();
        } else if (view_ != view) {
            report();  // the answer to the last one got lost
        }
    }
    /// From here until the answer, no plan of any master is followed: what is reported stays as it is.
    void report() {
        world_.note("{} reports {} objects, {} writes", spec_.name, objects_.size(), writes_.size());
        view_ = 0;
        const bool fresh = attached_view_ == 0;
        std::vector<Entry> entries;
        std::vector<HeldWrite> writes;
        for (const auto& entry : objects_) entries.push_back(entry.second);
        std::erase_if(writes_,
                      [&](const auto& entry) { return world_.now() - entry.second.since > master_.state().options().put_release_timeout; });
        for (const auto& entry : writes_) writes.push_back(entry.second.held);
        world_.send(endpoint, master_.endpoint, [this, fresh, id = id_, spec = spec_, entries, writes, view = master_.view()] {
            const bool ok = master_.run([&](Transaction& t) { return remount_with(t, fresh, id, spec, entries, writes); });
            world_.send(master_.endpoint, endpoint, [this, ok, view, id] {
                if (!ok || id != id_ || view != master_.view()) return;
                view_ = attached_view_ = view;
            });
        });
    }
    bool remount_with(Transaction& t, bool fresh, const ClientId& id, const SegmentSpec& spec, const std::vector<Entry>& entries,
                      const std::vector<HeldWrite>& writes) {
        if (fresh) {
            remount(t, {.client = id, .segments = {}}, world_.now());
            return mount_segment(t, {.client = id, .segment = spec}, world_.now()) == StoreCode::kOk;
        }
        std::vector<HeldObject> objects;
        for (const Entry& entry : entries) {
            objects.push_back(entry.held);
            objects.back().key = entry.key;
            objects.back().group = entry.group;
        }
        const HeldSegment held{.segment = spec, .objects = objects, .writes = writes};
        const RemountReply reply = remount(t, {.client = id, .segments = {&held, 1}}, world_.now());
        if (reply.segments[0].refused != 0) world_.violated(format_text("refused {} entries of {}", reply.segments[0].refused, spec.name));
        return reply.segments[0].code == StoreCode::kOk;
    }
    void unmount() {
        world_.send(endpoint, master_.endpoint, [this, id = id_, old = unmounting_, view = master_.view()] {
            master_.run([&](Transaction& t) { return unmount_segment(t, {.client = id, .segment = old}, world_.now()); });
            world_.send(master_.endpoint, endpoint, [this, old, view] {
                if (old != unmounting_ || view != master_.view()) return;
                unmounting_ = {};
                mount();
            });
        });
    }
    void mount() {
        world_.send(endpoint, master_.endpoint, [this, id = id_, spec = spec_, view = master_.view()] {
            const StoreCode code = master_.run(
                [&](Transaction& t) { return mount_segment(t, {.client = id, .segment = spec}, world_.now()); });
            world_.send(master_.endpoint, endpoint, [this, code, spec, view] {
                if (code == StoreCode::kOk && spec.id == spec_.id && view == master_.view()) view_ = view;
            });
        });
    }

    World& world_;
    SimMaster& master_;
    const uint64_t number_, size_;
    ClientId id_;
    SegmentSpec spec_;
    uint64_t view_ = 0;                  // the master whose plans it follows; 0: none now
    uint64_t attached_view_ = 0;         // 0: no master has ever seen this memory
    std::vector<uint64_t> memory_;       // the generation last written, per 64 bytes
    std::map<uint64_t, Entry> objects_;  // by generation
    std::map<uint64_t, Announced> writes_;
    SegmentId unmounting_;  // the master has not said yet that it let go of this one
};

}  // namespace mooncake::store::simulation
