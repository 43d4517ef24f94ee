// SPDX-License-Identifier: Apache-2.0
#include "engine/service.h"

namespace mooncake {

Result<> Service::start() {
    MC_RETURN_IF_ERROR(work_.start());
    MC_RETURN_IF_ERROR(stops_.start());
    return timers_.start();
}

bool Service::post_at(Time time, Task task, Key key) {
    return at(time, [this, task = std::move(task), key]() mutable { post(std::move(task), key); }) != 0;
}

void Service::stop() {
    timers_.stop();
    watcher_.stop();
    stops_.stop();
    work_.stop();
}

}  // namespace mooncake
