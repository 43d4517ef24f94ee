// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/completion.h"
#include "base/error.h"
#include "base/time.h"
#include "store/protocol/ids.h"
#include "store/protocol/objects.h"

/// Where a node keeps values that its memory has no room for (docs/ssd.md).
namespace mooncake::store {

constexpr size_t kTierKeyBytesMax = 64 << 10;  // of a key
constexpr size_t kTierNameBytesMax = 4 << 10;  // of a tenant, of a group
constexpr uint64_t kTierValueBytesMax = 1ull << 40;

/// A value as the tier knows it: what a new master must be told. Texts are borrowed.
struct TierObject {
    std::string_view tenant, key, group;
    uint64_t length = 0;      // of the value, without the table of the stored form
    uint64_t generation = 0;  // higher ones replace lower ones of the same key
    uint64_t checksum = 0;    // as in stored_form.h
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    Duration soft_pin_left{0};
    ClientId writer;  // none: unknown
};

/// One value to be written. Everything it points to stays until the completion is done.
struct TierWrite {
    TierObject object;                   // checksum 0: the tier makes it
    std::span<const std::byte> value{};  // object.length bytes, at any address
    Code result = Code::kOk;             // set before the completion hears of it
};

/// One value, or a part of one, to be read. Texts and the struct stay until the completion is done; so does `into`, and not longer.
struct TierRead {
    std::string_view tenant, key;
    uint64_t generation = 0;  // 0: whatever there is; else this one or a miss
    uint64_t offset = 0;      // in the value
    std::span<std::byte> into{};
    /// `into` may wait for the disk: the completion is not done before the disk has let go of it, whatever the deadline says. Saves a copy where
    /// `into` is aligned to 4 KiB and the part begins at a multiple of 64 KiB.
    bool direct = false;
    Code result = Code::kOk;  // set before the completion hears of it
};

/// All values of a key up to a generation.
struct TierRemove {
    std::string_view tenant, key;
    uint64_t generation = 0;  // 0: all there are
    Code result = Code::kOk;  // set before the completion hears of it
};

struct TierUsage {
    uint64_t capacity_bytes = 0;
    uint64_t used_bytes = 0;  // of the disk, by files
    uint64_t live_bytes = 0;  // of it, by values that can be read
    uint64_t objects = 0;
    uint64_t removals = 0;  // held back for what else lies on the disk
    uint64_t files = 0;
    uint64_t memory_bytes = 0;  // of the index
    // since the start
    uint64_t written_bytes = 0, read_bytes = 0, moved_bytes = 0;
    uint64_t evicted = 0;                        // values
    uint64_t write_errors = 0, read_errors = 0;  // values
    uint64_t corrupt = 0, timed_out = 0;         // values
    uint64_t commits = 0;
};

struct TierFound {
    uint64_t files = 0, objects = 0, removals = 0;
    uint64_t dropped = 0;     // places that hold no record, or none that can be trusted
    uint64_t left_alone = 0;  // files of other versions
    uint64_t unreadable = 0;  // blocks that the disk did not give
};

/// Told of values that went without anybody asking for it (evicted, or found damaged), after they can no longer be read. On a thread of the
/// tier: must not block. Must outlive it.
class TierObserver {
public:
    virtual void on_gone(std::span<const TierObject> objects) noexcept = 0;

protected:
    ~TierObserver() = default;
};

/// Thread-safe. Calls with a Completion announce one operation for each item and return at once; each item is then answered by `result` and
/// one operation, from any thread, perhaps before the call returns. What is queued is carried out in order, so that a removal covers every write
/// that was called for before it. Reads see what was answered.
class StorageTier {
public:
    virtual ~StorageTier() = default;

    /// First, and once: finds what earlier lives left. kBusy: another process has it. Nothing but report() and usage() tells what was found.
    virtual Result<TierFound> recover() = 0;

    /// kOk: it is there, also after a restart. kStale: a newer value of this key, or a removal of it, is known. kAlreadyExists: this generation is there.
    /// kCorrupt: the bytes are not those of the checksum. kNoSpace: no room. kBusy: too much is queued. kTimedOut: not begun before the deadline.
    /// kUnavailable: the disk failed. kInvalidArgument.
    virtual void write(std::span<TierWrite> objects, Deadline deadline, Completion& completion) = 0;
    /// kOk: `into` is full, and verified. kNotFound: a miss. kTimedOut, kCorrupt, kBusy, kUnavailable, kInvalidArgument (beyond the value).
    virtual void read(std::span<TierRead> objects, Deadline deadline, Completion& completion) = 0;
    /// kOk: gone for good, or was never there. kUnavailable: it cannot be read any more, but may be back after a restart.
    virtual void remove(std::span<TierRemove> objects, Completion& completion) = 0;

    /// The value of this generation, with its texts in `texts`; nothing: none of it can be read. Does not wait for the disk.
    virtual std::optional<TierObject> find(uint64_t generation, std::string& texts) const = 0;
    /// Everything that can be read, in parts of at most `objects_max`, until `part` says false; texts last for the call. What changes meanwhile may be
    /// in it or not. True: told to the end.
    virtual bool report(size_t objects_max, const std::function<bool(std::span<const TierObject>)>& part) const = 0;
    virtual TierUsage usage() const = 0;

    /// Ends what is queued with kCancelled, and waits for what the disk has. Idempotent; later calls are answered with kCancelled.
    virtual void close() = 0;
};

}  // namespace mooncake::store
