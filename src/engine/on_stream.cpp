// SPDX-License-Identifier: Apache-2.0
// Transfers in the order of a device's work: behind it, and it behind them.
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "base/log.h"
#include "engine/engine_impl.h"

namespace mooncake {

void mark_ordered(std::span<Slice> slices) noexcept {
    for (Slice& slice : slices) slice.ordered = true;
}

namespace {

/// Of several devices.
class AllWork final : public PendingWork {
public:
    void add(std::unique_ptr<PendingWork> one) { left_.push_back(std::move(one)); }
    Result<bool> over() override {
        for (; !left_.empty(); left_.pop_back()) {
            MC_ASSIGN_OR_RETURN(const bool over, left_.back()->over());
            if (!over) return false;
        }
        return true;
    }

private:
    std::vector<std::unique_ptr<PendingWork>> left_;
};

Result<> wait_until_over(const EngineCore& core, PendingWork& work, Deadline deadline) {
    constexpr Duration kSpin = 1ms, kNap = 50us;
    const Deadline spin = Deadline::after(kSpin);
    SpinPause pause;
    while (true) {
        auto over = work.over();
        if (!over) return Unexpected(std::move(over).error().with_context("what the transfer waits for"));
        if (*over) return {};
        if (core.closing.load(std::memory_order_acquire)) return fail(Code::kCancelled, "the engine is closed");
        if (deadline.passed())
            return Unexpected(Error(Code::kTimedOut, "the work that the transfer waits for is not over; nothing has moved", ETIMEDOUT));
        if (!spin.passed()) {
            pause();
            continue;
        }
        const std::atomic<uint32_t> nothing{0};
        futex_wait(nothing, 0, Deadline::after(kNap));
    }
}

}  // namespace

Result<> wait_for_work(const EngineCore& core, const Devices& devices, const WorkPoint& point, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto work, devices.follow(point));
    return wait_until_over(core, *work, deadline);
}

UnnamedWork unnamed_work(const EngineCore& core, Direction direction, std::span<const Slice> slices) {
    // What a read takes is the peer's, and so is the work before it.
    if (direction != Direction::kWrite || core.devices == nullptr || !core.registry->has_device_memory()) return {};
    std::vector<std::pair<MemoryKind, int>> asked;
    std::unique_ptr<AllWork> all;
    for (const Slice& slice : slices) {
        if (slice.region == nullptr || slice.region->kind == MemoryKind::kHost) continue;
        const std::pair device(slice.region->kind, slice.region->device);
        if (std::find(asked.begin(), asked.end(), device) != asked.end()) continue;
        asked.push_back(device);
        auto work = core.devices->unnamed_work(slice.region->kind, slice.local);
        if (!work) return {};  // who copies it waits for it, or says why not
        if (!*work) continue;
        if (!all) all = std::make_unique<AllWork>();
        all->add(std::move(*work));
    }
    return {.known = !asked.empty(), .work = std::move(all)};
}

Result<bool> wait_for_unnamed_work(const EngineCore& core, Direction direction, std::span<const Slice> slices, Deadline deadline) {
    const UnnamedWork unnamed = unnamed_work(core, direction, slices);
    if (unnamed.work) MC_RETURN_IF_ERROR(wait_until_over(core, *unnamed.work, deadline));
    return unnamed.known;
}

Result<BatchId> EngineImpl::transfer_on_stream(const std::string& target, Direction direction, std::span<const Block> blocks,
                                               const WorkPoint& stream) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    {
        Lock lock(stream_mutex_);
        if (stream_failure_) {
            Error before = std::move(*stream_failure_).with_context("an earlier transfer on a stream failed");
            stream_failure_.reset();
            return Unexpected(std::move(before));
        }
    }
    WorkPoint point = stream;
    // A default stream is that of the GPU whose memory it is about.
    for (size_t i = 0; i < blocks.size() && point.device < 0; ++i)
        point.device = parts_->registry->device_of(blocks[i].local, blocks[i].length);
    if (point.what != WorkPoint::What::kStream) return fail(Code::kInvalidArgument, "a transfer can be put on a stream only");
    Behind behind{.patient = true};  // how long the stream has been busy before is nobody's failure
    MC_ASSIGN_OR_RETURN(behind.work, parts_->config.memory->follow(point));
    MC_ASSIGN_OR_RETURN(const BatchId batch, submit_behind(target, direction, blocks, {}, std::move(behind)));
    auto gate = parts_->config.memory->hold(point);
    if (!gate) {
        (void)cancel_batch(batch);
        (void)free_batch(batch);
        return Unexpected(std::move(gate).error());
    }
    const std::shared_ptr<StreamGate> held = std::move(*gate);
    MC_RETURN_IF_ERROR(on_batch_done(batch, [this, batch, held] { end_on_stream(batch, *held); }));
    return batch;
}

void EngineImpl::end_on_stream(BatchId batch, StreamGate& gate) noexcept {
    const auto found = parts_->batches.get(batch);
    const TransferStatus status = found ? (*found)->status() : TransferStatus{.state = TransferState::kFailed};
    (void)parts_->batches.remove(batch);
    if (status.state != TransferState::kCompleted) {
        const bool closing = parts_->core.closing.load(std::memory_order_acquire);
        MC_LOG_ERROR("a transfer on a stream of a GPU has failed, and what is behind it there works with wrong bytes: {}",
                     status.error.to_string());
        // Whoever closes the engine wants the process to go on; everybody else cannot know what the GPU computes from now on.
        if (!closing && parts_->config.options.stream_failure_ends) ::_exit(1);
        Lock lock(stream_mutex_);
        if (!stream_failure_) stream_failure_ = status.error;
    }
    gate.open();
}

}  // namespace mooncake
