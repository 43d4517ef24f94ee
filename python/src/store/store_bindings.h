// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "distributed_store.h"

/// The Python names of mooncake.store, one function per group; what they do is in distributed_store.h.
namespace mooncake::python {

using StoreClass = nb::class_<DistributedStore>;

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
