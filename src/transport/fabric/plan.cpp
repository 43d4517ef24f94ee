// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/plan.h"

#include <algorithm>
#include <optional>

namespace mooncake::fabric {

namespace {

constexpr uint64_t kChunksMax = 4096;       // of one buffer
constexpr uint64_t kSmallPages = 64 << 10;  // a registration of this many is not too large for any NIC
constexpr uint64_t kNicsPerChunk = 2;       // so that one NIC may fail
constexpr int kRoundsMax = 16;              // each has learned something
constexpr double kWorthMoreChunks = 1.05;

/// A way to cut a buffer into equal chunks, and how often they fit.
struct Cut {
    uint64_t chunks = 0;
    uint64_t pages = 0;          // per chunk, the last may have less
    uint64_t places = 0;         // how many registrations fit in all, each chunk at most once per NIC
    std::vector<uint64_t> room;  // per NIC of the request

    double copies() const noexcept { return static_cast<double>(places) / static_cast<double>(chunks); }
};

Cut cut_into(uint64_t wanted_chunks, uint64_t pages, const PlanRequest& request, const NicLedger& ledger) {
    Cut cut;
    cut.pages = (pages + wanted_chunks - 1) / wanted_chunks;
    cut.chunks = (pages + cut.pages - 1) / cut.pages;
    for (const uint32_t nic : request.nics) {
        const uint64_t by_pages = ledger.pages_free(nic) / cut.pages;
        cut.room.push_back(std::min({by_pages, uint64_t{ledger.registrations_free(nic)}, cut.chunks}));
        cut.places += cut.room.back();
    }
    return cut;
}

/// The fewest chunks that are on every NIC or, if that is not possible, on two.
Cut choose_cut(uint64_t pages, const PlanRequest& request, const NicLedger& ledger) {
    uint64_t pages_max = pages;
    for (const uint32_t nic : request.nics) pages_max = std::min(pages_max, ledger.registration_pages_max(nic, request.page_bytes));
    pages_max = std::max<uint64_t>(pages_max, 1);
    const double enough = static_cast<double>(std::min<uint64_t>(kNicsPerChunk, request.nics.size()));
    Cut best = cut_into((pages + pages_max - 1) / pages_max, pages, request, ledger);
    for (uint64_t chunks = best.chunks * 2; best.copies() < enough && chunks <= std::min(pages, kChunksMax); chunks *= 2) {
        Cut cut = cut_into(chunks, pages, request, ledger);
        if (cut.copies() > best.copies() * kWorthMoreChunks) best = std::move(cut);
    }
    return best;
}

Unexpected no_space(const PlanRequest& request, const NicLedger& ledger, uint64_t pages) {
    uint64_t free = 0;
    for (const uint32_t nic : request.nics) free += std::min(ledger.pages_free(nic), UINT64_MAX / request.nics.size() - 1);
    return fail(Code::kNoSpace,
                "{} bytes need {} pages of {} bytes, but {} NICs have {} page entries left together; larger pages need fewer",
                request.length, pages, request.page_bytes, request.nics.size(), free);
}

}  // namespace

uint64_t pages_of(uint64_t address, uint64_t length, uint64_t page_bytes) noexcept {
    if (length == 0) return 0;
    return (address + (length - 1)) / page_bytes - address / page_bytes + 1;
}

uint64_t NicLedger::pages_limit(size_t nic) const noexcept {
    return std::min(limits_.pages_max == 0 ? UINT64_MAX : limits_.pages_max, entries_[nic].learned);
}

uint64_t NicLedger::pages_free(size_t nic) const noexcept {
    const uint64_t limit = pages_limit(nic);
    return limit > entries_[nic].pages ? limit - entries_[nic].pages : 0;
}

uint32_t NicLedger::registrations_free(size_t nic) const noexcept {
    if (limits_.registrations_max == 0) return UINT32_MAX;
    return limits_.registrations_max - std::min(limits_.registrations_max, entries_[nic].registrations);
}

uint64_t NicLedger::registration_pages_max(size_t nic, uint64_t page_bytes) const noexcept {
    uint64_t pages = entries_[nic].learned_largest;
    if (limits_.registration_pages_max != 0) pages = std::min(pages, limits_.registration_pages_max);
    // Whole pages only: a buffer that starts within a page does not get longer chunks by that.
    if (limits_.registration_bytes_max != 0) pages = std::min(pages, limits_.registration_bytes_max / page_bytes);
    return std::max<uint64_t>(pages, 1);
}

void NicLedger::take(size_t nic, uint64_t pages) noexcept {
    Entry& entry = entries_[nic];
    entry.pages += pages;
    ++entry.registrations;
    entry.largest = std::max(entry.largest, pages);
}

void NicLedger::release(size_t nic, uint64_t pages) noexcept {
    Entry& entry = entries_[nic];
    entry.pages -= std::min(pages, entry.pages);
    if (entry.registrations > 0) --entry.registrations;
}

void NicLedger::refused(size_t nic, uint64_t pages) noexcept {
    Entry& entry = entries_[nic];
    if (pages > entry.largest && pages / 2 >= kSmallPages) entry.learned_largest = std::min(entry.learned_largest, pages / 2);
    else entry.learned = entry.pages;
}

void NicLedger::forgive() noexcept {
    for (Entry& entry : entries_)
        if (entry.learned == 0) entry.learned = UINT64_MAX;
}

Result<std::vector<PlannedChunk>> plan_registration(const PlanRequest& request, const NicLedger& ledger) {
    if (request.nics.empty()) return fail(Code::kNotSupported, "no NIC can be used for this memory");
    const uint64_t pages = pages_of(request.address, request.length, request.page_bytes);
    Cut cut = choose_cut(pages, request, ledger);
    if (cut.places < cut.chunks) return no_space(request, ledger, pages);

    // Every chunk gets as many NICs as every other, or one more. Taking those with the most room left always works out then, and it
    // spreads chunks over the NICs.
    const uint64_t each = cut.places / cut.chunks, more = cut.places % cut.chunks;
    std::vector<PlannedChunk> chunks;
    std::vector<size_t> order(request.nics.size());
    const uint64_t first_page = request.address / request.page_bytes, end = request.address + request.length;
    for (uint64_t i = 0; i < cut.chunks; ++i) {
        const uint64_t start = std::max(request.address, (first_page + i * cut.pages) * request.page_bytes);
        const uint64_t stop = i + 1 == cut.chunks ? end : (first_page + (i + 1) * cut.pages) * request.page_bytes;
        PlannedChunk chunk{
            .address = start, .length = stop - start, .pages = pages_of(start, stop - start, request.page_bytes), .nics = {}};
        for (size_t k = 0; k < order.size(); ++k) order[k] = (i + k) % order.size();
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cut.room[a] > cut.room[b]; });
        for (uint64_t k = 0; k < each + (i < more ? 1 : 0); ++k) {
            --cut.room[order[k]];
            chunk.nics.push_back(request.nics[order[k]]);
        }
        std::sort(chunk.nics.begin(), chunk.nics.end());
        chunks.push_back(std::move(chunk));
    }
    return chunks;
}

