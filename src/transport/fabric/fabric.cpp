// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric.h"

#include <algorithm>
#include <list>
#include <thread>

#include "base/fork.h"
#include "base/log.h"
#include "transport/fabric/fabric_peer.h"
#include "transport/fabric/initiators.h"
#include "transport/fabric/nics.h"
#include "transport/fabric/rail_thread.h"

namespace mooncake::fabric {

namespace {

constexpr std::string_view kName = "fabric";
constexpr Duration kSweepInterval = 250ms;
constexpr Duration kReachTime = 2s;  // for a target to which there was no path

int default_parallel() noexcept { return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u)); }

Result<std::vector<Offer>> find_offers(FabricApi& api, const ProviderProfile& profile, const EngineOptions& options) {
    MC_ASSIGN_OR_RETURN(const ProviderQueries queries, queries_for(profile, api.version(), options.fabric, false));
    for (const auto& attempt : queries.tries) {
        std::vector<Offer> found;
        for (const OfferQuery& query : attempt) {
            MC_ASSIGN_OR_RETURN(std::vector<Offer> offers, api.offers(query));
            if (!query.node.empty() && offers.size() > 1) offers.resize(1);
            found.insert(found.end(), offers.begin(), offers.end());
        }
        found = select_offers(std::move(found), options, kRailsMax);
        if (!found.empty()) return found;
    }
    return fail(Code::kNotSupported, "{} finds no NIC for the profile {}", api.description(), profile.name);
}

/// With a NIC that takes memory of devices, any pair: what the NICs of the other side take is known when it answers.
KindPairs pairs_of(std::span<const std::unique_ptr<Rail>> rails) {
    KindPairs pairs;
    if (std::none_of(rails.begin(), rails.end(), [](const auto& rail) { return rail->offer().device_memory; })) return pairs;
    for (size_t local = 0; local < kMemoryKinds; ++local)
        for (size_t remote = 0; remote < kMemoryKinds; ++remote)
            pairs.add({.local = static_cast<MemoryKind>(local), .remote = static_cast<MemoryKind>(remote)});
    return pairs;
}

/// What the engine has of a connection.
class PeerHandle final : public Peer {
public:
    explicit PeerHandle(std::shared_ptr<FabricPeer> peer) : peer_(std::move(peer)) {}
    ~PeerHandle() override {
        if (fork_generation() == birth_) peer_->leave();
        // Its threads are the parent's.
        // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory for a pointer a fresh child cannot go on
        else new std::shared_ptr<FabricPeer>(std::move(peer_));
    }
    void submit(Direction direction, std::span<const Slice> slices, Submit how) override { peer_->submit(direction, slices, how); }
    bool wait(Completion& completion, Deadline deadline) override { return peer_->wait(completion, deadline); }
    Stopped cancel(Completion& completion, const Error& reason, Deadline deadline) override {
        return peer_->cancel(completion, reason, deadline);
    }
    void close(const Error& reason) override { peer_->close(reason); }
    Result<> warm_up(Deadline deadline) override { return peer_->warm_up(deadline); }
    bool usable() const noexcept override { return peer_->usable(); }

private:
    const uint32_t birth_ = fork_generation();
    std::shared_ptr<FabricPeer> peer_;
};

/// Everything a running transport is made of, in order of construction.
struct Parts {
    std::shared_ptr<FabricApi> api;
    ProviderProfile profile;
    std::list<RailMetrics> metrics;  // by rail; empty: nobody reads them
    std::vector<std::unique_ptr<Rail>> rails;
    std::vector<std::unique_ptr<RailThread>> threads;
    std::unique_ptr<FabricMemory> memory;
    std::unique_ptr<Initiators> initiators;
    DoubtTable doubts;
    Mutex mutex;
    std::list<std::weak_ptr<FabricPeer>> peers MC_GUARDED_BY(mutex);
    std::unique_ptr<ControlPool> pool;
    std::unique_ptr<FabricShared> shared;
};

class FabricTransport final : public Transport {
public:
    explicit FabricTransport(const TransportContext& context) : context_(context) {}
    ~FabricTransport() override;

