// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "store/protocol/feed.h"
#include "tests/simulation/world.h"

namespace mooncake::store::simulation {

/// The connection over which one life of a master tells one life of a client: in order, nothing lost or doubled while it lasts. What was
/// written before its writer was killed still arrives, and then its end; of a lost host the last words do not.
class SimFeed : public std::enable_shared_from_this<SimFeed> {
public:
    struct Receiver {
        std::function<void(const FeedUpdate&)> on_update;
        std::function<void(bool orderly)> on_end;  // by its other end; orderly: after its last word
    };
    SimFeed(World& world, const Endpoint& to, Receiver receiver) : world_(world), to_(to), life_(to.life), receiver_(std::move(receiver)) {}

    void write(FeedUpdate update) {
        if (!ended_) push(std::move(update));
    }
    /// The writer closed it, or was killed.
    void end() {
        if (!ended_) push(std::nullopt);
        ended_ = true;
    }
    /// The writer gives the reader up for being too slow: it will go on without telling.
    void cut_off() {
        end();
        orderly_ = false;
    }
    /// The writer's host is gone, with the last of what it had written.
    void lose() {
        ended_ = true;
        queue_.resize(world_.random.below(queue_.size() + 1));
    }
    /// The reader does not listen any more.
    void close() { closed_ = true; }
    bool closed() const { return closed_; }

private:
    void push(std::optional<FeedUpdate> update) {
        queue_.push_back(std::move(update));
        const Duration delay = world_.chance(0.03) ? world_.between(50ms, 500ms) : world_.between(1ms, 40ms);
        arrival_ = std::max(arrival_, world_.now() + delay);
        world_.after(arrival_ - world_.now(), [self = shared_from_this()] { self->deliver(); });
    }
    void deliver() {
        if (closed_ || to_.life != life_ || !to_.up || queue_.empty()) return;
        if (to_.cut_until > world_.now()) {
            world_.after(to_.cut_until - world_.now(), [self = shared_from_this()] { self->deliver(); });
            return;
        }
        const std::optional<FeedUpdate> update = std::move(queue_.front());
        queue_.pop_front();
        if (update) receiver_.on_update(*update);
        else receiver_.on_end(orderly_);
    }

    World& world_;
    const Endpoint& to_;
    const uint64_t life_;
    const Receiver receiver_;
    std::deque<std::optional<FeedUpdate>> queue_;  // nothing: the end
    Time arrival_{};
    bool ended_ = false, closed_ = false, orderly_ = true;
};

}  // namespace mooncake::store::simulation
