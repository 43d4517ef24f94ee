// SPDX-License-Identifier: Apache-2.0
// Answers that are made while they are sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <latch>
#include <thread>

#include "base/thread.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/socket.h"

namespace mooncake::net {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Deadline soon() { return Deadline::after(20s); }  // only a guard against hangs

/// Pieces that are counted when they are made, and a flag that is set when nobody wants any more.
struct Source {
    std::atomic<int> made{0};
    std::latch dropped{1};

    HttpPieces pieces(int count, size_t size) {
        const std::shared_ptr<void> token(nullptr, [this](void*) { dropped.count_down(); });
        return [this, count, size, token, at = 0]() mutable {
            if (at == count) return std::string();
            ++made;
            return std::string(size, static_cast<char>('a' + at++ % 26));
        };
    }
};

class HttpPiecesTest : public testing::Test {
protected:
    void serve(HttpServerOptions options = {}) {
        options.host = "127.0.0.1";
        auto made = HttpServer::create(options);
        ASSERT_TRUE(made);
        server_ = std::move(*made);
        server_->handle("GET", "/abc", [](const HttpServerRequest&) {
            HttpResponse answer{.body = "[", .content_type = "a/b"};
            answer.pieces = [at = 0]() mutable { return at == 3 ? std::string() : std::string(1, static_cast<char>('a' + at++)); };
            return answer;
        });
        server_->handle("GET", "/none", [](const HttpServerRequest&) {
            HttpResponse answer;
            answer.pieces = [] { return std::string(); };
            return answer;
        });
        server_->handle("GET", "/large", [this](const HttpServerRequest&) {
            HttpResponse answer;
            answer.pieces = source_.pieces(kPieces, kPieceBytes);
            return answer;
        });
        server_->start();
    }
    std::string url(const std::string& path) const { return format_text("http://127.0.0.1:{}{}", server_->port(), path); }

