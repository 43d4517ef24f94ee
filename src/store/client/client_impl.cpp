// SPDX-License-Identifier: Apache-2.0
#include "store/client/client_impl.h"

#include <algorithm>

#include "base/incarnation.h"
#include "base/log.h"
#include "base/memory_probe.h"
#include "base/thread.h"
#include "net/http_server.h"
#include "store/client/http_status.h"

namespace mooncake::store {

namespace {

constexpr Duration kSettling = 2s;  // within which clients find a master that returned

/// A thread that the client can do without; where none is to be had, whoever needs it next tries again.
template <typename Body>
void start_if_possible(std::unique_ptr<std::jthread>& thread, const char* name, Body&& body) {
    auto started = try_start_thread(name, std::forward<Body>(body));
    if (started) thread = std::make_unique<std::jthread>(std::move(*started));
    else MC_LOG_WARNING_EVERY(10s, "store: {}", started.error().to_string());
}

}  // namespace

ClientImpl::ClientImpl(std::unique_ptr<ClientCore> core, bool own_engine, MembershipOptions membership)
    : own_engine_(own_engine), core_(std::move(core)), reads_(std::make_unique<ReadSessions>(*core_)),
      writes_(std::make_unique<WriteSessions>(*core_)), copies_(std::make_unique<CopyWorker>(*core_)),
      membership_(Membership::create(*core_->master, core_->id, *this, membership)) {}

ClientImpl::~ClientImpl() {
    if (forked()) {  // the threads of these are not there to be joined
        (void)http_.release();
        (void)membership_.release();
        (void)copies_.release();
        (void)core_.release();
        (void)leaving_thread_.release();
        (void)metrics_thread_.release();
        return;
    }
    close();
    if (staging_memory_ != nullptr && !own_engine_) (void)core_->engine->free_memory(staging_memory_);
}

StoreCode ClientImpl::start(Deadline deadline) {
    if (auto joined = membership_->start(deadline); !joined) {
        MC_LOG_ERROR("cannot join the pool of {}: {}", core_->config.master, joined.error().to_string());
        return joined.error().code() == Code::kTimedOut ? StoreCode::kRpcTimeout : StoreCode::kRpcFail;
    }
    if (const StoreCode code = make_staging(); code != StoreCode::kOk) return code;
    if (core_->config.segment_bytes > 0) {
        const MountedSegments mounted = mount_memory(core_->config.segment_bytes, core_->config.protocol, "");
        if (mounted.code != StoreCode::kOk) return mounted.code;
    }
    if (core_->config.http_server) start_http();
    if (core_->config.options.metrics && core_->config.options.metrics_interval > Duration::zero())
        start_if_possible(metrics_thread_, "mc-store-log", [this](const std::stop_token& stop) { log_metrics(stop); });
    MC_LOG_INFO("{} is a client of the pool of {}, and lends {} bytes", core_->name, core_->config.master, core_->config.segment_bytes);
    return StoreCode::kOk;
}

StoreCode ClientImpl::make_staging() {
    const uint64_t size = core_->config.buffer_bytes;
    if (size == 0) return StoreCode::kOk;
    const auto memory = core_->engine->allocate_memory(size);
    if (!memory) {
        MC_LOG_ERROR("no staging buffer: {}", memory.error().to_string());
        return StoreCode::kBufferOverflow;
    }
    staging_memory_ = *memory;
    staging_ = std::make_unique<StagingPool>(static_cast<std::byte*>(*memory), size);
    return StoreCode::kOk;
}

void ClientImpl::start_http() {
    auto server = serve_status(
        {.metrics = [this] { return core_->metrics.registry.to_prometheus_text() + core_->engine->metrics().to_prometheus_text(); },
         .counters = &core_->metrics,
         .healthy = [this] { return master_reachable(); }},
        core_->config.http_port);
    if (server) http_ = std::move(*server);
    else MC_LOG_WARNING("no metrics on port {}: {}", core_->config.http_port, server.error().to_string());
}

Gate::Pass ClientImpl::enter() const { return forked() ? Gate::Pass() : gate_.enter(); }

bool ClientImpl::master_reachable() {
    const auto pass = enter();
    return pass && membership_->epoch() != 0 && membership_->answering();
}

void ClientImpl::close() {
    if (forked()) return;
    Lock lock(close_mutex_);
    if (closed_) return;
    closed_ = true;
    if (http_) http_->stop();
    core_->begin_closing();
    core_->master->stop_calls();
    core_->mover.stop_all();
    gate_.close();  // soon: what cannot be stopped is short, or has little patience
    copies_->stop();
    core_->directory.stop();
    core_->doubts.stop();
    membership_->stop();  // says goodbye: our segments leave the pool
    leaving_thread_.reset();
    metrics_thread_.reset();
    {
        Lock leaving(leaving_mutex_);
        leaving_.clear();
    }
    for (const SegmentId& id : core_->local.ids()) core_->local.remove(id);
    if (own_engine_) core_->engine->close();
}

void ClientImpl::log_metrics(const std::stop_token& stop) {
    Mutex mutex;
    std::condition_variable_any never;
    const auto microseconds = [](const metrics::Histogram& histogram, double quantile) {
        return histogram.snapshot().quantile(quantile) / 1000;
    };
    std::unique_lock lock(mutex);
    while (!never.wait_for(lock, stop, core_->config.options.metrics_interval, [] { return false; }) && !stop.stop_requested()) {
        const ClientMetrics& seen = core_->metrics;
        MC_LOG_INFO("read {} MiB, wrote {} MiB; get {} us (p99 {}), put {} us (p99 {}); {} of {} keys known", seen.read_bytes.value() >> 20,
                    seen.write_bytes.value() >> 20, microseconds(seen.get_latency, 0.5), microseconds(seen.get_latency, 0.99),
                    microseconds(seen.put_latency, 0.5), microseconds(seen.put_latency, 0.99), seen.lease_hits.value(),
                    seen.lease_hits.value() + seen.lease_misses.value());
    }
}

// ---- what the pool tells us

void ClientImpl::keys_changed(const std::vector<KeyChanged>& keys) {
    // By key alone: a master without tenants may call ours by another name.
    std::vector<std::string_view> names;
    names.reserve(keys.size());
    for (const KeyChanged& changed : keys) names.push_back(changed.key);
    core_->leases.forget(names);
}

void ClientImpl::all_keys_changed() { core_->leases.forget_all(); }

void ClientImpl::master_lost() {
    core_->fence.shut();
    core_->mover.stop_writes();
    core_->fence.drain();
    core_->doubts.forget_all();
    core_->leases.forget_all();
    core_->directory.forget_all();
    reads_->forget_all();
}

void ClientImpl::master_found(uint64_t epoch) {
    core_->mover.allow_writes();
    // The first one is met by everybody at leisure.
    if (known_master_) core_->settles_at.store(Clock::now() + kSettling, std::memory_order_release);
    known_master_ = true;
    core_->fence.open(epoch);
}

void ClientImpl::copy_ordered(const CopyOrder& order) { copies_->add(order); }

// ---- memory

StoreCode ClientImpl::register_buffer(void* address, uint64_t length) {
    const auto pass = enter();
    if (!pass) return StoreCode::kUnavailableInCurrentStatus;
    if (address == nullptr || length == 0) return StoreCode::kInvalidParams;
    if (auto added = core_->engine->register_memory(address, length); !added) {
        MC_LOG_WARNING("cannot register {} bytes at {}: {}", length, address, added.error().to_string());
        return StoreCode::kInvalidParams;
    }
    buffers_.add(static_cast<std::byte*>(address), length);
    return StoreCode::kOk;
}

StoreCode ClientImpl::unregister_buffer(void* address) {
    const auto pass = enter();
    if (!pass) return StoreCode::kUnavailableInCurrentStatus;
    if (!buffers_.remove(static_cast<std::byte*>(address))) return StoreCode::kInvalidParams;
    const auto removed = core_->engine->unregister_memory(address);
    return removed ? StoreCode::kOk : StoreCode::kInvalidParams;
}

std::optional<Piece> ClientImpl::registered_range(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    if (staging_memory_ != nullptr) {
        auto* const staging = static_cast<std::byte*>(staging_memory_);
        if (at >= staging && at < staging + core_->config.buffer_bytes) return Piece{staging, core_->config.buffer_bytes};
    }
    const auto range = buffers_.find_mapped(at, Clock::now());
    if (!range) return std::nullopt;
    return Piece{range->first, range->second};
}

void ClientImpl::drop_unreadable(std::span<Piece> sources) const {
    Piece known;
    for (Piece& source : sources)
        if (source.data != nullptr && !is_registered(source, known) && !is_readable(source.data, source.length)) source.data = nullptr;
}

bool ClientImpl::all_registered(std::span<const Piece> pieces) const {
    Piece known;
    return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) { return is_registered(piece, known); });
}

