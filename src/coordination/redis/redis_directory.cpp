// SPDX-License-Identifier: Apache-2.0
#include "coordination/redis/redis_directory.h"

#include <condition_variable>
#include <optional>

#include "base/thread_annotations.h"
#include "coordination/redis/redis_connection.h"

namespace mooncake {

namespace {

/// Lets one caller at a time use the connection; waiting for one's turn ends at the deadline too.
class Turns {
public:
    /// One's turn, which ends with it.
    class Turn {
    public:
        explicit Turn(Turns& turns) noexcept : turns_(turns) {}
        ~Turn() { turns_.give_back(); }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

    private:
        Turns& turns_;
    };

    /// True: whoever asked makes a Turn.
    bool take(Deadline deadline) {
        Lock lock(mutex_);
        while (taken_) {
            if (deadline.passed()) return false;
            if (deadline.is_never()) {
                free_.wait(mutex_);
            } else {
                free_.wait_until(mutex_, deadline.at());
            }
        }
        taken_ = true;
        return true;
    }

private:
    void give_back() {
        Lock lock(mutex_);
        taken_ = false;
        free_.notify_one();
    }

    Mutex mutex_;
    std::condition_variable_any free_;
    bool taken_ MC_GUARDED_BY(mutex_) = false;
};

class RedisDirectory final : public Directory {
public:
    RedisDirectory(RedisServer server, Duration connect_timeout) : server_(std::move(server)), connect_timeout_(connect_timeout) {}

    Result<std::string> get(const std::string& key, Deadline deadline) override {
        MC_ASSIGN_OR_RETURN(RedisReply reply, call(std::array<std::string_view, 2>{"GET", key}, deadline));
        if (reply.kind == RedisReply::Kind::kNil) return fail(Code::kNotFound, "no key '{}' at redis {}", key, server_.to_string());
        return std::move(reply.text);
    }
    Result<> put(const std::string& key, const std::string& value, Deadline deadline) override {
        MC_RETURN_IF_ERROR(call(std::array<std::string_view, 3>{"SET", key, value}, deadline));
        return {};
    }
    Result<> remove(const std::string& key, Deadline deadline) override {
        MC_RETURN_IF_ERROR(call(std::array<std::string_view, 2>{"DEL", key}, deadline));
        return {};
    }

private:
    Result<RedisReply> call(std::span<const std::string_view> arguments, Deadline deadline) {
        const auto context = [&](Error error) {
            return Unexpected(
                std::move(error).with_context(format_text("redis {}: {} '{}'", server_.to_string(), arguments[0], arguments[1])));
        };
        if (!turns_.take(deadline)) return context(error(Code::kTimedOut, "earlier calls still wait for the server"));
        auto reply = [&] {
            const Turns::Turn turn(turns_);
            return call_in_turn(arguments, deadline);
        }();
        if (!reply) return context(std::move(reply).error());
        return reply;
    }

    Result<RedisReply> call_in_turn(std::span<const std::string_view> arguments, Deadline deadline) {
        for (;;) {
            const bool reused = connection_.has_value();
            if (!reused) {
                MC_ASSIGN_OR_RETURN(RedisConnection fresh,
                                    RedisConnection::open(server_, deadline.earlier(Deadline::after(connect_timeout_))));
                connection_.emplace(std::move(fresh));
            }
            // Out of sight until it has answered: whatever breaks the call off, nobody takes that answer for another's.
            RedisConnection connection = std::move(*connection_);
            connection_.reset();
            auto reply = connection.call(arguments, deadline);
            if (reply || reply.error().code() == Code::kRefused) {
                connection_.emplace(std::move(connection));
                return reply;
            }
            // A connection may have died since its last use: the server restarted. All our commands may run twice.
            if (!reused || reply.error().code() != Code::kUnavailable) return reply;
        }
    }

    const RedisServer server_;
    const Duration connect_timeout_;
    Turns turns_;
    std::optional<RedisConnection> connection_;  // used by whoever has the turn
};

}  // namespace

Result<std::unique_ptr<Directory>> make_redis_directory(const std::string& address, const EngineOptions& options) {
    RedisServer defaults;
    defaults.username = options.redis_username;
    defaults.password = options.redis_password;
    defaults.database = options.redis_database;
    MC_ASSIGN_OR_RETURN(RedisServer server, RedisServer::parse(address, std::move(defaults)));
    return std::make_unique<RedisDirectory>(std::move(server), options.connect_timeout);
}

}  // namespace mooncake
