// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "base/log.h"
#include "capi/api_convert.h"
#include "capi/calls.h"
#include "capi/graceful_shutdown.h"
#include "capi/live_engines.h"
#include "capi/scatter.h"
#include "engine/codes.h"
#include "engine/engine.h"
#include "mooncake/api/engine.h"
#include "topology/topology.h"

namespace mooncake::api {

using capi::EngineUse;

struct TransferEngine::Impl {
    /// Also for an engine that was moved away.
    static EngineUse use(const std::unique_ptr<Impl>& impl) noexcept {
        return impl ? capi::use_engine(impl->handle.load(std::memory_order_acquire)) : EngineUse();
    }

    AutoDiscoverConfig auto_discover;
    std::vector<std::string> filters;
    std::atomic<capi::EngineHandle> handle{0};
};

namespace {

int invalid_call() noexcept { return public_code(Code::kInvalidArgument); }

Notification to_notification(NotifyDesc&& notify) { return {std::move(notify.name), std::move(notify.notify_msg)}; }

Status submit(const EngineUse& engine, BatchID batch, const std::vector<TransferRequest>& entries, const Notification* notification) {
    if (!engine) return no_engine();
    std::vector<Request> requests;
    requests.reserve(entries.size());
    for (const TransferRequest& entry : entries) {
        auto request = to_request(entry);
        if (!request) return to_status(request.error());
        requests.push_back(*request);
    }
    return to_status(engine->submit(batch, requests, notification));
}

std::shared_ptr<SegmentDesc> describe(const EngineUse& engine, const std::string& name) {
    static constexpr uint32_t kBuffersMax = 100'000;
    auto descriptor = engine->describe(name, kBuffersMax, engine->transfer_deadline(0));
    if (!descriptor) {
        MC_LOG_WARNING_EVERY(1s, "cannot describe segment {}: {}", name, descriptor.error().to_string());
        return nullptr;
    }
    auto segment = std::make_shared<SegmentDesc>();
    segment->name = std::move(descriptor->name);
    for (BufferRecord& buffer : descriptor->buffers)
        segment->buffers.push_back({std::move(buffer.location), buffer.address, buffer.length});
    return segment;
}

}  // namespace

// ---- TransferMetadata

std::shared_ptr<SegmentDesc> TransferMetadata::getSegmentDescByID(SegmentID segment, bool force_update) const {
    const EngineUse engine = capi::use_engine(engine_);
    auto id = to_segment(segment);
    if (!engine || !id) return nullptr;
    auto name = engine->segment_name_of(*id);
    return name ? getSegmentDescByName(*name, force_update) : nullptr;
}

std::shared_ptr<SegmentDesc> TransferMetadata::getSegmentDescByName(const std::string& name, bool force_update) const {
    const EngineUse engine = capi::use_engine(engine_);
    if (!engine) return nullptr;
    if (force_update) capi::refresh_segments(*engine, name);
    return describe(engine, name);
}

// ---- TransferEngine: life

TransferEngine::TransferEngine(bool auto_discover) : TransferEngine(auto_discover, {}) {}
TransferEngine::TransferEngine(bool auto_discover, const std::vector<std::string>& filter) : impl_(std::make_unique<Impl>()) {
    impl_->auto_discover.enabled = auto_discover;
    impl_->filters = filter;
}
TransferEngine::TransferEngine(TransferEngine&& other) noexcept = default;
TransferEngine& TransferEngine::operator=(TransferEngine&& other) noexcept {
    if (this == &other) return *this;
    freeEngine();
    impl_ = std::move(other.impl_);
    return *this;
}
TransferEngine::~TransferEngine() { freeEngine(); }

void TransferEngine::setAutoDiscover(bool enabled) {
    if (impl_) impl_->auto_discover.enabled = enabled;
}
void TransferEngine::setAutoDiscover(const AutoDiscoverConfig& config) {
    if (impl_) impl_->auto_discover = config;
}
void TransferEngine::setWhitelistFilters(std::vector<std::string>&& filters) {
    if (impl_) impl_->filters = std::move(filters);
}

int TransferEngine::init(const std::string& metadata_conn_string, const std::string& local_server_name,
                         const std::string& /*ip_or_host_name*/, uint64_t /*rpc_port*/) {
    if (!impl_ || impl_->handle.load(std::memory_order_acquire) != 0) return invalid_call();
    auto handle = capi::start_engine({.local_name = local_server_name,
                                      .metadata = metadata_conn_string,
                                      .protocol = impl_->auto_discover.protocol,
                                      .devices = impl_->filters,
                                      .options = load_options()});
    if (!handle) return public_code(handle);
    impl_->handle.store(*handle, std::memory_order_release);
    return 0;
}

int TransferEngine::freeEngine() {
    if (impl_) capi::remove_engine(impl_->handle.exchange(0, std::memory_order_acq_rel));
    return 0;
}

void TransferEngine::enableGracefulShutdown() {
    if (!Impl::use(impl_)) return;
    auto enabled = capi::close_on_exit(impl_->handle.load(std::memory_order_acquire));
    if (!enabled) MC_LOG_ERROR("the engine will not be closed on signals: {}", enabled.error().to_string());
}

// ---- transports, identity, surroundings

Transport* TransferEngine::installTransport(const std::string& proto, void** /*args*/) { return getTransport(proto); }
int TransferEngine::uninstallTransport(const std::string& /*proto*/) { return Impl::use(impl_) ? 0 : invalid_call(); }
Transport* TransferEngine::getTransport(const std::string& proto) {
    if (!Impl::use(impl_)) return nullptr;
    return reinterpret_cast<Transport*>(const_cast<char*>(capi::transport_for(proto)));
}
bool TransferEngine::isTcpOnly() const { return numContexts() == 0; }

std::string TransferEngine::getLocalIpAndPort() const {
    const EngineUse engine = Impl::use(impl_);
    return engine ? capi::local_address(*engine) : std::string();
}
int TransferEngine::getRpcPort() const {
    const EngineUse engine = Impl::use(impl_);
    return engine ? engine->rpc_port() : invalid_call();
}
std::shared_ptr<const Topology> TransferEngine::getLocalTopology() const {
    auto topology = std::make_shared<Topology>();
    topology->json = getLocalTopologyString();
    auto known = topology_from_json(topology->json);
    if (!known) return topology;
    for (const auto& [location, nics] : known->locations) topology->matrix[location] = {location, nics.preferred, nics.available};
    for (const Nic& nic : known->nics) topology->hca_list.push_back(nic.name);
    return topology;
}
std::string TransferEngine::getLocalTopologyString() const {
    const EngineUse engine = Impl::use(impl_);
    return engine ? engine->topology_json() : std::string("{}");
}
std::string TransferEngine::showLinks(bool json) const {
    const EngineUse engine = Impl::use(impl_);
    return engine ? capi::describe_links(*engine, json) : std::string();
}
int TransferEngine::getNicLoadStats(std::vector<NicLoadStats>& stats) const {
    stats.clear();
    return Impl::use(impl_) ? 0 : invalid_call();
}
int TransferEngine::numContexts() const { return 0; }

// ---- segments

SegmentHandle TransferEngine::openSegment(const std::string& segment_name) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return INVALID_SEGMENT_ID;
    auto segment = capi::open_segment(*engine, segment_name);
    if (segment) return static_cast<SegmentHandle>(*segment);
    MC_LOG_WARNING_EVERY(1s, "cannot open segment {}: {}", segment_name, segment.error().to_string());
    return INVALID_SEGMENT_ID;
}
Status TransferEngine::CheckSegmentStatus(SegmentID segment) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return no_engine();
    auto id = to_segment(segment);
    return id ? to_status(engine->segment_name_of(*id)) : to_status(id);
}
int TransferEngine::closeSegment(SegmentHandle /*segment*/) { return Impl::use(impl_) ? 0 : invalid_call(); }
int TransferEngine::removeLocalSegment(const std::string& segment_name) {
    const EngineUse engine = Impl::use(impl_);
    return engine ? public_code(capi::forget_segment(*engine, segment_name)) : invalid_call();
}
int TransferEngine::syncSegmentCache(const std::string& segment_name) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return invalid_call();
    capi::refresh_segments(*engine, segment_name);
    return 0;
}
std::shared_ptr<TransferMetadata> TransferEngine::getMetadata() const {
    return std::make_shared<TransferMetadata>(impl_ ? impl_->handle.load(std::memory_order_acquire) : 0);
}
PeerLiveness TransferEngine::probePeerAliveByID(SegmentID segment) {
    const EngineUse engine = Impl::use(impl_);
    auto id = to_segment(segment);
    if (!engine || !id) return PeerLiveness::Unreachable;
    auto name = engine->segment_name_of(*id);
    if (!name) return PeerLiveness::Unreachable;
    return engine->probe(*name, Deadline::after(engine->options().connect_timeout)) ? PeerLiveness::Alive : PeerLiveness::Unreachable;
}

