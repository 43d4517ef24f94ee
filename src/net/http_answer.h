// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "net/http_message.h"

namespace mooncake::net {

/// Turns the bytes that follow a request into its answer, whichever way they are cut into pieces. Not thread-safe.
class HttpAnswerParser {
public:
    struct Limits {
        uint64_t body_bytes_max = 0;
        bool head = false;  // the answer to HEAD, which has no body
    };
    explicit HttpAnswerParser(Limits limits);
    ~HttpAnswerParser();

    /// True once the answer is complete; interim (1xx) answers are passed over. kCorrupt, kNoSpace: give up the connection.
    Result<bool> feed(std::string_view bytes);
    /// The stream ended; fails (kUnavailable) unless that is how this answer ends.
    Result<> finish();

    /// Whether any byte came.
    bool began() const noexcept { return bytes_ > 0; }
    /// After completion: the connection can carry another request.
    bool reusable() const;
    HttpResponse take();

private:
    struct Parser;

    const Limits limits_;
    uint64_t bytes_ = 0;  // of all that came
    std::unique_ptr<Parser> parser_;
};

}  // namespace mooncake::net
