// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/station.h"

#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "net/address.h"

namespace mooncake::ascend {

namespace {

constexpr std::string_view kClientServer = R"({"version":"1.3"})";
constexpr Duration kDisconnectTime = 1s;  // of one that has nothing to wait for

}  // namespace

Station::Station(Settings settings)
    : settings_(std::move(settings)), physical_(settings_.library->acl.physical_id(settings_.device)),
      engine_(settings_.library, settings_.device) {}

Station::~Station() { shut_down(); }

Result<std::unique_ptr<Station>> Station::open(Settings settings) {
    std::unique_ptr<Station> station(new Station(std::move(settings)));
    MC_RETURN_IF_ERROR(station->listen());
    return station;
}

XferEngine::Options Station::options(bool client_server) const {
    const AscendOptions& from = settings_.options;
    // Only what is set: newer libraries refuse keys they do not know. The pool is named, since it is on otherwise.
    XferEngine::Options options{{"adxl.BufferPool", from.buffer_pool}};
    if (from.traffic_class) options["adxl.RdmaTrafficClass"] = std::to_string(*from.traffic_class);
    if (from.service_level) options["adxl.RdmaServiceLevel"] = std::to_string(*from.service_level);
    if (!from.local_comm_res.empty()) options["adxl.LocalCommRes"] = from.local_comm_res;
    else if (client_server) options["adxl.LocalCommRes"] = kClientServer;
    if (!from.global_resource_config.empty()) options["GlobalResourceConfig"] = from.global_resource_config;
    if (from.fabric_memory) options["EnableUseFabricMem"] = "1";
    if (auto_connect_) options["AutoConnect"] = "1";
    return options;
}

Result<> Station::listen() {
    const AscendOptions& from = settings_.options;
    const Library& library = *settings_.library;
    auto_connect_ = from.auto_connect && library.can_auto_connect();
    // That engine takes neither a pool nor fabric memory.
    client_server_ = library.can_client_server() && !from.pooled() && !from.fabric_memory && from.local_comm_res.empty();
    const auto seed = static_cast<uint64_t>(::getpid()) * 2654435761u ^ static_cast<uint64_t>(Clock::now().time_since_epoch().count());
    MC_ASSIGN_OR_RETURN(const auto ports, ports_to_try(from.base_port, physical_, seed));
    size_t busy = 0;
    Error last(Code::kBusy, "none is free");
    for (const uint16_t port : ports) {
        auto lease = PortLease::take(settings_.host, port);
        if (!lease) {
            ++busy;
            continue;
        }
        const std::string name = net::join_host_port(settings_.host, port);
        auto opened = engine_.open(name, options(client_server_));
        if (!opened && client_server_ && opened.error().code() == Code::kInvalidArgument) {
            client_server_ = false;  // the driver is older than the library
            opened = engine_.open(name, options(false));
        }
        if (opened) {
            lease_ = std::move(*lease);
            return {};
        }
        last = std::move(opened).error();
        if (last.code() == Code::kInvalidArgument) return Unexpected(std::move(last));  // of no port
    }
    return fail(Code::kUnavailable, "no port: {} to {} were tried for device {}, {} are in use; {}",
                *std::min_element(ports.begin(), ports.end()), *std::max_element(ports.begin(), ports.end()), settings_.device, busy,
                last.message());
}

EndpointRecord Station::endpoint() const { return {.name = engine_.name(), .physical = physical_, .client_server = client_server_}; }

Result<uint64_t> Station::add(uint64_t address, uint64_t length, bool host) {
    ReadLock calls(calls_);
    if (!engine_.is_open()) return fail(Code::kUnavailable, "the engine of device {} is closed", settings_.device);
    Memory memory{.address = address, .length = length, .host = host};
    // With a pool the library copies host memory through buffers of its own, and need not know it.
    if (!(host && settings_.options.pooled())) {
        MC_ASSIGN_OR_RETURN(memory.handle, engine_.add(address, length, host));
    }
    Lock lock(mutex_);
    memory_[next_handle_] = memory;
    return next_handle_++;
}

Result<> Station::remove(uint64_t handle, bool reached) {
    Memory gone;
    {
        Lock lock(mutex_);
        const auto found = memory_.find(handle);
        if (found == memory_.end()) return {};
        gone = found->second;
        memory_.erase(found);
    }
    if (!reached) {
        ReadLock calls(calls_);
        if (!engine_.is_open() || gone.handle == nullptr || engine_.remove(gone.handle)) return {};
    }
    cut_links();
    WriteLock calls(calls_);
    if (engine_.is_open()) restart();
    return {};
}

/// Ends our own transfers, so that nobody waits for them.
void Station::cut_links() {
    std::vector<std::string> peers;
    {
        Lock lock(mutex_);
        for (const auto& [peer, link] : links_) peers.push_back(peer);
    }
    ReadLock calls(calls_);
    if (!engine_.is_open()) return;
    for (const std::string& peer : peers) (void)engine_.disconnect(peer, kDisconnectTime);
}

/// Whoever is linked, and does not leave by itself, is cut off. Everything but what was removed is there again afterwards.
void Station::restart() {
    const std::string name = engine_.name();
    engine_.close();
    // Where it does not come back nobody reaches anything, either.
    if (const auto opened = engine_.open(name, options(client_server_)); !opened) {
        MC_LOG_ERROR("device {} is not reachable any more: {}", settings_.device, opened.error().to_string());
        return;
    }
    Lock lock(mutex_);
    for (auto& [handle, memory] : memory_) {
        if (memory.handle == nullptr) continue;
        const auto added = engine_.add(memory.address, memory.length, memory.host);
        memory.handle = added ? *added : nullptr;
        if (!added) MC_LOG_ERROR("memory of device {} is not reachable any more: {}", settings_.device, added.error().to_string());
    }
}

void Station::shut_down() {
    cut_links();
    WriteLock calls(calls_);
    engine_.close();
}

std::shared_ptr<Station::Link> Station::link(const std::string& peer) {
    Lock lock(mutex_);
    auto& link = links_[peer];
    if (link == nullptr) link = std::make_shared<Link>();
    return link;
}

abi::Status Station::connect(const std::string& peer, uint64_t owner) {
    const auto made = link(peer);
    Lock lock(made->mutex);
    ReadLock calls(calls_);
    if (!engine_.is_open()) return abi::kFailed;
    made->owner = owner;
    if (auto_connect_) {
        // What there may be of a link knows older memory. A new one comes with the first transfer.
        (void)engine_.disconnect(peer, kDisconnectTime);
        return abi::kSuccess;
    }
    abi::Status status = engine_.connect(peer, settings_.options.connect_timeout);
    if (status == abi::kAlreadyConnected) {
        (void)engine_.disconnect(peer, kDisconnectTime);
        status = engine_.connect(peer, settings_.options.connect_timeout);
    }
    return status;
}

abi::Status Station::disconnect(const std::string& peer, uint64_t owner) {
    const auto ended = link(peer);
    Lock lock(ended->mutex);
    ReadLock calls(calls_);
    if (ended->owner != owner || !engine_.is_open()) return abi::kSuccess;
    const abi::Status status = engine_.disconnect(peer, settings_.options.connect_timeout);
    return status == abi::kNotConnected ? abi::kSuccess : status;
}

abi::Status Station::transfer(const std::string& peer, bool write, const abi::Descriptions& parts, Duration timeout) {
    ReadLock calls(calls_);
    if (!engine_.is_open()) return abi::kFailed;
    abi::Status status = engine_.transfer(peer, write, parts, timeout);
    if (status != abi::kNotConnected || !auto_connect_) return status;
    // It said that it would connect, and has not.
    status = engine_.connect(peer, settings_.options.connect_timeout);
    return status == abi::kSuccess || status == abi::kAlreadyConnected ? engine_.transfer(peer, write, parts, timeout) : status;
}

abi::Status Station::transfer_async(const std::string& peer, bool write, const abi::Descriptions& parts, XferEngine::Request& request) {
    ReadLock calls(calls_);
    if (!engine_.is_open()) return abi::kFailed;
    return engine_.transfer_async(peer, write, parts, request);
}

abi::Status Station::poll(XferEngine::Request request, abi::TransferState& state) {
    ReadLock calls(calls_);
    state = abi::kStateFailed;
    if (!engine_.is_open()) return abi::kFailed;
    return engine_.poll(request, state);
}

}  // namespace mooncake::ascend
