// SPDX-License-Identifier: Apache-2.0
#include "store/node/page_warmer.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/pages.h"
#include "base/thread.h"

namespace mooncake::store {

namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

/// The first number of a file; "max", or no such file, means no limit.
uint64_t number_in(const std::string& path) {
    uint64_t number = 0;
    return std::ifstream(path) >> number ? number : kNoLimit;
}

/// Of the group of processes that we may be confined to; a limit further up is seen where it is the root of what we see.
uint64_t left_to_our_group() {
    std::string line, group;
    for (std::ifstream list("/proc/self/cgroup"); std::getline(list, line);)
        if (line.starts_with("0::")) group = line.substr(3);
    uint64_t left = kNoLimit;
    for (const std::string& folder : {"/sys/fs/cgroup" + group, std::string("/sys/fs/cgroup")}) {
        const uint64_t limit = number_in(folder + "/memory.max"), used = number_in(folder + "/memory.current");
        if (limit != kNoLimit && used != kNoLimit) left = std::min(left, limit - std::min(limit, used));
    }
    return left;
}

/// What is available, less an eighth of the whole for everybody else.
uint64_t memory_to_spare() {
    uint64_t total = 0, available = 0;
    std::string line;
    for (std::ifstream list("/proc/meminfo"); std::getline(list, line);) {
        constexpr std::string_view kTotal = "MemTotal:", kAvailable = "MemAvailable:";
        if (line.starts_with(kTotal)) total = std::strtoull(line.c_str() + kTotal.size(), nullptr, 10) << 10;
        if (line.starts_with(kAvailable)) available = std::strtoull(line.c_str() + kAvailable.size(), nullptr, 10) << 10;
    }
    return std::min(available - std::min(available, total / 8), left_to_our_group());
}

}  // namespace

PageSource PageSource::system() { return {.populate = populate_pages, .spare_bytes = memory_to_spare}; }

uint64_t PageWarmer::warm(std::byte* memory, uint64_t length, const PageSource& source, const std::stop_token& stop) {
    uint64_t done = 0;
    for (uint64_t next_look = 0; done < length && !stop.stop_requested();) {
        if (done >= next_look) {
            if (source.spare_bytes() < 2 * kLookBytes) return done;
            next_look = done + kLookBytes;
        }
        const uint64_t step = std::min(kStepBytes, length - done);
        if (!source.populate(memory + done, step)) return done;
        done += step;
        std::this_thread::yield();
    }
    return done;
}

PageWarmer::PageWarmer(std::byte* memory, uint64_t length, PageSource source) {
    try {
        thread_ = start_thread("mc-store-pages", [memory, length, source = std::move(source)](const std::stop_token& stop) {
            warm(memory, length, source, stop);
        });
    } catch (const std::system_error& exception) {
        MC_LOG_WARNING("no thread to prepare the pages of a segment: {}", exception.what());
    }
}

}  // namespace mooncake::store