    Result<> start(std::shared_ptr<FabricApi> api);

    const Capabilities& capabilities() const noexcept override { return capabilities_; }
    std::string endpoint() const override;
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion& region) override { return parts_->memory->add(region); }
    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline deadline) override;
    Result<> stop_serving(Deadline) override {
        parts_->memory->stop_serving();
        return {};
    }

private:
    Result<> open_rails(const Topology& topology);
    Result<> start_threads();
    Result<ControlPlane::Bytes> answer(std::span<const std::byte> bytes);
    void sweep();
    void report_paths(std::span<const std::shared_ptr<FabricPeer>> peers);

    const TransportContext context_;
    const uint32_t birth_ = fork_generation();
    Capabilities capabilities_{.name = kName, .reach = Reach::kNetwork, .rank = 50, .warms_up = true};
    std::unique_ptr<Parts> parts_ = std::make_unique<Parts>();
};

FabricTransport::~FabricTransport() {
    if (fork_generation() != birth_) {
        (void)parts_.release();  // the threads exist only in the parent
        return;
    }
    context_.control.serve(std::string(kName), {});
    parts_->pool.reset();
    parts_->initiators.reset();
    parts_->memory.reset();
    parts_->threads.clear();
    parts_->rails.clear();
}

int numa_node_of(const Topology& topology, const std::string& nic) {
    for (const Nic& known : topology.nics)
        if (known.name == nic) return known.numa_node;
    return -1;
}

std::string_view text_of(Fence fence) noexcept {
    switch (fence) {
        case Fence::kNeeded: return "a fence at the target";
        case Fence::kGrace: return "a grace";
        case Fence::kNone: return "nothing";
    }
    return "";
}

/// What is in effect, for whoever reads the log.
void tell_settings(const FabricApi& api, const ProviderProfile& profile, const FabricOptions& options, size_t rails, size_t threads) {
    MC_LOG_INFO(
        "profile {} over {}: {} rails, {} polling threads, stripes of {} KiB, {} at a time, a path stalls after {} ms, connects within {} "
        "ms, "
        "is forgotten after {} s, {} attempts, a moved write waits for {}, {} page entries a NIC, tcp {} take over",
        profile.name, api.description(), rails, threads, profile.stripe_bytes >> 10, options.run, profile.stall_timeout / 1ms,
        profile.connect_timeout / 1ms, profile.idle_timeout / 1s, options.attempts, text_of(profile.fence),
        profile.page_budget == 0 ? "any number of" : std::to_string(profile.page_budget), options.fallback ? "may" : "must not");
}

Result<> FabricTransport::open_rails(const Topology& topology) {
    const EngineOptions& options = context_.options;
    MC_ASSIGN_OR_RETURN(const std::vector<Offer> offers, find_offers(*parts_->api, parts_->profile, options));
    const ProviderProfile& profile = parts_->profile;
    // Where there are several, none takes more of a queue than it can carry soon.
    const uint64_t run = static_cast<uint64_t>(std::max(1, options.fabric.run)) * profile.stripe_bytes;
    const uint64_t window = std::max(profile.flight_bytes_max, run);
    Error last;
    for (const Offer& offer : offers) {
        RailMetrics* const metrics = context_.metrics == nullptr ? nullptr : &parts_->metrics.emplace_back(*context_.metrics, offer.nic);
        auto rail = Rail::open(*parts_->api, offer,
                               {.index = static_cast<uint32_t>(parts_->rails.size()),
                                .profile = profile,
                                .operations_max = options.fabric.operations_max,
                                .window_bytes = window,
                                .run_bytes = offers.size() == 1 ? window : run,
                                .numa_node = numa_node_of(topology, offer.nic),
                                .metrics = metrics});
        if (!rail) {
            // One NIC that does not work is no reason to do without the others.
            MC_LOG_WARNING("{} is left out: {}", offer.nic, rail.error().to_string());
            last = std::move(rail).error();
            continue;
        }
        MC_LOG_INFO("rail {}: {} ({}), {} operations, {} addresses, {} keys, writes complete when {}", parts_->rails.size(), offer.nic,
                    offer.provider, (*rail)->credits_max(), offer.virtual_addresses ? "virtual" : "offset",
                    offer.provider_keys ? "provider's" : "own", offer.delivery_complete ? "delivered" : "sent");
        parts_->rails.push_back(std::move(*rail));
    }
    if (parts_->rails.empty()) return fail(Code::kNotSupported, "no NIC can be opened: {}", last.to_string());
    return {};
}

