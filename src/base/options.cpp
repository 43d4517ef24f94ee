// SPDX-License-Identifier: Apache-2.0
#include "base/options.h"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

namespace mooncake {

namespace {

/// Reads typed variables from one environment; a bad value is reported once and ignored.
class Reader {
public:
    explicit Reader(const Environment& environment) : environment_(environment) {}

    void text(const char* name, std::string& value) const {
        if (auto found = environment_(name)) value = std::move(*found);
    }
    void flag(const char* name, bool& value) const {
        if (auto found = environment_(name)) value = parse_flag(*found);
    }
    void list(const char* name, std::vector<std::string>& value) const {
        if (auto found = environment_(name)) value = split_list(*found);
    }
    template <typename Number>
    void number(const char* name, Number& value, int64_t low, int64_t high) const {
        if (auto found = integer(name, low, high)) value = static_cast<Number>(*found);
    }
    void seconds(const char* name, Duration& value, int64_t low, int64_t high) const {
        if (auto found = integer(name, low, high)) value = std::chrono::seconds(*found);
    }
    void milliseconds(const char* name, Duration& value, int64_t low, int64_t high) const {
        if (auto found = integer(name, low, high)) value = std::chrono::milliseconds(*found);
    }
    /// One of a few words.
    void word(const char* name, std::string& value, std::initializer_list<std::string_view> words) const {
        auto found = environment_(name);
        if (!found || found->empty()) return;
        if (std::find(words.begin(), words.end(), *found) != words.end()) {
            value = std::move(*found);
            return;
        }
        std::string expected;
        for (const std::string_view known : words) expected += format_text("{}{}", expected.empty() ? "" : ", ", known);
        MC_LOG_WARNING("{}='{}' ignored: one of {} is expected", name, *found, expected);
    }
    std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const {
        const auto found = environment_(name);
        if (!found || found->empty()) return std::nullopt;
        int64_t parsed = 0;
        const char* const end = found->data() + found->size();
        const auto [stop, status] = std::from_chars(found->data(), end, parsed);
        if (status == std::errc() && stop == end && parsed >= low && parsed <= high) return parsed;
        MC_LOG_WARNING("{}='{}' ignored: a whole number from {} to {} is expected", name, *found, low, high);
        return std::nullopt;
    }

private:
    const Environment& environment_;
};

constexpr uint16_t kEphemeralFirst = 32768, kEphemeralLast = 60999;  // Linux hands these out by itself

void read_log(const Reader& reader, LogOptions& log) {
    std::string level;
    reader.text("MC_LOG_LEVEL", level);
    const bool known = parse_log_level(level, LogLevel::kInfo) == parse_log_level(level, LogLevel::kOff);
    if (!known && !level.empty()) MC_LOG_WARNING("MC_LOG_LEVEL='{}' ignored: TRACE, INFO, WARNING, ERROR or OFF is expected", level);
    log.level = parse_log_level(level, log.level);
    reader.text("MC_LOG_DIR", log.directory);
}

void read_ports(const Reader& reader, EngineOptions& options) {
    uint16_t low = options.port_min, high = options.port_max;
    reader.number("MC_MIN_PRC_PORT", low, 1, 65535);  // the misspelling is part of the public interface
    reader.number("MC_MIN_RPC_PORT", low, 1, 65535);
    reader.number("MC_MAX_PRC_PORT", high, 1, 65535);
    reader.number("MC_MAX_RPC_PORT", high, 1, 65535);
    const bool ephemeral = low <= kEphemeralLast && high >= kEphemeralFirst;
    if (low > high || low < 1024 || ephemeral) {
        MC_LOG_WARNING("port range {}-{} ignored: it must be ascending, above 1023 and outside {}-{}; using {}-{}", low, high,
                       kEphemeralFirst, kEphemeralLast, options.port_min, options.port_max);
        return;
    }
    options.port_min = low;
    options.port_max = high;
}

void read_transports(const Reader& reader, EngineOptions& options) {
    reader.text("MOONCAKE_PROTOCOL", options.protocol);
    reader.list("MC_TRANSPORTS", options.transports);
    bool force_tcp = false;
    reader.flag("MC_FORCE_TCP", force_tcp);
    if (force_tcp) options.transports = {"tcp"};
    reader.flag("MC_FORCE_HCA", options.require_network_device);
    reader.list("MC_MS_FILTERS", options.device_allow);
    reader.list("MC_TE_FILTERS", options.device_allow);
    reader.flag("MC_MS_AUTO_DISC", options.discover_topology);
    reader.list("MC_TE_FILTERS_EXCLUDE", options.device_deny);
    reader.text("MC_CUSTOM_TOPO_JSON", options.topology_file);
    reader.number("MC_TCP_MAX_CONNECTIONS_PER_PEER", options.tcp_lanes, 1, 16);
    reader.number("MC_TCP_LANES_PER_PEER", options.tcp_lanes, 1, 16);
    reader.number("MC_TCP_IO_THREADS", options.tcp_io_threads, 0, 64);
    reader.flag("MC_TCP_CHECKSUM", options.tcp_checksum);
}

void read_fabric(const Reader& reader, FabricOptions& options) {
    constexpr int64_t kBytesMax = int64_t{1} << 50;
    reader.text("MC_FABRIC_PROVIDER", options.provider);
    reader.list("MC_FABRIC_NODES", options.nodes);
    reader.text("MC_FABRIC_LIBRARY", options.library);
    reader.word("MC_FABRIC_MR_STYLE", options.mr_style, {"auto", "offset", "basic"});
    reader.number("MC_FABRIC_STRIPE", options.stripe_bytes, 4096, kBytesMax);
    reader.number("MC_FABRIC_RUN", options.run, 1, 1024);
    if (const auto spin_us = reader.integer("MC_FABRIC_SPIN_US", 0, 1'000'000)) options.spin = std::chrono::microseconds(*spin_us);
    reader.milliseconds("MC_FABRIC_STALL_MS", options.stall_timeout, 10, 3'600'000);
    reader.milliseconds("MC_FABRIC_CONNECT_MS", options.connect_timeout, 10, 3'600'000);
    reader.milliseconds("MC_FABRIC_IDLE_MS", options.idle_timeout, 10, 1'000'000'000);
    reader.number("MC_FABRIC_ATTEMPTS", options.attempts, 1, 100);
    reader.number("MC_FABRIC_PAGE_BUDGET", options.page_budget, 1, kBytesMax);
    reader.flag("MC_FABRIC_FALLBACK", options.fallback);
    reader.number("MC_MAX_WR", options.operations_max, 1, 1 << 20);
    reader.number("MC_EFA_CQ_THREADS", options.poll_threads, 0, 256);
    std::string selection;
    reader.word("MC_EFA_NIC_SELECTION", selection, {"all", "local"});
    options.near_nics_only = selection == "local";
    reader.number("MC_MAX_CONCURRENT_REG_MR", options.registrations_parallel, 0, 1024);
    reader.number("MC_MAX_MR_SIZE", options.registration_bytes_max, 1 << 20, kBytesMax);
}

}  // namespace

EngineOptions load_options(const Environment& environment) {
    const Reader reader(environment);
    EngineOptions options;
    read_log(reader, options.log);

    if (auto seconds = reader.integer("MC_TRANSFER_TIMEOUT", 0, 1'000'000'000))
        options.transfer_timeout = std::max<Duration>(std::chrono::seconds(*seconds), 5s);
    read_transports(reader, options);
    read_fabric(reader, options.fabric);
    read_ports(reader, options);
    reader.text("MC_METADATA_CLUSTER_ID", options.cluster_id);
    reader.text("MC_TCP_BIND_ADDRESS", options.advertised_address);
    reader.text("MC_BIND_ADDRESS", options.bind_address);
    reader.flag("MC_LEGACY_RPC_PORT_BINDING", options.legacy_port_binding);
    reader.number("MC_HANDSHAKE_PORT", options.handshake_port, 1, 65535);
    reader.flag("MC_USE_IPV6", options.ipv6);
    reader.number("MC_HANDSHAKE_LISTEN_BACKLOG", options.listen_backlog, 1, 1 << 20);
    reader.seconds("MC_HANDSHAKE_CONNECT_TIMEOUT", options.connect_timeout, 1, 3600);
    reader.number("MC_HANDSHAKE_MAX_LENGTH", options.message_bytes_max, 1 << 20, 128 << 20);
    reader.number("MC_CUDA_STAGING", options.staging_bytes, 8 << 20, uint64_t{1} << 40);
    std::string on_stream_failure;
    reader.word("MC_CUDA_ON_STREAM_FAILURE", on_stream_failure, {"exit", "continue"});
    options.stream_failure_ends = on_stream_failure != "continue";
    bool uncached = false;
    reader.flag("MC_DISABLE_METACACHE", uncached);
    options.cache_descriptors = !uncached;
    reader.seconds("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", options.refresh_interval, 0, 86'400);
    reader.text("MC_REDIS_USERNAME", options.redis_username);
    reader.text("MC_REDIS_PASSWORD", options.redis_password);
    reader.number("MC_REDIS_DB_INDEX", options.redis_database, 0, 255);
    reader.flag("MC_TE_METRIC", options.metrics_log);
    reader.seconds("MC_TE_METRIC_INTERVAL_SECONDS", options.metrics_interval, 1, 86'400);
    return options;
}

CudaOptions load_cuda_options(const Environment& environment) {
    CudaOptions options;
    const Reader reader(environment);
    reader.flag("MC_CUDA_CALLER_SYNC", options.caller_sync);
    reader.number("MC_CUDA_PIN_MAX", options.pin_max, 0, int64_t{1} << 62);
    reader.number("MC_ALLOCATOR_CACHE", options.allocator_cache, 0, uint64_t{1} << 50);
    return options;
}

EngineOptions load_options() { return load_options(process_environment()); }

Environment process_environment() {
    return [](const char* name) -> std::optional<std::string> {
        const char* const value = std::getenv(name);
        if (value == nullptr) return std::nullopt;
        return value;
    };
}

bool parse_flag(std::string_view text) noexcept {
    for (const std::string_view off : {"", "0", "false", "no", "off"})
        if (text.size() == off.size() && (text.empty() || ::strncasecmp(text.data(), off.data(), off.size()) == 0)) return false;
    return true;
}

std::vector<std::string> split_list(std::string_view text, char separator) {
    std::vector<std::string> parts;
    while (!text.empty()) {
        const size_t cut = std::min(text.find(separator), text.size());
        std::string_view part = text.substr(0, cut);
        while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
        while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
        if (!part.empty()) parts.emplace_back(part);
        text.remove_prefix(std::min(cut + 1, text.size()));
    }
    return parts;
}

}  // namespace mooncake
