// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/master/testing/check.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

/// For the messages of failed tests; found by argument-dependent lookup.
inline void PrintTo(StoreCode code, std::ostream* to) { *to << store_code_name(code); }

/// A master with a clock of its own, some nodes and a client, for tests: one line per thing that happens. After each test the state must
/// agree with itself, and replaying its changes must give the same state.
class PoolTest : public testing::Test {
protected:
    static constexpr uint64_t kKiB = 1024;
    static constexpr uint64_t kPool = 64 * kKiB;  // of a node: values up to this length take just that
    static constexpr ClientId kClient{1, 1}, kOther{1, 2};

    void use(const MasterOptions& options) { state_ = std::make_unique<MasterState>(options_ = options); }
    void TearDown() override {
        if (!state_) return;
        const Result<> agreed = check_state(*state_);
        EXPECT_TRUE(agreed) << agreed.error().to_string();
        MasterState replayed(options_);
        for (const Change& change : log_) replayed.apply(change);
        EXPECT_EQ(dump_state(replayed), dump_state(*state_));
    }

    MasterState& state() {
        if (!state_) use(options_);
        return *state_;
    }
    Transaction transaction() { return Transaction(state(), &log_); }
    void pass(Duration time) { now_ += time; }
    HeartbeatStatus beat(const ClientId& client) {
        auto t = transaction();
        return heartbeat(t, client, now_).status;
    }

    // nodes
    static ClientId node(uint64_t number) { return {2, number}; }
    static SegmentSpec spec(uint64_t number, uint64_t size) {
        return {.id = {3, number},
                .name = format_text("node{:02}:1", number),
                .base = 0x10000000 * number,
                .size = size,
                .endpoint = format_text("e{}", number),
                .protocol = "tcp"};
    }
    void attach(const ClientId& client) {
        auto t = transaction();
        remount(t, {.client = client, .segments = {}}, now_);
    }
    /// Node `number` with one segment of that size.
    SegmentNumber add_node(uint64_t number, uint64_t size = kPool) {
        attach(node(number));
        auto t = transaction();
        EXPECT_EQ(mount_segment(t, {.client = node(number), .segment = spec(number, size)}, now_), StoreCode::kOk);
        return state().segments().find(spec(number, size).id);
    }

    void follows(const ClientId& client, bool follows) {
        auto t = transaction();
        t.apply(ClientFollows{.client = client, .follows = follows, .now = now_});
    }
    void suspected(SegmentNumber segment) {
        auto t = transaction();
        t.apply(SegmentSuspected{.segment = segment, .duration = 10s, .now = now_});
    }

    // objects
    PutStartReply start(const std::vector<PutItem>& items, WriteConfig config = {}, const ClientId& client = kClient,
                        uint64_t request_id = 0, bool upsert = false) {
        auto t = transaction();
        const PutStartRequest request{
            .client = client, .request_id = request_id, .tenant = tenant_, .config = std::move(config), .items = items};
        return upsert ? upsert_start(t, request, now_) : put_start(t, request, now_);
    }
    PutStartItem start(std::string_view key, uint64_t length = kKiB, WriteConfig config = {}, const ClientId& client = kClient) {
        return start(std::vector<PutItem>{{.key = key, .length = length}}, std::move(config), client).items[0];
    }
    PutStartItem upsert(std::string_view key, uint64_t length = kKiB, WriteConfig config = {}, const ClientId& client = kClient) {
        return start(std::vector<PutItem>{{.key = key, .length = length}}, std::move(config), client, 0, true).items[0];
    }
    StoreCode end(std::string_view key, uint64_t generation = 0, const ClientId& client = kClient, uint64_t checksum = 0) {
        auto t = transaction();
        const PutEndItem item{.key = key, .generation = generation, .checksum = checksum};
        return put_end(t, {.client = client, .tenant = tenant_, .items = {&item, 1}}, now_).codes[0];
    }
    StoreCode revoke(std::string_view key, uint64_t generation = 0, const ClientId& client = kClient, uint64_t request_id = 0) {
        auto t = transaction();
        const PutEndItem item{.key = key, .generation = generation};
        return put_revoke(t, {.client = client, .request_id = request_id, .tenant = tenant_, .items = {&item, 1}}, now_).codes[0];
    }
    /// Start and end; the code of the first that failed.
    StoreCode put(std::string_view key, uint64_t length = kKiB, WriteConfig config = {}, std::string_view group = {}) {
        const PutStartItem started =
            start(std::vector<PutItem>{{.key = key, .length = length, .group = group}}, std::move(config)).items[0];
        return started.code == StoreCode::kOk ? end(key, started.generation) : started.code;
    }
    GetReply get_all(const std::vector<std::string_view>& keys) {
        auto t = transaction();
        return get_replicas(t, {.tenant = tenant_, .keys = keys}, now_);
    }
    GetItem get(std::string_view key) { return get_all({key}).items[0]; }
    ReplicaLocation where(std::string_view key) { return get_all({key}).replicas.at(0); }
    int exists(std::string_view key) {
        auto t = transaction();
        return exist(t, {.tenant = tenant_, .keys = {&key, 1}}, now_).results[0];
    }
    /// Looks without asking: no lease of either kind.
    bool holds(std::string_view key) {
        const ObjectId id = state().objects().find(state().tenant(tenant_), key);
        return id != 0 && state().objects()[id].has_value();
    }
    const Object& object(std::string_view key) { return state().objects()[state().objects().find(state().tenant(tenant_), key)]; }
    StoreCode remove_key(std::string_view key, bool force = false) {
        auto t = transaction();
        return remove(t, {.tenant = tenant_, .keys = {&key, 1}, .force = force}, now_).codes[0];
    }
    EvictionRun jobs() {
        auto t = transaction();
        return run_jobs(t, now_);
    }
    /// Fills the pool with objects "0", "1", ... of that length; returns how many went in.
    int fill(uint64_t length, int most = 1 << 20) {
        const uint64_t room = state().segments().capacity() - state().segments().used_bytes();
        int count = 0;
        for (; count < most && state().rounded(length) * static_cast<uint64_t>(count + 1) <= room; ++count)
            EXPECT_EQ(put(std::to_string(count), length), StoreCode::kOk);
        return count;
    }

    MasterOptions options_{.held_share = 0, .evict_ahead = true};  // full leases, whatever is held
    std::string tenant_;
    Time now_{100s};
    std::vector<Change> log_;
    std::unique_ptr<MasterState> state_;
};

}  // namespace mooncake::store
