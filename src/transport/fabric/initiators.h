// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/incarnation.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "transport/fabric/rail.h"
#include "transport/fabric/wire.h"

namespace mooncake::fabric {

/// The addresses that others write to us from, for providers that take nothing from an endpoint they do not know (efa-direct). Every
/// rail of ours gets those it can talk to. Initiators repeat what they said: who is silent for long is forgotten. Thread-safe.
class Initiators {
public:
    /// The rails outlive it.
    Initiators(std::vector<Rail*> rails, Duration idle_timeout) : rails_(std::move(rails)), idle_timeout_(idle_timeout) {}
    ~Initiators();

    /// These are now the addresses of that process, in place of what it said before. kNoSpace: not all of them fit.
    Result<> tell(Incarnation who, std::span<const RailRecord> addresses, Time now);
    void sweep(Time now);
    size_t count() const;

private:
    struct Entry {
        Time told{};
        std::vector<std::pair<Rail*, AddressHandle>> handles;
    };
    static void drop(Entry& entry);

    const std::vector<Rail*> rails_;
    const Duration idle_timeout_;
    mutable Mutex mutex_;  // outside the rails'
    std::map<uint64_t, Entry> entries_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::fabric
