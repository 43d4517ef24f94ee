// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_annotations.h"
#include "store/client/client_core.h"
#include "store/client/values.h"

namespace mooncake::store {

/// Values opened for reading in parts: their places are kept, and nobody is asked again, until the lease ends. Thread-safe.
class ReadSessions {
public:
    explicit ReadSessions(ClientCore& core) : core_(core) {}

    std::vector<StoreCode> open(std::span<const std::string_view> keys);
    std::vector<int64_t> read(std::span<const PartToRead> parts);
    bool close(std::span<const std::string_view> keys);
    void forget_all();

private:
    /// The places of open sessions; codes[i] says why not.
    void find(std::span<const std::string_view> keys, std::span<Place> places, std::span<StoreCode> codes);

    /// Those that nobody closed, if there may be many.
    void forget_ended(Time now) MC_REQUIRES(mutex_);

    static constexpr size_t kManySessions = 1024;

    ClientCore& core_;
    Mutex mutex_;
    std::map<std::string, Place, std::less<>> open_ MC_GUARDED_BY(mutex_);
    size_t many_ MC_GUARDED_BY(mutex_) = kManySessions;  // so many are worth a look
};

}  // namespace mooncake::store
