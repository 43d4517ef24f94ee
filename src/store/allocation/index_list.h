// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace mooncake::store {

struct Links {
    uint32_t previous = 0, next = 0;
};

/// A doubly linked list of records named by numbers; the links lie in the records. `links(number)` must return their `Links&`. Holds
/// no memory of its own. Not thread-safe.
class IndexList {
public:
    uint32_t first() const noexcept { return first_; }  // 0: empty
    uint32_t last() const noexcept { return last_; }
    size_t size() const noexcept { return size_; }

    template <typename GetLinks>
    void push_back(uint32_t number, GetLinks&& links) {
        links(number) = {.previous = last_, .next = 0};
        (last_ != 0 ? links(last_).next : first_) = number;
        last_ = number;
        ++size_;
    }
    template <typename GetLinks>
    void push_front(uint32_t number, GetLinks&& links) {
        links(number) = {.previous = 0, .next = first_};
        (first_ != 0 ? links(first_).previous : last_) = number;
        first_ = number;
        ++size_;
    }
    template <typename GetLinks>
    void erase(uint32_t number, GetLinks&& links) {
        const Links around = links(number);
        (around.previous != 0 ? links(around.previous).next : first_) = around.next;
        (around.next != 0 ? links(around.next).previous : last_) = around.previous;
        links(number) = {};
        --size_;
    }
    /// `other` takes the place of `number`.
    template <typename GetLinks>
    void replace(uint32_t number, uint32_t other, GetLinks&& links) {
        const Links around = links(number);
        links(other) = around;
        (around.previous != 0 ? links(around.previous).next : first_) = other;
        (around.next != 0 ? links(around.next).previous : last_) = other;
        links(number) = {};
    }

private:
    uint32_t first_ = 0, last_ = 0;
    size_t size_ = 0;
};

}  // namespace mooncake::store
