// SPDX-License-Identifier: Apache-2.0
#include "engine/codes.h"

namespace mooncake {

int status_code(Code code) noexcept {
    switch (code) {
        case Code::kOk: return 0;
        case Code::kInvalidArgument: return 1;
        case Code::kNoSpace: return 2;  // more requests than the batch has room for
        case Code::kNotRegistered: return 3;
        case Code::kBusy: return 4;
        case Code::kOverlap: return 7;
        case Code::kNotSupported: return 8;     // no transport can do it
        case Code::kUnavailable: return 102;    // socket
        case Code::kCorrupt: return 103;        // a message that makes no sense
        case Code::kRefused: return 104;        // handshake rejected
        case Code::kNotFound:                   // unknown to the directory
        case Code::kAlreadyExists: return 200;  // taken in the directory
        case Code::kStale: return 201;          // the end point is another one now
        case Code::kCancelled:
        case Code::kInternal: return 202;
        case Code::kTimedOut: return 301;  // clock
    }
    return 202;
}

int public_code(Code code) noexcept {
    if (code == Code::kNotSupported) return -303;  // the one that differs by more than its sign
    return -status_code(code);
}

int status_code(const Error& error) noexcept {
    constexpr int kUnresolved = 101;
    return error.system_errno() < 0 ? kUnresolved : status_code(error.code());
}

int public_code(const Error& error) noexcept { return error.system_errno() < 0 ? -status_code(error) : public_code(error.code()); }

}  // namespace mooncake
