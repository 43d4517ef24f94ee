// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/testing/fake_fabric.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/unique_fd.h"

namespace mooncake::fabric {

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr int kRefusedStatus = 7;  // as EFA says it
constexpr int kStrangerStatus = 14;

std::pair<std::string, std::string> pair_of(const std::string& a, const std::string& b) {
    return a < b ? std::pair(a, b) : std::pair(b, a);
}

uint64_t id_in(std::span<const std::byte> name) {
    uint64_t id = 0;
    if (name.size() == sizeof id) std::memcpy(&id, name.data(), sizeof id);
    return id;
}

}  // namespace

class FakeKey final : public MemoryKey {
public:
    FakeKey(FakeNetwork& network, std::string nic, uint64_t key) : network_(network), nic_(std::move(nic)), key_(key) {}
    ~FakeKey() override {
        Lock lock(network_.mutex_);
        FakeNetwork::NicState& state = network_.nics_[nic_];
        state.pages -= state.keys[key_].pages;
        state.keys.erase(key_);
        --state.counts.registrations;
    }
    uint64_t key() const noexcept override { return key_; }
    void* descriptor() const noexcept override { return const_cast<FakeKey*>(this); }

private:
    FakeNetwork& network_;
    const std::string nic_;
    const uint64_t key_;
};

class FakeDomain final : public Domain {
public:
    FakeDomain(FakeNetwork& network, const Offer& offer, const FakeNic& nic, const FabricApi::DomainSettings& settings)
        : network_(network), offer_(offer), nic_(nic), settings_(settings), event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        Lock lock(network_.mutex_);
        FakeNetwork::NicState& state = network_.nics_[nic_.name];
        MC_CHECK(state.domain == nullptr);
        state.domain = this;
    }
    ~FakeDomain() override {
        Lock lock(network_.mutex_);
        FakeNetwork::NicState& state = network_.nics_[nic_.name];
        MC_CHECK(state.counts.endpoints == 0 && state.counts.registrations == 0);  // libfabric says "busy"
        state.domain = nullptr;
        state.finished.clear();
        state.counts.addresses = 0;
    }

    Result<std::unique_ptr<Endpoint>> open_endpoint() override;

    Result<AddressHandle> insert_address(std::span<const std::byte> name) override {
        Lock lock(network_.mutex_);
        const uint64_t id = id_in(name);
        if (id == 0) return fail(Code::kInvalidArgument, "not a name of this network");
        size_t slot = 0;  // the lowest that is free, so that a stale handle soon means somebody else
        while (slot < addresses_.size() && addresses_[slot]) ++slot;
        if (slot == settings_.addresses_max) return fail_errno(Code::kNoSpace, ENOSYS, "no room for addresses");
        if (slot == addresses_.size()) addresses_.emplace_back();
        addresses_[slot] = id;
        ++network_.nics_[nic_.name].counts.addresses;
        return slot;
    }
    void remove_address(AddressHandle address) override {
        Lock lock(network_.mutex_);
        MC_CHECK(address < addresses_.size() && addresses_[address]);
        addresses_[address].reset();
        --network_.nics_[nic_.name].counts.addresses;
    }

    Result<std::unique_ptr<MemoryKey>> register_memory(const KeyRequest& request) override;
    size_t poll(std::span<Finished> into) override;
    int wait_fd() const noexcept override { return settings_.sleep ? event_.get() : -1; }
    bool may_sleep() override {
        Lock lock(network_.mutex_);
        return !network_.has_work(nic_.name);
    }
    uint32_t completions_max() const noexcept override { return 2 * nic_.tx_size + 256; }

    void signal() const { ::eventfd_write(event_.get(), 1); }
    /// The endpoint behind a handle; 0: there is none. With the network's lock.
    uint64_t endpoint_at(AddressHandle address) const {
        return address < addresses_.size() && addresses_[address] ? *addresses_[address] : 0;
    }
    bool knows(uint64_t endpoint) const { return std::find(addresses_.begin(), addresses_.end(), endpoint) != addresses_.end(); }
    const FakeNic& nic() const noexcept { return nic_; }
    FakeNetwork& network() const noexcept { return network_; }
    const Offer& offer() const noexcept { return offer_; }

