// SPDX-License-Identifier: Apache-2.0
// One attempt: what goes to a prefill and to a decode instance, and what comes back.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "conductor/proxy/exchange.h"

namespace mooncake::conductor {

namespace asio = boost::asio;
using asio::experimental::awaitable_operators::operator&&;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

/// The request itself is to blame; another instance would say the same.
bool blames_request(int status) { return status >= 400 && status < 500 && status != 408 && status != 425 && status != 429; }

bool hop_by_hop(std::string_view name) {
    for (const char* known :
         {"connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade", "proxy-connection"}) {
        if (boost::beast::iequals(boost::beast::string_view(name.data(), name.size()), known)) return true;
    }
    return false;
}

Headers answer_headers(const EngineCall& call) {
    Headers headers;
    for (const auto& field : call.headers()) {
        const auto name = field.name_string();
        if (!hop_by_hop({name.data(), name.size()})) headers.emplace_back(std::string(name), std::string(field.value()));
    }
    return headers;
}

double seconds_since(Time time) { return std::chrono::duration<double>(Clock::now() - time).count(); }

}  // namespace

EngineRequest Exchange::engine_request(const Json& body, const Attempt& now, bool prefill) const {
    EngineRequest request{
        .target = request_.target, .body = body.dump(-1, ' ', false, Json::error_handler_t::replace), .headers = request_.headers};
    request.headers.emplace_back("X-Request-Id", now.hand_over.request_id);
    if (prefill && context_.dialect.needs_engine_id())
        request.headers.emplace_back("X-data-parallel-rank", std::to_string(now.placed.prefill->dp_rank));
    return request;
}

Task<Exchange::Outcome> Exchange::attempt(Attempt& now) {
    now.began = Clock::now();
    if (left_) co_return Outcome::kClientGone;
    if (now.placed.placement.prefill == now.placed.placement.decode) co_return co_await decode_leg(now);
    if (context_.dialect.needs_engine_id() && now.placed.prefill->engine_id.empty()) {
        const bool learned = co_await learn_engine_id(now);
        if (!learned) co_return left_ ? Outcome::kClientGone : Outcome::kPrefillFailed;
    }
    Outcome outcome = Outcome::kDone;
    switch (context_.dialect.sequence()) {
        case Sequence::kPrefillFirst:
            co_await prefill_leg(now);
            if (left_) co_return Outcome::kClientGone;
            if (now.forwarded) co_return Outcome::kDone;
            if (now.prefill_failed) co_return Outcome::kPrefillFailed;
            outcome = co_await decode_leg(now);
            break;
        case Sequence::kTogether: outcome = co_await (decode_leg(now) && prefill_leg(now)); break;
        case Sequence::kDecodeFirst: outcome = co_await (decode_leg(now) && called_prefill_leg(now)); break;
    }
    co_return outcome;
}

Task<void> Exchange::prefill_leg(Attempt& now) {
    if (state_ < State::kPrefilling) state_ = State::kPrefilling;
    const Time began = Clock::now();
    const Endpoint& endpoint = *now.placed.prefill;
    const Json body = called_back_ ? context_.dialect.called_back_body(body_, *called_back_, endpoint, now.hand_over)
                                   : context_.dialect.prefill_body(body_, endpoint, now.hand_over);
    now.prefill.emplace(pool_, endpoint);
    const EngineRequest question = engine_request(body, now, true);
    const auto status = co_await now.prefill->send(question, context_.options.prefill_timeout);
    Result<std::string> answer = std::string();
    if (status && *status == 200)
        answer = co_await now.prefill->read_all(context_.options.answer_bytes_max, context_.options.prefill_timeout);
    if (left_) co_return;
    if (status && *status == 200 && answer) {
        now.said = Json::parse(*answer, nullptr, false);
        now.cached_tokens = cached_tokens_of(now.said);
        now.prefill_done = true;
        context_.cluster.prefill_done(id_, seconds_since(began), now.cached_tokens);
        co_return;
    }
    // Once the answer streams, the decode instance has what it needs.
    if (client_.began() || now.forwarded) co_return;
    if (status && blames_request(*status)) {
        now.forwarded = true;
        if (now.decode) now.decode->abort();
        co_return co_await forward_refusal(*now.prefill);
    }
    now.prefill_failed = true;
    now.error = !status ? status.error() : !answer ? answer.error() : error(Code::kUnavailable, "{} answered {}", endpoint.name, *status);
    // It would wait for blocks that never come.
    if (now.decode) now.decode->abort();
}

