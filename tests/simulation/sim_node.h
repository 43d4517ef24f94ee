// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/node/catalogue.h"
#include "store/node/warm_journal.h"
#include "tests/simulation/sim_master.h"

namespace mooncake::store::simulation {

/// What outlives a node's process of its journal.
class SimJournal final : public JournalFile {
public:
    Result<> append(std::span<const std::byte> more) override {
        std::vector<std::byte>& to = anew_ ? next_ : bytes;
        to.insert(to.end(), more.begin(), more.end());
        return {};
    }
    Result<> begin_anew() override {
        anew_ = true;
        next_.clear();
        return {};
    }
    Result<> commit() override {
        bytes = std::move(next_);
        anew_ = false;
        return {};
    }
    void discard() noexcept override { bytes.clear(); }

    std::vector<std::byte> bytes;

private:
    std::vector<std::byte> next_;
    bool anew_ = false;
};

/// A node: a segment with simulated bytes, the real catalogue of what lies in it, and the duties of a member of the pool: it heartbeats,
/// follows, and reports to every master it has not met.
class SimNode {
public:
    static constexpr uint64_t kUnit = 64;

    /// `nodes`: all of them, for copies. `disk_size`: 0: none.
    SimNode(World& world, SimMaster& master, std::vector<std::unique_ptr<SimNode>>& nodes, uint64_t number, uint64_t size,
            uint64_t disk_size, bool warm = false);

    /// The process dies with its memory, and comes back empty as another; its disk has what it had.
    void crash();
    /// The process dies, and comes back with its memory, if it has a journal.
    void restart();
    bool warm() const { return warm_; }
    /// Whether what a peer mapped in that life of it is the memory it has now.
    bool same_memory(uint64_t life) const { return warm_ && life >= memory_born_; }
    /// All that is on its disk is lost, while the process is down.
    void lose_disk();
    /// Unmounts its memory and mounts it again under another id, as nothing.
    void renew_segment();

    // One-sided: nobody is asked.
    void land(uint64_t offset, uint64_t length, uint64_t generation) {
        world_.note("{}: bytes of generation {} land at {}+{}", spec_.name, generation, offset, length);
        for (uint64_t at = offset / kUnit; at < (offset + length + kUnit - 1) / kUnit; ++at) memory_[at] = generation;
    }
    bool read(uint64_t offset, uint64_t length, uint64_t generation) const {
        for (uint64_t at = offset / kUnit; at < (offset + length + kUnit - 1) / kUnit; ++at)
            if (memory_[at] != generation) return false;
        return true;
    }

    const ClientId& id() const { return id_; }
    const SegmentSpec& spec() const { return spec_; }
    /// The current master knows all that it holds.
    bool mounted() const;
    /// Values it would report if its master were lost now.
    size_t catalogued() const { return catalogue_->objects() + disk_.size(); }
    const SegmentSpec& disk_spec() const { return disk_spec_; }
    bool has_disk() const { return disk_size_ != 0; }
    bool on_disk(uint64_t generation) const { return disk_.contains(generation); }
    /// Some values go from its disk.
    void evict_from_disk();

    Endpoint endpoint;
    uint64_t copies = 0;  // carried out
    uint64_t offloads = 0, promotions = 0, gone = 0;
    uint64_t restarts = 0, brought_back = 0;  // values, with its memory

private:
    /// A HeldSegment with texts of its own.
    struct Part {
        struct Object {
            std::string tenant, key, group;
            HeldObject held;
        };
        std::vector<Object> objects;
        std::vector<HeldWrite> writes;
        std::vector<HeldQuarantine> quarantined;
        bool exact = false, more = false;
        bool disk = false;
        bool fresh = false;  // memory that nobody was told of before
    };
    /// A value on the disk.
    struct Record {
        std::string tenant, key, group;
        uint64_t length = 0, checksum = 0;
    };
    static constexpr Duration kStreamSilence = 1s;  // no event that is on its way takes longer
    struct Report {
        uint64_t view = 0;
        std::vector<Part> parts;
        size_t next = 0;
        int tries = 0;
        bool introduced = false;
    };

