// SPDX-License-Identifier: Apache-2.0
// The only file that speaks to libfabric. Its functions are found at run time, each with the version of the ABI that abi.h describes: a
// newer library keeps those beside its own.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/thread_annotations.h"
#include "transport/fabric/abi.h"
#include "transport/fabric/api.h"
#include "transport/fabric/endpoint_sockets.h"

namespace mooncake::fabric {

namespace {

constexpr uint32_t kApiVersionMax = abi::version(1, 18);  // the newest whose meaning we know
constexpr size_t kNameBytesMax = 256;
constexpr size_t kPollMax = 64;
constexpr size_t kCloseRounds = 2;  // of progress, beside one for each connection, before an endpoint is closed

static_assert(sizeof(OperationContext) >= abi::kContext2Bytes);

// The EFA provider's own options; not in the headers of 1.17.
constexpr int kEfaOptions = -(0xefa << 16);
constexpr int kEfaEmulatedRead = kEfaOptions + 1;
constexpr int kEfaEmulatedWrite = kEfaOptions + 2;
constexpr int kEfaUnsolicitedWriteReceive = kEfaOptions + 8;

/// What we take from the library by name; everything else hangs on the objects it returns.
struct Symbols {
    int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags, const abi::Info* hints,
                   abi::Info** info) = nullptr;
    void (*freeinfo)(abi::Info* info) = nullptr;
    abi::Info* (*dupinfo)(const abi::Info* info) = nullptr;
    int (*fabric)(abi::FabricAttributes* attributes, abi::FabricObject** made, void* context) = nullptr;
    uint32_t (*version)() = nullptr;
    const char* (*strerror)(int error) = nullptr;
};

struct InfoDelete {
    void (*freeinfo)(abi::Info*) = nullptr;
    void operator()(abi::Info* info) const noexcept { freeinfo(info); }
};
using Info = std::unique_ptr<abi::Info, InfoDelete>;

/// Closes an object of the library.
template <typename T>
struct Closer {
    void operator()(T* object) const noexcept {
        const int result = object->object.calls->close(&object->object);
        if (result != 0) MC_LOG_WARNING("libfabric does not close an object: error {}", -result);
    }
};
template <typename T>
using Handle = std::unique_ptr<T, Closer<T>>;

Code code_of(int error) noexcept {
    switch (error) {
        case ENOMEM:
        case ENOSPC: return Code::kNoSpace;
        case abi::kNoSuchKey:
        case EBUSY: return Code::kBusy;
        case EINVAL: return Code::kInvalidArgument;
        case ENOSYS:
        case EOPNOTSUPP: return Code::kNotSupported;
        default: return Code::kUnavailable;
    }
}

/// `result` as libfabric returns it: negative.
Unexpected failed(const Symbols& symbols, const char* what, ssize_t result) {
    const int error = static_cast<int>(-result);
    return Unexpected(Error(code_of(error), format_text("{}: {}", what, symbols.strerror(error)), error));
}

int bind(abi::Object& object, abi::Object& to, uint64_t flags) { return object.calls->bind(&object, &to, flags); }
int enable(abi::Object& object) { return object.calls->control(&object, abi::kEnable, nullptr); }

// ---- objects

class LibraryKey final : public MemoryKey {
public:
    explicit LibraryKey(Handle<abi::Memory> region) : region_(std::move(region)) {}
    uint64_t key() const noexcept override { return region_->key; }
    void* descriptor() const noexcept override { return region_->descriptor; }

private:
    Handle<abi::Memory> region_;
};

/// The names of whom a domain may be connected to.
using Peers = std::map<AddressHandle, std::vector<std::byte>>;

class LibraryEndpoint final : public Endpoint {
public:
    /// The queue and the peers outlive it.
    LibraryEndpoint(const Symbols& symbols, Handle<abi::EndpointObject> endpoint, abi::Queue* queue, const Peers& peers,
                    uint64_t write_flags)
        : symbols_(symbols), endpoint_(std::move(endpoint)), queue_(queue), peers_(peers), write_flags_(write_flags) {}
    ~LibraryEndpoint() override {
        const size_t broken = break_connections_to(name_) + break_connections(made_);
        if (broken == 0) return;
        // A reading of nothing: only lets the provider see that they are gone.
        for (size_t left = broken + kCloseRounds; left > 0; --left) (void)queue_->calls->read(queue_, nullptr, 0);
    }

