// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/border.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "net/address.h"
#include "store/client/client_impl.h"

namespace mooncake::store {

namespace {

constexpr uint64_t kSizeLeast = 1024, kBufferMost = uint64_t{1} << 40;

using Made = tl::expected<std::unique_ptr<StoreClient>, StoreCode>;

bool size_makes_sense(uint64_t bytes) { return bytes == 0 || bytes >= kSizeLeast; }

bool makes_sense(const StoreConfig& config) {
    const auto host = net::HostPort::parse(config.local_hostname);
    if (!host || host->host.empty()) {
        MC_LOG_ERROR("'{}' is not the name of a host", config.local_hostname);
        return false;
    }
    if (!size_makes_sense(config.segment_bytes) || !size_makes_sense(config.buffer_bytes) || config.buffer_bytes > kBufferMost) {
        MC_LOG_ERROR("a segment of {} bytes and a buffer of {}: each must be 0 or at least {}", config.segment_bytes, config.buffer_bytes,
                     kSizeLeast);
        return false;
    }
    if (const auto master = net::HostPort::parse(config.master); !master || master->port == 0) {
        MC_LOG_ERROR("'{}' is not the host:port of a master", config.master);
        return false;
    }
    return !config.http_server || config.http_port != 0;
}

Result<std::unique_ptr<Engine>> engine_on(const StoreConfig& config, const std::string& name) {
    EngineConfig engine{.local_name = name,
                        .metadata = config.metadata_server,
                        .protocol = config.protocol,
                        .devices = config.devices,
                        .options = config.options.engine};
    // The port in our name is the one the engine listens on, so that whoever knows a segment's name can open it, with or without a
    // directory, and a port that is taken is noticed.
    engine.options.legacy_port_binding = true;
    return Engine::create(std::move(engine));
}

/// An engine that listens on the port of our name. Tries others as long as the host was given without one.
tl::expected<std::unique_ptr<Engine>, StoreCode> make_engine(const StoreConfig& config) {
    const net::HostPort host = *net::HostPort::parse(config.local_hostname);
    if (host.port != 0) {
        auto engine = engine_on(config, config.local_hostname);
        if (engine) return std::move(*engine);
        MC_LOG_ERROR("cannot be {}: {}", config.local_hostname, engine.error().to_string());
        return tl::unexpected(StoreCode::kInvalidParams);
    }
    const uint64_t ports = config.options.port_max - config.options.port_min + 1u;
    const uint64_t first = random_u64() % ports;
    for (int tries = 0; tries < config.options.setup_tries; ++tries) {
        const auto port = static_cast<uint16_t>(config.options.port_min + (first + static_cast<uint64_t>(tries)) % ports);
        auto engine = engine_on(config, net::join_host_port(host.host, port));
        if (engine) return std::move(*engine);
        if (engine.error().code() != Code::kAlreadyExists && engine.error().code() != Code::kNoSpace) {
            MC_LOG_ERROR("no engine for {}: {}", config.local_hostname, engine.error().to_string());
            return tl::unexpected(engine.error().code() == Code::kInvalidArgument ? StoreCode::kInvalidParams : StoreCode::kInternalError);
        }
    }
    MC_LOG_ERROR("no free port from {} to {} in {} tries", config.options.port_min, config.options.port_max, config.options.setup_tries);
    return tl::unexpected(StoreCode::kInternalError);
}

/// What our segments are called. With an engine of the caller's this is its name, unless another was asked for.
std::string segment_name(const StoreConfig& config, const Engine& engine) {
    const net::HostPort host = *net::HostPort::parse(config.local_hostname);
    return config.engine && host.port != 0 ? host.to_string() : engine.segment_name();
}

}  // namespace

Made StoreClient::create(StoreConfig config) try { return ClientImpl::create(std::move(config), nullptr); }
MC_BORDER(tl::unexpected(StoreCode::kInternalError))  // no thread or no memory was to be had

Made ClientImpl::create(StoreConfig config, std::unique_ptr<MasterApi> master, MembershipOptions membership) {
    if (!makes_sense(config)) return tl::unexpected(StoreCode::kInvalidParams);
    const bool own_engine = config.engine == nullptr;
    std::shared_ptr<Engine> engine = config.engine;
    if (own_engine) {
        auto made = make_engine(config);
        if (!made) return tl::unexpected(made.error());
        engine = std::move(*made);
    }
    const Deadline deadline = Deadline::after(config.options.rpc_connect_timeout);
    if (!master)
        master = connect_master({.address = config.master,
                                 .incarnation = engine->incarnation(),
                                 .connect_timeout = std::min<Duration>(config.options.rpc_connect_timeout, 5s)});
    std::string name = segment_name(config, *engine);
    auto core = std::make_unique<ClientCore>(std::move(config), std::move(engine), std::move(master), std::move(name));
    auto client = std::make_unique<ClientImpl>(std::move(core), own_engine, membership);
    if (const StoreCode code = client->start(deadline); code != StoreCode::kOk) return tl::unexpected(code);
    return client;
}

}  // namespace mooncake::store