Result<> FabricTransport::start_threads() {
    const FabricOptions& options = context_.options.fabric;
    const size_t wanted = options.poll_threads > 0 ? static_cast<size_t>(options.poll_threads) : parts_->rails.size();
    const size_t count = std::min(wanted, parts_->rails.size());
    for (size_t i = 0; i < count; ++i) {
        std::vector<Rail*> share;
        for (size_t r = i; r < parts_->rails.size(); r += count) share.push_back(parts_->rails[r].get());
        MC_ASSIGN_OR_RETURN(auto thread, RailThread::start(format_text("mc-fabric-{}", i), std::move(share), options.spin));
        parts_->threads.push_back(std::move(thread));
    }
    return {};
}

Result<> FabricTransport::start(std::shared_ptr<FabricApi> api) {
    Parts& parts = *parts_;
    parts.api = std::move(api);
    MC_ASSIGN_OR_RETURN(const ProviderProfile* const profile, choose_profile(context_.options));
    parts.profile = tuned(*profile, context_.options.fabric);
    if (profile->name == "shm") capabilities_.reach = Reach::kSameHost;
    const Topology topology = topology_for(context_.options);
    MC_RETURN_IF_ERROR(open_rails(topology));
    capabilities_.pairs = pairs_of(parts.rails);
    MC_RETURN_IF_ERROR(start_threads());
    tell_settings(*parts.api, parts.profile, context_.options.fabric, parts.rails.size(), parts.threads.size());
    std::vector<Rail*> rails;
    std::vector<std::string> nics;
    for (const auto& rail : parts.rails) {
        rails.push_back(rail.get());
        nics.push_back(rail->offer().nic);
    }
    const int parallel = context_.options.fabric.registrations_parallel;
    parts.memory = std::make_unique<FabricMemory>(
        rails, FabricMemory::Settings{.limits = {.pages_max = parts.profile.page_budget,
                                                 .registrations_max = parts.profile.registrations_max,
                                                 .registration_bytes_max = parts.profile.registration_bytes_max},
                                      .parallel = parallel > 0 ? parallel : default_parallel(),
                                      .populate = parts.profile.has_devices});
    parts.memory->lend_probe();
    parts.initiators = std::make_unique<Initiators>(rails, parts.profile.idle_timeout);
    parts.pool = std::make_unique<ControlPool>(kSweepInterval, [this] { sweep(); });
    MC_RETURN_IF_ERROR(parts.pool->start());
    // NOLINTNEXTLINE(modernize-make-unique): an aggregate with references, which make_unique cannot name the members of
    parts.shared.reset(new FabricShared{.incarnation = context_.incarnation,
                                        .profile = parts.profile,
                                        .options = context_.options.fabric,
                                        .rails = rails,
                                        .order = RailOrder(topology, nics),
                                        .memory = *parts.memory,
                                        .control = context_.control,
                                        .doubts = parts.doubts,
                                        .pool = *parts.pool});
    context_.control.serve(std::string(kName), [this](std::span<const std::byte> request) { return answer(request); });
    return {};
}

std::string FabricTransport::endpoint() const {
    EndpointBlob blob{.profile = std::string(parts_->profile.name), .rails = {}};
    for (const auto& rail : parts_->rails) blob.rails.push_back(rail->record());
    return encode_endpoint(blob);
}

