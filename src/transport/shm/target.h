// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/incarnation.h"
#include "base/thread_annotations.h"
#include "device/device.h"
#include "net/socket.h"
#include "transport/memory.h"
#include "transport/shm/alarm.h"
#include "transport/shm/channel.h"
#include "transport/shm/claims.h"
#include "transport/shm/loop.h"
#include "transport/shm/region_table.h"

namespace mooncake::shm {

/// The side whose memory is used: publishes the regions, lets peers in, and fences them out again. Thread-safe; the connections
/// are served on the loop's thread. Registrations must be destroyed first.
class Target final : private Loop::Handler {
public:
    static Result<std::unique_ptr<Target>> create(Incarnation incarnation, Loop& loop, Devices& devices);
    ~Target();

    const std::string& socket_name() const noexcept { return socket_name_; }
    /// Only memory that peers may use is published; for all other there is no registration (null). kUnavailable once stopped.
    Result<std::unique_ptr<Registration>> add(const MemoryRegion& region);
    /// Withdraws everything, turns away who comes and hangs up on who is there, for good. kBusy: a peer was still copying at the deadline.
    Result<> stop(Deadline deadline);
    /// Closes the connections and all files that are not memory of somebody. After stop() succeeded, when the loop has stopped.
    void let_go();

    static constexpr size_t kConnectionsMax = 4096;
    static constexpr size_t kStrangersMax = 256;  // connections that have not said hello yet
    static constexpr Duration kLookTime = 100ms;  // from one look at memory that peers have open to the next, at least
    static constexpr int kLookShare = 200;        // of the loop's time at most one part in this is for looking

private:
    class Connection;
    class Entry;
    struct Unpublished;
    friend class Connection;
    friend class Entry;

    /// A page through which one peer shows what it is doing. Outlives the connection while somebody waits for the peer.
    struct ClaimsPage {
        Mapping page;
        pid_t pid = 0;
        Claims& claims() const noexcept { return *reinterpret_cast<Claims*>(page.address()); }
    };
    using FileId = std::pair<uint64_t, uint64_t>;        // device and inode
    using AllocationId = std::pair<uint64_t, uint64_t>;  // base and number
    /// A file, or an allocation of a device, that holds some of our regions.
    struct Memory {
        MemoryFile file;  // a descriptor of our own: the owner of the regions may close any of his
        FileId id;
        size_t regions = 0;
        MemoryKind kind = MemoryKind::kHost;
        MemoryTicket ticket{};
        MemoryInfo info;             // of a device
        std::set<uint32_t> entries;  // of a device: what of the table lies in it
        bool lost = false;           // its owner freed it while it was registered

        AllocationId allocation() const noexcept { return {info.base, info.allocation}; }
    };
    /// A part of a region in the table, and the memory that holds it.
    struct Part {
        uint32_t number = 0;
        uint64_t memory = 0;
    };
    /// A part of a region: what of it lies in one memory. `memory` is 0 where nobody else can reach it.
    struct Piece {
        uint64_t address = 0, length = 0;
        uint64_t memory = 0, offset = 0;
    };
    /// Peers that are gone without having closed what a device lent them. It may still work for them until their process is gone.
    struct Dying {
        net::Socket process;  // a pidfd
        std::set<uint64_t> memories;
    };

    Target(Incarnation incarnation, Loop& loop, Devices& devices);

    void on_ready() override;
    void on_exception() noexcept override {}  // who was about to be let in is not
    void accept_all();
    void add_stranger(net::Socket socket, pid_t pid);
    void hear_strangers();
    void stop_listening();
    net::Socket accept_one();
    void forget(Connection& connection);
    /// Answers a hello. Null when the peer was turned away.
    std::shared_ptr<const ClaimsPage> welcome(int fd, pid_t pid, const Message& hello);
    void hand_out(Connection& connection, uint64_t memory);

    uint64_t hold_memory(const MemoryRegion& region);
    /// For a region of a device: an allocation may be smaller than it.
    std::vector<Piece> hold_allocations(const MemoryRegion& region);
    /// 0: it cannot be shared.
    uint64_t hold_allocation(Device& device, const MemoryInfo& info);
    /// Parts of a region are not in the table any more.
    void drop_memories(std::span<const Part> parts);
    Result<Part> publish(const MemoryRegion& region, const Piece& piece);
    /// One word to each peer that has some of them.
    void tell_gone(std::span<const uint64_t> numbers) MC_REQUIRES(mutex_);
    /// The memory is not there any more: nobody may use what was registered in it.
    void lose(uint64_t number);
    void lose_replaced(const MemoryInfo& info);
    void look_at_lent();
    /// Waits until no peer has a device's memory open that none of our regions is in any more; no number: any.
    Result<> wait_closed(std::optional<uint64_t> memory, Deadline deadline);
    bool is_open(std::optional<uint64_t> memory) MC_REQUIRES(mutex_);
    /// From one number on, so many more.
    void note_closed(Connection& connection, uint64_t memory, uint64_t more);
    std::vector<std::shared_ptr<const ClaimsPage>> pages();
    /// Waits for the copies that may have seen what is no longer in the table: some entries, or everything.
    Result<> fence(std::span<const Part> parts, Deadline deadline);
    Result<> fence_all(Deadline deadline);

    const Incarnation incarnation_;
    Loop& loop_;
    Devices& devices_;
    const std::string socket_name_ = "mooncake-" + incarnation_.to_string();
    const uint64_t probe_word_ = random_u64();  // peers read it, to see whether they may read our memory
    std::unique_ptr<RegionTable> table_;
    Mutex stop_mutex_;
    net::Socket listener_;          // used by the loop's thread while it is watched, then by who holds stop_mutex_
    UniqueFd spare_;                // given up for a moment to turn a peer away when we are out of descriptors
    std::unique_ptr<Alarm> alarm_;  // to look whether what peers have open is still there

    Mutex mutex_;
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::unordered_map<int, std::unique_ptr<Connection>> connections_ MC_GUARDED_BY(mutex_);
    std::vector<int> strangers_ MC_GUARDED_BY(mutex_);  // oldest first
    std::map<uint64_t, Memory> memories_ MC_GUARDED_BY(mutex_);
    std::map<FileId, uint64_t> memory_of_file_ MC_GUARDED_BY(mutex_);
    std::map<AllocationId, uint64_t> memory_of_allocation_ MC_GUARDED_BY(mutex_);  // without what was lost
    std::vector<Dying> dying_ MC_GUARDED_BY(mutex_);
    std::condition_variable_any closed_;  // some memory of a device, by some peer
    uint64_t next_memory_ MC_GUARDED_BY(mutex_) = 1;
    bool looking_ MC_GUARDED_BY(mutex_) = false;  // the alarm is set
};

}  // namespace mooncake::shm
