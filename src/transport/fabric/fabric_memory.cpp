// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric_memory.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/incarnation.h"
#include "base/log.h"
#include "base/memory_probe.h"
#include "base/pages.h"
#include "base/thread.h"

namespace mooncake::fabric {

namespace {

constexpr int kKeyAttempts = 16;                 // until one is free
constexpr uint64_t kParallelBytes = 1ull << 30;  // smaller regions are not worth threads
constexpr uint64_t kPopulateBytes = 256 << 20;

/// Makes the pages of a part of a region exist, without touching what is in them. A hint: old kernels do not know it.
void populate(const MemoryRegion& region, uint64_t offset) {
    (void)populate_pages(region.address + offset, std::min(kPopulateBytes, region.length - offset));
}

/// Ascending. Of two that overlap the wider one stays: it is about to go, and who finds its key closed asks again.
void sort_apart(std::vector<ChunkRecord>& chunks) {
    std::sort(chunks.begin(), chunks.end(), [](const ChunkRecord& a, const ChunkRecord& b) {
        return a.address != b.address ? a.address < b.address : a.length > b.length;
    });
    uint64_t end = 0;
    std::erase_if(chunks, [&](const ChunkRecord& chunk) {
        if (chunk.address < end) return true;
        end = chunk.address + chunk.length;
        return false;
    });
}

/// Whether its owner has unmapped it, though it is registered: a mistake that should cost peers an error before they use it.
bool is_unmapped(const PlannedChunk& plan) noexcept {
    const auto* const start = reinterpret_cast<const std::byte*>(plan.address);
    return !is_mapped(start) && !is_mapped(start + (plan.length - 1));
}

uint32_t key_bytes_of(const std::vector<Rail*>& rails) {
    uint32_t bytes = 8;
    for (const Rail* const rail : rails) bytes = std::min(bytes, rail->offer().key_bytes);
    return bytes;
}

}  // namespace

/// What is registered of one region.
class FabricMemory::Entry final : public Registration {
public:
    Entry(FabricMemory& memory, Chunks chunks) : memory_(memory), chunks_(std::move(chunks)) {}
    ~Entry() override {
        (void)memory_.revoke(chunks_);
        std::vector<PlannedChunk> plans;
        for (const auto& chunk : chunks_) plans.push_back(std::move(chunk->plan));
        Lock lock(memory_.ledger_mutex_);
        release(plans, memory_.ledger_);
        memory_.report_pages();
    }
    Result<> revoke(Deadline) override { return memory_.revoke(chunks_); }

private:
    FabricMemory& memory_;
    Chunks chunks_;
};

FabricMemory::FabricMemory(std::vector<Rail*> rails, const Settings& settings)
    : rails_(std::move(rails)), settings_(settings), key_source_(key_bytes_of(rails_), random_u64()),
      ledger_(rails_.size(), settings.limits), bound_(rails_.size()) {}

FabricMemory::~FabricMemory() MC_NO_THREAD_ANALYSIS {
    close_keys(probe_);
    Lock lock(mutex_);
    MC_CHECK(chunks_.empty());
}

void FabricMemory::lend_probe() MC_NO_THREAD_ANALYSIS {
    const MemoryRegion region{.address = probe_page_->bytes.data(), .length = probe_page_->bytes.size(), .writable = false};
    const auto address = reinterpret_cast<uint64_t>(region.address);
    probe_.plan = {.address = address, .length = region.length, .pages = 0, .nics = {}};
    probe_.read_only = true;
    probe_.keys.resize(rails_.size());
    for (const Rail* const rail : rails_) {
        const auto placed = place(region, {.nic = rail->index(), .address = address, .length = region.length}, probe_);
        if (!placed) MC_LOG_WARNING("paths to {} are probed with memory that is lent: {}", rail->offer().nic, placed.error().to_string());
    }
}

Result<std::unique_ptr<MemoryKey>> FabricMemory::register_with(Rail& rail, Domain::KeyRequest request) {
    for (int attempt = 1;; ++attempt) {
        request.key = key_source_.next();
        auto key = rail.register_memory(request);
        if (key || key.error().code() != Code::kBusy || attempt == kKeyAttempts) return key;
    }
}

Result<> FabricMemory::place(const MemoryRegion& region, const Placement& placement, Chunk& chunk) {
    Rail& rail = *rails_[placement.nic];
    const Domain::KeyRequest request{.address = reinterpret_cast<std::byte*>(placement.address),
                                     .length = placement.length,
                                     .kind = region.kind,
                                     .device = region.device,
                                     .remote_access = region.remote_accessible,
                                     .writable = region.writable};
    Lock lock(rail.mutex());
    auto key = register_with(rail, request);
    if (!key) return Unexpected(std::move(key).error().with_context(rail.offer().nic));
    chunk.keys[placement.nic] = std::move(*key);
    if (rail.offer().endpoint_keys) bound_[placement.nic].emplace(&chunk, request);
    return {};
}

std::vector<Result<>> FabricMemory::place_all(const MemoryRegion& region, std::span<const Placement> placements, Chunks& chunks) {
    std::vector<std::vector<size_t>> by_rail(rails_.size());
    for (size_t i = 0; i < placements.size(); ++i) {
        while (chunks.size() <= placements[i].chunk) chunks.push_back(std::make_unique<Chunk>());
        chunks[placements[i].chunk]->keys.resize(rails_.size());
        by_rail[placements[i].nic].push_back(i);
    }
    std::erase_if(by_rail, [](const auto& share) { return share.empty(); });
    std::vector<Result<>> results(placements.size());
    const auto place_share = [&](size_t share) {
        for (const size_t i : by_rail[share]) results[i] = place(region, placements[i], *chunks[placements[i].chunk]);
    };
    if (region.length >= kParallelBytes) in_parallel(by_rail.size(), place_share);
    else
        for (size_t share = 0; share < by_rail.size(); ++share) place_share(share);
    return results;
}

void FabricMemory::in_parallel(size_t count, const std::function<void(size_t)>& body) const {
    std::atomic<size_t> next{0};
    const auto work = [&] {
        for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
    };
    std::vector<std::jthread> helpers;
    const size_t threads = std::min(count, static_cast<size_t>(std::max(settings_.parallel, 1)));
    for (size_t i = 1; i < threads; ++i) {
        auto helper = try_start_thread("mc-register", [&](const std::stop_token&) { work(); });
        if (!helper) break;  // this thread does it alone
        helpers.push_back(std::move(*helper));
    }
    work();
}

void FabricMemory::report_pages() {
    for (const Rail* const rail : rails_) {
        RailMetrics* const metrics = rail->metrics();
        if (metrics == nullptr) continue;
        const uint64_t limit = ledger_.pages_limit(rail->index());
        metrics->pages_used->set(static_cast<int64_t>(ledger_.pages_used(rail->index())));
        metrics->pages_limit->set(limit == UINT64_MAX ? -1 : static_cast<int64_t>(limit));
    }
}

Result<std::unique_ptr<Registration>> FabricMemory::add(const MemoryRegion& region) {
    const auto address = reinterpret_cast<uint64_t>(region.address);
    PlanRequest request{.address = address, .length = region.length};
    for (const Rail* const rail : rails_) {
        const bool useful = region.remote_accessible || rail->offer().local_keys;
        const bool possible = region.kind == MemoryKind::kHost || rail->offer().device_memory;
        if (useful && possible) request.nics.push_back(rail->index());
    }
    if (region.length == 0 || (request.nics.empty() && !region.remote_accessible)) return nullptr;
    if (request.nics.empty()) return add_unreachable(region);
    if (region.kind == MemoryKind::kHost && region.length >= kPageLookupBytes) request.page_bytes = page_bytes_of(address, region.length);
    if (settings_.populate && region.kind == MemoryKind::kHost && region.length >= kParallelBytes)
        in_parallel((region.length + kPopulateBytes - 1) / kPopulateBytes, [&](size_t i) { populate(region, i * kPopulateBytes); });
    Chunks chunks;
    const PlanWork work{.place = [&](std::span<const Placement> placements) { return place_all(region, placements, chunks); },
                        .undo =
                            [&](std::span<const Placement> placements) {
                                for (const Placement& one : placements) {
                                    Lock lock(rails_[one.nic]->mutex());
                                    close_key(*chunks[one.chunk], one.nic);
                                }
                            }};
    {
        Lock lock(ledger_mutex_);
        MC_ASSIGN_OR_RETURN(auto plans, carry_out(request, ledger_, work));
        report_pages();
        chunks.resize(plans.size());
        for (size_t i = 0; i < plans.size(); ++i) {
            chunks[i]->plan = std::move(plans[i]);
            chunks[i]->remote = region.remote_accessible;
            chunks[i]->read_only = !region.writable;
            chunks[i]->host = region.kind == MemoryKind::kHost;
        }
    }
    Lock lock(mutex_);
    for (const auto& chunk : chunks) chunks_.emplace(chunk->plan.address, chunk.get());
    return std::make_unique<Entry>(*this, std::move(chunks));
}

std::unique_ptr<Registration> FabricMemory::add_unreachable(const MemoryRegion& region) {
    Chunks chunks;
    chunks.push_back(std::make_unique<Chunk>());
    Chunk& chunk = *chunks.back();
    chunk.plan = {.address = reinterpret_cast<uint64_t>(region.address), .length = region.length, .pages = 0, .nics = {}};
    chunk.remote = true;
    chunk.read_only = !region.writable;
    chunk.keys.resize(rails_.size());
    Lock lock(mutex_);
    chunks_.emplace(chunk.plan.address, &chunk);
    return std::make_unique<Entry>(*this, std::move(chunks));
}

void FabricMemory::close_key(Chunk& chunk, uint32_t rail) {
    chunk.keys[rail].reset();
    bound_[rail].erase(&chunk);
}

void FabricMemory::close_keys(Chunk& chunk) {
    for (uint32_t i = 0; i < chunk.keys.size(); ++i) {
        Lock lock(rails_[i]->mutex());
        close_key(chunk, i);
    }
}

Result<> FabricMemory::revoke(std::span<const std::unique_ptr<Chunk>> chunks) {
    // From now on nobody is told. Whoever was had the endpoints' names of now, at the latest.
    std::vector<uint64_t> told(rails_.size(), 0);
    {
        Lock lock(mutex_);
        for (const auto& chunk : chunks) {
            const auto [first, last] = chunks_.equal_range(chunk->plan.address);
            const auto found = std::find_if(first, last, [&](const auto& known) { return known.second == chunk.get(); });
            if (found != last) chunks_.erase(found);
            for (size_t i = 0; i < chunk->keys.size(); ++i)
                if (chunk->told && chunk->keys[i]) told[i] = rails_[i]->state().epoch;
        }
    }
    for (const auto& chunk : chunks) close_keys(*chunk);
    // A message whose header was accepted goes on streaming into memory after its key was closed.
    // Not so where registrations are bound to the endpoint: such NICs hold every packet against its key.
    for (size_t i = 0; i < told.size(); ++i)
        if (told[i] != 0 && !rails_[i]->offer().endpoint_keys) MC_RETURN_IF_ERROR(close_epoch(*rails_[i], told[i]));
    return {};
}

// ---- where keys belong to an endpoint

void FabricMemory::unbind_all(Rail& rail) {
    for (const auto& [chunk, request] : bound_[rail.index()]) chunk->keys[rail.index()].reset();
}

void FabricMemory::bind_all(Rail& rail) {
    for (const auto& [chunk, request] : bound_[rail.index()]) {
        auto key = register_with(rail, request);
        if (key) chunk->keys[rail.index()] = std::move(*key);
        else
            MC_LOG_ERROR("{} lost {} bytes at {}: {}", rail.offer().nic, request.length, static_cast<void*>(request.address),
                         key.error().to_string());
    }
}

Result<> FabricMemory::close_epoch(Rail& rail, uint64_t epoch) {
    Lock rail_lock(rail.mutex());
    if (!rail.offer().endpoint_keys) return rail.close_epoch(epoch);
    // Operations of our own may be using them.
    if (rail.offer().local_keys) return fail(Code::kNotSupported, "registrations are bound to the endpoint of {}", rail.offer().nic);
    // All of it with new keys: a packet under way finds neither the old endpoint nor, should the new one have the same name, its key. Held
    // throughout, so that who asks for keys meanwhile gets the new ones.
    Lock lock(mutex_);
    bool closed = false;
    MC_RETURN_IF_ERROR(rail.close_epoch(epoch, [&]() MC_NO_THREAD_ANALYSIS {
        unbind_all(rail);
        closed = true;
    }));
    if (closed) bind_all(rail);
    return {};
}

void FabricMemory::mend() {
    for (Rail* const rail : rails_) {
        if (!rail->offer().endpoint_keys || !rail->state().name.empty()) continue;
        Lock rail_lock(rail->mutex());
        Lock lock(mutex_);
        if (rail->state().name.empty() && rail->serve_again()) bind_all(*rail);
    }
}

void FabricMemory::stop_serving() {
    for (Rail* const rail : rails_) {
        Lock rail_lock(rail->mutex());
        Lock lock(mutex_);
        // What is bound to an endpoint must go before it. Our own transfers are over by now.
        unbind_all(*rail);
        bound_[rail->index()].clear();
        rail->stop_serving();
    }
}

FabricMemory::Local FabricMemory::find_local(uint64_t address, uint32_t rail) const {
    Lock lock(mutex_);
    auto next = chunks_.upper_bound(address);
    if (next == chunks_.begin()) return {};
    const Chunk& chunk = *std::prev(next)->second;
    const uint64_t end = chunk.plan.address + chunk.plan.length;
    if (address >= end || !chunk.keys[rail]) return {};
    return {.descriptor = chunk.keys[rail]->descriptor(), .room = end - address};
}

ChunkRecord FabricMemory::tell(Chunk& chunk) {
    chunk.told = true;
    ChunkRecord record{.address = chunk.plan.address, .length = chunk.plan.length, .read_only = chunk.read_only};
    for (uint32_t i = 0; i < chunk.keys.size(); ++i)
        if (chunk.keys[i]) record.set_key(i, chunk.keys[i]->key());
    return record;
}

ResolveAnswer FabricMemory::resolve(const ResolveRequest& request) {
    ResolveAnswer answer;
    answer.rails = rails().rails;
    Lock lock(mutex_);
    size_t room = kAnswerBytesMax;
    for (const RailState& rail : answer.rails) room -= std::min(room, rail.name.size() + 64);
    if (ChunkRecord probe = tell(probe_); probe.rails != 0) {
        room -= std::min(room, encoded_bytes(probe));
        answer.probe = std::move(probe);
    }
    const auto add = [&](Chunk& chunk) MC_REQUIRES(mutex_) {
        if (chunk.host && is_unmapped(chunk.plan)) return true;
        ChunkRecord record = tell(chunk);
        const size_t bytes = encoded_bytes(record);
        if (bytes > room || answer.chunks.size() == kChunksMax) return false;
        room -= bytes;
        answer.chunks.push_back(std::move(record));
        return true;
    };
    const uint64_t last = request.address + request.length - 1;
    const uint64_t end = request.length == 0 || last < request.address ? request.address : last;
    auto begin = chunks_.upper_bound(request.address);
    if (begin != chunks_.begin() && std::prev(begin)->first + std::prev(begin)->second->plan.length > request.address) --begin;
    // First what was asked for, then what comes after it, then what comes before, as far as there is room.
    bool full = false;
    auto one = begin;
    for (; one != chunks_.end() && !full; ++one) {
        if (!one->second->remote) continue;
        full = !add(*one->second);
        if (!full || one->first > end) continue;
        sort_apart(answer.chunks);
        return answer;
    }
    for (one = begin; one != chunks_.begin() && !full;) {
        --one;
        if (one->second->remote) full = !add(*one->second);
    }
    answer.complete = !full;
    sort_apart(answer.chunks);
    return answer;
}

Result<RailsAnswer> FabricMemory::fence(const FenceRequest& request) {
    for (const FenceRequest::Closed& closed : request.rails) {
        if (closed.rail >= rails_.size()) return fail(Code::kInvalidArgument, "there is no rail {}", closed.rail);
        // An epoch that is not yet there cannot be in doubt: such a request would close what others use.
        if (closed.epoch > rails_[closed.rail]->state().epoch) return fail(Code::kInvalidArgument, "there is no epoch {}", closed.epoch);
        MC_RETURN_IF_ERROR(close_epoch(*rails_[closed.rail], closed.epoch));
    }
    return rails();
}

RailsAnswer FabricMemory::rails() const {
    RailsAnswer answer;
    for (const Rail* const rail : rails_) answer.rails.push_back(rail->state());
    return answer;
}

}  // namespace mooncake::fabric