    /// A copy that was ordered.
    struct Work {
        struct Target {
            SimNode* node = nullptr;
            uint64_t node_life = 0, offset = 0;
        };
        CopyOrder order;
        std::vector<Target> targets;
        size_t writing = 0;                // to that target,
        uint64_t from = 0, to = 0;         // these bytes
        std::vector<uint32_t> in_doubt{};  // segments of targets that were cut off with bytes before them
        bool stopped = false;
        bool corrupt = false;  // the source had other bytes: must not count
    };

    void start();
    void begin_process();
    void begin_journal();
    void come_back(const SegmentId& segment);
    void note_following(uint64_t view);
    void beat();
    void heartbeat_answered(const HeartbeatReply& reply, uint64_t view);
    bool drained();
    void join(uint64_t view);
    void introduce(const std::shared_ptr<Report>& report);
    void begin_report(const std::shared_ptr<Report>& report);
    void send_part(const std::shared_ptr<Report>& report);
    bool remount_with(Transaction& t, const ClientId& id, const SegmentSpec& spec, const Part& part);
    void joined(uint64_t view);
    void follow();
    void acknowledge(uint64_t sequence);
    void stream_ended(const std::shared_ptr<SimEventStream>& stream, bool orderly);
    void take_order(const CopyOrder& order);
    void copy_chunk(const std::shared_ptr<Work>& work, size_t target, uint64_t at);
    void leave_in_doubt(const std::shared_ptr<Work>& work);
    void report_end(const std::shared_ptr<Work>& work, StoreCode code);
    void end_work(const std::shared_ptr<Work>& work, StoreCode code);
    void stop_works();
    void unmount();
    void mount();
    // sim_tiers.cpp
    void add_disk_parts(Report& report, size_t entries_max);
    void hear_of_disk(const EventUpdate& update);
    void take_tier_order(const CopyOrder& order);
    void offload(const std::shared_ptr<Work>& work);
    void promote(const std::shared_ptr<Work>& work, SimNode& to);
    void end_tier_work(const std::shared_ptr<Work>& work, StoreCode code);
    void remove_from_disk(uint64_t generation);
    void tell_gone();

    World& world_;
    SimMaster& master_;
    std::vector<std::unique_ptr<SimNode>>& nodes_;
    const uint64_t number_, size_, disk_size_;
    ClientId id_;
    SegmentSpec spec_;
    std::vector<uint64_t> memory_;  // the generation last written, per 64 bytes
    std::unique_ptr<Catalogue> catalogue_;
    SegmentSpec disk_spec_;
    uint64_t disks_ = 0;               // that it has lost
    std::map<uint64_t, Record> disk_;  // by generation; outlives the process
    std::map<uint64_t, Record> disk_plans_;
    std::set<uint64_t> disk_told_;  // while the stream is not complete
    bool disk_streaming_ = false;
    std::map<uint64_t, Record> gone_;  // that the master has not been told of
    bool telling_ = false;
    uint64_t view_ = 0;                           // the master that knows what we hold; 0: none
    uint64_t last_update_ = 0;                    // heard of the event stream
    uint64_t whole_update_ = 0, whole_view_ = 0;  // the last one before which none was missed, and whose it was
    bool ever_lent_ = false;                      // whether a master may have used its memory, whatever became of the answer
    std::shared_ptr<Report> report_;              // under way
    std::shared_ptr<SimEventStream> stream_;      // null: not following
    std::shared_ptr<SimEventStream> draining_;    // the one whose last events are awaited
    Time heard_{};                                // its last event, or when that began
    std::map<TaskId, std::shared_ptr<Work>> works_;
    Time answered_{};        // when the last heartbeat that was answered had been sent
    bool renewing_ = false;  // the master has not let go of the segment yet
    SegmentId unmounting_;   // the last one that we asked to be unmounted
    Time mounting_{};        // since then
    // sim_warm.cpp
    const bool warm_;
    uint64_t memory_born_ = 0;  // in which life
    SimJournal file_;           // outlives the process
    std::unique_ptr<WarmJournal> journal_;
    Standing standing_;
    bool restarted_ = false, exact_ = false;  // nothing but what the journal told is known, and that exactly
};

}  // namespace mooncake::store::simulation
