// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_bounce.h"

#include <utility>

namespace mooncake {

BounceBuffers::Buffer BounceBuffers::take() {
    std::unique_ptr<std::byte[]> memory;
    {
        Lock lock(mutex_);
        if (!idle_.empty()) {
            memory = std::move(idle_.back());
            idle_.pop_back();
        }
    }
    if (!memory) memory = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    return {*this, std::move(memory)};
}

void BounceBuffers::give_back(std::unique_ptr<std::byte[]> memory) {
    Lock lock(mutex_);
    if (idle_.size() < kIdleMax) idle_.push_back(std::move(memory));
}

}  // namespace mooncake
