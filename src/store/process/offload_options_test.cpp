// SPDX-License-Identifier: Apache-2.0
#include "store/process/offload_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace mooncake::store {
namespace {

using Variables = std::map<std::string, std::string>;

Result<DiskConfig> load(const Variables& variables, std::string_view path = "") {
    return load_disk_config(
        [&](const char* name) -> std::optional<std::string> {
            const auto found = variables.find(name);
            return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        path);
}

TEST(OffloadOptions, HaveTheirDefaults) {
    const auto config = load({});
    ASSERT_TRUE(config);
    EXPECT_EQ(config->path, "/data/file_storage");
    EXPECT_EQ(config->capacity_bytes, 0u);
    EXPECT_EQ(config->objects_max, 10'000'000u);
    EXPECT_EQ(config->staging_bytes, uint64_t{1280} << 20);
    EXPECT_EQ(config->staging_lease, 5s);
    EXPECT_EQ(config->eviction, TierEviction::kLru);
    EXPECT_EQ(config->kind, DiskKind::kAny);
    EXPECT_DOUBLE_EQ(config->high_watermark, 0.9);
    EXPECT_DOUBLE_EQ(config->low_watermark, 0.8);
}

TEST(OffloadOptions, AreWhatTheEnvironmentSays) {
    const auto config = load({{"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "/mnt/ssd/"},
                              {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "1099511627776"},
                              {"MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", "5000"},
                              {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "104857600"},
                              {"MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_TTL_MS", "2500"},
                              {"MOONCAKE_OFFLOAD_USE_URING", "false"},
                              {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "lru"},
                              {"MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO", "0.7"},
                              {"MOONCAKE_DISK_EVICTION_LOW_WATERMARK_RATIO", "0.5"},
                              {"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "3"}});
    ASSERT_TRUE(config) << config.error().to_string();
    EXPECT_EQ(config->path, "/mnt/ssd");
    EXPECT_EQ(config->capacity_bytes, uint64_t{1} << 40);
    EXPECT_EQ(config->objects_max, 5000u);
    EXPECT_EQ(config->staging_bytes, 100u << 20);
    EXPECT_EQ(config->staging_lease, 2500ms);
    EXPECT_EQ(config->kind, DiskKind::kThreads);
    EXPECT_EQ(config->eviction, TierEviction::kLru);
    EXPECT_DOUBLE_EQ(config->high_watermark, 0.7);
    EXPECT_DOUBLE_EQ(config->low_watermark, 0.5);
    EXPECT_EQ(load({{"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "/mnt/ssd"}}, "/other")->path, "/other");
    EXPECT_EQ(load({{"MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION", "0"}})->eviction, TierEviction::kNone);
    EXPECT_EQ(load({{"MOONCAKE_BUCKET_EVICTION_POLICY", "none"}})->eviction, TierEviction::kNone);
    EXPECT_EQ(load({{"MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", "33554432"}})->capacity_bytes, 32u << 20);
    EXPECT_EQ(load({{"MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", "0"}})->capacity_bytes, 0u);
}

TEST(OffloadOptions, KnowTheFiveBackEnds) {
    for (const char* name : {"bucket_storage_backend", "file_per_key_storage_backend", "offset_allocator_storage_backend",
                             "distributed_storage_backend", "nvme_kv_storage_backend"})
        EXPECT_TRUE(load({{"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", name}})) << name;
    EXPECT_EQ(load({{"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "offset_allocator_storage_backend"},
                    {"MOONCAKE_OFFSET_EVICTION_POLICY", "none"}})
                  ->eviction,
              TierEviction::kNone);
}

TEST(OffloadOptions, SayWhatIsWrong) {
    const std::pair<const char*, const char*> wrong[] = {{"STORAGE_BACKEND_DESCRIPTOR", "redis"},
                                                         {"TOTAL_SIZE_LIMIT_BYTES", "10GB"},
                                                         {"TOTAL_SIZE_LIMIT_BYTES", "-1"},
                                                         {"TOTAL_SIZE_LIMIT_BYTES", "5"},
                                                         {"TOTAL_KEYS_LIMIT", "0"},
                                                         {"LOCAL_BUFFER_SIZE_BYTES", "1"},
                                                         {"CLIENT_BUFFER_GC_TTL_MS", "soon"},
                                                         {"USE_URING", "maybe"},
                                                         {"ENABLE_DISK_WATERMARK_EVICTION", "2"},
                                                         {"BUCKET_EVICTION_POLICY", "random"},
                                                         {"BUCKET_MAX_TOTAL_SIZE", "17"},
                                                         {"DISK_EVICTION_HIGH_WATERMARK_RATIO", "1.5"},
                                                         {"DISK_EVICTION_LOW_WATERMARK_RATIO", "nan"},
                                                         {"DISK_EVICTION_LOW_WATERMARK_RATIO", "0.95"}};
    for (const auto& [name, text] : wrong) {
        const auto config = load({{std::string("MOONCAKE_OFFLOAD_") + name, text}});
        ASSERT_FALSE(config) << name << '=' << text;
        EXPECT_EQ(config.error().code(), Code::kInvalidArgument);
        if (std::string_view(text) != "0.95") {
            EXPECT_THAT(config.error().message(), ::testing::HasSubstr(name));
        }
    }
}

}  // namespace
}  // namespace mooncake::store