    void retire() override {
        std::vector<std::vector<std::byte>> names;
        for (const auto& [address, name] : peers_) names.push_back(name);
        made_ = connections_from(name_, names);
    }

    Result<> read_name() {
        name_.resize(kNameBytesMax);
        size_t length = name_.size();
        if (const int result = endpoint_->names->get_name(&endpoint_->object, name_.data(), &length); result != 0)
            return failed(symbols_, "no endpoint name", result);
        name_.resize(length);
        return {};
    }

    const std::vector<std::byte>& name() const noexcept override { return name_; }
    abi::Object& object() const noexcept { return endpoint_->object; }

    Result<bool> post(const Operation& operation) override {
        const iovec local{.iov_base = operation.local, .iov_len = operation.length};
        const abi::RemoteRange remote{.address = operation.remote, .length = operation.length, .key = operation.key};
        void* descriptor = operation.local_descriptor;
        const abi::RmaMessage message{.local = &local,
                                      .descriptors = descriptor != nullptr ? &descriptor : nullptr,  // shm follows what it finds there
                                      .local_count = 1,
                                      .peer = operation.peer,
                                      .remote = &remote,
                                      .remote_count = 1,
                                      .context = operation.context,
                                      .data = 0};
        const abi::RmaCalls& rma = *endpoint_->rma;
        const ssize_t result = operation.direction == Direction::kWrite ? rma.write(endpoint_.get(), &message, write_flags_)
                                                                        : rma.read(endpoint_.get(), &message, abi::kCompletion);
        if (result == 0) return true;
        if (result == -EAGAIN) return false;
        return failed(symbols_, "cannot post", result);
    }

private:
    const Symbols& symbols_;
    const Handle<abi::EndpointObject> endpoint_;
    abi::Queue* const queue_;
    const Peers& peers_;
    const uint64_t write_flags_;
    std::vector<std::byte> name_;
    std::vector<MadeConnection> made_;  // once retired
};

class LibraryDomain final : public Domain {
public:
    LibraryDomain(const Symbols& symbols, Info info, const Offer& offer) : symbols_(symbols), offer_(offer), info_(std::move(info)) {}

    Result<> open(const FabricApi::DomainSettings& settings);

    Result<std::unique_ptr<Endpoint>> open_endpoint() override;
    Result<AddressHandle> insert_address(std::span<const std::byte> name) override;
    void remove_address(AddressHandle address) override {
        addresses_->calls->remove(addresses_.get(), &address, 1, 0);
        peers_.erase(address);
    }
    Result<std::unique_ptr<MemoryKey>> register_memory(const KeyRequest& request) override;
    size_t poll(std::span<Finished> into) override;
    int wait_fd() const noexcept override { return wait_fd_; }
    bool may_sleep() override {
        abi::Object* waited = &queue_->object;
        return wait_fd_ < 0 || fabric_->calls->try_wait(fabric_.get(), &waited, 1) == 0;
    }
    void calm_wait_fd() override;
    uint32_t completions_max() const noexcept override { return completions_max_; }

private:
    Result<> open_queue(bool sleep);
    void set_options(abi::EndpointObject& endpoint) const;
    void tell_emulation(abi::EndpointObject& endpoint) const;

