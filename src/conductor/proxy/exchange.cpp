// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/exchange.h"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cmath>
#include <random>

#include "base/log.h"

namespace mooncake::conductor {

namespace asio = boost::asio;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

uint64_t random_room() {
    thread_local std::mt19937_64 random(std::random_device{}());
    return random() >> 1;
}

int status_of(const Rejection& rejection) { return rejection.reason == RejectReason::kNobody ? 503 : 429; }

}  // namespace

void CallbackTable::expect(const std::string& request_id, Called called) {
    Lock lock(mutex_);
    waiting_[request_id] = std::move(called);
}

void CallbackTable::forget(const std::string& request_id) {
    Lock lock(mutex_);
    waiting_.erase(request_id);
}

bool CallbackTable::call(const std::string& request_id, Json body) {
    Called called;
    {
        Lock lock(mutex_);
        const auto found = waiting_.find(request_id);
        if (found == waiting_.end()) return false;
        called = std::move(found->second);
        waiting_.erase(found);
    }
    called(std::move(body));
    return true;
}

void ConversationTable::remember(const std::string& conversation, Json parameters, Time now) {
    Lock lock(mutex_);
    if (entries_.size() >= kMax) std::erase_if(entries_, [&](const auto& entry) { return entry.second.second <= now; });
    if (entries_.size() < kMax) entries_[conversation] = {std::move(parameters), now + kLife};
}

std::optional<Json> ConversationTable::recall(const std::string& conversation, Time now) {
    Lock lock(mutex_);
    const auto found = entries_.find(conversation);
    if (found == entries_.end() || found->second.second <= now) return std::nullopt;
    return found->second.first;
}

Exchange::Exchange(const ExchangeContext& context, EnginePool& pool, ClientRequest request, ClientStream& client)
    : context_(context), pool_(pool), request_(std::move(request)), client_(client), turn_(pool.loop()), callback_timer_(pool.loop()) {}

void Exchange::client_left() {
    left_ = true;
    turn_.cancel();
    callback_timer_.cancel();
    if (current_ == nullptr) return;
    if (current_->prefill) current_->prefill->abort();
    if (current_->decode) current_->decode->abort();
}

Task<void> Exchange::run() {
    context_.cluster.metrics().open.add(1);
    co_await converse();
    if (admitted_) context_.cluster.cancel(id_);  // it did not end well; what ended well is over already
    state_ = State::kDone;
    context_.cluster.metrics().open.add(-1);
}

Result<Request> Exchange::describe() {
    body_ = Json::parse(request_.body, nullptr, false);
    if (!body_.is_object()) return fail(Code::kInvalidArgument, "the body is no JSON object");
    MC_ASSIGN_OR_RETURN(const Prompt prompt, prompt_of(body_));
    const uint32_t block_tokens = context_.options.block_tokens;
    const Json model = body_.value("model", Json());
    const uint64_t seed = seed_of_model(model.is_string() ? model.get<std::string>() : std::string());
    Request request{
        .id = id_, .block_tokens = block_tokens, .tokens = prompt.token_count(), .priority = request_.priority, .tenant = request_.tenant};
    request.blocks = prompt.tokens.empty() ? hash_text(prompt.text, block_tokens * 4, seed)
                                           : hash_tokens(prompt.tokens, block_tokens, seed);
    for (const char* name : {"max_completion_tokens", "max_tokens"}) {
        const auto found = body_.find(name);
        if (found != body_.end() && found->is_number_unsigned()) request.output_tokens = std::min<uint64_t>(found->get<uint64_t>(), 4096);
    }
    if (context_.dialect.remembers_conversations()) {
        const auto found = body_.find("conversation_id");
        if (found != body_.end() && found->is_string()) conversation_ = found->get<std::string>();
        if (!conversation_.empty()) remembered_ = context_.conversations.recall(conversation_, Clock::now());
    }
    return request;
}

Task<void> Exchange::converse() {
    id_ = context_.cluster.next_id();
    ProxyMetrics& metrics = context_.cluster.metrics();
    auto request = describe();
    if (!request) {
        metrics.ended("bad_request").add();
        co_await answer_error(400, request.error(), Headers());
        co_return;
    }
    described_ = std::move(*request);
    auto placed = context_.cluster.submit(described_, waker());
    Error last;
    for (uint32_t number = 1;; ++number) {
        if (const auto* rejection = std::get_if<Rejection>(&placed)) {
            admitted_ = false;
            if (rejection->reason == RejectReason::kNobody && co_await wait_for_somebody()) {
                placed = context_.cluster.submit(described_, waker());
                --number;
                continue;
            }
            metrics.ended(left_ ? "client_left" : "refused").add();
            if (left_) co_return;
            if (rejection->reason == RejectReason::kNobody) metrics.rejected(rejection->reason).add();
            // After failures the reason is that nobody else is left: what failed says more.
            if (number == 1) co_return co_await refuse(*rejection);
            co_return co_await answer_error(502, last, Headers());
        }
        admitted_ = true;
        nobody_until_.reset();
        Attempt now{.placed = std::get<Cluster::Placed>(placed)};
        now.hand_over = {.request_id = request_.request_id,
                         .transfer_id = fmt::format("xfer-{}-{}", request_.request_id, number),
                         .room = random_room(),
                         .callback_url = context_.callback_url,
                         .remembered = remembered_ ? &*remembered_ : nullptr};
        if (!co_await wait_for_turn()) {
            metrics.ended(left_ ? "client_left" : "queue_timeout").add();
            const Rejection full{RejectReason::kQueueFull, 1};
            if (!left_) co_await refuse(full);
            co_return;
        }
        current_ = &now;
        const Outcome outcome = co_await attempt(now);
        current_ = nullptr;
        if (!avoid_after(outcome, now) || number >= context_.options.attempts_max) {
            if (outcome == Outcome::kDone || outcome == Outcome::kClientGone || outcome == Outcome::kBroken) co_return;
            metrics.ended("failed").add();
            co_return co_await answer_error(502, now.error, Headers());
        }
        MC_LOG_WARNING_EVERY(1s, "request {} is placed anew: {}", request_.request_id, now.error.to_string());
        last = now.error;
        my_turn_ = false;
        placed = context_.cluster.place_again(id_, avoid_, waker());
    }
}

