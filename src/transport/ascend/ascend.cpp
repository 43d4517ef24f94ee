// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/ascend.h"

#include <sys/mman.h>

#include <atomic>
#include <list>

#include "base/fork.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "net/address.h"
#include "transport/ascend/ascend_peer.h"
#include "transport/ascend/choice.h"

namespace mooncake::ascend {

namespace {

constexpr std::string_view kName = Route::kTransport;
constexpr Duration kSweepInterval = 250ms;
constexpr size_t kLinkThreadsMax = 64;

LibraryQuery query_of(const AscendOptions& options) { return {.files = options.libraries, .home = options.home, .api = options.api}; }

/// In either direction, host memory and NPUs'.
KindPairs pairs() {
    return {{MemoryKind::kAscend, MemoryKind::kHost}, {MemoryKind::kHost, MemoryKind::kAscend}, {MemoryKind::kAscend, MemoryKind::kAscend}};
}

/// What is in effect, for whoever reads the log.
void tell_settings(const Library& library, const AscendOptions& o, const Stations& stations, bool async) {
    std::string engines;
    for (const auto& station : stations.all)
        engines += format_text("{}{} on NPU {}", engines.empty() ? "" : ", ", station->endpoint().name, station->device());
    MC_LOG_INFO(
        "Ascend over {} ({}): {}; {} transfers, {} workers, links {}{}, connect {} ms, transfer {} ms, idle links {}, buffer pool {}, "
        "fabric memory {}, traffic class {}, service level {}, local resources '{}', resources '{}', RoCE within a host {}",
        library.file, library.successor ? "HIXL" : "ADXL", engines, async ? "asynchronous" : "synchronous", o.workers,
        stations.all.front()->connects_by_itself() ? "by the library" : "made explicitly", o.short_connection ? " for one batch" : "",
        o.connect_timeout / 1ms, o.transfer_timeout / 1ms,
        o.idle_release > 0s ? format_text("released after {} ms", o.idle_release / 1ms) : "kept", o.buffer_pool,
        o.fabric_memory ? "on" : "off", o.traffic_class ? std::to_string(*o.traffic_class) : "default",
        o.service_level ? std::to_string(*o.service_level) : "default", o.local_comm_res, o.global_resource_config,
        o.intra_roce ? "on" : "off");
}

/// What the engine has of a connection.
class PeerHandle final : public Peer {
public:
    explicit PeerHandle(std::shared_ptr<AscendPeer> peer) : peer_(std::move(peer)) {}
    ~PeerHandle() override {
        if (fork_generation() == birth_) peer_->close(Error(Code::kCancelled, "the connection is closed"));
        // Its threads are the parent's.
        // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory for a pointer a fresh child cannot go on
        else new std::shared_ptr<AscendPeer>(std::move(peer_));
    }
    void submit(Direction direction, std::span<const Slice> slices, Submit) override { peer_->submit(direction, slices); }
    Stopped cancel(Completion& completion, const Error& reason, Deadline) override { return peer_->cancel(completion, reason); }
    void close(const Error& reason) override { peer_->close(reason); }
    bool usable() const noexcept override { return peer_->usable(); }

private:
    const uint32_t birth_ = fork_generation();
    std::shared_ptr<AscendPeer> peer_;
};

/// Everything a running transport is made of, in order of construction.
struct Parts {
    AscendOptions options;
    std::shared_ptr<const Library> library;
    Stations stations;
    std::vector<Mapping> bounces;
    std::unique_ptr<AscendMemory> memory;
    std::unique_ptr<ThreadPool> links, workers;
    std::unique_ptr<TimerQueue> timers;
    std::unique_ptr<Poller> poller;
    std::unique_ptr<RouteShared> shared;
    Mutex mutex;
    std::list<std::weak_ptr<AscendPeer>> peers MC_GUARDED_BY(mutex);
    std::atomic<bool> serving{true};
};

class AscendTransport final : public Transport {
public:
    explicit AscendTransport(const TransportContext& context) : context_(context) {}
    ~AscendTransport() override;

    Result<> start(AscendOptions options);

