// SPDX-License-Identifier: Apache-2.0
#include "base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace mooncake {

Result<std::string> read_file(const std::string& path, size_t bytes_max) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return fail_errno(errno == ENOENT ? Code::kNotFound : Code::kUnavailable, errno, "cannot open {}", path);
    std::string text;
    char part[16 * 1024];
    while (true) {
        const ssize_t got = ::read(fd.get(), part, sizeof part);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(Code::kUnavailable, errno, "cannot read {}", path);
        if (got == 0) return text;
        text.append(part, static_cast<size_t>(got));
        if (text.size() > bytes_max) return fail(Code::kInvalidArgument, "{} is longer than {} bytes", path, bytes_max);
    }
}

}  // namespace mooncake
