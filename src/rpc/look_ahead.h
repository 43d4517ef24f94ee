// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace mooncake::rpc {

/// Whether it pays to look for something before sleeping. Waking a core that sleeps takes longer than most answers; but where others need the
/// core, looking keeps them from it, and what is awaited does not come. So who looks yields to them all the while, and after looking in vain it is
/// not done for some time, the longer the more often that happened. Not thread-safe.
class LookAhead {
public:
    /// Asked once each time.
    bool pays() noexcept {
        if (skip_ == 0) return true;
        --skip_;
        return false;
    }
    void found() noexcept { vain_ = 0; }
    void in_vain() noexcept {
        vain_ = std::min(vain_ + 1, kVainMax);
        skip_ = (1 << vain_) - 1;
    }

private:
    static constexpr int kVainMax = 6;
    int vain_ = 0;
    int skip_ = 0;
};

}  // namespace mooncake::rpc
