// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/shared_memory.h"
#include "base/thread_annotations.h"
#include "device/cuda/driver.h"
#include "device/cuda/ticket.h"

namespace mooncake::cuda {

/// Memory of other processes that was opened here. Each allocation is opened once, however often it is asked for, and closed with its last user.
/// Chunks of one reservation lie side by side here as they do at their owner's, so that one copy may cross from one to the next. Whatever fails
/// half way leaves nothing behind. Thread-safe; calls the driver while others wait.
class Imports {
public:
    explicit Imports(Driver& driver) noexcept : driver_(driver) {}

    /// Its address here, for that GPU and the others in use. kNotSupported: it cannot be reached.
    Result<uint64_t> open(const Ticket& ticket, int device, const MemoryFile& file);
    /// Once for each open(). False: nobody opened that.
    bool close(uint64_t base) noexcept;
    /// Lets one more GPU touch all that is open.
    void let_in(int device) noexcept;

private:
    using Key = std::tuple<uint64_t, uint64_t, uint64_t>;  // owner, base there, allocation
    struct Opened {
        Way way = Way::kIpc;
        int device = 0;
        int times = 1;
        uint64_t length = 0;
        Key key;
        uint64_t range = 0;                           // of a chunk: where the addresses begin that it lies in
        std::pair<uint64_t, uint64_t> pool = {0, 0};  // owner and number
    };
    /// Addresses that were reserved here.
    struct Range {
        uint64_t length = 0;
        int chunks = 0;
        bool spoilt = false;                        // something stays mapped there that the driver did not take back
        std::pair<uint64_t, uint64_t> of = {0, 0};  // owner and address there; 0: for a single chunk
    };
    struct Pool {
        abi::Pool handle = nullptr;
        int users = 0;
    };

    Result<uint64_t> open_handle(const Scope& scope, const Ticket& ticket, int device) MC_REQUIRES(mutex_);
    Result<uint64_t> open_chunk(const Scope& scope, const Ticket& ticket, int device, int file) MC_REQUIRES(mutex_);
    Result<uint64_t> open_of_pool(const Scope& scope, const Ticket& ticket, int device, int file) MC_REQUIRES(mutex_);

    /// Addresses for a chunk, of which none is used, and the range they are in.
    Result<std::pair<uint64_t, uint64_t>> place(const Scope& scope, const Ticket& ticket, int device) MC_REQUIRES(mutex_);
    std::optional<uint64_t> beside_others(const Scope& scope, const Ticket& ticket) MC_REQUIRES(mutex_);
    bool in_use(uint64_t start, uint64_t length) const MC_REQUIRES(mutex_);
    /// What is mapped there stays: what comes next gets other addresses.
    void spoil(uint64_t range) noexcept MC_REQUIRES(mutex_);
    void free_range(const abi::Functions& functions, uint64_t start) noexcept MC_REQUIRES(mutex_);
    Result<Pool*> find_pool(const Scope& scope, const Ticket& ticket, int device, int file) MC_REQUIRES(mutex_);
    void free_pool(const abi::Functions& functions, std::pair<uint64_t, uint64_t> number) noexcept MC_REQUIRES(mutex_);
    void give_back(const abi::Functions& functions, uint64_t base, const Opened& opened) noexcept MC_REQUIRES(mutex_);

    /// Whether anything more may be asked of the driver about that GPU.
    bool answers(int device) const noexcept { return !driver_.dead(device) && !driver_.gone(); }

    Driver& driver_;
    Mutex mutex_;
    std::map<uint64_t, Opened> opened_ MC_GUARDED_BY(mutex_);  // by its address here
    std::map<Key, uint64_t> by_key_ MC_GUARDED_BY(mutex_);     // what is not counted by the driver
    std::map<uint64_t, Range> ranges_ MC_GUARDED_BY(mutex_);
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> range_of_ MC_GUARDED_BY(mutex_);
    std::map<std::pair<uint64_t, uint64_t>, Pool> pools_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::cuda
