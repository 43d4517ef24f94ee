// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/fabric/api.h"

// libfabric as a test wants it: NICs in memory that fail when told to. Bytes move only while the target polls, as with most providers.
namespace mooncake::fabric {

/// What a NIC of the fake is like.
struct FakeNic {
    std::string name;
    MrStyle style = MrStyle::kOffset;  // where the query does not say
    bool local_keys = false;
    bool endpoint_keys = false;
    uint32_t tx_size = 64;
    uint32_t key_bytes = 8;
    uint64_t operation_bytes_max = 64 << 20;
    uint64_t speed_bits = 0;
    uint64_t pages_max = UINT64_MAX;  // of 4096 bytes, over all registrations
    uint32_t operations_per_poll = 16;
    uint32_t protocol = 1;
    bool same_names = false;  // an endpoint has the name of one that was closed, and what was on its way to that arrives, as with Slingshot
    bool knows_initiators = false;  // takes nothing from endpoints whose address it does not have, as with efa-direct
};

class FakeDomain;
class FakeEndpoint;

/// What connects the NICs of all hosts, and the test's hands on it. NICs have one name throughout. Thread-safe.
class FakeNetwork {
public:
    FakeNetwork() = default;
    FakeNetwork(const FakeNetwork&) = delete;
    FakeNetwork& operator=(const FakeNetwork&) = delete;

    // ---- the way

    /// Nothing gets from one NIC to the other, in neither direction, and nobody is told.
    void cut(const std::string& a, const std::string& b);
    /// What waited goes on its way.
    void heal(const std::string& a, const std::string& b);
    /// What is under way from one to the other fails with this.
    void break_link(const std::string& from, const std::string& to, int error);
    /// The process of this NIC hangs: it neither sends nor receives.
    void stop(const std::string& nic);
    void go_on(const std::string& nic);
    /// The next posts on this NIC say "again".
    void again(const std::string& nic, uint32_t posts);

    // ---- what providers do

    /// Bytes of writes whose endpoint was closed still arrive, if the way is free and the target's endpoint is there. As with tcp.
    void set_late_writes(bool on);
    /// Closing an endpoint does not report its operations.
    void set_lose_flushes(bool on);
    /// Errors are reported twice.
    void set_double_errors(bool on);
    /// A refused key takes all operations to that target with it, as with tcp; else only its own, as with EFA and Slingshot.
    void set_refusal_cancels_all(bool on);
    /// Operations on this address are refused, whatever their key; null: none.
    void poison(const void* address);
    /// An error without a context.
    void inject_error(const std::string& nic, int error, int provider_error);
    /// The n-th registration on this NIC from now on (1: the next) fails with kNoSpace.
    void fail_registration(const std::string& nic, uint32_t nth);
    /// No endpoint can be opened on this NIC.
    void refuse_endpoints(const std::string& nic, bool on);

    // ---- what happened

    struct Counts {
        uint64_t posted = 0;
        uint64_t bytes = 0;        // that arrived
        uint64_t late_writes = 0;  // that landed after their endpoint was closed
        uint64_t refused_keys = 0;
        uint64_t refused_strangers = 0;
        uint64_t stale_addresses = 0;  // posts to a handle that was removed
        size_t in_flight = 0;
        size_t in_flight_max = 0;  // ever
        size_t endpoints = 0;
        size_t registrations = 0;
        size_t addresses = 0;
    };
    /// Of operations that this NIC started, and of what is open on it.
    Counts counts(const std::string& nic) const;

private:
    friend class FakeDomain;
    friend class FakeEndpoint;
    friend class FakeKey;

    struct Flying {
        Operation operation;
        uint64_t from = 0, to = 0;    // endpoints
        std::string origin;           // the NIC it comes from
        std::vector<std::byte> late;  // the bytes of a write whose endpoint is closed; `operation.context` is null then
    };
    struct Registered {
        std::byte* address = nullptr;
        uint64_t length = 0;
        std::set<uint64_t> endpoints;  // that may serve it; empty: all
        bool remote_access = true;
        bool writable = true;
        uint64_t pages = 0;
    };
    struct NicState {
        FakeDomain* domain = nullptr;
        uint32_t again = 0;
        uint32_t fail_registration = 0;
        bool stopped = false;
        bool refuse_endpoints = false;
        uint64_t pages = 0;
        std::vector<uint64_t> free_names;  // of closed endpoints, where they are used again
        Counts counts;
        std::deque<Finished> finished;
        std::map<uint64_t, Registered> keys;
    };
    struct EndpointState {
        std::string nic;
    };

    bool joined(const std::string& a, const std::string& b) const MC_REQUIRES(mutex_);
    bool arrives(const Flying& flying, const std::string& nic) const MC_REQUIRES(mutex_);
    void deliver(const std::string& nic, uint32_t operations_max) MC_REQUIRES(mutex_);
    /// Null: not allowed.
    std::byte* target_of(const Flying& flying) MC_REQUIRES(mutex_);
    void apply(Flying& flying) MC_REQUIRES(mutex_);
    void finish(const Flying& flying, int error, int provider_error) MC_REQUIRES(mutex_);
    void refuse(const Flying& flying) MC_REQUIRES(mutex_);
    void close_endpoint(uint64_t id) MC_REQUIRES(mutex_);
    void signal(const std::string& nic) MC_REQUIRES(mutex_);
    bool has_work(const std::string& nic) const MC_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::map<std::string, NicState> nics_ MC_GUARDED_BY(mutex_);
    std::map<uint64_t, EndpointState> endpoints_ MC_GUARDED_BY(mutex_);
    std::deque<Flying> flying_ MC_GUARDED_BY(mutex_);  // in order of posting
    std::set<std::pair<std::string, std::string>> cuts_ MC_GUARDED_BY(mutex_);
    uint64_t next_endpoint_ MC_GUARDED_BY(mutex_) = 1;
    uint64_t next_key_ MC_GUARDED_BY(mutex_) = 1000;
    bool late_writes_ MC_GUARDED_BY(mutex_) = false;
    bool lose_flushes_ MC_GUARDED_BY(mutex_) = false;
    bool double_errors_ MC_GUARDED_BY(mutex_) = false;
    bool refusal_cancels_all_ MC_GUARDED_BY(mutex_) = true;
    const void* poisoned_ MC_GUARDED_BY(mutex_) = nullptr;
};

/// libfabric of one host with some NICs. Must not outlive the network.
class FakeFabric final : public FabricApi {
public:
    FakeFabric(FakeNetwork& network, std::vector<FakeNic> nics, uint32_t version = 1 << 16 | 17)
        : network_(network), nics_(std::move(nics)), version_(version) {}

    std::string description() const override { return "a fake libfabric"; }
    uint32_t version() const noexcept override { return version_; }
    /// Every NIC, or the one whose name is the query's node.
    Result<std::vector<Offer>> offers(const OfferQuery& query) override;
    Result<std::unique_ptr<Domain>> open(const Offer& offer, const DomainSettings& settings) override;

private:
    FakeNetwork& network_;
    const std::vector<FakeNic> nics_;
    const uint32_t version_;
};

}  // namespace mooncake::fabric
