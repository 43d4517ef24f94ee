// SPDX-License-Identifier: Apache-2.0
#include "coordination/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mooncake {
namespace {

using ::testing::HasSubstr;

TEST(OpenDirectory, ConnectsOnlyOnFirstUse) {
    for (const char* connection :
         {"http://192.0.2.1/metadata", "http://192.0.2.1:8080/metadata?a=b", "HTTP://host", "etcd://192.0.2.1:2379,192.0.2.2:2379",
          "etcd://192.0.2.1", "etcd://http://192.0.2.1:2379/", "192.0.2.1:2379", "[2001:db8::1]:2379", "redis://192.0.2.1:6379",
          "redis://user:secret@192.0.2.1/3", "memory://x", "memory://"}) {
        const auto directory = open_directory(connection, EngineOptions());
        EXPECT_TRUE(directory) << connection << ": " << directory.error().to_string();
    }
}

TEST(OpenDirectory, RefusesWhatItDoesNotKnow) {
    for (const char* connection : {"", "P2PHANDSHAKE", "host", "ftp://host:1", "://host:1", "zookeeper://host:2181", "http://",
                                   "http://user@host/", "etcd://", "etcd://,", "etcd://a:b", "etcd://host:1/path", "etcd://ho st:1",
                                   "redis://", "redis://host:x", "redis://host/x", "redis://host/-1", "host:port"}) {
        const auto directory = open_directory(connection, EngineOptions());
        ASSERT_FALSE(directory) << connection;
        EXPECT_EQ(directory.error().code(), Code::kInvalidArgument) << directory.error().to_string();
    }
    EXPECT_THAT(open_directory("zookeeper://host:2181", EngineOptions()).error().message(), HasSubstr("unknown scheme 'zookeeper'"));
}

TEST(OpenDirectory, SaysThatHttpsIsNotSupported) {
    for (const char* connection : {"https://host/metadata", "etcd://https://host:2379"}) {
        const auto directory = open_directory(connection, EngineOptions());
        ASSERT_FALSE(directory);
        EXPECT_EQ(directory.error().code(), Code::kNotSupported);
        EXPECT_THAT(directory.error().message(), HasSubstr("https"));
    }
}

TEST(OpenDirectory, KeepsOneMapInMemoryForEachName) {
    const auto a = open_directory("memory://a", {}).value(), also_a = open_directory("memory://a", {}).value(),
               b = open_directory("memory://b", {}).value();
    const Deadline deadline = Deadline::never();
    ASSERT_TRUE(a->put("k", "v", deadline));
    EXPECT_EQ(also_a->get("k", deadline).value(), "v");
    EXPECT_FALSE(b->get("k", deadline));
}

TEST(DirectoryKeys, FollowThePublicLayout) {
    EXPECT_EQ(descriptor_key("", "10.0.0.1:12345"), "mooncake/ram/10.0.0.1:12345");
    EXPECT_EQ(descriptor_key("c1", "node"), "mooncake/c1/ram/node");
    EXPECT_EQ(descriptor_key("", "nvmeof/vol1"), "mooncake/nvmeof/vol1");
    EXPECT_EQ(descriptor_key("c1", "nvmeof/vol1"), "mooncake/c1/nvmeof/vol1");
    EXPECT_EQ(rpc_meta_key("", "node"), "mooncake/rpc_meta/node");
    EXPECT_EQ(rpc_meta_key("c1", "node"), "mooncake/c1/rpc_meta/node");
}

}  // namespace
}  // namespace mooncake