private:
    FakeNetwork& network_;
    const Offer offer_;
    const FakeNic nic_;
    const FabricApi::DomainSettings settings_;
    const UniqueFd event_;
    std::vector<std::optional<uint64_t>> addresses_;  // endpoints; guarded by the network's lock
};

class FakeEndpoint final : public Endpoint {
public:
    FakeEndpoint(FakeDomain& domain, uint64_t id) : domain_(domain), id_(id), name_(sizeof id) {
        std::memcpy(name_.data(), &id, sizeof id);
    }
    ~FakeEndpoint() override {
        Lock lock(domain_.network().mutex_);
        domain_.network().close_endpoint(id_);
    }
    const std::vector<std::byte>& name() const noexcept override { return name_; }
    Result<bool> post(const Operation& operation) override;
    uint64_t id() const noexcept { return id_; }

private:
    FakeDomain& domain_;
    const uint64_t id_;
    std::vector<std::byte> name_;
};

Result<std::unique_ptr<Endpoint>> FakeDomain::open_endpoint() {
    Lock lock(network_.mutex_);
    FakeNetwork::NicState& state = network_.nics_[nic_.name];
    if (state.refuse_endpoints) return fail_errno(Code::kNoSpace, ENOMEM, "no further endpoint");
    const bool again = !state.free_names.empty();
    const uint64_t id = again ? state.free_names.back() : network_.next_endpoint_++;
    if (again) state.free_names.pop_back();
    network_.endpoints_[id] = {.nic = nic_.name};
    ++state.counts.endpoints;
    return std::make_unique<FakeEndpoint>(*this, id);
}

Result<std::unique_ptr<MemoryKey>> FakeDomain::register_memory(const KeyRequest& request) {
    Lock lock(network_.mutex_);
    FakeNetwork::NicState& state = network_.nics_[nic_.name];
    const auto start = reinterpret_cast<uint64_t>(request.address);
    const uint64_t pages = (start + request.length - 1) / kPageBytes - start / kPageBytes + 1;
    const bool fails = state.fail_registration != 0 && --state.fail_registration == 0;
    if (fails || pages > nic_.pages_max - std::min(nic_.pages_max, state.pages))
        return fail_errno(Code::kNoSpace, ENOMEM, "the NIC is full");
    if (offer_.endpoint_keys && request.remote_access && request.serving.empty())
        return fail(Code::kInvalidArgument, "a registration for no endpoint");
    const uint64_t key = offer_.provider_keys ? network_.next_key_++ : request.key;
    if (nic_.key_bytes < 8 && key >> (8 * nic_.key_bytes) != 0)
        return fail(Code::kInvalidArgument, "a key of more than {} bytes", nic_.key_bytes);
    FakeNetwork::Registered registered{.address = request.address,
                                       .length = request.length,
                                       .endpoints = {},
                                       .remote_access = request.remote_access,
                                       .writable = request.writable,
                                       .pages = pages};
    if (offer_.endpoint_keys)
        for (Endpoint* const endpoint : request.serving) registered.endpoints.insert(static_cast<FakeEndpoint*>(endpoint)->id());
    if (!state.keys.emplace(key, std::move(registered)).second) return fail(Code::kBusy, "the key is taken");
    state.pages += pages;
    ++state.counts.registrations;
    return std::make_unique<FakeKey>(network_, nic_.name, key);
}

