// SPDX-License-Identifier: Apache-2.0
#include "store/process/store_options.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace mooncake::store {

namespace {

constexpr bool is_space(char c) { return c == ' ' || c == '\t'; }

std::string_view trim(std::string_view text) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
}

/// The factor of "", "b", "k", "kb", "kib", ... in any case; 0: no such unit.
uint64_t unit_factor(std::string_view unit) {
    std::string lower;
    for (const char c : unit) lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    if (lower.empty() || lower == "b") return 1;
    constexpr std::string_view kPrefixes = "kmgt";
    const size_t place = kPrefixes.find(lower.front());
    const std::string_view rest = std::string_view(lower).substr(1);
    if (place == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return 0;
    return uint64_t{1} << (10 * (place + 1));
}

/// Reads whole numbers; a bad one is reported and ignored.
class Numbers {
public:
    explicit Numbers(const Environment& environment) : environment_(environment) {}

    template <typename Take>
    void read(const char* name, int64_t low, int64_t high, Take&& take) const {
        const auto text = environment_(name);
        if (!text || text->empty()) return;
        int64_t parsed = 0;
        const char* const end = text->data() + text->size();
        const auto [stop, status] = std::from_chars(text->data(), end, parsed);
        if (status == std::errc() && stop == end && parsed >= low && parsed <= high) return take(parsed);
        MC_LOG_WARNING("{}='{}' ignored: a whole number from {} to {} is expected", name, *text, low, high);
    }

private:
    const Environment& environment_;
};

void read_ports(const Numbers& numbers, StoreOptions& options) {
    int64_t low = options.port_min, high = options.port_max;
    numbers.read("MC_STORE_CLIENT_MIN_PORT", 1, 65535, [&](int64_t value) { low = value; });
    numbers.read("MC_STORE_CLIENT_MAX_PORT", 1, 65535, [&](int64_t value) { high = value; });
    // Linux hands out the ports between these two by itself.
    const bool below = low >= 1024 && high <= 32767, above = low >= 61000 && high <= 65535;
    if (low > high || !(below || above)) {
        MC_LOG_WARNING("store port range {}-{} ignored: it must be ascending and inside 1024-32767 or 61000-65535; using {}-{}", low, high,
                       options.port_min, options.port_max);
        return;
    }
    options.port_min = static_cast<uint16_t>(low);
    options.port_max = static_cast<uint16_t>(high);
}

void read_timeout(const Numbers& numbers, const char* name, Duration& timeout) {
    // A negative number switches the limit off; a day comes close enough.
    numbers.read(name, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                 [&](int64_t value) { timeout = value < 0 ? Duration(24h) : Duration(std::chrono::milliseconds(value)); });
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
    const std::string_view trimmed = trim(text);
    size_t digits = 0;
    while (digits < trimmed.size() && (std::isdigit(static_cast<unsigned char>(trimmed[digits])) || trimmed[digits] == '.')) ++digits;
    const std::string_view number = trimmed.substr(0, digits);
    const uint64_t factor = unit_factor(trim(trimmed.substr(digits)));
    if (number.empty() || factor == 0) return fail(Code::kInvalidArgument, "'{}' is not a size such as 4096, 16MB or 1.5 GB", text);
    if (number.find('.') == std::string_view::npos) {
        uint64_t whole = 0;
        const auto [stop, status] = std::from_chars(number.data(), number.data() + number.size(), whole);
        if (status != std::errc() || stop != number.data() + number.size() || whole > std::numeric_limits<uint64_t>::max() / factor)
            return fail(Code::kInvalidArgument, "'{}' is too large", text);
        return whole * factor;
    }
    double fraction = 0;
    const auto [stop, status] = std::from_chars(number.data(), number.data() + number.size(), fraction);
    const double bytes = fraction * static_cast<double>(factor);
    if (status != std::errc() || stop != number.data() + number.size() || !(bytes < 9.2e18))
        return fail(Code::kInvalidArgument, "'{}' is not a size", text);
    return static_cast<uint64_t>(bytes);
}

std::optional<bool> parse_warm_stop(std::string_view text) {
    if (text == "keep") return true;
    if (text == "remove") return false;
    return std::nullopt;
}

StoreOptions load_store_options(const Environment& environment) {
    StoreOptions options;
    options.engine = load_options(environment);
    const Numbers numbers(environment);
    const auto flag = [&](const char* name, bool& value) {
        if (const auto text = environment(name)) value = parse_flag(*text);
    };
    numbers.read("MC_STORE_CLIENT_SETUP_RETRIES", 1, 10'000, [&](int64_t value) { options.setup_tries = static_cast<int>(value); });
    read_ports(numbers, options);
    if (environment("MC_STORE_USE_HUGEPAGE")) options.huge_pages = true;  // set to anything
    if (const auto text = environment("MC_STORE_HUGEPAGE_SIZE")) {
        const auto size = parse_size(*text);
        if (size && (*size == 2 << 20 || *size == 1 << 30)) options.huge_page_bytes = *size;
        else MC_LOG_WARNING("MC_STORE_HUGEPAGE_SIZE='{}' ignored: 2MB or 1GB is expected", *text);
    }
    flag("MC_STORE_EARLY_PAGES", options.early_pages);
    options.warm_dir = environment("MC_STORE_WARM_DIR").value_or("");
    if (const auto text = environment("MC_STORE_WARM_STOP"); text && !text->empty()) {
        if (const auto keep = parse_warm_stop(*text)) options.warm_keep = *keep;
        else MC_LOG_WARNING("MC_STORE_WARM_STOP='{}' ignored: remove or keep is expected", *text);
    }
    flag("MOONCAKE_STORE_CHECKSUM", options.checksum);
    flag("MC_STORE_CLIENT_METRIC", options.metrics);
    numbers.read("MC_STORE_CLIENT_METRIC_INTERVAL", 0, 86'400,
                 [&](int64_t value) { options.metrics_interval = std::chrono::seconds(value); });
    options.cluster_id = environment("MC_STORE_CLUSTER_ID").value_or("");
    read_timeout(numbers, "MC_RPC_TIMEOUT_MS", options.rpc_timeout);
    read_timeout(numbers, "MC_RPC_CONNECT_TIMEOUT_MS", options.rpc_connect_timeout);
    numbers.read("MC_BRIDGE_RECONNECT_WAIT_MS", 0, 3'600'000, [&](int64_t value) { options.node_wait = std::chrono::milliseconds(value); });
    if (const auto text = environment("MC_BRIDGE_MEMORY_MAX")) {
        const auto size = parse_size(*text);
        if (size && *size != 0) options.shared_bytes_max = *size;
        else MC_LOG_WARNING("MC_BRIDGE_MEMORY_MAX='{}' ignored: a size is expected", *text);
    }
    return options;
}

}  // namespace mooncake::store
