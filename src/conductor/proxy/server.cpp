// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/server.h"

#include <fcntl.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/thread.h"
#include "conductor/proxy/event_feed.h"
#include "conductor/proxy/exchange.h"
#include "conductor/proxy/pages.h"
#include "net/address.h"
#include "net/socket.h"

namespace mooncake::conductor {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr int kBacklog = 4096;
constexpr size_t kDrainBytesMax = 1 << 20;
constexpr Duration kDrainTimeout = 2s;
constexpr uint32_t kHeaderBytesMax = 64 * 1024;

/// One thread with what lives on it.
struct Loop {
    asio::io_context context{1};
    EnginePool pool{context};
    std::jthread thread;
};

Headers json_headers() { return Headers(1, {"Content-Type", "application/json"}); }

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

std::string new_request_id() {
    thread_local std::mt19937_64 random(std::random_device{}());
    return fmt::format("{:016x}{:016x}", random(), random());
}

/// What engines are to see of a client's header; we say ourselves how long the body is, and read answers as they are.
Headers engine_headers(const http::fields& fields) {
    Headers headers;
    for (const auto& field : fields) {
        bool ours = false;
        for (const char* name : {"host", "content-length", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade",
                                 "expect", "accept-encoding", "x-request-id", "proxy-connection", "x-data-parallel-rank"}) {
            ours |= beast::iequals(field.name_string(), name);
        }
        if (!ours) headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    }
    return headers;
}

/// An id that can be written into headers and JSON: the client's own where it is one.
std::string request_id_of(const http::fields& fields) {
    const std::string_view given = view(fields["X-Request-Id"]);
    return !given.empty() && given.size() <= 200 ? std::string(given) : new_request_id();
}

Priority priority_of(const http::fields& fields) {
    const auto text = fields["X-Priority"];
    return beast::iequals(text, "high") ? Priority::kHigh : beast::iequals(text, "low") ? Priority::kLow : Priority::kNormal;
}

/// Requests under way by their id, so that somebody else than their client can end them. Two of one id are ended together. Thread-safe.
class OpenRequests {
public:
    void add(const std::string& id, asio::io_context& loop, const std::shared_ptr<Exchange>& exchange) MC_EXCLUDES(mutex_) {
        Lock lock(mutex_);
        open_.emplace(id, Entry{&loop, exchange});
    }
    void remove(const std::string& id, const Exchange* exchange) MC_EXCLUDES(mutex_) {
        Lock lock(mutex_);
        const auto [first, last] = open_.equal_range(id);
        for (auto at = first; at != last; ++at) {
            if (at->second.exchange.lock().get() != exchange) continue;
            open_.erase(at);
            return;
        }
    }
    /// As if its client had left: both engines hear of it, and the client's connection ends. False: there is none.
    bool abort(const std::string& id) MC_EXCLUDES(mutex_) {
        Lock lock(mutex_);
        const auto [first, last] = open_.equal_range(id);
        for (auto at = first; at != last; ++at) {
            asio::post(*at->second.loop, [gone = at->second.exchange] {
                if (const auto exchange = gone.lock()) exchange->client_left();
            });
        }
        return first != last;
    }

private:
    struct Entry {
        asio::io_context* loop;
        std::weak_ptr<Exchange> exchange;
    };
    Mutex mutex_;
    std::multimap<std::string, Entry> open_ MC_GUARDED_BY(mutex_);
};

class Server : public ProxyServer {
public:
    Server(ProxyOptions options, std::unique_ptr<Dialect> dialect, metrics::Registry& registry)
        : options_(std::move(options)), dialect_(std::move(dialect)), cluster_(options_.scheduler, registry) {}
    ~Server() override { stop(); }

    Result<> start();
    uint16_t port() const noexcept override { return port_; }
    Cluster& cluster() noexcept override { return cluster_; }
    void stop() override;

private:
    using Message = http::request<http::string_body>;

