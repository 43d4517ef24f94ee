// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "engine/batch.h"

namespace mooncake {

size_t TransferGroup::add_task(std::span<const Block> blocks) {
    Lock lock(mutex_);
    BatchTask& task = tasks_.emplace_back(&attempt_);
    task.first_slice = slices_.size();
    task.slices = core_.registry->resolve(blocks, &task.completion, slices_);
    return tasks_.size() - 1;
}

void TransferGroup::start(const std::shared_ptr<Batch>& batch) {
    {
        Lock lock(mutex_);
        batch_ = batch;
        if (!slices_.empty() && !deadline_.is_never()) {
            timer_ = core_.service->at(deadline_.at(), [this, weak = std::weak_ptr<Batch>(batch)] {
                const auto alive = weak.lock();
                if (!alive) return;
                const auto end = [this, alive] {
                    stop(Code::kTimedOut, "deadline passed during the transfer", Deadline::after(kFenceTime));
                };
                core_.service->post_stop(end, session_->key());
            });
        }
    }
    if (slices_.empty()) return finish(nullptr);
    if (const auto reached = check_reach(slices_); !reached) return finish(&reached.error());
    if (auto link = session_->link_at_hand(life_); !link || *link) return run_attempt(std::move(link), {});
    // Whoever submits to several peers is not kept waiting for the one that does not answer.
    if (core_.service->post([this, batch] { start_attempt({}); }, session_->key())) return;
    const Error closed(Code::kUnavailable, "the engine is closed");
    finish(&closed);
}

std::span<const Slice> TransferGroup::ready_tasks() {
    attempt_.reset();
    const bool first = tries_ == 1;
    again_.clear();
    uint32_t ready = 0;
    for (BatchTask& task : tasks_) {
        if (task.slices == 0 || (!first && !task.completion.failed())) continue;
        task.completion.reset();
        task.completion.add(static_cast<uint32_t>(task.slices));
        ++ready;
        if (!first)
            again_.insert(again_.end(), slices_.begin() + static_cast<ptrdiff_t>(task.first_slice),
                          slices_.begin() + static_cast<ptrdiff_t>(task.first_slice + task.slices));
    }
    attempt_.add(ready);
    return first ? slices_ : again_;
}

void TransferGroup::start_attempt(const Error& why) { run_attempt(session_->link_to(life_, deadline_, unfit_), why); }

void TransferGroup::run_attempt(Result<std::shared_ptr<Link>> link, const Error& why) {
    std::shared_ptr<Link> failed;
    {
        Lock lock(mutex_);
        if (state_ != State::kBetween || stopping_) return;
        failed = link_;
    }
    if (!link && is_unfit(why)) {  // nor is there another way
        const Error named = final_error(why, direction_, *session_, *failed);
        return finish(&named);
    }
    if (!link) {
        const Error named = unreachable_error(link.error(), direction_, failed != nullptr);
        return finish(&named);
    }
    if (failed && !may_go_over(*failed, **link, direction_, attempt_)) {
        const Error named = final_error(why, direction_, *session_, *failed);
        return finish(&named);
    }
    std::span<const Slice> slices;
    std::shared_ptr<Batch> keep;  // the group may become final, and its batch be freed, while submit() still runs
    {
        Lock lock(mutex_);
        // Who stops us has counted on nothing being under way any more, and ends the group.
        if (state_ != State::kBetween || stopping_) return;
        state_ = State::kRunning;
        ++tries_;
        link_ = *link;
        keep = batch_;
        started_ = Clock::now();
        slices = ready_tasks();
        submitting_.fetch_add(1, std::memory_order_relaxed);
    }
    begin_attempt(slices);
    (*link)->peer->submit(direction_, slices, Submit::kLeave);
    submitting_.fetch_sub(1, std::memory_order_release);
    submitting_.notify_all();
}

void TransferGroup::help(Deadline deadline) {
    std::shared_ptr<Link> link;
    {
        Lock lock(mutex_);
        if (state_ != State::kRunning) return;
        link = link_;
    }
    (void)link->peer->wait(attempt_, deadline);
}

void TransferGroup::on_done(Completion&) noexcept {
    std::shared_ptr<Batch> keep;
    {
        Lock lock(mutex_);
        state_ = State::kBetween;
        if (stopping_) {  // stop() goes on
            changed_.notify_all();
            return;
        }
        keep = batch_;
    }
    if (!attempt_.failed()) return finish(nullptr);
    // We may be on an I/O thread: deciding, reconnecting and dropping the link belong elsewhere.
    if (!core_.service->post([this, keep] { after_failed_attempt(); }, session_->key())) {
        const Error closed(Code::kCancelled, "the engine is closed");
        finish(&closed);
    }
}

void TransferGroup::after_failed_attempt() {
    std::shared_ptr<Link> link;
    int tries = 0;
    {
        Lock lock(mutex_);
        if (state_ != State::kBetween || stopping_) return;
        link = link_;
        tries = tries_;
    }
    link->metrics->of(direction_).failures->add();
    const Error error = judge_failure(*session_, link, attempt_.result().error(), deadline_);
    const bool again = worth_another_attempt(error) && tries < kAttemptsMax && !deadline_.passed() &&
                       !core_.closing.load(std::memory_order_acquire);
    if (again) {
        MC_LOG_WARNING_EVERY(1s, "{} over {}: {}; trying again", session_->name(), link->path(), error.to_string());
        if (is_unfit(error)) unfit_.push_back(link->transport);
        return start_attempt(error);
    }
    const Error named = final_error(error, direction_, *session_, *link);
    finish(&named);
}

void TransferGroup::stop(Code code, std::string_view why, Deadline fence) {
    std::shared_ptr<Link> link;  // of the attempt under way, or of the last one
    std::vector<Completion*> running;
    bool tried = false;
    {
        Lock lock(mutex_);
        if (state_ == State::kFinal) return;
        if (stopping_) {
            while (state_ != State::kFinal) changed_.wait(mutex_);
            return;
        }
        stopping_ = true;  // no attempt starts any more
        link = link_;
        tried = tries_ > 0;
        if (state_ == State::kRunning) {
            for (BatchTask& task : tasks_)
                if (!task.completion.done()) running.push_back(&task.completion);
        }
    }
    // A peer cannot cancel what it has not got yet.
    for (int now = 0; (now = submitting_.load(std::memory_order_acquire)) > 0;) submitting_.wait(now, std::memory_order_acquire);
    const Error reason(code, std::string(why));
    Stopped stopped = Stopped::kEverywhere;
    for (Completion* const completion : running)
        if (link->peer->cancel(*completion, reason, fence) == Stopped::kRemoteInDoubt) stopped = Stopped::kRemoteInDoubt;
    {
        Lock lock(mutex_);
        while (state_ == State::kRunning) changed_.wait(mutex_);
    }
    if (tried && !attempt_.failed()) return finish(nullptr);  // it was done before we could stop it
    // An attempt that had failed before we came may have left bytes at the peer, too.
    if (running.empty() && link && direction_ == Direction::kWrite) stopped = link->peer->cancel(attempt_, reason, fence);
    Error error = stopped_error(code, why, stopped);
    if (link) error = std::move(error).with_context(format_text("{} over {}", session_->name(), link->path()));
    finish(&error);
}

void TransferGroup::finish(const Error* error) {
    std::shared_ptr<Batch> batch;
    std::shared_ptr<Link> link;
    Service::TimerId timer = 0;
    uint64_t bytes = 0;
    Time started;
    {
        Lock lock(mutex_);
        if (state_ == State::kFinal) return;
        state_ = State::kFinal;
        if (error != nullptr) error_ = *error;
        batch = std::move(batch_);
        link = std::move(link_);
        timer = timer_;
        started = started_;
        for (const BatchTask& task : tasks_) bytes += task.completion.bytes();
        changed_.notify_all();
    }
    if (timer != 0) core_.service->cancel(timer);
    if (error != nullptr) session_->told(*error);
    if (error == nullptr && link) {
        PathMetrics::PerDirection& metrics = link->metrics->of(direction_);
        metrics.bytes->add(bytes);
        metrics.transfers->add();
        metrics.latency_ns->observe(static_cast<uint64_t>((Clock::now() - started).count()));
    }
    batch->group_finished();
}

bool TransferGroup::over() {
    Lock lock(mutex_);
    return state_ == State::kFinal;
}

TransferStatus TransferGroup::status(size_t index) {
    // Who polls would otherwise wait for another thread to get a processor.
    std::shared_ptr<Link> link;
    {
        Lock lock(mutex_);
        if (state_ == State::kRunning && !tasks_[index].completion.done()) link = link_;
    }
    if (link) link->peer->poke();
    Lock lock(mutex_);
    const BatchTask& task = tasks_[index];
    const bool moved = tries_ > 0 || task.slices == 0;  // a task that was never submitted also looks done
    if (moved && task.completion.done() && !task.completion.failed())
        return {.state = TransferState::kCompleted, .bytes = task.completion.bytes(), .error = {}};
    if (state_ != State::kFinal) return {};
    TransferState state = TransferState::kFailed;
    if (error_.code() == Code::kTimedOut) state = TransferState::kTimedOut;
    if (error_.code() == Code::kCancelled) state = TransferState::kCancelled;
    return {.state = state, .bytes = 0, .error = error_};
}

}  // namespace mooncake
