// SPDX-License-Identifier: Apache-2.0
// The proxy between real sockets: clients on one side, engines that do what a test says on the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread_annotations.h"
#include "conductor/proxy/dialect.h"
#include "conductor/proxy/pages.h"
#include "conductor/proxy/server.h"
#include "conductor/testing/fake_engine.h"

namespace mooncake::conductor {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kStream = R"({"model": "m", "prompt": "hello", "stream": true, "max_tokens": 9})";
constexpr const char* kPlain = R"({"model": "m", "prompt": "hello", "max_tokens": 9})";
constexpr const char* kSaid =
    R"({"kv_transfer_params": {"remote_host": "h", "remote_port": 1}, "usage": {"prompt_tokens_details": {"cached_tokens": 3}}})";

void prefill_ok(const SeenRequest&, FakeConnection& connection) { connection.answer(200, kSaid); }

void stream_ok(const SeenRequest&, FakeConnection& connection) {
    connection.begin_stream();
    connection.event(R"({"choices": [{"text": "one"}]})");
    connection.event(R"({"choices": [{"text": "two"}], "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 5}}})");
    connection.event("[DONE]");
    connection.end_stream();
}

void plain_ok(const SeenRequest&, FakeConnection& connection) {
    connection.answer(200, R"({"choices": [{"text": "all"}], "usage": {"prompt_tokens": 5}})", "application/json", "X-Engine: fake\r\n");
}

void drop(const SeenRequest&, FakeConnection& connection) { connection.drop(); }

/// Opened once; who waits goes on then.
class Signal {
public:
    void open() {
        Lock lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    void wait() {
        Lock lock(mutex_);
        while (!open_) changed_.wait(mutex_);
    }

private:
    Mutex mutex_;
    std::condition_variable_any changed_;
    bool open_ = false;
};

class ProxyTest : public testing::Test {
protected:
    void start(ProxyOptions options = {}) {
        options.host = "127.0.0.1";
        options.port = 0;
        if (options.probe_interval == ProxyOptions{}.probe_interval) options.probe_interval = 0s;
        if (options.nobody_timeout == ProxyOptions{}.nobody_timeout) options.nobody_timeout = 0s;
        for (auto& [engine, role] : engines_) {
            options.members.push_back(parse_member_address(engine->address(), role).value());
            options.members.back().bootstrap_port = engine->port();
        }
        server_ = ProxyServer::create(std::move(options), registry_).value();
    }
    FakeEngine& add(Role role, FakeEngine::Script script) {
        engines_.emplace_back(std::make_unique<FakeEngine>(std::move(script)), role);
        return *engines_.back().first;
    }
    FakeClient::Answer ask(const std::string& body, const std::string& headers = "", const std::string& target = "/v1/completions") {
        FakeClient client(server_->port());
        client.post(target, body, headers);
        return client.read();
    }
    FakeClient::Answer get(const std::string& target) {
        FakeClient client(server_->port());
        client.get(target);
        return client.read();
    }
    std::string metrics() { return registry_.to_prometheus_text(); }
    /// A request is counted when the client may have its answer already.
    void await_metric(const std::string& text) {
        while (metrics().find(text) == std::string::npos) std::this_thread::yield();
    }

    metrics::Registry registry_;
    std::vector<std::pair<std::unique_ptr<FakeEngine>, Role>> engines_;
    std::unique_ptr<ProxyServer> server_;
};

TEST_F(ProxyTest, PassesAStreamOnFromPrefillToDecode) {
    FakeEngine& prefill = add(Role::kPrefill, prefill_ok);
    FakeEngine& decode = add(Role::kDecode, stream_ok);
    start();
    const auto answer = ask(kStream, "X-Request-Id: my-id\r\ntraceparent: 00-abc\r\nAuthorization: Bearer k\r\n");
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.whole);
    EXPECT_THAT(answer.headers, HasSubstr("text/event-stream"));
    EXPECT_THAT(answer.headers, HasSubstr("x-engine: fake"));
    EXPECT_THAT(answer.body, HasSubstr("one"));
    EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
    EXPECT_THAT(answer.body, HasSubstr("\"cached_tokens\":3")) << "as the prefill instance counted";
    ASSERT_EQ(prefill.seen().size(), 1u);
    ASSERT_EQ(decode.seen().size(), 1u);
    for (const FakeEngine* engine : {&prefill, &decode}) {
        const SeenRequest request = engine->seen()[0];
        EXPECT_EQ(request.headers.at("x-request-id"), "my-id");
        EXPECT_EQ(request.headers.at("traceparent"), "00-abc");
        EXPECT_EQ(request.headers.at("authorization"), "Bearer k");
        EXPECT_EQ(request.target, "/v1/completions");
    }
    EXPECT_EQ(Json::parse(prefill.seen()[0].body)["max_tokens"], 1);
    EXPECT_EQ(Json::parse(decode.seen()[0].body)["kv_transfer_params"]["remote_host"], "h");
}