bool ClientImpl::is_registered(const Piece& piece, Piece& known) const {
    const auto inside = [&] {
        return piece.data >= known.data && piece.data < known.data + known.length &&
               piece.length <= known.length - static_cast<uint64_t>(piece.data - known.data);
    };
    if (inside()) return true;
    const auto range = registered_range(piece.data);
    if (range) known = *range;
    return range && inside();
}

StagingBuffer ClientImpl::stage(uint64_t length) {
    const auto pass = enter();
    return pass && staging_ ? staging_->take(length) : StagingBuffer();
}

// ---- segments

MountedSegments ClientImpl::mount(Result<std::shared_ptr<LentMemory>> memory, std::string_view protocol) {
    MountedSegments mounted;
    if (!memory) {
        MC_LOG_ERROR("no memory for a segment: {}", memory.error().to_string());
        mounted.code = memory.error().code() == Code::kInvalidArgument ? StoreCode::kInvalidParams : StoreCode::kInternalError;
        return mounted;
    }
    const SegmentSpec spec{.id = {.high = random_u64(), .low = random_u64()},
                           .name = core_->name,
                           .base = reinterpret_cast<uint64_t>((*memory)->base()),
                           .size = (*memory)->size(),
                           .endpoint = core_->engine->segment_name(),
                           .protocol = std::string(protocol)};
    // Known here before anybody can be told of it.
    core_->local.add(spec, *memory);
    const auto said = membership_->mount(spec, core_->rpc_deadline());
    mounted.code = said ? *said : core_->code_of(said.error());
    if (mounted.code != StoreCode::kOk) {
        MC_LOG_ERROR("a segment of {} bytes is not mounted: {}", spec.size,
                     said ? std::string(store_code_name(*said)) : said.error().to_string());
        core_->local.remove(spec.id);
        return mounted;
    }
    mounted.segments.push_back(spec.id);
    mounted.bytes = spec.size;
    return mounted;
}

