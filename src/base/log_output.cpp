// SPDX-License-Identifier: Apache-2.0
#include "base/log_output.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif

namespace mooncake {

namespace {

constexpr int kPatience_ms =
    10;  // with a reader that is only late; one that has let us wait so long is not waited for again before it reads

ssize_t write_now(int descriptor, std::string_view text) noexcept {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    const ssize_t written = ::pwritev2(descriptor, &piece, 1, -1, RWF_NOWAIT);
    if (written >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)) return written;
    // An older kernel, or a terminal: there was room for as much a moment ago.
    return ::write(descriptor, text.data(), text.size());
}

}  // namespace

LogOutput::Kind LogOutput::kind() const noexcept {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) return Kind::kOther;
    if (S_ISREG(status.st_mode)) return Kind::kFile;
    return S_ISFIFO(status.st_mode) ? Kind::kPipe : Kind::kOther;
}

bool LogOutput::has_room(Kind kind) const noexcept {
    if (kind == Kind::kFile) return true;
    pollfd one{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    int ready = 0;
    do ready = ::poll(&one, 1, lost_ == 0 ? kPatience_ms : 0);
    while (ready < 0 && errno == EINTR);
    // Where nobody can read any more, writing would be a signal that ends the process.
    return ready > 0 && (one.revents & POLLOUT) != 0 && (one.revents & (POLLERR | POLLNVAL)) == 0;
}

bool LogOutput::put(std::string_view text) noexcept {
    const Kind to = kind();
    while (!text.empty()) {
        if (!has_room(to)) return false;
        // A pipe that has room at all takes this much.
        const std::string_view part = to == Kind::kFile ? text : text.substr(0, std::min<size_t>(text.size(), PIPE_BUF));
        const ssize_t written = to == Kind::kFile ? ::write(descriptor_, part.data(), part.size()) : write_now(descriptor_, part);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text.remove_prefix(static_cast<size_t>(written));
        broken_ = !text.empty();
    }
    return true;
}

void LogOutput::write(std::string_view line) noexcept {
    if (broken_ && !put("\n")) {
        ++lost_;
        return;
    }
    broken_ = false;
    if (lost_ != 0) {
        char text[96];
        const int length = std::snprintf(text, sizeof text, "mooncake: %zu lines were left out, as nobody read them\n", lost_);
        if (!put({text, static_cast<size_t>(length)})) {
            ++lost_;
            return;
        }
    }
    lost_ = put(line) ? 0 : 1;
}

}  // namespace mooncake
