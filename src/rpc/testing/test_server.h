// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <future>
#include <memory>
#include <string>

#include "base/thread_annotations.h"
#include "rpc/rpc.h"
#include "rpc/testing/raw_peer.h"

namespace mooncake::rpc::testing {

constexpr Method kEcho = Method::kProbe;
constexpr auto kHold = static_cast<Method>(1000);  // kept unanswered until the test answers
constexpr auto kFail = static_cast<Method>(1001);  // fails with what the test set
constexpr auto kUnknown = static_cast<Method>(1002);
constexpr auto kSize = static_cast<Method>(1003);  // replies with as many zeros as the request, a u32, says

inline Deadline soon() { return Deadline::after(kPatience); }

/// A callback and the future of what it gets.
struct Caught {
    std::shared_ptr<std::promise<Result<Bytes>>> promise = std::make_shared<std::promise<Result<Bytes>>>();
    std::future<Result<Bytes>> future = promise->get_future();
    Callback callback() const {
        return [promise = promise](Result<Bytes> result) { promise->set_value(std::move(result)); };
    }
    Result<Bytes> get() {
        MC_CHECK(future.wait_for(kPatience) == std::future_status::ready);
        return future.get();
    }
};

/// A Server with methods for tests. Held requests stay with it, past its stop().
class TestServer {
public:
    explicit TestServer(ServerOptions options = {});
    uint16_t port() const noexcept { return server_->port(); }
    std::string address() const { return format_text("127.0.0.1:{}", port()); }
    std::string ipv6_address() const { return format_text("[::1]:{}", port()); }
    void stop() { server_->stop(); }
    void set_error(Error error);

    /// How many wait; and the one that came first, which must exist within kPatience.
    size_t held();
    std::unique_ptr<Responder> take_held();

private:
    Mutex mutex_;
    std::deque<std::unique_ptr<Responder>> held_ MC_GUARDED_BY(mutex_);
    Error error_ MC_GUARDED_BY(mutex_);
    std::unique_ptr<Server> server_;
};

}  // namespace mooncake::rpc::testing
