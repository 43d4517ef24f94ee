// SPDX-License-Identifier: Apache-2.0
#include "coordination/http/http_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <mutex>

#include "coordination/http/metadata_service.h"
#include "net/socket.h"

namespace mooncake {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::after(20s); }

/// A server whose answers the test scripts; it remembers the requests.
class ScriptedServer {
public:
    explicit ScriptedServer(std::vector<net::HttpResponse> answers)
        : answers_(std::move(answers)), server_(net::HttpServer::create({.host = "127.0.0.1"}).value()) {
        server_->handle("*", "/metadata", [this](const net::HttpServerRequest& request) {
            const std::lock_guard lock(mutex_);
            const std::string* key = request.parameter("key");
            const std::string* other = request.parameter("cluster");
            requests_.push_back(request.method + " " + (key ? *key : "-") + (other ? " cluster " + *other : "") +
                                (request.body.empty() ? "" : " " + request.body));
            return requests_.size() <= answers_.size() ? answers_[requests_.size() - 1]
                                                       : net::HttpResponse{.status = 500, .body = "no answer left"};
        });
        server_->start();
    }
    std::unique_ptr<Directory> open(const std::string& query = "") {
        return make_http_directory(format_text("http://127.0.0.1:{}/metadata{}", server_->port(), query)).value();
    }
    std::vector<std::string> requests() {
        const std::lock_guard lock(mutex_);
        return requests_;
    }

private:
    const std::vector<net::HttpResponse> answers_;
    std::mutex mutex_;
    std::vector<std::string> requests_;
    std::unique_ptr<net::HttpServer> server_;
};

TEST(HttpDirectory, AppendsTheKeyToTheUrl) {
    ScriptedServer server({{.body = "1"}, {.body = "2"}});
    EXPECT_EQ(server.open()->get("a b", soon()).value(), "1");
    EXPECT_EQ(server.open("?cluster=c")->get("a&b", soon()).value(), "2");
    EXPECT_THAT(server.requests(), ElementsAre("GET a b", "GET a&b cluster c"));
}

TEST(HttpDirectory, TakesOnly200AsSuccess) {
    ScriptedServer server(
        {{.status = 204}, {.status = 201}, {.status = 302}, {.status = 500, .body = "broken"}, {.status = 403, .body = "no"}});
    const auto directory = server.open();
    EXPECT_FALSE(directory->get("k", soon()));
    EXPECT_FALSE(directory->put("k", "v", soon()));
    EXPECT_FALSE(directory->get("k", soon()));
    const auto broken = directory->get("k", soon());
    EXPECT_EQ(broken.error().code(), Code::kUnavailable);
    EXPECT_THAT(broken.error().message(),
                AllOf(HasSubstr("GET http://127.0.0.1:"), HasSubstr("?key=k"), HasSubstr("500"), HasSubstr("broken")));
    EXPECT_EQ(directory->remove("k", soon()).error().code(), Code::kRefused);
}

TEST(HttpDirectory, AsksAServerThatIsTooBusyAgain) {
    ScriptedServer server({{.status = 503}, {.status = 503}, {.body = "v"}});
    EXPECT_EQ(server.open()->get("k", soon()).value(), "v");
    EXPECT_THAT(server.requests(), ElementsAre("GET k", "GET k", "GET k"));
}

TEST(HttpDirectory, GivesUpOnAServerThatStaysBusyAtTheDeadline) {
    ScriptedServer server(std::vector<net::HttpResponse>(1000, net::HttpResponse{.status = 503}));
    const auto answer = server.open()->get("k", Deadline::after(100ms));
    ASSERT_FALSE(answer);
    EXPECT_TRUE(answer.error().code() == Code::kUnavailable || answer.error().code() == Code::kTimedOut) << answer.error().to_string();
}