size_t FakeDomain::poll(std::span<Finished> into) {
    Lock lock(network_.mutex_);
    eventfd_t ignored = 0;
    (void)::eventfd_read(event_.get(), &ignored);
    network_.deliver(nic_.name, nic_.operations_per_poll);
    auto& finished = network_.nics_[nic_.name].finished;
    const size_t count = std::min(into.size(), finished.size());
    std::copy_n(finished.begin(), count, into.begin());
    finished.erase(finished.begin(), finished.begin() + static_cast<ptrdiff_t>(count));
    if (network_.has_work(nic_.name)) signal();
    return count;
}

Result<bool> FakeEndpoint::post(const Operation& operation) {
    FakeNetwork& network = domain_.network();
    Lock lock(network.mutex_);
    FakeNetwork::NicState& state = network.nics_[domain_.nic().name];
    if (operation.length == 0 || operation.length > domain_.nic().operation_bytes_max)
        return fail_errno(Code::kInvalidArgument, EMSGSIZE, "an operation of {} bytes", operation.length);
    if (domain_.offer().local_keys && operation.local_descriptor == nullptr)
        return fail_errno(Code::kInvalidArgument, EACCES, "local memory without a descriptor");
    const uint64_t target = domain_.endpoint_at(operation.peer);
    if (target == 0) {
        ++state.counts.stale_addresses;
        return fail_errno(Code::kInvalidArgument, EINVAL, "no such address");
    }
    if (state.again > 0) {
        --state.again;
        return false;
    }
    // To an endpoint that is gone a provider says "again" for ever.
    if (state.counts.in_flight >= domain_.nic().tx_size || !network.endpoints_.contains(target)) return false;
    network.flying_.push_back({.operation = operation, .from = id_, .to = target, .origin = domain_.nic().name, .late = {}});
    ++state.counts.posted;
    state.counts.in_flight_max = std::max(state.counts.in_flight_max, ++state.counts.in_flight);
    network.signal(network.endpoints_[target].nic);
    return true;
}

// ---- the network

void FakeNetwork::cut(const std::string& a, const std::string& b) {
    Lock lock(mutex_);
    cuts_.insert(pair_of(a, b));
}

void FakeNetwork::heal(const std::string& a, const std::string& b) {
    Lock lock(mutex_);
    cuts_.erase(pair_of(a, b));
    signal(a);
    signal(b);
}

void FakeNetwork::break_link(const std::string& from, const std::string& to, int error) {
    Lock lock(mutex_);
    std::deque<Flying> kept;
    for (Flying& flying : flying_) {
        const bool hit = flying.origin == from && endpoints_.contains(flying.to) && endpoints_[flying.to].nic == to;
        if (hit) finish(flying, error, 0);
        else kept.push_back(std::move(flying));
    }
    flying_ = std::move(kept);
}

void FakeNetwork::stop(const std::string& nic) {
    Lock lock(mutex_);
    nics_[nic].stopped = true;
}

void FakeNetwork::go_on(const std::string& nic) {
    Lock lock(mutex_);
    nics_[nic].stopped = false;
    for (const auto& [name, state] : nics_) signal(name);
}

void FakeNetwork::again(const std::string& nic, uint32_t posts) {
    Lock lock(mutex_);
    nics_[nic].again = posts;
}

void FakeNetwork::set_late_writes(bool on) {
    Lock lock(mutex_);
    late_writes_ = on;
}

void FakeNetwork::set_lose_flushes(bool on) {
    Lock lock(mutex_);
    lose_flushes_ = on;
}

void FakeNetwork::set_double_errors(bool on) {
    Lock lock(mutex_);
    double_errors_ = on;
}

void FakeNetwork::set_refusal_cancels_all(bool on) {
    Lock lock(mutex_);
    refusal_cancels_all_ = on;
}

void FakeNetwork::poison(const void* address) {
    Lock lock(mutex_);
    poisoned_ = address;
}

void FakeNetwork::inject_error(const std::string& nic, int error, int provider_error) {
    Lock lock(mutex_);
    nics_[nic].finished.push_back({.context = nullptr, .error = error, .provider_error = provider_error});
    signal(nic);
}

