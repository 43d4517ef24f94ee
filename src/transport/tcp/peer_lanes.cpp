// SPDX-License-Identifier: Apache-2.0
// How the lanes of a peer are replaced without those who have something under way, except one, noticing.
#include <exception>
#include <utility>

#include "base/thread.h"
#include "transport/tcp/peer.h"

namespace mooncake::tcp {

bool TcpPeer::suspend_lanes(const Completion& completion, const Error& reason, FinishedList& finished) {
    bool found = false;
    for (const auto& slot : slots_) {
        Lock lock(slot->mutex);
        found = found || slot->lane.in_flight(&completion).any;
    }
    if (!found) return false;  // its answers have come meanwhile
    for (const auto& slot : slots_) {
        Lock lock(slot->mutex);
        if (slot->lane.fd() < 0) continue;
        if (slot->lane.in_flight(nullptr).write) in_doubt_.store(true, std::memory_order_release);
        slot->lane.suspend(completion, reason, finished);
        slot->wants.store(0, std::memory_order_seq_cst);
    }
    return true;
}

bool TcpPeer::resume_lanes(const SessionId& session, std::vector<Greeted> lanes) {
    {
        Lock lock(failure_mutex_);
        if (broken_.load(std::memory_order_relaxed)) return false;
        session_ = session;
        in_doubt_.store(false, std::memory_order_release);
    }
    bool all = true;
    for (size_t i = 0; i < slots_.size(); ++i) {
        Slot& slot = *slots_[i];
        slot.mutex.lock();
        if (slot.lane.fd() >= 0) {
            all &= slot.lane.resume(std::move(lanes[i].socket), (lanes[i].features & kFeatureChecksum) != 0).has_value();
            slot.armed = 0;
        }
        step(slot, kLeaveBytes, Attention::kSomebody);
    }
    bell_->ring();
    return all;
}

void TcpPeer::replace_lanes(const Completion& completion, const Error& reason, Deadline deadline) {
    {
        Lock lock(failure_mutex_);
        if (broken_.load(std::memory_order_relaxed)) return;
        initiator_.fences.doubt(target_.incarnation, session_);
    }
    FinishedList finished;
    if (!suspend_lanes(completion, reason, finished)) {
        Lock lock(failure_mutex_);
        if (!broken_.load(std::memory_order_relaxed)) initiator_.fences.settled(target_.incarnation, {&session_, 1});
        return;
    }
    const SessionId session = SessionId::random();
    auto lanes = open_lanes(session, deadline);
    unanswered_ = !lanes;
    if (!lanes || !resume_lanes(session, std::move(*lanes)))
        break_off({.error = Error(Code::kUnavailable,
                                  format_text("{}: the peer did not answer when it was to stop another transfer", target_.to_string())),
                   .special = &completion,
                   .reason = reason});
    finished.deliver();
}

const Completion* TcpPeer::culprit() const {
    for (const auto& slot : slots_) {
        Lock lock(slot->mutex);
        if (slot->lane.fd() >= 0 && slot->lane.culprit() != nullptr) return slot->lane.culprit();
    }
    return nullptr;
}

void TcpPeer::mend_soon() noexcept {
    try {
        Lock lock(mend_mutex_);
        mend_again_ = true;
        if (mending_) return;
        mender_ = start_thread("mc-tcp-mend", [this] { mend_lanes(); });  // the last one has nothing left to do
        mending_ = true;
    } catch (const std::exception&) {
        break_off({.error = out_of_memory()});
    }
}

void TcpPeer::mend_lanes() {
    for (;;) {
        {
            Lock lock(mend_mutex_);
            mending_ = std::exchange(mend_again_, false);
            if (!mending_) return;
        }
        try {
            const Error reason = error(Code::kNotRegistered, "{}: local memory is not accessible", target_.to_string());
            Lock asking(fence_mutex_);
            // Whoever it is, its message stays where it is while we hold this: only the end of the peer could take it away.
            const Completion* const one = culprit();
            if (one == nullptr) continue;
            FinishedList finished;
            queue_.remove(*one, reason, finished);
            replace_lanes(*one, reason, Deadline::after(kMendTime));
            finished.deliver();
        } catch (const std::exception&) {
            break_off({.error = out_of_memory()});
        }
    }
}

}  // namespace mooncake::tcp
