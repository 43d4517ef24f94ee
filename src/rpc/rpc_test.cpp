// SPDX-License-Identifier: Apache-2.0
#include "rpc/rpc.h"

#include <gtest/gtest.h>

namespace mooncake::rpc {
namespace {

TEST(Rpc, EchoComesBack) {
    auto server = Server::create({});
    ASSERT_TRUE(server);
    (*server)->handle(Method::kProbe, [](std::span<const std::byte> body, std::unique_ptr<Responder> responder) {
        responder->reply(Bytes(body.begin(), body.end()));
    });
    (*server)->start();
    const auto client = Client::create({});
    const std::string address = format_text("127.0.0.1:{}", (*server)->port());
    for (size_t size = 0; size < 1000; ++size) {
        const auto reply = client->call(address, Method::kProbe, Bytes(size), Deadline::after(10s));
        ASSERT_TRUE(reply) << reply.error().to_string();
        EXPECT_EQ(reply->size(), size);
    }
}

}  // namespace
}  // namespace mooncake::rpc