// ---- memory

int TransferEngine::registerLocalMemory(void* addr, size_t length, const std::string& location, bool remote_accessible,
                                        bool /*update_metadata*/) {
    const EngineUse engine = Impl::use(impl_);
    return engine ? public_code(engine->register_memory(addr, length, location, remote_accessible)) : invalid_call();
}
int TransferEngine::unregisterLocalMemory(void* addr, bool /*update_metadata*/) {
    const EngineUse engine = Impl::use(impl_);
    return engine ? public_code(engine->unregister_memory(addr)) : invalid_call();
}
int TransferEngine::registerLocalMemoryBatch(const std::vector<BufferEntry>& buffers, const std::string& location) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return invalid_call();
    std::vector<Permission> ranges;
    ranges.reserve(buffers.size());
    for (const BufferEntry& buffer : buffers) ranges.push_back({.range = {reinterpret_cast<uintptr_t>(buffer.addr), buffer.length}});
    return public_code(engine->register_memory_batch(ranges, location));
}
int TransferEngine::unregisterLocalMemoryBatch(const std::vector<void*>& addresses) {
    const EngineUse engine = Impl::use(impl_);
    return engine ? public_code(engine->unregister_memory_batch(addresses)) : invalid_call();
}
bool TransferEngine::checkOverlap(void* addr, uint64_t length) const {
    const EngineUse engine = Impl::use(impl_);
    if (!engine || length == 0) return false;
    const uint64_t start = reinterpret_cast<uintptr_t>(addr);
    // By what lies before the other's end, not by sums: they may go round.
    for (const BufferRecord& buffer : engine->buffers())
        if (start < buffer.address ? buffer.address - start < length : start - buffer.address < buffer.length) return true;
    return false;
}

