// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "base/error.h"
#include "base/incarnation.h"

namespace mooncake {

/// The life of one peer that the addresses of one calling thread belong to, as far as can be told: callers pass bare numbers, so a thread
/// stands for whoever calls from it. Shared by the thread and by what it has submitted or prepared, which may be the first to meet a life. That
/// this one is over is said only by a call of that very thread which returns it. Thread-safe.
class CallerLife {
public:
    /// None: this caller has not dealt with the peer since it was last told of a restart.
    Incarnation get() const noexcept { return Incarnation{life_.load(std::memory_order_relaxed)}; }
    /// The caller deals with this life, unless it has one already.
    void met(Incarnation life) noexcept {
        uint64_t none = 0;
        if (life && life_.load(std::memory_order_relaxed) == 0) life_.compare_exchange_strong(none, life.value, std::memory_order_relaxed);
    }
    /// The caller hears from the call it is in that this life is over. Nothing if it deals with another one already.
    void told(Incarnation life) noexcept { life_.compare_exchange_strong(life.value, 0, std::memory_order_relaxed); }
    /// At the end of a call that was for this life; `error`: what it returns to the caller, or null.
    void dealt(Incarnation life, const Error* error) noexcept {
        if (error != nullptr && error->code() == Code::kStale) told(life);
        else met(life);
    }
    /// The caller has addresses of this life now, whatever it had before.
    void asked(Incarnation life) noexcept { life_.store(life.value, std::memory_order_relaxed); }

private:
    std::atomic<uint64_t> life_{0};
};

/// The addresses that a transfer uses: of which life, as for Session::link_to(), and who passed them, if it did not say so: the threads that are
/// given the outcome are told then that this life is over.
struct Addresses {
    Incarnation life = {};
    std::shared_ptr<CallerLife> caller = nullptr;
};

/// Names one session among all that a thread may know, for as long as that session lives.
class CallerKey {
public:
    /// What the calling thread has to do with that session. Takes no lock; allocates the first time.
    const std::shared_ptr<CallerLife>& of_this_thread() const;
    /// How many sessions the calling thread remembers, for tests.
    static size_t known_to_this_thread();

private:
    const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);  // its address is the name
};

}  // namespace mooncake