TEST_F(ProxyTest, PassesAnAnswerOnThatIsNotStreamed) {
    add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, plain_ok);
    start();
    const auto answer = ask(kPlain, "", "/v1/chat/completions");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(Json::parse(answer.body)["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    EXPECT_THAT(answer.headers, HasSubstr("x-engine: fake"));
}

TEST_F(ProxyTest, KeepsConnectionsOnBothSides) {
    FakeEngine& prefill = add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, stream_ok);
    start();
    FakeClient client(server_->port());
    for (int i = 0; i < 5; ++i) {
        client.post("/v1/completions", kStream);
        EXPECT_TRUE(client.read().whole);
    }
    EXPECT_EQ(prefill.seen().size(), 5u);
}

TEST_F(ProxyTest, PassesEventsOnOneByOne) {
    add(Role::kPrefill, prefill_ok);
    Signal gate;
    add(Role::kDecode, [&](const SeenRequest&, FakeConnection& connection) {
        connection.begin_stream();
        connection.event("first");
        gate.wait();
        connection.event("second");
        connection.end_stream();
    });
    start();
    FakeClient client(server_->port());
    client.post("/v1/completions", kStream);
    EXPECT_TRUE(client.read_until("first")) << "it does not wait for the second";
    gate.open();
    EXPECT_TRUE(client.read().whole);
}

TEST_F(ProxyTest, SpeaksToBothAtOnceInTheDialectOfSglang) {
    Signal gate;
    FakeEngine& prefill = add(Role::kPrefill, [&](const SeenRequest&, FakeConnection& connection) {
        gate.wait();  // it answers only when the decode instance was asked as well
        connection.answer(200, "{}");
    });
    FakeEngine& decode = add(Role::kDecode, [&](const SeenRequest& request, FakeConnection& connection) {
        gate.open();
        EXPECT_TRUE(prefill.wait_for_requests(1));
        stream_ok(request, connection);
    });
    start({.dialect = "sglang"});
    EXPECT_TRUE(ask(R"({"text": "hi", "stream": true})", "", "/generate").whole);
    const Json one = Json::parse(prefill.seen()[0].body), other = Json::parse(decode.seen()[0].body);
    EXPECT_EQ(one["bootstrap_room"], other["bootstrap_room"]);
    EXPECT_TRUE(one["bootstrap_room"].is_number_unsigned());
}

TEST_F(ProxyTest, AsksTheBootstrapServerOnceInTheDialectOfVllmMooncake) {
    FakeEngine bootstrap([](const SeenRequest&, FakeConnection& connection) { connection.answer(200, R"({"0": {"engine_id": "e-7"}})"); });
    FakeEngine& prefill = add(Role::kPrefill, prefill_ok);
    FakeEngine& decode = add(Role::kDecode, [&](const SeenRequest& request, FakeConnection& connection) {
        EXPECT_TRUE(prefill.wait_for_requests(1));
        stream_ok(request, connection);
    });
    ProxyOptions options{.dialect = "vllm-mooncake"};
    auto member = parse_member_address(prefill.address() + "/" + std::to_string(bootstrap.port()), Role::kPrefill).value();
    options.members.push_back(member);
    options.members.push_back(parse_member_address(decode.address(), Role::kDecode).value());
    start(std::move(options));
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(ask(kStream).whole);
    const Json said = Json::parse(decode.seen()[0].body)["kv_transfer_params"];
    EXPECT_EQ(said["remote_engine_id"], "e-7");
    EXPECT_EQ(said["transfer_id"], Json::parse(prefill.seen()[0].body)["kv_transfer_params"]["transfer_id"]);
    EXPECT_EQ(bootstrap.seen().size(), 1u);
}