    const Capabilities& capabilities() const noexcept override { return capabilities_; }
    std::string endpoint() const override;
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion& region) override { return parts_->memory->add(region); }
    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline deadline) override;
    Result<> stop_serving(Deadline deadline) override;

private:
    Result<> open_stations();
    Result<> add_bounces();
    Result<> start_threads();
    void sweep();

    const TransportContext context_;
    const uint32_t birth_ = fork_generation();
    const Capabilities capabilities_{.name = kName, .reach = Reach::kNetwork, .rank = 40, .pairs = pairs()};
    std::unique_ptr<Parts> parts_ = std::make_unique<Parts>();
};

AscendTransport::~AscendTransport() {
    if (fork_generation() != birth_) {
        (void)parts_.release();  // the threads exist only in the parent
        return;
    }
    context_.control.serve(std::string(kName), {});
    if (parts_->timers) parts_->timers->stop();
    // Our own links end what polls and what transfers.
    for (const auto& station : parts_->stations.all) station->shut_down();
    if (parts_->workers) parts_->workers->stop();
    if (parts_->links) parts_->links->stop();
    parts_->poller.reset();
}

Result<> AscendTransport::open_stations() {
    const Acl& acl = parts_->library->acl;
    MC_ASSIGN_OR_RETURN(const int count, acl.device_count());
    std::vector<int> physical;
    for (int device = 0; device < count; ++device) physical.push_back(acl.physical_id(device));
    MC_ASSIGN_OR_RETURN(
        const auto devices,
        choose_devices({.names = context_.options.device_allow, .current = acl.current_device(), .count = count, .physical = physical}));
    std::string host = context_.options.advertised_address;
    if (host.empty()) host = context_.options.bind_address;
    if (host.empty()) {
        MC_ASSIGN_OR_RETURN(host, net::first_public_address(context_.options.ipv6));
    }
    // The library takes addresses, and no names.
    MC_ASSIGN_OR_RETURN(const auto addresses, net::resolve(host, 1));
    if (!addresses.empty()) {
        MC_ASSIGN_OR_RETURN(const auto numeric, net::HostPort::parse(addresses.front().to_string()));
        host = numeric.host;
    }
    for (const int device : devices) {
        auto station = Station::open({.library = parts_->library, .options = parts_->options, .host = host, .device = device});
        if (!station) {
            const Code code = station.error().code() == Code::kInvalidArgument ? Code::kInvalidArgument : Code::kNotSupported;
            return Unexpected(Error(code, station.error().message()));
        }
        parts_->stations.all.push_back(std::move(*station));
    }
    return {};
}

