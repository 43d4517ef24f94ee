// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_peer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "base/error_copy.h"

namespace mooncake {

/// A slice copied in parts: which of them are still under way.
struct CopyPeer::Cut {
    const Slice* slice = nullptr;
    uint32_t parts = 0;      // begun and not finished
    bool all_begun = false;  // no further part will begin
    std::optional<Error> error;
};

/// Completions of slices that were given up, to be failed unlocked; as many as need no memory, so that a peer can always be destroyed.
class CopyPeer::Lost {
public:
    /// False: there is no place for another completion.
    bool add(Completion& completion) noexcept {
        if (count_ == 0 || lost_[count_ - 1].first != &completion) {
            if (count_ == lost_.size()) return false;
            lost_[count_++] = {&completion, 0};
        }
        ++lost_[count_ - 1].second;
        return true;
    }
    void fail(const Error& reason) const noexcept {
        for (size_t i = 0; i < count_; ++i) lost_[i].first->fail(copy_error(reason), lost_[i].second);
    }

private:
    std::array<std::pair<Completion*, uint32_t>, 32> lost_;
    size_t count_ = 0;
};

/// One submission of several chunks. Everything but the copying itself happens under the peer's mutex. `slices_` may be read
/// only while next_ is not at the end or a chunk of ours is unfinished: after that the submitter may have freed them. So next_
/// never rests at a slice that was given up, because nobody waits for that one any more.
class CopyPeer::Batch final : public CopyJob {
public:
    Batch(CopyPeer& peer, Direction direction, std::span<const Slice> slices, int holders)
        : peer_(peer), slices_(slices), direction_(direction), holders_(holders) {
        cuts_.reserve(peer.pool_.threads_max() + 2);  // so that step() needs no memory for it
    }

    bool step() noexcept override;
    void release() noexcept override;

    /// Forgets what has not begun of one completion (null: of all) and says how many slices each lost. False: not of all yet, for want of places.
    /// Called by the peer with its mutex held.
    bool give_up(const Completion* completion, const Error& reason, Lost& lost);

    std::list<Batch>::iterator self;

private:
    bool begin(CopyChunk& chunk) MC_REQUIRES(peer_.mutex_);
    void begin_part(CopyChunk& chunk) MC_REQUIRES(peer_.mutex_);
    void finish_part(const CopyChunk& chunk, std::optional<Error> error) noexcept;
    bool given_up(const Slice& slice) const noexcept;
    void skip_given_up() noexcept MC_REQUIRES(peer_.mutex_);
    static bool make_room(std::vector<const Completion*>& list) noexcept;
    Cut& cut_of(const Slice& slice);