TEST_F(ProxyTest, StartsThePrefillWhenALayerwiseDecodeInstanceCallsBack) {
    FakeEngine& prefill = add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, [&](const SeenRequest& request, FakeConnection& connection) {
        const Json parameters = Json::parse(request.body)["kv_transfer_params"];
        FakeClient caller(server_->port());
        caller.post("/v1/metaserver", Json{{"request_id", request.headers.at("x-request-id")}, {"remote_block_ids", {4, 5}}}.dump());
        EXPECT_EQ(caller.read().status, 200);
        EXPECT_THAT(parameters["metaserver"].get<std::string>(), HasSubstr("/v1/metaserver"));
        EXPECT_TRUE(prefill.wait_for_requests(1));
        stream_ok(request, connection);
    });
    start({.dialect = "ascend-layerwise"});
    EXPECT_TRUE(ask(kStream).whole);
    EXPECT_EQ(Json::parse(prefill.seen()[0].body)["kv_transfer_params"]["remote_block_ids"], Json::parse("[4, 5]"));
    EXPECT_EQ(ask(R"({"request_id": "nobody"})", "", "/v1/metaserver").status, 404);
    EXPECT_EQ(ask("nonsense", "", "/v1/metaserver").status, 404);
}

TEST_F(ProxyTest, RemembersConversationsInTheDialectOfSeveralTurns) {
    FakeEngine& prefill = add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, [](const SeenRequest&, FakeConnection& connection) {
        connection.answer(200, R"({"choices": [], "kv_transfer_params": {"remote_host": "the-decode"}})");
    });
    start({.dialect = "vllm-multiturn"});
    const std::string body = R"({"prompt": "x", "conversation_id": "c1"})";
    EXPECT_EQ(ask(body).status, 200);
    EXPECT_EQ(ask(body).status, 200);
    EXPECT_EQ(Json::parse(prefill.seen()[1].body)["kv_transfer_params"]["remote_host"], "the-decode");
    EXPECT_TRUE(Json::parse(prefill.seen()[0].body)["kv_transfer_params"]["remote_host"].is_null());
}

TEST_F(ProxyTest, TakesAnotherPrefillInstanceWhenOneFails) {
    FakeEngine& bad = add(Role::kPrefill, drop);
    FakeEngine& good = add(Role::kPrefill, prefill_ok);
    FakeEngine& decode = add(Role::kDecode, stream_ok);
    start({.scheduler = {.policy = Policy::kRoundRobin}});
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ask(kStream).whole);
    EXPECT_GE(bad.seen().size(), 1u);
    EXPECT_EQ(good.seen().size(), 4u);
    EXPECT_EQ(decode.seen().size(), 4u);
    EXPECT_THAT(metrics(), HasSubstr("mooncake_conductor_retries_total{failed=\"prefill\"}"));
}

TEST_F(ProxyTest, AbortsTheDecodeInstanceWhenThePrefillFailsAndStartsOver) {
    Signal decoding, closed;
    FakeEngine& bad = add(Role::kPrefill, [&](const SeenRequest&, FakeConnection& connection) {
        decoding.wait();
        connection.answer(500, "{}");
    });
    add(Role::kPrefill, prefill_ok);
    std::atomic<int> asked{0};
    add(Role::kDecode, [&](const SeenRequest& request, FakeConnection& connection) {
        if (++asked > 1) return stream_ok(request, connection);
        decoding.open();
        if (connection.wait_for_close()) closed.open();  // it waits for blocks that never come
        connection.drop();
    });
    start({.dialect = "sglang", .scheduler = {.policy = Policy::kRoundRobin}});
    EXPECT_TRUE(ask(R"({"text": "hi", "stream": true})", "", "/generate").whole);
    EXPECT_EQ(bad.seen().size(), 1u);
    closed.wait();
}

TEST_F(ProxyTest, TakesAnotherPairWhenTheDecodeInstanceDiesBeforeItStreams) {
    add(Role::kPrefill, prefill_ok);
    FakeEngine& bad = add(Role::kDecode, drop);
    FakeEngine& good = add(Role::kDecode, stream_ok);
    start();
    EXPECT_TRUE(ask(kStream).whole);
    EXPECT_TRUE(ask(kStream).whole);
    EXPECT_EQ(good.seen().size(), 2u);
    EXPECT_LE(bad.seen().size(), 2u);
}

TEST_F(ProxyTest, NeverAnswers200WithNothing) {
    add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, [](const SeenRequest& request, FakeConnection& connection) {
        if (request.body.find("true") == std::string::npos) return connection.answer(200, "");
        connection.begin_stream();
        connection.end_stream();
    });
    start();
    for (const char* body : {kStream, kPlain}) {
        const auto answer = ask(body);
        EXPECT_EQ(answer.status, 502) << body;
        EXPECT_TRUE(Json::parse(answer.body)["error"]["message"].is_string());
    }
}

