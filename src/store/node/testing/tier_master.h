// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "store/member/testing/fake_master.h"

namespace mooncake::store::testing {

/// A FakeMaster that hears of tiers, and that says where values are if it was told. Thread-safe.
class TierMaster : public FakeMaster {
public:
    struct Gone {
        std::string tenant, key;
        uint64_t generation = 0;
        SegmentId segment;
    };
    struct Where {
        GetItem item;
        std::vector<ReplicaLocation> replicas;
    };

    Result<CodesReply> end_copies(const CopiesEnd& end, Deadline) override {
        Lock lock(lock_);
        if (deaf_) return fail(Code::kUnavailable, "not now");
        ends_.insert(ends_.end(), end.items.begin(), end.items.end());
        window_ = end.window_bytes;
        ++calls_;
        return CodesReply{.codes = std::vector<StoreCode>(end.items.size(), StoreCode::kOk)};
    }
    Result<StoreCode> replicas_gone(const ReplicasGone& gone, Deadline) override {
        Lock lock(lock_);
        if (deaf_) return fail(Code::kUnavailable, "not now");
        for (const GoneReplica& one : gone.items)
            gone_.push_back({std::string(one.tenant), std::string(one.key), one.generation, gone.segment});
        return StoreCode::kOk;
    }
    Result<GetReply> get_replicas(const KeysRequest& request, Deadline) override {
        Lock lock(lock_);
        GetReply reply{.items = {}, .replicas = {}, .lease = 30s, .epoch = 100};
        for (const std::string_view key : request.keys) {
            const auto found = where_.find(std::string(key));
            GetItem item{.code = StoreCode::kObjectNotFound};
            if (found != where_.end()) {
                item = found->second.item;
                item.first_replica = static_cast<uint32_t>(reply.replicas.size());
                for (const ReplicaLocation& replica : found->second.replicas)
                    if (std::find(request.unreachable.begin(), request.unreachable.end(), replica.segment) == request.unreachable.end())
                        reply.replicas.push_back(replica);
                item.replica_count = static_cast<uint32_t>(reply.replicas.size()) - item.first_replica;
                if (item.replica_count == 0) item = {.code = StoreCode::kObjectNotFound};
            }
            reply.items.push_back(item);
        }
        ++asked_;
        return reply;
    }

    void set_deaf(bool deaf) {
        Lock lock(lock_);
        deaf_ = deaf;
    }
    void set_where(const std::string& key, Where where) {
        Lock lock(lock_);
        where_[key] = std::move(where);
    }
    std::vector<CopyEnd> ends() const {
        Lock lock(lock_);
        return ends_;
    }
    std::vector<Gone> gone() const {
        Lock lock(lock_);
        return gone_;
    }
    uint64_t window() const {
        Lock lock(lock_);
        return window_;
    }

private:
    mutable Mutex lock_;
    std::vector<CopyEnd> ends_ MC_GUARDED_BY(lock_);
    std::vector<Gone> gone_ MC_GUARDED_BY(lock_);
    std::map<std::string, Where> where_ MC_GUARDED_BY(lock_);
    uint64_t window_ MC_GUARDED_BY(lock_) = 0;
    int calls_ MC_GUARDED_BY(lock_) = 0, asked_ MC_GUARDED_BY(lock_) = 0;
    bool deaf_ MC_GUARDED_BY(lock_) = false;
};

}  // namespace mooncake::store::testing
