// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "device/cuda/abi.h"

namespace mooncake::cuda {

/// The address of a function of libcuda, by its full name; null: this driver does not have it.
using Lookup = std::function<void*(const char* name)>;
/// Looks for libcuda; nothing while it is not in this process.
using FindLibrary = std::function<std::optional<Lookup>()>;

/// Finds a libcuda that somebody else has loaded. It is never loaded for ours: where nobody did, no pointer can be a GPU's.
std::optional<Lookup> find_loaded_library();

/// The CUDA driver of this process, as far as others have brought it there: it is neither loaded nor initialised by us, and no context is made.
/// What was not there when asked is looked for again with the next question.
///
/// A device on which an error made everything else impossible is dead for good: questions about it are answered without asking CUDA. The same
/// holds for all of them once the driver is going down with the process, and in a forked child of a process that used CUDA. Thread-safe. Takes
/// no part in other calls of the process: see Scope.
class Driver {
public:
    static constexpr int kDevicesMax = 64;

    explicit Driver(FindLibrary find = find_loaded_library) : find_(std::move(find)) {}
    ~Driver();
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

    /// Null: libcuda is not loaded, or must not be called any more. Costs a look at the list of loaded libraries until it is.
    const abi::Functions* functions();
    /// As functions(), without looking for it: what was found before.
    const abi::Functions* found() const noexcept { return silent() ? nullptr : functions_.load(std::memory_order_acquire); }

    /// Whether nothing may be asked any more: the driver is going down, this is a forked child, or all devices in use are dead.
    bool silent() const noexcept;
    /// Whether the driver is going down with the process.
    bool gone() const noexcept { return gone_.load(std::memory_order_acquire); }
    /// From now on forked children know that they cannot use CUDA.
    void note_use() noexcept;
    bool dead(int device) const noexcept {
        return valid(device) && cause_[static_cast<size_t>(device)].load(std::memory_order_acquire) != 0;
    }
    /// The device is not used any more; `status` is what its callers are told.
    void bury(int device, abi::Status status) noexcept;
    /// What CUDA answered to a call about a device. Remembers what is final.
    Result<> check(int device, std::string_view what, abi::Status status) noexcept;
    /// As check(), for an answer that is known to be none of success.
    Error failure(int device, std::string_view what, abi::Status status) noexcept;
    /// What CUDA answered to a call that gives something back, where nobody can do anything about it.
    void notice(abi::Status status) noexcept {
        if (status == abi::kDeinitialized) gone_.store(true, std::memory_order_release);
    }
    /// "CUDA_ERROR_INVALID_VALUE (1)".
    std::string name_of(abi::Status status) const;

    /// The primary context of a device, if somebody made it: it is held from the first question until the driver's end.
    Result<abi::Context> context(int device);

    /// Whether its context is held.
    bool in_use(int device) const noexcept {
        return valid(device) && contexts_[static_cast<size_t>(device)].load(std::memory_order_acquire) != nullptr;
    }
    /// The device whose context is held, if it is the only one; -1 otherwise.
    int only_device();

    static bool valid(int device) noexcept { return device >= 0 && device < kDevicesMax; }

private:
    struct Retained {
        abi::Context context = nullptr;
        abi::DeviceHandle handle = -1;
    };

    const FindLibrary find_;
    std::atomic<const abi::Functions*> functions_{nullptr};
    std::atomic<bool> gone_{false};                              // the driver goes down with the process
    std::atomic<uint64_t> used_in_{0};                           // the generation of the process that used CUDA, plus one
    std::atomic<int> held_{0}, lost_{0};                         // devices whose context we hold; those of them that are dead
    std::array<std::atomic<abi::Status>, kDevicesMax> cause_{};  // 0: alive
    std::array<std::atomic<abi::Context>, kDevicesMax> contexts_{};
    Mutex mutex_;
    std::array<Retained, kDevicesMax> retained_ MC_GUARDED_BY(mutex_){};
};

/// Makes a device's context the calling thread's, and undoes it. Graphs that other threads capture meanwhile are not disturbed. Every call
/// that needs a context happens inside of one. Not thread-safe.
class Scope {
public:
    static Result<Scope> enter(Driver& driver, int device) noexcept;
    Scope(Scope&& other) noexcept : driver_(other.driver_), functions_(std::exchange(other.functions_, nullptr)), mode_(other.mode_) {}
    Scope& operator=(Scope&&) = delete;
    ~Scope();

    const abi::Functions& operator*() const noexcept { return *functions_; }
    const abi::Functions* operator->() const noexcept { return functions_; }

private:
    Scope(Driver& driver, const abi::Functions& functions, int mode) : driver_(&driver), functions_(&functions), mode_(mode) {}

    Driver* driver_;
    const abi::Functions* functions_;
    int mode_;
};

}  // namespace mooncake::cuda