    Socket connect(std::string_view request) const {
        auto socket = connect_to("127.0.0.1", server_->port(), soon());
        MC_CHECK(socket);
        const int small = 256 * 1024;  // so that the kernel holds little of what nobody reads
        ::setsockopt(socket->fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        MC_CHECK(send_all(socket->fd(), request.data(), request.size(), soon()));
        return std::move(*socket);
    }
    /// Everything until the server closes.
    std::string read_all(const Socket& socket, const std::function<void(size_t received)>& on_part = nullptr) const {
        std::string text, part(64 * 1024, '\0');
        while (wait_ready(socket.fd(), POLLIN, soon())) {
            const ssize_t count = ::recv(socket.fd(), part.data(), part.size(), 0);
            if (count <= 0) break;
            text.append(part, 0, static_cast<size_t>(count));
            if (on_part) on_part(text.size());
        }
        return text;
    }
    std::string talk(std::string_view request) const { return read_all(connect(request)); }
    void read_some(const Socket& socket) const {
        char byte;
        EXPECT_TRUE(receive_all(socket.fd(), &byte, 1, soon()));
    }

    // 32 MiB: far more than the kernel holds between the server and these readers.
    static constexpr int kPieces = 512;
    static constexpr size_t kPieceBytes = 64 * 1024;
    Source source_;
    std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpPiecesTest, AreSentAsChunksAndTheConnectionGoesOn) {
    serve();
    const std::string answers = talk("GET /abc HTTP/1.1\r\n\r\nGET /none HTTP/1.1\r\n\r\nGET /abc HTTP/1.1\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(answers, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"),
                               Not(HasSubstr("Content-Length")), HasSubstr("Content-Type: a/b\r\n")));
    EXPECT_THAT(answers, HasSubstr("\r\n\r\n1\r\n[\r\n1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answers, HasSubstr("chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answers, EndsWith("c\r\n0\r\n\r\n"));
    HttpClient client;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(client.send({.url = url("/abc")}, soon())->body, "[abc");
    EXPECT_EQ(client.send({.url = url("/none")}, soon())->body, "");
}

TEST_F(HttpPiecesTest, EndWithTheConnectionForClientsThatDoNotKnowChunks) {
    serve();
    for (const char* request : {"GET /abc HTTP/1.0\r\n\r\n", "GET /abc HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"})
        EXPECT_THAT(talk(request), AllOf(HasSubstr("Connection: close\r\n"), Not(HasSubstr("Transfer-Encoding")),
                                         Not(HasSubstr("Content-Length")), EndsWith("\r\n\r\n[abc")));
    EXPECT_THAT(talk("GET /none HTTP/1.0\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST_F(HttpPiecesTest, AreNotMadeForHead) {
    serve();
    const std::string answers = talk("HEAD /large HTTP/1.1\r\n\r\nGET /abc HTTP/1.1\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(answers, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"),
                               HasSubstr("\r\n\r\nHTTP/1.1 200 OK\r\n"), EndsWith("c\r\n0\r\n\r\n")));
    EXPECT_THAT(talk("HEAD /abc HTTP/1.0\r\n\r\n"), AllOf(Not(HasSubstr("Content-Length")), EndsWith("\r\n\r\n")));
    EXPECT_EQ(source_.made, 0);
}

TEST_F(HttpPiecesTest, AreMadeOnlyAsFastAsTheyAreTakenHoweverLongThatIs) {
    constexpr Duration kLimit = 2s;  // so long no reader is kept from its core
    serve({.request_timeout = kLimit});
    const Socket socket = connect("GET /large HTTP/1.1\r\nConnection: close\r\n\r\n");
    constexpr size_t kInKernel = 8 << 20;
    const Time begin = Clock::now();
    const std::string answer = read_all(socket, [&](size_t received) {
        EXPECT_LT(static_cast<size_t>(source_.made) * kPieceBytes, received + kInKernel);
        // Never long without reading, and in all longer than twice the limit.
        std::this_thread::sleep_until(begin + kLimit * 5 / 2 * received / (kPieces * kPieceBytes));
    });
    EXPECT_TRUE(answer.ends_with("\r\n0\r\n\r\n"));
    EXPECT_GT(answer.size(), kPieces * kPieceBytes);
    EXPECT_EQ(source_.made, kPieces);
    EXPECT_GT(Clock::now() - begin, 2 * kLimit);
}

TEST_F(HttpPiecesTest, AreDroppedWhenTheReaderGoesAway) {
    serve();
    Socket socket = connect("GET /large HTTP/1.1\r\n\r\n");
    read_some(socket);
    socket.reset_hard();
    source_.dropped.wait();
    EXPECT_LT(source_.made, kPieces);
    EXPECT_EQ(http_request({.url = url("/abc")}, soon())->body, "[abc");
}

TEST_F(HttpPiecesTest, AreDroppedWhenTheReaderTakesNothing) {
    serve({.request_timeout = 50ms});
    const Socket socket = connect("GET /large HTTP/1.1\r\n\r\n");
    source_.dropped.wait();
    EXPECT_LT(source_.made, kPieces);
}

TEST_F(HttpPiecesTest, AreCutOffVisiblyWhenTheServerStops) {
    serve({.stop_timeout = 10ms});
    const Socket socket = connect("GET /large HTTP/1.1\r\n\r\n");
    read_some(socket);
    server_->stop();
    source_.dropped.wait();
    const std::string rest = read_all(socket);
    EXPECT_THAT(rest.substr(rest.size() - std::min<size_t>(rest.size(), 20)), Not(EndsWith("\r\n0\r\n\r\n")));
}

TEST_F(HttpPiecesTest, AreSentToTheEndWhenTheServerStopsMeanwhile) {
    serve({.stop_timeout = 20s});
    const Socket socket = connect("GET /large HTTP/1.1\r\n\r\n");
    read_some(socket);
    const std::jthread stopping = start_thread("stop", [this] { server_->stop(); });
    const std::string rest = read_all(socket);
    EXPECT_EQ(rest.substr(rest.size() - std::min<size_t>(rest.size(), 7)), "\r\n0\r\n\r\n");
    EXPECT_EQ(source_.made, kPieces);
}

TEST_F(HttpPiecesTest, OfManyReadersAreMadeInTurn) {
    serve();
    const Socket silent = connect("GET /large HTTP/1.1\r\n\r\n");
    for (int i = 0; i < 10; ++i) EXPECT_EQ(http_request({.url = url("/abc")}, soon())->body, "[abc");
}

}  // namespace
}  // namespace mooncake::net
