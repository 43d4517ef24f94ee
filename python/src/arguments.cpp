// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <limits>
#include <string>
#include <string_view>

#include "interpreter.h"

namespace mooncake::python {

namespace {

constexpr size_t kScratchBlocksMax = 65'536;  // what a thread keeps; larger batches pay for their own memory

std::vector<Block>& scratch_of_this_thread() noexcept {
    thread_local std::vector<Block> scratch;
    return scratch;
}

std::string class_name(nb::handle value) { return nb::type_name(value.type()).c_str(); }

/// Arrays and tensors also have __index__, for the sake of those with one element: they are memory, not numbers.
bool is_array(nb::handle object) {
    if (!nb::hasattr(object, "__dlpack__")) return false;
    const nb::object dimensions = nb::getattr(object, "ndim", nb::none());
    return dimensions.is_none() || !dimensions.equal(nb::int_(0));
}

/// The int that stands for an object with __index__; nothing for others.
nb::object index_of(nb::handle value) {
    return running_python([&] {
        if (!PyIndex_Check(value.ptr()) || is_array(value)) return nb::object();
        nb::object index = nb::steal(PyNumber_Index(value.ptr()));
        if (!index.is_valid()) throw nb::python_error();
        return index;
    });
}

bool is_64_bit_format(std::string_view format, bool& is_signed) {
    if (!format.empty() && (format.front() == '@' || format.front() == '=' || format.front() == '<')) format.remove_prefix(1);
    if (format.size() != 1) return false;
    is_signed = format.front() == 'l' || format.front() == 'q' || format.front() == 'n';
    return is_signed || format.front() == 'L' || format.front() == 'Q' || format.front() == 'N';
}

}  // namespace

void raise_bad_number(const char* name, nb::handle value) {
    if (PyLong_Check(value.ptr()))
        throw nb::type_error(format_text("{}: {} is not an integer from 0 to 2**64 - 1", name, nb::str(value).c_str()).c_str());
    throw nb::type_error(format_text("{}: an integer is expected, not {}", name, class_name(value)).c_str());
}

uint64_t number_from(nb::handle value, const char* name) {
    std::optional<uint64_t> number;
    if (PyLong_Check(value.ptr())) {
        number = value_of_int(value.ptr());
    } else if (const nb::object index = index_of(value); index.is_valid()) {
        number = value_of_int(index.ptr());
        if (!number) raise_bad_number(name, index);
    }
    if (!number) raise_bad_number(name, value);
    return *number;
}

static int device_index(nb::handle object) {
    nb::object index = nb::getattr(object, "device_index", nb::none());
    if (index.is_none()) index = nb::getattr(nb::getattr(object, "device", nb::none()), "index", nb::none());
    const bool number = PyLong_Check(index.ptr()) != 0;
    return number ? nb::cast<int>(index) : -1;
}

WorkPoint work_from(nb::handle after) {
    if (after.is_none()) return {};
    // Not by their types: those of torch, CuPy and cuda-python are alike in this.
    if (nb::hasattr(after, "cuda_event"))
        return {.what = WorkPoint::What::kEvent,
                .handle = number_from(nb::getattr(after, "cuda_event"), "after.cuda_event"),
                .device = device_index(after)};
    return stream_from(after);
}

WorkPoint stream_from(nb::handle stream) {
    WorkPoint point{.what = WorkPoint::What::kStream};
    if (nb::hasattr(stream, "cuda_stream")) {
        point.handle = number_from(nb::getattr(stream, "cuda_stream"), "cuda_stream");
        point.device = device_index(stream);
    } else if (nb::hasattr(stream, "__cuda_stream__")) {
        point.handle = number_from(nb::getattr(stream, "__cuda_stream__")()[1], "__cuda_stream__");
    } else {
        point.handle = number_from(stream, "a stream");
    }
    return point;
}

Direction direction_from(nb::handle opcode) {
    switch (number_from(opcode, "opcode")) {
        case 0: return Direction::kRead;
        case 1: return Direction::kWrite;
        default: throw nb::value_error("opcode: TransferOpcode.Read or TransferOpcode.Write is expected");
    }
}

// ---- BufferView

void BufferView::Release::operator()(Py_buffer* buffer) const noexcept {
    PyBuffer_Release(buffer);
    delete buffer;
}

bool BufferView::take_buffer(nb::handle object) {
    if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
    auto buffer = std::make_unique<Py_buffer>();
    if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_ANY_CONTIGUOUS) != 0) throw nb::python_error();
    std::unique_ptr<Py_buffer, Release> held(buffer.release());
    if (held->ndim == 0) return false;  // numpy's scalars export themselves as well
    buffer_ = std::move(held);
    data_ = buffer_->buf;
    length_ = static_cast<uint64_t>(buffer_->len);
    writable_ = buffer_->readonly == 0;
    return true;
}