/// The decode instance calls when it has room; then the prefill begins.
Task<void> Exchange::called_prefill_leg(Attempt& now) {
    called_back_.reset();
    callback_timer_.expires_after(context_.options.prefill_timeout);
    context_.callbacks.expect(request_.request_id, [self = weak_from_this(), &loop = pool_.loop()](Json body) {
        asio::post(loop, [self, call = std::move(body)]() mutable {
            if (const auto exchange = self.lock()) {
                exchange->called_back_ = std::move(call);
                exchange->callback_timer_.cancel();
            }
        });
    });
    if (!left_ && !now.decode_failed) co_await callback_timer_.async_wait(kTuple);
    context_.callbacks.forget(request_.request_id);
    if (called_back_) co_return co_await prefill_leg(now);
    if (left_ || now.decode_failed || now.forwarded || state_ == State::kStreaming || client_.began()) co_return;
    now.error = error(Code::kTimedOut, "{} did not call back for its prefill", now.placed.decode->name);
    if (now.decode) now.decode->abort();
}

/// A decode instance is told the name of the prefill instance's engine, which only its bootstrap server knows.
Task<bool> Exchange::learn_engine_id(Attempt& now) {
    Endpoint bootstrap = *now.placed.prefill;
    bootstrap.port = bootstrap.bootstrap_port;
    now.prefill.emplace(pool_, bootstrap);
    const EngineRequest question{.method = "GET", .target = "/query"};
    const auto status = co_await now.prefill->send(question, context_.options.probe_timeout);
    Result<std::string> answer = std::string();
    if (status) answer = co_await now.prefill->read_all(1 << 20, context_.options.probe_timeout);
    const Json said = status && *status == 200 && answer ? Json::parse(*answer, nullptr, false) : Json();
    const auto rank = said.is_object() ? said.find(std::to_string(bootstrap.dp_rank)) : said.end();
    const auto engine = rank != said.end() && rank->is_object() ? rank->value("engine_id", Json()) : Json();
    if (!engine.is_string()) {
        now.prefill_failed = true;
        now.error = error(Code::kUnavailable, "the bootstrap server of {} does not know its engine", bootstrap.name);
        co_return false;
    }
    auto known = std::make_shared<Endpoint>(*now.placed.prefill);
    known->engine_id = engine.get<std::string>();
    now.placed.prefill = known;
    context_.cluster.learned_engine_id(*known, known->engine_id);
    co_return true;
}

Exchange::Outcome Exchange::failed_as(Attempt& now, Error problem, Outcome otherwise) {
    callback_timer_.cancel();
    if (left_ || client_.broken()) return Outcome::kClientGone;
    if (now.forwarded) return Outcome::kDone;
    if (now.prefill_failed) return Outcome::kPrefillFailed;  // it was we who ended it
    now.decode_failed = true;
    if (now.error.message().empty()) now.error = std::move(problem);
    if (now.prefill && !now.prefill_done) now.prefill->abort();
    return otherwise;
}

Task<Exchange::Outcome> Exchange::decode_leg(Attempt& now) {
    const Endpoint& endpoint = *now.placed.decode;
    const bool alone = now.placed.placement.prefill == now.placed.placement.decode;
    const Json* said = context_.dialect.sequence() == Sequence::kPrefillFirst ? &now.said : nullptr;
    auto body = alone ? Result<Json>(body_) : context_.dialect.decode_body(body_, *now.placed.prefill, now.hand_over, said);
    if (!body) {
        now.error = body.error();
        now.prefill_failed = true;
        co_return Outcome::kPrefillFailed;
    }
    state_ = State::kDecoding;
    now.decode.emplace(pool_, endpoint);
    const EngineRequest question = engine_request(*body, now, false);
    const auto status = co_await now.decode->send(question, context_.options.first_token_timeout);
    if (!status) co_return failed_as(now, status.error(), Outcome::kDecodeFailed);
    if (blames_request(*status) && !left_ && !now.prefill_failed && !now.forwarded) {
        now.forwarded = true;
        callback_timer_.cancel();
        if (now.prefill) now.prefill->abort();
        co_await forward_refusal(*now.decode);
        co_return Outcome::kDone;
    }
    if (*status != 200) {
        // An engine that answers is well; what it could not do is take over from the other.
        co_return failed_as(now, error(Code::kUnavailable, "{} answered {}", endpoint.name, *status), Outcome::kPairFailed);
    }
    const auto type = now.decode->headers()["Content-Type"];
    Outcome outcome = Outcome::kDone;
    if (type.starts_with("text/event-stream")) outcome = co_await pass_stream(now);
    else outcome = co_await pass_whole(now);
    callback_timer_.cancel();
    if (now.prefill && !now.prefill_done) now.prefill->abort();
    if (outcome != Outcome::kDone) co_return outcome;
    const double gaps = events_ > 1 ? static_cast<double>(events_ - 1) : 0;
    const double gap = gaps > 0 ? std::chrono::duration<double>(last_event_ - first_event_).count() / gaps : 0;
    if (gap > 0) context_.cluster.metrics().tbt.observe(static_cast<uint64_t>(gap * 1e9));
    context_.cluster.metrics().ended("ok").add();
    context_.cluster.finished(id_, now.placed.placement.decode, gap);
    admitted_ = false;
    co_return outcome;
}

