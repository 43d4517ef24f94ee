// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/time.h"
#include "store/allocation/random.h"

namespace mooncake::store::simulation {

/// Somebody who can be reached, cut off, and restarted.
struct Endpoint {
    uint64_t life = 1;  // rises when it crashes: what was sent to an earlier life is lost
    bool up = true;
    Time cut_until{};  // no message gets through before
};

/// A clock that only moves from event to event, a network that loses, delays, doubles and reorders, and one seed for all of it.
class World {
public:
    explicit World(uint64_t seed) : random(seed) {}

    Time now() const { return now_; }
    void after(Duration delay, std::function<void()> action) { events_.push({now_ + delay, ++sequence_, std::move(action)}); }
    /// The action of `to`, if the message arrives, once or more often.
    void send(const Endpoint& from, const Endpoint& to, std::function<void()> action) {
        if (from.cut_until > now_ || chance(loss)) return;
        deliver(to, action);
        if (chance(doubling)) deliver(to, action);
    }
    bool chance(double probability) { return static_cast<double>(random.below(1 << 20)) < probability * (1 << 20); }
    Duration between(Duration low, Duration high) {
        return low + Duration(static_cast<Duration::rep>(random.below(static_cast<uint64_t>((high - low).count()) + 1)));
    }

    /// Tells what happens, in a run that is repeated to be understood.
    template <typename... Args>
    void note(fmt::format_string<Args...> text, Args&&... arguments) const {
        if (loud) std::printf("%ld ms: %s\n", milliseconds(), format_text(text, std::forward<Args>(arguments)...).c_str());
    }
    /// The first thing that must never happen; the run stops there.
    void violated(std::string what) {
        if (violation.empty()) violation = format_text("at {} ms: {}", milliseconds(), what);
    }
    void run_until(Time end) {
        while (violation.empty() && !events_.empty() && events_.top().at <= end) {
            const Event event = events_.top();
            events_.pop();
            now_ = event.at;
            event.action();
        }
        now_ = end;
    }

    Random random;
    static constexpr Duration kLatest = 1000ms;  // of any message
    double loss = 0.02, doubling = 0.02;
    bool loud = false;
    uint64_t bytes_lost = 0;  // of event streams, with a master that was killed before the kernel had them
    std::string violation;

private:
    long milliseconds() const { return std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch()).count(); }

    struct Event {
        Time at;
        uint64_t sequence;
        std::function<void()> action;
        friend bool operator<(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.sequence > b.sequence; }
    };

    /// Mostly quick, sometimes late; never as late as a client's time to live, as deadlines of calls see to.
    void deliver(const Endpoint& to, const std::function<void()>& action) {
        const Duration delay = chance(0.03) ? between(50ms, kLatest) : between(1ms, 40ms);
        after(delay, [this, &to, life = to.life, action] {
            if (to.up && to.life == life && to.cut_until <= now_) action();
        });
    }

    Time now_{1000s};
    uint64_t sequence_ = 0;
    std::priority_queue<Event> events_;
};

}  // namespace mooncake::store::simulation
