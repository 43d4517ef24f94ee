// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/control_pool.h"

namespace mooncake::fabric {

Result<> ControlPool::start() {
    MC_RETURN_IF_ERROR(threads_.start());
    MC_RETURN_IF_ERROR(hours_.start());
    schedule();
    return {};
}

ControlPool::~ControlPool() {
    hours_.stop();
    threads_.stop();
}

void ControlPool::schedule() {
    hours_.at(Clock::now() + interval_, [this] {
        every_();
        schedule();
    });
}

}  // namespace mooncake::fabric