    const Symbols& symbols_;
    const Offer offer_;
    const Info info_;
    // Closed from the last to the first.
    Handle<abi::FabricObject> fabric_;
    Handle<abi::DomainObject> domain_;
    Handle<abi::Addresses> addresses_;
    Handle<abi::Queue> queue_;
    int wait_fd_ = -1;
    uint32_t completions_max_ = 0;
    Peers peers_;
    size_t name_bytes_ = 0;         // of our endpoints, and so of everybody's
    std::optional<Finished> kept_;  // taken from the queue while its descriptor was put right
};

Result<> LibraryDomain::open(const FabricApi::DomainSettings& settings) {
    abi::FabricObject* fabric = nullptr;
    if (const int result = symbols_.fabric(info_->fabric, &fabric, nullptr); result != 0)
        return failed(symbols_, "cannot open the fabric", result);
    fabric_.reset(fabric);
    abi::DomainObject* domain = nullptr;
    if (const int result = fabric->calls->open_domain(fabric, info_.get(), &domain, nullptr); result != 0)
        return failed(symbols_, "cannot open the domain", result);
    domain_.reset(domain);
    abi::AddressAttributes attributes{};
    attributes.kind = abi::kAddressTable;
    attributes.count = settings.addresses_max;
    abi::Addresses* addresses = nullptr;
    if (const int result = domain->calls->open_addresses(domain, &attributes, &addresses, nullptr); result != 0)
        return failed(symbols_, "cannot open the address table", result);
    addresses_.reset(addresses);
    return open_queue(settings.sleep);
}

Result<> LibraryDomain::open_queue(bool sleep) {
    // Two endpoints share it, and one that is closed may flush everything it had: room for all of it.
    const size_t wanted = 2 * info_->transmit->size + 256;
    int result = 0;
    for (const int wait : {abi::kWaitDescriptor, abi::kWaitNone}) {
        if (wait == abi::kWaitDescriptor && !sleep) continue;
        abi::QueueAttributes attributes{};
        attributes.size = wanted;
        attributes.format = abi::kQueueOfData;
        attributes.wait = wait;
        abi::Queue* queue = nullptr;
        result = domain_->calls->open_queue(domain_.get(), &attributes, &queue, nullptr);
        if (result != 0) continue;
        queue_.reset(queue);
        completions_max_ = static_cast<uint32_t>(std::max(attributes.size, wanted));
        abi::Object& object = queue->object;
        if (wait == abi::kWaitDescriptor && object.calls->control(&object, abi::kGetWait, &wait_fd_) != 0) wait_fd_ = -1;
        return {};
    }
    return failed(symbols_, "cannot open a completion queue", result);
}

void LibraryDomain::set_options(abi::EndpointObject& endpoint) const {
    if (offer_.provider != "efa") return;
    // We never send immediate data; where the provider is told so, it needs no receive buffers for it.
    const bool no = false;
    (void)endpoint.calls->set_option(&endpoint.object, abi::kEndpointOption, kEfaUnsolicitedWriteReceive, &no, sizeof no);
}

/// What the provider does in place of the device.
void LibraryDomain::tell_emulation(abi::EndpointObject& endpoint) const {
    if (offer_.provider != "efa") return;
    for (const auto& [option, what] : {std::pair(kEfaEmulatedRead, "read"), std::pair(kEfaEmulatedWrite, "write")}) {
        bool emulated = false;
        size_t length = sizeof emulated;
        const int result = endpoint.calls->get_option(&endpoint.object, abi::kEndpointOption, option, &emulated, &length);
        if (result == 0 && emulated) MC_LOG_WARNING_EVERY(60s, "{} has no RDMA {}: the provider emulates it", offer_.nic, what);
    }
}

Result<std::unique_ptr<Endpoint>> LibraryDomain::open_endpoint() {
    abi::EndpointObject* made = nullptr;
    if (const int result = domain_->calls->open_endpoint(domain_.get(), info_.get(), &made, nullptr); result != 0)
        return failed(symbols_, "cannot open an endpoint", result);
    Handle<abi::EndpointObject> endpoint(made);
    if (const int result = bind(made->object, addresses_->object, 0); result != 0)
        return failed(symbols_, "cannot bind the address table", result);
    if (const int result = bind(made->object, queue_->object, abi::kTransmit | abi::kReceive); result != 0)
        return failed(symbols_, "cannot bind the completion queue", result);
    set_options(*made);
    if (const int result = enable(made->object); result != 0) return failed(symbols_, "cannot enable an endpoint", result);
    tell_emulation(*made);
    const uint64_t write_flags = abi::kCompletion | (offer_.delivery_complete ? abi::kDeliveryComplete : 0);
    auto opened = std::make_unique<LibraryEndpoint>(symbols_, std::move(endpoint), queue_.get(), peers_, write_flags);
    MC_RETURN_IF_ERROR(opened->read_name());
    name_bytes_ = opened->name().size();
    return opened;
}

Result<AddressHandle> LibraryDomain::insert_address(std::span<const std::byte> name) {
    // The provider reads as many bytes as its format has, or up to a zero: what came from a peer must not make it read more.
    const bool text = offer_.address_format == abi::kFormatText;
    if (name.empty() || name.size() > kNameBytesMax || (!text && name_bytes_ != 0 && name.size() != name_bytes_))
        return fail(Code::kInvalidArgument, "an endpoint name of {} bytes", name.size());
    std::array<std::byte, kNameBytesMax + 1> copy{};
    std::copy(name.begin(), name.end(), copy.begin());
    uint64_t address = abi::kNoAddress;
    const int inserted = addresses_->calls->insert(addresses_.get(), copy.data(), 1, &address, 0, nullptr);
    if (inserted == 1) {
        peers_[address].assign(name.begin(), name.end());
        return address;
    }
    return failed(symbols_, "cannot insert an address", inserted < 0 ? inserted : -ENOMEM);
}

int interface_of(MemoryKind kind) noexcept { return kind == MemoryKind::kCuda ? abi::kMemoryOfCuda : abi::kMemoryOfSystem; }

Result<std::unique_ptr<MemoryKey>> LibraryDomain::register_memory(const KeyRequest& request) {
    const iovec range{.iov_base = request.address, .iov_len = request.length};
    abi::MemoryAttributes attributes{};
    attributes.ranges = &range;
    attributes.range_count = 1;
    // What may not be written is not pinned for writing either: the system would refuse that.
    attributes.access = abi::kWrite | (request.writable ? abi::kRead : 0);
    if (request.remote_access) attributes.access |= abi::kRemoteRead | (request.writable ? abi::kRemoteWrite : 0);
    attributes.requested_key = request.key;
    attributes.interface = interface_of(request.kind);
    if (request.kind == MemoryKind::kCuda) std::memcpy(&attributes.device, &request.device, sizeof request.device);
    abi::Memory* made = nullptr;
    if (const int result = domain_->memory->register_memory(&domain_->object, &attributes, 0, &made); result != 0)
        return failed(symbols_, "cannot register memory", result);
    Handle<abi::Memory> region(made);
    if (offer_.endpoint_keys) {
        for (Endpoint* const endpoint : request.serving) {
            if (const int result = bind(made->object, static_cast<LibraryEndpoint*>(endpoint)->object(), 0); result != 0)
                return failed(symbols_, "cannot bind a registration", result);
        }
        if (const int result = enable(made->object); result != 0) return failed(symbols_, "cannot enable a registration", result);
    }
    return std::make_unique<LibraryKey>(std::move(region));
}

/// "net" signals a completion on a descriptor of its own, which only a blocking read resets; fi_trywait() does not.
void LibraryDomain::calm_wait_fd() {
    if (kept_) return;
    abi::Completed entry{};
    if (queue_->calls->read_blocking(queue_.get(), &entry, 1, nullptr, 1) == 1)
        kept_ = {.context = static_cast<OperationContext*>(entry.context)};
}

size_t LibraryDomain::poll(std::span<Finished> into) {
    if (into.empty()) return 0;
    if (kept_) {
        into[0] = *std::exchange(kept_, std::nullopt);
        return 1;
    }
    std::array<abi::Completed, kPollMax> entries;
    const ssize_t count = queue_->calls->read(queue_.get(), entries.data(), std::min(into.size(), entries.size()));
    if (count > 0) {
        for (size_t i = 0; i < static_cast<size_t>(count); ++i) into[i] = {.context = static_cast<OperationContext*>(entries[i].context)};
        return static_cast<size_t>(count);
    }
    if (count == -EAGAIN || count == 0) return 0;
    if (count != -abi::kErrorAvailable) {
        into[0] = {.context = nullptr, .error = static_cast<int>(-count)};
        return 1;
    }
    abi::Failure bad{};  // the provider reads some of it
    if (queue_->calls->read_failure(queue_.get(), &bad, 0) != 1) return 0;
    // One provider reports negative numbers. A failure is never 0.
    const int error = bad.error != 0 ? std::abs(bad.error) : EIO;
    into[0] = {.context = static_cast<OperationContext*>(bad.context), .error = error, .provider_error = std::abs(bad.provider_error)};
    return 1;
}

// ---- what there is

bool link_local(const abi::Info& info) noexcept {
    if (info.address_format != abi::kFormatIpv6 || info.source == nullptr) return false;
    return IN6_IS_ADDR_LINKLOCAL(&static_cast<const sockaddr_in6*>(info.source)->sin6_addr);
}

std::string text_of(const char* text) { return text != nullptr ? text : ""; }

std::string nic_of(const abi::Info& info, const OfferQuery& query) {
    if (info.nic != nullptr && info.nic->device != nullptr && info.nic->device->name != nullptr) return info.nic->device->name;
    return !query.node.empty() ? query.node : text_of(info.domain->name);
}

Offer describe(const abi::Info& info, const OfferQuery& query) {
    const int mode = info.domain->mr_mode;
    const bool basic = mode == abi::kMrBasic;
    Offer offer;
    offer.provider = info.fabric->provider;
    offer.fabric = text_of(info.fabric->name);
    offer.domain = text_of(info.domain->name);
    offer.nic = nic_of(info, query);
    offer.protocol = info.endpoint->protocol;
    offer.address_format = info.address_format;
    offer.virtual_addresses = basic || (mode & abi::kMrVirtualAddresses) != 0;
    offer.provider_keys = basic || (mode & abi::kMrProviderKeys) != 0;
    offer.local_keys = (mode & abi::kMrLocal) != 0 && !basic;
    offer.endpoint_keys = (mode & abi::kMrEndpoint) != 0 && !basic;
    offer.delivery_complete = (info.transmit->flags & abi::kDeliveryComplete) != 0;
    offer.device_memory = (info.caps & abi::kDeviceMemory) != 0;
    offer.tx_size = static_cast<uint32_t>(std::min<size_t>(info.transmit->size, UINT32_MAX));
    offer.key_bytes = static_cast<uint32_t>(info.domain->key_bytes);
    offer.operation_bytes_max = info.endpoint->message_bytes_max;
    if (info.nic != nullptr && info.nic->link != nullptr) offer.speed_bits = info.nic->link->speed;
    return offer;
}

bool usable(const abi::Info& info, const OfferQuery& query) {
    if (info.fabric->provider == nullptr || query.provider != info.fabric->provider) return false;
    if (!query.fabric.empty() && query.fabric != text_of(info.fabric->name)) return false;
    return !link_local(info) && (info.domain->mr_mode & abi::kMrRaw) == 0;
}

/// How far a provider is asked to go: the first that it has is taken.
struct Asked {
    bool delivery_complete;
    int control_progress;
};

class Library final : public FabricApi {
public:
    static Result<std::shared_ptr<FabricApi>> load(const std::string& path);

