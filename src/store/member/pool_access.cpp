// SPDX-License-Identifier: Apache-2.0
#include "store/member/pool_access.h"

#include <cerrno>
#include <utility>

#include "base/incarnation.h"
#include "base/log.h"
#include "store/allocation/placement.h"

namespace mooncake::store {

namespace {

constexpr Duration kProbePatience = 100ms;
constexpr Duration kLookupPatience = 2s;
constexpr Duration kFencePatience =
    100ms;  // for an answer of who has just let us wait: else its memory stays in quarantine for now, that is all

bool blames_segment(Code code) {
    switch (code) {
        case Code::kUnavailable:
        case Code::kStale:
        case Code::kTimedOut:
        case Code::kRefused:
        case Code::kCorrupt:
        case Code::kNotSupported:
        case Code::kInternal: return true;
        default: return false;
    }
}

}  // namespace

PoolAccess::PoolAccess(Setup setup)
    : id(setup.id ? setup.id : ClientId{.high = random_u64(), .low = random_u64()}), name(std::move(setup.name)), host(host_of(name)),
      engine(std::move(setup.engine)), master(std::move(setup.master)), rpc_timeout(setup.rpc_timeout), metrics(setup.cluster_id),
      directory(*master, id), mover(*engine, host) {}

Result<> PoolAccess::join(std::vector<MembershipListener*> listeners, Holdings& holdings, MembershipOptions options, Deadline deadline) {
    listeners_ = std::move(listeners);
    options.life = engine->incarnation();
    membership_ = Membership::create(*master, id, *this, holdings, options);
    return membership_->start(deadline);
}

void PoolAccess::begin_closing() {
    fence.stop();
    {
        Lock lock(pause_mutex_);
        closing.store(true, std::memory_order_release);
        closing_changed_.notify_all();
    }
    master->stop_calls();
    mover.stop_all();
}

void PoolAccess::leave(bool goodbye) {
    directory.stop();
    if (membership_) membership_->stop(goodbye);
    local.clear();
}

bool PoolAccess::pause(Duration time) {
    std::unique_lock lock(pause_mutex_);
    return !closing_changed_.wait_for(lock, time, [this] { return closing.load(std::memory_order_acquire); });
}

StoreCode PoolAccess::code_of(const Error& error) const {
    if (closing.load(std::memory_order_acquire)) return StoreCode::kUnavailableInCurrentStatus;
    return error.code() == Code::kTimedOut ? StoreCode::kRpcTimeout : StoreCode::kRpcFail;
}

bool PoolAccess::fence_peer(const std::string& endpoint) const {
    // The engine fences a peer before it uses it again. The first try may only find out that a connection is lost.
    for (int tries = 0; tries < 2 && !closing.load(std::memory_order_acquire); ++tries) {
        const auto fenced = engine->reconnect(endpoint, Deadline::after(kFencePatience));
        // Nobody listens: the process that could have taken late bytes is gone.
        if (fenced || fenced.error().system_errno() == ECONNREFUSED) return true;
        if (fenced.error().code() == Code::kTimedOut) break;
    }
    return false;
}

bool PoolAccess::fence_if_alive(const std::string& endpoint) const {
    const auto alive = engine->probe(endpoint, Deadline::after(kProbePatience));
    return (alive || alive.error().system_errno() == ECONNREFUSED) && fence_peer(endpoint);
}

bool PoolAccess::segment_failed(const SegmentHandle& segment, const Error& error) {
    if (closing.load(std::memory_order_acquire)) return false;
    MC_LOG_WARNING_EVERY(1s, "segment {}: {}", segment->spec.name, error.to_string());
    metrics.replica_failures.add();
    if (!blames_segment(error.code())) return false;
    directory.failed(segment, Clock::now());
    segment_failed_();
    return true;
}

// ---- what the pool tells us

void PoolAccess::keys_changed(const std::vector<KeyChanged>& keys) {
    for (MembershipListener* listener : listeners_) listener->keys_changed(keys);
}

void PoolAccess::all_keys_changed() {
    for (MembershipListener* listener : listeners_) listener->all_keys_changed();
}

void PoolAccess::master_lost() {
    fence.shut();
    mover.stop_writes();
    fence.drain();
    for (MembershipListener* listener : listeners_) listener->master_lost();
    directory.forget_all();
}

void PoolAccess::master_found(uint64_t epoch) {
    mover.allow_writes();
    for (MembershipListener* listener : listeners_) listener->master_found(epoch);
    fence.open(epoch);
}

void PoolAccess::copy_ordered(const CopyOrder& order) {
    for (MembershipListener* listener : listeners_) listener->copy_ordered(order);
}

// ---- segments

const SegmentLookup::Found& SegmentLookup::find(uint64_t epoch, uint32_t number) {
    const auto matches = [&](const Found& one) { return one.number == number && one.epoch == epoch; };
    if (last_ < found_.size() && matches(found_[last_])) return found_[last_];
    for (size_t i = 0; i < found_.size(); ++i) {
        if (!matches(found_[i])) continue;
        last_ = i;
        return found_[i];
    }
    Found& added = found_.emplace_back();
    last_ = found_.size() - 1;
    added.epoch = epoch;
    added.number = number;
    auto segment = pool_.directory.find(epoch, number, Deadline::after(kLookupPatience));
    if (!segment) {
        if (segment.error().code() != Code::kNotFound) MC_LOG_WARNING_EVERY(1s, "segment {}: {}", number, segment.error().to_string());
        return added;
    }
    added.segment = std::move(*segment);
    added.own = pool_.local.find(added.segment->spec.id);
    added.distance = added.own ? 0 : host_of(added.segment->spec.name) == pool_.host ? 1 : 2;
    return added;
}

}  // namespace mooncake::store
