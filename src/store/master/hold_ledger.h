// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace mooncake::store {

/// How many bytes are held by leases and soft leases, to within a small part of the longest hold. Constant cost. Not thread-safe.
class HoldLedger {
public:
    explicit HoldLedger(Duration longest) : width_(std::max<Duration>(longest / kSteps, 1ms)) {}

    /// A hold on that many bytes now ends at `to` instead of `from`.
    void move(Time from, Time to, uint64_t bytes) {
        if (step_of(from) == step_of(to)) return;
        remove(from, bytes);
        Bucket& bucket = bucket_of(to);
        if (bucket.step != step_of(to)) bucket = {.step = step_of(to)};
        bucket.bytes += bytes;
    }
    void remove(Time end, uint64_t bytes) {
        Bucket& bucket = bucket_of(end);
        if (bucket.step == step_of(end)) bucket.bytes -= std::min(bucket.bytes, bytes);
    }
    uint64_t held(Time now) const {
        uint64_t bytes = 0;
        for (const Bucket& bucket : buckets_)
            if (bucket.step > step_of(now)) bytes += bucket.bytes;
        return bytes;
    }

private:
    static constexpr int64_t kSteps = 256;
    struct Bucket {
        int64_t step = 0;
        uint64_t bytes = 0;
    };

    int64_t step_of(Time time) const { return time.time_since_epoch() / width_; }
    Bucket& bucket_of(Time time) { return buckets_[static_cast<size_t>(step_of(time)) % buckets_.size()]; }

    const Duration width_;
    std::array<Bucket, 2 * kSteps> buckets_{};
};

}  // namespace mooncake::store
