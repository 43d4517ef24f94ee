// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "rpc/rpc.h"
#include "store/protocol/messages.h"

namespace mooncake::store::testing {

constexpr Duration kPatience = 20s;  // against hangs; nothing is measured with it

/// Asks again and again until true; false after kPatience. For states nobody announces.
template <typename Predicate>
bool eventually(Predicate&& predicate) {
    const Deadline deadline = Deadline::after(kPatience);
    while (!predicate()) {
        if (deadline.passed()) return false;
        std::this_thread::sleep_for(1ms);
    }
    return true;
}

/// What a responder in the hands of the test was told. Thread-safe.
class Told {
public:
    /// As heard by this process.
    explicit Told(Incarnation process = {}) : process_(process) {}

    std::vector<EventUpdate> updates() {
        Lock lock(mutex_);
        return updates_;
    }
    std::vector<EventUpdate> take() {
        Lock lock(mutex_);
        return std::exchange(updates_, {});
    }
    std::optional<rpc::Bytes> reply() {
        Lock lock(mutex_);
        return reply_;
    }
    std::optional<Error> error() {
        Lock lock(mutex_);
        return error_;
    }
    bool over() { return reply() || error(); }
    /// From now on parts are refused, as by a reader that is too slow.
    void clog() { clogged_ = true; }
    /// The connection is lost.
    void vanish() { vanished_ = true; }
    /// From now on the kernel takes nothing of what is sent, until let_go().
    void hold_back() { held_back_ = true; }
    void let_go() {
        held_back_ = false;
        unsent_ = 0;
    }
    /// It was ended by breaking the connection. `in_break_off` runs when that happens.
    bool broken_off() const { return broken_off_; }
    std::function<void()> in_break_off;
    /// Runs when a part is sent.
    std::function<void()> in_part;

    std::unique_ptr<rpc::Responder> responder() { return std::make_unique<Fake>(*this); }

private:
    class Fake final : public rpc::Responder {
    public:
        explicit Fake(Told& told) : told_(told), peer_{.incarnation = told.process_} {}
        void reply(rpc::Bytes body) override {
            Lock lock(told_.mutex_);
            told_.reply_ = std::move(body);
        }
        void fail(const Error& error) override {
            Lock lock(told_.mutex_);
            told_.error_ = error;
        }
        using Responder::part;
        bool part(rpc::Bytes body, Haste) override {
            if (told_.clogged_ || told_.vanished_) return false;
            auto update = decode_event_update(body);
            MC_CHECK(update);
            if (told_.in_part) told_.in_part();
            if (told_.held_back_) told_.unsent_ += body.size();
            Lock lock(told_.mutex_);
            told_.updates_.push_back(std::move(*update));
            return true;
        }
        uint64_t unsent_bytes() const noexcept override { return told_.unsent_; }
        void break_off(const Error& error) override {
            if (told_.in_break_off) told_.in_break_off();
            told_.broken_off_ = true;
            fail(error);
        }
        bool abandoned() const noexcept override { return told_.vanished_; }
        Deadline deadline() const noexcept override { return Deadline::never(); }
        const rpc::PeerInfo& peer() const noexcept override { return peer_; }

    private:
        Told& told_;
        rpc::PeerInfo peer_;
    };

    const Incarnation process_;
    Mutex mutex_;
    std::vector<EventUpdate> updates_ MC_GUARDED_BY(mutex_);
    std::optional<rpc::Bytes> reply_ MC_GUARDED_BY(mutex_);
    std::optional<Error> error_ MC_GUARDED_BY(mutex_);
    std::atomic<bool> clogged_{false}, vanished_{false}, held_back_{false}, broken_off_{false};
    std::atomic<uint64_t> unsent_{0};
};

}  // namespace mooncake::store::testing
