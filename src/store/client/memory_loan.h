// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "store/client/values.h"

namespace mooncake::store {

class MemoryLender;

/// What a call needs to know of the memory it was given, until it is over: memory of devices that nobody has registered is registered for so long. Must
/// not outlive its client. Not thread-safe.
class MC_EXPORT MemoryLoan {
public:
    MemoryLoan() = default;
    MemoryLoan(MemoryLoan&& other) noexcept
        : unsure(other.unsure), owner_(std::exchange(other.owner_, nullptr)), lent_(std::move(other.lent_)) {}
    MemoryLoan& operator=(MemoryLoan&&) = delete;
    ~MemoryLoan();

    bool unsure = false;  // some of it is neither registered nor a device's: the kernel has to be asked

private:
    friend class MemoryLender;
    MemoryLender* owner_ = nullptr;
    std::vector<std::byte*> lent_;
};

/// Registers memory with the engine for callers, for good or for a call. Thread-safe. Outlives its loans.
class MemoryLender {
public:
    explicit MemoryLender(Engine& engine) : engine_(engine) {}

    /// As Engine::register_memory(). Waits for loans that are in the way.
    Result<> register_memory(std::byte* address, uint64_t length);
    /// Adds to the loan, if it is memory of a device, registered or not. False: it is not, or cannot be used; then the log says why.
    bool lend(const Piece& piece, MemoryLoan& loan);

private:
    friend class MemoryLoan;
    static constexpr Duration kPatience = 2s;  // for other calls

    Result<> add(const Piece& piece, bool for_good, size_t own_loans);
    void give_back(std::vector<std::byte*> lent) noexcept;

    Engine& engine_;
    Mutex mutex_;
    std::condition_variable_any ended_;
    size_t lent_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake::store