void FakeNetwork::fail_registration(const std::string& nic, uint32_t nth) {
    Lock lock(mutex_);
    nics_[nic].fail_registration = nth;
}

void FakeNetwork::refuse_endpoints(const std::string& nic, bool on) {
    Lock lock(mutex_);
    nics_[nic].refuse_endpoints = on;
}

FakeNetwork::Counts FakeNetwork::counts(const std::string& nic) const {
    Lock lock(mutex_);
    const auto found = nics_.find(nic);
    return found == nics_.end() ? Counts{} : found->second.counts;
}

bool FakeNetwork::joined(const std::string& a, const std::string& b) const {
    const auto stopped = [&](const std::string& nic) {
        const auto found = nics_.find(nic);
        return found != nics_.end() && found->second.stopped;
    };
    return !cuts_.contains(pair_of(a, b)) && !stopped(a) && !stopped(b);
}

bool FakeNetwork::arrives(const Flying& flying, const std::string& nic) const {
    const auto to = endpoints_.find(flying.to);
    return to != endpoints_.end() && to->second.nic == nic && joined(flying.origin, nic);
}

void FakeNetwork::signal(const std::string& nic) {
    if (const auto found = nics_.find(nic); found != nics_.end() && found->second.domain != nullptr) found->second.domain->signal();
}

bool FakeNetwork::has_work(const std::string& nic) const {
    const auto found = nics_.find(nic);
    if (found != nics_.end() && !found->second.finished.empty()) return true;
    for (const Flying& flying : flying_)
        if (arrives(flying, nic)) return true;
    return false;
}

void FakeNetwork::deliver(const std::string& nic, uint32_t operations_max) {
    for (uint32_t count = 0; count < operations_max; ++count) {
        auto next = flying_.begin();
        while (next != flying_.end() && !arrives(*next, nic)) ++next;
        if (next == flying_.end()) return;
        Flying flying = std::move(*next);
        flying_.erase(next);
        apply(flying);
    }
}

std::byte* FakeNetwork::target_of(const Flying& flying) {
    NicState& state = nics_[endpoints_[flying.to].nic];
    const auto found = state.keys.find(flying.operation.key);
    if (found == state.keys.end() || !found->second.remote_access || state.domain == nullptr) return nullptr;
    const Registered& registered = found->second;
    if (flying.operation.direction == Direction::kWrite && !registered.writable) return nullptr;
    if (!registered.endpoints.empty() && !registered.endpoints.contains(flying.to)) return nullptr;
    const uint64_t base = state.domain->offer().virtual_addresses ? reinterpret_cast<uint64_t>(registered.address) : 0;
    const uint64_t offset = flying.operation.remote - base;
    if (flying.operation.remote < base || offset > registered.length || flying.operation.length > registered.length - offset)
        return nullptr;
    return registered.address + offset;
}

void FakeNetwork::apply(Flying& flying) {
    std::byte* target = target_of(flying);
    if (poisoned_ != nullptr && target == poisoned_) target = nullptr;
    const bool late = flying.operation.context == nullptr;
    const FakeDomain* const domain = nics_[endpoints_[flying.to].nic].domain;
    if (!late && domain != nullptr && domain->nic().knows_initiators && !domain->knows(flying.from)) {
        ++nics_[flying.origin].counts.refused_strangers;
        return finish(flying, EIO, kStrangerStatus);
    }
    if (target == nullptr) {
        if (!late) refuse(flying);
        return;
    }
    const Operation& operation = flying.operation;
    if (operation.direction == Direction::kRead) std::memcpy(operation.local, target, operation.length);
    else std::memcpy(target, late ? flying.late.data() : operation.local, operation.length);
    Counts& counts = nics_[flying.origin].counts;
    counts.bytes += operation.length;
    if (late) ++counts.late_writes;
    else finish(flying, 0, 0);
}

