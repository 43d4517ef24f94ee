// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/completion.h"
#include "base/thread_annotations.h"
#include "transport/staging.h"
#include "transport/transport.h"

// The parts of a StagedPeer: what it has yet to begin, and what is under way.
namespace mooncake {

struct StagedCore;

/// Of what need not be moved any more. Never seen: the first error stands.
inline Error another_piece_failed() noexcept { return Error(Code::kCancelled, "a piece failed"); }  // so short that it needs no memory

/// So much of a transfer as fits into one slot. Belongs to the core until finish(), and to whoever runs it. Members that are not constant once it was
/// cut belong to the one who moved its state to kCopying or kOver, or are guarded by the core's mutex.
class StagedChunk final : public StagingTask, public CompletionHook, public std::enable_shared_from_this<StagedChunk> {
public:
    enum class State : uint8_t {
        kPosted,     // waits for a slot and a thread
        kCopying,    // by the device; or it is being handed to the network
        kOnNetwork,  //
        kLanded,     // the network is done with it: waits for a thread
        kOver,       // and is being told
    };

    explicit StagedChunk(StagedCore& owner);

    void run() noexcept override { go_on(Submit::kLeave); }
    void on_done(Completion&) noexcept override;
    /// Does what is next, on this thread.
    void go_on(Submit how) noexcept;
    /// The last step, by whoever moved the state to kOver. Without an error: it was moved.
    void finish(const std::optional<Error>& error) noexcept;
    /// Lets this thread do the network's work until the network is done with it. False at the deadline.
    bool wait_on_network(Deadline deadline);
    /// Whether a function further down this thread's stack tells its completion.
    bool told_here() const noexcept { return state == State::kOver && teller == std::this_thread::get_id(); }

    const std::shared_ptr<StagedCore> core;
    Completion network{nullptr, this};
    Direction direction = Direction::kRead;
    Completion* outer = nullptr;
    uint32_t operations = 0;
    uint64_t bytes = 0;
    std::vector<Slice> slices;       // as they were submitted, and later as the network gets them
    std::vector<std::byte*> places;  // then: where they are on the device
    std::vector<Copier*> copiers;    // and who wants to look at them

    State state = State::kPosted;
    bool network_done = false;
    bool left_to_waiter = false;   // landed, and nobody was asked to go on but the one in wait_on_network()
    std::optional<Error> stopped;  // goes no further
    std::thread::id teller;

private:
    Result<> copy() noexcept;
    void send(Submit how) noexcept;
    void arrived(bool here) noexcept;
    void place_slices();
    void show() const noexcept;
};

/// What threads of others may still look at while the peer ends.
struct StagedCore : std::enable_shared_from_this<StagedCore> {
    /// Operations that end without having been begun.
    struct Lost {
        Completion* completion = nullptr;
        uint32_t operations = 0;
    };
    /// To be post()ed and failed without the mutex.
    struct Fresh {
        std::vector<std::shared_ptr<StagedChunk>> chunks;
        std::vector<Lost> lost;
    };
    enum class Next : uint8_t { kWait, kFinish, kNetwork };

    StagedCore(Peer& peer, Staging& lender) : host(peer), staging(lender) {}

    void push(Direction direction, std::span<const Slice> slices) MC_REQUIRES(mutex);
    /// Cuts as many chunks as may be under way. What has failed in part need not be moved. False: there was no memory, and nothing is under way
    /// whose end would be the next occasion; so the entries are to be failed.
    [[nodiscard]] bool cut_all(Fresh& fresh) noexcept MC_REQUIRES(mutex);
    /// Of all of them or, where it throws, of none.
    template <typename Condition>
    void drop(const Condition& condition, std::vector<Lost>& lost) MC_REQUIRES(mutex);
    static void fail(const std::vector<Lost>& lost, const Error& reason) noexcept;
    /// All that is not cut. Needs no memory.
    void fail_entries(const Error& reason) noexcept;
    bool idle() const MC_REQUIRES(mutex) { return chunks.empty() && entries_.empty(); }
    void post(const std::shared_ptr<StagedChunk>& chunk) noexcept;

    /// Whether anything of the completion is here, and a chunk of it that is on the network.
    bool has(const Completion& completion, std::shared_ptr<StagedChunk>& under_way) const MC_REQUIRES(mutex);
    std::shared_ptr<StagedChunk> find(const Completion& completion) const MC_REQUIRES(mutex);
    /// kWait: it will change. kFinish: by the caller. kNetwork: to be cancelled there.
    Next stop(StagedChunk& chunk, const Error& reason) MC_REQUIRES(mutex);

    Peer& host;
    Staging& staging;
    std::atomic<size_t> staged{0};  // submissions and chunks; 0: everything is the host peer's

    Mutex mutex;
    std::condition_variable_any changed;  // some chunk's state
    std::optional<Error> closed MC_GUARDED_BY(mutex);
    std::list<std::shared_ptr<StagedChunk>> chunks MC_GUARDED_BY(mutex);

private:
    struct Entry {
        Direction direction = Direction::kRead;
        std::span<const Slice> slices;  // not empty, all of devices
        uint64_t offset = 0;            // of the first, what is cut off already
    };

    /// Where it throws, nothing has been cut.
    std::shared_ptr<StagedChunk> cut() MC_REQUIRES(mutex);
    void fill(Entry& entry, StagedChunk& chunk) MC_REQUIRES(mutex);
    static void take_part(Entry& entry, StagedChunk& chunk);
    static void take_whole_slices(Entry& entry, StagedChunk& chunk);

    std::deque<Entry> entries_ MC_GUARDED_BY(mutex);
};

template <typename Condition>
void StagedCore::drop(const Condition& condition, std::vector<Lost>& lost) {
    std::deque<Entry> kept;
    std::vector<Lost> dropped_ones;
    for (const Entry& entry : entries_) {
        for (size_t begin = 0; begin < entry.slices.size();) {
            const bool dropped = condition(entry.slices[begin]);
            size_t end = begin;
            for (; end < entry.slices.size() && condition(entry.slices[end]) == dropped; ++end) {
                if (!dropped) continue;
                Completion* const completion = entry.slices[end].completion;
                if (dropped_ones.empty() || dropped_ones.back().completion != completion) dropped_ones.push_back({completion, 0});
                ++dropped_ones.back().operations;
            }
            if (!dropped)
                kept.push_back({.direction = entry.direction,
                                .slices = entry.slices.subspan(begin, end - begin),
                                .offset = begin == 0 ? entry.offset : 0});
            begin = end;
        }
    }
    staged.fetch_add(kept.size() - entries_.size(), std::memory_order_relaxed);
    entries_.swap(kept);
    lost = std::move(dropped_ones);
}

}  // namespace mooncake
