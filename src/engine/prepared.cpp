// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_impl.h"

namespace mooncake {

namespace {

class Prepared final : public PreparedTransfer {
public:
    Prepared(EngineParts& parts, std::shared_ptr<Session> session, std::vector<Block> blocks, std::function<Result<Gate::Pass>()> enter)
        : parts_(parts), session_(std::move(session)), caller_(session_->caller()), blocks_(std::move(blocks)), enter_(std::move(enter)) {
        const Incarnation life = session_->life_of(*caller_);
        life_ = (life ? life : session_->life()).value;
        caller_->met(Incarnation{life_});
        for (const Block& block : blocks_) bytes_ += block.length;
    }

    Result<uint64_t> run(Direction direction, const WorkPoint& after) override {
        MC_ASSIGN_OR_RETURN(const auto pass, enter_());
        // Before the lock: others may run the plan meanwhile.
        if (after) MC_RETURN_IF_ERROR(wait_for_work(parts_.core, *parts_.config.memory, after, deadline(Clock::now())));
        Lock lock(mutex_);
        resolve();
        const Time began = Clock::now();
        bool ordered = static_cast<bool>(after);
        if (!ordered) {
            MC_ASSIGN_OR_RETURN(ordered, wait_for_unnamed_work(parts_.core, direction, slices_, deadline(began)));
        }
        if (ordered != ordered_) {
            ordered_ = ordered;
            for (Slice& slice : slices_) slice.ordered = ordered_;
        }
        const auto section = session_->section();
        Incarnation life{life_.load(std::memory_order_relaxed)};
        auto moved = run_transfer(parts_.core, *session_, life, direction, slices_, completion_, deadline(began), began);
        settle(life, moved ? nullptr : &moved.error());
        return moved;
    }

    Result<BatchId> submit(Direction direction, const WorkPoint& after) override {
        MC_ASSIGN_OR_RETURN(const auto pass, enter_());
        Behind behind;
        if (after) {
            MC_ASSIGN_OR_RETURN(behind.work, parts_.config.memory->follow(after));
        }
        const Deadline end = deadline(Clock::now());
        Addresses addresses{.life = Incarnation{life_.load(std::memory_order_relaxed)}, .caller = caller_};
        if (bytes_ > 0) {
            auto link = session_->link_to(addresses.life, end);
            settle(addresses.life, link ? nullptr : &link.error());
            if (!link) return Unexpected(std::move(link).error());
        }
        // Several posts of one plan may be under way at once, so each has a batch of its own.
        return parts_.submit_alone(session_, std::move(addresses), direction, blocks_, nullptr, end, std::move(behind));
    }

private:
    Deadline deadline(Time now) const {
        const Duration time = parts_.config.options.transfer_timeout + std::chrono::nanoseconds(bytes_);
        return time >= Time::max() - now ? Deadline::never() : Deadline(now + time);
    }

    /// A plan made before there was any contact is for the life that it first meets, and so are the addresses of who made it. Who runs it is told
    /// when that life is over; the maker has heard nothing if that is another thread.
    void settle(Incarnation life, const Error* error) {
        uint64_t none = 0;
        if (life && life_.compare_exchange_strong(none, life.value, std::memory_order_relaxed)) caller_->met(life);
        session_->caller()->dealt(life, error);
    }

    /// Once, and again only when some registration has gone since, or memory of a device has come.
    void resolve() MC_REQUIRES(mutex_) {
        const uint64_t version = parts_.registry->version();
        if (version == resolved_) return;
        slices_.clear();
        parts_.registry->resolve(blocks_, &completion_, slices_);
        for (Slice& slice : slices_) slice.ordered = ordered_;
        resolved_ = version;
    }

    EngineParts& parts_;
    const std::shared_ptr<Session> session_;
    const std::shared_ptr<CallerLife> caller_;  // who made it
    std::atomic<uint64_t> life_{0};             // that the addresses belong to: the plan is good for no other
    const std::vector<Block> blocks_;
    const std::function<Result<Gate::Pass>()> enter_;
    uint64_t bytes_ = 0;
    Mutex mutex_;
    uint64_t resolved_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<Slice> slices_ MC_GUARDED_BY(mutex_);
    bool ordered_ MC_GUARDED_BY(mutex_) = false;  // as the slices say
    Completion completion_ MC_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<PreparedTransfer> make_prepared(EngineParts& parts, std::shared_ptr<Session> session, std::vector<Block> blocks,
                                                std::function<Result<Gate::Pass>()> enter) {
    return std::make_unique<Prepared>(parts, std::move(session), std::move(blocks), std::move(enter));
}

}  // namespace mooncake
