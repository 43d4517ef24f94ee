// SPDX-License-Identifier: Apache-2.0
// The HTTP client against the HTTP server, and each against a peer that misbehaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <latch>

#include "base/testing/full_descriptors.h"
#include "base/thread.h"
#include "net/http_client.h"
#include "net/http_server.h"

namespace mooncake::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Deadline soon() { return Deadline::after(20s); }  // only a guard against hangs

std::unique_ptr<HttpServer> make_server(HttpServerOptions options = {}) {
    options.host = "127.0.0.1";
    auto server = HttpServer::create(options);
    MC_CHECK(server);
    (*server)->handle("GET", "/hello", [](const HttpServerRequest&) { return HttpResponse{.body = "world"}; });
    (*server)->handle("*", "/echo", [](const HttpServerRequest& request) {
        const std::string* key = request.parameter("key");
        return HttpResponse{
            .status = 201, .body = request.method + "|" + (key ? *key : "-") + "|" + request.body, .content_type = request.content_type};
    });
    return std::move(*server);
}

std::string url_of(uint16_t port, const std::string& target) { return format_text("http://127.0.0.1:{}{}", port, target); }

/// A listener whose connections the test answers byte by byte.
class RawServer {
public:
    RawServer() : listener_(listen_on(0, 16).value()) {}
    uint16_t port() const { return listener_.port; }
    Socket accept() {
        EXPECT_TRUE(wait_ready(listener_.socket.fd(), POLLIN, soon()));
        return Socket(::accept4(listener_.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    }
    /// Reads until the blank line that ends a header.
    static std::string read_header(const Socket& socket) {
        std::string text;
        while (text.find("\r\n\r\n") == std::string::npos) {
            char byte;
            if (!receive_all(socket.fd(), &byte, 1, soon())) break;
            text += byte;
        }
        return text;
    }
    static void write(const Socket& socket, std::string_view text) { EXPECT_TRUE(send_all(socket.fd(), text.data(), text.size(), soon())); }

private:
    Listener listener_;
};

/// Sends raw bytes to a server and returns everything until it closes.
std::string talk(uint16_t port, std::string_view bytes) {
    auto socket = connect_to("127.0.0.1", port, soon());
    EXPECT_TRUE(socket);
    EXPECT_TRUE(send_all(socket->fd(), bytes.data(), bytes.size(), soon()));
    std::string answer;
    char byte;
    while (receive_all(socket->fd(), &byte, 1, soon())) answer += byte;
    return answer;
}

TEST(Http, CarriesMethodTargetBodyAndType) {
    auto server = make_server();
    server->start();
    HttpClient client;
    const std::string url = url_of(server->port(), "/echo?key=a%20%2F%C3%A9");
    const auto answer = client.send({.method = "PUT", .url = url, .body = std::string("x\0y", 3), .content_type = "a/b"}, soon());
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->status, 201);
    EXPECT_EQ(answer->body, std::string("PUT|a /\xc3\xa9|x\0y", 13));
    EXPECT_EQ(answer->content_type, "a/b");
    EXPECT_EQ(http_request({.url = url_of(server->port(), "/hello")}, soon())->body, "world");
}

TEST(Http, CarriesLargeBodiesBothWays) {
    auto server = make_server();
    server->start();
    const std::string body(8 << 20, 'z');
    const auto answer = http_request({.method = "POST", .url = url_of(server->port(), "/echo"), .body = body}, soon());
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->body.size(), body.size() + 7);
}

TEST(Http, AnswersUnknownPathsMethodsAndBadQueries) {
    auto server = make_server();
    server->start();
    HttpClient client;
    const auto status = [&](const char* method, const char* target) {
        return client.send({.method = method, .url = url_of(server->port(), target)}, soon())->status;
    };
    EXPECT_EQ(status("GET", "/nothing"), 404);
    EXPECT_EQ(status("POST", "/hello"), 405);
    EXPECT_EQ(status("GET", "/echo?key=%f"), 400);
    EXPECT_EQ(status("GET", "/hello?x"), 200);
    const auto head = client.send({.method = "HEAD", .url = url_of(server->port(), "/hello")}, soon());
    ASSERT_TRUE(head) << head.error().to_string();
    EXPECT_EQ(head->status, 200);
    EXPECT_EQ(head->body, "");
    EXPECT_EQ(status("GET", "/hello"), 200);  // the connection is still in step after HEAD
}

