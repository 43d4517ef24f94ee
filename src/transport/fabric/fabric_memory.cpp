// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric_memory.h"

#include <algorithm>

#include "base/incarnation.h"
#include "base/log.h"

namespace mooncake::fabric {

namespace {

constexpr int kKeyAttempts = 16;  // until one is free

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
    }
    Result<> revoke(Deadline) override { return memory_.revoke(chunks_); }

private:
    FabricMemory& memory_;
    Chunks chunks_;
};

FabricMemory::FabricMemory(std::vector<Rail*> rails, const NicLimits& limits)
    : rails_(std::move(rails)), key_source_(key_bytes_of(rails_), random_u64()), ledger_(rails_.size(), limits) {}

FabricMemory::~FabricMemory() {
    Lock lock(mutex_);
    MC_CHECK(chunks_.empty());
}

Result<> FabricMemory::place(const MemoryRegion& region, const Placement& placement, Chunks& chunks) {
    Rail& rail = *rails_[placement.nic];
    while (chunks.size() <= placement.chunk) chunks.push_back(std::make_unique<Chunk>());
    Chunk& chunk = *chunks[placement.chunk];
    chunk.keys.resize(rails_.size());
    for (int attempt = 1;; ++attempt) {
        Lock lock(rail.mutex());
        auto key = rail.register_memory({.address = reinterpret_cast<std::byte*>(placement.address),
                                         .length = placement.length,
                                         .kind = region.kind,
                                         .device = region.device,
                                         .remote_access = region.remote_accessible,
                                         .key = key_source_.next()});
        if (key) {
            chunk.keys[placement.nic] = std::move(*key);
            return {};
        }
        if (key.error().code() != Code::kBusy || attempt == kKeyAttempts)
            return Unexpected(std::move(key).error().with_context(rail.offer().nic));
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
    if (request.nics.empty() || region.length == 0) return nullptr;
    if (region.kind == MemoryKind::kHost && region.length >= kPageLookupBytes) request.page_bytes = page_bytes_of(address, region.length);
    Chunks chunks;
    const PlanWork work{.place =
                            [&](std::span<const Placement> placements) {
                                std::vector<Result<>> results;
                                for (const Placement& one : placements) results.push_back(place(region, one, chunks));
                                return results;
                            },
                        .undo =
                            [&](std::span<const Placement> placements) {
                                for (const Placement& one : placements) {
                                    Lock lock(rails_[one.nic]->mutex());
                                    chunks[one.chunk]->keys[one.nic].reset();
                                }
                            }};
    {
        Lock lock(ledger_mutex_);
        MC_ASSIGN_OR_RETURN(auto plans, carry_out(request, ledger_, work));
        chunks.resize(plans.size());
        for (size_t i = 0; i < plans.size(); ++i) {
            chunks[i]->plan = std::move(plans[i]);
            chunks[i]->remote = region.remote_accessible;
        }
    }
    Lock lock(mutex_);
    for (const auto& chunk : chunks) chunks_[chunk->plan.address] = chunk.get();
    return std::make_unique<Entry>(*this, std::move(chunks));
}

void FabricMemory::close_keys(Chunk& chunk) {
    for (size_t i = 0; i < chunk.keys.size(); ++i) {
        if (!chunk.keys[i]) continue;
        Lock lock(rails_[i]->mutex());
        chunk.keys[i].reset();
    }
}

Result<> FabricMemory::revoke(std::span<const std::unique_ptr<Chunk>> chunks) {
    // From now on nobody is told. Whoever was had the endpoints' names of now, at the latest.
    std::vector<uint64_t> told(rails_.size(), 0);
    {
        Lock lock(mutex_);
        for (const auto& chunk : chunks) {
            if (const auto found = chunks_.find(chunk->plan.address); found != chunks_.end() && found->second == chunk.get())
                chunks_.erase(found);
            for (size_t i = 0; i < chunk->keys.size(); ++i)
                if (chunk->told && chunk->keys[i]) told[i] = rails_[i]->state().epoch;
        }
    }
    for (const auto& chunk : chunks) close_keys(*chunk);
    // A message whose header was accepted goes on streaming into memory after its key was closed.
    for (size_t i = 0; i < told.size(); ++i)
        if (told[i] != 0) MC_RETURN_IF_ERROR(rails_[i]->close_epoch(told[i]));
    return {};
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
    ChunkRecord record{.address = chunk.plan.address, .length = chunk.plan.length};
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
    const auto add = [&](Chunk& chunk) {
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
        if (full && one->first <= end) return answer;
    }
    for (one = begin; one != chunks_.begin() && !full;) {
        --one;
        if (one->second->remote) full = !add(*one->second);
    }
    answer.complete = !full;
    std::sort(answer.chunks.begin(), answer.chunks.end(), [](const ChunkRecord& a, const ChunkRecord& b) { return a.address < b.address; });
    return answer;
}

Result<RailsAnswer> FabricMemory::fence(const FenceRequest& request) {
    for (const FenceRequest::Closed& closed : request.rails) {
        if (closed.rail >= rails_.size()) return fail(Code::kInvalidArgument, "there is no rail {}", closed.rail);
        // An epoch that is not yet there cannot be in doubt: such a request would close what others use.
        if (closed.epoch > rails_[closed.rail]->state().epoch) return fail(Code::kInvalidArgument, "there is no epoch {}", closed.epoch);
        MC_RETURN_IF_ERROR(rails_[closed.rail]->close_epoch(closed.epoch));
    }
    return rails();
}

RailsAnswer FabricMemory::rails() const {
    RailsAnswer answer;
    for (const Rail* const rail : rails_) answer.rails.push_back(rail->state());
    return answer;
}

}  // namespace mooncake::fabric
