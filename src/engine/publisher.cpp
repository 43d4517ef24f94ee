// SPDX-License-Identifier: Apache-2.0
#include "engine/publisher.h"

#include "base/log.h"
#include "engine/descriptor_json.h"
#include "net/address.h"

namespace mooncake {

namespace {

constexpr Duration kGather = 50ms;  // changes within this time are published together
constexpr Duration kDirectoryPatience = 3s;
constexpr Duration kLifePatience = 1s;  // for the answer of an engine that may have gone with its host
constexpr int kPutAttemptsMax = 3;
constexpr uint32_t kBuffersListed = 4096;  // for people and tools; peers never need the list

}  // namespace

Result<> Publisher::publish(Deadline deadline) {
    const SegmentDescriptor own = describe_(0);
    MC_RETURN_IF_ERROR(publish_address(own, deadline));
    return publish_descriptor(deadline);
}

Result<> Publisher::publish_address(const SegmentDescriptor& own, Deadline deadline) {
    const std::string key = rpc_meta_key(cluster_id_, name_);
    const std::string meta = rpc_meta_to_json({.host = own.host, .rpc_port = own.rpc_port});
    for (int attempt = 1;; ++attempt) {
        auto put = directory_.put(key, meta, deadline);
        if (put || put.error().code() != Code::kAlreadyExists || attempt == kPutAttemptsMax) return put;
        MC_RETURN_IF_ERROR(remove_leftover(key, deadline));
    }
}

/// The entry of somebody who is gone. With two live engines of one name, peers of the one would write to the other.
Result<> Publisher::remove_leftover(const std::string& key, Deadline deadline) {
    const auto listed = directory_.get(key, deadline);
    const auto meta = listed ? rpc_meta_from_json(*listed) : Result<RpcMeta>(Unexpected(listed.error()));
    if (meta) {
        const std::string address = net::join_host_port(meta->host, meta->rpc_port);
        if (lives_(address, deadline.earlier(Deadline::after(kLifePatience))))
            return fail(Code::kAlreadyExists, "another engine named {} is alive, at {}", name_, address);
    }
    return directory_.remove(key, deadline);
}

Result<> Publisher::publish_descriptor(Deadline deadline) {
    return directory_.put(descriptor_key(cluster_id_, name_), descriptor_to_json(describe_(kBuffersListed)), deadline);
}

void Publisher::changed() {
    Lock lock(mutex_);
    if (scheduled_) return;
    const auto publish_now = [this] {
        {
            Lock inner(mutex_);
            scheduled_ = false;
        }
        auto published = publish_descriptor(Deadline::after(kDirectoryPatience));
        if (!published) MC_LOG_WARNING_EVERY(10s, "the directory does not take our descriptor: {}", published.error().to_string());
    };
    scheduled_ = service_.post_at(Clock::now() + kGather, publish_now, reinterpret_cast<uintptr_t>(this));
}

void Publisher::withdraw(Deadline deadline) {
    const auto listed = directory_.get(descriptor_key(cluster_id_, name_), deadline);
    if (!listed) return;
    const auto descriptor = descriptor_from_json(*listed);
    if (descriptor && descriptor->incarnation != describe_(0).incarnation) return;
    for (const std::string& key : {rpc_meta_key(cluster_id_, name_), descriptor_key(cluster_id_, name_)})
        if (auto removed = directory_.remove(key, deadline); !removed)
            MC_LOG_WARNING("cannot withdraw {}: {}", key, removed.error().to_string());
}

}  // namespace mooncake
