// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/fabric/profile.h"
#include "transport/fabric/time_source.h"
#include "transport/fabric/wire.h"

namespace mooncake::fabric {

/// The rails of a target, with the newest name and epoch that it told us of each. Not thread-safe: belongs to the peer.
class RemoteRails {
public:
    RemoteRails(std::span<const RailRecord> rails, const ProviderProfile& profile, const TimeSource& time)
        : profile_(profile), time_(time), rails_(rails.begin(), rails.end()) {}

    uint32_t count() const noexcept { return static_cast<uint32_t>(rails_.size()); }
    const RailRecord& operator[](uint32_t rail) const noexcept { return rails_[rail]; }
    /// True: its endpoint is another now.
    bool renew(const RailState& state);

    /// Whether the endpoint of that epoch was closed, as far as we know.
    bool replaced(uint32_t rail, uint64_t epoch) const noexcept { return rails_[rail].epoch > epoch; }
    /// Whether nothing can land any more of what went to that endpoint and ended on our side at `since`.
    bool is_closed(uint32_t rail, uint64_t epoch, Time since) const;

private:
    const ProviderProfile& profile_;
    const TimeSource& time_;
    std::vector<RailRecord> rails_;
};

}  // namespace mooncake::fabric