TEST(HttpServer, AnswersNonsenseWith400AndCloses) {
    auto server = make_server();
    server->start();
    EXPECT_THAT(talk(server->port(), "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(talk(server->port(), "GET /hello HTTP/9.9\r\n\r\n"), StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(talk(server->port(), "\x16\x03\x01\x02\x00\x01"), StartsWith("HTTP/1.1 400"));  // TLS
    EXPECT_THAT(talk(server->port(), "PUT /echo HTTP/1.1\r\nContent-Length: nan\r\n\r\n"), StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(talk(server->port(), "GET /hello HTTP/1.1\r\nX: " + std::string(70'000, 'x') + "\r\n\r\n"), StartsWith("HTTP/1.1 431"));
    EXPECT_THAT(talk(server->port(), "PUT /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(talk(server->port(), "PUT /echo HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
                StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(talk(server->port(), "GET /" + std::string(70'000, 'x') + " HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 431"));
    EXPECT_THAT(talk(server->port(), "GET /hello HTTP/1.0\r\n\r\n"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("world")));
    EXPECT_EQ(http_request({.url = url_of(server->port(), "/hello")}, soon())->status, 200);
}

TEST(HttpServer, AnswersAHandlerThatThrowsWith500AndServesOn) {
    auto server = make_server();
    server->handle("GET", "/throws", [](const HttpServerRequest&) -> HttpResponse { throw std::bad_alloc(); });
    server->start();
    const auto failed = http_request({.url = url_of(server->port(), "/throws")}, soon());
    ASSERT_TRUE(failed) << failed.error().to_string();
    EXPECT_EQ(failed->status, 500);
    EXPECT_EQ(http_request({.url = url_of(server->port(), "/hello")}, soon())->body, "world");
}

TEST(HttpServer, TellsWhichMethodsThereAre) {
    auto server = make_server();
    server->handle("PUT", "/hello", [](const HttpServerRequest&) { return HttpResponse{}; });
    server->start();
    for (const std::string method : {"DELETE", "BREW", "get"})
        EXPECT_THAT(talk(server->port(), method + " /hello HTTP/1.1\r\nConnection: close\r\n\r\n"),
                    AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, HEAD, PUT\r\n"), HasSubstr("method not allowed")));
}

TEST(HttpServer, TakesTargetsInTheFormForProxies) {
    auto server = make_server();
    server->start();
    const auto ask = [&](const std::string& target) {
        return talk(server->port(), "GET " + target + " HTTP/1.1\r\nConnection: close\r\n\r\n");
    };
    EXPECT_THAT(ask("http://example.com:80/hello?x=://y"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("world")));
    EXPECT_THAT(ask("/hello?url=http://example.com/other"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("world")));
    EXPECT_THAT(ask("http://example.com"), StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(ask("*"), StartsWith("HTTP/1.1 404"));
}

TEST(HttpServer, AnswersPipelinedRequestsInOrderAndContinues) {
    auto server = make_server();
    server->start();
    const std::string answers = talk(server->port(),
                                     "GET /hello HTTP/1.1\r\n\r\nPUT /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab"
                                     "PUT /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nxyz\r\n0\r\n\r\n");
    EXPECT_THAT(answers, HasSubstr("world"));
    EXPECT_THAT(answers, HasSubstr("100 Continue"));
    EXPECT_THAT(answers, HasSubstr("PUT|-|ab"));
    EXPECT_THAT(answers, HasSubstr("PUT|-|xyz"));
}

TEST(HttpServer, RefusesLargeBodiesWith413) {
    auto server = make_server({.body_bytes_max = 1000});
    server->start();
    const auto answer = http_request({.method = "PUT", .url = url_of(server->port(), "/echo"), .body = std::string(300'000, 'x')}, soon());
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->status, 413);
    const std::string chunked = "PUT /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') +
                                "\r\n0\r\n\r\n";
    EXPECT_THAT(talk(server->port(), chunked), StartsWith("HTTP/1.1 413"));
}

/// A connection that is kept open after its answer.
Socket connect_and_ask(uint16_t port) {
    Socket socket = connect_to("127.0.0.1", port, soon()).value();
    RawServer::write(socket, "GET /hello HTTP/1.1\r\n\r\n");
    EXPECT_THAT(RawServer::read_header(socket), StartsWith("HTTP/1.1 200"));
    char body[5];
    EXPECT_TRUE(receive_all(socket.fd(), body, sizeof body, soon()));
    return socket;
}

TEST(HttpServer, ClosesTheLongestIdleConnectionForANewOne) {
    auto server = make_server({.connections_max = 2});
    server->start();
    const Socket longest = connect_and_ask(server->port());
    const Socket later = connect_and_ask(server->port());
    const Socket newest = connect_and_ask(server->port());
    char byte;
    ASSERT_TRUE(wait_ready(longest.fd(), POLLIN, soon()));
    EXPECT_EQ(::recv(longest.fd(), &byte, 1, 0), 0);
    for (const Socket* const kept : {&later, &newest}) {
        RawServer::write(*kept, "GET /hello HTTP/1.1\r\n\r\n");
        EXPECT_THAT(RawServer::read_header(*kept), StartsWith("HTTP/1.1 200"));
    }
}

TEST(HttpServer, RefusesConnectionsWhereNobodyIsIdleAndRecovers) {
    auto server = make_server({.connections_max = 1});
    server->start();
    const Socket busy = connect_to("127.0.0.1", server->port(), soon()).value();
    RawServer::write(busy, "PUT /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(RawServer::read_header(busy), StartsWith("HTTP/1.1 100"));  // the request has begun
    const auto second = http_request({.url = url_of(server->port(), "/hello")}, soon());
    if (second) {
        EXPECT_EQ(second->status, 503);
    } else {
        EXPECT_EQ(second.error().code(), Code::kUnavailable);  // the connection ended before we read the answer
    }
    RawServer::write(busy, "ab");
    EXPECT_THAT(RawServer::read_header(busy), StartsWith("HTTP/1.1 201"));
    const Deadline deadline = soon();
    int status = 0;
    while (status != 200 && !deadline.passed())  // the server needs a moment to see the end of the first connection
        if (const auto answer = http_request({.url = url_of(server->port(), "/hello")}, deadline)) status = answer->status;
    EXPECT_EQ(status, 200);
}

TEST(HttpServer, IsAnErrorWithoutDescriptors) {
    for (size_t free = 0; free < 4; ++free) {
        const mooncake::testing::FullDescriptors full(free);
        const auto server = HttpServer::create({.host = "127.0.0.1"});
        EXPECT_TRUE(server || server.error().code() == Code::kUnavailable) << server.error().to_string();
        EXPECT_FALSE(server && free < 2);
    }
}

TEST(HttpServer, DropsClientsThatDoNotFinishARequest) {
    auto server = make_server({.idle_timeout = 50ms, .request_timeout = 50ms});
    server->start();
    EXPECT_EQ(talk(server->port(), ""), "");
    EXPECT_EQ(talk(server->port(), "GET /hel"), "");
    EXPECT_EQ(talk(server->port(), "PUT /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"), "");
}

TEST(HttpServer, ServesOthersWhileOneClientIsSilent) {
    auto server = make_server();
    server->start();
    const auto silent = connect_to("127.0.0.1", server->port(), soon());
    ASSERT_TRUE(silent);
    RawServer::write(*silent, "PUT /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
    EXPECT_EQ(http_request({.url = url_of(server->port(), "/hello")}, soon())->status, 200);
}

TEST(HttpServer, AnswersWhatIsUnderWayWhenItStops) {
    auto server = make_server();
    std::latch entered(1), leave(1);
    server->handle("GET", "/slow", [&](const HttpServerRequest&) {
        entered.count_down();
        leave.wait();
        return HttpResponse{.body = "done"};
    });
    server->start();
    HttpClient idle;
    ASSERT_TRUE(idle.send({.url = url_of(server->port(), "/hello")}, soon()));
    const std::string url = url_of(server->port(), "/slow");
    auto answer = std::async(std::launch::async, [&] { return http_request({.url = url}, soon()); });
    entered.wait();
    auto stopped = std::async(std::launch::async, [&] { server->stop(); });
    leave.count_down();
    stopped.get();
    const auto got = answer.get();
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_EQ(got->body, "done");
    EXPECT_FALSE(http_request({.url = url}, soon()));
    server->stop();
}

TEST(HttpServer, StopsWhileItsClientsAreSilentOrItNeverStarted) {
    auto server = make_server();
    server->stop();
    server = make_server();
    server->start();
    const auto silent = connect_to("127.0.0.1", server->port(), soon());
    ASSERT_TRUE(silent);
    RawServer::write(*silent, "PUT /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
    server.reset();
}

TEST(HttpServer, SaysWhichAddressItCannotUse) {
    auto server = make_server();
    const auto second = HttpServer::create({.host = "127.0.0.1", .port = server->port()});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
    EXPECT_THAT(second.error().message(), HasSubstr(format_text("127.0.0.1:{}", server->port())));
    EXPECT_FALSE(HttpServer::create({.host = "192.0.2.1"}));  // a documentation address nobody has
    const auto everywhere = HttpServer::create({});
    ASSERT_TRUE(everywhere);
    (*everywhere)->start();
    EXPECT_EQ(http_request({.url = format_text("http://[::1]:{}/x", (*everywhere)->port())}, soon())->status, 404);
    EXPECT_EQ(http_request({.url = url_of((*everywhere)->port(), "/x")}, soon())->status, 404);
}

TEST(HttpServer, DoesNothingInAForkedChild) {
    auto server = make_server();
    server->start();
    const pid_t child = ::fork();
    if (child == 0) {
        server.reset();
        ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(http_request({.url = url_of(server->port(), "/hello")}, soon())->status, 200);
}

TEST(HttpServer, ServesManyThreadsAtOnce) {
    auto server = make_server({.threads = 2});
    server->start();
    HttpClient client;
    std::atomic<int> good{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 8; ++i)
            threads.push_back(start_thread("caller", [&, i] {
                for (int round = 0; round < 50; ++round) {
                    const auto answer = client.send(
                        {.method = "PUT", .url = url_of(server->port(), format_text("/echo?key={}-{}", i, round)), .body = "b"}, soon());
                    if (answer && answer->body == format_text("PUT|{}-{}|b", i, round)) ++good;
                }
            }));
    }
    EXPECT_EQ(good, 400);
}

TEST(HttpClient, KeepsItsConnectionForTheNextCall) {
    RawServer server;
    HttpClient client;
    auto calls = std::async(std::launch::async, [&] {
        for (int i = 0; i < 2; ++i) EXPECT_EQ(client.send({.url = url_of(server.port(), "/")}, soon())->body, "ok");
    });
    const Socket connection = server.accept();
    for (int i = 0; i < 2; ++i) {
        EXPECT_THAT(RawServer::read_header(connection),
                    AllOf(StartsWith("GET / HTTP/1.1\r\n"), HasSubstr(format_text("Host: 127.0.0.1:{}", server.port()))));
        RawServer::write(connection, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
    calls.get();
}

TEST(HttpClient, RepeatsACallWhoseKeptConnectionWasClosed) {
    RawServer server;
    HttpClient client;
    auto calls = std::async(std::launch::async, [&] {
        EXPECT_EQ(client.send({.url = url_of(server.port(), "/1")}, soon())->body, "ok");
        EXPECT_EQ(client.send({.method = "PUT", .url = url_of(server.port(), "/2"), .body = "x"}, soon())->body, "ok");
    });
    Socket first = server.accept();
    RawServer::read_header(first);
    RawServer::write(first, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    EXPECT_THAT(RawServer::read_header(first), StartsWith("PUT /2"));
    first.reset_hard();
    const Socket second = server.accept();
    EXPECT_THAT(RawServer::read_header(second), StartsWith("PUT /2"));
    RawServer::write(second, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    calls.get();
}

TEST(HttpClient, DoesNotRepeatAPostByItself) {
    RawServer server;
    HttpClient client;
    auto calls = std::async(std::launch::async, [&] {
        EXPECT_TRUE(client.send({.url = url_of(server.port(), "/1")}, soon()));
        const auto answer = client.send({.method = "POST", .url = url_of(server.port(), "/2")}, soon());
        ASSERT_FALSE(answer);
        EXPECT_EQ(answer.error().code(), Code::kUnavailable);
    });
    Socket first = server.accept();
    RawServer::read_header(first);
    RawServer::write(first, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    RawServer::read_header(first);
    first.reset_hard();
    calls.get();
}

/// What the client makes of an answer, sent as it is; the connection is closed afterwards.
Result<HttpResponse> answer_of(std::string_view bytes, HttpClientOptions options = {}) {
    RawServer server;
    HttpClient client(options);
    auto call = std::async(std::launch::async, [&] { return client.send({.url = url_of(server.port(), "/x")}, soon()); });
    const Socket connection = server.accept();
    RawServer::read_header(connection);
    RawServer::write(connection, bytes);
    ::shutdown(connection.fd(), SHUT_WR);
    return call.get();
}

TEST(HttpClient, UnderstandsAllFormsOfAnswers) {
    EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\n\r\nuntil the end")->body, "until the end");
    EXPECT_EQ(answer_of("HTTP/1.0 404 Nope\r\nContent-Length: 3\r\n\r\nabc")->status, 404);
    EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")->body, "abc");
    EXPECT_EQ(answer_of("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")->status, 204);
    EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")->body, "");
}

TEST(HttpClient, ReportsBrokenAnswers) {
    const auto problem = [](std::string_view bytes, Code code, HttpClientOptions options = {}) {
        const auto answer = answer_of(bytes, options);
        EXPECT_FALSE(answer) << bytes;
        if (answer) return std::string();
        EXPECT_EQ(answer.error().code(), code) << answer.error().to_string();
        return answer.error().message();
    };
    EXPECT_THAT(problem("", Code::kUnavailable),
                AllOf(HasSubstr("GET http://127.0.0.1:"), HasSubstr("waiting for the answer"), HasSubstr("closed")));
    EXPECT_THAT(problem("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", Code::kUnavailable), HasSubstr("middle"));
    EXPECT_THAT(problem("HTTP/1.1 200", Code::kUnavailable), HasSubstr("middle"));
    EXPECT_THAT(problem("SSH-2.0-OpenSSH\r\n\r\n", Code::kCorrupt), HasSubstr("not HTTP"));
    EXPECT_THAT(problem("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + std::string(99, 'x'), Code::kNoSpace, {.response_bytes_max = 50}),
                HasSubstr("larger than 50"));
    EXPECT_THAT(problem("HTTP/1.1 200 OK\r\n\r\n" + std::string(99, 'x'), Code::kNoSpace, {.response_bytes_max = 50}),
                HasSubstr("larger than 50"));
    problem("HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'), Code::kCorrupt);
}

TEST(HttpClient, EndsAtItsDeadlineWhenTheServerIsSilent) {
    RawServer server;  // accepts in the kernel only
    const auto answer = http_request({.url = url_of(server.port(), "/x")}, Deadline::after(50ms));
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kTimedOut);
    EXPECT_THAT(answer.error().message(), HasSubstr("waiting for the answer"));
}

TEST(HttpClient, EndsAtItsDeadlineWhenTheServerNeverStopsTalking) {
    RawServer server;
    std::atomic<bool> over{false};
    std::jthread talking([&] {
        const Socket socket = server.accept();
        RawServer::read_header(socket);
        RawServer::write(socket, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        std::string chunks;  // which are read more slowly than they are sent
        while (chunks.size() < 65'536) chunks += "1\r\nx\r\n";
        while (!over && send_all(socket.fd(), chunks.data(), chunks.size(), soon())) {}
    });
    HttpClient client({.response_bytes_max = uint64_t{1} << 50});
    const Deadline hang = soon();
    const auto answer = client.send({.url = url_of(server.port(), "/")}, Deadline::after(50ms));
    over = true;
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kTimedOut) << answer.error().to_string();
    EXPECT_FALSE(hang.passed());
}

TEST(HttpClient, EndsAtItsDeadlineWhenTheServerTakesNothing) {
    RawServer server;
    const auto answer = http_request({.method = "PUT", .url = url_of(server.port(), "/x"), .body = std::string(64 << 20, 'x')},
                                     Deadline::after(200ms));
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kTimedOut);
    EXPECT_THAT(answer.error().message(), HasSubstr("sending the request"));
}

TEST(HttpClient, NamesTheServerItCannotReach) {
    uint16_t port = 0;
    {
        const RawServer closed;
        port = closed.port();
    }
    const auto answer = http_request({.url = url_of(port, "/x")}, soon());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kUnavailable);
    EXPECT_EQ(answer.error().system_errno(), ECONNREFUSED);
    EXPECT_THAT(answer.error().message(), HasSubstr(format_text("cannot connect 127.0.0.1:{}", port)));
}

TEST(HttpClient, RefusesWhatItCannotSend) {
    EXPECT_EQ(http_request({.url = "https://127.0.0.1/x"}, soon()).error().code(), Code::kNotSupported);
    EXPECT_EQ(http_request({.url = "ftp://127.0.0.1/x"}, soon()).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(http_request({.method = "GET /\r\n", .url = "http://127.0.0.1/x"}, soon()).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(http_request({.url = "http://127.0.0.1/x", .content_type = "a\r\nb: c"}, soon()).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace mooncake::net
