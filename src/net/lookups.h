// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/thread_pool.h"
#include "base/time.h"
#include "net/address.h"

namespace mooncake::net {

/// Asks the system's resolver, which may block for long and cannot be interrupted, on threads of its own. However many ask for a name, it
/// is asked for once; names that gave no answer, or a late one, have fewer threads the next time, so that they wait for each other and
/// not the rest for them. Thread-safe. Its end waits for the lookups under way.
class Lookups {
public:
    using Addresses = Result<std::vector<SocketAddress>>;
    using Done = std::function<void(Addresses)>;

    explicit Lookups(std::function<Addresses(const std::string& host)> lookup) : lookup_(std::move(lookup)) {}

    /// Calls back once, on one of our threads, or at once when too many wait already; must not block.
    void ask(const std::string& host, Done done);

    static constexpr size_t kThreadsMax = 64;
    static constexpr size_t kTroubledThreadsMax = 16;  // for names in trouble
    static constexpr size_t kQuestionsMax = 4096;      // that wait

private:
    void look_up(const std::string& host);
    /// Whether the last answer was none, or late.
    bool troubled(const std::string& host) MC_REQUIRES(mutex_);
    void note(const std::string& host, bool trouble) MC_REQUIRES(mutex_);

    const std::function<Addresses(const std::string& host)> lookup_;
    Mutex mutex_;
    std::map<std::string, std::vector<Done>> asked_ MC_GUARDED_BY(mutex_);
    size_t questions_ MC_GUARDED_BY(mutex_) = 0;
    std::map<std::string, Time> troubled_until_ MC_GUARDED_BY(mutex_);
    ThreadPool threads_{{.name = "mc-resolve", .threads_max = kThreadsMax}};
    ThreadPool troubled_threads_{{.name = "mc-resolve-slow", .threads_max = kTroubledThreadsMax}};
};

}  // namespace mooncake::net
