// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "distributed_store.h"

/// The Python names of mooncake.store, one function per group; what they do is in distributed_store.h.
namespace mooncake::python {

using StoreClass = nb::class_<DistributedStore>;

/// A flag that callers may also give as a number or numpy's bool; texts and lists are none.
struct Truth {
    bool value = false;
};

void bind_store_enums(nb::module_& module);
void bind_replicate_config(nb::module_& module);
void bind_replicas(nb::module_& module);  // descriptors and tasks
void bind_blocks(nb::module_& module);    // BufferHandle and what BufferPool is made of
void bind_host_memory(nb::module_& module);
void bind_store_life(StoreClass& store);
void bind_values(StoreClass& store);
void bind_zero_copy(StoreClass& store);
void bind_parts(StoreClass& store);
void bind_segments(StoreClass& store);

}  // namespace mooncake::python

template <>
struct nanobind::detail::type_caster<mooncake::python::Truth> {
    NB_TYPE_CASTER(mooncake::python::Truth, const_name("bool"))

    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        if (PyType_GetSlot(Py_TYPE(source.ptr()), Py_nb_bool) == nullptr) return false;
        const int truth = PyObject_IsTrue(source.ptr());
        if (truth < 0) PyErr_Clear();
        value.value = truth == 1;
        return truth >= 0;
    }
    static handle from_cpp(mooncake::python::Truth truth, rv_policy, cleanup_list*) noexcept {
        return handle(truth.value ? Py_True : Py_False).inc_ref();
    }
};
