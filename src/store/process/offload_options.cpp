// SPDX-License-Identifier: Apache-2.0
#include "store/process/offload_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parse_switch.h"

namespace mooncake::store {

namespace {

constexpr std::string_view kPrefix = "MOONCAKE_OFFLOAD_";
constexpr const char* kDefaultPath = "/data/file_storage";
/// Our one back end serves for all of them.
constexpr std::array<std::string_view, 5> kBackEnds = {"bucket_storage_backend", "file_per_key_storage_backend",
                                                       "offset_allocator_storage_backend", "distributed_storage_backend",
                                                       "nvme_kv_storage_backend"};
constexpr std::array<const char*, 18> kMeaningless = {"MOONCAKE_OFFLOAD_SCANMETA_ITERATOR_KEYS_LIMIT",
                                                      "MOONCAKE_SCANMETA_ITERATOR_KEYS_LIMIT",
                                                      "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS",
                                                      "MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_INTERVAL_SECONDS",
                                                      "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES",
                                                      "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT",
                                                      "MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES",
                                                      "MOONCAKE_OFFLOAD_BUCKET_DISK_SCAN_CACHE_MS",
                                                      "MOONCAKE_OFFLOAD_FSDIR",
                                                      "MOONCAKE_OFFLOAD_ENABLE_EVICTION",
                                                      "MOONCAKE_OFFSET_HIGH_RATIO",
                                                      "MOONCAKE_OFFSET_LOW_RATIO",
                                                      "MOONCAKE_OFFSET_MAX_CAPACITY_NODES",
                                                      "MOONCAKE_OFFSET_MAX_EVICT_PER_OFFLOAD",
                                                      "MOONCAKE_OFFSET_PERSIST_MODE",
                                                      "MOONCAKE_OFFSET_PERSIST_INTERVAL_SECONDS",
                                                      "MOONCAKE_OFFSET_RECORD_CRC",
                                                      "MOONCAKE_ENABLE_DFS"};

/// Variables by their names here, each with the prefix and, for some, under another name without it.
class Variables {
public:
    explicit Variables(const Environment& environment) : environment_(environment) {}

