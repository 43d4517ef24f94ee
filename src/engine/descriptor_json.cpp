// SPDX-License-Identifier: Apache-2.0
#include "engine/descriptor_json.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <ctime>

#include "engine/messages.h"

namespace mooncake {

namespace {

using Json = nlohmann::json;

// Several times what an engine publishes. A directory that lies costs no more than a parsed text of this size, which takes many times its length.
constexpr size_t kDescriptorBytesMax = 8 << 20, kRpcMetaBytesMax = 64 << 10;
constexpr size_t kDepthMax = 16;  // ours have 4
constexpr int kTcpProtocolVersion = 2;

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string timestamp_now() {
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
    std::tm local{};
    ::localtime_r(&seconds, &local);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
    return format_text("{}.{:06}", text, micros);
}

std::string to_hex(std::string_view bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const char c : bytes) {
        text.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
        text.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
    }
    return text;
}

int hex_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

Result<std::string> from_hex(std::string_view text) {
    std::string bytes;
    bytes.reserve(text.size() / 2);
    for (size_t i = 0; i + 1 < text.size(); i += 2) {
        const int high = hex_value(text[i]), low = hex_value(text[i + 1]);
        if (high < 0 || low < 0) return fail(Code::kCorrupt, "'{}' is not hexadecimal", text.substr(i, 2));
        bytes.push_back(static_cast<char>(high * 16 + low));
    }
    if (text.size() % 2 != 0) return fail(Code::kCorrupt, "an odd number of hexadecimal digits");
    return bytes;
}

/// Whether lists and objects lie deeper in each other than any of ours. Nonsense is left to the parser.
bool too_deep(std::string_view text) noexcept {
    size_t depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_text && c == '\\') ++i;
        else if (c == '"') in_text = !in_text;
        else if (!in_text && (c == '[' || c == '{') && ++depth > kDepthMax) return true;
        else if (!in_text && (c == ']' || c == '}') && depth > 0) --depth;
    }
    return false;
}

Result<Json> parse_object(std::string_view text, std::string_view what, size_t bytes_max) {
    if (text.size() > bytes_max) return fail(Code::kCorrupt, "{}: {} bytes of JSON", what, text.size());
    if (too_deep(text)) return fail(Code::kCorrupt, "{}: JSON of more than {} levels", what, kDepthMax);
    Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return fail(Code::kCorrupt, "{}: not a JSON object", what);
    return json;
}

Result<std::string> text_field(const Json& object, const char* field, size_t bytes_max) {
    const auto found = object.find(field);
    if (found == object.end() || !found->is_string()) return fail(Code::kCorrupt, "'{}' is missing or not a text", field);
    const auto& text = found->get_ref<const std::string&>();
    if (text.size() > bytes_max) return fail(Code::kCorrupt, "'{}' has {} bytes; at most {} are allowed", field, text.size(), bytes_max);
    return text;
}

Result<std::string> non_empty_text_field(const Json& object, const char* field, size_t bytes_max) {
    MC_ASSIGN_OR_RETURN(std::string text, text_field(object, field, bytes_max));
    if (text.empty()) return fail(Code::kCorrupt, "'{}' is empty", field);
    return text;
}

Result<uint64_t> positive_field(const Json& object, const char* field, uint64_t max) {
    const auto found = object.find(field);
    if (found == object.end() || !found->is_number_unsigned()) return fail(Code::kCorrupt, "'{}' is missing or not a whole number", field);
    const auto value = found->get<uint64_t>();
    if (value == 0 || value > max) return fail(Code::kCorrupt, "'{}' is {}; it must be 1 to {}", field, value, max);
    return value;
}

Result<std::map<std::string, std::string>> endpoints_from(const Json& ours) {
    std::map<std::string, std::string> endpoints;
    const auto found = ours.find("endpoints");
    if (found == ours.end() || !found->is_object()) return fail(Code::kCorrupt, "'endpoints' is missing or not an object");
    if (found->size() > kEndpointsMax) return fail(Code::kCorrupt, "{} endpoints; at most {} are allowed", found->size(), kEndpointsMax);
    for (const auto& [transport, value] : found->items()) {
        if (transport.empty() || transport.size() > kSegmentNameBytesMax || !value.is_string())
            return fail(Code::kCorrupt, "the endpoint of transport '{}' is not a text", transport.substr(0, kSegmentNameBytesMax));
        const auto& hex = value.get_ref<const std::string&>();
        if (hex.size() > 2 * kEndpointBytesMax)
            return fail(Code::kCorrupt, "the endpoint of transport '{}' has {} digits", transport, hex.size());
        auto blob = from_hex(hex);
        if (!blob) return Unexpected(std::move(blob).error().with_context(format_text("endpoint of transport '{}'", transport)));
        endpoints.emplace(transport, std::move(*blob));
    }
    return endpoints;
}

