// SPDX-License-Identifier: Apache-2.0
#include "engine/batch.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "base/error_copy.h"
#include "base/log.h"

namespace mooncake {

namespace {

constexpr unsigned kLooksInVain = 16;  // more than an answer takes that comes at once

/// For threads that ask for the status again and again: peers and I/O threads on the same processor would else wait until the scheduler
/// takes it from them, milliseconds later.
void give_way_while(TransferState state) noexcept {
    static constinit thread_local unsigned looks = 0;
    if (state != TransferState::kWaiting && state != TransferState::kPending) looks = 0;
    else if (++looks % kLooksInVain == 0) std::this_thread::yield();
}

}  // namespace

Result<> Batch::collect_ways(std::span<const Request> requests, Ways& ways, uint64_t& bytes) {
    for (size_t i = 0; i < requests.size(); ++i) {
        const Request& request = requests[i];
        const Block block{.local = request.local, .remote = request.remote, .length = request.length};
        if (auto checked = check_blocks({&block, 1}); !checked)
            return fail(Code::kInvalidArgument, "request {}: {}", i, checked.error().message());
        Way& way = ways[{request.segment, request.direction}];
        if (way.session == nullptr) {
            MC_ASSIGN_OR_RETURN(way.session, core_.sessions->get(request.segment));
            way.addresses = way.session->addresses();
        }
        way.bytes += request.length;
        bytes += request.length;
    }
    return check_lives(ways);
}

void Batch::add_groups(std::span<const Request> requests, Ways& ways, const Notification* notification, Deadline deadline,
                       std::vector<TransferGroup*>& added) {
    for (const Request& request : requests) {
        Way& way = ways[{request.segment, request.direction}];
        if (way.group == nullptr) {
            way.group = &groups_.emplace_back(core_, shared_from_this(), way.session, way.addresses, request.direction, deadline);
            added.push_back(way.group);
        }
        const Block block{.local = request.local, .remote = request.remote, .length = request.length};
        places_.push_back({.group = way.group, .index = way.group->add_task({&block, 1})});
    }
    if (notification == nullptr || requests.empty()) return;
    const Way& first = ways[{requests[0].segment, requests[0].direction}];
    notifications_.push_back({.session = first.session, .group = first.group, .notification = *notification});
}

void Batch::shrink_to(const Sizes& before) noexcept {
    while (groups_.size() > before.groups) groups_.pop_back();
    while (places_.size() > before.places) places_.pop_back();
    while (notifications_.size() > before.notifications) notifications_.pop_back();
}

Result<> Batch::submit(std::span<const Request> requests, const Notification* notification,
                       const std::function<Deadline(uint64_t)>& deadline) try {
    Ways ways;
    uint64_t bytes = 0;
    MC_RETURN_IF_ERROR(collect_ways(requests, ways, bytes));
    std::vector<TransferGroup*> started;
    {
        Lock lock(mutex_);
        if (places_.size() + requests.size() > capacity_)
            return fail(Code::kNoSpace, "the batch holds {} of {} tasks, {} more do not fit", places_.size(), capacity_, requests.size());
        const Sizes before = sizes();
        try {
            add_groups(requests, ways, notification, deadline(bytes), started);
        } catch (const std::bad_alloc&) {
            shrink_to(before);
            return Unexpected(out_of_memory());
        }
        active_ += started.size();
        running_.add(static_cast<uint32_t>(started.size()));
    }
    for (TransferGroup* const group : started) group->start();
    return {};
} catch (const std::bad_alloc&) {
    return Unexpected(out_of_memory());
}

Result<> Batch::check_lives(const Ways& ways) {
    std::string restarted;
    const Session* last = nullptr;  // the ways to one segment follow each other
    for (const auto& [id, way] : ways) {
        if (way.bytes == 0) continue;
        auto lives = way.session->check_known(way.addresses.life);
        if (lives) continue;
        way.addresses.caller->told(way.addresses.life);
        if (std::exchange(last, way.session.get()) == way.session.get()) continue;
        if (!restarted.empty()) restarted += "; ";
        restarted += lives.error().message();
    }
    if (restarted.empty()) return {};
    return Unexpected(Error(Code::kStale, std::move(restarted)));
}

Result<> Batch::submit(const std::shared_ptr<Session>& session, Addresses addresses, Direction direction, std::span<const Block> blocks,
                       const Notification* notification, Deadline deadline, Behind behind) {
    MC_RETURN_IF_ERROR(check_blocks(blocks));
    TransferGroup* group = nullptr;
    {
        Lock lock(mutex_);
        if (places_.size() + 1 > capacity_) return fail(Code::kNoSpace, "the batch is full");
        const Sizes before = sizes();
        try {
            group = &groups_.emplace_back(core_, shared_from_this(), session, std::move(addresses), direction, deadline);
            if (behind.work) group->follow(std::move(behind));
            places_.push_back({.group = group, .index = group->add_task(blocks)});
            if (notification != nullptr) notifications_.push_back({.session = session, .group = group, .notification = *notification});
        } catch (const std::bad_alloc&) {
            shrink_to(before);
            return Unexpected(out_of_memory());
        }
        ++active_;
        running_.add(1);
    }
    group->start();
    return {};
}

void Batch::group_finished() noexcept {
    std::vector<std::function<void()>> callbacks;
    std::vector<PendingNotification> notifications;
    const auto self = shared_from_this();
    {
        Lock lock(mutex_);
        if (--active_ == 0) {
            callbacks.swap(callbacks_);
            notifications.swap(notifications_);
        }
    }
    try {
        notify(notifications);
    } catch (const std::bad_alloc&) {
        MC_LOG_WARNING("notifications are lost: out of memory");  // the batch ends all the same
    }
    running_.succeed(0);
    for (const auto& callback : callbacks) callback();
}

void Batch::notify(std::span<const PendingNotification> notifications) {
    if (notifications.empty() || worst().status.state != TransferState::kCompleted) return;
    for (const PendingNotification& pending : notifications) {
        // The peer may have restarted since: the next life would take the bytes for its own, which it never got.
        const auto notify = [core = &core_, pending, life = pending.group->reached()] {
            auto sent = core->notifier->notify(*pending.session, pending.notification, life, Deadline::after(5s));
            if (!sent) MC_LOG_WARNING("notification to {} is lost: {}", pending.session->name(), sent.error().to_string());
        };
        core_.service->post(notify, pending.session->key());
    }
}

Result<TransferStatus> Batch::task_status(size_t task) {
    Place place;
    {
        Lock lock(mutex_);
        if (task >= places_.size()) return fail(Code::kInvalidArgument, "the batch has {} tasks, not {}", places_.size(), task + 1);
        place = places_[task];
    }
    TransferStatus status = place.group->status(place.index);
    place.group->tell(status);
    give_way_while(status.state);
    return status;
}

TransferStatus Batch::status() {
    Worst all = worst();
    if (all.group != nullptr) all.group->tell(all.status);
    give_way_while(all.status.state);
    return std::move(all.status);
}

Batch::Worst Batch::worst() {
    std::vector<Place> places;
    {
        Lock lock(mutex_);
        places = places_;
    }
    // Worst first: something runs > failed > timed out > cancelled > all completed.
    const auto weight = [](TransferState state) {
        switch (state) {
            case TransferState::kWaiting:
            case TransferState::kPending: return 4;
            case TransferState::kInvalid:
            case TransferState::kFailed: return 3;
            case TransferState::kTimedOut: return 2;
            case TransferState::kCancelled: return 1;
            case TransferState::kCompleted: return 0;
        }
        return 4;
    };
    Worst worst{.status = {.state = TransferState::kCompleted, .bytes = 0, .error = {}}};
    uint64_t bytes = 0;
    for (const Place& place : places) {
        TransferStatus status = place.group->status(place.index);
        bytes += status.bytes;
        if (weight(status.state) > weight(worst.status.state)) worst = {.status = std::move(status), .group = place.group};
        if (weight(worst.status.state) == 4) break;
    }
    worst.status.bytes = bytes;
    return worst;
}

bool Batch::wait(Deadline deadline) {
    std::vector<TransferGroup*> groups;
    {
        Lock lock(mutex_);
        for (TransferGroup& group : groups_) groups.push_back(&group);
    }
    for (TransferGroup* const group : groups) group->help(deadline);
    return running_.wait(deadline);
}

std::vector<TransferGroup*> Batch::unfinished() {
    std::vector<TransferGroup*> groups;
    Lock lock(mutex_);
    for (TransferGroup& group : groups_)
        if (!group.over()) groups.push_back(&group);
    return groups;
}

static void cancel_group(TransferGroup& group, Deadline fence) { group.stop(Code::kCancelled, "cancelled", fence); }

bool Batch::post_stop(TransferGroup& group, Deadline fence) {
    return core_.service->post_stop([&group, fence, self = shared_from_this()] { cancel_group(group, fence); }, group.key());
}

void Batch::cancel() {
    const auto groups = unfinished();
    // All at once, as each may wait for its peer. We stop those that no thread has come to yet, and wait for the others.
    const Deadline fence = Deadline::after(kFenceTime);
    if (groups.size() > 1)
        for (TransferGroup* const group : groups) (void)post_stop(*group, fence);
    for (TransferGroup* const group : groups) cancel_group(*group, fence);
}

void Batch::begin_cancel() {
    // The fence counts from now: those that wait behind each other for one silent peer end together.
    const Deadline fence = Deadline::after(kFenceTime);
    for (TransferGroup* const group : unfinished())
        if (!post_stop(*group, fence)) cancel_group(*group, fence);
}

void Batch::on_done(std::function<void()> callback) {
    {
        Lock lock(mutex_);
        if (active_ > 0) {
            callbacks_.push_back(std::move(callback));
            return;
        }
    }
    callback();
}

Result<BatchId> BatchTable::add(std::shared_ptr<Batch> batch) {
    Lock lock(mutex_);
    uint32_t index = 0;
    constexpr size_t kRest = 1024;  // freed slots rest while there are few, so that stale ids are recognised for long
    if (free_count_ > kRest) {
        index = std::exchange(free_first_, slots_[free_first_].next_free);
        --free_count_;
    } else {
        index = static_cast<uint32_t>(slots_.size());
        if (index + 2 >= (1u << kSlotBits)) return fail(Code::kNoSpace, "{} batches are open", slots_.size());
        slots_.emplace_back();
    }
    slots_[index].batch = std::move(batch);
    return (slots_[index].generation << kSlotBits) | (index + 1);
}

const BatchTable::Slot* BatchTable::find(BatchId id) const {
    const uint64_t index = (id & ((1u << kSlotBits) - 1)) - 1;  // 0 wraps and is out of range
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.batch != nullptr && slot.generation == id >> kSlotBits ? &slot : nullptr;
}

Result<std::shared_ptr<Batch>> BatchTable::get(BatchId id) const {
    Lock lock(mutex_);
    const Slot* const slot = find(id);
    if (slot == nullptr) return fail(Code::kNotFound, "no batch has the id {}", id);
    return slot->batch;
}

Result<> BatchTable::remove(BatchId id) {
    std::shared_ptr<Batch> removed;  // destroyed outside the lock
    Lock lock(mutex_);
    const Slot* const slot = find(id);
    if (slot == nullptr) return fail(Code::kNotFound, "no batch has the id {}", id);
    if (slot->batch->busy()) return fail(Code::kBusy, "the batch {} still runs", id);
    const auto index = static_cast<uint32_t>((id & ((1u << kSlotBits) - 1)) - 1);
    removed = std::move(slots_[index].batch);
    slots_[index].generation = (slots_[index].generation + 1) & ((uint64_t{1} << 39) - 1);
    (free_count_++ == 0 ? free_first_ : slots_[free_last_].next_free) = index;
    free_last_ = index;
    return {};
}

void BatchTable::cancel_all() {
    for (size_t i = 0;; ++i) {
        std::shared_ptr<Batch> batch;  // let go outside the lock
        {
            Lock lock(mutex_);
            if (i == slots_.size()) return;
            batch = slots_[i].batch;
        }
        if (batch) batch->cancel();
    }
}

void BatchTable::clear() {
    std::deque<Slot> all;  // destroyed outside the lock
    Lock lock(mutex_);
    all.swap(slots_);
    free_count_ = 0;
}

}  // namespace mooncake
