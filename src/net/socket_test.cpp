// SPDX-License-Identifier: Apache-2.0
#include "net/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

namespace mooncake::net {
namespace {

constexpr Duration kHang = 60s;  // only a bound against hangs

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

int int_option(int fd, int level, int option) {
    int value = -1;
    socklen_t size = sizeof value;
    ::getsockopt(fd, level, option, &value, &size);
    return value;
}

struct Pair {
    Socket client, server;
};

Pair connected_pair() {
    Listener listener = listen_on(0, 8).value();
    Socket client = connect_to("127.0.0.1", listener.port, Deadline::after(kHang)).value();
    EXPECT_TRUE(wait_ready(listener.socket.fd(), POLLIN, Deadline::after(kHang)));
    return {.client = std::move(client), .server = Socket(::accept4(listener.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))};
}

TEST(Listen, TakesOneAddressOnly) {
    const auto listener = listen_on("127.0.0.1", 0, 8);
    ASSERT_TRUE(listener);
    EXPECT_NE(listener->port, 0);
    EXPECT_TRUE(connect_to("127.0.0.1", listener->port, Deadline::after(5s)));
    EXPECT_FALSE(connect_to("127.0.0.2", listener->port, Deadline::after(5s)));
    EXPECT_EQ(listen_on("127.0.0.1", listener->port, 8).error().code(), Code::kAlreadyExists);
    EXPECT_EQ(listen_on("192.0.2.1", 0, 8).error().code(), Code::kUnavailable);
}

TEST(Listen, GivesThePortItGot) {
    const auto listener = listen_on(0, 8);
    ASSERT_TRUE(listener) << listener.error().to_string();
    EXPECT_NE(listener->port, 0);
    EXPECT_TRUE(connect_to("127.0.0.1", listener->port, Deadline::after(kHang)));
}

TEST(Listen, SaysThatAPortIsTaken) {
    const auto first = listen_on(0, 8);
    ASSERT_TRUE(first);
    const auto second = listen_on(first->port, 8);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
    EXPECT_EQ(second.error().system_errno(), EADDRINUSE);
}

TEST(ListenInRange, StaysInsideAndFindsTheOnlyFreePort) {
    // Every port but one of a small range is taken; the search must still find that one.
    const uint16_t somewhere = listen_on(0, 8).value().port;
    const auto low = static_cast<uint16_t>(somewhere - 3), high = static_cast<uint16_t>(std::min(somewhere + 4, 65535));
    std::vector<Listener> taken;
    while (auto listener = listen_in_range("", low, high, 8)) {
        EXPECT_GE(listener->port, low);
        EXPECT_LE(listener->port, high);
        taken.push_back(std::move(*listener));
        ASSERT_LE(taken.size(), 8u);
    }
    ASSERT_FALSE(taken.empty());
    const uint16_t freed = taken.back().port;
    taken.pop_back();
    const auto found = listen_in_range("", low, high, 8);
    ASSERT_TRUE(found) << found.error().to_string();
    EXPECT_EQ(found->port, freed);
}

TEST(ListenInRange, NamesWhatIsWrongWithTheAddressInsteadOfTryingAllPorts) {
    const auto nowhere = listen_in_range("192.0.2.1", 15000, 17000, 8);
    ASSERT_FALSE(nowhere);
    EXPECT_EQ(nowhere.error().system_errno(), EADDRNOTAVAIL);
    EXPECT_EQ(nowhere.error().message().find("no free port"), std::string::npos) << nowhere.error().to_string();
    const auto nobody = listen_in_range("no such host", 15000, 17000, 8);
    ASSERT_FALSE(nobody);
    EXPECT_EQ(nobody.error().message().find("no free port"), std::string::npos) << nobody.error().to_string();
}

TEST(ListenInRange, RefusesARangeThatIsNone) {
    EXPECT_EQ(listen_in_range("", 17000, 15000, 8).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(listen_in_range("", 0, 15000, 8).error().code(), Code::kInvalidArgument);
}

TEST(Connect, NamesAddressAndErrnoWhenRefused) {
    uint16_t port = 0;
    { port = listen_on(0, 8).value().port; }  // nobody listens there any more
    const auto socket = connect_to("127.0.0.1", port, Deadline::after(kHang));
    ASSERT_FALSE(socket);
    EXPECT_EQ(socket.error().code(), Code::kUnavailable);
    EXPECT_EQ(socket.error().system_errno(), ECONNREFUSED);
    EXPECT_NE(socket.error().message().find(format_text("127.0.0.1:{}", port)), std::string::npos);
}

TEST(Connect, EndsAtTheDeadlineWhenNobodyAnswers) {
    // A listener with a full queue drops further requests, as a machine that vanished would.
    const auto listener = listen_on(0, 0);
    ASSERT_TRUE(listener);
    std::vector<Socket> waiting;
    const Deadline hang = Deadline::after(kHang);
    for (int i = 0; i < 64; ++i) {
        auto socket = connect_to("127.0.0.1", listener->port, Deadline::after(50ms));
        if (!socket) {
            EXPECT_EQ(socket.error().system_errno(), ETIMEDOUT);
            EXPECT_FALSE(hang.passed());
            return;
        }
        waiting.push_back(std::move(*socket));
    }
    GTEST_SKIP() << "this kernel accepts beyond the backlog";
}

TEST(Connect, TunesTheConnection) {
    const Pair pair = connected_pair();
    EXPECT_EQ(int_option(pair.client.fd(), IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(int_option(pair.client.fd(), SOL_SOCKET, SO_KEEPALIVE), 1);
    std::array<char, 16> control{};
    socklen_t size = control.size() - 1;
    ASSERT_EQ(::getsockopt(pair.client.fd(), IPPROTO_TCP, TCP_CONGESTION, control.data(), &size), 0);
    EXPECT_STREQ(control.data(), "reno") << "within one machine nothing need be paced";
    EXPECT_TRUE(::fcntl(pair.client.fd(), F_GETFL) & O_NONBLOCK);
    EXPECT_TRUE(::fcntl(pair.client.fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(SendAndReceive, MoveMoreThanTheBuffersHold) {
    const Pair pair = connected_pair();
    const std::string sent(8 << 20, 'x');
    std::string got(sent.size(), '\0');
    std::jthread sender([&] { EXPECT_TRUE(send_all(pair.client.fd(), sent.data(), sent.size(), Deadline::after(kHang))); });
    const auto result = receive_all(pair.server.fd(), got.data(), got.size(), Deadline::after(kHang));
    ASSERT_TRUE(result) << result.error().to_string();
    EXPECT_EQ(got, sent);
}

TEST(SendAndReceive, EndAtTheDeadlineWhenThePeerIsSilentEvenOnABlockingSocket) {
    const Pair pair = connected_pair();
    ::fcntl(pair.client.fd(), F_SETFL, ::fcntl(pair.client.fd(), F_GETFL) & ~O_NONBLOCK);
    char byte = 0;
    EXPECT_EQ(receive_all(pair.client.fd(), &byte, 1, Deadline::after(5ms)).error().code(), Code::kTimedOut);
    const std::string much(64 << 20, 'x');
    EXPECT_EQ(send_all(pair.client.fd(), much.data(), much.size(), Deadline::after(5ms)).error().code(), Code::kTimedOut);
}

TEST(SendAndReceive, ReportAPeerThatWentAway) {
    Pair pair = connected_pair();
    pair.server.reset();
    char byte = 0;
    const auto result = receive_all(pair.client.fd(), &byte, 1, Deadline::after(kHang));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kUnavailable);
}

TEST(Socket, ResetHardIsSeenAsAResetNotAsAnEnd) {
    Pair pair = connected_pair();
    pair.server.reset_hard();
    EXPECT_FALSE(pair.server);
    char byte = 0;
    const auto result = receive_all(pair.client.fd(), &byte, 1, Deadline::after(kHang));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().system_errno(), ECONNRESET);
    pair.server.reset_hard();  // an empty one: nothing happens
}

TEST(Socket, ANumberThatIsNotAllowedAnyMoreCannotBeReplaced) {
    Pair pair = connected_pair(), other = connected_pair();
    constexpr int kHigh = 200;
    Socket high(::fcntl(pair.client.fd(), F_DUPFD_CLOEXEC, kHigh));
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit low{.rlim_cur = kHigh, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    const auto refused = high.replace_hard(std::move(other.client));
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().system_errno(), EBADF);
    EXPECT_TRUE(is_open(high.fd()));
    Pair third = connected_pair();
    EXPECT_TRUE(high.replace_hard(std::move(third.client)));
}

TEST(Socket, MovesWithoutClosing) {
    Socket first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int fd = first.fd();
    Socket second(std::move(first));
    Socket third;
    third = std::move(second);
    EXPECT_TRUE(is_open(fd));
    EXPECT_EQ(third.fd(), fd);
    third = Socket();
    EXPECT_FALSE(is_open(fd));
}

TEST(Socket, IsClosedInAForkedChildAndLeavesTheNumberToItsNewOwner) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int fd = socket.fd();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const bool closed = !is_open(fd);
        const bool reused = ::fcntl(STDERR_FILENO, F_DUPFD, fd) == fd;
        socket.reset();
        ::_exit(closed && reused && is_open(fd) ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(is_open(fd));
}

TEST(WaitReady, SaysWhenAndWhenNot) {
    const Pair pair = connected_pair();
    EXPECT_FALSE(wait_ready(pair.client.fd(), POLLIN, Deadline::after(1ms)));
    ASSERT_TRUE(send_all(pair.server.fd(), "x", 1, Deadline::after(kHang)));
    EXPECT_TRUE(wait_ready(pair.client.fd(), POLLIN, Deadline::after(kHang)));
}

TEST(Socket, AnInterruptEndsWaitsUnderWayAndLaterOnes) {
    const Listener listener = listen_on("127.0.0.1", 0, 1).value();
    const Socket socket = connect_to("127.0.0.1", listener.port, Deadline::after(60s)).value();
    const auto interrupt = Interrupt::create().value();
    const Patience patience(Deadline::never(), interrupt.get());
    std::jthread waiter([&] {
        char byte = 0;
        EXPECT_FALSE(receive_all(socket.fd(), &byte, 1, patience));
    });
    interrupt->set();
    waiter.join();
    EXPECT_FALSE(wait_ready(socket.fd(), POLLIN, patience));
    EXPECT_TRUE(wait_ready(socket.fd(), POLLOUT, patience)) << "what is ready is not waited for";
}

}  // namespace
}  // namespace mooncake::net