Result<BufferRecord> buffer_from(const Json& entry) {
    if (!entry.is_object()) return fail(Code::kCorrupt, "not an object");
    BufferRecord buffer;
    MC_RETURN_IF_ERROR(non_empty_text_field(entry, "name", kSegmentNameBytesMax));
    MC_ASSIGN_OR_RETURN(buffer.address, positive_field(entry, "addr", UINT64_MAX));
    MC_ASSIGN_OR_RETURN(buffer.length, positive_field(entry, "length", UINT64_MAX - buffer.address));
    if (entry.contains("location")) {
        MC_ASSIGN_OR_RETURN(buffer.location, text_field(entry, "location", kLocationBytesMax));
    }
    return buffer;
}

Result<std::vector<BufferRecord>> buffers_from(const Json& json) {
    std::vector<BufferRecord> buffers;
    const auto found = json.find("buffers");
    if (found == json.end()) return buffers;
    if (!found->is_array()) return fail(Code::kCorrupt, "'buffers' is not a list");
    buffers.reserve(found->size());
    for (const Json& entry : *found) {
        auto buffer = buffer_from(entry);
        if (!buffer) return Unexpected(std::move(buffer).error().with_context(format_text("buffer {}", buffers.size())));
        buffers.push_back(std::move(*buffer));
    }
    return buffers;
}

Result<SegmentDescriptor> descriptor_from(const Json& json) {
    SegmentDescriptor descriptor;
    MC_ASSIGN_OR_RETURN(descriptor.name, non_empty_text_field(json, "name", kSegmentNameBytesMax));
    const auto ours = json.find("mooncake");
    if (ours == json.end()) return fail(Code::kNotSupported, "'{}' was written by another implementation", descriptor.name);
    if (!ours->is_object()) return fail(Code::kCorrupt, "'mooncake' is not an object");
    MC_ASSIGN_OR_RETURN(const std::string incarnation, text_field(*ours, "incarnation", 16));
    auto parsed = Incarnation::parse(incarnation);
    if (!parsed) return fail(Code::kCorrupt, "'incarnation' is '{}'", incarnation);
    descriptor.incarnation = *parsed;
    MC_ASSIGN_OR_RETURN(descriptor.host, non_empty_text_field(*ours, "host", kHostBytesMax));
    MC_ASSIGN_OR_RETURN(const uint64_t port, positive_field(*ours, "rpc_port", UINT16_MAX));
    descriptor.rpc_port = static_cast<uint16_t>(port);
    MC_ASSIGN_OR_RETURN(descriptor.boot_id, text_field(*ours, "boot_id", kBootIdBytesMax));
    MC_ASSIGN_OR_RETURN(descriptor.endpoints, endpoints_from(*ours));
    MC_ASSIGN_OR_RETURN(descriptor.buffers, buffers_from(json));
    return descriptor;
}

Result<RpcMeta> rpc_meta_from(const Json& json) {
    RpcMeta meta;
    MC_ASSIGN_OR_RETURN(meta.host, non_empty_text_field(json, "ip_or_host_name", kHostBytesMax));
    MC_ASSIGN_OR_RETURN(const uint64_t port, positive_field(json, "rpc_port", UINT16_MAX));
    meta.rpc_port = static_cast<uint16_t>(port);
    return meta;
}

}  // namespace

std::string descriptor_to_json(const SegmentDescriptor& descriptor, uint16_t tcp_data_port) {
    Json endpoints = Json::object();
    for (const auto& [transport, blob] : descriptor.endpoints) endpoints[transport] = to_hex(blob);
    Json buffers = Json::array();
    for (const BufferRecord& buffer : descriptor.buffers) {
        buffers.push_back({{"name", descriptor.name}, {"addr", buffer.address}, {"length", buffer.length}, {"location", buffer.location}});
    }
    return to_text({{"name", descriptor.name},
                    {"protocol", "tcp"},
                    {"tcp_data_port", tcp_data_port},
                    {"tcp_proto_version", kTcpProtocolVersion},
                    {"timestamp", timestamp_now()},
                    {"buffers", std::move(buffers)},
                    {"mooncake",
                     {{"incarnation", descriptor.incarnation.to_string()},
                      {"host", descriptor.host},
                      {"rpc_port", descriptor.rpc_port},
                      {"boot_id", descriptor.boot_id},
                      {"endpoints", std::move(endpoints)}}}});
}

Result<SegmentDescriptor> descriptor_from_json(std::string_view text) {
    MC_ASSIGN_OR_RETURN(const Json json, parse_object(text, "segment descriptor", kDescriptorBytesMax));
    auto descriptor = descriptor_from(json);
    if (!descriptor) return Unexpected(std::move(descriptor).error().with_context("segment descriptor"));
    return descriptor;
}

std::string rpc_meta_to_json(const RpcMeta& meta) { return to_text({{"ip_or_host_name", meta.host}, {"rpc_port", meta.rpc_port}}); }

Result<RpcMeta> rpc_meta_from_json(std::string_view text) {
    MC_ASSIGN_OR_RETURN(const Json json, parse_object(text, "rpc address", kRpcMetaBytesMax));
    auto meta = rpc_meta_from(json);
    if (!meta) return Unexpected(std::move(meta).error().with_context("rpc address"));
    return meta;
}

}  // namespace mooncake
