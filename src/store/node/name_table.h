// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "store/allocation/slab.h"

namespace mooncake::store {

/// Texts that many records share, counted and named by small numbers; 0 is the empty one. Not thread-safe.
class NameTable {
public:
    uint32_t take(std::string_view text) { return take(text, {}); }
    /// Of a text in two parts.
    uint32_t take(std::string_view head, std::string_view tail);
    /// One more user of a number that is in use.
    uint32_t take_again(uint32_t number);
    void give_back(uint32_t number);
    /// Valid until given back.
    std::string_view operator[](uint32_t number) const { return number == 0 ? std::string_view() : *names_[number].text; }

    size_t size() const noexcept { return numbers_.size(); }
    size_t memory_bytes() const noexcept;

private:
    struct Name {
        const std::string* text = nullptr;  // in numbers_
        size_t users = 0;
    };
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
    };
    std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> numbers_;
    Slab<Name> names_;
    uint32_t last_ = 0;  // asked for again more often than not
};

}  // namespace mooncake::store
