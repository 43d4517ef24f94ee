// SPDX-License-Identifier: Apache-2.0
#include "store/node/disk_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/format.h"
#include "base/incarnation.h"
#include "base/unique_fd.h"

namespace mooncake::store {

namespace {

constexpr const char* kName = "segment";
constexpr const char* kNewName = "segment.new";
constexpr std::string_view kHead = "mooncake disk segment ";
constexpr size_t kDigits = 16;

std::string to_text(const SegmentId& id) { return format_text("{}{:016x}{:016x}\n", kHead, id.high, id.low); }

Result<SegmentId> from_text(std::string_view text) {
    SegmentId id;
    const auto number = [&](size_t at, uint64_t& value) {
        const char* const begin = text.data() + kHead.size() + at;
        const auto [stop, status] = std::from_chars(begin, begin + kDigits, value, 16);
        return status == std::errc() && stop == begin + kDigits;
    };
    if (text.size() != kHead.size() + 2 * kDigits + 1 || !text.starts_with(kHead) || text.back() != '\n' || !number(0, id.high) ||
        !number(kDigits, id.low) || !id)
        return fail(Code::kCorrupt, "the file '{}' does not say which segment this is", kName);
    return id;
}

Result<> write_new(int folder, const std::string& text) {
    UniqueFd file(::openat(folder, kNewName, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return fail_errno(Code::kUnavailable, errno, "cannot make the file '{}'", kNewName);
    const bool written = ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(file.get()) == 0;
    if (!written || ::renameat(folder, kNewName, folder, kName) != 0 || ::fsync(folder) != 0)
        return fail_errno(Code::kUnavailable, errno, "cannot write the file '{}'", kName);
    return {};
}

}  // namespace

Result<SegmentId> disk_identity(const std::string& directory) {
    const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!folder) return fail_errno(Code::kUnavailable, errno, "cannot open {}", directory);
    const UniqueFd file(::openat(folder.get(), kName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file) {
        char text[128];
        const ssize_t bytes = ::read(file.get(), text, sizeof text);
        if (bytes < 0) return fail_errno(Code::kUnavailable, errno, "cannot read {}/{}", directory, kName);
        return from_text({text, static_cast<size_t>(bytes)});
    }
    if (errno != ENOENT) return fail_errno(Code::kUnavailable, errno, "cannot open {}/{}", directory, kName);
    const SegmentId id{.high = random_u64(), .low = random_u64() | 1};
    MC_RETURN_IF_ERROR(write_new(folder.get(), to_text(id)));
    return id;
}

}  // namespace mooncake::store
