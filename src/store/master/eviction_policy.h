// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "store/master/object_table.h"

namespace mooncake::store {

/// The order in which entries (objects, or one object standing for its group) may be evicted: one order per class of lengths, so that who
/// needs memory can look among those whose memory would do, and compare their ages. May use `Object::order`, `reused`, `size_class`, `looked_at` and
/// `used_at` of those it holds, and must behave the same after the same calls. Not thread-safe.
class EvictionPolicy {
public:
    static constexpr size_t kClasses = 20;
    /// Up to 256 bytes, 512, 1 KiB, ... 64 MiB, and all above.
    static size_t class_of(uint64_t length) noexcept {
        return std::min(static_cast<size_t>(std::bit_width((std::max<uint64_t>(length, 1) - 1) >> 8)), kClasses - 1);
    }

    virtual ~EvictionPolicy() = default;
    virtual void insert(ObjectId id) = 0;
    virtual void insert_coldest(ObjectId id) = 0;  // back from being set aside: it was the coldest then
    virtual void insert_used(ObjectId id) = 0;     // back from being set aside because it was used
    virtual void touch(ObjectId id) = 0;           // it was used
    virtual void remove(ObjectId id) = 0;
    virtual void replace(ObjectId id, ObjectId by) = 0;     // another member stands for the group now
    virtual ObjectId coldest(size_t size_class) const = 0;  // 0: none
    virtual ObjectId next_coldest(ObjectId id) const = 0;   // of the same class
    /// How many bytes were put since it was put or used.
    virtual uint64_t age(ObjectId id) const = 0;
    virtual size_t size() const = 0;

    // What is looked at ahead of its eviction, in about the order in which it would go.
    /// The coldest that was not looked at since it was put or used; 0: none.
    virtual ObjectId first_unseen() const = 0;
    virtual void look_at(ObjectId id) = 0;  // the one that it said
    /// Of those in the order that were looked at; of a group, that of the one that stands for it.
    virtual uint64_t seen_bytes() const = 0;
    virtual void resized(uint64_t from, uint64_t to) = 0;  // the length of one with `looked_at`
};

/// For IndexList: an object is on one shelf at most.
struct OrderLinks {
    ObjectTable& objects;
    Links& operator()(ObjectId id) const { return objects[id].order; }
};

/// Least recently used first, but those used again are kept apart from those used once, and protected as long as they are no more than
/// their share: a flood of values that nobody asks for a second time flushes only the others.
class SegmentedLruPolicy final : public EvictionPolicy {
public:
    /// `looks_ahead`: somebody will ask for first_unseen(); to keep up with that costs each use something.
    explicit SegmentedLruPolicy(ObjectTable& objects, bool looks_ahead = false) : objects_(objects), looks_ahead_(looks_ahead) {}

    void insert(ObjectId id) override {
        objects_[id].size_class = static_cast<uint8_t>(class_of(objects_[id].length));
        put_bytes_ += objects_[id].length;
        add(id, objects_[id].reused);
    }
    void insert_coldest(ObjectId id) override {
        objects_[id].size_class = static_cast<uint8_t>(class_of(objects_[id].length));
        list(id).push_front(id, links());  // whoever meets it looks at it
    }
    void insert_used(ObjectId id) override {
        objects_[id].size_class = static_cast<uint8_t>(class_of(objects_[id].length));
        add(id, true);
    }
    void touch(ObjectId id) override {
        remove(id);
        add(id, true);
    }
    void remove(ObjectId id) override { take_out(id); }
    void replace(ObjectId id, ObjectId by) override {
        if (ObjectId& unseen = this->unseen(id); looks_ahead_ && unseen == id) unseen = by;
        if (objects_[id].looked_at) {
            seen_bytes_ -= objects_[id].length;
            seen_bytes_ += objects_[by].length;
        }
        objects_[by].looked_at = objects_[id].looked_at;
        objects_[id].looked_at = false;
        objects_[by].reused = objects_[id].reused;
        objects_[by].size_class = objects_[id].size_class;
        objects_[by].used_at = objects_[id].used_at;
        list(id).replace(id, by, links());
    }
    ObjectId coldest(size_t size_class) const override {
        const Class& one = classes_[size_class];
        return one.once.size() != 0 ? one.once.first() : one.reused.first();
    }
    ObjectId next_coldest(ObjectId id) const override {
        const ObjectId next = objects_[id].order.next;
        return next != 0 || objects_[id].reused ? next : classes_[objects_[id].size_class].reused.first();
    }
    uint64_t age(ObjectId id) const override { return put_bytes_ - objects_[id].used_at; }
    size_t size() const override {
        size_t sum = 0;
        for (const Class& one : classes_) sum += one.size();
        return sum;
    }

