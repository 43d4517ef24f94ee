// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "capi/live_engines.h"

namespace mooncake::capi {

/// From now on SIGTERM and SIGINT close this engine and then end the process with 128 + signal; exit() closes it too. A second
/// signal, while the engines are being closed, has its default effect. Handles of engines that are gone do no harm.
/// Thread-safe.
///
/// The handler itself only writes a byte to a pipe; a thread of ours does the rest and ends the process with _exit(), because
/// the destructors of a program whose other threads still run must not run. In a forked child the signals have their default
/// effect, unless the child calls this itself.
Result<> close_on_exit(EngineHandle handle);

}  // namespace mooncake::capi
