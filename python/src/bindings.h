// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "transfer_engine.h"

/// The Python names of mooncake.engine, one function per group; what they do is in transfer_engine.h.
namespace mooncake::python {

using EngineClass = nb::class_<TransferEngine>;

void bind_types(nb::module_& module);  // enum, notification, opaque classes, flags
void bind_life(EngineClass& engine);
void bind_memory(EngineClass& engine);
void bind_sync_transfers(EngineClass& engine);
void bind_async_transfers(EngineClass& engine);
void bind_stream_transfers(EngineClass& engine);
void bind_peers(EngineClass& engine);

}  // namespace mooncake::python