Result<ControlPlane::Bytes> FabricTransport::answer(std::span<const std::byte> bytes) {
    MC_ASSIGN_OR_RETURN(const Request request, decode_request(bytes, parts_->rails.size()));
    if (const auto* const resolve = std::get_if<ResolveRequest>(&request.body)) return encode_answer(parts_->memory->resolve(*resolve));
    if (const auto* const fence = std::get_if<FenceRequest>(&request.body)) {
        MC_ASSIGN_OR_RETURN(const RailsAnswer rails, parts_->memory->fence(*fence));
        return encode_answer(rails);
    }
    const auto* const ping = std::get_if<PingRequest>(&request.body);
    if (ping != nullptr && !ping->rails.empty() && parts_->profile.announces)
        MC_RETURN_IF_ERROR(parts_->initiators->tell(request.initiator, ping->rails, Clock::now()));
    return encode_answer(parts_->memory->rails());
}

Result<std::unique_ptr<Peer>> FabricTransport::connect(const SegmentDescriptor& descriptor, Deadline deadline) {
    const auto endpoint = descriptor.endpoints.find(std::string(kName));
    if (endpoint == descriptor.endpoints.end()) return fail(Code::kNotSupported, "{} offers no fabric transport", descriptor.name);
    MC_ASSIGN_OR_RETURN(const EndpointBlob blob, decode_endpoint(endpoint->second));
    if (blob.profile != parts_->profile.name)
        return fail(Code::kNotSupported, "{} uses the profile {}, we use {}", descriptor.name, blob.profile, parts_->profile.name);
    MC_ASSIGN_OR_RETURN(auto peer, FabricPeer::connect(*parts_->shared, descriptor, blob, deadline));
    auto handle = std::make_unique<PeerHandle>(peer);
    // The control plane answers, but that does not mean that the rails do: another transport may be the better choice.
    if (parts_->doubts.is_lost(descriptor.incarnation)) {
        MC_RETURN_IF_ERROR(peer->reach(deadline.earlier(Deadline::after(std::min<Duration>(kReachTime, deadline.left() / 2)))));
        parts_->doubts.found(descriptor.incarnation);
    }
    Lock lock(parts_->mutex);
    parts_->peers.push_back(peer);
    return handle;
}

void FabricTransport::sweep() {
    std::vector<std::shared_ptr<FabricPeer>> peers;
    {
        Lock lock(parts_->mutex);
        std::erase_if(parts_->peers, [](const auto& peer) { return peer.expired(); });
        for (const auto& peer : parts_->peers)
            if (auto alive = peer.lock()) peers.push_back(std::move(alive));
    }
    const Time now = Clock::now();
    for (const auto& peer : peers) peer->sweep(now);
    parts_->initiators->sweep(now);
    parts_->memory->mend();
    if (context_.metrics != nullptr) report_paths(peers);
}

void FabricTransport::report_paths(std::span<const std::shared_ptr<FabricPeer>> peers) {
    PathCounts counts(parts_->rails.size());
    for (const auto& peer : peers) peer->count_paths(counts);
    for (size_t rail = 0; rail < counts.size(); ++rail)
        for (size_t state = 0; state < counts[rail].size(); ++state) parts_->rails[rail]->metrics()->paths[state]->set(counts[rail][state]);
}

}  // namespace

Result<std::unique_ptr<Transport>> make_fabric_transport(const TransportContext& context) {
    MC_RETURN_IF_ERROR(choose_profile(context.options));
    MC_ASSIGN_OR_RETURN(auto api, load_library(context.options.fabric.library));
    return make_fabric_transport(context, std::move(api));
}

Result<std::unique_ptr<Transport>> make_fabric_transport(const TransportContext& context, std::shared_ptr<FabricApi> api) {
    auto transport = std::make_unique<FabricTransport>(context);
    MC_RETURN_IF_ERROR(transport->start(std::move(api)));
    return transport;
}

Result<std::string> fabric_state(const EngineOptions& options) {
    MC_RETURN_IF_ERROR(load_library(options.fabric.library));
    return format_text("libfabric is here{}; a protocol or MC_FABRIC_PROVIDER asks for it",
                       options.fabric.provider.empty() ? "" : ", provider " + options.fabric.provider);
}

Result<std::string> efa_state(const EngineOptions& options) {
    if (!has_efa_device("/")) return fail(Code::kNotSupported, "no EFA device is here");
    return fabric_state(options);
}

}  // namespace mooncake::fabric
