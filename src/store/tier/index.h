// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_annotations.h"
#include "store/tier/generation_index.h"
#include "store/tier/log_file.h"
#include "store/tier/record.h"

namespace mooncake::store::log {

/// What counts of a key. The order is that of rank at equal generations, where it is not known which was made later.
enum class State : uint8_t {
    kDoubtful,  // cannot be read; whatever may lie in its range is not known to be gone
    kValue,
    kRemoved,  // a removal on the disk
};

/// One record or removal, and where it lies. Texts are borrowed.
struct Fact {
    State state = State::kValue;
    uint32_t block = 0;
    RecordHeader header;  // of a removal: tenant, key and generation
    LogFile* file = nullptr;
};

/// What the index has for a key; texts follow it in memory.
struct Entry {
    uint64_t generation = 0, checksum = 0, length = 0;
    ClientId writer;
    uint64_t soft_pin_end_ms = 0;
    uint64_t doubt = 0;  // the highest generation that was written without success
    LogFile* file = nullptr;
    Entry *previous = nullptr, *next = nullptr;  // in the file's list
    uint32_t block = 0, payload_at = 0;
    uint32_t low = 0, high = 0;  // of the files in which records of this key may lie
    uint32_t hash = 0;
    uint32_t key_bytes = 0;
    uint16_t tenant_bytes = 0, group_bytes = 0;
    State state = State::kValue;
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    uint8_t part = 0;           // of the index
    mutable bool used = false;  // read since it was written where it is; by std::atomic_ref

    /// A record newer than what counts may lie in one of its files.
    bool in_doubt() const noexcept { return doubt > generation; }
    const char* texts() const noexcept { return reinterpret_cast<const char*>(this + 1); }
    std::string_view tenant() const noexcept { return {texts(), tenant_bytes}; }
    std::string_view group() const noexcept { return {texts() + tenant_bytes, group_bytes}; }
    std::string_view key() const noexcept { return {texts() + tenant_bytes + group_bytes, key_bytes}; }
    uint64_t record_bytes() const noexcept { return round_to_blocks(payload_at + stored_bytes(length)); }
    size_t memory_bytes() const noexcept { return sizeof(Entry) + tenant_bytes + group_bytes + key_bytes; }
    TierObject object(uint64_t now_ms) const noexcept;
};

/// By the wall clock.
uint64_t wall_clock_ms() noexcept;

/// For every key the one record or removal that counts, and in which files others may lie (docs/ssd.md, "What outranks what"): a key that is not here has no
/// record in any file. find(), collect() and the counters are anybody's; what changes it, or hands out entries, is for one thread at a time, the
/// log thread's. Every change is made under the lock of its part, so those who look wait for one change at most.
class Index {
public:
    static constexpr size_t kParts = 256;

    struct Location {
        std::shared_ptr<LogFile> file;
        uint32_t block = 0, payload_at = 0;
        uint64_t length = 0, generation = 0, checksum = 0;

        uint64_t payload_offset() const noexcept { return block * kBlockBytes + payload_at; }
    };

    Index() = default;
    ~Index();
    Index(const Index&) = delete;
    Index& operator=(const Index&) = delete;

    /// Of a value that can be read.
    enum class For : uint8_t { kLook, kUse };
    std::optional<Location> find(std::string_view tenant, std::string_view key, For purpose = For::kLook) const;
    /// The value of this generation; its texts are copied to `texts`.
    std::optional<TierObject> find(uint64_t generation, std::string& texts) const;
    /// Copies the values of one part; texts point into `texts`.
    void collect(size_t part, std::vector<TierObject>& objects, std::vector<char>& texts) const;
    uint64_t values() const noexcept { return values_.load(std::memory_order_relaxed); }
    uint64_t removals() const noexcept { return removals_.load(std::memory_order_relaxed); }
    uint64_t memory_bytes() const { return memory_.load(std::memory_order_relaxed) + generations_.memory_bytes(); }

    // the log thread's

    const Entry* look(std::string_view tenant, std::string_view key) const;
    /// Takes it in, in any order: whichever outranks the other counts, of equals the one in the later place. True: it does.
    bool merge(const Fact& fact);
    /// A record of this key may lie in that file, or not.
    void doubt(std::string_view tenant, std::string_view key, uint64_t generation, LogFile& file);
    /// It cannot be read any more, and a removal of it may lie in that file, or not.
    void hide(std::string_view tenant, std::string_view key, LogFile& file);
    void forget(Entry& entry);
    /// From this file on there are places that could not be read: any key may have a record there.
    void set_floor(uint32_t number) noexcept { floor_ = floor_ == 0 ? number : std::min(floor_, number); }
    bool has_floor() const noexcept { return floor_ != 0; }

private:
    struct Part {
        mutable Mutex mutex;
        std::vector<Entry*> slots MC_GUARDED_BY(mutex);  // open addressing, a power of two of them
        size_t used MC_GUARDED_BY(mutex) = 0;
    };

    static uint64_t hash_of(std::string_view tenant, std::string_view key) noexcept;
    static size_t slot_of(const Part& part, uint32_t hash, std::string_view tenant, std::string_view key) MC_REQUIRES(part.mutex);
    Part& part_of(uint64_t hash) const noexcept { return parts_[hash % kParts]; }
    static GenerationIndex::Place place_of(const Entry& entry) noexcept { return {.hash = entry.hash, .part = entry.part}; }
    static uint32_t rest_of(uint64_t hash) noexcept { return static_cast<uint32_t>(hash >> 32); }

    Entry* insert(Part& part, uint64_t hash, const RecordHeader& header, const LogFile& file) MC_REQUIRES(part.mutex);
    void grow(Part& part) MC_REQUIRES(part.mutex);
    /// Makes the entry what the fact says, and moves it to the fact's file. Texts but the group stay.
    void become(Entry& entry, const Fact& fact);
    void join(Entry& entry);
    void leave(Entry& entry);

    mutable std::array<Part, kParts> parts_;
    GenerationIndex generations_;  // of the values
    uint32_t floor_ = 0;
    std::atomic<uint64_t> values_{0}, removals_{0}, memory_{0};
};

}  // namespace mooncake::store::log
