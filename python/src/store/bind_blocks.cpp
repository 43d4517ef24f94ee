// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include "store_bindings.h"

namespace mooncake::python {

namespace {

/// The buffer protocol for a Block whose elements are of the format (of the struct module) `kFormat`.
template <typename T, char kFormat>
struct Exporter {
    static int get(PyObject* object, Py_buffer* view, int flags) {
        static char format[] = {kFormat, '\0'};
        T* const block = nb::inst_ptr<T>(object);
        if (block->data() == nullptr) {
            PyErr_SetString(PyExc_BufferError, "the memory was released");
            return -1;
        }
        if (PyBuffer_FillInfo(view, object, block->data(), static_cast<Py_ssize_t>(block->size()), 0, flags) != 0) return -1;
        if ((flags & PyBUF_FORMAT) == PyBUF_FORMAT) view->format = format;
        block->exported(+1);
        return 0;
    }
    static void release(PyObject* object, Py_buffer*) { nb::inst_ptr<T>(object)->exported(-1); }

    static const PyType_Slot* slots() {
        static const PyType_Slot all[] = {
            {Py_bf_getbuffer, reinterpret_cast<void*>(&get)}, {Py_bf_releasebuffer, reinterpret_cast<void*>(&release)}, {0, nullptr}};
        return all;
    }
};

}  // namespace

void bind_blocks(nb::module_& module) {
    nb::class_<BufferHandle>(module, "BufferHandle", nb::type_slots(Exporter<BufferHandle, 'b'>::slots()),
                             "A value that was read into the store's own memory, with the buffer protocol; writable. The memory is given\n"
                             "back when the object goes.")
        .def("ptr", [](const BufferHandle& self) { return reinterpret_cast<uintptr_t>(self.data()); })
        .def("size", &BufferHandle::size)
        .def("__len__", &BufferHandle::size);
    nb::class_<Block>(module, "BufferLeaseView", nb::is_weak_referenceable(), nb::type_slots(Exporter<Block, 'B'>::slots()),
                      "Memory of a BufferLease, with the buffer protocol.")
        .def_prop_ro("ptr", [](const Block& self) { return reinterpret_cast<uintptr_t>(self.data()); })
        .def_prop_ro("size", &Block::size)
        .def_prop_ro("exports", &Block::exports, "How many views of it exist.")
        .def("release", &Block::release);
    module.attr("RegisteredBufferLeaseView") = module.attr("BufferLeaseView");
}

}  // namespace mooncake::python