    struct Value {
        std::string name, text;
    };
    /// Nothing: not set, or empty.
    std::optional<Value> find(std::string_view name, std::string_view alias = {}) const {
        for (const std::string& full : {std::string(kPrefix) + std::string(name), std::string(alias)}) {
            if (full.empty()) continue;
            if (const auto text = environment_(full.c_str()); text && !text->empty()) return Value{full, *text};
        }
        return std::nullopt;
    }
    Result<std::optional<uint64_t>> number(std::string_view name, uint64_t low, uint64_t high, std::string_view alias = {}) const {
        const auto value = find(name, alias);
        if (!value) return std::optional<uint64_t>();
        uint64_t parsed = 0;
        const char* const end = value->text.data() + value->text.size();
        const auto [stop, status] = std::from_chars(value->text.data(), end, parsed);
        if (status == std::errc() && stop == end && parsed >= low && parsed <= high) return std::optional(parsed);
        return fail(Code::kInvalidArgument, "{}='{}': a whole number from {} to {} is expected", value->name, value->text, low, high);
    }
    Result<std::optional<double>> ratio(std::string_view name, std::string_view alias) const {
        const auto value = find(name, alias);
        if (!value) return std::optional<double>();
        double parsed = 0;
        const char* const end = value->text.data() + value->text.size();
        const auto [stop, status] = std::from_chars(value->text.data(), end, parsed);
        if (status == std::errc() && stop == end && parsed > 0 && parsed <= 1) return std::optional(parsed);
        return fail(Code::kInvalidArgument, "{}='{}': a number above 0, at most 1, is expected", value->name, value->text);
    }
    Result<std::optional<bool>> flag(std::string_view name, std::string_view alias = {}) const {
        const auto value = find(name, alias);
        if (!value) return std::optional<bool>();
        if (const auto parsed = parse_switch(value->text)) return std::optional(*parsed);
        return fail(Code::kInvalidArgument, "{}='{}': 1 or 0, true or false, on or off is expected", value->name, value->text);
    }
    bool is_set(const char* name) const {
        const auto text = environment_(name);
        return text && !text->empty();
    }

private:
    const Environment& environment_;
};

Result<> read_back_end(const Variables& variables) {
    const auto value = variables.find("STORAGE_BACKEND_DESCRIPTOR");
    if (!value) return {};
    if (std::find(kBackEnds.begin(), kBackEnds.end(), value->text) == kBackEnds.end())
        return fail(Code::kInvalidArgument, "{}='{}': no such back end; {}, {}, {}, {} and {} are known, and one serves for all",
                    value->name, value->text, kBackEnds[0], kBackEnds[1], kBackEnds[2], kBackEnds[3], kBackEnds[4]);
    if (value->text != kBackEnds[0])
        MC_LOG_INFO("{}={}: values are kept in the log of docs/ssd.md, which serves for it", value->name, value->text);
    return {};
}

Result<> read_room(const Variables& variables, DiskConfig& config) {
    constexpr uint64_t kLeast = 16 << 20, kMost = uint64_t{1} << 60;
    MC_ASSIGN_OR_RETURN(const auto total, variables.number("TOTAL_SIZE_LIMIT_BYTES", kLeast, kMost));
    MC_ASSIGN_OR_RETURN(const auto buckets, variables.number("BUCKET_MAX_TOTAL_SIZE", 0, kMost, "MOONCAKE_BUCKET_MAX_TOTAL_SIZE"));
    MC_ASSIGN_OR_RETURN(const auto keys, variables.number("TOTAL_KEYS_LIMIT", 1, uint64_t{1} << 40));
    if (total) config.capacity_bytes = *total;
    if (buckets && *buckets != 0) {
        if (*buckets < kLeast)
            return fail(Code::kInvalidArgument, "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE={}: 0, or at least {}", *buckets, kLeast);
        config.capacity_bytes = config.capacity_bytes == 0 ? *buckets : std::min(config.capacity_bytes, *buckets);
    }
    if (keys) config.objects_max = *keys;
    return {};
}

Result<> read_eviction(const Variables& variables, DiskConfig& config) {
    auto policy = variables.find("BUCKET_EVICTION_POLICY", "MOONCAKE_BUCKET_EVICTION_POLICY");
    if (!policy) {
        const auto back_end = variables.find("STORAGE_BACKEND_DESCRIPTOR");
        if (back_end && back_end->text == "offset_allocator_storage_backend")
            policy = variables.find("", "MOONCAKE_OFFSET_EVICTION_POLICY");
    }
    if (policy) {
        if (policy->text == "none") config.eviction = TierEviction::kNone;
        else if (policy->text == "fifo") config.eviction = TierEviction::kFifo;
        else if (policy->text == "lru") config.eviction = TierEviction::kLru;
        else return fail(Code::kInvalidArgument, "{}='{}': none, fifo or lru is expected", policy->name, policy->text);
    }
    MC_ASSIGN_OR_RETURN(const auto enabled, variables.flag("ENABLE_DISK_WATERMARK_EVICTION", "MOONCAKE_ENABLE_DISK_WATERMARK_EVICTION"));
    if (enabled && !*enabled) config.eviction = TierEviction::kNone;
    MC_ASSIGN_OR_RETURN(const auto high,
                        variables.ratio("DISK_EVICTION_HIGH_WATERMARK_RATIO", "MOONCAKE_DISK_EVICTION_HIGH_WATERMARK_RATIO"));
    MC_ASSIGN_OR_RETURN(const auto low, variables.ratio("DISK_EVICTION_LOW_WATERMARK_RATIO", "MOONCAKE_DISK_EVICTION_LOW_WATERMARK_RATIO"));
    if (high) config.high_watermark = *high;
    if (low) config.low_watermark = *low;
    if (config.low_watermark >= config.high_watermark)
        return fail(Code::kInvalidArgument, "watermarks of the disk: the low one ({}) must be below the high one ({})",
                    config.low_watermark, config.high_watermark);
    return {};
}

}  // namespace

Result<DiskConfig> load_disk_config(const Environment& environment, std::string_view path) {
    const Variables variables(environment);
    DiskConfig config;
    MC_RETURN_IF_ERROR(read_back_end(variables));
    if (!path.empty()) config.path = path;
    else if (const auto value = variables.find("FILE_STORAGE_PATH")) config.path = value->text;
    else config.path = kDefaultPath;
    while (config.path.size() > 1 && config.path.back() == '/') config.path.pop_back();
    MC_RETURN_IF_ERROR(read_room(variables, config));
    MC_RETURN_IF_ERROR(read_eviction(variables, config));
    MC_ASSIGN_OR_RETURN(const auto staging, variables.number("LOCAL_BUFFER_SIZE_BYTES", 1 << 20, uint64_t{1} << 40));
    if (staging) config.staging_bytes = *staging;
    MC_ASSIGN_OR_RETURN(const auto lease, variables.number("CLIENT_BUFFER_GC_TTL_MS", 100, 600'000));
    if (lease) config.staging_lease = std::chrono::milliseconds(*lease);
    MC_ASSIGN_OR_RETURN(const auto ring, variables.flag("USE_URING", "MOONCAKE_USE_URING"));
    if (ring && !*ring) config.kind = DiskKind::kThreads;
    std::string meaningless;
    for (const char* const name : kMeaningless)
        if (variables.is_set(name)) meaningless += (meaningless.empty() ? "" : ", ") + std::string(name);
    if (!meaningless.empty()) MC_LOG_INFO("these have no meaning for the disk: {}", meaningless);
    return config;
}

}  // namespace mooncake::store