    ObjectId first_unseen() const override {
        ObjectId coldest = 0;
        const auto consider = [&](ObjectId id) {
            if (id != 0 && (coldest == 0 || objects_[id].used_at < objects_[coldest].used_at)) coldest = id;
        };
        for (const Class& one : classes_) {
            consider(one.once_unseen);
            if (one.once_unseen == 0) consider(one.reused_unseen);
        }
        return coldest;
    }
    void look_at(ObjectId id) override {
        unseen(id) = objects_[id].order.next;
        objects_[id].looked_at = true;
        seen_bytes_ += objects_[id].length;
    }
    uint64_t seen_bytes() const override { return seen_bytes_; }
    void resized(uint64_t from, uint64_t to) override { seen_bytes_ = seen_bytes_ - from + to; }

private:
    static constexpr size_t kShare = 4;  // one of so many entries is protected; more hurts where values are soon used again
    struct Class {
        IndexList once, reused;
        ObjectId once_unseen = 0, reused_unseen = 0;  // the first of each that was not looked at; 0: all were
        size_t size() const { return once.size() + reused.size(); }
    };
    OrderLinks links() const { return {objects_}; }
    IndexList& list(ObjectId id) {
        Class& one = classes_[objects_[id].size_class];
        return objects_[id].reused ? one.reused : one.once;
    }
    ObjectId& unseen(ObjectId id) {
        Class& one = classes_[objects_[id].size_class];
        return objects_[id].reused ? one.reused_unseen : one.once_unseen;
    }
    void forget_look(ObjectId id) {
        if (ObjectId& unseen = this->unseen(id); unseen == id) unseen = objects_[id].order.next;
        if (objects_[id].looked_at) seen_bytes_ -= objects_[id].length;
        objects_[id].looked_at = false;
    }
    void take_out(ObjectId id) {
        if (looks_ahead_) forget_look(id);
        list(id).erase(id, links());
    }
    void add_last(ObjectId id, bool reused) {
        objects_[id].reused = reused;
        objects_[id].used_at = put_bytes_;
        list(id).push_back(id, links());
        if (!looks_ahead_) return;
        if (ObjectId& unseen = this->unseen(id); unseen == 0) unseen = id;
    }
    void add(ObjectId id, bool reused) {
        Class& one = classes_[objects_[id].size_class];
        add_last(id, reused);
        while (one.reused.size() * kShare > one.size()) {
            const ObjectId cold = one.reused.first();
            take_out(cold);
            add_last(cold, false);
        }
    }

    ObjectTable& objects_;
    const bool looks_ahead_;
    std::array<Class, kClasses> classes_;
    uint64_t put_bytes_ = 0, seen_bytes_ = 0;
};

/// One tenant's evictable entries: those in the policy's order, and those set aside because they may not go yet. Entries on a shelf are
/// in the order in which they were set aside, that is, coldest first. Not thread-safe.
class EvictionOrder {
public:
    explicit EvictionOrder(ObjectTable& objects, bool looks_ahead = false)
        : objects_(objects), policy_(std::make_unique<SegmentedLruPolicy>(objects, looks_ahead)) {}

    void insert(ObjectId id) {
        policy_->insert(id);
        objects_[id].shelf = Shelf::kOrder;
    }
    void touch(ObjectId id) {
        if (objects_[id].shelf == Shelf::kOrder) {
            policy_->touch(id);
        } else {
            remove(id);
            policy_->insert_used(id);
            objects_[id].shelf = Shelf::kOrder;
        }
    }
    void remove(ObjectId id) {
        Shelf& shelf = objects_[id].shelf;
        if (shelf == Shelf::kOrder) policy_->remove(id);
        else list(shelf).erase(id, links());
        shelf = Shelf::kNone;
    }
    /// Both stand for the same group; `id` must be in the policy's order.
    void replace(ObjectId id, ObjectId by) {
        policy_->replace(id, by);
        objects_[by].shelf = Shelf::kOrder;
        objects_[id].shelf = Shelf::kNone;
    }
    void look_at(ObjectId id) { policy_->look_at(id); }
    void resized(uint64_t from, uint64_t to) { policy_->resized(from, to); }
    void set_aside(ObjectId id, Shelf shelf) {
        remove(id);
        list(shelf).push_back(id, links());
        objects_[id].shelf = shelf;
    }
    void insert_coldest(ObjectId id) {
        policy_->insert_coldest(id);
        objects_[id].shelf = Shelf::kOrder;
    }
    void bring_back(ObjectId id) {
        remove(id);
        insert_coldest(id);
    }

    const EvictionPolicy& policy() const { return *policy_; }
    ObjectId first_aside(Shelf shelf) const { return list(shelf).first(); }
    size_t aside(Shelf shelf) const { return list(shelf).size(); }
    size_t size() const { return policy_->size() + soft_leased_.size() + leased_.size() + soft_pinned_.size() + dirty_.size(); }

private:
    const IndexList& list(Shelf shelf) const {
        if (shelf == Shelf::kDirty) return dirty_;
        return shelf == Shelf::kSoftLeased ? soft_leased_ : shelf == Shelf::kLeased ? leased_ : soft_pinned_;
    }
    IndexList& list(Shelf shelf) { return const_cast<IndexList&>(std::as_const(*this).list(shelf)); }
    OrderLinks links() const { return {objects_}; }

    ObjectTable& objects_;
    std::unique_ptr<EvictionPolicy> policy_;
    IndexList soft_leased_, leased_, soft_pinned_, dirty_;
};

}  // namespace mooncake::store
