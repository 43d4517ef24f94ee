// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/event_feed.h"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "base/log.h"
#include "conductor/proxy/dialect.h"
#include "conductor/proxy/engine_call.h"
#include "net/address.h"

namespace mooncake::conductor {

namespace asio = boost::asio;
using asio::experimental::awaitable_operators::operator||;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr Duration kPauseBetweenTries = 500ms, kReplayTimeout = 5s;
constexpr uint64_t kReplayEnd = ~uint64_t{0};

/// Eight bytes, the highest first.
std::optional<uint64_t> number_from(const std::string& frame) {
    if (frame.size() != 8) return std::nullopt;
    uint64_t number = 0;
    for (const char byte : frame) number = number << 8 | static_cast<unsigned char>(byte);
    return number;
}

std::string number_frame(uint64_t number) {
    std::string text;
    for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(number >> shift);
    return text;
}

Result<net::HostPort> parse_endpoint(std::string_view endpoint) {
    constexpr std::string_view kTcp = "tcp://";
    if (!endpoint.starts_with(kTcp)) return fail(Code::kInvalidArgument, "{} is no tcp:// endpoint", endpoint);
    MC_ASSIGN_OR_RETURN(net::HostPort address, net::HostPort::parse(endpoint.substr(kTcp.size())));
    if (address.port == 0 || address.host.empty() || address.host == "*")
        return fail(Code::kInvalidArgument, "{} does not say where to connect to", endpoint);
    return address;
}

std::string text_in(const Json& request, const char* name) {
    const auto found = request.find(name);
    return found != request.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

Result<FeedSpec> parse_feed(std::string_view json, uint32_t block_tokens) {
    const Json request = Json::parse(json, nullptr, false);
    if (!request.is_object()) return fail(Code::kInvalidArgument, "the body is no JSON object");
    FeedSpec spec{.instance = text_in(request, "instance_id"),
                  .endpoint = text_in(request, "endpoint"),
                  .replay = text_in(request, "replay_endpoint"),
                  .model = text_in(request, "modelname")};
    if (spec.instance.empty()) return fail(Code::kInvalidArgument, "instance_id is missing");
    MC_RETURN_IF_ERROR(parse_endpoint(spec.endpoint));
    if (!spec.replay.empty()) MC_RETURN_IF_ERROR(parse_endpoint(spec.replay));
    if (const auto size = request.find("block_size"); size != request.end() && *size != block_tokens) {
        return fail(Code::kInvalidArgument, "its blocks have {} tokens, ours have {} (--block_tokens)", size->dump(), block_tokens);
    }
    if (const auto rank = request.find("dp_rank"); rank != request.end() && rank->is_number_unsigned())
        spec.dp_rank = rank->get<uint32_t>();
    return spec;
}

EventFeed::EventFeed(asio::io_context& loop, Cluster& cluster, FeedSpec spec, uint32_t block_tokens)
    : loop_(loop), cluster_(cluster), spec_(std::move(spec)), view_(seed_of_model(spec_.model), block_tokens), socket_(loop), pause_(loop) {
}

asio::awaitable<void> EventFeed::run() {
    const auto self = shared_from_this();
    while (!stopped_) {
        const auto ended = co_await listen();
        if (stopped_) break;
        MC_LOG_WARNING_EVERY(10s, "events of {} at {}: {}", spec_.instance, spec_.endpoint, ended.error().to_string());
        pause_.expires_after(kPauseBetweenTries);
        co_await pause_.async_wait(kTuple);
    }
    forget();
}

void EventFeed::stop() {
    stopped_ = true;
    pause_.cancel();
    boost::system::error_code ignored;
    socket_.close(ignored);
}

asio::awaitable<Result<>> EventFeed::open(Socket& socket, const std::string& endpoint, const char* type, const std::string& first,
                                          zmtp::Parser& parser) {
    const auto address = parse_endpoint(endpoint);
    if (!address) co_return Unexpected(Error(address.error()));
    const auto found = co_await resolve_host(address->host, address->port);
    if (!found) co_return Unexpected(Error(found.error()));
    std::vector<asio::ip::tcp::endpoint> endpoints;
    for (const net::SocketAddress& one : *found) endpoints.push_back(endpoint_of(one));
    auto [unreachable, where] = co_await asio::async_connect(socket, endpoints, kTuple);
    if (unreachable) co_return fail(Code::kUnavailable, "{}: {}", endpoint, unreachable.message());
    // Its greeting is awaited: libzmq gives up on whoever says more before it has said anything.
    const std::string greeting = zmtp::greeting();
    auto [unsent, bytes] = co_await asio::async_write(socket, asio::buffer(greeting), kTuple);
    if (unsent) co_return fail(Code::kUnavailable, "{}: {}", endpoint, unsent.message());
    std::array<char, zmtp::kGreetingBytes> said;
    auto [silent, got] = co_await asio::async_read(socket, asio::buffer(said), kTuple);
    if (silent) co_return fail(Code::kUnavailable, "{}: {}", endpoint, silent.message());
    const auto understood = parser.feed({said.data(), said.size()});
    if (!understood) co_return Unexpected(Error(understood.error()));
    const std::string text = zmtp::ready(type) + first;
    auto [refused, more_bytes] = co_await asio::async_write(socket, asio::buffer(text), kTuple);
    if (refused) co_return fail(Code::kUnavailable, "{}: {}", endpoint, refused.message());
    co_return Result<>();
}

asio::awaitable<Result<>> EventFeed::listen() {
    socket_ = Socket(loop_);
    const std::string first = zmtp::subscribe_all();
    zmtp::Parser parser;
    const auto opened = co_await open(socket_, spec_.endpoint, "SUB", first, parser);
    if (!opened) co_return Unexpected(Error(opened.error()));
    std::array<char, 65536> bytes;
    while (!stopped_) {
        auto [problem, got] = co_await socket_.async_read_some(asio::buffer(bytes), kTuple);
        if (problem) co_return fail(Code::kUnavailable, "the connection ended: {}", problem.message());
        auto messages = parser.feed({bytes.data(), got});
        if (!messages) co_return Unexpected(Error(messages.error()));
        for (const zmtp::Message& message : *messages) co_await hear(message);
    }
    co_return Result<>();
}

/// topic, number, payload; or the payload alone, of a publisher that does not count.
asio::awaitable<void> EventFeed::hear(const zmtp::Message& message) {
    if (message.empty()) co_return;
    const auto number = message.size() >= 3 ? number_from(message[message.size() - 2]) : std::nullopt;
    if (!number) {
        apply(message.back());
        co_return;
    }
    const Turn turn = turn_of(last_, *number);
    if (turn == Turn::kOld) co_return;
    if (turn == Turn::kRestarted) forget();
    if (!last_ && *number > 0)
        (void)co_await replay(0, *number);  // what was said before we came; without it children of those blocks stay unknown
    if (turn == Turn::kGap) {
        const bool filled = co_await replay(*last_ + 1, *number);
        if (!filled) {
            MC_LOG_WARNING_EVERY(10s, "events of {}: {} to {} are missing, all is forgotten", spec_.instance, *last_ + 1, *number);
            forget();
        }
    }
    apply(message.back());
    last_ = *number;
}

/// Messages from .. until - 1 in order. False: not all of them can be had.
asio::awaitable<bool> EventFeed::replay(uint64_t from, uint64_t until) {
    if (spec_.replay.empty()) co_return false;
    Socket socket(loop_);
    asio::steady_timer timer(loop_, kReplayTimeout);
    const auto ask = [&]() -> Task<bool> {
        const std::array<std::string, 2> question{std::string(), number_frame(from)};
        const std::string first = zmtp::encode(question);
        zmtp::Parser parser;
        const auto opened = co_await open(socket, spec_.replay, "DEALER", first, parser);
        if (!opened) co_return false;
        std::array<char, 65536> bytes;
        uint64_t next = from;
        while (true) {
            auto [problem, got] = co_await socket.async_read_some(asio::buffer(bytes), kTuple);
            if (problem) co_return false;
            const auto messages = parser.feed({bytes.data(), got});
            if (!messages) co_return false;
            for (const zmtp::Message& message : *messages) {
                const auto number = message.size() >= 2 ? number_from(message[message.size() - 2]) : std::nullopt;
                if (!number || *number == kReplayEnd) co_return next >= until;
                if (*number > next) co_return false;  // it does not have them any more
                if (*number < next || next >= until) continue;
                apply(message.back());
                ++next;
            }
            if (next >= until) co_return true;
        }
    };
    const auto outcome = co_await (ask() || timer.async_wait(asio::use_awaitable));
    co_return outcome.index() == 0 && std::get<0>(outcome);
}

void EventFeed::apply(const std::string& payload) {
    const auto events = parse_kv_events(payload);
    if (!events) {
        MC_LOG_WARNING_EVERY(10s, "events of {}: {}", spec_.instance, events.error().to_string());
        return forget();  // whatever it was, it is missing now
    }
    cluster_.with_cache([&](PrefixIndex& cache, const auto& find) {
        const InstanceId id = find(spec_.instance);
        if (id == kNoInstance) return;
        for (const KvEvent& event : *events) view_.apply(event, cache, id);
    });
}

void EventFeeds::add(FeedSpec spec) {
    Lock lock(mutex_);
    const Key key{spec.instance, spec.dp_rank};
    auto feed = std::make_shared<EventFeed>(loop_, cluster_, std::move(spec), block_tokens_);
    if (const auto old = feeds_.find(key); old != feeds_.end()) asio::post(loop_, [gone = old->second] { gone->stop(); });
    feeds_[key] = feed;
    asio::post(loop_, [this, feed] { asio::co_spawn(loop_, feed->run(), asio::detached); });
}

bool EventFeeds::remove(std::string_view instance, std::optional<uint32_t> dp_rank) {
    Lock lock(mutex_);
    return std::erase_if(feeds_, [&](const auto& entry) {
               if (entry.first.first != instance || (dp_rank && entry.first.second != *dp_rank)) return false;
               asio::post(loop_, [gone = entry.second] { gone->stop(); });
               return true;
           }) > 0;
}

void EventFeed::forget() {
    last_.reset();
    cluster_.with_cache([&](PrefixIndex& cache, const auto& find) {
        if (const InstanceId id = find(spec_.instance); id != kNoInstance) view_.clear(cache, id);
    });
}

}  // namespace mooncake::conductor
