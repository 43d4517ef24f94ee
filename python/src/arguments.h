// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

/// Turns what callers pass - ints, lists, arrays, tensors - into the engine's terms. Everything here needs the interpreter lock
/// and throws TypeError (ValueError, BufferError) as Python exceptions.
namespace mooncake::python {

namespace nb = nanobind;

/// An int, or anything with __index__, from 0 to 2**64 - 1. TypeError otherwise, naming the argument.
uint64_t number_from(nb::handle value, const char* name);
/// What a transfer waits for: None, a stream (its handle, or an object with cuda_stream or __cuda_stream__), or an object with cuda_event.
/// TypeError otherwise.
WorkPoint work_from(nb::handle after);
/// A stream alone.
WorkPoint stream_from(nb::handle stream);
Direction direction_from(nb::handle opcode);  // TransferOpcode, 0 or 1; ValueError for other numbers

/// The memory of a Python object, which stays where it is while this exists: buffer protocol, else DLPack on the host.
class BufferView {
public:
    /// Nothing if the object is a number or has no memory of its own. BufferError if that is not contiguous or on a device.
    static std::optional<BufferView> of(nb::handle object);

    void* data() const noexcept { return data_; }
    uint64_t length() const noexcept { return length_; }
    bool writable() const noexcept { return writable_; }

private:
    struct Release {
        void operator()(Py_buffer* buffer) const noexcept;
    };
    using Array = nb::ndarray<nb::ro, nb::c_contig>;

    bool take_buffer(nb::handle object);
    bool take_dlpack(nb::handle object);

    std::unique_ptr<Py_buffer, Release> buffer_;  // one of the two keeps the memory
    Array array_;
    void* data_ = nullptr;
    uint64_t length_ = 0;
    bool writable_ = false;
};

/// One end of a transfer in our memory: an address with a length, or an object that brings both.
struct LocalMemory {
    std::byte* address = nullptr;
    uint64_t length = 0;
    std::optional<BufferView> view;  // keeps the object's memory; empty for plain addresses

    /// `length` None: that of the object (TypeError for a plain address). ValueError if it is longer than the object.
    static LocalMemory from(nb::handle buffer, nb::handle length, const char* buffer_name, const char* length_name);
};

/// A list, tuple, other sequence or array of numbers, read in one pass without a Python object per element where there is none.
class NumberList {
public:
    NumberList(nb::handle sequence, const char* name);

    size_t size() const noexcept { return size_; }

    /// put(index, value) for each; `other(index, element)` gives the value of an element that is no plain int.
    template <typename Put, typename Other>
    void each(Put&& put, Other&& other) const;
    template <typename Put>
    void each(Put&& put) const {
        each(put, [this](size_t, nb::handle element) { return number_from(element, name_); });
    }
    std::vector<uint64_t> values() const;

private:
    struct Release {
        void operator()(Py_buffer* buffer) const noexcept;
    };
    bool take_array(nb::handle sequence);
    /// Borrowed. The elements' own code may have changed the list since the last call.
    PyObject* item(size_t index) const {
        if (is_tuple_) return NB_TUPLE_GET_ITEM(items_.ptr(), static_cast<Py_ssize_t>(index));
        if (index >= static_cast<size_t>(NB_LIST_GET_SIZE(items_.ptr()))) [[unlikely]]
            raise_shorter();
        return NB_LIST_GET_ITEM(items_.ptr(), static_cast<Py_ssize_t>(index));
    }
    [[noreturn]] void raise_shorter() const;

    const char* const name_;
    nb::object items_;                           // a list or a tuple
    std::unique_ptr<Py_buffer, Release> array_;  // or 64-bit numbers side by side
    bool is_tuple_ = false;
    bool array_signed_ = false;
    size_t size_ = 0;
};

/// The three lists of a batch as blocks, in memory that a thread uses again and again.
class BlockList {
public:
    BlockList();
    ~BlockList();
    BlockList(const BlockList&) = delete;
    BlockList& operator=(const BlockList&) = delete;

    /// False when the lists are not equally long. `lengths` may be None when every buffer is an object.
    bool parse(nb::handle buffers, nb::handle peer_addresses, nb::handle lengths);
    /// As parse(), without the peer's side.
    bool parse_ranges(nb::handle buffer_addresses, nb::handle capacities);
    /// One block.
    void assign(LocalMemory local, uint64_t peer_address);

    /// BufferError unless every object may be written to.
    void require_writable() const;
    /// The blocks whose object may not be written to.
    std::vector<size_t> read_only() const;

    std::span<const Block> blocks() const noexcept { return blocks_; }
    uint64_t bytes() const noexcept { return bytes_; }
    bool has_views() const noexcept { return !views_.empty(); }
    /// What keeps the objects' memory, for transfers that outlive the call.
    std::vector<BufferView> take_views() noexcept { return std::move(views_); }

private:
    void parse_buffers(const NumberList& buffers, const char* name);
    bool parse_lengths(nb::handle lengths, const char* name);

    std::vector<Block> blocks_;
    std::vector<BufferView> views_;
    std::vector<size_t> view_blocks_;  // which block each view belongs to
    uint64_t bytes_ = 0;
};

// ---- details

/// The value of an exact Python int; nothing (and no Python error) if it is negative or too large.
inline std::optional<uint64_t> value_of_int(PyObject* number) noexcept {
    static_assert(sizeof(unsigned long) == sizeof(uint64_t));  // and faster than the "long long" function in CPython
    const unsigned long value = PyLong_AsUnsignedLong(number);
    if (value == static_cast<unsigned long>(-1) && PyErr_Occurred() != nullptr) [[unlikely]] {
        PyErr_Clear();
        return std::nullopt;
    }
    return value;
}

[[noreturn]] void raise_bad_number(const char* name, nb::handle value);

template <typename Put, typename Other>
void NumberList::each(Put&& put, Other&& other) const {
    if (array_) {
        const auto* const values = static_cast<const uint64_t*>(array_->buf);
        for (size_t index = 0; index < size_; ++index) {
            if (array_signed_ && static_cast<int64_t>(values[index]) < 0) [[unlikely]]
                raise_bad_number(name_, nb::int_(static_cast<int64_t>(values[index])));
            put(index, values[index]);
        }
        return;
    }
    for (size_t index = 0; index < size_; ++index) {
        PyObject* const element = item(index);
        if (PyLong_CheckExact(element)) [[likely]] {  // runs no Python code, so the borrowed reference holds
            const std::optional<uint64_t> value = value_of_int(element);
            if (!value) [[unlikely]]
                raise_bad_number(name_, element);
            put(index, *value);
        } else {
            const nb::object kept = nb::borrow(element);
            put(index, other(index, kept));
        }
    }
}

}  // namespace mooncake::python