TEST_F(ProxyTest, EndsAStreamThatBreaksWithAnErrorEvent) {
    add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, [](const SeenRequest&, FakeConnection& connection) {
        connection.begin_stream();
        connection.event("first");
        connection.send("9\r\ndata: sec");  // in the middle of a chunk and of an event
        connection.close();
    });
    start();
    const auto answer = ask(kStream);
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.whole);
    EXPECT_TRUE(answer.body.starts_with("data: first\n\ndata: {\"error\""));
    EXPECT_THAT(answer.body, Not(HasSubstr("sec")));
    EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
    await_metric("outcome=\"broken\"} 1");
}

TEST_F(ProxyTest, HandsOnWhatAnEngineSaysOfABadRequest) {
    add(Role::kPrefill, [](const SeenRequest&, FakeConnection& connection) { connection.answer(422, R"({"error": "too long"})"); });
    FakeEngine& other = add(Role::kPrefill, prefill_ok);
    FakeEngine& decode = add(Role::kDecode, stream_ok);
    start({.scheduler = {.policy = Policy::kRoundRobin}});
    const auto answer = ask(kStream);
    EXPECT_EQ(answer.status, 422);
    EXPECT_EQ(answer.body, R"({"error": "too long"})");
    EXPECT_EQ(other.seen().size() + decode.seen().size(), 0u) << "another one would say the same";
}

TEST_F(ProxyTest, RefusesWhatItCannotRead) {
    add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, stream_ok);
    start({.body_bytes_max = 1000});
    for (const char* bad : {"", "nonsense", "[]", "{}", "{\"prompt\": 3}"}) EXPECT_EQ(ask(bad).status, 400) << bad;
    EXPECT_EQ(ask(std::string(2000, ' ')).status, 413);
    EXPECT_EQ(get("/nowhere").status, 404);
    EXPECT_TRUE(ask(kStream).whole) << "and goes on";
}

TEST_F(ProxyTest, AbortsBothSidesWhenTheClientLeaves) {
    Signal closed;
    FakeEngine& prefill = add(Role::kPrefill, [&](const SeenRequest&, FakeConnection& connection) {
        if (connection.wait_for_close()) closed.open();
        connection.drop();
    });
    FakeEngine& decode = add(Role::kDecode, stream_ok);
    start();
    FakeClient client(server_->port());
    client.post("/v1/completions", kStream);
    ASSERT_TRUE(prefill.wait_for_requests(1));
    client.leave();
    closed.wait();
    EXPECT_EQ(decode.seen().size(), 0u);
    await_metric("outcome=\"client_left\"} 1");
    while (server_->cluster().metrics().open.value() != 0) std::this_thread::yield();
}

TEST_F(ProxyTest, RefusesWithRetryAfterWhenTargetsCannotBeMet) {
    FakeEngine& prefill = add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, stream_ok);
    start({.scheduler = {.window = 1s, .ttft_target = 3.0}});
    const std::string prompt = R"({"stream": true, "prompt": ")" + std::string(60'000, 'x') + "\"}";  // about 1.9 s
    const auto answer = ask(prompt, "X-Priority: low\r\n");
    EXPECT_EQ(answer.status, 429) << "low priorities have 0.6 of the target";
    EXPECT_THAT(answer.headers, HasSubstr("retry-after: "));
    EXPECT_EQ(prefill.seen().size(), 0u) << "before anything is computed";
    EXPECT_TRUE(ask(prompt).whole);
}

TEST_F(ProxyTest, LimitsTenants) {
    Signal gate;
    FakeEngine& prefill = add(Role::kPrefill, [&](const SeenRequest& request, FakeConnection& connection) {
        gate.wait();
        prefill_ok(request, connection);
    });
    add(Role::kDecode, stream_ok);
    start({.scheduler = {.window = 1s, .tenant = {.requests_max = 1}}});
    FakeClient first(server_->port());
    first.post("/v1/completions", kStream, "X-Tenant-Id: a\r\n");
    ASSERT_TRUE(prefill.wait_for_requests(1));
    EXPECT_EQ(ask(kStream, "X-Tenant-Id: a\r\n").status, 429);
    gate.open();
    EXPECT_EQ(ask(kStream, "X-Tenant-Id: b\r\n").status, 200);
    EXPECT_TRUE(first.read().whole);
}

TEST_F(ProxyTest, SaysSoWhenNobodyIsThere) {
    start();
    const auto answer = ask(kStream);
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(answer.headers, HasSubstr("retry-after: "));
    EXPECT_EQ(get("/health").status, 503);
}

