// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "store/client/values.h"
#include "store/protocol/codes.h"
#include "store/protocol/objects.h"

namespace mooncake::store {

/// Values in parts: a reader keeps the place for as long as its lease lasts, a writer fills a reserved place. At most one of each per key
/// and object of this class. Thread-safe. When it goes, what is open ends, and values that were not closed are given up.
class PartSessions {
public:
    virtual ~PartSessions() = default;

    virtual std::vector<StoreCode> open_reads(std::span<const std::string_view> keys) = 0;  // kInvalidReplica, kObjectNotFound...
    virtual std::vector<int64_t> read_open(std::span<const PartToRead> parts) = 0;          // kLeaseExpired ends it; kInvalidParams: none
    virtual bool close_reads(std::span<const std::string_view> keys) = 0;                   // false: one was not open
    virtual std::vector<StoreCode> open_writes(std::span<const Reservation> values, const WriteConfig& config) = 0;
    virtual std::vector<int64_t> write_open(std::span<const PartToWrite> parts) = 0;
    /// Waits for parts in flight, then makes the values readable (or, with `revoke`, gives them up).
    virtual std::vector<StoreCode> close_writes(std::span<const std::string_view> keys, bool revoke) = 0;
};

}  // namespace mooncake::store
