// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>

#include "base/thread_annotations.h"
#include "store/tier/log_worker.h"
#include "store/tier/reader.h"
#include "store/tier/scan.h"

namespace mooncake::store::log {

/// Empties files that are mostly dead, or that had better go: reads what still counts in them, and has it written again. Slowly, and not while reads wait. One
/// thread's.
class Tidy {
public:
    /// Hands a request to the log thread. False: closed.
    using Post = std::function<bool(Request)>;

    Tidy(const FileTable& files, const Index& index, const Reader& reader, const LogTierOptions& options, Post post);

    /// Until it is asked to stop.
    void run(const std::stop_token& stop);
    /// Empties one file, if there is one that should be. True: there was.
    bool run_once(const std::stop_token& stop);

private:
    std::shared_ptr<LogFile> pick() const;
    bool empty(const std::shared_ptr<LogFile>& file, const std::stop_token& stop);
    /// As many as are written together; takes them from the front. How many bytes; nothing: one stays where it is, and so does the file.
    std::optional<uint64_t> move_some(const std::shared_ptr<LogFile>& file, std::span<const FoundRecord>& records);
    /// As long as so many bytes may take, and until nobody waits for buffers.
    void pause(uint64_t bytes, const std::stop_token& stop);

    const FileTable& files_;
    const Index& index_;
    const Reader& reader_;
    const LogTierOptions options_;
    const Post post_;
    Mutex mutex_;
    std::condition_variable_any wake_;
    std::shared_ptr<LogFile> stuck_;  // could not be emptied: not again at once
    Time stuck_until_{};
};

}  // namespace mooncake::store::log