TEST_F(ProxyTest, LearnsOfInstancesOverHttp) {
    start({.api_key = "secret"});
    FakeEngine prefill(prefill_ok), decode(stream_ok);
    const std::string key = "X-API-Key: secret\r\n";
    const auto member = [](const FakeEngine& engine, const char* role) {
        return Json{{"url", "http://" + engine.address()}, {"role", role}}.dump();
    };
    EXPECT_EQ(ask(member(prefill, "prefill"), "", "/instances/add").status, 401);
    EXPECT_EQ(ask(member(prefill, "prefill"), key, "/instances/add").status, 200);
    EXPECT_EQ(ask(member(prefill, "prefill"), key, "/instances/add").status, 200) << "instances say it again and again";
    EXPECT_EQ(ask(member(prefill, "decode"), key, "/instances/add").status, 409);
    EXPECT_EQ(ask(member(decode, "decode"), key, "/instances/add").status, 200);
    for (const char* bad : {"", "[]", R"({"role": "prefill"})", R"({"url": "h:1", "role": "cook"})",
                            R"({"host": "a b", "port": 1, "role": "both"})", R"({"host": "h", "port": 70000, "role": "both"})"}) {
        EXPECT_EQ(ask(bad, key, "/instances/add").status, 400) << bad;
    }
    EXPECT_EQ(get("/health").status, 200);
    EXPECT_TRUE(ask(kStream).whole);
    const std::string name = Json{{"name", decode.address()}}.dump();
    EXPECT_EQ(ask(name, key, "/instances/drain").status, 200);
    EXPECT_EQ(ask(kStream).status, 503);
    EXPECT_EQ(ask(name, key, "/instances/undrain").status, 200);
    EXPECT_TRUE(ask(kStream).whole);
    EXPECT_EQ(ask(name, key, "/instances/remove").status, 200);
    EXPECT_EQ(ask(name, key, "/instances/remove").status, 404);
    EXPECT_EQ(ask(kStream).status, 503);
    while (Json::parse(get("/status").body)["instances"].size() != 1) std::this_thread::yield();  // its last request may just be ending
    EXPECT_THAT(get("/metrics").body, HasSubstr("mooncake_conductor_ttft_seconds"));
}

TEST_F(ProxyTest, AvoidsInstancesWhoseProbesFailUntilTheyAnswerAgain) {
    FakeEngine& prefill = add(Role::kPrefill, prefill_ok);
    add(Role::kDecode, stream_ok);
    start({.probe_interval = 5ms});
    prefill.set_healthy(false);
    while (get("/health").status != 503) std::this_thread::yield();
    EXPECT_EQ(ask(kStream).status, 503);
    prefill.set_healthy(true);
    while (get("/health").status != 200) std::this_thread::yield();
    EXPECT_TRUE(ask(kStream).whole);
}

TEST_F(ProxyTest, WaitsAWhileForSomebodyWhoIsFit) {
    FakeEngine prefill(prefill_ok), decode(stream_ok);
    start({.nobody_timeout = 30s});
    FakeClient client(server_->port());
    client.post("/v1/completions", kStream);
    while (server_->cluster().metrics().open.value() != 1) std::this_thread::yield();
    const auto add_later = [&](const FakeEngine& engine, const char* role) {
        return ask(Json{{"url", "http://" + engine.address()}, {"role", role}}.dump(), "", "/instances/add").status;
    };
    EXPECT_EQ(add_later(prefill, "prefill"), 200);
    EXPECT_EQ(add_later(decode, "decode"), 200);
    EXPECT_TRUE(client.read().whole);
}

TEST_F(ProxyTest, TriesOneAgainThatFailedOnceNobodyElseIsLeft) {
    std::atomic<int> asked{0};
    add(Role::kPrefill, [&](const SeenRequest& request, FakeConnection& connection) {
        if (++asked == 1) drop(request, connection);
        else prefill_ok(request, connection);
    });
    add(Role::kDecode, stream_ok);
    start({.nobody_timeout = 30s});
    EXPECT_TRUE(ask(kStream).whole);
    EXPECT_EQ(asked, 2);
}