void FakeNetwork::finish(const Flying& flying, int error, int provider_error) {
    if (flying.operation.context == nullptr) return;
    NicState& state = nics_[flying.origin];
    --state.counts.in_flight;
    for (int i = 0; i < (error != 0 && double_errors_ ? 2 : 1); ++i)
        state.finished.push_back({.context = flying.operation.context, .error = error, .provider_error = provider_error});
    signal(flying.origin);
}

void FakeNetwork::refuse(const Flying& flying) {
    ++nics_[flying.origin].counts.refused_keys;
    // Slingshot's provider says of everything that it went wrong.
    const FakeDomain* const domain = nics_[endpoints_[flying.to].nic].domain;
    if (!refusal_cancels_all_ && domain != nullptr && domain->nic().endpoint_keys) return finish(flying, EIO, 0);
    if (!refusal_cancels_all_) return finish(flying, EINVAL, kRefusedStatus);
    finish(flying, ECANCELED, 0);
    std::deque<Flying> kept;
    for (Flying& other : flying_) {
        if (other.from == flying.from && other.to == flying.to) finish(other, ECANCELED, 0);
        else kept.push_back(std::move(other));
    }
    flying_ = std::move(kept);
}

void FakeNetwork::close_endpoint(uint64_t id) {
    NicState& state = nics_[endpoints_[id].nic];
    for (const auto& [key, registered] : state.keys) MC_CHECK(!registered.endpoints.contains(id));  // libfabric says "busy"
    const bool same_names = state.domain->nic().same_names;
    if (same_names) state.free_names.push_back(id);
    --state.counts.endpoints;
    endpoints_.erase(id);
    std::deque<Flying> kept;
    for (Flying& flying : flying_) {
        if (flying.to == id) {
            finish(flying, ECANCELED, 0);
            if (same_names && !flying.late.empty()) kept.push_back(std::move(flying));
            continue;
        }
        if (flying.from == id && flying.operation.context != nullptr) {
            if (lose_flushes_) --nics_[flying.origin].counts.in_flight;
            else finish(flying, ECANCELED, 0);
            if (!late_writes_ || flying.operation.direction == Direction::kRead) continue;
            // What the kernel has taken over.
            flying.late.assign(flying.operation.local, flying.operation.local + flying.operation.length);
            flying.operation.context = nullptr;
        }
        kept.push_back(std::move(flying));
    }
    flying_ = std::move(kept);
}

// ---- one host

Result<std::vector<Offer>> FakeFabric::offers(const OfferQuery& query) {
    std::vector<Offer> offers;
    for (const FakeNic& nic : nics_) {
        if (!query.node.empty() && query.node != nic.name) continue;
        const bool basic = (query.style == MrStyle::kAuto ? nic.style : query.style) == MrStyle::kBasic;
        offers.push_back({.provider = query.provider,
                          .fabric = query.fabric,
                          .domain = nic.name,
                          .nic = nic.name,
                          .protocol = nic.protocol,
                          .address_format = 1,
                          .virtual_addresses = basic,
                          .provider_keys = basic,
                          .local_keys = nic.local_keys,
                          .endpoint_keys = nic.endpoint_keys,
                          .delivery_complete = query.delivery_complete,
                          .device_memory = false,
                          .tx_size = nic.tx_size,
                          .key_bytes = nic.key_bytes,
                          .operation_bytes_max = nic.operation_bytes_max,
                          .speed_bits = nic.speed_bits,
                          .record = std::make_shared<FakeNic>(nic)});
    }
    return offers;
}

Result<std::unique_ptr<Domain>> FakeFabric::open(const Offer& offer, const DomainSettings& settings) {
    return std::make_unique<FakeDomain>(network_, offer, *static_cast<const FakeNic*>(offer.record.get()), settings);
}

}  // namespace mooncake::fabric
