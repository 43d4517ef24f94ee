// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/master_link.h"

namespace mooncake::store {

/// Where one event stream after another comes in. What an event stream says after it was given up, or after close(), is not heard. Thread-safe; the handlers
/// run one at a time, on the event stream's thread, and must not call back in here.
class EventPort {
public:
    struct Handlers {
        std::function<void(const EventView&)> on_update;
        std::function<void(const Error& why)> on_end;
    };
    EventPort(MasterApi& master, ClientId client, Handlers handlers);
    ~EventPort() { close(); }

    /// The one before must have ended.
    void follow();
    /// Waits for nothing, not even for a handler that runs.
    bool open() const noexcept { return shared_->open.load(std::memory_order_acquire); }
    /// Waits until the event stream has told everything there was at its start; false: it ended, or the time is over.
    bool wait_until_complete(Duration most);
    /// How many updates have come so far, from all event streams.
    uint64_t updates() const;
    /// Waits for the end of the event stream: as long as it goes on saying something, but no longer than `silence` after its last event. Then it is
    /// given up, with kCancelled as its end. Returns when it has ended.
    void drain(Duration silence);
    /// Gives it up, without waiting.
    void give_up();
    /// Nothing is heard any more, nor being handled.
    void close();

private:
    /// Shared with the callbacks, which may come late.
    struct Shared {
        Mutex mutex;  // held while a handler runs
        Handlers handlers MC_GUARDED_BY(mutex);
        std::condition_variable_any changed;
        uint64_t serial MC_GUARDED_BY(mutex) = 0;  // of the one we listen to
        std::atomic<bool> open{false};             // written under the mutex
        bool complete MC_GUARDED_BY(mutex) = false;
        uint64_t events MC_GUARDED_BY(mutex) = 0;
    };
    static void hear(Shared& shared, uint64_t serial, const EventView& update);
    static void end(Shared& shared, uint64_t serial, const Error& why);

    MasterApi& master_;
    const ClientId client_;
    const std::shared_ptr<Shared> shared_;
    Mutex handle_mutex_;
    uint64_t handle_ MC_GUARDED_BY(handle_mutex_) = 0;  // of the last one
};

}  // namespace mooncake::store
