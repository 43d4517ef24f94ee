// SPDX-License-Identifier: Apache-2.0
// What people see of values on disks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "store/admin/admin_views.h"
#include "store/admin/metrics_text.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "store/master/ops/tier_ops.h"
#include "store/service/master_metrics.h"

namespace mooncake::store {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr ClientId kNode{2, 1};

class AdminTiers : public testing::Test {
protected:
    AdminTiers() {
        master_.run([&](Transaction& t, Time now) {
            remount(t, {.client = kNode, .segments = {}}, now);
            SegmentSpec spec{.id = {3, 1}, .name = "node1:1", .base = 1 << 20, .size = kMiB, .endpoint = "e", .protocol = "tcp"};
            MC_CHECK(mount_segment(t, {.client = kNode, .segment = spec}, now) == StoreCode::kOk);
            spec.id = {4, 1};
            spec.size = 8 * kMiB;
            spec.kind = SegmentKind::kDisk;
            spec.service = "node1:2";
            MC_CHECK(mount_segment(t, {.client = kNode, .segment = spec}, now) == StoreCode::kOk);
            return true;
        });
    }
    void put(std::string_view key, uint64_t length) {
        master_.run([&](Transaction& t, Time now) {
            const PutItem item{.key = key, .length = length};
            MC_CHECK(put_start(t, {.client = kNode, .tenant = "default", .items = {&item, 1}}, now).items[0].code == StoreCode::kOk);
            const PutEndItem done{.key = key};
            put_end(t, {.client = kNode, .tenant = "default", .items = {&done, 1}}, now);
            run_jobs(t, now);
            return true;
        });
    }
    void end_all() {
        master_.run([&](Transaction& t, Time now) {
            std::vector<CopyEnd> ends;
            for (const auto& [task, id] : t.state().tiers().copies) ends.push_back({.task = t.state().copy(id).task});
            return end_copies(t, {.client = kNode, .items = ends}, now).codes.size();
        });
    }

    LockedMaster master_{{.silent_after = 0s, .offload = true}, nullptr, nullptr};
    MasterMetrics metrics_;
};

TEST_F(AdminTiers, MemoryAndDiskAreCountedApart) {
    put("a", 1000 << 10);
    EXPECT_THAT(state_metrics(master_), HasSubstr("\nmaster_offload_in_flight 1\n"));
    EXPECT_GE(view_pool(master_).tier_bytes_under_way, 1000u << 10);
    end_all();
    put("b", 1000 << 10);
    const PoolView pool = view_pool(master_);
    EXPECT_EQ(pool.capacity_bytes, kMiB);
    EXPECT_EQ(pool.disk_capacity_bytes, 8 * kMiB);
    EXPECT_GE(pool.disk_used_bytes, 2000u << 10);
    EXPECT_EQ(pool.values, 2u);
    EXPECT_EQ(pool.values_in_memory, 1u);
    EXPECT_EQ(pool.values_on_disk, 1u);
    const std::string text = state_metrics(master_);
    for (const char* line : {"\nmaster_total_capacity_bytes 1048576\n", "\nmaster_total_file_capacity_bytes 8388608\n",
                             "\nmem_cache_nums_ 1\n", "\nfile_cache_nums_ 1\n", "\nmaster_offload_completed_total 1\n",
                             "\nmaster_offload_released_total 1\n", "\nmaster_offload_queue_length 0\n", "\nmaster_promotion_in_flight 0\n",
                             "\nsegment_total_capacity_bytes{segment=\"node1:1\"} 1048576\n",
                             "\ndisk_segment_total_capacity_bytes{segment=\"node1:1\",segment_id=\"4-1\"} 8388608\n"})
        EXPECT_THAT(text, HasSubstr(line));
    EXPECT_THAT(state_summary(master_, metrics_), HasSubstr("disk "));
}

TEST_F(AdminTiers, PlacesOnDisksAreNamedApart) {
    put("a", 1000 << 10);
    end_all();
    put("b", 1000 << 10);
    const std::vector<ObjectView> views = view_objects(master_, "default", {"a", "b"});
    EXPECT_TRUE(views[0].places.empty());
    ASSERT_EQ(views[0].on_disks.size(), 1u);
    EXPECT_EQ(views[0].on_disks[0].endpoint, "node1:2");
    EXPECT_EQ(views[0].on_disks[0].length, 1000u << 10);
    EXPECT_EQ(views[1].places.size(), 1u);
    EXPECT_TRUE(views[1].on_disks.empty());
    lease_object(master_, "default", "a");
    EXPECT_THAT(state_metrics(master_), HasSubstr("\nfile_cache_hit_nums_ 1\n"));
}

}  // namespace
}  // namespace mooncake::store
