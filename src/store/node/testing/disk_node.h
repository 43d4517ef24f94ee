// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/node/node.h"
#include "store/node/testing/tier_master.h"
#include "store/protocol/stored_form.h"
#include "store/tier/testing/memory_tier.h"
#include "store/tier/testing/tier_calls.h"

namespace mooncake::store::testing {

inline Deadline soon() { return Deadline::after(20s); }

inline bool eventually(const std::function<bool()>& condition) {
    for (const Deadline deadline = soon(); !condition(); std::this_thread::yield())
        if (deadline.passed()) return false;
    return true;
}

inline std::shared_ptr<Engine> make_engine() {
    auto engine = Engine::create({.local_name = "127.0.0.1", .protocol = "tcp"});
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
    return engine ? std::shared_ptr<Engine>(std::move(*engine)) : nullptr;
}

inline uint64_t checksum_of(const std::vector<std::byte>& bytes) {
    std::vector<uint64_t> table;
    const std::span<const std::byte> piece(bytes);
    return hash_value({&piece, 1}, table);
}

/// A process that lends memory and a disk, which is a map in memory, to a master that is scripted. Segment 1 is the memory, segment 2 the disk.
struct DiskNode {
    static constexpr uint64_t kMiB = 1 << 20;

    explicit DiskNode(std::shared_ptr<MemoryTier::Shelf> on = std::make_shared<MemoryTier::Shelf>(),
                      const std::function<void(DiskConfig&)>& change = {})
        : shelf(std::move(on)), pool(setup()), node(pool, {.pages = {.early = false}}) {
        DiskConfig config;
        config.make_tier = [this](TierObserver& observer) { return std::make_unique<MemoryTier>(shelf, 64 * kMiB, &observer); };
        if (change) change(config);
        const MountedSegments disk = node.open_disk(config, "tcp");
        EXPECT_EQ(disk.code, StoreCode::kOk);
        EXPECT_EQ(disk.segments.size(), 1u);
        const auto joined = pool.join({&node}, node.holdings(), {.heartbeat_interval = 20ms, .retry_interval = 5ms}, soon());
        EXPECT_TRUE(joined) << joined.error().to_string();
        const MountedSegments memory = node.mount_memory(16 * kMiB, "tcp", "");
        EXPECT_EQ(memory.code, StoreCode::kOk);
        held = pool.local.find(memory.segments.at(0));
        master->list = {.segments = {{.number = 1, .segment = held->spec}, {.number = 2, .segment = node.disk()->spec()}}, .epoch = 100};
    }
    ~DiskNode() { stop(); }
    PoolAccess::Setup setup() {
        auto engine = make_engine();
        std::string name = engine->segment_name();
        auto made = std::make_unique<TierMaster>();
        master = made.get();
        return {.engine = std::move(engine), .master = std::move(made), .name = std::move(name)};
    }
    void stop() {
        pool.begin_closing();
        node.stop();
        pool.leave();
        node.close();
    }
    StorageTier& tier() { return node.disk()->tier(); }
    SegmentId disk_id() { return node.disk()->spec().id; }
    RangePlanned planned(uint64_t generation, const std::string& key, uint64_t length) {
        return {
            .segment = disk_id(), .offset = 0, .length = length, .generation = generation, .tenant = "default", .key = key, .group = "g"};
    }
    /// The value lies in the memory segment from `offset` on.
    std::vector<std::byte> fill(uint64_t offset, uint64_t seed, size_t length) {
        auto bytes = tier_calls::make_bytes(seed, length);
        std::copy(bytes.begin(), bytes.end(), held->base + offset);
        return bytes;
    }
    CopyOrder offload(uint64_t number, uint64_t generation, const std::string& key, uint64_t offset, const std::vector<std::byte>& value) {
        return {.task = {7, kTierTaskBit | number},
                .tenant = "default",
                .key = key,
                .generation = generation,
                .length = value.size(),
                .checksum = checksum_of(value),
                .source = {1, offset},
                .targets = {{2, 0}}};
    }
    CopyOrder promotion(uint64_t number, uint64_t generation, const std::string& key, uint64_t offset,
                        const std::vector<std::byte>& value) {
        CopyOrder order = offload(number, generation, key, 0, value);
        order.source = {2, 0};
        order.targets = {{1, offset}};
        return order;
    }
    bool ended(size_t count) {
        return eventually([&] { return master->ends().size() >= count; });
    }

    std::shared_ptr<MemoryTier::Shelf> shelf;
    TierMaster* master = nullptr;
    PoolAccess pool;
    Node node;
    std::shared_ptr<const LocalSegments::Held> held;
};

}  // namespace mooncake::store::testing
