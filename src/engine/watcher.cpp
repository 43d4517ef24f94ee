// SPDX-License-Identifier: Apache-2.0
#include "engine/watcher.h"

#include <iterator>

#include "base/thread.h"
#include "base/time.h"

namespace mooncake {

bool Watcher::add(Look look) {
    if (forked()) return false;
    Lock lock(mutex_);
    if (stopped_) return false;
    if (!thread_.joinable()) {
        auto started = try_start_thread(name_, [this] { run(); });
        if (!started) return false;
        thread_ = std::move(*started);
    }
    looks_.push_back(std::move(look));
    wake_.notify_one();
    return true;
}

void Watcher::stop() {
    if (forked()) return;
    std::jthread ended;
    {
        Lock lock(mutex_);
        stopped_ = true;
        wake_.notify_one();
        ended = std::move(thread_);
    }
    if (ended.joinable()) ended.join();
    std::vector<Look> dropped;  // outside the lock
    Lock lock(mutex_);
    dropped.swap(looks_);
}

void Watcher::run() {
    constexpr Duration kBetween = 20us;
    std::vector<Look> mine;
    while (true) {
        {
            Lock lock(mutex_);
            if (!stopped_ && !mine.empty()) wake_.wait_for(mutex_, kBetween);
            while (!stopped_ && mine.empty() && looks_.empty()) wake_.wait(mutex_);
            if (stopped_) return;  // with what is left: what it holds is let go here
            std::move(looks_.begin(), looks_.end(), std::back_inserter(mine));
            looks_.clear();
        }
        std::erase_if(mine, [](const Look& look) { return !look(); });
    }
}

}  // namespace mooncake
