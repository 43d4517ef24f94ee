// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

struct redisReader;

namespace mooncake {

struct RedisReply {
    enum class Kind : uint8_t { kNil, kText, kInteger };
    Kind kind = Kind::kNil;
    std::string text;
    int64_t number = 0;
};

std::string encode_redis_command(std::span<const std::string_view> arguments);

/// Turns the bytes a redis server sends into replies, whichever way they are cut into pieces. Not thread-safe.
class RedisDecoder {
public:
    RedisDecoder();

    void feed(std::string_view bytes);
    /// The next reply; nothing while it is incomplete. An error the server sent is kUnavailable when it says that it cannot now,
    /// else kRefused. kCorrupt: these are not the bytes of a redis server, or a list, which none of our commands asks for.
    Result<std::optional<RedisReply>> next();

private:
    struct ReaderDeleter {
        void operator()(redisReader* reader) const noexcept;
    };
    std::unique_ptr<redisReader, ReaderDeleter> reader_;
};

}  // namespace mooncake