TEST_F(ProxyTest, AsksForTheEngineIdAgainAfterAFailure) {
    std::atomic<int> life{1};
    add(Role::kPrefill, [&](const SeenRequest& request, FakeConnection& connection) {
        if (request.target == "/query") connection.answer(200, Json{{"0", {{"engine_id", "life-" + std::to_string(life)}}}}.dump());
        else prefill_ok(request, connection);
    });
    FakeEngine& decode = add(Role::kDecode, [&](const SeenRequest& request, FakeConnection& connection) {
        if (request.body.find("life-2") != std::string::npos) return stream_ok(request, connection);
        life = 2;  // it had restarted, and the decode instance could not find the old one
        connection.answer(500, "{}");
    });
    start({.dialect = "vllm-mooncake", .nobody_timeout = 30s});
    EXPECT_TRUE(ask(kStream).whole);
    EXPECT_EQ(decode.seen().size(), 2u);
}

TEST_F(ProxyTest, EndsARequestForSomebodyElse) {
    FakeEngine& prefill = add(Role::kPrefill,
                              [](const SeenRequest&, FakeConnection& connection) { EXPECT_TRUE(connection.wait_for_close()); });
    add(Role::kDecode, stream_ok);
    start();
    FakeClient client(server_->port());
    client.post("/v1/completions", kStream, "X-Request-Id: mine\r\n");
    ASSERT_TRUE(prefill.wait_for_requests(1));
    EXPECT_EQ(ask(R"({"request_id": "other"})", "", "/abort_request").status, 404);
    EXPECT_EQ(ask("[]", "", "/abort_request").status, 404);
    EXPECT_EQ(ask(R"({"request_id": "mine"})", "", "/abort_request").status, 200);
    EXPECT_FALSE(client.read().whole);
    await_metric("client_left");
    EXPECT_EQ(server_->cluster().metrics().open.value(), 0);
    EXPECT_EQ(ask(R"({"request_id": "mine"})", "", "/abort_request").status, 404);
}

TEST_F(ProxyTest, FindsInstancesByTheNamesOfTheirHosts) {
    FakeEngine prefill(prefill_ok), decode(stream_ok);
    const auto at = [](const FakeEngine& engine, Role role) {
        return parse_member_address("localhost:" + std::to_string(engine.port()), role).value();
    };
    start({.members = {at(prefill, Role::kPrefill), at(decode, Role::kDecode)}});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(ask(kStream).whole);
}

TEST_F(ProxyTest, HasAPageForPeople) {
    start();
    const auto page = get("/");
    EXPECT_EQ(page.status, 200);
    EXPECT_THAT(page.headers, HasSubstr("text/html"));
    EXPECT_THAT(page.body, HasSubstr("fetch(\"/status\")"));
}

TEST_F(ProxyTest, HoldsManyStreamsOnFewThreads) {
    add(Role::kPrefill, prefill_ok);
    std::atomic<int> streaming{0};
    Signal gate;
    add(Role::kDecode, [&](const SeenRequest&, FakeConnection& connection) {
        connection.begin_stream();
        connection.event("first");
        ++streaming;
        gate.wait();
        connection.end_stream();
    });
    start({.scheduler = {.window = 3600s, .prefilling_max = 1000}});
    std::vector<std::unique_ptr<FakeClient>> clients;
    for (int i = 0; i < 200; ++i) {
        clients.push_back(std::make_unique<FakeClient>(server_->port()));
        clients.back()->post("/v1/completions", kStream);
    }
    for (auto& client : clients) EXPECT_TRUE(client->read_until("first"));
    EXPECT_EQ(server_->cluster().metrics().open.value(), 200);
    gate.open();
    for (auto& client : clients) EXPECT_TRUE(client->read().whole);
}

TEST_F(ProxyTest, StopsWithRequestsUnderWay) {
    FakeEngine& prefill = add(Role::kPrefill, [](const SeenRequest&, FakeConnection& connection) { connection.wait_for_close(); });
    add(Role::kDecode, stream_ok);
    start();
    FakeClient client(server_->port());
    client.post("/v1/completions", kStream);
    ASSERT_TRUE(prefill.wait_for_requests(1));
    server_->stop();
    EXPECT_FALSE(client.read().whole);
}

TEST(ProxyServer, RefusesOptionsThatMakeNoSense) {
    metrics::Registry registry;
    EXPECT_FALSE(ProxyServer::create({.port = 0, .dialect = "none"}, registry));
    EXPECT_FALSE(ProxyServer::create({.port = 0, .attempts_max = 0}, registry));
    EXPECT_FALSE(parse_member_address("host", Role::kBoth));
    EXPECT_FALSE(parse_member_address("host:1/x", Role::kBoth));
}

}  // namespace
}  // namespace mooncake::conductor
