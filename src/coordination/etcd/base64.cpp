// SPDX-License-Identifier: Apache-2.0
#include "coordination/etcd/base64.h"

#include <array>
#include <cstdint>

namespace mooncake {

namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> make_values() {
    std::array<int8_t, 256> values{};
    values.fill(-1);
    for (size_t i = 0; i < kAlphabet.size(); ++i) values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
    return values;
}
constexpr std::array<int8_t, 256> kValues = make_values();

}  // namespace

std::string base64_encode(std::string_view bytes) {
    std::string text;
    text.reserve((bytes.size() + 2) / 3 * 4);
    for (size_t i = 0; i < bytes.size(); i += 3) {
        const size_t count = std::min<size_t>(3, bytes.size() - i);
        uint32_t group = 0;
        for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
        for (size_t j = 0; j < 4; ++j) text += j <= count ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
    }
    return text;
}

Result<std::string> base64_decode(std::string_view text) {
    if (text.size() % 4 != 0) return fail(Code::kCorrupt, "base64 of {} characters", text.size());
    std::string bytes;
    bytes.reserve(text.size() / 4 * 3);
    for (size_t i = 0; i < text.size(); i += 4) {
        const bool last = i + 4 == text.size();
        const size_t padding = !last ? 0 : text.substr(i, 4).ends_with("==") ? 2 : text.substr(i, 4).ends_with('=') ? 1 : 0;
        uint32_t group = 0;
        for (size_t j = 0; j < 4; ++j) {
            const int value = j < 4 - padding ? kValues[static_cast<unsigned char>(text[i + j])] : 0;
            if (value < 0) return fail(Code::kCorrupt, "a character that base64 does not have");
            group = group << 6 | static_cast<uint32_t>(value);
        }
        if ((group & ((1u << (8 * padding)) - 1)) != 0) return fail(Code::kCorrupt, "base64 with bits after its end");
        for (size_t j = 0; j < 3 - padding; ++j) bytes += static_cast<char>(group >> (16 - 8 * j) & 255);
    }
    return bytes;
}

}  // namespace mooncake