// ---- transfers

BatchID TransferEngine::allocateBatchID(size_t batch_size) {
    const EngineUse engine = Impl::use(impl_);
    return engine ? engine->allocate_batch(batch_size).value_or(INVALID_BATCH_ID) : INVALID_BATCH_ID;
}
Status TransferEngine::submitTransfer(BatchID batch, const std::vector<TransferRequest>& entries) {
    return submit(Impl::use(impl_), batch, entries, nullptr);
}
Status TransferEngine::submitTransferWithNotify(BatchID batch, const std::vector<TransferRequest>& entries, NotifyDesc notify) {
    const Notification notification = to_notification(std::move(notify));
    return submit(Impl::use(impl_), batch, entries, &notification);
}
Status TransferEngine::getTransferStatus(BatchID batch, size_t task_id, TransferStatus& status) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return no_engine();
    const auto task = engine->task_status(batch, task_id);
    if (!task) return to_status(task.error());
    status = {static_cast<TransferStatusEnum>(task->state), task->bytes};
    return Status::OK();
}
Status TransferEngine::getBatchTransferStatus(BatchID batch, TransferStatus& status) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return no_engine();
    const auto all = engine->batch_status(batch);
    if (!all) return to_status(all.error());
    status = {static_cast<TransferStatusEnum>(all->state), all->bytes};
    if (status.s == TIMEOUT) status.s = FAILED;  // callers of this form know only one kind of failure
    return Status::OK();
}
Status TransferEngine::freeBatchID(BatchID batch) {
    const EngineUse engine = Impl::use(impl_);
    return engine ? to_status(engine->free_batch(batch)) : no_engine();
}

ScatterTransferOperation TransferEngine::submitScatter(const std::vector<ScatterTransferRange>& ranges) {
    const capi::EngineHandle handle = impl_ ? impl_->handle.load(std::memory_order_acquire) : 0;
    return ScatterTransferOperation(ScatterTransferOperation::Impl::submit(handle, ranges));
}
Status TransferEngine::transferScatter(const std::vector<ScatterTransferRange>& ranges) { return submitScatter(ranges).wait(); }

// ---- messages

int TransferEngine::getNotifies(std::vector<NotifyDesc>& notifies) {
    notifies.clear();
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return invalid_call();
    for (Notification& notification : engine->take_notifications())
        notifies.push_back({std::move(notification.name), std::move(notification.message)});
    return 0;
}
int TransferEngine::sendNotifyByID(SegmentID target, NotifyDesc notify) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return invalid_call();
    auto id = to_segment(target);
    return id ? public_code(capi::notify(*engine, *id, to_notification(std::move(notify)))) : public_code(id);
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature that callers know
int TransferEngine::sendNotifyByName(std::string remote_agent, NotifyDesc notify) {
    const EngineUse engine = Impl::use(impl_);
    if (!engine) return invalid_call();
    return public_code(engine->send_notification(remote_agent, to_notification(std::move(notify)), engine->transfer_deadline(0)));
}

}  // namespace mooncake::api
