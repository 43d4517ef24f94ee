// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "store/allocation/index_list.h"
#include "store/allocation/slab.h"
#include "store/master/object.h"
#include "store/protocol/tasks.h"

namespace mooncake::store {

/// A copy or move that somebody asked for, from the request until its outcome is forgotten.
struct Task {
    TaskId id;  // none: this number is free
    TaskType type = TaskType::kCopy;
    TaskStatus status = TaskStatus::kPending;
    std::string tenant, key;
    SegmentNumber source = 0;                // of a move
    std::vector<SegmentNumber> destination;  // candidates: one copy to each name among them; of a move, to the first that has room
    JobId job;                               // the drain it belongs to, if any
    ClientId client;                         // who carries it out
    CopyId copy = 0;                         // while it is processed
    Time created{}, updated{}, not_before{};
    uint32_t attempts = 0;
    uint64_t generation = 0;  // of what is or was copied
    std::string message;
    Links order;
};

/// The tasks by id and number, and by status, oldest first. Those of drains that have ended are kept apart: nobody asks for them, and there are
/// many. Not thread-safe.
class TaskTable {
public:
    TaskNumber find(const TaskId& id) const {
        const auto found = by_id_.find(id);
        return found == by_id_.end() ? 0 : found->second;
    }
    TaskNumber insert(Task task) {
        const TaskNumber number = tasks_.take();
        by_id_.emplace(task.id, number);
        tasks_[number] = std::move(task);
        pending_.push_back(number, links());
        return number;
    }
    void set_status(TaskNumber number, TaskStatus status) {
        list(tasks_[number]).erase(number, links());
        tasks_[number].status = status;
        list(tasks_[number]).push_back(number, links());
    }
    void erase(TaskNumber number) {
        list(tasks_[number]).erase(number, links());
        by_id_.erase(tasks_[number].id);
        tasks_.give_back(number);
    }

    Task& operator[](TaskNumber number) { return tasks_[number]; }
    const Task& operator[](TaskNumber number) const { return tasks_[number]; }
    const IndexList& pending() const noexcept { return pending_; }
    const IndexList& processing() const noexcept { return processing_; }
    const IndexList& finished() const noexcept { return finished_; }
    const IndexList& finished_of_drains() const noexcept { return finished_of_drains_; }

private:
    struct TaskLinks {
        Slab<Task, 64>& tasks;
        Links& operator()(TaskNumber number) const { return tasks[number].order; }
    };
    TaskLinks links() { return {tasks_}; }
    IndexList& list(const Task& task) {
        if (task.status == TaskStatus::kPending) return pending_;
        if (task.status == TaskStatus::kProcessing) return processing_;
        return task.job ? finished_of_drains_ : finished_;
    }

    Slab<Task, 64> tasks_;
    std::unordered_map<TaskId, TaskNumber> by_id_;
    IndexList pending_, processing_, finished_, finished_of_drains_;
};

/// How often a drain has tried to move a value.
struct DrainTries {
    uint32_t count = 0;
    Time not_before{};      // the next one
    uint64_t openings = 0;  // of segments, up to the last one: another may have room for it
};

/// Tells drains apart, but for those that are 255 apart, in a byte of each object they moved. Never 0.
inline uint8_t mark_of(const JobId& drain) { return static_cast<uint8_t>(1 + drain.low % 127); }

/// Segments that shall become empty by moving what they hold.
struct Drain {
    JobId id;
    DrainStatus status = DrainStatus::kRunning;
    std::vector<std::string> names;
    std::vector<SegmentNumber> segments, destination;  // no destination: anywhere else
    std::vector<std::string> segment_names;            // of each of `segments`: they may be gone
    uint32_t concurrency = 0;
    Time created{}, updated{};
    uint64_t succeeded = 0, failed = 0, blocked = 0, migrated_bytes = 0;
    uint32_t active = 0;  // tasks
    std::string message;
    std::map<uint64_t, DrainTries> tries;  // by generation
    StoreCode last_failure = StoreCode::kOk;
    // The pass over the segments that is under way.
    size_t position = 0;  // in `segments`
    RangeAllocator::Block next_block = 1;
    uint64_t seen = 0, hopeless = 0, waiting = 0;
};

}  // namespace mooncake::store