namespace {

/// One try to carry out a plan.
class Attempt {
public:
    Attempt(const PlanRequest& request, NicLedger& ledger, const PlanWork& work, std::vector<PlannedChunk> chunks)
        : request_(request), ledger_(ledger), work_(work), chunks_(std::move(chunks)), placed_(chunks_.size()) {}

    /// True: done. False: some NIC refused, and the rest did not have room for all.
    Result<bool> run() {
        std::vector<Placement> wanted;
        for (uint32_t i = 0; i < chunks_.size(); ++i)
            for (const uint32_t nic : chunks_[i].nics) wanted.push_back(placement(i, nic));
        MC_RETURN_IF_ERROR(place(wanted));
        for (uint32_t i = 0; i < chunks_.size(); ++i) {
            while (placed_[i].empty()) {
                const auto nic = other_nic(i);
                if (!nic) return false;
                MC_RETURN_IF_ERROR(place({placement(i, *nic)}));
            }
        }
        return true;
    }

    void undo() {
        std::vector<Placement> all;
        for (uint32_t i = 0; i < chunks_.size(); ++i)
            for (const uint32_t nic : placed_[i]) {
                all.push_back(placement(i, nic));
                ledger_.release(nic, chunks_[i].pages);
            }
        if (!all.empty()) work_.undo(all);
    }