    Task<void> accept_clients(Tcp::acceptor& acceptor);
    Task<void> serve(Loop& loop, std::shared_ptr<beast::tcp_stream> stream);
    Task<void> refuse_bytes(beast::tcp_stream& stream, boost::system::error_code problem);
    Task<bool> answer(Loop& loop, const std::shared_ptr<beast::tcp_stream>& stream, Message request, bool keep_alive);
    Task<void> watch(std::shared_ptr<beast::tcp_stream> stream, std::shared_ptr<Exchange> exchange);
    Task<void> pass_to_any(Loop& loop, ClientStream& client, const Message& request);
    Task<void> probe_all();
    Task<void> probe(Cluster::Member member);
    void arm(Time when);
    bool called_back(const Message& request);
    PageAnswer change_feeds(const Message& request, bool add);

    const ProxyOptions options_;
    const std::unique_ptr<Dialect> dialect_;
    Cluster cluster_;
    CallbackTable callbacks_;
    ConversationTable conversations_;
    std::string callback_url_;
    std::vector<std::unique_ptr<Loop>> loops_;
    std::optional<EventFeeds> feeds_;
    OpenRequests open_;
    std::optional<Tcp::acceptor> acceptor_;
    std::optional<asio::steady_timer> pump_timer_, probe_timer_;
    std::set<InstanceId> probing_;  // only the first loop's thread
    std::atomic<bool> stopping_{false};
    std::atomic<size_t> connections_{0};
    uint16_t port_ = 0;
};

Result<> Server::start() {
    for (const MemberSpec& member : options_.members) MC_RETURN_IF_ERROR(cluster_.add(member));
    for (int i = 0; i < std::max(1, options_.threads); ++i) loops_.push_back(std::make_unique<Loop>());
    MC_ASSIGN_OR_RETURN(net::Listener listener, options_.host.empty() ? net::listen_on(options_.port, kBacklog)
                                                                      : net::listen_on(options_.host, options_.port, kBacklog));
    port_ = listener.port;
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    ::getsockname(listener.socket.fd(), reinterpret_cast<sockaddr*>(&bound), &length);
    const int fd = ::fcntl(listener.socket.fd(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return fail_errno(Code::kUnavailable, errno, "no descriptor is left");
    acceptor_.emplace(loops_[0]->context, bound.ss_family == AF_INET6 ? Tcp::v6() : Tcp::v4(), fd);
    callback_url_ = options_.advertised_url.empty()
                        ? fmt::format("http://{}/v1/metaserver",
                                      net::join_host_port(options_.host.empty() ? "127.0.0.1" : options_.host, port_))
                        : options_.advertised_url + "/v1/metaserver";
    feeds_.emplace(loops_[0]->context, cluster_, options_.block_tokens);
    pump_timer_.emplace(loops_[0]->context);
    probe_timer_.emplace(loops_[0]->context);
    cluster_.on_next_wake([this](Time when) { asio::post(loops_[0]->context, [this, when] { arm(when); }); });
    asio::co_spawn(loops_[0]->context, accept_clients(*acceptor_), asio::detached);
    if (options_.probe_interval > 0s) asio::co_spawn(loops_[0]->context, probe_all(), asio::detached);
    for (size_t i = 0; i < loops_.size(); ++i) {
        MC_ASSIGN_OR_RETURN(loops_[i]->thread, try_start_thread(fmt::format("mc-conduct-{}", i), [this, i] {
                                const auto work = asio::make_work_guard(loops_[i]->context);
                                loops_[i]->context.run();
                            }));
    }
    return {};
}

void Server::stop() {
    if (stopping_.exchange(true)) return;
    for (auto& loop : loops_) loop->context.stop();
    for (auto& loop : loops_) {
        if (loop->thread.joinable()) loop->thread.join();
    }
    // What the coroutines hold may belong to the first loop's timers and pools: they end before any of those goes.
    acceptor_.reset();
    pump_timer_.reset();
    probe_timer_.reset();
    feeds_.reset();
    for (auto& loop : loops_) loop->pool.clear();
    loops_.clear();
}

void Server::arm(Time when) {
    if (pump_timer_->expiry() > Clock::now() && pump_timer_->expiry() <= when) return;
    pump_timer_->expires_at(when);
    pump_timer_->async_wait([this](boost::system::error_code problem) {
        if (!problem) cluster_.pump();
    });
}

Task<void> Server::accept_clients(Tcp::acceptor& acceptor) {
    for (size_t number = 0;; ++number) {
        Loop& loop = *loops_[number % loops_.size()];
        auto stream = std::make_shared<beast::tcp_stream>(loop.context);
        auto [problem] = co_await acceptor.async_accept(stream->socket(), kTuple);
        if (problem == asio::error::operation_aborted) co_return;
        if (problem || connections_.load() >= options_.connections_max) {
            MC_LOG_WARNING_EVERY(1s, "a connection is refused: {}", problem ? problem.message() : "there are too many");
            if (!problem) continue;
            asio::steady_timer pause(loops_[0]->context, 10ms);  // out of descriptors: some of those in use must end first
            co_await pause.async_wait(kTuple);
            continue;
        }
        net::tune(stream->socket().native_handle());
        ++connections_;
        asio::co_spawn(loop.context, serve(loop, std::move(stream)), asio::detached);
    }
}

Task<void> Server::serve(Loop& loop, std::shared_ptr<beast::tcp_stream> stream) {
    beast::flat_buffer buffer;
    for (bool going = true; going;) {
        http::request_parser<http::string_body> parser;
        parser.body_limit(options_.body_bytes_max);
        parser.header_limit(kHeaderBytesMax);
        stream->expires_after(options_.idle_timeout);
        auto [unread, header_bytes] = co_await http::async_read_header(*stream, buffer, parser, kTuple);
        if (unread) {
            co_await refuse_bytes(*stream, unread);
            break;
        }
        if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
            constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
            auto [unsent, sent] = co_await asio::async_write(*stream, asio::buffer(kContinue), kTuple);
            if (unsent) break;
        }
        stream->expires_after(options_.client_timeout);
        auto [problem, body_bytes] = co_await http::async_read(*stream, buffer, parser, kTuple);
        stream->expires_never();
        if (problem) {
            co_await refuse_bytes(*stream, problem);
            break;
        }
        const bool keep_alive = parser.keep_alive();
        going = co_await answer(loop, stream, parser.release(), keep_alive);
    }
    boost::system::error_code ignored;
    stream->socket().shutdown(Tcp::socket::shutdown_both, ignored);
    --connections_;
}

/// Says what is wrong with bytes that are no request we take, and waits for the client to stop sending: closing at once would take our answer from it.
Task<void> Server::refuse_bytes(beast::tcp_stream& stream, boost::system::error_code problem) {
    const bool too_large = problem == http::error::body_limit;
    const bool nonsense = problem.category() == http::make_error_code(http::error::bad_method).category() &&
                          problem != http::error::end_of_stream && problem != http::error::partial_message;
    if (!too_large && !nonsense) co_return;
    ClientStream client(stream, options_.client_timeout, false);
    const int status = too_large ? 413 : 400;
    const std::string body = error_body(too_large ? "the body is too large" : "this is no HTTP request", "invalid_request_error", status);
    if (!co_await client.whole(status, json_headers(), body)) co_return;
    boost::system::error_code ignored;
    stream.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    stream.expires_after(kDrainTimeout);
    std::string dropped(64 * 1024, ' ');
    for (size_t bytes = 0; bytes < kDrainBytesMax;) {
        auto [ended, got] = co_await stream.async_read_some(asio::buffer(dropped), kTuple);
        if (ended) break;
        bytes += got;
    }
}

Task<bool> Server::answer(Loop& loop, const std::shared_ptr<beast::tcp_stream>& stream, Message request, bool keep_alive) {
    ClientStream client(*stream, options_.client_timeout, keep_alive);
    const std::string target(view(request.target()));
    const std::string path = target.substr(0, target.find('?'));
    const bool post = request.method() == http::verb::post;
    if (post && (path == "/v1/completions" || path == "/v1/chat/completions" || path == "/generate")) {
        ClientRequest what{.target = target,
                           .body = std::move(request.body()),
                           .request_id = request_id_of(request),
                           .tenant = std::string(view(request["X-Tenant-Id"])),
                           .priority = priority_of(request),
                           .headers = engine_headers(request)};
        const ExchangeContext context{options_, *dialect_, cluster_, callbacks_, conversations_, callback_url_};
        const std::string id = what.request_id;
        auto exchange = std::make_shared<Exchange>(context, loop.pool, std::move(what), client);
        asio::co_spawn(loop.context, watch(stream, exchange), asio::detached);
        open_.add(id, loop.context, exchange);
        co_await exchange->run();
        open_.remove(id, exchange.get());
        boost::system::error_code ignored;
        stream->socket().cancel(ignored);  // the watch
        co_return client.keep_alive() && !exchange->left();
    }
    const PageRequest page{
        .method = view(request.method_string()), .path = path, .body = request.body(), .api_key = view(request["X-API-Key"])};
    if (const auto found = answer_page(page, cluster_, options_)) {
        const Headers headers(1, {"Content-Type", found->content_type});
        const std::string body = request.method() == http::verb::head ? std::string() : found->body;
        co_await client.whole(found->status, headers, body);
    } else if (post && (path == "/register" || path == "/unregister")) {
        const PageAnswer changed = change_feeds(request, path == "/register");
        co_await client.whole(changed.status, json_headers(), changed.body);
    } else if (post && path == "/abort_request") {
        const Json body = Json::parse(request.body(), nullptr, false);
        const Json id = body.is_object() ? body.value("request_id", Json()) : Json();
        const bool known = id.is_string() && open_.abort(id.get<std::string>());
        const std::string text = known ? std::string("{}") : error_body("there is no such request", "invalid_request_error", 404);
        co_await client.whole(known ? 200 : 404, json_headers(), text);
    } else if (post && path == "/v1/metaserver") {
        const bool known = called_back(request);
        const std::string body = known ? std::string("{}") : error_body("nobody waits for this request", "invalid_request_error", 404);
        co_await client.whole(known ? 200 : 404, json_headers(), body);
    } else if (request.method() == http::verb::get && path == "/v1/models") {
        co_await pass_to_any(loop, client, request);
    } else {
        co_await client.whole(404, json_headers(), error_body("there is no such page", "invalid_request_error", 404));
    }
    co_return client.keep_alive();
}

/// What an instance publishes about its cache is listened to from now on, or no more.
PageAnswer Server::change_feeds(const Message& request, bool add) {
    const auto wrong = [](int status, std::string_view text) {
        return PageAnswer{.status = status, .body = error_body(text, "invalid_request_error", status)};
    };
    if (!options_.api_key.empty() && view(request["X-API-Key"]) != options_.api_key) return wrong(401, "X-API-Key is missing or wrong");
    if (!add) {
        const Json body = Json::parse(request.body(), nullptr, false);
        const Json name = body.is_object() ? body.value("instance_id", Json()) : Json(),
                   rank = body.is_object() ? body.value("dp_rank", Json()) : Json();
        if (!name.is_string()) return wrong(400, "instance_id is missing");
        std::optional<uint32_t> dp_rank;
        if (rank.is_number_unsigned()) dp_rank = rank.get<uint32_t>();
        return feeds_->remove(name.get<std::string>(), dp_rank) ? PageAnswer{.body = "{}"}
                                                                : wrong(404, "nobody of that name is listened to");
    }
    auto spec = parse_feed(request.body(), options_.block_tokens);
    if (!spec) return wrong(400, spec.error().message());
    bool known = false;
    cluster_.with_cache([&](PrefixIndex&, const auto& find) { known = find(spec->instance) != kNoInstance; });
    if (!known) return wrong(404, "there is no instance of that name; add it first");
    feeds_->add(std::move(*spec));
    return PageAnswer{.body = "{}"};
}

bool Server::called_back(const Message& request) {
    Json call = Json::parse(request.body(), nullptr, false);
    const auto id = call.is_object() ? call.find("request_id") : call.end();
    if (id == call.end() || !id->is_string()) return false;
    const auto name = id->get<std::string>();
    return callbacks_.call(name, std::move(call));
}

/// Ends the exchange when its client goes. One that sends its next request early is not watched any more.
Task<void> Server::watch(std::shared_ptr<beast::tcp_stream> stream, std::shared_ptr<Exchange> exchange) {
    auto [problem] = co_await stream->socket().async_wait(Tcp::socket::wait_read, kTuple);
    if (problem || exchange->state() == Exchange::State::kDone) co_return;
    char byte = 0;
    const auto got = ::recv(stream->socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) exchange->client_left();
}

/// What every instance answers alike.
Task<void> Server::pass_to_any(Loop& loop, ClientStream& client, const Message& request) {
    for (const Cluster::Member& member : cluster_.members()) {
        if (!member.healthy || member.removed) continue;
        EngineCall call(loop.pool, *member.endpoint);
        const auto status = co_await call.send(
            {.method = "GET", .target = std::string(view(request.target())), .headers = engine_headers(request)}, options_.probe_timeout);
        if (!status) continue;
        auto body = co_await call.read_all(options_.answer_bytes_max, options_.probe_timeout);
        if (!body) continue;
        const Headers headers(1, {"Content-Type", std::string(view(call.headers()["Content-Type"]))});
        co_await client.whole(*status, headers, *body);
        co_return;
    }
    co_await client.whole(503, json_headers(), error_body("no instance answers", "upstream_error", 503));
}

Task<void> Server::probe_all() {
    Time next_round{};
    while (!stopping_) {
        const bool all = Clock::now() >= next_round;
        if (all) next_round = Clock::now() + options_.probe_interval;
        for (Cluster::Member& member : cluster_.members()) {
            const bool ill = !member.healthy || member.breaker == BreakerState::kOpen;
            if (member.removed || !(all || ill) || !probing_.insert(member.id).second) continue;
            asio::co_spawn(loops_[0]->context, probe(std::move(member)), asio::detached);
        }
        probe_timer_->expires_after(std::min(options_.probe_interval, options_.ill_probe_interval));
        co_await probe_timer_->async_wait(kTuple);
    }
}

Task<void> Server::probe(Cluster::Member member) {
    EngineCall call(loops_[0]->pool, *member.endpoint);
    const EngineRequest question{.method = "GET", .target = "/health"};
    const auto status = co_await call.send(question, options_.probe_timeout);
    bool ok = status && *status == 200;
    if (status) ok &= static_cast<bool>(co_await call.read_all(1 << 20, options_.probe_timeout));
    cluster_.probed(member.id, member.endpoint.get(), ok);
    probing_.erase(member.id);
}

}  // namespace

Result<std::unique_ptr<ProxyServer>> ProxyServer::create(ProxyOptions options, metrics::Registry& registry) {
    MC_ASSIGN_OR_RETURN(auto dialect, make_dialect(options.dialect));
    if (options.attempts_max == 0 || options.block_tokens == 0)
        return fail(Code::kInvalidArgument, "attempts and block size must be positive");
    auto server = std::make_unique<Server>(std::move(options), std::move(dialect), registry);
    MC_RETURN_IF_ERROR(server->start());
    return server;
}

}  // namespace mooncake::conductor
