// SPDX-License-Identifier: Apache-2.0
#include "store/service/tenant_name.h"

#include "store/protocol/messages_objects.h"

namespace mooncake::store {

namespace {

/// Cuts one UTF-8 letter off; 0 if there is none.
char32_t take_letter(std::string_view& text) noexcept {
    const auto first = static_cast<unsigned char>(text.front());
    const size_t length = first < 0x80                    ? 1
                          : first >= 0xc2 && first < 0xe0 ? 2
                          : first >= 0xe0 && first < 0xf0 ? 3
                          : first >= 0xf0 && first < 0xf5 ? 4
                                                          : 0;
    char32_t letter = length == 1 ? first : first & (0x7fU >> length);
    if (length == 0 || length > text.size()) return text = {}, 0;
    for (size_t i = 1; i < length; ++i) {
        const auto next = static_cast<unsigned char>(text[i]);
        if ((next & 0xc0) != 0x80) return text = {}, 0;
        letter = letter << 6 | (next & 0x3f);
    }
    text.remove_prefix(length);
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // longer forms of smaller letters are none
    const bool surrogate = letter >= 0xd800 && letter < 0xe000;
    return letter < kLeast[length] || surrogate || letter > 0x10ffff ? 0 : letter;
}

}  // namespace

bool valid_tenant_name(std::string_view name) noexcept {
    if (name.empty() || name.front() == '_' || name.size() > kNameBytesMax) return false;
    while (!name.empty()) {
        const char32_t letter = take_letter(name);
        // C0 and C1 controls, and what no file can hold
        if (letter < 0x20 || (letter >= 0x7f && letter < 0xa0) || letter == 0xfeff || letter == 0xfffe || letter == 0xffff) return false;
    }
    return true;
}

}  // namespace mooncake::store