    CopyPeer& peer_;
    const std::span<const Slice> slices_;
    const Direction direction_;
    size_t next_ = 0;        // first slice of which not everything has begun
    uint64_t offset_ = 0;    // how much of it has
    std::vector<Cut> cuts_;  // at most one per thread and one more
    std::vector<const Completion*> given_up_;
    std::atomic<int> holders_;
};

bool CopyPeer::Batch::given_up(const Slice& slice) const noexcept {
    return !given_up_.empty() && std::find(given_up_.begin(), given_up_.end(), slice.completion) != given_up_.end();
}

void CopyPeer::Batch::skip_given_up() noexcept {
    while (next_ < slices_.size() && offset_ == 0 && given_up(slices_[next_])) ++next_;
}

CopyPeer::Cut& CopyPeer::Batch::cut_of(const Slice& slice) {
    for (Cut& cut : cuts_)
        if (cut.slice == &slice) return cut;
    return cuts_.emplace_back(Cut{.slice = &slice});
}

void CopyPeer::Batch::begin_part(CopyChunk& chunk) {
    const Slice& slice = slices_[next_];
    const uint64_t length = std::min(peer_.limits_of(direction_, slice).bytes, slice.length - offset_);
    chunk = {.direction = direction_, .slices = slices_.subspan(next_, 1), .offset = offset_, .length = length};
    Cut& cut = cut_of(slice);
    ++cut.parts;
    offset_ += length;
    if (offset_ < slice.length) return;
    cut.all_begun = true;
    offset_ = 0;
    ++next_;
}

bool CopyPeer::Batch::begin(CopyChunk& chunk) {
    if (next_ == slices_.size()) return false;
    const Slice& first = slices_[next_];
    if (offset_ > 0 || (first.length > peer_.limits_of(direction_, first).bytes && peer_.divisible(direction_, first))) {
        begin_part(chunk);
        skip_given_up();
        return true;
    }
    chunk = peer_.take_chunk(direction_, slices_.subspan(next_));
    if (!given_up_.empty()) {
        const auto end = std::find_if(chunk.slices.begin(), chunk.slices.end(), [this](const Slice& slice) { return given_up(slice); });
        chunk.slices = chunk.slices.first(static_cast<size_t>(end - chunk.slices.begin()));
    }
    next_ += chunk.slices.size();
    skip_given_up();
    return true;
}

void CopyPeer::Batch::finish_part(const CopyChunk& chunk, std::optional<Error> error) noexcept {
    const Slice& slice = chunk.slices.front();
    Cut cut;
    {
        Lock lock(peer_.mutex_);
        Cut& found = cut_of(slice);
        if (error && !found.error) found.error = std::move(error);
        if (found.error && !found.all_begun) {
            // The rest of it is not worth beginning, and may be millions of parts.
            found.all_begun = true;
            offset_ = 0;
            ++next_;
            skip_given_up();
        }
        if (--found.parts > 0 || !found.all_begun) return;
        cut = std::move(found);
        std::erase_if(cuts_, [&](const Cut& other) { return other.slice == &slice; });
    }
    Completion& completion = *slice.completion;
    if (cut.error) completion.fail(std::move(*cut.error));
    else completion.succeed(slice.length);
}

bool CopyPeer::Batch::step() noexcept {
    CopyChunk chunk;
    {
        Lock lock(peer_.mutex_);
        if (!begin(chunk)) return false;
    }
    CopyFailures failures;
    std::optional<Error> threw;  // there is no memory: that costs the chunk, not the process
    try {
        peer_.run_chunk(chunk, failures);
    } catch (const std::exception&) {
        threw = out_of_memory();
    }
    if (chunk.part()) finish_part(chunk, threw || failures.empty() ? std::move(threw) : std::move(failures.front().second));
    else if (threw) fail_whole(chunk, *threw);
    else finish_whole(chunk, failures);
    return true;
}

void CopyPeer::Batch::release() noexcept {
    if (holders_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    Lock lock(peer_.mutex_);
    peer_.batches_.erase(self);
}

bool CopyPeer::Batch::give_up(const Completion* completion, const Error& reason, Lost& lost) {
    peer_.mutex_.is_held();
    if (completion != nullptr && !make_room(given_up_)) {
        // Nobody can remember it, so its slices stay. Who comes to them copies nothing of what has failed.
        const auto rest = slices_.subspan(next_);
        const auto mine = std::find_if(rest.begin(), rest.end(),
                                       [&](const Slice& slice) { return slice.completion == completion && !given_up(slice); });
        if (mine != rest.end()) mine->completion->fail(copy_error(reason), 0);
        return true;
    }
    size_t others = 0;
    for (size_t i = next_; i < slices_.size(); ++i) {
        const Slice& slice = slices_[i];
        if (given_up(slice)) continue;
        if (completion != nullptr && slice.completion != completion) {
            ++others;
            continue;
        }
        if (i == next_ && offset_ > 0) {
            // Some parts have begun: whoever ends the last of them reports the slice; we do if they are over.
            Cut& cut = cut_of(slice);
            if (cut.parts > 0) {
                cut.error = copy_error(reason);
                cut.all_begun = true;
                offset_ = 0;
                next_ = i + 1;
                continue;
            }
        }
        if (!lost.add(*slice.completion)) {
            next_ = i;  // of one completion there is always place, so all before it are given up
            return false;
        }
        if (i == next_ && offset_ > 0) {
            std::erase_if(cuts_, [&](const Cut& other) { return other.slice == &slice; });
            offset_ = 0;
            next_ = i + 1;
        }
    }
    if (others == 0) {
        next_ = slices_.size();
        return true;
    }
    given_up_.push_back(completion);
    skip_given_up();
    return true;
}

/// For one more. False: there is no memory.
bool CopyPeer::Batch::make_room(std::vector<const Completion*>& list) noexcept {
    if (list.size() < list.capacity()) return true;
    try {
        list.reserve(2 * list.size() + 1);
    } catch (const std::bad_alloc&) {
        return false;
    }
    return true;
}

CopyPeer::CopyPeer(CopyPool& pool) : pool_(pool) {}

CopyPeer::ChunkLimits CopyPeer::limits_of(Direction direction, const Slice& slice) const noexcept {
    const bool here = local_kind(slice) != MemoryKind::kHost;
    if (!here && slice.length <= kChunkBytes) return {};
    const bool there = remote_kind(direction, slice) != MemoryKind::kHost;
    if (!here && !there) return {};
    return {.bytes = here && there ? kWithinDeviceChunkBytes : kDeviceChunkBytes, .slices = kDeviceChunkSlices};
}

CopyChunk CopyPeer::take_chunk(Direction direction, std::span<const Slice> slices) const noexcept {
    const ChunkLimits limits = limits_of(direction, slices.front());
    const MemoryKind kind = local_kind(slices.front());
    uint64_t bytes = slices.front().length;
    size_t count = 1;
    // Those of another kind have limits of their own.
    while (count < slices.size() && count < limits.slices && local_kind(slices[count]) == kind &&
           slices[count].length <= limits.bytes - std::min(bytes, limits.bytes))
        bytes += slices[count++].length;
    return {.direction = direction, .slices = slices.first(count)};
}

void CopyPeer::fail_all(const CopyChunk& chunk, const Error& error, CopyFailures& failures) {
    for (size_t i = 0; i < chunk.slices.size(); ++i) failures.emplace_back(i, error);
}

void CopyPeer::run_chunk(const CopyChunk& chunk, CopyFailures& failures) {
    const auto section = copying_.enter();
    if (broken_.load(std::memory_order_seq_cst)) return fail_all(chunk, broken_reason(), failures);
    // What already failed need not be copied; its own error stays, since the first one wins.
    const Completion* const first = chunk.slices.front().completion;
    if (first->failed() &&
        std::all_of(chunk.slices.begin(), chunk.slices.end(), [first](const Slice& slice) { return slice.completion == first; }))
        fail_all(chunk, Error(Code::kCancelled, "another piece of the transfer failed"), failures);
    else copy(chunk, failures);
    if (failures.size() < 2) return;
    std::stable_sort(failures.begin(), failures.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    failures.erase(std::unique(failures.begin(), failures.end(), [](const auto& a, const auto& b) { return a.first == b.first; }),
                   failures.end());
}

void CopyPeer::finish_whole(const CopyChunk& chunk, CopyFailures& failures) {
    auto failure = failures.begin();
    size_t i = 0;
    // A completion that is done may take the slices with it, so each is read before the last of its completion is reported.
    while (i < chunk.slices.size()) {
        Completion& completion = *chunk.slices[i].completion;
        if (failure != failures.end() && failure->first == i) {
            completion.fail(std::move(failure->second));
            ++failure;
            ++i;
            continue;
        }
        uint64_t bytes = 0;
        const size_t begin = i;
        while (i < chunk.slices.size() && chunk.slices[i].completion == &completion && (failure == failures.end() || failure->first != i))
            bytes += chunk.slices[i++].length;
        completion.succeed(bytes, static_cast<uint32_t>(i - begin));
    }
}

void CopyPeer::fail_whole(const CopyChunk& chunk, const Error& error) noexcept {
    for (const Slice& slice : chunk.slices) slice.completion->fail(copy_error(error));
}

void CopyPeer::submit(Direction direction, std::span<const Slice> slices, Submit how) {
    if (slices.empty()) return;
    const Slice& first = slices.front();
    if (how == Submit::kWait &&
        (first.length <= kChunkBytes || first.length <= limits_of(direction, first).bytes || !divisible(direction, first))) {
        const CopyChunk chunk = slices.size() == 1 ? CopyChunk{.direction = direction, .slices = slices} : take_chunk(direction, slices);
        if (chunk.slices.size() == slices.size()) {
            CopyFailures failures;
            try {
                run_chunk(chunk, failures);
            } catch (const std::bad_alloc&) {
                return fail_slices(slices, out_of_memory());
            }
            finish_whole(chunk, failures);
            return;
        }
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < slices.size() && bytes < kHelpBytes; ++i) bytes += slices[i].length;
    const bool large = bytes >= kHelpBytes;
    const bool wait = how == Submit::kWait;
    const bool share = !wait || large;

    Batch* batch = nullptr;
    try {
        Lock lock(mutex_);
        batch = &batches_.emplace_back(*this, direction, slices, 1 + (share ? 1 : 0));
        batch->self = std::prev(batches_.end());
    } catch (const std::bad_alloc&) {
        return fail_slices(slices, out_of_memory());
    }
    bool pooled = false;
    if (share) {
        pooled = pool_.add(queue_, *batch, wait ? 1 : large ? 2 : 1);
        if (!pooled) batch->release();
    }
    while ((wait || !pooled) && batch->step()) {}
    batch->release();
}

Stopped CopyPeer::cancel(Completion& completion, const Error& reason, Deadline) {
    Lost lost;
    {
        Lock lock(mutex_);
        for (Batch& batch : batches_) batch.give_up(&completion, reason, lost);
    }
    lost.fail(reason);
    // What has begun is one chunk per thread: it ends by itself, soon.
    completion.wait(Deadline::never());
    return Stopped::kEverywhere;
}

void CopyPeer::mark_broken(const Error& reason) {
    Lock lock(mutex_);
    if (broken_.load(std::memory_order_relaxed)) return;
    broken_reason_ = reason;
    broken_.store(true, std::memory_order_seq_cst);
}

Error CopyPeer::broken_reason() {
    Lock lock(mutex_);
    return broken_reason_;
}

void CopyPeer::close(const Error& reason) {
    mark_broken(reason);
    for (bool all = false; !all;) {
        Lost lost;
        {
            Lock lock(mutex_);
            all = std::all_of(batches_.begin(), batches_.end(), [&](Batch& batch) { return batch.give_up(nullptr, reason, lost); });
        }
        lost.fail(reason);
    }
    copying_.quiesce(Deadline::never());
}

void CopyPeer::stop() {
    close(Error(Code::kCancelled, "closed"));  // so short that it needs no memory
    pool_.withdraw(queue_);
}

CopyPeer::~CopyPeer() {
    Lock lock(mutex_);
    MC_CHECK(batches_.empty());
}

}  // namespace mooncake
