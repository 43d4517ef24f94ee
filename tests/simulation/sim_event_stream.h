// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "rpc/rpc.h"
#include "store/protocol/messages_events.h"
#include "tests/simulation/world.h"

namespace mooncake::store::simulation {

/// The connection over which one life of a master tells one life of a node: in order, nothing lost or doubled while it lasts. The kernels on
/// both sides take so many bytes of what was not read yet; the rest is the writer's own. What the kernels have of a writer that was killed
/// still arrives, and then an end that looks like any other; what was the writer's own does not. Of a lost host the last events do not either.
class SimEventStream : public std::enable_shared_from_this<SimEventStream> {
public:
    struct Receiver {
        std::function<void(const EventUpdate&)> on_update;
        std::function<void(bool orderly)> on_end;  // by its other end; orderly: as one that was closed
    };
    SimEventStream(World& world, const Endpoint& to, Receiver receiver)
        : world_(world), to_(to), life_(to.life), receiver_(std::move(receiver)),
          kernel_bytes_max_(world.chance(0.3) ? 200 + world.random.below(3'000) : 1 << 20) {}

    // ---- the writer's end

    bool write(rpc::Bytes update) {
        if (ended_ || abandoned() || choked_) return false;
        unsent_bytes_ += update.size();
        unsent_.push_back(std::move(update));
        send_some();
        return true;
    }
    uint64_t unsent_bytes() const noexcept { return unsent_bytes_; }
    /// Closed, after all that was written.
    void finish() {
        end_with([&] { finishing_ = true; });
    }
    /// Ended with an error, after all that was written.
    void fail() {
        end_with([&] {
            orderly_ = false;
            finishing_ = true;
        });
    }
    /// Broken off: the reader learns that it has not got everything.
    void break_off() {
        end_with([&] {
            orderly_ = complete_ = false;
            drop_unsent();
            push(std::nullopt);
        });
    }
    /// The writer was killed.
    void kill() {
        end_with([&] {
            world_.bytes_lost += unsent_bytes_;
            drop_unsent();
            push(std::nullopt);
        });
    }
    /// The writer's host is gone, with the last of what it had written. Nobody learns of it.
    void lose() {
        end_with([&] {
            drop_unsent();
            complete_ = false;
            kernel_.resize(world_.random.below(kernel_.size() + 1));
        });
    }
    /// The connection breaks, with the last of what the kernels had. Both learn of it, the writer at once.
    void tear() {
        end_with([&] {
            orderly_ = complete_ = false;
            torn_ = true;
            drop_unsent();
            kernel_.resize(world_.random.below(kernel_.size() + 1));
            push(std::nullopt);
        });
    }
    /// Whatever is written next is too much.
    void choke() { choked_ = true; }
    bool abandoned() const noexcept { return torn_ || unread(); }
    /// The kernels have all there was at its beginning, it was not broken off, and the reader has not given it up.
    bool complete() const { return complete_ && !abandoned(); }

    // ---- the reader's

    /// It does not listen any more.
    void close() { closed_ = true; }

private:
    struct Sent {
        EventUpdate update;
        size_t bytes = 0;
    };

    bool unread() const noexcept { return closed_ || to_.life != life_; }
    template <typename Action>
    void end_with(Action&& action) {
        if (std::exchange(ended_, true)) return;
        action();
        send_some();
    }
    void drop_unsent() {
        unsent_.clear();
        unsent_bytes_ = 0;
    }
    void send_some() {
        while (!unsent_.empty() && (kernel_bytes_ == 0 || kernel_bytes_ + unsent_.front().size() <= kernel_bytes_max_)) {
            const rpc::Bytes body = std::move(unsent_.front());
            unsent_.pop_front();
            unsent_bytes_ -= body.size();
            kernel_bytes_ += body.size();
            auto update = decode_event_update(body);
            MC_CHECK(update);
            complete_ |= update->complete;
            push(Sent{.update = std::move(*update), .bytes = body.size()});
        }
        if (unsent_.empty() && std::exchange(finishing_, false)) push(std::nullopt);
    }
    void push(std::optional<Sent> sent) {
        kernel_.push_back(std::move(sent));
        const Duration delay = world_.chance(0.03) ? world_.between(50ms, 500ms) : world_.between(1ms, 40ms);
        arrival_ = std::max(arrival_, world_.now() + delay);
        world_.after(arrival_ - world_.now(), [self = shared_from_this()] { self->deliver(); });
    }
    void deliver() {
        if (unread() || !to_.up || kernel_.empty()) return;
        if (to_.cut_until > world_.now()) {
            world_.after(to_.cut_until - world_.now(), [self = shared_from_this()] { self->deliver(); });
            return;
        }
        const std::optional<Sent> sent = std::move(kernel_.front());
        kernel_.pop_front();
        if (!sent) return receiver_.on_end(orderly_);
        kernel_bytes_ -= sent->bytes;
        send_some();
        receiver_.on_update(sent->update);
    }

    World& world_;
    const Endpoint& to_;
    const uint64_t life_;
    const Receiver receiver_;
    const uint64_t kernel_bytes_max_;
    std::deque<rpc::Bytes> unsent_;
    uint64_t unsent_bytes_ = 0, kernel_bytes_ = 0;
    std::deque<std::optional<Sent>> kernel_;  // nothing: the end
    Time arrival_{};
    bool ended_ = false, finishing_ = false, closed_ = false, orderly_ = true, choked_ = false, complete_ = false, torn_ = false;
};

}  // namespace mooncake::store::simulation
