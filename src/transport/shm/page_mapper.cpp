// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/page_mapper.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/pages.h"
#include "base/thread.h"

namespace mooncake::shm {

namespace {

constexpr int kLooksMax = 8;
constexpr Duration kFirstPause = 50ms;  // then twice as long each time: 6 s in all
constexpr uint64_t kLeastPage = 4096;

}  // namespace

Result<bool> PageMapper::enter(std::byte* at, uint64_t length) {
    std::array<unsigned char, kStepBytes / kLeastPage> pages;
    if (length > kStepBytes) return fail(Code::kInvalidArgument, "{} bytes at one go", length);
    if (::mincore(at, length, pages.data()) != 0) return fail_errno(Code::kNotSupported, errno, "mincore");
    const auto end = pages.begin() + static_cast<ptrdiff_t>((length + page_bytes() - 1) / page_bytes());
    if (!std::all_of(pages.begin(), end, [](unsigned char page) { return (page & 1) != 0; })) return false;
    if (!populate_pages(at, length)) return fail_errno(Code::kNotSupported, errno, "madvise");
    return true;
}

void PageMapper::add(const std::shared_ptr<const Mapping>& mapping) {
    if (mapping->length() < kLeastBytes) return;
    Lock lock(mutex_);
    fresh_.push_back({.mapping = mapping, .entered = std::vector<bool>((mapping->length() + kStepBytes - 1) / kStepBytes)});
    added_.notify_one();
    if (thread_.joinable()) return;
    try {
        thread_ = start_thread("mc-shm-pages", [this](const std::stop_token& stop) { run(stop); });
    } catch (const std::system_error& exception) {
        MC_LOG_WARNING_EVERY(10s, "no thread to enter pages of a peer: {}", exception.what());
    }
}

bool PageMapper::look(Job& job, const std::stop_token& stop) {
    bool left = false;
    for (size_t step = 0; step < job.entered.size(); ++step) {
        if (job.entered[step]) continue;
        const auto mapping = job.mapping.lock();  // for this step: its owner need not wait longer
        if (!mapping || stop.stop_requested()) return false;
        const uint64_t offset = step * kStepBytes;
        const auto entered = enter(mapping->address() + offset, std::min(kStepBytes, mapping->length() - offset));
        if (!entered) return false;
        job.entered[step] = *entered;
        left |= !*entered;
    }
    return left && ++job.looks < kLooksMax;
}

void PageMapper::run(const std::stop_token& stop) {
    std::vector<Job> jobs;
    Duration pause = kFirstPause;
    while (!stop.stop_requested()) {
        mutex_.lock();
        const auto more = [this]() MC_REQUIRES(mutex_) { return !fresh_.empty(); };
        const bool fresh = jobs.empty() ? added_.wait(mutex_, stop, more) : added_.wait_for(mutex_, stop, pause, more);
        std::move(fresh_.begin(), fresh_.end(), std::back_inserter(jobs));
        fresh_.clear();
        mutex_.unlock();
        pause = fresh ? kFirstPause : 2 * pause;
        std::erase_if(jobs, [&](Job& job) { return !look(job, stop); });
    }
}

}  // namespace mooncake::shm
