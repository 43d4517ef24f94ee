// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/wire.h"

#include <charconv>
#include <cstring>

#include "base/options.h"
#include "net/address.h"

namespace mooncake::ascend {

namespace {

constexpr uint32_t kVersion = 1;
constexpr std::string_view kEndpointVersion = "1";

class Writer {
public:
    template <typename Number>
    void add(Number number) {
        const size_t at = bytes_.size();
        bytes_.resize(at + sizeof number);
        std::memcpy(bytes_.data() + at, &number, sizeof number);
    }
    std::vector<std::byte> take() { return std::move(bytes_); }

private:
    std::vector<std::byte> bytes_;
};

/// After the first that is missing all are zero, and good() is false.
class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
    template <typename Number>
    Number get() {
        Number number{};
        if (rest_.size() < sizeof number) {
            good_ = false;
            rest_ = {};
            return number;
        }
        std::memcpy(&number, rest_.data(), sizeof number);
        rest_ = rest_.subspan(sizeof number);
        return number;
    }
    bool good() const noexcept { return good_; }
    bool over() const noexcept { return good_ && rest_.empty(); }

private:
    std::span<const std::byte> rest_;
    bool good_ = true;
};

Result<int> number(std::string_view text) {
    int parsed = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (status != std::errc() || stop != text.data() + text.size() || parsed < -1) return fail(Code::kCorrupt, "'{}' is no number", text);
    return parsed;
}

}  // namespace

std::string encode_endpoints(std::span<const EndpointRecord> endpoints) {
    std::string text(kEndpointVersion);
    for (const EndpointRecord& one : endpoints) text += format_text(";{}@{}{}", one.name, one.physical, one.client_server ? "+" : "");
    return text;
}

Result<std::vector<EndpointRecord>> decode_endpoints(std::string_view text) {
    const auto parts = split_list(text, ';');
    if (parts.size() < 2 || parts.size() > kEnginesMax + 1 || parts.front() != kEndpointVersion)
        return fail(Code::kCorrupt, "'{}' is no endpoint of an Ascend transport", text);
    std::vector<EndpointRecord> endpoints;
    for (size_t i = 1; i < parts.size(); ++i) {
        std::string_view rest = parts[i];
        EndpointRecord one;
        one.client_server = rest.ends_with('+');
        if (one.client_server) rest.remove_suffix(1);
        const size_t at = rest.rfind('@');
        if (at == std::string_view::npos) return fail(Code::kCorrupt, "'{}' names no device", parts[i]);
        MC_ASSIGN_OR_RETURN(one.physical, number(rest.substr(at + 1)));
        one.name = rest.substr(0, at);
        const auto address = net::HostPort::parse(one.name);
        if (!address || address->port == 0) return fail(Code::kCorrupt, "'{}' is no address", one.name);
        endpoints.push_back(std::move(one));
    }
    return endpoints;
}

std::vector<std::byte> encode(const ResolveRequest& request) {
    Writer writer;
    writer.add(kVersion);
    writer.add(static_cast<uint32_t>(request.ranges.size()));
    for (const AddressRange& range : request.ranges) {
        writer.add(range.address);
        writer.add(range.length);
    }
    return writer.take();
}

Result<ResolveRequest> decode_request(std::span<const std::byte> bytes) {
    Reader reader(bytes);
    const auto version = reader.get<uint32_t>(), count = reader.get<uint32_t>();
    if (version != kVersion || count > kRangesMax) return fail(Code::kCorrupt, "version {}, {} ranges", version, count);
    ResolveRequest request;
    for (uint32_t i = 0; i < count; ++i) {
        const auto address = reader.get<uint64_t>(), length = reader.get<uint64_t>();
        request.ranges.push_back({address, length});
    }
    if (!reader.over()) return fail(Code::kCorrupt, "a question of {} bytes for {} ranges", bytes.size(), count);
    return request;
}

std::vector<std::byte> encode(const ResolveAnswer& answer) {
    Writer writer;
    writer.add(kVersion);
    writer.add(static_cast<uint32_t>(answer.regions.size()));
    writer.add(answer.version);
    for (const RegionRecord& region : answer.regions) {
        writer.add(region.address);
        writer.add(region.length);
        writer.add(region.since);
        writer.add(region.engine);
        writer.add(static_cast<uint32_t>(region.writable));
    }
    return writer.take();
}

Result<ResolveAnswer> decode_answer(std::span<const std::byte> bytes) {
    Reader reader(bytes);
    const auto version = reader.get<uint32_t>(), count = reader.get<uint32_t>();
    if (version != kVersion || count > kRecordsMax) return fail(Code::kCorrupt, "version {}, {} regions", version, count);
    ResolveAnswer answer{.version = reader.get<uint64_t>(), .regions = {}};
    for (uint32_t i = 0; i < count; ++i) {
        RegionRecord region;
        region.address = reader.get<uint64_t>();
        region.length = reader.get<uint64_t>();
        region.since = reader.get<uint64_t>();
        region.engine = reader.get<uint32_t>();
        region.writable = reader.get<uint32_t>() != 0;
        if (region.length == 0 || region.length > UINT64_MAX - region.address)
            return fail(Code::kCorrupt, "a region of {} bytes", region.length);
        answer.regions.push_back(region);
    }
    if (!reader.over()) return fail(Code::kCorrupt, "an answer of {} bytes for {} regions", bytes.size(), count);
    return answer;
}

}  // namespace mooncake::ascend