    std::vector<PlannedChunk> take() && {
        for (size_t i = 0; i < chunks_.size(); ++i) {
            std::sort(placed_[i].begin(), placed_[i].end());
            chunks_[i].nics = std::move(placed_[i]);
        }
        return std::move(chunks_);
    }

private:
    Placement placement(uint32_t chunk, uint32_t nic) const {
        return {.chunk = chunk, .nic = nic, .address = chunks_[chunk].address, .length = chunks_[chunk].length};
    }

    Result<> place(const std::vector<Placement>& wanted) {
        const auto results = work_.place(wanted);
        MC_CHECK(results.size() == wanted.size());
        const Error* fatal = nullptr;
        // First what went well: what is in use decides what a refusal means.
        for (size_t i = 0; i < wanted.size(); ++i) {
            if (!results[i]) continue;
            placed_[wanted[i].chunk].push_back(wanted[i].nic);
            ledger_.take(wanted[i].nic, chunks_[wanted[i].chunk].pages);
        }
        for (size_t i = 0; i < wanted.size(); ++i) {
            if (results[i]) continue;
            if (results[i].error().code() == Code::kNoSpace) ledger_.refused(wanted[i].nic, chunks_[wanted[i].chunk].pages);
            else fatal = &results[i].error();
        }
        if (fatal != nullptr) return Unexpected(*fatal);
        return {};
    }

    /// The NIC with the most room for a chunk that has none. One that refused has no room by the ledger.
    std::optional<uint32_t> other_nic(uint32_t chunk) const {
        std::optional<uint32_t> best;
        const uint64_t pages = chunks_[chunk].pages;
        for (const uint32_t nic : request_.nics) {
            if (ledger_.pages_free(nic) < pages || ledger_.registrations_free(nic) == 0) continue;
            if (ledger_.registration_pages_max(nic, request_.page_bytes) < pages) continue;
            if (!best || ledger_.pages_free(nic) > ledger_.pages_free(*best)) best = nic;
        }
        return best;
    }

    const PlanRequest& request_;
    NicLedger& ledger_;
    const PlanWork& work_;
    std::vector<PlannedChunk> chunks_;
    std::vector<std::vector<uint32_t>> placed_;  // NICs per chunk
};

}  // namespace

Result<std::vector<PlannedChunk>> carry_out(const PlanRequest& request, NicLedger& ledger, const PlanWork& work) {
    ledger.forgive();
    for (int round = 0; round < kRoundsMax; ++round) {
        MC_ASSIGN_OR_RETURN(auto chunks, plan_registration(request, ledger));
        Attempt attempt(request, ledger, work, std::move(chunks));
        auto done = attempt.run();
        if (done && *done) return std::move(attempt).take();
        attempt.undo();
        if (!done) return Unexpected(std::move(done).error());
    }
    return no_space(request, ledger, pages_of(request.address, request.length, request.page_bytes));
}

void release(std::span<const PlannedChunk> chunks, NicLedger& ledger) noexcept {
    for (const PlannedChunk& chunk : chunks)
        for (const uint32_t nic : chunk.nics) ledger.release(nic, chunk.pages);
}

}  // namespace mooncake::fabric
