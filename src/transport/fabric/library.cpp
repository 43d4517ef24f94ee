// SPDX-License-Identifier: Apache-2.0
// The only file that sees libfabric's headers. Its functions are found at run time, each with the version of the ABI that these
// headers describe: a newer library keeps those beside its own.
#include "transport/fabric/api.h"

#ifdef MC_HAVE_LIBFABRIC_HEADERS

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/thread_annotations.h"
#include "transport/fabric/endpoint_sockets.h"

namespace mooncake::fabric {

namespace {

constexpr uint32_t kApiVersionMax = FI_VERSION(1, 18);  // the newest whose meaning we know
constexpr size_t kNameBytesMax = 256;
constexpr size_t kPollMax = 64;
constexpr size_t kCloseRounds = 2;  // of progress, beside one for each connection, before an endpoint is closed

static_assert(sizeof(OperationContext) >= sizeof(fi_context2));

// The EFA provider's own options; not in the headers of 1.17.
constexpr int kEfaOptions = -(0xefa << 16);
constexpr int kEfaEmulatedWrite = kEfaOptions + 2;
constexpr int kEfaUnsolicitedWriteReceive = kEfaOptions + 8;

/// What we take from the library by name; everything else hangs on the objects it returns.
struct Symbols {
    int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints, fi_info** info) = nullptr;
    void (*freeinfo)(fi_info* info) = nullptr;
    fi_info* (*dupinfo)(const fi_info* info) = nullptr;
    int (*fabric)(fi_fabric_attr* attributes, fid_fabric** made, void* context) = nullptr;
    uint32_t (*version)() = nullptr;
    const char* (*strerror)(int error) = nullptr;
};

struct InfoDelete {
    void (*freeinfo)(fi_info*) = nullptr;
    void operator()(fi_info* info) const noexcept { freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoDelete>;

/// Closes an object of the library.
template <typename T>
struct Closer {
    void operator()(T* object) const noexcept {
        const int result = fi_close(&object->fid);
        if (result != 0) MC_LOG_WARNING("libfabric does not close an object: error {}", -result);
    }
};
template <typename T>
using Handle = std::unique_ptr<T, Closer<T>>;

Code code_of(int error) noexcept {
    switch (error) {
        case FI_ENOMEM:
        case FI_ENOSPC: return Code::kNoSpace;
        case FI_ENOKEY:
        case FI_EBUSY: return Code::kBusy;
        case FI_EINVAL: return Code::kInvalidArgument;
        case FI_ENOSYS:
        case FI_EOPNOTSUPP: return Code::kNotSupported;
        default: return Code::kUnavailable;
    }
}

/// `result` as libfabric returns it: negative.
Unexpected failed(const Symbols& symbols, const char* what, ssize_t result) {
    const int error = static_cast<int>(-result);
    return Unexpected(Error(code_of(error), format_text("{}: {}", what, symbols.strerror(error)), error));
}

// ---- objects

class LibraryKey final : public MemoryKey {
public:
    explicit LibraryKey(Handle<fid_mr> region) : region_(std::move(region)) {}
    uint64_t key() const noexcept override { return fi_mr_key(region_.get()); }
    void* descriptor() const noexcept override { return fi_mr_desc(region_.get()); }

private:
    Handle<fid_mr> region_;
};

class LibraryEndpoint final : public Endpoint {
public:
    /// The queue outlives it.
    LibraryEndpoint(const Symbols& symbols, Handle<fid_ep> endpoint, fid_cq* queue, uint64_t write_flags)
        : symbols_(symbols), endpoint_(std::move(endpoint)), queue_(queue), write_flags_(write_flags) {}
    ~LibraryEndpoint() override {
        const size_t broken = break_connections_to(name_);
        if (broken == 0) return;
        // A reading of nothing: only lets the provider see that they are gone.
        for (size_t left = broken + kCloseRounds; left > 0; --left) (void)fi_cq_read(queue_, nullptr, 0);
    }

    Result<> read_name() {
        name_.resize(kNameBytesMax);
        size_t length = name_.size();
        if (const int result = fi_getname(&endpoint_->fid, name_.data(), &length); result != 0)
            return failed(symbols_, "no endpoint name", result);
        name_.resize(length);
        return {};
    }

    const std::vector<std::byte>& name() const noexcept override { return name_; }
    fid_ep* get() const noexcept { return endpoint_.get(); }

    Result<bool> post(const Operation& operation) override {
        const iovec local{.iov_base = operation.local, .iov_len = operation.length};
        const fi_rma_iov remote{.addr = operation.remote, .len = operation.length, .key = operation.key};
        void* descriptor = operation.local_descriptor;
        const fi_msg_rma message{.msg_iov = &local,
                                 .desc = descriptor != nullptr ? &descriptor : nullptr,  // shm follows what it finds there
                                 .iov_count = 1,
                                 .addr = operation.peer,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = operation.context,
                                 .data = 0};
        const ssize_t result = operation.direction == Direction::kWrite ? fi_writemsg(endpoint_.get(), &message, write_flags_)
                                                                        : fi_readmsg(endpoint_.get(), &message, FI_COMPLETION);
        if (result == 0) return true;
        if (result == -FI_EAGAIN) return false;
        return failed(symbols_, "cannot post", result);
    }

private:
    const Symbols& symbols_;
    const Handle<fid_ep> endpoint_;
    fid_cq* const queue_;
    const uint64_t write_flags_;
    std::vector<std::byte> name_;
};

class LibraryDomain final : public Domain {
public:
    LibraryDomain(const Symbols& symbols, Info info, const Offer& offer) : symbols_(symbols), offer_(offer), info_(std::move(info)) {}

    Result<> open(const FabricApi::DomainSettings& settings);

    Result<std::unique_ptr<Endpoint>> open_endpoint() override;
    Result<AddressHandle> insert_address(std::span<const std::byte> name) override;
    void remove_address(AddressHandle address) override { fi_av_remove(addresses_.get(), &address, 1, 0); }
    Result<std::unique_ptr<MemoryKey>> register_memory(const KeyRequest& request) override;
    size_t poll(std::span<Finished> into) override;
    int wait_fd() const noexcept override { return wait_fd_; }
    bool may_sleep() override {
        fid* waited = &queue_->fid;
        return wait_fd_ < 0 || fi_trywait(fabric_.get(), &waited, 1) == 0;
    }
    void calm_wait_fd() override;
    uint32_t completions_max() const noexcept override { return completions_max_; }

private:
    Result<> open_queue(bool sleep);
    void set_options(fid_ep* endpoint) const;

    const Symbols& symbols_;
    const Offer offer_;
    const Info info_;
    // Closed from the last to the first.
    Handle<fid_fabric> fabric_;
    Handle<fid_domain> domain_;
    Handle<fid_av> addresses_;
    Handle<fid_cq> queue_;
    int wait_fd_ = -1;
    uint32_t completions_max_ = 0;
    size_t name_bytes_ = 0;         // of our endpoints, and so of everybody's
    std::optional<Finished> kept_;  // taken from the queue while its descriptor was put right
};

Result<> LibraryDomain::open(const FabricApi::DomainSettings& settings) {
    fid_fabric* fabric = nullptr;
    if (const int result = symbols_.fabric(info_->fabric_attr, &fabric, nullptr); result != 0)
        return failed(symbols_, "cannot open the fabric", result);
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    if (const int result = fi_domain(fabric, info_.get(), &domain, nullptr); result != 0)
        return failed(symbols_, "cannot open the domain", result);
    domain_.reset(domain);
    fi_av_attr attributes{};
    attributes.type = FI_AV_TABLE;
    attributes.count = settings.addresses_max;
    fid_av* addresses = nullptr;
    if (const int result = fi_av_open(domain, &attributes, &addresses, nullptr); result != 0)
        return failed(symbols_, "cannot open the address table", result);
    addresses_.reset(addresses);
    return open_queue(settings.sleep);
}

Result<> LibraryDomain::open_queue(bool sleep) {
    // Two endpoints share it, and one that is closed may flush everything it had: room for all of it.
    const size_t wanted = 2 * info_->tx_attr->size + 256;
    int result = 0;
    for (const fi_wait_obj wait : {FI_WAIT_FD, FI_WAIT_NONE}) {
        if (wait == FI_WAIT_FD && !sleep) continue;
        fi_cq_attr attributes{};
        attributes.size = wanted;
        attributes.format = FI_CQ_FORMAT_DATA;
        attributes.wait_obj = wait;
        fid_cq* queue = nullptr;
        result = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
        if (result != 0) continue;
        queue_.reset(queue);
        completions_max_ = static_cast<uint32_t>(std::max(attributes.size, wanted));
        if (wait == FI_WAIT_FD && fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) != 0) wait_fd_ = -1;
        return {};
    }
    return failed(symbols_, "cannot open a completion queue", result);
}

void LibraryDomain::set_options(fid_ep* endpoint) const {
    if (offer_.provider != "efa") return;
    // We never send immediate data; where the provider is told so, it needs no receive buffers for it.
    const bool no = false;
    (void)fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, kEfaUnsolicitedWriteReceive, &no, sizeof no);
}

Result<std::unique_ptr<Endpoint>> LibraryDomain::open_endpoint() {
    fid_ep* made = nullptr;
    if (const int result = fi_endpoint(domain_.get(), info_.get(), &made, nullptr); result != 0)
        return failed(symbols_, "cannot open an endpoint", result);
    Handle<fid_ep> endpoint(made);
    if (const int result = fi_ep_bind(made, &addresses_->fid, 0); result != 0)
        return failed(symbols_, "cannot bind the address table", result);
    if (const int result = fi_ep_bind(made, &queue_->fid, FI_TRANSMIT | FI_RECV); result != 0)
        return failed(symbols_, "cannot bind the completion queue", result);
    set_options(made);
    if (const int result = fi_enable(made); result != 0) return failed(symbols_, "cannot enable an endpoint", result);
    bool emulated = false;
    size_t length = sizeof emulated;
    if (offer_.provider == "efa" && fi_getopt(&made->fid, FI_OPT_ENDPOINT, kEfaEmulatedWrite, &emulated, &length) == 0 && emulated)
        MC_LOG_WARNING_EVERY(60s, "{} has no RDMA write: the provider emulates it", offer_.nic);
    const uint64_t write_flags = FI_COMPLETION | (offer_.delivery_complete ? FI_DELIVERY_COMPLETE : 0);
    auto opened = std::make_unique<LibraryEndpoint>(symbols_, std::move(endpoint), queue_.get(), write_flags);
    MC_RETURN_IF_ERROR(opened->read_name());
    name_bytes_ = opened->name().size();
    return opened;
}

Result<AddressHandle> LibraryDomain::insert_address(std::span<const std::byte> name) {
    // The provider reads as many bytes as its format has, or up to a zero: what came from a peer must not make it read more.
    const bool text = offer_.address_format == FI_ADDR_STR;
    if (name.empty() || name.size() > kNameBytesMax || (!text && name_bytes_ != 0 && name.size() != name_bytes_))
        return fail(Code::kInvalidArgument, "an endpoint name of {} bytes", name.size());
    std::array<std::byte, kNameBytesMax + 1> copy{};
    std::copy(name.begin(), name.end(), copy.begin());
    fi_addr_t address = FI_ADDR_UNSPEC;
    const int inserted = fi_av_insert(addresses_.get(), copy.data(), 1, &address, 0, nullptr);
    if (inserted == 1) return address;
    return failed(symbols_, "cannot insert an address", inserted < 0 ? inserted : -FI_ENOMEM);
}

fi_hmem_iface interface_of(MemoryKind kind) noexcept { return kind == MemoryKind::kCuda ? FI_HMEM_CUDA : FI_HMEM_SYSTEM; }

Result<std::unique_ptr<MemoryKey>> LibraryDomain::register_memory(const KeyRequest& request) {
    const iovec range{.iov_base = request.address, .iov_len = request.length};
    fi_mr_attr attributes{};
    attributes.mr_iov = &range;
    attributes.iov_count = 1;
    attributes.access = FI_READ | FI_WRITE | (request.remote_access ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
    attributes.requested_key = request.key;
    attributes.iface = interface_of(request.kind);
    if (request.kind == MemoryKind::kCuda) attributes.device.cuda = request.device;
    fid_mr* made = nullptr;
    if (const int result = fi_mr_regattr(domain_.get(), &attributes, 0, &made); result != 0)
        return failed(symbols_, "cannot register memory", result);
    Handle<fid_mr> region(made);
    if (offer_.endpoint_keys) {
        for (Endpoint* const endpoint : request.serving) {
            fid_ep* const bound = static_cast<LibraryEndpoint*>(endpoint)->get();
            if (const int result = fi_mr_bind(made, &bound->fid, 0); result != 0)
                return failed(symbols_, "cannot bind a registration", result);
        }
        if (const int result = fi_mr_enable(made); result != 0) return failed(symbols_, "cannot enable a registration", result);
    }
    return std::make_unique<LibraryKey>(std::move(region));
}

/// "net" signals a completion on a descriptor of its own, which only a blocking read resets; fi_trywait() does not.
void LibraryDomain::calm_wait_fd() {
    if (kept_) return;
    fi_cq_data_entry entry{};
    if (fi_cq_sread(queue_.get(), &entry, 1, nullptr, 1) == 1) kept_ = {.context = static_cast<OperationContext*>(entry.op_context)};
}

size_t LibraryDomain::poll(std::span<Finished> into) {
    if (into.empty()) return 0;
    if (kept_) {
        into[0] = *std::exchange(kept_, std::nullopt);
        return 1;
    }
    std::array<fi_cq_data_entry, kPollMax> entries;
    const ssize_t count = fi_cq_read(queue_.get(), entries.data(), std::min(into.size(), entries.size()));
    if (count > 0) {
        for (size_t i = 0; i < static_cast<size_t>(count); ++i)
            into[i] = {.context = static_cast<OperationContext*>(entries[i].op_context)};
        return static_cast<size_t>(count);
    }
    if (count == -FI_EAGAIN || count == 0) return 0;
    if (count != -FI_EAVAIL) {
        into[0] = {.context = nullptr, .error = static_cast<int>(-count)};
        return 1;
    }
    fi_cq_err_entry bad{};  // the provider reads some of it
    if (fi_cq_readerr(queue_.get(), &bad, 0) != 1) return 0;
    // One provider reports negative numbers. A failure is never 0.
    const int error = bad.err != 0 ? std::abs(bad.err) : FI_EIO;
    into[0] = {.context = static_cast<OperationContext*>(bad.op_context), .error = error, .provider_error = std::abs(bad.prov_errno)};
    return 1;
}

// ---- what there is

bool link_local(const fi_info& info) noexcept {
    if (info.addr_format != FI_SOCKADDR_IN6 || info.src_addr == nullptr) return false;
    return IN6_IS_ADDR_LINKLOCAL(&static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr);
}

std::string nic_of(const fi_info& info, const OfferQuery& query) {
    if (info.nic != nullptr && info.nic->device_attr != nullptr && info.nic->device_attr->name != nullptr)
        return info.nic->device_attr->name;
    if (!query.node.empty()) return query.node;
    return info.domain_attr->name != nullptr ? info.domain_attr->name : "";
}

Offer describe(const fi_info& info, const OfferQuery& query) {
    const int mode = info.domain_attr->mr_mode;
    const bool basic = mode == FI_MR_BASIC;
    Offer offer;
    offer.provider = info.fabric_attr->prov_name;
    offer.fabric = info.fabric_attr->name != nullptr ? info.fabric_attr->name : "";
    offer.domain = info.domain_attr->name != nullptr ? info.domain_attr->name : "";
    offer.nic = nic_of(info, query);
    offer.protocol = info.ep_attr->protocol;
    offer.address_format = info.addr_format;
    offer.virtual_addresses = basic || (mode & FI_MR_VIRT_ADDR) != 0;
    offer.provider_keys = basic || (mode & FI_MR_PROV_KEY) != 0;
    offer.local_keys = (mode & FI_MR_LOCAL) != 0 && !basic;
    offer.endpoint_keys = (mode & FI_MR_ENDPOINT) != 0 && !basic;
    offer.delivery_complete = (info.tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0;
    offer.device_memory = (info.caps & FI_HMEM) != 0;
    offer.tx_size = static_cast<uint32_t>(std::min<size_t>(info.tx_attr->size, UINT32_MAX));
    offer.key_bytes = static_cast<uint32_t>(info.domain_attr->mr_key_size);
    offer.operation_bytes_max = info.ep_attr->max_msg_size;
    if (info.nic != nullptr && info.nic->link_attr != nullptr) offer.speed_bits = info.nic->link_attr->speed;
    return offer;
}

bool usable(const fi_info& info, const OfferQuery& query) {
    if (info.fabric_attr->prov_name == nullptr || query.provider != info.fabric_attr->prov_name) return false;
    if (!query.fabric.empty() && (info.fabric_attr->name == nullptr || query.fabric != info.fabric_attr->name)) return false;
    return !link_local(info) && (info.domain_attr->mr_mode & FI_MR_RAW) == 0;
}

class Library final : public FabricApi {
public:
    static Result<std::shared_ptr<FabricApi>> load(const std::string& path);

    std::string description() const override {
        return format_text("libfabric {}.{} from {}", FI_MAJOR(symbols_.version()), FI_MINOR(symbols_.version()), path_);
    }
    uint32_t version() const noexcept override { return std::min(symbols_.version(), kApiVersionMax); }
    Result<std::vector<Offer>> offers(const OfferQuery& query) override;
    Result<std::unique_ptr<Domain>> open(const Offer& offer, const DomainSettings& settings) override;

private:
    Library(const Symbols& symbols, std::string path) : symbols_(symbols), path_(std::move(path)) {}
    Info make(fi_info* info) const noexcept { return Info(info, InfoDelete{symbols_.freeinfo}); }
    Info hints(const OfferQuery& query) const;

    const Symbols symbols_;
    const std::string path_;
};

Info Library::hints(const OfferQuery& query) const {
    Info hints = make(symbols_.dupinfo(nullptr));
    MC_CHECK(hints != nullptr);
    hints->caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    fi_domain_attr& domain = *hints->domain_attr;
    switch (query.style) {
        case MrStyle::kAuto: domain.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT; break;
        case MrStyle::kOffset: domain.mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_ENDPOINT; break;
        case MrStyle::kBasic: domain.mr_mode = FI_MR_BASIC; break;
    }
    if (query.device_memory) {
        hints->caps |= FI_HMEM;
        domain.mr_mode |= FI_MR_HMEM;
    }
    domain.threading = FI_THREAD_SAFE;
    // Automatic progress costs a thread inside the provider that fights with ours.
    domain.data_progress = FI_PROGRESS_MANUAL;
    domain.control_progress = FI_PROGRESS_AUTO;
    domain.resource_mgmt = FI_RM_ENABLED;
    if (query.delivery_complete) hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = ::strdup(query.provider.c_str());
    return hints;
}

Result<std::vector<Offer>> Library::offers(const OfferQuery& query) {
    // Else the provider makes a context on the first GPU, at the price of half a gigabyte there.
    if (!query.device_memory) ::setenv("FI_HMEM", "system", 0);
    if (query.provider == "cxi") {
        // Every packet is held against the keys of that moment: what comes after a key was closed does not land.
        ::setenv("FI_CXI_OPTIMIZED_MRS", "0", 0);
        ::setenv("FI_CXI_MR_MATCH_EVENTS", "1", 0);
    }
    const Info wanted = hints(query);
    fi_info* found = nullptr;
    const char* const node = query.node.empty() ? nullptr : query.node.c_str();
    const int result = symbols_.getinfo(version(), node, nullptr, node != nullptr ? FI_SOURCE : 0, wanted.get(), &found);
    const Info list = make(found);
    if (result == -FI_ENODATA && query.delivery_complete) {
        OfferQuery weaker = query;
        weaker.delivery_complete = false;
        return offers(weaker);
    }
    if (result == -FI_ENODATA) return std::vector<Offer>{};
    if (result != 0) return failed(symbols_, "cannot list network interfaces", result);
    std::vector<Offer> offers;
    for (const fi_info* info = found; info != nullptr; info = info->next) {
        if (!usable(*info, query)) continue;
        Offer offer = describe(*info, query);
        const bool again = std::any_of(offers.begin(), offers.end(), [&](const Offer& other) {
            return other.domain == offer.domain && other.fabric == offer.fabric && other.address_format == offer.address_format;
        });
        if (again) continue;
        // A copy of one entry alone: dupinfo() does not follow the list.
        offer.record = std::shared_ptr<const fi_info>(symbols_.dupinfo(info), symbols_.freeinfo);
        offers.push_back(std::move(offer));
    }
    return offers;
}

Result<std::unique_ptr<Domain>> Library::open(const Offer& offer, const DomainSettings& settings) {
    MC_CHECK(offer.record != nullptr);
    auto domain = std::make_unique<LibraryDomain>(symbols_, make(symbols_.dupinfo(static_cast<const fi_info*>(offer.record.get()))), offer);
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

#else

namespace mooncake::fabric {

Result<std::shared_ptr<FabricApi>> load_library(const std::string&) {
    return fail(Code::kNotSupported, "built without the headers of libfabric");
}

}  // namespace mooncake::fabric

#endif