MountedSegments ClientImpl::mount_file(const FileToMount& file) {
    const auto pass = enter();
    if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus};
    if (file.path.find('\0') != std::string::npos) return {.code = StoreCode::kInvalidParams};  // the system would open another one
    return mount(LentMemory::map_file(core_->engine, file.path, file.offset, file.size, file.location), file.protocol);
}

MountedSegments ClientImpl::mount_memory(uint64_t bytes, std::string_view protocol, std::string_view location) {
    const auto pass = enter();
    if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus};
    if (bytes == 0) return {.code = StoreCode::kInvalidParams};
    const LentMemory::Pages pages{.huge = core_->config.options.huge_pages, .early = core_->config.options.early_pages};
    return mount(LentMemory::allocate(core_->engine, bytes, std::string(location), pages), protocol);
}

StoreCode ClientImpl::unmount(std::span<const SegmentId> segments, Duration grace) {
    const auto pass = enter();
    if (!pass) return StoreCode::kUnavailableInCurrentStatus;
    for (const SegmentId& id : segments)
        if (!core_->local.find(id)) return StoreCode::kSegmentNotFound;
    StoreCode first = StoreCode::kOk;
    for (const SegmentId& id : segments) {
        const auto said = membership_->unmount(id, grace, core_->rpc_deadline());
        const StoreCode code = said ? *said : core_->code_of(said.error());
        // A master that does not know it any more has taken it out of the pool: as good as asked for.
        if (code != StoreCode::kOk && code != StoreCode::kSegmentNotFound) {
            if (first == StoreCode::kOk) first = code;
            continue;
        }
        auto held = core_->local.find(id);
        if (grace > Duration::zero()) {
            Lock lock(leaving_mutex_);
            leaving_.push_back({.at = Clock::now() + grace, .held = std::move(held)});
            if (!leaving_thread_)
                start_if_possible(leaving_thread_, "mc-store-leave", [this](const std::stop_token& stop) { give_back_in_time(stop); });
            leaving_changed_.notify_all();
        } else {
            core_->local.remove(id);  // freed when the last copy of ours has ended, behind the engine's fence
        }
    }
    return first;
}

std::vector<ClientImpl::Leaving> ClientImpl::wait_for_leaving(const std::stop_token& stop) {
    std::vector<Leaving> over;
    std::unique_lock lock(leaving_mutex_);
    while (over.empty() && !stop.stop_requested()) {
        const Time now = Clock::now();
        Time next = Time::max();
        for (const Leaving& one : leaving_) {
            if (one.at <= now) over.push_back(one);
            else next = std::min(next, one.at);
        }
        std::erase_if(leaving_, [now](const Leaving& one) { return one.at <= now; });
        if (!over.empty()) break;
        const size_t known = leaving_.size();
        const auto more = [&]() MC_NO_THREAD_ANALYSIS { return leaving_.size() != known; };
        if (next == Time::max()) leaving_changed_.wait(lock, stop, more);
        else leaving_changed_.wait_until(lock, stop, next, more);
    }
    return over;
}

void ClientImpl::give_back_in_time(const std::stop_token& stop) {
    // Giving back waits for the engine's fence, so it is not done under the lock.
    while (!stop.stop_requested())
        for (const Leaving& one : wait_for_leaving(stop)) core_->local.remove(one.held->spec.id);
}

}  // namespace mooncake::store
