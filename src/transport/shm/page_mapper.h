// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/shared_memory.h"
#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::shm {

/// Enters pages that a peer's memory has into our page tables before a copy would have to wait for that, one page at a time. Never makes pages: of
/// what the peer has not touched there may be no need. Looks a few times, ever more rarely, for the peer may just be touching its memory. On a thread
/// that is started when first needed; not at low priority, since each step holds the lock of the address space, and who waits for a processor with that
/// stops everybody who allocates memory. Thread-safe.
class PageMapper {
public:
    PageMapper() = default;
    PageMapper(const PageMapper&) = delete;
    PageMapper& operator=(const PageMapper&) = delete;

    /// Small ones are not worth it. Does not keep it mapped.
    void add(const std::shared_ptr<const Mapping>& mapping);

    /// If the range has all its pages, enters them. kNotSupported: the system does not do that.
    static Result<bool> enter(std::byte* at, uint64_t length);

    static constexpr uint64_t kStepBytes = 2 << 20, kLeastBytes = 16 << 20;

private:
    struct Job {
        std::weak_ptr<const Mapping> mapping;
        std::vector<bool> entered;  // for each step
        int looks = 0;
    };
    void run(const std::stop_token& stop);
    /// False: nothing is left to do.
    static bool look(Job& job, const std::stop_token& stop);

    Mutex mutex_;
    std::condition_variable_any added_;
    std::vector<Job> fresh_ MC_GUARDED_BY(mutex_);
    std::jthread thread_ MC_GUARDED_BY(mutex_);  // last: ends first
};

}  // namespace mooncake::shm
