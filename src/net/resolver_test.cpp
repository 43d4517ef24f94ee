// SPDX-License-Identifier: Apache-2.0
#include "net/resolver.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "net/socket.h"

namespace mooncake::net {
namespace {

TEST(BoundedResolve, TurnsLiteralAddressesIntoNumbersAtOnce) {
    const Deadline past = Deadline::after(0s);
    for (const char* host : {"127.0.0.1", "::1"}) {
        const auto addresses = resolve(host, 80, past);
        ASSERT_TRUE(addresses) << addresses.error().to_string();
        EXPECT_EQ(addresses->front().to_string(), join_host_port(host, 80));
    }
}

TEST(BoundedResolve, TellsWhyANameMeansNothing) {
    const auto addresses = resolve("no such host", 80, Deadline::after(20s));
    ASSERT_FALSE(addresses);
    EXPECT_EQ(addresses.error().code(), Code::kUnavailable);
    EXPECT_EQ(addresses.error().system_errno(), EAI_NONAME) << addresses.error().to_string();
}

TEST(BoundedResolve, FindsNamesTheMachineKnowsByItself) {
    const auto addresses = resolve("localhost", 80, Deadline::after(20s));
    ASSERT_TRUE(addresses) << addresses.error().to_string();
    EXPECT_FALSE(addresses->empty());
    EXPECT_TRUE(resolve("localhost", 80, Deadline::never()));
}

/// Run by the next test, in a network of its own whose only name server never answers.
TEST(BoundedResolve, DISABLED_InASilentNetwork) {
    const int server = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(53);
    ASSERT_EQ(::bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);

    const Time begin = Clock::now();
    const auto addresses = resolve("host.test", 80, Deadline::after(200ms));
    ASSERT_FALSE(addresses);
    EXPECT_EQ(addresses.error().code(), Code::kTimedOut) << addresses.error().to_string();
    const auto connection = connect_to("host.test", 80, Deadline::after(200ms));
    ASSERT_FALSE(connection);
    EXPECT_EQ(connection.error().code(), Code::kTimedOut) << connection.error().to_string();
    EXPECT_LT(Clock::now() - begin, 4s);                          // the resolver itself would wait for 10 s
    EXPECT_TRUE(resolve("localhost", 80, Deadline::after(20s)));  // others are not held up
    ::close(server);
}

TEST(BoundedResolve, EndsAtTheDeadlineWhenTheNameServerIsSilent) {
    if (std::system("unshare -rmn true 2>/dev/null") != 0) GTEST_SKIP() << "this system allows no namespaces";
    char file[] = "/tmp/resolv-XXXXXX";
    const int fd = ::mkstemp(file);
    ASSERT_GE(fd, 0);
    ::close(fd);
    std::ofstream(file) << "nameserver 127.0.0.1\n";
    char self[4096] = {};
    ASSERT_GT(::readlink("/proc/self/exe", self, sizeof self - 1), 0);
    const std::string command = format_text(
        "unshare -rmn sh -c 'ip link set lo up && mount --bind {} /etc/resolv.conf && exec {} --gtest_also_run_disabled_tests "
        "--gtest_filter=BoundedResolve.DISABLED_InASilentNetwork' >{}.log 2>&1",
        file, self, file);
    const int status = std::system(command.c_str());
    std::ostringstream log;
    log << std::ifstream(std::string(file) + ".log").rdbuf();
    ::unlink(file);
    ::unlink((std::string(file) + ".log").c_str());
    EXPECT_EQ(status, 0) << log.str();
    EXPECT_NE(log.str().find("1 test"), std::string::npos) << log.str();
}

}  // namespace
}  // namespace mooncake::net
