// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/incarnation.h"
#include "base/snapshot.h"
#include "base/thread_annotations.h"
#include "base/unique_fd.h"
#include "net/socket.h"
#include "transport/copy_bounce.h"
#include "transport/copy_peer.h"
#include "transport/cross_memory.h"
#include "transport/shm/channel.h"
#include "transport/shm/claims.h"
#include "transport/shm/closed_memories.h"
#include "transport/shm/copy_turns.h"
#include "transport/shm/loop.h"
#include "transport/shm/page_mapper.h"
#include "transport/shm/region_table.h"
#include "transport/shm/region_view.h"

namespace mooncake::shm {

/// The side that copies: a connection to another process of this host. Copies run on our threads only; the target learns from the
/// claims page when it must wait for us. Memory the target shares is mapped and copied directly, all other through the kernel. Local memory of
/// a device is copied by that device: from and to what is mapped, or a buffer of ours that the kernel fills or empties.
///
/// A chunk is copied within one Section of the claims page, in which every region used is claimed and seen live first. Regions are
/// found in a RegionView; when one is missing or dead there, a fresh view decides.
class ShmPeer final : public CopyPeer, private Loop::Handler {
public:
    /// What all peers of a transport share. Outlives them.
    struct Means {
        CopyPool& pool;
        Loop& loop;
        const Devices& devices;
        BounceBuffers& bounces;
        metrics::Registry* metrics = nullptr;     // null: nobody reads them
        const net::Interrupt* closing = nullptr;  // ends connects under way
    };
    static Result<std::unique_ptr<Peer>> connect(const std::string& socket_name, Incarnation own, Incarnation expected, const Means& means,
                                                 Deadline deadline);
    ~ShmPeer() override;

    static constexpr size_t kMemoriesMax = 4096;  // mapped at once
    static constexpr size_t kOpenedMax = 65'536;  // by devices at once
    static constexpr size_t kWantedMax = 32;      // asked for at once
    static constexpr Duration kLookTime = 500ms;  // for a table that changes all the time, before a range counts as not registered
    static constexpr Duration kOpenTime = 10s;    // for memory of a device, which nobody copies until it has been opened here
    static constexpr Duration kTellTime = 100ms;  // for the peer to read what we have closed
    static constexpr Duration kSlotTime = 1s;     // for a slot of the claims page, when fewer of our threads copy than it has
    static constexpr Duration kCrowdTime = 10s;   // and when there are more

private:
    class Pass;
    class OpenedMemory;
    /// What the handshake yields.
    struct Link {
        net::Socket socket;
        net::Socket process;  // a pidfd; empty on kernels without
        pid_t pid = 0;
        RemoteTable table;
        Mapping claims;
        bool takes_ranges = false;
    };

    /// Of a copy that finds no free slot in the claims page.
    struct SlotWait {
        SpinPause pause;
        uint32_t looks = 0;
        Time began{}, crowded{};  // crowded: when last as many copies as there are slots were under way
    };

    ShmPeer(Link link, const Means& means);
    static Result<Link> shake_hands(net::Socket socket, Incarnation own, Incarnation expected, const net::Patience& patience);

    void copy(const CopyChunk& chunk, CopyFailures& failures) override;
    MemoryKind remote_kind(Direction direction, const Slice& slice) const noexcept override;
    void on_ready() override;
    void on_exception() noexcept override;

    /// Whether the process we know is still there: its number may belong to another once this is false.
    bool alive(int look_ms = 0) const noexcept;
    bool process_ended() const noexcept;
    void unwatch();
    Error lost(int system_errno);
    /// False: the peer is broken. The copies that have the slots are ours and short, unless it wrote into the page what is not so.
    bool keep_waiting(SlotWait& wait);
    Claims& claims() const noexcept { return *reinterpret_cast<Claims*>(link_.claims.address()); }

    /// A view newer than `old`, or `old` itself if what it says of these slices is still true. Inside a copy.
    const RegionView& refresh(const RegionView& old, const CopyChunk& chunk, std::span<const size_t> slices);
    Error refused(const RegionView& view, const Slice& slice);
    void rebuild() MC_REQUIRES(refresh_mutex_);
    /// On the loop's thread: unmaps what is not used any more.
    void drop_old_views() MC_EXCLUDES(refresh_mutex_);
    void ask_for_memories() MC_REQUIRES(refresh_mutex_);
    /// Waits until the answers are there that may make the slices' memory reachable. True: it waited. Inside a copy.
    bool await_devices(const CopyChunk& chunk, std::span<const size_t> slices);
    std::shared_ptr<const ReachedMemory> reach(const Received& received);
    std::shared_ptr<const ReachedMemory> reach_device(const Message& message, const MemoryTicket& ticket, const MemoryFile& file);
    void take_memory(const Received& received);
    void drop_memories();

    const Link link_;
    const Means means_;
    ClosedMemories closed_;
    Snapshot<RegionView> view_{copying(), std::make_unique<const RegionView>()};  // replaced under refresh_mutex_
    Mutex refresh_mutex_;
    std::condition_variable_any answered_;
    RemoteMemories memories_ MC_GUARDED_BY(refresh_mutex_);
    size_t answers_due_ MC_GUARDED_BY(refresh_mutex_) = 0;
    uint64_t answers_ MC_GUARDED_BY(refresh_mutex_) = 0;
    bool opened_some_ MC_GUARDED_BY(refresh_mutex_) = false;     // memory of a device
    bool unseen_answers_ MC_GUARDED_BY(refresh_mutex_) = false;  // since the view was made
    bool told_unreached_ = false;                                // of the loop's thread
    PageMapper pages_;
    CopyTurns turns_;
};

}  // namespace mooncake::shm
