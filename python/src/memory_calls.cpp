// SPDX-License-Identifier: Apache-2.0
#include "engine/codes.h"
#include "failures.h"
#include "interpreter.h"
#include "raw_memory.h"
#include "transfer_engine.h"

namespace mooncake::python {

namespace {

constexpr size_t kSmallCopy = 64 << 10;  // giving up the interpreter lock costs more than a copy of this

int code_of(const char* call, const Result<>& result) {
    if (!result) record_failure(call, result.error());
    return public_code(result);
}

uint64_t address_from(nb::handle buffer, const char* name) {
    if (const auto view = BufferView::of(buffer)) return reinterpret_cast<uint64_t>(view->data());
    return number_from(buffer, name);
}

void forget(std::unordered_map<uint64_t, std::vector<BufferView>>& objects, uint64_t address) {
    const auto found = objects.find(address);
    if (found == objects.end()) return;
    found->second.pop_back();
    if (found->second.empty()) objects.erase(found);
}

}  // namespace

int TransferEngine::register_memory(nb::handle buffer, nb::handle capacity, const Text& location) {
    constexpr const char* kCall = "register_memory";
    LocalMemory memory = LocalMemory::from(buffer, capacity, "buffer_addr", "capacity");
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    const Access most = memory.view && !memory.view->writable() ? Access::kRead : Access::kWrite;
    const Result<> done = without_gil([&] { return engine->register_memory(memory.address, memory.length, location, true, most); });
    if (done && memory.view) registered_objects_[reinterpret_cast<uint64_t>(memory.address)].push_back(std::move(*memory.view));
    return code_of(kCall, done);
}

int TransferEngine::unregister_memory(nb::handle buffer) {
    constexpr const char* kCall = "unregister_memory";
    const uint64_t address = address_from(buffer, "buffer_addr");
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    const Result<> done = without_gil([&] { return engine->unregister_memory(reinterpret_cast<void*>(address)); });
    if (done) forget(registered_objects_, address);
    return code_of(kCall, done);
}

int TransferEngine::batch_register_memory(nb::handle buffers, nb::handle capacities, const Text& location) {
    constexpr const char* kCall = "batch_register_memory";
    BlockList list;
    const bool equal = list.parse_ranges(buffers, capacities);
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    if (!equal) return failed(kCall, error(Code::kInvalidArgument, "the lists are not equally long"));
    std::vector<Permission> ranges;
    ranges.reserve(list.blocks().size());
    for (const Block& block : list.blocks()) ranges.push_back({.range = {reinterpret_cast<uint64_t>(block.local), block.length}});
    for (const size_t i : list.read_only()) ranges[i].most = Access::kRead;
    const Result<> done = without_gil([&] { return engine->register_memory_batch(ranges, location); });
    if (done)
        for (BufferView& view : list.take_views()) registered_objects_[reinterpret_cast<uint64_t>(view.data())].push_back(std::move(view));
    return code_of(kCall, done);
}

int TransferEngine::batch_unregister_memory(nb::handle buffers) {
    constexpr const char* kCall = "batch_unregister_memory";
    const NumberList list(buffers, "buffer_addresses");
    std::vector<void*> addresses(list.size());
    list.each([&](size_t index, uint64_t value) { addresses[index] = reinterpret_cast<void*>(value); },
              [](size_t, nb::handle element) { return address_from(element, "buffer_addresses"); });
    Engine* const engine = use(kCall);
    if (engine == nullptr) return -1;
    if (registered_objects_.empty()) return code_of(kCall, without_gil([&] { return engine->unregister_memory_batch(addresses); }));
    // One by one, so that exactly the objects that are not in use any more are let go.
    Result<> first;
    for (void* const address : addresses) {
        const Result<> done = without_gil([&] { return engine->unregister_memory(address); });
        if (done) forget(registered_objects_, reinterpret_cast<uint64_t>(address));
        if (!done && first) first = done;
    }
    return code_of(kCall, first);
}

// ---- managed buffers

uint64_t TransferEngine::allocate_managed_buffer(nb::handle length) {
    constexpr const char* kCall = "allocate_managed_buffer";
    const uint64_t bytes = number_from(length, "length");
    if (use(kCall) == nullptr) return 0;
    const Result<void*> address = without_gil([&] { return managed_->allocate(bytes); });
    if (!address) record_failure(kCall, address.error());
    return address ? reinterpret_cast<uint64_t>(*address) : 0;
}

int TransferEngine::free_managed_buffer(nb::handle address, nb::handle length) {
    constexpr const char* kCall = "free_managed_buffer";
    void* const buffer = reinterpret_cast<void*>(number_from(address, "buffer_addr"));
    const uint64_t bytes = number_from(length, "length");
    if (use(kCall) == nullptr) return -1;
    return code_of(kCall, without_gil([&] { return managed_->free(buffer, bytes); }));
}

int TransferEngine::write_bytes_to_buffer(nb::handle address, nb::handle source, nb::handle length) {
    const uint64_t to = number_from(address, "dest_address");
    nb::object bytes = nb::borrow(source);
    if (PyUnicode_Check(source.ptr())) {
        bytes = nb::steal(PyUnicode_AsUTF8String(source.ptr()));
        if (!bytes.is_valid()) throw nb::python_error();
    }
    const std::optional<BufferView> view = BufferView::of(bytes);
    if (!view) throw nb::type_error("src: bytes, str or an object with a buffer is expected");
    const uint64_t count = length.is_none() ? view->length() : number_from(length, "length");
    if (count > view->length()) throw nb::value_error(format_text("length: {}, but src has only {} bytes", count, view->length()).c_str());
    const auto copy = [&] { return copy_to_address(to, view->data(), count); };
    return code_of("write_bytes_to_buffer", count <= kSmallCopy || exiting() ? copy() : without_gil(copy));
}

nb::bytes TransferEngine::read_bytes_from_buffer(nb::handle address, nb::handle length) {
    const uint64_t from = number_from(address, "source_address");
    const uint64_t count = number_from(length, "length");
    if (count > static_cast<uint64_t>(PY_SSIZE_T_MAX)) throw nb::value_error("length: too large");
    nb::bytes bytes = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count)));
    if (!bytes.is_valid()) throw nb::python_error();
    char* const data = PyBytes_AsString(bytes.ptr());
    const auto copy = [&] { return copy_from_address(data, from, count); };
    const Result<> done = count <= kSmallCopy || exiting() ? copy() : without_gil(copy);
    if (!done) {
        record_failure("read_bytes_from_buffer", done.error());
        throw nb::value_error(last_error().c_str());
    }
    return bytes;
}

}  // namespace mooncake::python