bool BufferView::take_dlpack(nb::handle object) {
    if (!nb::hasattr(object, "__dlpack__")) return false;
    if (!nb::try_cast(object, array_, false)) {
        nb::ndarray<nb::ro> any;
        throw nb::buffer_error(nb::try_cast(object, any, false) ? "the memory of the array is not contiguous"
                                                                : "the array cannot be exported through DLPack");
    }
    if (array_.device_type() != nb::device::cpu::value)
        throw nb::buffer_error("the memory of the array is on a device that this build cannot reach");
    data_ = const_cast<void*>(static_cast<const void*>(array_.data()));
    length_ = array_.nbytes();
    nb::ndarray<> mutable_array;  // DLPack refuses this for read-only memory
    writable_ = nb::try_cast(object, mutable_array, false);
    return true;
}

std::optional<BufferView> BufferView::of(nb::handle object) {
    if (PyLong_Check(object.ptr()) || PyUnicode_Check(object.ptr())) return std::nullopt;
    return running_python([&]() -> std::optional<BufferView> {
        if (PyIndex_Check(object.ptr()) && !is_array(object)) return std::nullopt;
        BufferView view;
        if (view.take_buffer(object) || view.take_dlpack(object)) return view;
        return std::nullopt;
    });
}

LocalMemory LocalMemory::from(nb::handle buffer, nb::handle length, const char* buffer_name, const char* length_name) {
    LocalMemory local;
    local.view = BufferView::of(buffer);
    if (!local.view) {
        local.address = reinterpret_cast<std::byte*>(number_from(buffer, buffer_name));
        local.length = number_from(length, length_name);
        return local;
    }
    local.address = static_cast<std::byte*>(local.view->data());
    local.length = length.is_none() ? local.view->length() : number_from(length, length_name);
    if (local.length > local.view->length())
        throw nb::value_error(
            format_text("{}: {} bytes, but the object has only {}", length_name, local.length, local.view->length()).c_str());
    return local;
}

// ---- NumberList

void NumberList::Release::operator()(Py_buffer* buffer) const noexcept {
    PyBuffer_Release(buffer);
    delete buffer;
}

NumberList::NumberList(nb::handle sequence, const char* name) : name_(name) {
    PyObject* const object = sequence.ptr();
    if (PyList_Check(object) || PyTuple_Check(object)) {
        items_ = nb::borrow(sequence);
    } else if (PyUnicode_Check(object) || PyBytes_Check(object) || PyByteArray_Check(object) || PySequence_Check(object) == 0) {
        throw nb::type_error(format_text("{}: a list of integers is expected, not {}", name, class_name(sequence)).c_str());
    } else if (take_array(sequence)) {
        return;
    } else {
        items_ = running_python([&] { return nb::steal(PySequence_Tuple(object)); });
        if (!items_.is_valid()) throw nb::python_error();
    }
    is_tuple_ = PyTuple_Check(items_.ptr());
    size_ = static_cast<size_t>(Py_SIZE(items_.ptr()));
}