/// True: it is worth asking again. Those that failed for this request may be back by then.
Task<bool> Exchange::wait_for_somebody() {
    constexpr Duration kPause = 50ms;
    if (!nobody_until_) nobody_until_ = Clock::now() + context_.options.nobody_timeout;
    if (left_ || Clock::now() + kPause > *nobody_until_) co_return false;
    avoid_ = {};
    turn_.expires_after(kPause);
    co_await turn_.async_wait(kTuple);
    co_return !left_;
}

std::function<void()> Exchange::waker() {
    // A wake of an earlier attempt that comes late must not start this one.
    return [self = weak_from_this(), &loop = pool_.loop(), number = ++turn_number_] {
        asio::post(loop, [self, number] {
            const auto exchange = self.lock();
            if (!exchange || exchange->turn_number_ != number) return;
            exchange->my_turn_ = true;
            exchange->turn_.cancel();
        });
    };
}

Task<bool> Exchange::wait_for_turn() {
    state_ = State::kWaiting;
    const Time began = Clock::now();
    turn_.expires_at(began + context_.options.queue_timeout);
    while (!my_turn_ && !left_ && Clock::now() < began + context_.options.queue_timeout) co_await turn_.async_wait(kTuple);
    context_.cluster.metrics().queued.observe(static_cast<uint64_t>((Clock::now() - began).count()));
    co_return my_turn_ && !left_;
}

/// What the next attempt leaves out. False: there is to be none.
bool Exchange::avoid_after(Outcome outcome, const Attempt& now) {
    Cluster& cluster = context_.cluster;
    const Placement& placement = now.placed.placement;
    avoid_.keep_decode = kNoInstance;
    switch (outcome) {
        case Outcome::kDone:
            if (!now.forwarded) cluster.report(placement, Blame::kNobody);
            return false;
        case Outcome::kClientGone: cluster.metrics().ended("client_left").add(); return false;
        case Outcome::kBroken:
            cluster.metrics().ended("broken").add();
            cluster.report(placement, Blame::kDecode);
            return false;
        case Outcome::kPrefillFailed:
            cluster.report(placement, Blame::kPrefill);
            cluster.metrics().retried("prefill").add();
            avoid_.prefill.push_back(placement.prefill);
            forget_engine_id(now);
            if (!now.decode_failed) avoid_.keep_decode = placement.decode;
            return true;
        case Outcome::kDecodeFailed:
        case Outcome::kPairFailed:
            cluster.report(placement, outcome == Outcome::kPairFailed ? Blame::kPair : Blame::kDecode);
            cluster.metrics().retried(outcome == Outcome::kPairFailed ? "pair" : "decode").add();
            avoid_.decode.push_back(placement.decode);
            if (outcome == Outcome::kPairFailed) forget_engine_id(now);
            return true;
    }
    return false;
}

/// It may have restarted under another one.
void Exchange::forget_engine_id(const Attempt& now) {
    if (context_.dialect.needs_engine_id()) context_.cluster.learned_engine_id(*now.placed.prefill, std::string());
}

void Exchange::note_event(const std::string& event) {
    last_event_ = Clock::now();
    if (events_++ == 0) {
        first_event_ = last_event_;
        context_.cluster.metrics().ttft.observe(static_cast<uint64_t>((last_event_ - received_).count()));
    }
    if (conversation_.empty() || event.find("\"kv_transfer_params\"") == std::string::npos) return;
    const size_t begin = event.find('{'), end = event.rfind('}');
    const Json said = begin == std::string::npos ? Json() : Json::parse(event.substr(begin, end - begin + 1), nullptr, false);
    const auto found = said.is_object() ? said.find("kv_transfer_params") : said.end();
    if (found != said.end() && found->is_object()) context_.conversations.remember(conversation_, *found, last_event_);
}

Task<void> Exchange::refuse(const Rejection& rejection) {
    const auto seconds = static_cast<uint64_t>(std::clamp(std::ceil(rejection.retry_after_seconds), 1.0, 3600.0));
    const int status = status_of(rejection);
    const Error error(Code::kBusy, fmt::format("refused ({}); try again in {} s", reason_name(rejection.reason), seconds));
    Headers headers(1, {"Retry-After", std::to_string(seconds)});
    co_await answer_error(status, error, std::move(headers));
}

Task<void> Exchange::answer_error(int status, const Error& error, Headers headers) {
    headers.emplace_back("Content-Type", "application/json");
    headers.emplace_back("X-Request-Id", request_.request_id);
    const char* type = status == 400 ? "invalid_request_error" : status == 429 ? "rate_limit_error" : "upstream_error";
    co_await client_.whole(status, headers, error_body(error.message(), type, status));
}

}  // namespace mooncake::conductor
