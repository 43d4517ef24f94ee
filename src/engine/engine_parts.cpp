// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_parts.h"

#include <new>

#include "base/descriptor_limit.h"
#include "base/error_copy.h"
#include "base/log.h"
#include "engine/messages.h"
#include "net/address.h"

namespace mooncake {

namespace {

constexpr std::string_view kPeerToPeer = "P2PHANDSHAKE";
constexpr std::string_view kSoftware = "mooncake 1.0.0a1";
constexpr Duration kSweepInterval = 1s;
constexpr Duration kPublishPatience = 5s;
constexpr Duration kWithdrawPatience = 500ms;
constexpr int kCloseSteps = 10;

/// True for the addresses of this machine: a name made of one says plainly where its owner wants to be reached.
bool is_own_address(const std::string& host) {
    const auto addresses = net::resolve(host, 0);
    if (!addresses || addresses->empty()) return false;
    const net::SocketAddress& first = addresses->front();
    const int fd = ::socket(first.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool own = ::bind(fd, first.get(), first.length) == 0;
    ::close(fd);
    return own;
}

/// What was asked for by argument and by environment, in one place.
void settle_options(EngineConfig& config) {
    EngineOptions& options = config.options;
    if (options.protocol.empty()) options.protocol = config.protocol;
    options.device_allow.insert(options.device_allow.end(), config.devices.begin(), config.devices.end());
    config.devices.clear();
}

}  // namespace

Result<std::unique_ptr<EngineParts>> EngineParts::create(EngineConfig config) {
    auto parts = std::make_unique<EngineParts>();
    parts->config = std::move(config);
    settle_options(parts->config);
    const EngineOptions& options = parts->config.options;
    raise_descriptor_limit();
    MC_RETURN_IF_ERROR(parts->service.start());
    MC_RETURN_IF_ERROR(net::HostPort::parse(parts->config.local_name));
    if (parts->config.metadata != kPeerToPeer) {
        MC_ASSIGN_OR_RETURN(parts->directory, open_directory(parts->config.metadata, options));
    }
    MC_RETURN_IF_ERROR(parts->listen());
    MC_RETURN_IF_ERROR(parts->choose_names());

    MC_ASSIGN_OR_RETURN(parts->closing, net::Interrupt::create());
    parts->control = std::make_unique<RpcControl>(*parts->client, parts->incarnation);
    // NOLINTNEXTLINE(modernize-make-unique): an aggregate with references, which make_unique cannot name the members of
    parts->context.reset(new TransportContext{.incarnation = parts->incarnation,
                                              .options = options,
                                              .access = parts->access,
                                              .control = *parts->control,
                                              .metrics = &parts->metrics,
                                              .devices = parts->config.memory,
                                              .closing = parts->closing.get()});
    MC_ASSIGN_OR_RETURN(parts->router, Router::create(*parts->context, parts->metrics, parts->service));
    parts->registry = std::make_unique<MemoryRegistry>(parts->access, parts->router->transports());
    auto own = [self = parts.get()](uint32_t buffers_max) { return self->describe(buffers_max); };
    parts->describer = std::make_unique<Describer>(
        Describer::Source{.describe = own, .version = [self = parts.get()] { return self->registry->listing(); }});
    parts->locator = std::make_unique<Locator>(Locator::Options{.directory = parts->directory.get(),
                                                                .cluster_id = options.cluster_id,
                                                                .own_name = parts->name,
                                                                .default_port = options.handshake_port,
                                                                .own = own},
                                               *parts->client);
    parts->sessions = std::make_unique<SessionTable>(
        *parts->locator, *parts->router,
        SessionPolicy{.connect_timeout = options.connect_timeout, .cache_descriptors = options.cache_descriptors});
    MC_ASSIGN_OR_RETURN(const auto own_session, parts->sessions->get(parts->name));
    parts->sessions->id_of(own_session);  // 0
    parts->core.devices = parts->config.memory;
    parts->core.registry = parts->registry.get();
    parts->core.sessions = parts->sessions.get();
    parts->core.service = &parts->service;
    parts->core.notifier = parts.get();

    parts->install_handlers();
    parts->server->start();
    if (parts->directory) {
        parts->publisher = std::make_unique<Publisher>(
            *parts->directory, parts->service, options.cluster_id, parts->name, own,
            [self = parts.get()](const std::string& address, Deadline deadline) { return self->another_lives(address, deadline); });
        MC_RETURN_IF_ERROR(parts->publisher->publish(Deadline::after(kPublishPatience)));
    }
    parts->schedule_sweep();
    if (options.metrics_log) {
        parts->metrics_log = std::make_unique<MetricsLog>(parts->router->metrics_sources());
        parts->schedule_metrics_log();
    }
    MC_LOG_INFO("segment {} listens on {}, incarnation {}", parts->name, net::join_host_port(parts->host, parts->server->port()),
                parts->incarnation.to_string());
    return parts;
}

/// Whoever calls itself by a loopback address is meant for this machine: then nobody else reaches its ports.
Result<> EngineParts::choose_interfaces() {
    EngineOptions& options = config.options;
    MC_ASSIGN_OR_RETURN(const auto named, net::HostPort::parse(config.local_name));
    const bool by_directory = directory != nullptr && !options.advertised_address.empty();
    if (options.bind_address.empty()) options.bind_address = net::loopback_address(by_directory ? options.advertised_address : named.host);
    else if (net::is_wildcard(options.bind_address)) options.bind_address.clear();
    return {};
}

Result<> EngineParts::listen() {
    MC_RETURN_IF_ERROR(choose_interfaces());
    const EngineOptions& options = config.options;
    const rpc::Hello hello{.incarnation = incarnation, .features = 0, .software = std::string(kSoftware)};
    rpc::ServerOptions server_options{.host = options.bind_address,
                                      .port_min = options.port_min,
                                      .port_max = options.port_max,
                                      .backlog = options.listen_backlog,
                                      .message_bytes_max = options.message_bytes_max,
                                      .hello = hello};
    if (options.legacy_port_binding) {
        MC_ASSIGN_OR_RETURN(const auto named, net::HostPort::parse(config.local_name));
        server_options.port = named.port != 0 ? named.port : options.handshake_port;
    }
    MC_ASSIGN_OR_RETURN(server, rpc::Server::create(server_options));
    client = rpc::Client::create({.connect_timeout = options.connect_timeout, .hello = hello});
    return {};
}

Result<> EngineParts::choose_names() {
    MC_ASSIGN_OR_RETURN(const auto given, net::HostPort::parse(config.local_name));
    host = given.host;
    if (!directory) {
        name = net::join_host_port(given.host, server->port());
        return {};
    }
    name = config.local_name;
    if (!config.options.advertised_address.empty()) host = config.options.advertised_address;
    else if (!config.options.legacy_port_binding && !is_own_address(given.host)) {
        host = config.options.bind_address;
        if (host.empty()) {
            MC_ASSIGN_OR_RETURN(host, net::first_public_address(config.options.ipv6));
        }
    }
    return {};
}

void EngineParts::install_handlers() {
    server->handle(rpc::Method::kProbe,
                   [](std::span<const std::byte>, std::unique_ptr<rpc::Responder> responder) { responder->reply({}); });
    server->handle(rpc::Method::kDescribe, [this](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
        auto request = decode_describe_request(body);
        if (!request) return responder->fail(request.error());
        // In directory modes the caller knows our name; an old entry may have led it to somebody else's port.
        if (!request->segment_name.empty() && request->segment_name != name)
            return responder->fail(error(Code::kStale, "this is segment {}, not {}", name, request->segment_name));
        describer->answer(request->buffers_max, std::move(responder));
    });
    server->handle(rpc::Method::kControl, [this](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
        control->answer(body, std::move(responder));
    });
    server->handle(rpc::Method::kNotify, [this](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
        auto notification = decode_notification(body);
        if (!notification) return responder->fail(notification.error());
        if (notification->target && notification->target != incarnation)
            return responder->fail(
                error(Code::kStale, "this is incarnation {}, not {}", incarnation.to_string(), notification->target.to_string()));
        auto added = inbox.add(std::move(notification->notification));
        if (!added) return responder->fail(added.error());
        responder->reply({});
    });
}

SegmentDescriptor EngineParts::describe(uint32_t buffers_max) const {
    return SegmentDescriptor{.name = name,
                             .incarnation = incarnation,
                             .host = host,
                             .rpc_port = server->port(),
                             .boot_id = boot_id(),
                             .endpoints = router->endpoints(),
                             .buffers = registry->buffers(buffers_max),
                             .device_memory = registry->device_memory(kDeviceRangesMax)};
}

bool EngineParts::another_lives(const std::string& address, Deadline deadline) {
    const auto reply = client->call(address, rpc::Method::kDescribe, encode_describe_request(name, 0), deadline);
    if (!reply) return false;  // also that of an engine with another name, which got the port of the one that is gone
    const auto other = decode_descriptor(*reply);
    return other && other->incarnation != incarnation;
}

Result<> EngineParts::notify(Session& session, const Notification& notification, Incarnation life, Deadline deadline) {
    if (locator->is_own(session.name())) return inbox.add(notification);
    // An older peer does not look at whom it is for, so we do, too.
    MC_ASSIGN_OR_RETURN(const auto link, life ? session.link_to(life, deadline) : session.link(deadline));
    auto reply = client->call(link->rpc_address, rpc::Method::kNotify, encode_notification(notification, life), deadline);
    if (!reply) return Unexpected(std::move(reply).error().with_context(format_text("notify {}", session.name())));
    return {};
}

Result<BatchId> EngineParts::submit_alone(const std::shared_ptr<Session>& session, Addresses addresses, Direction direction,
                                          std::span<const Block> blocks, const Notification* notification, Deadline deadline,
                                          Behind behind) try {
    const auto batch = std::make_shared<Batch>(core, 1);
    MC_ASSIGN_OR_RETURN(const BatchId id, batches.add(batch));
    auto submitted = batch->submit(session, std::move(addresses), direction, blocks, notification, deadline, std::move(behind));
    if (submitted) return id;
    (void)batches.remove(id);  // nothing of it runs
    return Unexpected(std::move(submitted).error());
} catch (const std::bad_alloc&) {
    return Unexpected(out_of_memory());
}

void EngineParts::schedule_sweep() {
    service.every(kSweepInterval, [this] {
        if (sweeping.exchange(true, std::memory_order_relaxed)) return;  // the last one still waits for its turn
        bool posted = false;
        try {
            posted = service.post([this] { sweep(); }, reinterpret_cast<uintptr_t>(this));
        } catch (const std::bad_alloc&) {}  // the next one comes
        if (!posted) sweeping.store(false, std::memory_order_relaxed);
    });
}

void EngineParts::sweep() {
    sweeping.store(false, std::memory_order_relaxed);
    sessions->for_each([this](const std::shared_ptr<Session>& session) {
        if (!session->sweep(Clock::now(), config.options.refresh_interval)) return;
        try {
            if (service.post([session] { session->look_after(Clock::now()); }, session->key())) return;
        } catch (const std::bad_alloc&) {}
        session->leave_alone();
    });
    sessions->forget_unused(Clock::now());
}

void EngineParts::schedule_metrics_log() {
    service.every(config.options.metrics_interval, [this] {
        for (const std::string& line : metrics_log->lines(config.options.metrics_interval)) MC_LOG_INFO("{}", line);
    });
}

EngineParts::~EngineParts() {
    if (server) server->stop();  // also where creation failed half-way: its handlers use everything
    Lock lock(fence_mutex);
    if (!gate.closed() || fenced) return;
    // Some process of this host may still be about to touch it: better lost than given to somebody else.
    Lock inner(memory_mutex);
    [[maybe_unused]] const auto* const kept_for_ever = allocations.release();
}

Result<> EngineParts::close() try {
    Lock lock(close_mutex);
    core.closing.store(true, std::memory_order_release);
    // A step that finds no memory is taken again, by whoever calls next: nothing of it is left out.
    std::vector<std::shared_ptr<Link>> links;  // let go when all peers are told, so that we wait for all of them at once
    while (close_further(links)) ++close_steps;
    auto over = fence();
    if (over) let_go();
    return over;
} catch (const std::bad_alloc&) {
    return Unexpected(out_of_memory());
}

/// First everything that a caller may be waiting for ends; then the callers leave; then the peers; then the threads.
bool EngineParts::close_further(std::vector<std::shared_ptr<Link>>& links) {
    switch (close_steps) {
        case 0: return client->stop(), true;
        case 1: return links = sessions->close(Error(Code::kCancelled, "the engine is closed")), true;
        case 2: return closing->set(), true;
        case 3: return batches.cancel_all(), true;
        case 4: return links.clear(), gate.close(), true;
        // Those that were submitted meanwhile: what they wait for goes with the service.
        case 5: return batches.cancel_all(), true;
        case 6: return (void)fence(), true;
        case 7: return service.stop(), true;
        case 8: return withdraw(), true;
        case 9: return server->stop(), true;
        default: static_assert(kCloseSteps == 10); return false;
    }
}

bool EngineParts::closed() {
    Lock lock(close_mutex);
    return close_steps == kCloseSteps;
}

void EngineParts::withdraw() {
    if (!publisher) return;
    try {
        publisher->withdraw(Deadline::after(kWithdrawPatience));
    } catch (const std::bad_alloc&) {
        MC_LOG_WARNING("cannot withdraw {}: out of memory",
                       name);  // as where the directory does not answer: who finds it learns that we are gone
    }
}

void EngineParts::let_go() {
    constexpr Duration kPatience = 1s;  // no call is left that could hold a link
    batches.clear();                    // those that were never freed may hold a link that failed them
    sessions->let_go();
    router->shut_down(Deadline::after(kPatience));
    closing->close();
}

Result<> EngineParts::fence() {
    const Deadline deadline = Deadline::after(config.options.transfer_timeout);
    // Whoever is in a call may be about to register more.
    if (!gate.close(deadline)) return fail(Code::kBusy, "calls are still running");
    Lock lock(fence_mutex);
    if (fenced) return {};
    auto over = registry->close(deadline);
    fenced = over.has_value();
    if (!over) MC_LOG_ERROR("{} is closed, but its memory may still be touched: {}", name, over.error().to_string());
    return over;
}

}  // namespace mooncake
