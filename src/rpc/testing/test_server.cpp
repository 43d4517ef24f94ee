// SPDX-License-Identifier: Apache-2.0
#include "rpc/testing/test_server.h"

#include <cstring>

namespace mooncake::rpc::testing {

TestServer::TestServer(ServerOptions options) {
    if (options.hello.software.empty()) options.hello.software = "test server";
    auto server = Server::create(std::move(options));
    MC_CHECK(server);
    server_ = std::move(*server);
    server_->handle(kEcho, [](std::span<const std::byte> body, std::unique_ptr<Responder> responder) {
        responder->reply(Bytes(body.begin(), body.end()));
    });
    server_->handle(kHold, [this](std::span<const std::byte>, std::unique_ptr<Responder> responder) {
        Lock lock(mutex_);
        held_.push_back(std::move(responder));
    });
    server_->handle(kFail, [this](std::span<const std::byte>, std::unique_ptr<Responder> responder) {
        Lock lock(mutex_);
        responder->fail(error_);
    });
    server_->handle(kSize, [](std::span<const std::byte> body, std::unique_ptr<Responder> responder) {
        uint32_t size = 0;
        std::memcpy(&size, body.data(), std::min(body.size(), sizeof size));
        responder->reply(Bytes(size));
    });
    server_->start();
}

void TestServer::set_error(Error error) {
    Lock lock(mutex_);
    error_ = std::move(error);
}

size_t TestServer::held() {
    Lock lock(mutex_);
    return held_.size();
}

std::unique_ptr<Responder> TestServer::take_held() {
    MC_CHECK(eventually([&] { return held() > 0; }));
    Lock lock(mutex_);
    auto responder = std::move(held_.front());
    held_.pop_front();
    return responder;
}

}  // namespace mooncake::rpc::testing
