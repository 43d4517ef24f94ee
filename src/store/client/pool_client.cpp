// SPDX-License-Identifier: Apache-2.0
#include "store/client/pool_client.h"

#include <algorithm>

#include "base/log.h"
#include "base/memory_probe.h"
#include "base/thread.h"
#include "net/http_server.h"
#include "store/client/http_status.h"
#include "store/client/pool_sessions.h"
#include "store/member/any_memory.h"

namespace mooncake::store {

namespace {

constexpr Duration kSettling = 2s;  // within which clients find a master that returned

}  // namespace

PoolClient::PoolClient(PoolAccess& pool, ClientConfig config)
    : pool_(pool), core_(std::make_unique<ClientCore>(pool, std::move(config))), sessions_(std::make_unique<Sessions>(*this)) {}

PoolClient::~PoolClient() {
    close();
    sessions_.reset();
    // A closed engine has given it back already.
    if (staging_memory_ != nullptr) (void)pool_.engine->free_memory(staging_memory_);
}

StoreCode PoolClient::start() {
    if (const StoreCode code = make_staging(); code != StoreCode::kOk) return code;
    if (core_->config.http_server) start_http();
    if (core_->config.metrics_interval > Duration::zero()) {
        auto started = try_start_thread("mc-store-log", [this](const std::stop_token& stop) { log_metrics(stop); });
        if (started) metrics_thread_ = std::move(*started);
        else MC_LOG_WARNING("no log of metrics: {}", started.error().to_string());
    }
    return StoreCode::kOk;
}

StoreCode PoolClient::make_staging() {
    const uint64_t size = core_->config.buffer_bytes;
    if (size == 0) return StoreCode::kOk;
    const auto memory = pool_.engine->allocate_memory(size);
    if (!memory) {
        MC_LOG_ERROR("no staging buffer: {}", memory.error().to_string());
        return StoreCode::kBufferOverflow;
    }
    staging_memory_ = *memory;
    staging_ = std::make_unique<StagingPool>(static_cast<std::byte*>(*memory), size);
    return StoreCode::kOk;
}

void PoolClient::start_http() {
    auto server = serve_status(
        {.metrics = [this] { return pool_.metrics.registry.to_prometheus_text() + pool_.engine->metrics().to_prometheus_text(); },
         .counters = &core_->metrics,
         .healthy = [this] { return master_reachable(); }},
        core_->config.http_port);
    if (server) http_ = std::move(*server);
    else MC_LOG_WARNING("no metrics on port {}: {}", core_->config.http_port, server.error().to_string());
}

Gate::Pass PoolClient::enter() const { return fork_generation() == born_ ? gate_.enter() : Gate::Pass(); }

bool PoolClient::master_reachable() {
    const auto pass = enter();
    return pass && pool_.master_reachable();
}

void PoolClient::close() {
    if (http_) http_->stop();
    core_->nodes.stop();
    gate_.close();  // soon: what cannot be stopped is short, or has little patience
    core_->doubts.stop();
    metrics_thread_ = {};
}

void PoolClient::log_metrics(const std::stop_token& stop) {
    Mutex mutex;
    std::condition_variable_any never;
    const auto microseconds = [](const metrics::Histogram& histogram, double quantile) {
        return histogram.snapshot().quantile(quantile) / 1000;
    };
    std::unique_lock lock(mutex);
    while (!never.wait_for(lock, stop, core_->config.metrics_interval, [] { return false; }) && !stop.stop_requested()) {
        const ClientMetrics& seen = core_->metrics;
        MC_LOG_INFO("read {} MiB, wrote {} MiB; get {} us (p99 {}), put {} us (p99 {}); {} of {} keys known", seen.read_bytes.value() >> 20,
                    seen.write_bytes.value() >> 20, microseconds(seen.get_latency, 0.5), microseconds(seen.get_latency, 0.99),
                    microseconds(seen.put_latency, 0.5), microseconds(seen.put_latency, 0.99), seen.lease_hits.value(),
                    seen.lease_hits.value() + seen.lease_misses.value());
    }
}

// ---- what the pool tells us

void PoolClient::keys_changed(const std::vector<KeyChanged>& keys) {
    // By key alone: a master without tenants may call ours by another name.
    std::vector<std::string_view> names;
    names.reserve(keys.size());
    for (const KeyChanged& changed : keys) names.push_back(changed.key);
    core_->leases.forget(names);
}

void PoolClient::all_keys_changed() { core_->leases.forget_all(); }

void PoolClient::master_lost() {
    core_->doubts.forget_all();
    core_->leases.forget_all();
    Lock lock(sessions_mutex_);
    for (Sessions* const sessions : all_sessions_) sessions->forget_reads();
}

void PoolClient::master_found(uint64_t) {
    // The first one is met by everybody at leisure.
    if (known_master_) core_->settles_at.store(Clock::now() + kSettling, std::memory_order_release);
    known_master_ = true;
}

// ---- memory

StoreCode PoolClient::register_buffer(void* address, uint64_t length) {
    const auto pass = enter();
    if (!pass) return StoreCode::kUnavailableInCurrentStatus;
    if (address == nullptr || length == 0) return StoreCode::kInvalidParams;
    if (auto added = lender_.register_memory(static_cast<std::byte*>(address), length); !added) {
        MC_LOG_WARNING("cannot register {} bytes at {}: {}", length, address, added.error().to_string());
        return StoreCode::kInvalidParams;
    }
    buffers_.add(static_cast<std::byte*>(address), length);
    return StoreCode::kOk;
}

StoreCode PoolClient::unregister_buffer(void* address) {
    const auto pass = enter();
    if (!pass) return StoreCode::kUnavailableInCurrentStatus;
    if (!buffers_.remove(static_cast<std::byte*>(address))) return StoreCode::kInvalidParams;
    const auto removed = pool_.engine->unregister_memory(address);
    return removed ? StoreCode::kOk : StoreCode::kInvalidParams;
}

std::optional<Piece> PoolClient::registered_range(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    if (staging_memory_ != nullptr) {
        auto* const staging = static_cast<std::byte*>(staging_memory_);
        if (at >= staging && at < staging + core_->config.buffer_bytes) return Piece{staging, core_->config.buffer_bytes};
    }
    // Whether memory of a device is there only the device knows, and says so when it copies.
    const auto range = is_host(*pool_.engine, at, 1) ? buffers_.find_mapped(at, Clock::now()) : buffers_.find(at);
    if (!range) return std::nullopt;
    return Piece{range->first, range->second};
}

MemoryLoan PoolClient::drop_unreadable(std::span<Piece> sources) {
    MemoryLoan loan;
    Piece known;
    for (Piece& source : sources)
        if (source.data != nullptr && !is_registered(source, known) && !lender_.lend(source, loan) &&
            !is_readable(source.data, source.length))
            source.data = nullptr;
    return loan;
}

MemoryLoan PoolClient::look_at(std::span<const Piece> targets) {
    MemoryLoan loan;
    Piece known;
    for (const Piece& target : targets)
        if (!is_registered(target, known) && !lender_.lend(target, loan)) loan.unsure = true;
    return loan;
}

bool PoolClient::is_registered(const Piece& piece, Piece& known) const {
    const auto inside = [&] {
        return piece.data >= known.data && piece.data < known.data + known.length &&
               piece.length <= known.length - static_cast<uint64_t>(piece.data - known.data);
    };
    if (inside()) return true;
    const auto range = registered_range(piece.data);
    if (range) known = *range;
    return range && inside();
}

StagingBuffer PoolClient::stage(uint64_t length) {
    const auto pass = enter();
    return pass && staging_ ? staging_->take(length) : StagingBuffer();
}

}  // namespace mooncake::store
