// SPDX-License-Identifier: Apache-2.0
// What every directory must do: the one in memory and those with a real server behind them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "base/thread.h"
#include "coordination/directory.h"
#include "coordination/testing/directory_servers.h"

namespace mooncake {
namespace {

using testing::DirectoryServer;
using testing::wait_usable;

struct Kind {
    const char* name;
    std::function<std::unique_ptr<DirectoryServer>()> make_server;  // null: the directory needs none
};

class DirectoryConformance : public ::testing::TestWithParam<Kind> {
protected:
    void SetUp() override {
        if (!GetParam().make_server) {
            connection_ = std::string("memory://") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
            return;
        }
        server_ = GetParam().make_server();
        server_->start();
        connection_ = server_->connection();
    }
    std::unique_ptr<Directory> open() const {
        auto directory = open_directory(connection_, EngineOptions());
        EXPECT_TRUE(directory) << directory.error().to_string();
        return std::move(*directory);
    }
    static Deadline soon() { return Deadline::after(30s); }  // only a guard against hangs

    std::unique_ptr<DirectoryServer> server_;
    std::string connection_;
};

/// The same, for those that have a server which can fail.
class DirectoryServerConformance : public DirectoryConformance {};

std::string all_bytes() {
    std::string bytes;
    for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
    return bytes;
}

TEST_P(DirectoryConformance, KeepsReplacesAndRemoves) {
    const auto directory = open();
    wait_usable(*directory);
    EXPECT_EQ(directory->get("k", soon()).error().code(), Code::kNotFound);
    ASSERT_TRUE(directory->put("k", "one", soon()));
    EXPECT_EQ(directory->get("k", soon()).value(), "one");
    ASSERT_TRUE(directory->put("k", "two", soon()));
    EXPECT_EQ(directory->get("k", soon()).value(), "two");
    EXPECT_TRUE(directory->remove("k", soon()));
    EXPECT_EQ(directory->get("k", soon()).error().code(), Code::kNotFound);
    EXPECT_TRUE(directory->remove("k", soon()));  // removing what is not there is fine
}

TEST_P(DirectoryConformance, ShowsTheSameToAllClients) {
    const auto one = open(), other = open();
    wait_usable(*one);
    ASSERT_TRUE(one->put("k", "from one", soon()));
    EXPECT_EQ(other->get("k", soon()).value(), "from one");
    ASSERT_TRUE(other->remove("k", soon()));
    EXPECT_EQ(one->get("k", soon()).error().code(), Code::kNotFound);
}

TEST_P(DirectoryConformance, CarriesAnyValue) {
    const auto directory = open();
    wait_usable(*directory);
    std::string large;
    while (large.size() < 1 << 20) large += all_bytes();
    const std::string json = "{\"name\": \"a\", \"list\": [1, null]}", utf8 = "gr\xc3\xbc\xc3\x9f \xe9\x8d\xb5";
    for (const std::string& value : {std::string(), json, utf8, all_bytes(), large}) {
        ASSERT_TRUE(directory->put("value", value, soon()));
        const auto got = directory->get("value", soon());
        ASSERT_TRUE(got) << got.error().to_string();
        EXPECT_TRUE(*got == value) << value.size() << " bytes came back as " << got->size();
    }
}

TEST_P(DirectoryConformance, CarriesAnyKey) {
    const auto directory = open();
    wait_usable(*directory);
    const std::vector<std::string> keys = {"mooncake/ram/10.0.0.1:12345",
                                           "with blank",
                                           "100%",
                                           "%41",
                                           "A",
                                           "a+b",
                                           "a&key=b",
                                           "?#=;",
                                           "\"quoted\" '\\'",
                                           "[::1]:80",
                                           "\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87/\xe9\x8d\xb5",
                                           std::string(1000, 'k')};
    for (const std::string& key : keys) ASSERT_TRUE(directory->put(key, "value of " + key, soon())) << key;
    for (const std::string& key : keys) {
        const auto got = directory->get(key, soon());
        ASSERT_TRUE(got) << got.error().to_string();
        EXPECT_EQ(*got, "value of " + key);
    }
    for (const std::string& key : keys) ASSERT_TRUE(directory->remove(key, soon())) << key;
    for (const std::string& key : keys) EXPECT_FALSE(directory->get(key, soon())) << key;
}

TEST_P(DirectoryConformance, ReplacesTheAddressEntryOfACrashedProcess) {
    const auto directory = open();
    wait_usable(*directory);
    const std::string key = rpc_meta_key("", "node1");
    for (const char* value : {"{\"rpc_port\": 1}", "{\"rpc_port\": 1}", "{\"rpc_port\": 2}"}) {
        auto put = directory->put(key, value, soon());
        if (!put && put.error().code() == Code::kAlreadyExists) {  // http servers leave it to us to know that it crashed
            ASSERT_TRUE(directory->remove(key, soon()));
            put = directory->put(key, value, soon());
        }
        ASSERT_TRUE(put) << put.error().to_string();
        EXPECT_EQ(directory->get(key, soon()).value(), value);
    }
}

TEST_P(DirectoryConformance, ServesEightThreadsAtOnce) {
    const auto directory = open();
    wait_usable(*directory);
    constexpr int kThreads = 8, kRounds = 20;
    std::atomic<int> good{0};
    {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < kThreads; ++thread)
            threads.push_back(start_thread("caller", [&, thread] {
                for (int round = 0; round < kRounds; ++round) {
                    const std::string key = format_text("thread/{}/{}", thread, round), value = format_text("{} of {}", round, thread);
                    const bool kept = directory->put(key, value, soon()) && directory->put("shared", value, soon());
                    const auto got = directory->get(key, soon());
                    if (kept && got && *got == value && directory->get("shared", soon()) && directory->remove(key, soon())) ++good;
                }
            }));
    }
    EXPECT_EQ(good, kThreads * kRounds);
}

TEST_P(DirectoryServerConformance, UsesAServerThatComesUpLater) {
    server_->kill();
    const auto directory = open();
    const auto get = directory->get("k", soon());
    ASSERT_FALSE(get);
    EXPECT_EQ(get.error().code(), Code::kUnavailable) << get.error().to_string();
    EXPECT_THAT(get.error().message(), ::testing::HasSubstr(server_->address()));
    EXPECT_EQ(get.error().system_errno(), ECONNREFUSED);
    EXPECT_FALSE(directory->put("k", "v", soon()));
    EXPECT_FALSE(directory->remove("k", soon()));
    server_->start();
    wait_usable(*directory);
    ASSERT_TRUE(directory->put("k", "v", soon()));
    EXPECT_EQ(directory->get("k", soon()).value(), "v");
}

TEST_P(DirectoryServerConformance, UsesARestartedServerAtOnce) {
    const auto directory = open();
    for (int life = 0; life < 3; ++life) {
        wait_usable(*directory);
        ASSERT_TRUE(directory->put("k", "v", soon()));
        server_->kill();
        server_->start();
        if (GetParam().name != std::string("etcd")) {  // which first elects a leader
            const auto get = directory->get("k", soon());
            ASSERT_FALSE(get);
            EXPECT_EQ(get.error().code(), Code::kNotFound) << get.error().to_string();
        }
    }
}

TEST_P(DirectoryServerConformance, EndsAtTheDeadlineWhenTheServerHangs) {
    const auto directory = open();
    wait_usable(*directory);
    ASSERT_TRUE(directory->put("k", "v", soon()));
    server_->pause();
    const Time begin = Clock::now();
    std::atomic<int> failed{0};
    {
        std::vector<std::jthread> threads;  // nobody may wait for the deadlines of the others
        for (int thread = 0; thread < 8; ++thread)
            threads.push_back(start_thread("caller", [&, thread] {
                const Deadline deadline = Deadline::after(1s);
                const auto answer = thread % 2 == 0 ? directory->put("k", "w", deadline) : directory->remove("other", deadline);
                if (!answer && answer.error().code() == Code::kTimedOut) ++failed;
            }));
    }
    EXPECT_EQ(failed, 8);
    EXPECT_LT(Clock::now() - begin, 6s);
    server_->resume();
    const auto get = directory->get("k", soon());
    ASSERT_TRUE(get) << get.error().to_string();
}

std::string name_of(const ::testing::TestParamInfo<Kind>& info) { return info.param.name; }

const Kind kMemory{"memory", nullptr};
const Kind kHttp{"http", [] { return testing::make_metadata_server(); }};
const Kind kHttpPython{"http_python", [] { return testing::make_python_metadata_server(); }};
const Kind kRedis{"redis", [] { return testing::make_redis_server(); }};
const Kind kEtcd{"etcd", [] { return testing::make_etcd_server(); }};

INSTANTIATE_TEST_SUITE_P(All, DirectoryConformance, ::testing::Values(kMemory, kHttp, kHttpPython, kRedis, kEtcd), name_of);
INSTANTIATE_TEST_SUITE_P(All, DirectoryServerConformance, ::testing::Values(kHttp, kHttpPython, kRedis, kEtcd), name_of);

}  // namespace
}  // namespace mooncake
