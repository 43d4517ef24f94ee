// SPDX-License-Identifier: Apache-2.0
#include "net/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/fork.h"
#include "base/thread.h"
#include "base/thread_annotations.h"

namespace mooncake::net {

namespace {

constexpr size_t kThreadsMax = 8;
constexpr size_t kQueueMax = 4096;

struct Question {
    std::string host;
    uint16_t port = 0;
    Resolved done;
};

class Resolver {
public:
    explicit Resolver(uint32_t generation) : fork_generation(generation) {}

    bool ask(Question question) {
        Lock lock(mutex_);
        if (queue_.size() >= kQueueMax) return false;
        queue_.push_back(std::move(question));
        if (idle_ < queue_.size() && threads_.size() < kThreadsMax) {
            try {
                threads_.push_back(start_thread("mc-resolve", [this] { run(); }));
            } catch (const std::system_error&) {
                if (threads_.empty()) {
                    queue_.pop_back();
                    return false;
                }
            }
        }
        wake_.notify_one();
        return true;
    }

    const uint32_t fork_generation;

private:
    [[noreturn]] void run() {
        for (;;) {
            Question question = next();
            question.done(resolve(question.host, question.port));
        }
    }

    Question next() {
        Lock lock(mutex_);
        ++idle_;
        while (queue_.empty()) wake_.wait(mutex_);
        --idle_;
        Question question = std::move(queue_.front());
        queue_.pop_front();
        return question;
    }

    Mutex mutex_;
    std::condition_variable_any wake_;
    std::deque<Question> queue_ MC_GUARDED_BY(mutex_);
    size_t idle_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<std::jthread> threads_ MC_GUARDED_BY(mutex_);
};

Mutex instance_mutex;
Resolver* instance MC_GUARDED_BY(instance_mutex) = nullptr;

/// Never deleted: a thread may be deep inside the system's resolver when the process ends.
Resolver& resolver() {
    Lock lock(instance_mutex);
    if (instance == nullptr || instance->fork_generation != fork_generation()) instance = new Resolver(fork_generation());
    return *instance;
}

}  // namespace

bool is_numeric_host(const std::string& host) {
    in_addr ignored;
    return is_ipv6_literal(host) || ::inet_pton(AF_INET, host.c_str(), &ignored) == 1;
}

void resolve_in_background(const std::string& host, uint16_t port, const Resolved& done) {
    if (!resolver().ask({.host = host, .port = port, .done = done}))
        done(fail_errno(Code::kUnavailable, EAI_AGAIN, "cannot resolve '{}': too many names are being asked for", host));
}

Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port, Deadline deadline) {
    if (is_numeric_host(host)) return resolve(host, port);
    struct Answer {
        Mutex mutex;
        std::condition_variable_any arrived;
        std::optional<Result<std::vector<SocketAddress>>> addresses MC_GUARDED_BY(mutex);
    };
    const auto answer = std::make_shared<Answer>();  // the resolver may come back long after we have gone
    resolve_in_background(host, port, [answer](Result<std::vector<SocketAddress>> addresses) {
        Lock lock(answer->mutex);
        answer->addresses = std::move(addresses);
        answer->arrived.notify_all();
    });
    Lock lock(answer->mutex);
    while (!answer->addresses) {
        if (deadline.passed()) return fail_errno(Code::kTimedOut, EAI_AGAIN, "cannot resolve '{}' in time", host);
        if (deadline.is_never()) {
            answer->arrived.wait(answer->mutex);
        } else {
            answer->arrived.wait_until(answer->mutex, deadline.at());
        }
    }
    return std::move(*answer->addresses);
}

}  // namespace mooncake::net
