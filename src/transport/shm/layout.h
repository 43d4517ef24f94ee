// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// What two processes of one host share and say to each other; docs/wire/shm.md describes it in words. All numbers are in the
/// byte order of the host. A change of meaning or size needs a new kVersion.
namespace mooncake::shm {

constexpr uint16_t kVersion = 3;

// ---- the region table: one file per engine, written by its owner, mapped read-only by its peers

constexpr uint64_t kTableMagic = 0x3130'4d48'5343'4f4d;
constexpr uint32_t kTableEntries = 1 << 20;

/// Everything a peer needs to use one region. `state` is (generation << 1) | live. An entry changes only while it is not live, and
/// comes alive with a new generation: who reads the same live state before and after the other fields has read them whole.
struct alignas(64) TableEntry {
    std::atomic<uint64_t> state;
    std::atomic<uint64_t> address;
    std::atomic<uint64_t> length;
    std::atomic<uint64_t> memory;  // shared memory, or memory of a device, that holds it, to be asked for; 0: none
    std::atomic<uint64_t> offset;  // where it begins there
    std::atomic<uint64_t> rights;  // bit 0: to be written, too; bits 8 to 15: the kind of memory
};

struct alignas(4096) TableHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t entry_bytes;
    uint64_t incarnation;
    std::atomic<uint64_t> changes;  // grows after every change of an entry
    std::atomic<uint32_t> used;     // entries from here on were never live
};

constexpr uint64_t kTableBytes = sizeof(TableHeader) + uint64_t{kTableEntries} * sizeof(TableEntry);
static_assert(sizeof(TableEntry) == 64 && sizeof(TableHeader) == 4096);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::is_standard_layout_v<TableEntry>);

// ---- messages: one per packet of a SOCK_SEQPACKET connection, descriptors attached

constexpr uint32_t kMessageMagic = 0x534d'434d;

enum class MessageKind : uint16_t {
    kHello = 1,       // initiator: incarnation = its own, expected = the target's
    kWelcome = 2,     // target: incarnation = its own, address and value = a word to read as a test; + table and claims page
    kRefusal = 3,     // target: incarnation = its own, value = Refusal
    kWantMemory = 4,  // initiator: value = number of a shared memory
    kMemory = 5,  // target: value = its number; + the memory, or nothing if it is gone; + address = its kind and a ticket, if a device's
    kMemoryGone = 6,  // target: some memory it handed out is no longer in the table; value = the number of one
    kMemoryClosed =
        7,  // initiator: value = number of a device's memory that it does not reach any more; 0: none of it. + address = how many
            // more follow that number, if the target takes that
};

/// What a target says of itself in Message::expected of its welcome: 0 in older ones.
constexpr uint64_t kTakesRanges = 1;  // kMemoryClosed with an address

enum class Refusal : uint64_t { kOtherVersion = 1, kOtherIncarnation = 2, kFull = 3, kStopped = 4 };

struct Message {
    uint32_t magic = kMessageMagic;
    uint16_t version = kVersion;
    MessageKind kind = MessageKind::kHello;
    uint64_t incarnation = 0;
    uint64_t expected = 0;
    uint64_t address = 0;
    uint64_t value = 0;
};
static_assert(sizeof(Message) == 40 && std::is_trivially_copyable_v<Message>);

}  // namespace mooncake::shm
