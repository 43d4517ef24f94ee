// SPDX-License-Identifier: Apache-2.0
#include "store/client/client_core.h"

#include <cerrno>

#include "base/incarnation.h"
#include "base/log.h"
#include "store/allocation/placement.h"

namespace mooncake::store {

namespace {

constexpr Duration kLookupPatience = 2s;
constexpr Duration kFencePatience = 100ms;  // for a word from who has just let us wait: else its memory rests for now, that is all

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

ClientCore::ClientCore(StoreConfig client_config, std::shared_ptr<Engine> client_engine, std::unique_ptr<MasterApi> client_master,
                       std::string client_name)
    : config(std::move(client_config)), id{.high = random_u64(), .low = random_u64()}, name(std::move(client_name)), host(host_of(name)),
      engine(std::move(client_engine)), master(std::move(client_master)), metrics(config.options.cluster_id), directory(*master, id),
      mover(*engine, host), doubts(doubt_hooks()) {}

void ClientCore::begin_closing() {
    fence.stop();
    Lock lock(pause_mutex_);
    closing.store(true, std::memory_order_release);
    closing_changed_.notify_all();
}

bool ClientCore::pause(Duration time) {
    std::unique_lock lock(pause_mutex_);
    return !closing_changed_.wait_for(lock, time, [this] { return closing.load(std::memory_order_acquire); });
}

StoreCode ClientCore::code_of(const Error& error) const {
    if (closing.load(std::memory_order_acquire)) return StoreCode::kUnavailableInCurrentStatus;
    return error.code() == Code::kTimedOut ? StoreCode::kRpcTimeout : StoreCode::kRpcFail;
}

bool ClientCore::fence_peer(const std::string& endpoint) const {
    // The engine fences a peer before it uses it again. The first try may only find out that a connection is lost.
    for (int tries = 0; tries < 2 && !closing.load(std::memory_order_acquire); ++tries) {
        const auto fenced = engine->refresh_segment(endpoint, Deadline::after(kFencePatience));
        // Nobody listens: the process that could have taken late bytes is gone.
        if (fenced || fenced.error().system_errno() == ECONNREFUSED) return true;
        if (fenced.error().code() == Code::kTimedOut) break;
    }
    return false;
}

DoubtfulWrites::Hooks ClientCore::doubt_hooks() {
    const auto fence_if_alive = [this](const std::string& endpoint) {
        // Only if it answers: to fence it ends what others of our threads move there just now.
        const auto alive = engine->probe(endpoint, Deadline::after(kFencePatience));
        return (alive || alive.error().system_errno() == ECONNREFUSED) && fence_peer(endpoint);
    };
    const auto tell_master = [this](std::span<const DoubtfulWrites::Write> settled) {
        std::vector<PutEndItem> items;
        for (const DoubtfulWrites::Write& write : settled) items.push_back({.key = write.key, .generation = write.generation});
        const PutRevokeRequest request{.client = id, .tenant = config.tenant, .items = items};
        return ask(MasterCall::kPutRevoke, [&] { return master->put_revoke(request, rpc_deadline()); }).has_value();
    };
    return {.fence = fence_if_alive, .tell = tell_master};
}

bool ClientCore::segment_failed(const SegmentHandle& segment, const Error& error) {
    if (closing.load(std::memory_order_acquire)) return false;
    MC_LOG_WARNING_EVERY(1s, "segment {}: {}", segment->spec.name, error.to_string());
    metrics.replica_failures.add();
    if (!blames_segment(error.code())) return false;
    directory.failed(segment, Clock::now());
    leases.forget_promises();
    return true;
}

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
    auto segment = core_.directory.find(epoch, number, Deadline::after(kLookupPatience));
    if (!segment) {
        if (segment.error().code() != Code::kNotFound) MC_LOG_WARNING_EVERY(1s, "segment {}: {}", number, segment.error().to_string());
        return added;
    }
    added.segment = std::move(*segment);
    added.own = core_.local.find(added.segment->spec.id);
    added.distance = added.own ? 0 : host_of(added.segment->spec.name) == core_.host ? 1 : 2;
    return added;
}

}  // namespace mooncake::store
