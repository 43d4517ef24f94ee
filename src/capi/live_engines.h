// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/gate.h"
#include "engine/engine.h"

namespace mooncake::capi {

/// The engines that the C and C++ faces handed out. What callers hold is a number, checked at every call: after the engine is
/// gone, or for a number nobody was ever given, the call fails instead of touching freed memory. All functions are
/// thread-safe, take no lock, and know forked children, for which the parent's engines do not exist.
using EngineHandle = uint64_t;  // a slot number with a generation; never 0, never reused

/// The right to use an engine for the length of one call; the engine is not destroyed before it is given back.
class EngineUse {
public:
    EngineUse() noexcept = default;
    EngineUse(Gate::Pass pass, Engine* engine) noexcept : pass_(std::move(pass)), engine_(engine) {}

    explicit operator bool() const noexcept { return engine_ != nullptr; }
    Engine& operator*() const noexcept { return *engine_; }
    Engine* operator->() const noexcept { return engine_; }

private:
    Gate::Pass pass_;
    Engine* engine_ = nullptr;
};

/// kNoSpace when kEnginesMax are alive.
Result<EngineHandle> add_engine(std::unique_ptr<Engine> engine);
/// Empty for a handle without a living engine.
EngineUse use_engine(EngineHandle handle) noexcept;
/// False once nothing of the engine runs any more; still true while it is being removed.
bool engine_exists(EngineHandle handle) noexcept;
/// Closes the engine, waits for its users and destroys it. False if it is not alive (any more).
bool remove_engine(EngineHandle handle) noexcept;

constexpr size_t kEnginesMax = 256;

}  // namespace mooncake::capi