Result<> AscendTransport::add_bounces() {
    for (const auto& station : parts_->stations.all) {
        void* const memory = ::mmap(nullptr, Bounce::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return fail(Code::kNoSpace, "no memory for a buffer of {} bytes", Bounce::kBytes);
        parts_->bounces.emplace_back(memory, Bounce::kBytes);
        MC_RETURN_IF_ERROR(station->add(reinterpret_cast<uint64_t>(memory), Bounce::kBytes, true));
        parts_->stations.bounces.push_back(std::make_unique<Bounce>());
        parts_->stations.bounces.back()->memory = static_cast<std::byte*>(memory);
    }
    return {};
}

Result<> AscendTransport::start_threads() {
    Parts& parts = *parts_;
    const auto workers = static_cast<size_t>(parts.options.workers);
    parts.workers = std::make_unique<ThreadPool>(ThreadPool::Options{.name = "mc-ascend", .threads_max = workers, .threads_few = workers});
    parts.links = std::make_unique<ThreadPool>(ThreadPool::Options{.name = "mc-ascend-link", .threads_max = kLinkThreadsMax});
    parts.timers = std::make_unique<TimerQueue>("mc-ascend-clock");
    MC_RETURN_IF_ERROR(parts.workers->start());
    MC_RETURN_IF_ERROR(parts.links->start());
    MC_RETURN_IF_ERROR(parts.timers->start());
    if (parts.options.async && parts.library->can_async()) {
        parts.poller = std::make_unique<Poller>();
        MC_RETURN_IF_ERROR(parts.poller->start());
    } else if (parts.options.async)
        MC_LOG_WARNING("{} has no asynchronous transfers; synchronous ones take their place", parts.library->file);
    return {};
}

Result<> AscendTransport::start(AscendOptions options) {
    Parts& parts = *parts_;
    parts.options = std::move(options);
    MC_RETURN_IF_ERROR(check_settings(parts.options));
    MC_ASSIGN_OR_RETURN(parts.library, load_library(query_of(parts.options)));
    MC_RETURN_IF_ERROR(open_stations());
    MC_RETURN_IF_ERROR(add_bounces());
    MC_RETURN_IF_ERROR(start_threads());
    std::vector<Station*> stations;
    for (const auto& station : parts.stations.all) stations.push_back(station.get());
    parts.memory = std::make_unique<AscendMemory>(std::move(stations));
    // NOLINTNEXTLINE(modernize-make-unique): an aggregate with references, which make_unique cannot name the members of
    parts.shared.reset(new RouteShared{.options = parts.options,
                                       .memory = *parts.memory,
                                       .control = context_.control,
                                       .links = *parts.links,
                                       .workers = *parts.workers,
                                       .timers = *parts.timers,
                                       .poller = parts.poller.get()});
    tell_settings(*parts.library, parts.options, parts.stations, parts.poller != nullptr);
    if (parts.options.idle_release > 0s) parts.timers->every(std::min(kSweepInterval, parts.options.idle_release), [this] { sweep(); });
    context_.control.serve(std::string(kName), [this](std::span<const std::byte> bytes) -> Result<ControlPlane::Bytes> {
        if (!parts_->serving.load(std::memory_order_acquire)) return fail(Code::kUnavailable, "this engine is closing");
        MC_ASSIGN_OR_RETURN(const ResolveRequest request, decode_request(bytes));
        return encode(parts_->memory->resolve(request));
    });
    return {};
}

std::string AscendTransport::endpoint() const {
    std::vector<EndpointRecord> endpoints;
    for (const auto& station : parts_->stations.all) endpoints.push_back(station->endpoint());
    return encode_endpoints(endpoints);
}

Result<std::unique_ptr<Peer>> AscendTransport::connect(const SegmentDescriptor& descriptor, Deadline deadline) {
    const auto endpoint = descriptor.endpoints.find(std::string(kName));
    if (endpoint == descriptor.endpoints.end()) return fail(Code::kNotSupported, "{} offers no Ascend transport", descriptor.name);
    MC_ASSIGN_OR_RETURN(auto endpoints, decode_endpoints(endpoint->second));
    auto peer = std::make_shared<AscendPeer>(*parts_->shared, parts_->stations, descriptor, std::move(endpoints));
    auto handle = std::make_unique<PeerHandle>(peer);
    MC_RETURN_IF_ERROR(peer->connect(deadline));
    Lock lock(parts_->mutex);
    std::erase_if(parts_->peers, [](const auto& one) { return one.expired(); });
    parts_->peers.push_back(peer);
    return handle;
}

Result<> AscendTransport::stop_serving(Deadline) {
    parts_->serving.store(false, std::memory_order_release);
    for (const auto& station : parts_->stations.all) station->shut_down();
    return {};
}

void AscendTransport::sweep() {
    std::vector<std::shared_ptr<AscendPeer>> peers;
    {
        Lock lock(parts_->mutex);
        for (const auto& one : parts_->peers)
            if (auto peer = one.lock()) peers.push_back(std::move(peer));
    }
    for (const auto& peer : peers) peer->sweep();
}

}  // namespace

Result<std::unique_ptr<Transport>> make_ascend_transport(const TransportContext& context) {
    return make_ascend_transport(context, load_ascend_options(process_environment()));
}

Result<std::unique_ptr<Transport>> make_ascend_transport(const TransportContext& context, AscendOptions options) {
    auto transport = std::make_unique<AscendTransport>(context);
    MC_RETURN_IF_ERROR(transport->start(std::move(options)));
    return transport;
}

Result<std::string> ascend_state(const EngineOptions&) {
    MC_ASSIGN_OR_RETURN(const auto library, load_library(query_of(load_ascend_options(process_environment()))));
    MC_ASSIGN_OR_RETURN(const int count, library->acl.device_count());
    return format_text("{} with {} NPUs; the protocol ascend asks for it", library->file, count);
}

}  // namespace mooncake::ascend
