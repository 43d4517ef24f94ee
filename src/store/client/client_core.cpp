// SPDX-License-Identifier: Apache-2.0
#include "store/client/client_core.h"

#include "base/incarnation.h"
#include "base/log.h"
#include "store/allocation/placement.h"

namespace mooncake::store {

namespace {

constexpr Duration kLookupPatience = 2s;

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
      mover(*engine, host) {}

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
