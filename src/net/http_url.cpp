// SPDX-License-Identifier: Apache-2.0
#include "net/http_url.h"

#include <strings.h>

#include <algorithm>

#include "net/address.h"

namespace mooncake::net {

namespace {

constexpr size_t kUrlBytesMax = 16 * 1024;

int hex_digit(char c) noexcept {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool is_unreserved(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
}

/// Cuts the scheme off; false if it is neither http nor https.
bool take_scheme(std::string_view& text, bool& tls) {
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (text.size() < scheme.size() || ::strncasecmp(text.data(), scheme.data(), scheme.size()) != 0) continue;
        tls = scheme == "https://";
        text.remove_prefix(scheme.size());
        return true;
    }
    return false;
}

}  // namespace

Result<HttpUrl> HttpUrl::parse(std::string_view text) {
    if (text.size() > kUrlBytesMax) return fail(Code::kInvalidArgument, "a URL of {} characters", text.size());
    // Blanks and control characters could smuggle header lines into a request.
    if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; }))
        return fail(Code::kInvalidArgument, "a URL with blanks or control characters");
    HttpUrl url;
    std::string_view rest = text;
    if (!take_scheme(rest, url.tls)) return fail(Code::kInvalidArgument, "'{}' is not an http or https URL", text);
    rest = rest.substr(0, rest.find('#'));
    const size_t end = std::min(rest.find_first_of("/?"), rest.size());
    const std::string_view authority = rest.substr(0, end);
    if (authority.find('@') != std::string_view::npos) return fail(Code::kInvalidArgument, "a URL with user name or password");
    auto address = HostPort::parse(authority);
    if (!address || !address->suffix.empty()) return fail(Code::kInvalidArgument, "'{}' names no host", text);
    url.host = std::move(address->host);
    url.port = address->port != 0 ? address->port : (url.tls ? 443 : 80);
    url.target = rest.substr(end);
    if (!url.target.starts_with('/')) url.target.insert(0, "/");
    return url;
}

std::string HttpUrl::host_port() const { return join_host_port(host, port); }

std::string percent_encode(std::string_view text) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    std::string encoded;
    encoded.reserve(text.size() * 3);
    for (const char c : text) {
        if (is_unreserved(c)) {
            encoded += c;
        } else {
            const auto byte = static_cast<unsigned char>(c);
            encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
        }
    }
    return encoded;
}

Result<std::string> percent_decode(std::string_view text, Plus plus) {
    std::string decoded;
    decoded.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '+' && plus == Plus::kBlank) {
            decoded += ' ';
        } else if (text[i] != '%') {
            decoded += text[i];
        } else {
            const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
            const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0) return fail(Code::kInvalidArgument, "a '%' without two hex digits");
            decoded += static_cast<char>(high * 16 + low);
            i += 2;
        }
    }
    return decoded;
}

Result<HttpParameters> parse_query(std::string_view query) {
    HttpParameters parameters;
    while (!query.empty()) {
        const size_t end = std::min(query.find('&'), query.size());
        const std::string_view part = query.substr(0, end);
        query.remove_prefix(std::min(end + 1, query.size()));
        if (part.empty()) continue;
        const size_t equals = std::min(part.find('='), part.size());
        MC_ASSIGN_OR_RETURN(std::string name, percent_decode(part.substr(0, equals), Plus::kBlank));
        MC_ASSIGN_OR_RETURN(std::string value, percent_decode(part.substr(std::min(equals + 1, part.size())), Plus::kBlank));
        parameters.emplace_back(std::move(name), std::move(value));
    }
    return parameters;
}

}  // namespace mooncake::net
