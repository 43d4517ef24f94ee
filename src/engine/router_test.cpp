// SPDX-License-Identifier: Apache-2.0
#include "engine/router.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/testing/fake_world.h"

namespace mooncake {
namespace {

TEST(Router, LinksThatAreLeftSayFarewellBeforeTheFirstIsWaitedFor) {
    testing::FakeWorld world;
    std::vector<std::shared_ptr<Link>> links;
    for (int i = 0; i < 3; ++i) {
        auto found = world.fetch("peer-" + std::to_string(i), 0, Deadline::never());
        links.push_back(world.router->connect(found->descriptor, found->rpc_address, {}, Deadline::after(60s), nullptr).value());
    }
    world.service.stop();  // nobody destroys them by the way
    links.clear();
    std::vector<int> closed_before;
    world.script.on_peer_end = [&] { closed_before.push_back(world.script.closes); };
    world.router->shut_down(Deadline::after(60s));
    ASSERT_EQ(closed_before.size(), 3u);
    EXPECT_GE(closed_before.front(), 3);
}

}  // namespace
}  // namespace mooncake
