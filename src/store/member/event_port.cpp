// SPDX-License-Identifier: Apache-2.0
#include "store/member/event_port.h"

#include <utility>

namespace mooncake::store {

namespace {

constexpr Duration kEndTimeout = 1s;  // from giving up to the end; it comes at once, unless somebody has a bug

}  // namespace

EventPort::EventPort(MasterApi& master, ClientId client, Handlers handlers)
    : master_(master), client_(client), shared_(std::make_shared<Shared>()) {
    Lock lock(shared_->mutex);
    shared_->handlers = std::move(handlers);
}

void EventPort::hear(Shared& shared, uint64_t serial, const EventView& update) {
    Lock lock(shared.mutex);
    if (serial != shared.serial || !shared.handlers.on_update) return;
    shared.handlers.on_update(update);
    ++shared.events;
    if (update.complete) shared.complete = true;
    shared.changed.notify_all();
}

void EventPort::end(Shared& shared, uint64_t serial, const Error& why) {
    Lock lock(shared.mutex);
    if (serial != shared.serial || !shared.open) return;
    shared.open = false;
    if (shared.handlers.on_end) shared.handlers.on_end(why);
    shared.changed.notify_all();
}

void EventPort::follow() {
    uint64_t serial = 0;
    {
        Lock lock(shared_->mutex);
        if (!shared_->handlers.on_update) return;
        serial = ++shared_->serial;
        shared_->open = true;
        shared_->complete = false;
    }
    const uint64_t handle = master_.follow(
        client_, {.on_update = [shared = shared_, serial](const EventView& update) { hear(*shared, serial, update); },
                  .on_end = [shared = shared_, serial](const Error& why) { end(*shared, serial, why); }});
    Lock lock(handle_mutex_);
    handle_ = handle;
}

void EventPort::give_up() {
    uint64_t handle = 0;
    {
        Lock lock(handle_mutex_);
        handle = std::exchange(handle_, 0);
    }
    if (handle != 0) master_.unfollow(handle);
}

bool EventPort::wait_until_complete(Duration most) MC_NO_THREAD_ANALYSIS {
    Shared& shared = *shared_;
    std::unique_lock lock(shared.mutex);
    shared.changed.wait_for(lock, most, [&]() MC_NO_THREAD_ANALYSIS { return !shared.open || shared.complete; });
    return shared.open && shared.complete;
}

uint64_t EventPort::updates() const {
    Lock lock(shared_->mutex);
    return shared_->events;
}

void EventPort::drain(Duration silence) MC_NO_THREAD_ANALYSIS {
    Shared& shared = *shared_;
    {
        std::unique_lock lock(shared.mutex);
        for (uint64_t events = shared.events + 1; shared.open && events != shared.events;) {
            events = shared.events;
            shared.changed.wait_for(lock, silence, [&]() MC_NO_THREAD_ANALYSIS { return !shared.open || shared.events != events; });
        }
        if (!shared.open) return;
    }
    give_up();
    uint64_t serial = 0;
    {
        std::unique_lock lock(shared.mutex);
        if (shared.changed.wait_for(lock, kEndTimeout, [&]() MC_NO_THREAD_ANALYSIS { return !shared.open; })) return;
        serial = shared.serial;
    }
    end(shared, serial, Error(Code::kCancelled, "the stream was given up"));
}

void EventPort::close() {
    give_up();
    Lock lock(shared_->mutex);
    shared_->handlers = {};
    shared_->open = false;
    shared_->changed.notify_all();
}

}  // namespace mooncake::store