Task<Exchange::Outcome> Exchange::pass_whole(Attempt& now) {
    auto answer = co_await now.decode->read_all(context_.options.answer_bytes_max, context_.options.first_token_timeout);
    if (!answer) co_return failed_as(now, answer.error(), Outcome::kDecodeFailed);
    if (answer->empty())
        co_return failed_as(now, error(Code::kCorrupt, "{} answered with nothing", now.placed.decode->name), Outcome::kPairFailed);
    if (left_ || now.prefill_failed) co_return failed_as(now, Error(), Outcome::kPrefillFailed);
    note_event(*answer);
    const std::string text = now.cached_tokens ? correct_usage(std::move(*answer), *now.cached_tokens) : std::move(*answer);
    co_return co_await client_.whole(200, answer_headers(*now.decode), text) ? Outcome::kDone : Outcome::kClientGone;
}

Task<Exchange::Outcome> Exchange::pass_stream(Attempt& now) {
    EventSplitter splitter;
    Error problem;
    while (true) {
        const Duration timeout = client_.began() ? context_.options.stream_timeout : context_.options.first_token_timeout;
        auto piece = co_await now.decode->read(timeout);
        if (!piece) problem = piece.error();
        if (!piece || piece->empty()) break;
        auto events = splitter.feed(*piece);
        if (!events) {
            problem = events.error();
            break;
        }
        if (!co_await pass_events(now, std::move(*events))) co_return Outcome::kClientGone;
    }
    if (left_ || client_.broken()) co_return Outcome::kClientGone;
    if (problem.message().empty() && !splitter.rest().empty())
        problem = error(Code::kCorrupt, "{} ended in the middle of an event", now.placed.decode->name);
    if (!client_.began()) {
        if (problem.message().empty()) problem = error(Code::kCorrupt, "{} streamed nothing", now.placed.decode->name);
        co_return failed_as(now, std::move(problem), Outcome::kPairFailed);
    }
    if (problem.message().empty()) co_return co_await client_.end() ? Outcome::kDone : Outcome::kClientGone;
    now.error = problem;
    if (co_await client_.write(error_events(problem.message()))) co_await client_.end();
    co_return Outcome::kBroken;
}

Task<bool> Exchange::pass_events(Attempt& now, std::vector<std::string> events) {
    std::string text;
    for (std::string& event : events) {
        note_event(event);
        text += now.cached_tokens ? correct_event_usage(std::move(event), *now.cached_tokens) : std::move(event);
    }
    if (text.empty()) co_return true;
    state_ = State::kStreaming;
    if (client_.began()) co_return co_await client_.write(text);
    co_return co_await client_.begin(200, answer_headers(*now.decode), text);
}

/// An engine's own words about a request that is wrong.
Task<void> Exchange::forward_refusal(EngineCall& call) {
    auto text = co_await call.read_all(context_.options.answer_bytes_max, context_.options.probe_timeout);
    context_.cluster.metrics().ended("bad_request").add();
    const std::string body = text && !text->empty() ? *text
                                                    : error_body("the engine refused the request", "invalid_request_error", call.status());
    Headers headers = answer_headers(call);
    if (!text || text->empty()) headers.assign(1, {"Content-Type", "application/json"});
    co_await client_.whole(call.status(), headers, body);
}

}  // namespace mooncake::conductor
