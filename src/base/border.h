// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>

#include <exception>

#include "base/log.h"

namespace mooncake {

/// In a catch (...): logs what was thrown. A thread that is being ended (pthread_exit, pthread_cancel) goes on being unwound, which nobody may stop.
inline void log_thrown(const char* call) {
    try {
        throw;
    } catch (const abi::__forced_unwind&) {
        throw;
    } catch (const std::exception& thrown) {
        MC_LOG_ERROR("{}: {}", call, thrown.what());
    } catch (...) {
        MC_LOG_ERROR("{}: an exception of unknown type", call);
    }
}

}  // namespace mooncake

/// Ends a function that no exception may leave, such as one that C calls: `int f() try { ... } MC_BORDER(-1)`. What is thrown all the same - there
/// is no memory, no thread to be had - is logged and answered with `failed`.
#define MC_BORDER(failed) \
    catch (...) { \
        ::mooncake::log_thrown(__func__); \
        return failed; \
    }
