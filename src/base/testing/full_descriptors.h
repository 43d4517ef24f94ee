// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace mooncake::testing {

/// While it lives, this process has only so many free descriptors. One at a time; restores the limit.
class FullDescriptors {
public:
    explicit FullDescriptors(size_t free = 0) {
        MC_CHECK(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
        const int next = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();  // the lowest free number
        const rlimit low{.rlim_cur = static_cast<rlim_t>(next) + 64, .rlim_max = before_.rlim_max};
        MC_CHECK(::setrlimit(RLIMIT_NOFILE, &low) == 0);
        for (;;) {
            UniqueFd filler(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            if (!filler) break;
            fillers_.push_back(std::move(filler));
        }
        MC_CHECK(fillers_.size() >= free);
        fillers_.resize(fillers_.size() - free);
    }
    ~FullDescriptors() { MC_CHECK(::setrlimit(RLIMIT_NOFILE, &before_) == 0); }
    FullDescriptors(const FullDescriptors&) = delete;
    FullDescriptors& operator=(const FullDescriptors&) = delete;

private:
    rlimit before_{};
    std::vector<UniqueFd> fillers_;
};

}  // namespace mooncake::testing