bool NumberList::take_array(nb::handle sequence) {
    if (PyObject_CheckBuffer(sequence.ptr()) == 0) return false;
    auto buffer = std::make_unique<Py_buffer>();
    if (PyObject_GetBuffer(sequence.ptr(), buffer.get(), PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        PyErr_Clear();  // not side by side: element by element then
        return false;
    }
    std::unique_ptr<Py_buffer, Release> array(buffer.release());
    if (array->ndim != 1 || array->itemsize != 8 || array->format == nullptr || !is_64_bit_format(array->format, array_signed_))
        return false;
    size_ = static_cast<size_t>(array->len) / 8;
    array_ = std::move(array);
    return true;
}

void NumberList::raise_shorter() const {
    throw nb::value_error(format_text("{}: the list became shorter while it was read", name_).c_str());
}

std::vector<uint64_t> NumberList::values() const {
    std::vector<uint64_t> all(size_);
    each([&](size_t index, uint64_t value) { all[index] = value; });
    return all;
}

// ---- BlockList

// Taken, not shared: reading the arguments may run Python code that comes back to us on the same thread.
BlockList::BlockList() : blocks_(std::move(scratch_of_this_thread())) { blocks_.clear(); }

BlockList::~BlockList() {
    if (blocks_.capacity() <= kScratchBlocksMax) scratch_of_this_thread() = std::move(blocks_);
}

void BlockList::parse_buffers(const NumberList& buffers, const char* name) {
    blocks_.resize(buffers.size());
    buffers.each([this](size_t index, uint64_t value) { blocks_[index].local = reinterpret_cast<std::byte*>(value); },
                 [&](size_t index, nb::handle element) {
                     std::optional<BufferView> view = BufferView::of(element);
                     if (!view) return number_from(element, name);
                     views_.push_back(std::move(*view));
                     view_blocks_.push_back(index);
                     return reinterpret_cast<uint64_t>(views_.back().data());
                 });
}

bool BlockList::parse_lengths(nb::handle lengths, const char* name) {
    if (lengths.is_none()) {
        if (views_.size() != blocks_.size())
            throw nb::type_error(format_text("{}: needed unless every buffer is an object that has a length", name).c_str());
        for (size_t index = 0; index < blocks_.size(); ++index) blocks_[index].length = views_[index].length();
    } else {
        const NumberList given(lengths, name);
        if (given.size() != blocks_.size()) return false;
        given.each([this](size_t index, uint64_t value) { blocks_[index].length = value; });
    }
    for (size_t view = 0; view < views_.size(); ++view) {
        const size_t index = view_blocks_[view];
        if (blocks_[index].length > views_[view].length())
            throw nb::value_error(
                format_text("{}[{}]: {} bytes, but the object has only {}", name, index, blocks_[index].length, views_[view].length())
                    .c_str());
    }
    for (const Block& block : blocks_)
        if (__builtin_add_overflow(bytes_, block.length, &bytes_)) bytes_ = std::numeric_limits<uint64_t>::max();
    return true;
}

bool BlockList::parse(nb::handle buffers, nb::handle peer_addresses, nb::handle lengths) {
    const NumberList local(buffers, "buffers");
    const NumberList remote(peer_addresses, "peer_buffer_addresses");
    parse_buffers(local, "buffers");
    if (!parse_lengths(lengths, "lengths") || remote.size() != local.size()) return false;
    remote.each([this](size_t index, uint64_t value) { blocks_[index].remote = value; });
    return true;
}

bool BlockList::parse_ranges(nb::handle buffer_addresses, nb::handle capacities) {
    parse_buffers(NumberList(buffer_addresses, "buffer_addresses"), "buffer_addresses");
    return parse_lengths(capacities, "capacities");
}

std::vector<size_t> BlockList::read_only() const {
    std::vector<size_t> found;
    for (size_t i = 0; i < views_.size(); ++i)
        if (!views_[i].writable()) found.push_back(view_blocks_[i]);
    return found;
}

void BlockList::require_writable() const {
    for (const BufferView& view : views_)
        if (!view.writable()) throw nb::buffer_error("the object to read into is read-only");
}

void BlockList::assign(LocalMemory local, uint64_t peer_address) {
    blocks_.assign(1, Block{.local = local.address, .remote = peer_address, .length = local.length});
    bytes_ = local.length;
    if (local.view) views_.push_back(std::move(*local.view));
}

}  // namespace mooncake::python
