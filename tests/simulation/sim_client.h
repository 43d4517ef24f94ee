// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/master/ops/removal.h"
#include "tests/simulation/sim_node.h"

namespace mooncake::store::simulation {

/// A client that puts, upserts, reads (some of it slowly), probes and removes, as the real one must: it stops writing at its deadline,
/// when the master has been silent for too long, and before it makes itself known to another master; and it trusts what it read only as
/// long as its lease, counted from its question.
class SimClient {
public:
    static constexpr Duration kCallTimeout = 1500ms;
    static constexpr Duration kWriteTimeout = 8s;

    SimClient(World& world, SimMaster& master, std::vector<std::unique_ptr<SimNode>>& nodes, uint64_t number, uint64_t keys);

    /// Bytes on their way still land. It comes back as another.
    void crash();
    void leave();  // goodbye, then comes back as another
    void stop() { stopped_ = true; }

    Endpoint endpoint;
    uint64_t puts = 0, gets = 0, refused = 0, late = 0, missed = 0;  // what happened, to see that something did

private:
    struct Copy {
        SimNode* node = nullptr;  // null: its segment is not known any more
        uint64_t node_life = 0;
        SegmentId segment;
        uint64_t offset = 0;
        bool disk = false;
    };
    struct Put {
        std::string key, group;
        uint64_t length = 0, request_id = 0, generation = 0;
        bool upsert = false, stopped = false;
        bool abandoned = false;  // given up, but its bytes may still land
        int tries = 0;
        size_t copies_left = 0;
        Time sent{};
        std::vector<Copy> copies;
    };
    struct Started {
        PutStartItem item;
        Duration retry_after{0};
        std::vector<Copy> copies;
        uint64_t view = 0;
        uint64_t there = 0;  // generation of a value that it was told of instead
    };
    struct Get {
        std::string key;
        GetItem item;
        Time sent{};
        Duration lease{0};
        std::vector<Copy> copies;
        size_t chunks = 1;
        bool slow = false;
    };

    void start();
    void act();
    void beat();
    void stop_writes();
    void join(uint64_t view);
    /// Asks the master; exactly one answer, or none in time.
    template <typename Reply>
    void call(std::function<Reply(Transaction&)> op, std::function<void(std::optional<Reply>)> done);
    /// The same of a call about a key that is answered when the nodes have been told. `leaves`: when the answer does, whether it arrives or not.
    template <typename Reply>
    void call_and_tell(
        const std::string& key, std::function<Reply(Transaction&)> op, std::function<void(std::optional<Reply>)> done,
        std::function<void(const Reply&)> leaves = [](const Reply&) {});
    /// How one call ends, once.
    template <typename Reply>
    std::function<void(std::optional<Reply>)> expect(std::function<void(std::optional<Reply>)> done);
    std::vector<Copy> resolve(const std::vector<ReplicaLocation>& where) const;

    void begin_put(bool upsert);
    void send_start(const std::shared_ptr<Put>& put);
    uint64_t check_there(const std::string& key, const std::vector<SegmentNumber>& unreachable);
    void started(const std::shared_ptr<Put>& put, std::optional<Started> reply);
    void land_chunk(const std::shared_ptr<Put>& put, size_t copy, uint64_t at);
    void copy_written(const std::shared_ptr<Put>& put);
    void send_end(const std::shared_ptr<Put>& put);
    void give_up(const std::shared_ptr<Put>& put);
    void report(const SegmentId& segment);

    void begin_get();
    void read_chunk(const std::shared_ptr<Get>& get, size_t chunk);
    void begin_probe();
    void begin_remove();
    void remove_on(const std::shared_ptr<Removal>& removal, uint64_t view);
    void begin_task();

    std::string some_key() { return format_text("k{}", world_.random.below(keys_)); }

    World& world_;
    SimMaster& master_;
    std::vector<std::unique_ptr<SimNode>>& nodes_;
    const uint64_t number_, keys_;
    ClientId id_;
    uint64_t requests_ = 0;
    Time answered_{};    // when the last heartbeat that was answered had been sent
    uint64_t view_ = 0;  // the master we are known to; 0: none
    bool stopped_ = false;
    std::vector<std::shared_ptr<Put>> writing_;
};

}  // namespace mooncake::store::simulation
