// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_device.h"

namespace mooncake {

void DeviceCopies::add(size_t slice, MemoryKind to, MemoryKind from, const CopyPart& part) {
    if (to != to_ || from != from_) flush();
    to_ = to;
    from_ = from;
    parts_.push_back(part);
    parts_.back().ordered = slices_[slice].ordered;
    slice_of_.push_back(slice);
}

void DeviceCopies::flush() {
    if (parts_.empty()) return;
    auto copied = devices_.copy(to_, from_, parts_);
    if (!copied && parts_.size() > 1) {
        // One bad piece does not cost the others. What was copied before may be copied again.
        for (size_t i = 0; i < parts_.size(); ++i)
            if (auto alone = devices_.copy(to_, from_, std::span(parts_).subspan(i, 1)); !alone)
                failures_.emplace_back(slice_of_[i], std::move(alone).error());
    } else if (!copied) {
        failures_.emplace_back(slice_of_.front(), std::move(copied).error());
    }
    parts_.clear();
    slice_of_.clear();
}

}  // namespace mooncake