    std::string description() const override { return format_text("libfabric {}.{} from {}", version() >> 16, version() & 0xffff, path_); }
    uint32_t version() const noexcept override { return symbols_.version(); }
    Result<std::vector<Offer>> offers(const OfferQuery& query) override;
    Result<std::unique_ptr<Domain>> open(const Offer& offer, const DomainSettings& settings) override;

private:
    Library(const Symbols& symbols, std::string path) : symbols_(symbols), path_(std::move(path)) {}
    Info make(abi::Info* info) const noexcept { return Info(info, InfoDelete{symbols_.freeinfo}); }
    Info hints(const OfferQuery& query, const Asked& asked) const;
    /// Null: it has nothing of that kind.
    Result<Info> ask(const OfferQuery& query, const Asked& asked) const;

    const Symbols symbols_;
    const std::string path_;
};

Info Library::hints(const OfferQuery& query, const Asked& asked) const {
    Info hints = make(symbols_.dupinfo(nullptr));
    MC_CHECK(hints != nullptr);
    hints->caps = abi::kMsg | abi::kRma | abi::kRead | abi::kWrite | abi::kRemoteRead | abi::kRemoteWrite;
    hints->mode = abi::kContext | abi::kContext2;
    hints->endpoint->type = abi::kReliableDatagrams;
    abi::DomainAttributes& domain = *hints->domain;
    switch (query.style) {
        case MrStyle::kAuto:
            domain.mr_mode = abi::kMrLocal | abi::kMrVirtualAddresses | abi::kMrAllocated | abi::kMrProviderKeys | abi::kMrEndpoint;
            break;
        case MrStyle::kOffset: domain.mr_mode = abi::kMrLocal | abi::kMrAllocated | abi::kMrEndpoint; break;
        case MrStyle::kBasic: domain.mr_mode = abi::kMrBasic; break;
    }
    if (query.device_memory) {
        hints->caps |= abi::kDeviceMemory;
        domain.mr_mode |= abi::kMrDeviceMemory;
    }
    domain.threading = abi::kThreadSafe;
    // Automatic progress costs a thread inside the provider that fights with ours.
    domain.data_progress = abi::kProgressManual;
    domain.control_progress = asked.control_progress;
    domain.resources = abi::kResourcesManaged;
    if (asked.delivery_complete) hints->transmit->flags = abi::kDeliveryComplete;
    hints->fabric->provider = ::strdup(query.provider.c_str());
    return hints;
}

Result<Info> Library::ask(const OfferQuery& query, const Asked& asked) const {
    const Info wanted = hints(query, asked);
    abi::Info* found = nullptr;
    const char* const node = query.node.empty() ? nullptr : query.node.c_str();
    const uint32_t api_version = std::min(version(), kApiVersionMax);
    const int result = symbols_.getinfo(api_version, node, nullptr, node != nullptr ? abi::kSource : 0, wanted.get(), &found);
    Info list = make(found);
    if (result == -ENODATA) return make(nullptr);
    if (result != 0) return failed(symbols_, "cannot list network interfaces", result);
    return list;
}

Result<std::vector<Offer>> Library::offers(const OfferQuery& query) {
    // Else the provider makes a context on the first GPU, at the price of half a gigabyte there.
    if (!query.device_memory) ::setenv("FI_HMEM", "system", 0);
    if (query.provider == "cxi") {
        // Every packet is held against the keys of that moment: what comes after a key was closed does not land.
        ::setenv("FI_CXI_OPTIMIZED_MRS", "0", 0);
        ::setenv("FI_CXI_MR_MATCH_EVENTS", "1", 0);
    }
    // Some providers (cxi) make connections only while they are polled, and say so by having nothing for who wants more.
    constexpr Asked kTries[] = {
        {true, abi::kProgressAuto}, {true, abi::kProgressManual}, {false, abi::kProgressAuto}, {false, abi::kProgressManual}};
    Info list = make(nullptr);
    for (const Asked& asked : kTries) {
        if (list != nullptr || (asked.delivery_complete && !query.delivery_complete)) continue;
        MC_ASSIGN_OR_RETURN(list, ask(query, asked));
    }
    std::vector<Offer> offers;
    for (const abi::Info* info = list.get(); info != nullptr; info = info->next) {
        if (!usable(*info, query)) continue;
        Offer offer = describe(*info, query);
        const bool again = std::any_of(offers.begin(), offers.end(), [&](const Offer& other) {
            return other.domain == offer.domain && other.fabric == offer.fabric && other.address_format == offer.address_format;
        });
        if (again) continue;
        // A copy of one entry alone: dupinfo() does not follow the list.
        offer.record = std::shared_ptr<const abi::Info>(symbols_.dupinfo(info), symbols_.freeinfo);
        offers.push_back(std::move(offer));
    }
    return offers;
}

Result<std::unique_ptr<Domain>> Library::open(const Offer& offer, const DomainSettings& settings) {
    MC_CHECK(offer.record != nullptr);
    auto domain = std::make_unique<LibraryDomain>(symbols_, make(symbols_.dupinfo(static_cast<const abi::Info*>(offer.record.get()))),
                                                  offer);
    if (auto opened = domain->open(settings); !opened) return Unexpected(std::move(opened).error().with_context(offer.nic));
    return domain;
}

// ---- finding it

struct Opened {
    void* handle = nullptr;
    std::string path;
};

Result<Opened> open_library(const std::string& path) {
    struct Candidate {
        std::string path;
        int flags;
    };
    const std::vector<Candidate> candidates =
        path.empty() ? std::vector<Candidate>{{"libfabric.so.1", RTLD_NOLOAD},  // two copies in one process take devices from each other
                                              {"/opt/amazon/efa/lib/libfabric.so.1", 0},
                                              {"/opt/amazon/efa/lib64/libfabric.so.1", 0},
                                              {"libfabric.so.1", 0}}
                     : std::vector<Candidate>{{path, 0}};
    // It brings libraries along that would otherwise take over SIGINT, SIGTERM, SIGSEGV and others of the program that loads them.
    for (const char* const name : {"HFI_NO_BACKTRACE", "IPATH_NO_BACKTRACE"}) ::setenv(name, "1", 0);
    std::string reason;
    for (const Candidate& candidate : candidates) {
        if (void* const handle = ::dlopen(candidate.path.c_str(), RTLD_NOW | RTLD_LOCAL | candidate.flags))
            return Opened{.handle = handle, .path = candidate.path};
        if (const char* const text = ::dlerror(); text != nullptr && candidate.flags == 0) reason = text;
    }
    return fail(Code::kNotSupported, "libfabric is not installed: {}", reason);
}

template <typename Function>
bool find(void* handle, const char* name, const char* version, Function*& function) {
    function = reinterpret_cast<Function*>(::dlvsym(handle, name, version));
    return function != nullptr;
}

Result<std::shared_ptr<FabricApi>> Library::load(const std::string& path) {
    MC_ASSIGN_OR_RETURN(const Opened opened, open_library(path));
    Symbols symbols;
    if (!find(opened.handle, "fi_getinfo", "FABRIC_1.3", symbols.getinfo) ||
        !find(opened.handle, "fi_freeinfo", "FABRIC_1.3", symbols.freeinfo) ||
        !find(opened.handle, "fi_dupinfo", "FABRIC_1.3", symbols.dupinfo) ||
        !find(opened.handle, "fi_fabric", "FABRIC_1.1", symbols.fabric) ||
        !find(opened.handle, "fi_version", "FABRIC_1.0", symbols.version) ||
        !find(opened.handle, "fi_strerror", "FABRIC_1.0", symbols.strerror))
        return fail(Code::kNotSupported, "{} is not a libfabric that we know", opened.path);
    return std::shared_ptr<FabricApi>(new Library(symbols, opened.path));
}

}  // namespace

Result<std::shared_ptr<FabricApi>> load_library(const std::string& path) {
    static Mutex mutex;
    static auto& loaded = *new std::map<std::string, std::shared_ptr<FabricApi>>();  // for ever, as the library itself
    Lock lock(mutex);
    if (const auto found = loaded.find(path); found != loaded.end()) return found->second;
    MC_ASSIGN_OR_RETURN(auto library, Library::load(path));
    loaded.emplace(path, library);
    return library;
}

}  // namespace mooncake::fabric
