// SPDX-License-Identifier: Apache-2.0
#include "net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace mooncake::net {

namespace {

Result<uint16_t> parse_port(std::string_view text, std::string_view whole) {
    uint16_t port = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (status != std::errc() || end != text.data() + text.size()) return fail(Code::kInvalidArgument, "bad port in '{}'", whole);
    return port;
}

bool is_npu_suffix(std::string_view text) {
    constexpr std::string_view kPrefix = "npu_";
    if (!text.starts_with(kPrefix) || text.size() == kPrefix.size()) return false;
    return text.substr(kPrefix.size()).find_first_not_of("0123456789") == std::string_view::npos;
}

/// The name or number of an interface, as it follows the '%' of a link-local address.
bool is_scope(std::string_view text) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-' || c == '@';
    };
    return !text.empty() && text.size() < IF_NAMESIZE && std::all_of(text.begin(), text.end(), allowed);
}

/// "5000", "5000:npu_3": what follows the colon after the host.
Result<HostPort> parse_rest(HostPort parsed, std::string_view rest, std::string_view whole) {
    const size_t colon = rest.find(':');
    if (colon != std::string_view::npos) {
        parsed.suffix = rest.substr(colon + 1);
        if (!is_npu_suffix(parsed.suffix)) return fail(Code::kInvalidArgument, "'{}' is not host:port", whole);
    }
    MC_ASSIGN_OR_RETURN(parsed.port, parse_port(rest.substr(0, colon), whole));
    return parsed;
}

Result<HostPort> parse_bracketed(std::string_view text) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return fail(Code::kInvalidArgument, "'{}' has no closing bracket", text);
    HostPort parsed{.host = std::string(text.substr(1, close - 1))};
    if (!is_ipv6_literal(parsed.host)) return fail(Code::kInvalidArgument, "'{}' is not an IPv6 address", text);
    const std::string_view rest = text.substr(close + 1);
    if (rest.empty()) return parsed;
    if (rest.front() != ':') return fail(Code::kInvalidArgument, "'{}': a colon must follow the bracket", text);
    return parse_rest(std::move(parsed), rest.substr(1), text);
}

}  // namespace

bool is_ipv6_literal(std::string_view host) {
    const size_t percent = host.find('%');
    if (percent != std::string_view::npos && !is_scope(host.substr(percent + 1))) return false;
    const std::string_view address = host.substr(0, percent);
    if (address.find('\0') != std::string_view::npos) return false;
    const std::string bare(address);
    in6_addr ignored;
    return ::inet_pton(AF_INET6, bare.c_str(), &ignored) == 1;
}

std::string join_host_port(std::string_view host, uint16_t port) {
    return is_ipv6_literal(host) ? format_text("[{}]:{}", host, port) : format_text("{}:{}", host, port);
}

Result<HostPort> HostPort::parse(std::string_view text) {
    if (text.empty() || text.size() > 512) return fail(Code::kInvalidArgument, "an address of {} characters", text.size());
    for (const char c : text)
        if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f)
            return fail(Code::kInvalidArgument, "an address with blanks or control characters");
    if (text.front() == '[') return parse_bracketed(text);
    if (is_ipv6_literal(text)) return HostPort{.host = std::string(text)};

    const size_t first = text.find(':');
    HostPort parsed{.host = std::string(text.substr(0, first))};
    if (parsed.host.empty()) return fail(Code::kInvalidArgument, "'{}' has no host", text);
    if (first == std::string_view::npos) return parsed;
    return parse_rest(std::move(parsed), text.substr(first + 1), text);
}

std::string HostPort::to_string() const {
    if (port != 0) return join_host_port(host, port);
    return is_ipv6_literal(host) ? format_text("[{}]", host) : host;
}

uint16_t SocketAddress::port() const noexcept {
    if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
    if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
    return 0;
}

void SocketAddress::set_port(uint16_t port) noexcept {
    if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
    else if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
}

std::string SocketAddress::to_string() const {
    char host[NI_MAXHOST];
    if (::getnameinfo(get(), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
    return join_host_port(host, port());
}

Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const std::string service = format_text("{}", port);
    const int status = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &list);
    if (status != 0) return fail_errno(Code::kUnavailable, status, "cannot resolve '{}': {}", host, ::gai_strerror(status));
    std::vector<SocketAddress> addresses;
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        SocketAddress address;
        std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
        address.length = entry->ai_addrlen;
        addresses.push_back(address);
    }
    ::freeaddrinfo(list);
    return addresses;
}

Result<std::string> first_public_address(bool ipv6) {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return fail_errno(Code::kUnavailable, errno, "cannot list network interfaces");
    std::string found;
    for (const ifaddrs* entry = list; entry != nullptr && found.empty(); entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_LOOPBACK)) continue;
        if ((entry->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING)) continue;
        char text[INET6_ADDRSTRLEN];
        if (!ipv6 && entry->ifa_addr->sa_family == AF_INET) {
            found = ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
        } else if (ipv6 && entry->ifa_addr->sa_family == AF_INET6) {
            const in6_addr& address = reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
            if (!IN6_IS_ADDR_LINKLOCAL(&address)) found = ::inet_ntop(AF_INET6, &address, text, sizeof text);
        }
    }
    ::freeifaddrs(list);
    if (found.empty()) return fail(Code::kUnavailable, "no network interface is up besides loopback");
    return found;
}

std::string loopback_address(const std::string& host) {
    in_addr v4{};
    if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127 ? host : std::string();
    in6_addr v6{};
    if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) ? host : std::string();
    if (::strcasecmp(host.c_str(), "localhost") != 0) return {};
    // Whoever dials the name tries all it stands for; by number most say the old one.
    const auto addresses = resolve(host, 0);
    if (!addresses) return "127.0.0.1";
    const bool has_v4 = std::any_of(addresses->begin(), addresses->end(), [](const SocketAddress& one) { return one.family() == AF_INET; });
    return has_v4 ? "127.0.0.1" : "::1";
}

bool is_wildcard(std::string_view host) noexcept { return host == "0.0.0.0" || host == "::" || host == "*"; }

}  // namespace mooncake::net
