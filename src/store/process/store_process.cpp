// SPDX-License-Identifier: Apache-2.0
#include "store/process/store_process.h"

#include <algorithm>
#include <utility>

#include "base/border.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "net/address.h"
#include "store/protocol/messages_objects.h"

namespace mooncake::store {

namespace {

constexpr Duration kFirstPatience = 5s;  // with a master that is not known to answer
constexpr Duration kReportTime = 60us;   // of one value on a disk, at most
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
    if (config.tenant.size() > kNameBytesMax) {
        MC_LOG_ERROR("the name of a tenant has at most {} bytes, not {}", kNameBytesMax, config.tenant.size());
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

/// What an earlier life left of the segment, if anything can come of it.
Result<std::unique_ptr<WarmMemory>> open_warm(const StoreConfig& config, MasterApi& master) {
    if (config.options.warm_dir.empty() || config.segment_bytes == 0) return nullptr;
    MC_ASSIGN_OR_RETURN(auto warm, WarmMemory::open(config.options.warm_dir, config.segment_bytes));
    const Standing& stood = warm->standing();
    if (!warm->found() || !stood.following) return warm;
    // Another master knows nothing of what the one before did when that process was gone. Who does not answer now will be met when we join.
    const auto met = master.heartbeat(warm->client(), Deadline::after(kFirstPatience));
    if (!met || met->epoch == stood.followed_epoch) return warm;
    MC_LOG_WARNING("the master has changed while this node was away: what its memory held is given up");
    MC_RETURN_IF_ERROR(warm->forget());
    return warm;
}

NodeConfig node_config(const StoreConfig& config) {
    return {.pages = {.huge = config.options.huge_pages, .early = config.options.early_pages}, .checksum = config.options.checksum};
}

ClientConfig client_config(const StoreConfig& config) {
    return {.tenant = config.tenant,
            .buffer_bytes = config.buffer_bytes,
            .checksum = config.options.checksum,
            .http_server = config.http_server,
            .http_port = config.http_port,
            .metrics_interval = config.options.metrics ? config.options.metrics_interval : 0s};
}

}  // namespace

Made StoreClient::create(StoreConfig config) try { return StoreProcess::create(std::move(config), nullptr); }
MC_BORDER(tl::unexpected(StoreCode::kInternalError))  // no thread or no memory was to be had

Made StoreProcess::create(StoreConfig config, std::unique_ptr<MasterApi> master, MembershipOptions membership) {
    if (!makes_sense(config)) return tl::unexpected(StoreCode::kInvalidParams);
    const bool own_engine = config.engine == nullptr;
    std::shared_ptr<Engine> engine = config.engine;
    if (own_engine) {
        auto made = make_engine(config);
        if (!made) return tl::unexpected(made.error());
        engine = std::move(*made);
    }
    if (!master)
        master = connect_master({.address = config.master,
                                 .incarnation = engine->incarnation(),
                                 .connect_timeout = std::min<Duration>(config.options.rpc_connect_timeout, 5s)});
    auto warm = open_warm(config, *master);
    if (!warm) {
        MC_LOG_ERROR("no memory that outlives this process: {}", warm.error().to_string());
        return tl::unexpected(StoreCode::kInvalidParams);
    }
    PoolAccess::Setup setup{.engine = std::move(engine),
                            .master = std::move(master),
                            .name = {},
                            .rpc_timeout = config.options.rpc_timeout,
                            .cluster_id = config.options.cluster_id,
                            .id = *warm ? (*warm)->client() : ClientId{}};
    setup.name = segment_name(config, *setup.engine);
    auto process = std::make_unique<StoreProcess>(std::move(config), std::move(setup), own_engine, std::move(*warm));
    if (const StoreCode code = process->start(std::move(membership)); code != StoreCode::kOk) return tl::unexpected(code);
    return process;
}

StoreProcess::StoreProcess(StoreConfig config, PoolAccess::Setup setup, bool own_engine, std::unique_ptr<WarmMemory> warm)
    : config_(std::move(config)), own_engine_(own_engine), pool_(std::make_unique<PoolAccess>(std::move(setup))),
      node_(std::make_unique<Node>(*pool_, node_config(config_))), client_(std::make_unique<PoolClient>(*pool_, client_config(config_))),
      warm_(std::move(warm)) {}

StoreProcess::~StoreProcess() {
    if (forked()) {  // the threads of these are not there to be joined
        (void)client_.release();
        (void)node_.release();
        (void)pool_.release();
        (void)warm_.release();
        return;
    }
    close();
}

StoreCode StoreProcess::start(MembershipOptions membership) {
    const bool with_disk = !config_.disk.path.empty() || config_.disk.make_tier;
    if (with_disk)
        if (const StoreCode code = node_->open_disk(config_.disk, config_.protocol).code; code != StoreCode::kOk) return code;
    if (const StoreCode code = start_warm(membership); code != StoreCode::kOk) return code;
    // From now on: to read a disk takes as long as it takes. What lies there, and in memory, is told with it, which takes its time, too.
    const uint64_t found = node_->catalogue().objects() + (node_->disk() != nullptr ? node_->disk()->found() : 0);
    const Deadline deadline = Deadline::after(config_.options.rpc_connect_timeout + kReportTime * found);
    if (auto joined = pool_->join({client_.get(), node_.get()}, node_->holdings(), membership, deadline); !joined) {
        MC_LOG_ERROR("cannot join the pool of {}: {}", config_.master, joined.error().to_string());
        return joined.error().code() == Code::kTimedOut ? StoreCode::kRpcTimeout : StoreCode::kRpcFail;
    }
    if (const StoreCode code = client_->start(); code != StoreCode::kOk) return code;
    if (config_.segment_bytes > 0) {
        const MountedSegments mounted = node_->warm() != nullptr ? node_->mount_warm()
                                                                 : node_->mount_memory(config_.segment_bytes, config_.protocol, "");
        // Memory that this pool does not take is of no use to the next process either.
        const bool unwanted = mounted.code == StoreCode::kSegmentNotFound || mounted.code == StoreCode::kSegmentAlreadyExists;
        if (unwanted && node_->warm() != nullptr) node_->warm()->journal().discard();
        if (mounted.code != StoreCode::kOk) return mounted.code;
    }
    started_ = true;
    MC_LOG_INFO("{} is a client of the pool of {}, and lends {} bytes", pool_->name, config_.master, config_.segment_bytes);
    return StoreCode::kOk;
}

StoreCode StoreProcess::start_warm(MembershipOptions& membership) {
    if (!warm_) return StoreCode::kOk;
    auto restarted = node_->open_warm(std::move(warm_), config_.protocol);
    if (!restarted) {
        MC_LOG_ERROR("no memory that outlives this process: {}", restarted.error().to_string());
        return StoreCode::kInternalError;
    }
    membership.restarted = std::move(*restarted);
    return StoreCode::kOk;
}

StoreCode StoreProcess::unmount_disk(Duration grace) {
    if (node_->disk() == nullptr) return StoreCode::kOk;
    const SegmentId id = node_->disk()->spec().id;
    const StoreCode code = node_->unmount({&id, 1}, grace);
    return code == StoreCode::kSegmentNotFound ? StoreCode::kOk : code;  // it is out already
}

void StoreProcess::close() {
    if (forked()) return;
    Lock lock(close_mutex_);
    if (closed_) return;
    closed_ = true;
    // One that could not start leaves what it found to the next.
    WarmMemory* const warm = node_->warm();
    const bool keep = warm != nullptr && (started_ ? config_.options.warm_keep : warm->found());
    if (warm != nullptr && !keep) warm->journal().discard();  // at once: whatever comes may take long
    if (warm_ && !warm_->found()) warm_->remove();
    pool_->begin_closing();
    client_->close();
    node_->stop();
    pool_->leave(/*goodbye=*/!keep);  // our segments leave the pool
    node_->close();                   // the disk heard what the master dropped until now
    if (own_engine_) pool_->engine->close();
}

}  // namespace mooncake::store
