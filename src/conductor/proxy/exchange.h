// SPDX-License-Identifier: Apache-2.0
// Include only in .cpp files: it needs Boost.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/thread_annotations.h"
#include "conductor/proxy/client_stream.h"
#include "conductor/proxy/cluster.h"
#include "conductor/proxy/dialect.h"
#include "conductor/proxy/events.h"
#include "conductor/proxy/options.h"

namespace mooncake::conductor {

/// Who waits for a call of a decode instance, by the id of the request. Thread-safe.
class CallbackTable {
public:
    using Called = std::function<void(Json)>;
    void expect(const std::string& request_id, Called called) MC_EXCLUDES(mutex_);
    void forget(const std::string& request_id) MC_EXCLUDES(mutex_);
    /// False: nobody waits for it.
    bool call(const std::string& request_id, Json body) MC_EXCLUDES(mutex_);

private:
    Mutex mutex_;
    std::map<std::string, Called> waiting_ MC_GUARDED_BY(mutex_);
};

/// What decode instances said at the end of a turn, by conversation; entries end after a while and beyond a number. Thread-safe.
class ConversationTable {
public:
    void remember(const std::string& conversation, Json parameters, Time now) MC_EXCLUDES(mutex_);
    std::optional<Json> recall(const std::string& conversation, Time now) MC_EXCLUDES(mutex_);

private:
    static constexpr Duration kLife = 600s;
    static constexpr size_t kMax = 100'000;
    Mutex mutex_;
    std::map<std::string, std::pair<Json, Time>> entries_ MC_GUARDED_BY(mutex_);
};

/// What all exchanges of a proxy share.
struct ExchangeContext {
    const ProxyOptions& options;
    const Dialect& dialect;
    Cluster& cluster;
    CallbackTable& callbacks;
    ConversationTable& conversations;
    std::string callback_url;
};

struct ClientRequest {
    std::string target, body, request_id, tenant;
    Priority priority = Priority::kNormal;
    Headers headers;  // those that engines are to see
};

/// One request from its arrival to the last byte of its answer: placed, waiting, prefilling, decoding, streaming; and again while nothing was streamed. Lives on
/// one thread of the proxy.
class Exchange : public std::enable_shared_from_this<Exchange> {
public:
    enum class State : uint8_t { kReceived, kWaiting, kPrefilling, kDecoding, kStreaming, kDone };

    Exchange(const ExchangeContext& context, EnginePool& pool, ClientRequest request, ClientStream& client);
    Task<void> run();
    /// The client went away: everything under way for it is aborted.
    void client_left();
    State state() const noexcept { return state_; }
    bool left() const noexcept { return left_; }

private:
    enum class Outcome : uint8_t { kDone, kClientGone, kPrefillFailed, kDecodeFailed, kPairFailed, kBroken };
    /// One try with one pair.
    struct Attempt {
        Cluster::Placed placed;
        HandOver hand_over;
        std::optional<EngineCall> prefill, decode;
        Json said = nullptr;  // by the prefill instance
        std::optional<uint64_t> cached_tokens;
        bool prefill_failed = false, prefill_done = false, decode_failed = false, forwarded = false;
        Error error{};
        Time began = Clock::now();
    };

    Result<Request> describe();
    Task<void> converse();
    Task<bool> wait_for_turn();
    Task<bool> wait_for_somebody();
    std::function<void()> waker();
    Task<Outcome> attempt(Attempt& now);
    Task<void> prefill_leg(Attempt& now);
    Task<void> called_prefill_leg(Attempt& now);
    Task<Outcome> decode_leg(Attempt& now);
    Task<Outcome> pass_whole(Attempt& now);
    Task<Outcome> pass_stream(Attempt& now);
    Task<bool> pass_events(Attempt& now, std::vector<std::string> events);
    Task<bool> learn_engine_id(Attempt& now);
    Task<void> forward_refusal(EngineCall& call);
    Task<void> refuse(const Rejection& rejection);
    Task<void> answer_error(int status, const Error& error, Headers headers);
    void note_event(const std::string& event);
    Outcome failed_as(Attempt& now, Error error, Outcome otherwise);
    EngineRequest engine_request(const Json& body, const Attempt& now, bool prefill) const;
    bool avoid_after(Outcome outcome, const Attempt& now);
    void forget_engine_id(const Attempt& now);

    const ExchangeContext context_;
    EnginePool& pool_;
    const ClientRequest request_;
    ClientStream& client_;
    Json body_;
    Request described_{};
    std::optional<Time> nobody_until_;  // while nobody is fit
    RequestId id_ = 0;
    State state_ = State::kReceived;
    Attempt* current_ = nullptr;
    boost::asio::steady_timer turn_, callback_timer_;
    bool my_turn_ = false, left_ = false, admitted_ = false;
    uint64_t turn_number_ = 0;
    std::optional<Json> called_back_;
    Avoid avoid_;
    const Time received_ = Clock::now();
    Time first_event_{}, last_event_{};
    uint64_t events_ = 0;
    std::string conversation_;
    std::optional<Json> remembered_;
};

}  // namespace mooncake::conductor
