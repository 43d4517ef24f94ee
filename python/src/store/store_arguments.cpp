// SPDX-License-Identifier: Apache-2.0
#include "store_arguments.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

#include "interpreter.h"

namespace mooncake::python {

namespace {

std::string class_name(nb::handle value) { return nb::type_name(value.type()).c_str(); }

/// True for a buffer of one dimension whose elements are bytes.
bool is_byte_row(nb::handle object) {
    if (PyBytes_CheckExact(object.ptr())) return true;
    if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
    Py_buffer buffer;
    const bool exported = running_python([&] { return PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_ND | PyBUF_FORMAT) == 0; });
    if (!exported) {
        PyErr_Clear();
        return false;
    }
    const bool is_row = buffer.ndim == 1 && buffer.itemsize == 1;
    PyBuffer_Release(&buffer);
    return is_row;
}

std::optional<store::SegmentId> segment_id_from(std::string_view text) {
    store::SegmentId id;
    const char* const end = text.data() + text.size();
    const auto high = std::from_chars(text.data(), end, id.high);
    if (high.ec != std::errc() || high.ptr == end || *high.ptr != '-') return std::nullopt;
    const auto low = std::from_chars(high.ptr + 1, end, id.low);
    if (low.ec != std::errc() || low.ptr != end) return std::nullopt;
    return id;
}

}  // namespace

std::string_view key_from(nb::handle key, const char* name) {
    if (PyUnicode_Check(key.ptr())) [[likely]] {
        Py_ssize_t length = 0;
        const char* const text = PyUnicode_AsUTF8AndSize(key.ptr(), &length);
        if (text == nullptr) throw nb::python_error();
        return {text, static_cast<size_t>(length)};
    }
    if (PyBytes_Check(key.ptr())) return {PyBytes_AsString(key.ptr()), static_cast<size_t>(PyBytes_Size(key.ptr()))};
    throw nb::type_error(format_text("{}: a str is expected, not {}", name, class_name(key)).c_str());
}

// ---- sequences

FrozenSequence::FrozenSequence(nb::handle sequence, const char* name) {
    PyObject* const object = sequence.ptr();
    if (PyTuple_Check(object)) {
        items_ = nb::borrow(sequence);
    } else if (PyList_Check(object)) {
        items_ = nb::steal(PyList_AsTuple(object));
    } else if (PyUnicode_Check(object) || PyBytes_Check(object) || PyByteArray_Check(object) || PySequence_Check(object) == 0) {
        throw nb::type_error(format_text("{}: a list is expected, not {}", name, class_name(sequence)).c_str());
    } else {
        items_ = running_python([&] { return nb::steal(PySequence_Tuple(object)); });
    }
    if (!items_.is_valid()) throw nb::python_error();
}

KeyList::KeyList(nb::handle keys, const char* name) : items_(keys, name), views_(items_.size()) {
    for (size_t i = 0; i < views_.size(); ++i) views_[i] = key_from(items_[i], name);
}

// ---- memory

bool PieceLists::parse(nb::handle addresses, nb::handle lengths, size_t count) {
    const NumberList starts(addresses, "buffer_ptrs"), sizes(lengths, "sizes");
    if (starts.size() != count || sizes.size() != count) return false;
    pieces_.resize(count);
    first_.resize(count);
    starts.each([this](size_t i, uint64_t value) {
        pieces_[i].data = reinterpret_cast<std::byte*>(value);
        first_[i] = i;
    });
    sizes.each([this](size_t i, uint64_t value) { pieces_[i].length = value; });
    return true;
}

bool PieceLists::parse_nested(nb::handle addresses, nb::handle lengths, size_t count) {
    const FrozenSequence starts(addresses, "all_buffer_ptrs"), sizes(lengths, "all_sizes");
    if (starts.size() != count || sizes.size() != count) return false;
    first_.resize(count);
    for (size_t value = 0; value < count; ++value) {
        const NumberList value_starts(starts[value], "all_buffer_ptrs"), value_sizes(sizes[value], "all_sizes");
        if (value_starts.size() != value_sizes.size()) return false;
        const size_t first = first_[value] = pieces_.size();
        pieces_.resize(first + value_starts.size());
        value_starts.each([&](size_t i, uint64_t number) { pieces_[first + i].data = reinterpret_cast<std::byte*>(number); });
        value_sizes.each([&](size_t i, uint64_t number) { pieces_[first + i].length = number; });
    }
    return true;
}

void PieceLists::add_object(nb::handle object, const char* name) {
    if (PyBytes_CheckExact(object.ptr())) {
        pieces_.push_back(
            {reinterpret_cast<std::byte*>(PyBytes_AsString(object.ptr())), static_cast<uint64_t>(PyBytes_Size(object.ptr()))});
        return;
    }
    std::optional<BufferView> view = BufferView::of(object);
    if (!view)
        throw nb::type_error(format_text("{}: an object with memory of its own is expected, not {}", name, class_name(object)).c_str());
    pieces_.push_back({static_cast<std::byte*>(view->data()), view->length()});
    views_.push_back(std::move(*view));
}

bool PieceLists::parse_objects(nb::handle objects, size_t count, const char* name) {
    objects_.emplace(objects, name);
    if (objects_->size() != count) return false;
    pieces_.reserve(count);
    first_.resize(count);
    for (size_t i = 0; i < count; ++i) {
        first_[i] = i;
        add_object((*objects_)[i], name);
    }
    return true;
}

void PieceLists::parse_parts(nb::handle parts) {
    objects_.emplace(parts, "parts");
    first_.assign(1, 0);
    for (size_t i = 0; i < objects_->size(); ++i) {
        if (PyObject_CheckBuffer((*objects_)[i].ptr()) == 0)
            throw nb::type_error(format_text("parts: a buffer is expected, not {}", class_name((*objects_)[i])).c_str());
        if (!is_byte_row((*objects_)[i])) throw std::runtime_error("parts: each must be a contiguous buffer of bytes with one dimension");
        add_object((*objects_)[i], "parts");
    }
}

bool PieceLists::has_null(size_t value) const noexcept {
    return std::ranges::any_of(pieces_of(value), [](const store::Piece& piece) { return piece.data == nullptr && piece.length != 0; });
}

bool PieceLists::has_null() const noexcept {
    return std::ranges::any_of(pieces_, [](const store::Piece& piece) { return piece.data == nullptr && piece.length != 0; });
}

uint64_t PieceLists::bytes() const noexcept {
    uint64_t sum = 0;
    for (const store::Piece& piece : pieces_)
        if (__builtin_add_overflow(sum, piece.length, &sum)) return std::numeric_limits<uint64_t>::max();
    return sum;
}

std::optional<std::vector<store::SegmentId>> segment_ids_from(nb::handle ids) {
    const KeyList texts(ids, "segment_ids");
    std::vector<store::SegmentId> parsed;
    for (const std::string_view text : texts.views()) {
        const auto id = segment_id_from(text);
        if (!id) return std::nullopt;
        parsed.push_back(*id);
    }
    return parsed;
}

nb::list repeated(store::StoreCode code, size_t count) {
    const std::vector<int32_t> codes(count, static_cast<int32_t>(code));
    return int_list(codes);
}

}  // namespace mooncake::python
