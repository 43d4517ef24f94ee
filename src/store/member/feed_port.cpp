// SPDX-License-Identifier: Apache-2.0
#include "store/member/feed_port.h"

#include <utility>

namespace mooncake::store {

namespace {

constexpr Duration kEndTimeout = 1s;  // from giving up to the end; it comes at once, unless somebody has a bug

}  // namespace

FeedPort::FeedPort(MasterApi& master, ClientId client, Handlers handlers)
    : master_(master), client_(client), shared_(std::make_shared<Shared>()) {
    Lock lock(shared_->mutex);
    shared_->handlers = std::move(handlers);
}

void FeedPort::hear(Shared& shared, uint64_t serial, const FeedView& update) {
    Lock lock(shared.mutex);
    if (serial != shared.serial || !shared.handlers.on_update) return;
    shared.handlers.on_update(update);
    ++shared.words;
    if (update.complete) shared.complete = true;
    shared.changed.notify_all();
}

void FeedPort::end(Shared& shared, uint64_t serial, const Error& why) {
    Lock lock(shared.mutex);
    if (serial != shared.serial || !shared.open) return;
    shared.open = false;
    if (shared.handlers.on_end) shared.handlers.on_end(why);
    shared.changed.notify_all();
}

void FeedPort::follow() {
    uint64_t serial = 0;
    {
        Lock lock(shared_->mutex);
        if (!shared_->handlers.on_update) return;
        serial = ++shared_->serial;
        shared_->open = true;
        shared_->complete = false;
    }
    const uint64_t handle = master_.follow(
        client_, {.on_update = [shared = shared_, serial](const FeedView& update) { hear(*shared, serial, update); },
                  .on_end = [shared = shared_, serial](const Error& why) { end(*shared, serial, why); }});
    Lock lock(handle_mutex_);
    handle_ = handle;
}

void FeedPort::give_up() {
    uint64_t handle = 0;
    {
        Lock lock(handle_mutex_);
        handle = std::exchange(handle_, 0);
    }
    if (handle != 0) master_.unfollow(handle);
}

bool FeedPort::wait_until_complete(Duration most) MC_NO_THREAD_ANALYSIS {
    Shared& shared = *shared_;
    std::unique_lock lock(shared.mutex);
    shared.changed.wait_for(lock, most, [&]() MC_NO_THREAD_ANALYSIS { return !shared.open || shared.complete; });
    return shared.open && shared.complete;
}

void FeedPort::drain(Duration silence) MC_NO_THREAD_ANALYSIS {
    Shared& shared = *shared_;
    {
        std::unique_lock lock(shared.mutex);
        for (uint64_t words = shared.words + 1; shared.open && words != shared.words;) {
            words = shared.words;
            shared.changed.wait_for(lock, silence, [&]() MC_NO_THREAD_ANALYSIS { return !shared.open || shared.words != words; });
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
    end(shared, serial, Error(Code::kCancelled, "the feed was given up"));
}

void FeedPort::close() {
    give_up();
    Lock lock(shared_->mutex);
    shared_->handlers = {};
    shared_->open = false;
    shared_->changed.notify_all();
}

}  // namespace mooncake::store
