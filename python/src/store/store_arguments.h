// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "store/process/store_client.h"

/// Turns the lists that callers pass into the store's terms, and its answers into lists. As in arguments.h, everything needs the
/// interpreter lock and throws TypeError and the like. What is parsed stays valid without the lock: it keeps the objects it borrows from.
namespace mooncake::python {

/// The text of a key: str, or bytes as they are. Borrowed from the object. TypeError otherwise, naming the argument.
std::string_view key_from(nb::handle key, const char* name = "key");

/// A sequence whose elements cannot change or go while this exists: a tuple, or a copy of something else as one.
class FrozenSequence {
public:
    /// TypeError if it is no sequence, or one of characters or bytes.
    FrozenSequence(nb::handle sequence, const char* name);

    size_t size() const noexcept { return static_cast<size_t>(NB_TUPLE_GET_SIZE(items_.ptr())); }
    nb::handle operator[](size_t index) const noexcept { return NB_TUPLE_GET_ITEM(items_.ptr(), static_cast<Py_ssize_t>(index)); }

private:
    nb::object items_;
};

class KeyList {
public:
    explicit KeyList(nb::handle keys, const char* name = "keys");

    size_t size() const noexcept { return views_.size(); }
    std::string_view operator[](size_t index) const noexcept { return views_[index]; }
    std::span<const std::string_view> views() const noexcept { return views_; }
    nb::handle object(size_t index) const noexcept { return items_[index]; }

private:
    FrozenSequence items_;
    std::vector<std::string_view> views_;
};

/// Memory that belongs to values: `pieces_of(i)` is what makes up value i.
class PieceLists {
public:
    /// One piece per value, out of two lists. False when they are not as long as `count`.
    bool parse(nb::handle addresses, nb::handle lengths, size_t count);
    /// A list of pieces per value, out of two lists of lists. False when lengths do not agree anywhere.
    bool parse_nested(nb::handle addresses, nb::handle lengths, size_t count);
    /// One object with memory of its own per value. False when there are not `count`.
    bool parse_objects(nb::handle objects, size_t count, const char* name);
    /// All objects together are one value. RuntimeError unless each is a row of bytes.
    void parse_parts(nb::handle parts);

    std::span<const store::Piece> pieces_of(size_t value) const noexcept {
        const size_t end = value + 1 < first_.size() ? first_[value + 1] : pieces_.size();
        return std::span(pieces_).subspan(first_[value], end - first_[value]);
    }
    std::span<const store::Piece> all() const noexcept { return pieces_; }
    /// Addresses that cannot be read become null.
    [[nodiscard]] store::MemoryLoan drop_unreadable(store::StoreClient& client) { return client.drop_unreadable(pieces_); }
    /// Whether some address is null; such values must not reach the store.
    bool has_null(size_t value) const noexcept;
    bool has_null() const noexcept;
    uint64_t bytes() const noexcept;

private:
    void add_object(nb::handle object, const char* name);

    std::vector<store::Piece> pieces_;
    std::vector<size_t> first_;  // of each value
    std::optional<FrozenSequence> objects_;
    std::vector<BufferView> views_;
};

/// The ids of segments, as "a-b". Nothing when one makes no sense.
std::optional<std::vector<store::SegmentId>> segment_ids_from(nb::handle ids);

/// A list of ints.
template <typename Number>
nb::list int_list(std::span<const Number> numbers) {
    PyObject* const list = PyList_New(static_cast<Py_ssize_t>(numbers.size()));
    if (list == nullptr) throw nb::python_error();
    nb::list result = nb::steal<nb::list>(list);
    for (size_t i = 0; i < numbers.size(); ++i) {
        PyObject* const number = PyLong_FromLong(static_cast<long>(numbers[i]));  // small ones are shared objects: no allocation
        if (number == nullptr) throw nb::python_error();
        (void)NB_LIST_SET_ITEM(list, static_cast<Py_ssize_t>(i), number);
    }
    return result;
}
template <typename Number>
nb::list int_list(const std::vector<Number>& numbers) {
    return int_list(std::span<const Number>(numbers));
}
/// `count` times the same code.
nb::list repeated(store::StoreCode code, size_t count);

}  // namespace mooncake::python
