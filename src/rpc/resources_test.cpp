// SPDX-License-Identifier: Apache-2.0
// Without descriptors nothing works, and everything does again once there are some.
#include <gtest/gtest.h>

#include "base/testing/full_descriptors.h"
#include "rpc/io_loop.h"
#include "rpc/testing/test_server.h"

namespace mooncake::rpc {
namespace {

using mooncake::testing::FullDescriptors;
using testing::kEcho;
using testing::soon;
using testing::TestServer;

TEST(Resources, ALoopWithoutDescriptorsIsAnErrorOfItsStart) {
    for (const size_t free : {0, 1}) {
        const FullDescriptors full(free);
        const auto loop = IoLoop::start("loop");
        ASSERT_FALSE(loop) << free;
        EXPECT_EQ(loop.error().code(), Code::kUnavailable);
        EXPECT_EQ(loop.error().system_errno(), EMFILE);
    }
    EXPECT_TRUE(IoLoop::start("loop"));
}

TEST(Resources, AServerWithoutDescriptorsIsAnErrorOfItsCreation) {
    for (size_t free = 0; free < 4; ++free) {
        const FullDescriptors full(free);
        const auto server = Server::create({.threads = 2});
        EXPECT_TRUE(server || server.error().code() == Code::kUnavailable) << server.error().to_string();
    }
    const FullDescriptors full;
    EXPECT_FALSE(Server::create({}));
}

TEST(Resources, AClientMadeWithoutDescriptorsWorksOnceThereAreSome) {
    TestServer server;
    std::unique_ptr<Client> client;
    {
        const FullDescriptors full;
        client = Client::create({});
        const auto called = client->call(server.address(), kEcho, {}, soon());
        ASSERT_FALSE(called);
        EXPECT_EQ(called.error().code(), Code::kUnavailable);
        EXPECT_EQ(called.error().system_errno(), EMFILE);
        testing::Caught caught;
        client->call_async(server.address(), kEcho, {}, soon(), caught.callback());
        EXPECT_FALSE(caught.get());
    }
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
}

TEST(Resources, AFirstCallWithoutDescriptorsFailsAndLaterOnesDoNot) {
    TestServer server;
    const auto client = Client::create({});
    for (const size_t free : {0, 1, 2}) {
        const FullDescriptors full(free);
        const auto called = client->call(server.address(), kEcho, {}, Deadline::after(500ms));
        if (free == 0) {
            ASSERT_FALSE(called);
            EXPECT_EQ(called.error().code(), Code::kUnavailable);
        }
    }
    // What failed is remembered for a moment, so that a dead server costs little.
    const Deadline patience = soon();
    while (!client->call(server.address(), kEcho, {}, patience)) ASSERT_FALSE(patience.passed());
}

}  // namespace
}  // namespace mooncake::rpc
