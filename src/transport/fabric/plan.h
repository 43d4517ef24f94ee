// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"

// Which part of a buffer is registered with which NIC. NICs have a table of pages with a limit nobody tells exactly, so that a large
// buffer of small pages does not fit into one; what does not fit everywhere is cut into chunks that lie on some of them. Pure.
namespace mooncake::fabric {

/// What NICs can take; 0: no limit known.
struct NicLimits {
    uint64_t pages_max = 0;
    uint32_t registrations_max = 0;
    uint64_t registration_bytes_max = 0;
    uint64_t registration_pages_max = 0;
};

/// Pages and registrations in use on every NIC, over all buffers, and what was learned from refusals. Not thread-safe.
class NicLedger {
public:
    NicLedger(size_t nics, const NicLimits& limits) : limits_(limits), entries_(nics) {}

    size_t nics() const noexcept { return entries_.size(); }
    const NicLimits& limits() const noexcept { return limits_; }
    uint64_t pages_used(size_t nic) const noexcept { return entries_[nic].pages; }
    uint32_t registrations(size_t nic) const noexcept { return entries_[nic].registrations; }
    /// What it can take at most, as far as we know; UINT64_MAX: no limit known.
    uint64_t pages_limit(size_t nic) const noexcept;
    uint64_t pages_free(size_t nic) const noexcept;
    /// The largest single registration it takes, as far as we know.
    uint64_t registration_pages_max(size_t nic, uint64_t page_bytes) const noexcept;
    uint32_t registrations_free(size_t nic) const noexcept;

    void take(size_t nic, uint64_t pages) noexcept;
    void release(size_t nic, uint64_t pages) noexcept;
    /// The NIC refused one registration of `pages`: either it is full, or that was too much for one. Larger than any before, it is taken
    /// for too large; else what is in use now is the limit.
    void refused(size_t nic, uint64_t pages) noexcept;
    /// Gives NICs another chance that refused although we used nothing of them: somebody else did, then.
    void forgive() noexcept;

private:
    struct Entry {
        uint64_t pages = 0;
        uint64_t learned = UINT64_MAX;          // pages it can take
        uint64_t learned_largest = UINT64_MAX;  // pages of one registration
        uint64_t largest = 0;                   // that was ever taken
        uint32_t registrations = 0;
    };

    NicLimits limits_;
    std::vector<Entry> entries_;
};

struct PlanRequest {
    uint64_t address = 0;
    uint64_t length = 0;         // not 0
    uint64_t page_bytes = 4096;  // a power of two
    std::vector<uint32_t> nics;  // that may be used
};

struct PlannedChunk {
    uint64_t address = 0;
    uint64_t length = 0;
    uint64_t pages = 0;
    std::vector<uint32_t> nics;  // ascending; at least one
};

/// Chunks that tile the buffer, cut at pages. Every chunk lies on every NIC if that fits; else on two or more if that fits; else
/// on one, with as many on two as fit. kNoSpace with numbers.
Result<std::vector<PlannedChunk>> plan_registration(const PlanRequest& request, const NicLedger& ledger);

/// How many pages a range touches.
uint64_t pages_of(uint64_t address, uint64_t length, uint64_t page_bytes) noexcept;

/// One registration of one chunk.
struct Placement {
    uint32_t chunk = 0;  // index in the plan
    uint32_t nic = 0;
    uint64_t address = 0;
    uint64_t length = 0;
};

/// How a plan is carried out: what stands behind it does the registering, may do it in parallel, and answers for each. kNoSpace:
/// that NIC is full; anything else ends the plan.
struct PlanWork {
    std::function<std::vector<Result<>>(std::span<const Placement>)> place;
    std::function<void(std::span<const Placement>)> undo;
};

/// Plans, registers, and where a NIC turns out to be full, learns that and places elsewhere what is left without any NIC. The ledger is
/// up to date afterwards. On failure nothing stays registered. Chunks may end up on fewer NICs than planned, never on none.
Result<std::vector<PlannedChunk>> carry_out(const PlanRequest& request, NicLedger& ledger, const PlanWork& work);

/// Gives back what carry_out() took.
void release(std::span<const PlannedChunk> chunks, NicLedger& ledger) noexcept;

/// The size of the pages behind a range: the smallest of its mappings. Reads /proc/self/smaps, which takes a while: ask only for large
/// buffers (kPageLookupBytes) and keep the answer. 4096 where nothing is known.
uint64_t page_bytes_of(uint64_t address, uint64_t length);
/// The same from a text in the form of smaps.
uint64_t page_bytes_in(std::string_view smaps, uint64_t address, uint64_t length);
constexpr uint64_t kPageLookupBytes = 1 << 30;

}  // namespace mooncake::fabric
