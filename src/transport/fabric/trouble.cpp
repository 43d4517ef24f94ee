// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/trouble.h"

#include <cerrno>
#include <system_error>
#include <utility>

namespace mooncake::fabric {

namespace {

struct EfaStatus {
    int number;
    Trouble trouble;
    std::string_view meaning;
};

// What EFA devices and their provider report beside the errno.
constexpr EfaStatus kEfaStatuses[] = {
    {5, Trouble::kMisuse, "bad local key or address"},
    {7, Trouble::kStale, "bad remote key or address"},
    {8, Trouble::kPath, "aborted by the peer"},
    {9, Trouble::kPath, "the peer's queue pair is gone"},
    {10, Trouble::kPath, "the peer has no receive buffer"},
    {13, Trouble::kPath, "the peer answered before, but no longer"},
    {14, Trouble::kPath, "the peer does not know our address"},
    {15, Trouble::kPath, "the peer cannot be reached"},
    {4124, Trouble::kPath, "the peer does not answer"},
    {4126, Trouble::kPath, "the peer does not answer"},
};

const EfaStatus* find_status(const ProviderProfile& profile, int provider_error) noexcept {
    if (!profile.name.starts_with("efa")) return nullptr;
    for (const EfaStatus& status : kEfaStatuses)
        if (status.number == provider_error) return &status;
    return nullptr;
}

}  // namespace

Trouble trouble_of(const ProviderProfile& profile, int error, int provider_error) noexcept {
    if (error == 0) return Trouble::kNone;
    if (const EfaStatus* const status = find_status(profile, provider_error)) return status->trouble;
    switch (error) {
        case EAGAIN: return Trouble::kAgain;
        case EKEYREJECTED:
        case kNoKey: return Trouble::kStale;
        case EINVAL:
        case EMSGSIZE:
        case EACCES:
        case EFAULT:
        case EOPNOTSUPP:
        case ENOSYS: return Trouble::kMisuse;
        // ECANCELED, ENOTCONN, ECONNRESET, ETIMEDOUT, EHOSTUNREACH, EIO, EREMOTEIO, kNoReceive, and whatever is not known: a
        // path is the one thing that can be tried again without harm, and attempts are counted.
        default: return Trouble::kPath;
    }
}

Code code_of(Trouble trouble) noexcept {
    switch (trouble) {
        case Trouble::kNone: return Code::kOk;
        case Trouble::kPath:
        case Trouble::kAgain: return Code::kUnavailable;
        case Trouble::kStale: return Code::kNotRegistered;
        case Trouble::kMisuse: return Code::kInvalidArgument;
    }
    return Code::kInternal;
}

std::string describe_trouble(const ProviderProfile& profile, int error, int provider_error) {
    std::string text = error == kNoKey       ? "no such key"
                       : error == kNoReceive ? "no receive buffer"
                       : error < 256         ? std::generic_category().message(error)
                                             : "libfabric error";
    text += format_text(" ({})", error);
    if (const EfaStatus* const status = find_status(profile, provider_error))
        text += format_text(", provider {}: {}", provider_error, status->meaning);
    else if (provider_error != 0 && provider_error != error) text += format_text(", provider {}", provider_error);
    return text;
}

}  // namespace mooncake::fabric
