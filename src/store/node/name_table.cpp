// SPDX-License-Identifier: Apache-2.0
#include "store/node/name_table.h"

#include <utility>

namespace mooncake::store {

uint32_t NameTable::take(std::string_view head, std::string_view tail) {
    if (head.empty() && tail.empty()) return 0;
    if (last_ != 0) {
        const std::string_view last = *names_[last_].text;
        if (last.size() == head.size() + tail.size() && last.starts_with(head) && last.ends_with(tail)) return take_again(last_);
    }
    std::string text;
    text.reserve(head.size() + tail.size());
    text.append(head).append(tail);
    auto found = numbers_.find(text);
    if (found == numbers_.end()) {
        found = numbers_.emplace(std::move(text), names_.take()).first;
        names_[found->second].text = &found->first;
    }
    last_ = found->second;
    return take_again(last_);
}

uint32_t NameTable::take_again(uint32_t number) {
    if (number != 0) ++names_[number].users;
    return number;
}

void NameTable::give_back(uint32_t number) {
    if (number == 0 || --names_[number].users != 0) return;
    if (last_ == number) last_ = 0;
    const auto found = numbers_.find(*names_[number].text);
    names_.give_back(number);
    numbers_.erase(found);
}

size_t NameTable::memory_bytes() const noexcept {
    constexpr size_t kNode = sizeof(std::string) + sizeof(uint32_t) + 2 * sizeof(void*) + 16;
    size_t bytes = names_.memory_bytes() + numbers_.bucket_count() * sizeof(void*);
    for (const auto& [text, number] : numbers_) bytes += kNode + (text.capacity() > 15 ? text.capacity() + 1 : 0);
    return bytes;
}

}  // namespace mooncake::store