TEST(HttpDirectory, KeepsNoConnectionOfAServerThatWouldKeepIt) {
    const net::Listener listener = net::listen_on("127.0.0.1", 0, 4).value();
    const auto directory = make_http_directory(format_text("http://127.0.0.1:{}/metadata", listener.port)).value();
    auto got = std::async(std::launch::async, [&] { return directory->get("k", soon()); });
    ASSERT_TRUE(net::wait_ready(listener.socket.fd(), POLLIN, soon()));
    const net::Socket connection(::accept4(listener.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    std::string request;
    const auto read_some = [&] {
        char text[4096];
        EXPECT_TRUE(net::wait_ready(connection.fd(), POLLIN, soon()));
        const ssize_t length = ::recv(connection.fd(), text, sizeof(text), 0);
        if (length > 0) request.append(text, static_cast<size_t>(length));
        return length;
    };
    while (request.find("\r\n\r\n") == std::string::npos) ASSERT_GT(read_some(), 0);
    const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nv";
    ASSERT_TRUE(net::send_all(connection.fd(), answer.data(), answer.size(), soon()));
    EXPECT_EQ(got.get().value(), "v");
    EXPECT_EQ(read_some(), 0) << "it is still open";
}

TEST(HttpDirectory, SaysThatTheServerKeepsAnotherAddressEntry) {
    ScriptedServer server({{.status = 400, .body = "Duplicate"}, {.status = 400}});
    const auto directory = server.open();
    const auto put = directory->put("mooncake/rpc_meta/a", "v", soon());
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code(), Code::kAlreadyExists);
    EXPECT_THAT(put.error().message(), HasSubstr("Duplicate"));
    EXPECT_EQ(directory->put("mooncake/ram/a", "v", soon()).error().code(), Code::kRefused);
    EXPECT_THAT(server.requests(), ElementsAre("PUT mooncake/rpc_meta/a v", "PUT mooncake/ram/a v"));
}

TEST(HttpDirectory, DoesNotDeleteOtherEntriesThatAreRefused) {
    ScriptedServer server(std::vector<net::HttpResponse>{{.status = 400}});
    EXPECT_FALSE(server.open()->put("ram/a", "v", soon()));
    EXPECT_EQ(server.requests().size(), 1u);
}

TEST(MetadataService, AnswersAsClientsExpect) {
    MetadataService service;
    const auto ask = [&](const char* method, const char* key, const char* body = "") {
        net::HttpServerRequest request{.method = method, .path = "/metadata", .parameters = {}, .content_type = {}, .body = body};
        if (key != nullptr) request.parameters.emplace_back("key", key);
        const net::HttpResponse answer = service.handle(request);
        return format_text("{} {}", answer.status, answer.body);
    };
    EXPECT_EQ(ask("GET", nullptr), "400 metadata key is required");
    EXPECT_EQ(ask("PUT", " \t"), "400 metadata key is required");
    EXPECT_EQ(ask("GET", "k"), "404 metadata not found");
    EXPECT_EQ(ask("PUT", " k ", "v"), "200 metadata updated");
    EXPECT_EQ(ask("GET", "k"), "200 v");
    EXPECT_EQ(ask("PUT", "k", "w"), "200 metadata updated");
    EXPECT_EQ(ask("POST", "k"), "405 Method not allowed");
    EXPECT_EQ(ask("DELETE", "k"), "200 metadata deleted");
    EXPECT_EQ(ask("DELETE", "k"), "404 metadata not found");
    EXPECT_EQ(ask("PUT", "rpc_meta/a", "1"), "200 metadata updated");
    EXPECT_EQ(ask("PUT", "rpc_meta/a", "1"), "200 metadata unchanged");
    EXPECT_EQ(ask("PUT", "rpc_meta/a", "2"), "400 Duplicate rpc_meta key not allowed");
}

TEST(MetadataService, IsBoundedAndGivesRoomBack) {
    MetadataService service(10);
    const auto ask = [&](const char* method, const char* key, const char* body = "") {
        return service.handle({.method = method, .path = "", .parameters = {{"key", key}}, .content_type = {}, .body = body}).status;
    };
    EXPECT_EQ(ask("PUT", "abc", "1234567"), 200);
    EXPECT_EQ(ask("PUT", "d", ""), 507);
    EXPECT_EQ(ask("PUT", "abc", "12345678"), 507);
    EXPECT_EQ(ask("PUT", "abc", "1"), 200);
    EXPECT_EQ(ask("PUT", "d", "12345"), 200);
    EXPECT_EQ(ask("PUT", "e", ""), 507);
    EXPECT_EQ(ask("DELETE", "abc"), 200);
    EXPECT_EQ(ask("PUT", "e", "123"), 200);
}

TEST(MetadataService, ServesHealthBesideMetadata) {
    MetadataService service;
    const auto server = net::HttpServer::create({.host = "127.0.0.1"}).value();
    service.attach(*server);
    server->start();
    const auto directory = make_http_directory(format_text("http://127.0.0.1:{}/metadata", server->port())).value();
    ASSERT_TRUE(directory->put("k", "v", soon()));
    EXPECT_EQ(make_http_directory(format_text("http://127.0.0.1:{}/health", server->port())).value()->get("any", soon()).value(), "OK");
}

}  // namespace
}  // namespace mooncake
