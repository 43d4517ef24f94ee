// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "rpc/rpc.h"
#include "transport/descriptor.h"

namespace mooncake {

/// Answers those who ask what we are. Peers that connect ask for no list of memory, and are answered at once; a long list is made on a
/// thread of its own, once for all who ask while it does not change, so that nobody who asks for it keeps others waiting. Thread-safe.
class Describer {
public:
    struct Source {
        std::function<SegmentDescriptor(uint32_t buffers_max)> describe;
        std::function<uint64_t()> version;  // moves whenever the list of memory changes
    };
    explicit Describer(Source source) : source_(std::move(source)) {}
    /// No request may arrive any more.
    ~Describer() { thread_.stop(); }

    /// Returns at once. kUnavailable goes to those who ask for a list while too many wait for theirs.
    void answer(uint32_t buffers_max, std::unique_ptr<rpc::Responder> responder);

    static constexpr uint32_t kShortList = 64;
    static constexpr size_t kWaitingMax = 64;

private:
    rpc::Bytes long_list(uint32_t buffers_max);

    const Source source_;
    std::atomic<size_t> waiting_{0};
    // Only on the thread: what was answered last.
    uint64_t version_ = 0;
    uint32_t buffers_max_ = 0;
    std::map<std::string, std::string> endpoints_;
    std::vector<std::byte> encoded_;
    ThreadPool thread_{{.name = "mc-describe", .threads_max = 1}};
};

}  // namespace mooncake
