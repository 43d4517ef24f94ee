// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>

#include "base/error_copy.h"
#include "base/log.h"
#include "engine/batch.h"
#include "engine/pairs.h"

namespace mooncake {

size_t TransferGroup::add_task(std::span<const Block> blocks) {
    Lock lock(mutex_);
    BatchTask& task = tasks_.emplace_back(&attempt_);
    task.first_slice = slices_.size();
    task.slices = core_.registry->resolve(blocks, &task.completion, slices_);
    return tasks_.size() - 1;
}

template <typename Step>
void TransferGroup::unless_out_of_memory(const Step& step) noexcept {
    try {
        step();
    } catch (const std::bad_alloc&) {
        // Nothing is under way: peers are told last, and fail by themselves what they have no memory for.
        const Error none = out_of_memory();
        finish(&none);
    }
}

void TransferGroup::start() noexcept {
    unless_out_of_memory([this] { set_out(); });
}

void TransferGroup::arm_timer() {
    if (deadline_.is_never()) return;
    // Again, until it is over: what found no memory to stop it has done nothing, and nobody else would come.
    constexpr Duration kAgain = 1s;
    const auto due = [this, weak = std::weak_ptr<Batch>(batch_)] {
        const auto alive = weak.lock();
        if (!alive) return;
        const auto end = [this, alive] { stop(Code::kTimedOut, "deadline passed during the transfer", Deadline::after(kFenceTime)); };
        core_.service->post_stop(end, session_->key());
    };
    timer_ = core_.service->at(deadline_.at(), due, kAgain);
}

void TransferGroup::set_out() {
    std::shared_ptr<Batch> batch;
    {
        Lock lock(mutex_);
        if (state_ == State::kFinal || stopping_) return;
        batch = batch_;
        if (!slices_.empty() && !behind_.patient) arm_timer();
    }
    if (slices_.empty()) return finish(nullptr);
    if (const auto reached = check_reach(slices_); !reached) return finish(&reached.error());
    const bool named = behind_.work != nullptr;
    bool known = named;
    if (!named) {
        UnnamedWork unnamed = unnamed_work(core_, direction_, slices_);
        known = unnamed.known;
        behind_.work = std::move(unnamed.work);
    }
    if (known) mark_ordered(slices_);
    if (behind_.work) return begin_after_work(batch);
    begin(batch);
}

void TransferGroup::begin_after_work(const std::shared_ptr<Batch>& batch) {
    const auto look = [this, batch] {
        if (over()) {  // stopped meanwhile
            behind_.work.reset();
            return false;
        }
        auto done = behind_.work->over();
        if (done && !*done) return true;
        behind_.work.reset();
        if (!done) {
            const Error lost = std::move(done).error().with_context("what the transfer waits for");
            finish(&lost);
        } else if (!core_.service->post([this, batch] { unless_out_of_memory([&] { begin(batch); }); }, session_->key())) {
            const Error closed(Code::kUnavailable, "the engine is closed");
            finish(&closed);
        }
        return false;
    };
    if (core_.service->watch(look)) return;
    const Error closed(Code::kUnavailable, "the engine is closed");
    finish(&closed);
}

void TransferGroup::begin(const std::shared_ptr<Batch>& batch) {
    if (behind_.patient) {
        Lock lock(mutex_);
        if (state_ == State::kFinal || stopping_) return;
        deadline_ = Deadline::after(time_);
        arm_timer();
    }
    Parts parts;
    auto planned = plan(/*wait=*/false, parts);
    if (!planned) return run_attempt(Unexpected(std::move(planned).error()), {}, {});
    if (*planned) return run_attempt({}, std::move(parts), {});
    // Whoever submits to several peers is not kept waiting for the one that does not answer.
    const auto connect = [this, batch] { unless_out_of_memory([this] { start_attempt({}); }); };
    if (core_.service->post(connect, session_->key())) return;
    const Error closed(Code::kUnavailable, "the engine is closed");
    finish(&closed);
}

// ---- what an attempt consists of

Result<std::shared_ptr<Link>> TransferGroup::link_for(const Need& need, bool wait) {
    const bool any = !addresses_.life;
    auto found = wait ? session_->link_to(addresses_.life, deadline_, need) : session_->link_at_hand(addresses_.life, need);
    if (found && any && addresses_.caller) addresses_.caller->met(addresses_.life);
    return found;
}

Need TransferGroup::need_of(KindPair pair) const {
    for (const Need& need : needs_)
        if (need.pair == pair) return need;
    return {.pair = pair};
}

Result<bool> TransferGroup::plan(bool wait, Parts& parts) {
    // Every link carries host memory, and knows what else its peer has.
    MC_ASSIGN_OR_RETURN(const auto link, link_for({}, wait));
    if (!link) return false;
    const auto pair = left_.empty() ? common_pair(slices_, *core_.registry, *link->memory) : std::nullopt;
    if (pair) {
        parts.emplace_back(Part{.pair = *pair, .slices = slices_});
    } else {
        if (left_.empty()) take_first_attempt();
        split_left(*link->memory, parts);
    }
    for (Part& part : parts) {
        const Need need = need_of(part.pair);
        if (need.met_by(*link->transport)) {
            part.link = link;
            continue;
        }
        MC_ASSIGN_OR_RETURN(part.link, link_for(need, wait));
        if (!part.link) return false;
    }
    return true;
}

void TransferGroup::take_first_attempt() {
    Lock lock(mutex_);
    for (BatchTask& task : tasks_)
        for (const Slice& slice : std::span(slices_).subspan(task.first_slice, task.slices))
            left_.push_back({.slice = slice, .task = &task});
}

void TransferGroup::split_left(PeerMemory& memory, Parts& parts) {
    const PeerMemory::Reading remote(memory);
    const auto part_of = [&](KindPair pair) -> Part& {
        for (Part& part : parts)
            if (part.pair == pair) return part;
        return parts.emplace_back(Part{.pair = pair});
    };
    for (const Left& left : left_) {
        split_by_pair(left.slice, remote, [&](KindPair pair, Slice slice) {
            Part& part = part_of(pair);
            if (part.pieces.empty() || &part.pieces.back().task != left.task) part.pieces.emplace_back(*left.task);
            Piece& piece = part.pieces.back();
            ++piece.slices;
            slice.completion = &piece.completion;
            part.own.push_back(slice);
            if (left.failed && (part.failed.empty() || part.failed.back() != left.failed)) part.failed.push_back(left.failed);
        });
    }
    for (Part& part : parts) part.slices = part.own;
}

void TransferGroup::ready() {
    attempt_.reset();
    uint32_t ready = 0;
    const bool pieces = !parts_.front().pieces.empty();
    for (BatchTask& task : tasks_) {
        if (task.slices == 0 || (tries_ > 1 && !task.completion.failed())) continue;
        task.completion.reset();
        if (!pieces) task.completion.add(static_cast<uint32_t>(task.slices));
        ++ready;
    }
    attempt_.add(ready);
    for (Part& part : parts_) {
        for (Piece& piece : part.pieces) {
            piece.task.completion.add(1);
            piece.completion.add(static_cast<uint32_t>(piece.slices));
        }
    }
}

// ---- running it

void TransferGroup::start_attempt(const Failure& last) {
    Parts parts;
    auto planned = plan(/*wait=*/true, parts);
    run_attempt(planned ? Result<>() : Result<>(Unexpected(std::move(planned).error())), std::move(parts), last);
}

void TransferGroup::run_attempt(Result<> planned, Parts parts, const Failure& last) {
    {
        Lock lock(mutex_);
        if (state_ != State::kBetween || stopping_) return;
    }
    const bool refused = last.link != nullptr && is_unfit(last.error);
    if (!planned) {
        const Error named = refused ? final_error(last.error, direction_, *session_, *last.link)  // nor is there another way
                                    : unreachable_error(planned.error(), direction_, last.link != nullptr);
        return finish(&named);
    }
    for (const Part& part : parts) {
        for (const auto& failed : part.failed) {
            if (may_go_over(*failed, *part.link, direction_, attempt_)) continue;
            const Error named = final_error(last.error, direction_, *session_, *failed);
            return finish(&named);
        }
    }
    std::shared_ptr<Batch> keep;  // the group may become final, and its batch be freed, while submit() still runs
    size_t count = 0;
    {
        Lock lock(mutex_);
        // Who stops us has counted on nothing being under way any more, and ends the group.
        if (state_ != State::kBetween || stopping_) return;
        state_ = State::kRunning;
        ++tries_;
        parts_.swap(parts);
        count = parts_.size();
        keep = batch_;
        started_ = Clock::now();
        ready();
        submitting_.fetch_add(1, std::memory_order_relaxed);
    }
    submit_parts(count);
    submitting_.fetch_sub(1, std::memory_order_release);
    submitting_.notify_all();
}

void TransferGroup::submit_parts(size_t parts) {
    Parts::iterator next;
    for (size_t i = 0; i < parts; ++i) {
        std::shared_ptr<Link> link;
        std::span<const Slice> slices;
        {
            // While a part has not been submitted the attempt is not over, and its parts stay.
            Lock lock(mutex_);
            if (i == 0) next = parts_.begin();
            link = next->link;
            slices = next->slices;
            ++next;
        }
        begin_attempt(slices);
        submit_or_fail(*link->peer, direction_, slices, Submit::kLeave);
    }
}

void TransferGroup::help(Deadline deadline) {
    std::shared_ptr<Link> link;
    {
        Lock lock(mutex_);
        // The parts of several peers are done by those peers' own threads.
        if (state_ != State::kRunning || parts_.size() > 1) return;
        link = parts_.front().link;
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
    unless_out_of_memory([&] {
        const auto go_on = [this, keep] { unless_out_of_memory([this] { after_failed_attempt(); }); };
        if (core_.service->post(go_on, session_->key())) return;
        const Error closed(Code::kCancelled, "the engine is closed");
        finish(&closed);
    });
}

// ---- after it

std::vector<TransferGroup::Failure> TransferGroup::collect_failures() {
    std::vector<Failure> failures;
    left_.clear();
    for (Part& part : parts_) collect_failures(part, failures);
    return failures;
}

void TransferGroup::collect_failures(Part& part, std::vector<Failure>& failures) {
    const auto leave = [&](BatchTask& task, std::span<const Slice> slices) {
        for (Slice slice : slices) {
            slice.completion = &task.completion;
            left_.push_back({.slice = slice, .task = &task, .failed = part.link, .pair = part.pair});
        }
    };
    const size_t before = left_.size();
    uint64_t moved = 0;
    Error error;
    if (part.pieces.empty()) {
        error = attempt_.result().error();
        for (BatchTask& task : tasks_) {
            if (task.completion.failed()) leave(task, part.slices.subspan(task.first_slice, task.slices));
            else moved += task.completion.bytes();
        }
    }
    size_t first = 0;
    for (Piece& piece : part.pieces) {
        if (!piece.completion.failed()) {
            moved += piece.completion.bytes();
            if (piece.task.completion.failed()) piece.task.bytes += piece.completion.bytes();
        } else {
            if (left_.size() == before) error = piece.completion.result().error();
            leave(piece.task, part.slices.subspan(first, piece.slices));
        }
        first += piece.slices;
    }
    part.link->metrics->of(direction_).bytes->add(moved);
    if (left_.size() > before) failures.push_back({.pair = part.pair, .link = part.link, .error = std::move(error)});
}

void TransferGroup::after_failed_attempt() {
    std::vector<Failure> failures;
    int tries = 0;
    {
        Lock lock(mutex_);
        if (state_ != State::kBetween || stopping_) return;
        failures = collect_failures();
        tries = tries_;
    }
    bool again = tries < kAttemptsMax;
    size_t worst = 0;  // the failure that ends it, or any
    for (size_t i = 0; i < failures.size(); ++i) {
        Failure& failure = failures[i];
        failure.link->metrics->of(direction_).failures->add();
        failure.error = judge_failure(*session_, failure.link, std::move(failure.error), deadline_);
        if (worth_another_attempt(failure.error)) continue;
        again = false;
        worst = i;
    }
    const Failure& last = failures[worst];
    again = again && !deadline_.passed() && !core_.closing.load(std::memory_order_acquire);
    if (again) {
        MC_LOG_WARNING_EVERY(1s, "{} over {}: {}; trying again", session_->name(), last.link->path(), last.error.to_string());
        learn(failures);
        return start_attempt(last);
    }
    const Error named = final_error(last.error, direction_, *session_, *last.link);
    finish(&named);
}

void TransferGroup::learn(const std::vector<Failure>& failures) {
    const auto refused = [](const Failure& failure) { return failure.error.code() == Code::kNotSupported; };
    const auto first = std::find_if(failures.begin(), failures.end(), refused);
    bool renewed = false;
    if (first != failures.end() && !std::exchange(renewed_, true)) renewed = session_->renew(*first->link, deadline_);
    for (const Failure& failure : failures) {
        if (!is_unfit(failure.error) || (renewed && refused(failure) && mistaken(failure))) continue;
        auto need = std::find_if(needs_.begin(), needs_.end(), [&](const Need& one) { return one.pair == failure.pair; });
        if (need == needs_.end()) need = needs_.insert(needs_.end(), Need{.pair = failure.pair});
        need->unfit.push_back(failure.link->transport);
    }
}

bool TransferGroup::mistaken(const Failure& failure) {
    const PeerMemory::Reading remote(*failure.link->memory);
    bool differs = false;
    for (const Left& left : left_) {
        if (left.failed != failure.link || left.pair != failure.pair) continue;
        split_by_pair(left.slice, remote, [&](KindPair pair, const Slice&) { differs |= pair != failure.pair; });
    }
    return differs;
}

// ---- ending it

std::vector<Completion*> TransferGroup::running(Part& part) {
    std::vector<Completion*> completions;
    if (state_ != State::kRunning) return completions;
    if (part.pieces.empty()) {
        for (BatchTask& task : tasks_)
            if (!task.completion.done()) completions.push_back(&task.completion);
    }
    for (Piece& piece : part.pieces)
        if (!piece.completion.done()) completions.push_back(&piece.completion);
    return completions;
}

bool TransferGroup::has_failed(const Part& part) const {
    if (part.pieces.empty()) return attempt_.failed();
    return std::any_of(part.pieces.begin(), part.pieces.end(), [](const Piece& piece) { return piece.completion.failed(); });
}

void TransferGroup::stop_part(Stopping& one, Completion& attempt, const Error& reason, Deadline fence) {
    if (one.taken.exchange(true, std::memory_order_relaxed)) return;
    if (one.running.size() > 1) one.link->peer->withdraw(attempt, reason);
    for (Completion* const completion : one.running) {
        if (completion->done()) continue;  // it had not begun
        one.asked = true;
        if (one.link->peer->cancel(*completion, reason, fence) == Stopped::kRemoteInDoubt) one.stopped = Stopped::kRemoteInDoubt;
    }
    one.over.store(true, std::memory_order_release);
    one.over.notify_all();
}

void TransferGroup::stop_parts(const StoppingParts& parts, const Error& reason, Deadline fence) {
    // We do those that no thread has come to yet, so that we never wait for a thread. Who comes later finds nothing to do, and perhaps no
    // group any more: it touches nothing but its part.
    for (size_t i = 1; i < parts.size(); ++i)
        core_.service->post_stop([one = parts[i], &attempt = attempt_, reason, fence] { stop_part(*one, attempt, reason, fence); },
                                 reinterpret_cast<Service::Key>(parts[i]->link.get()));
    for (const auto& one : parts) stop_part(*one, attempt_, reason, fence);
    for (const auto& one : parts) one->over.wait(false, std::memory_order_acquire);
}

void TransferGroup::stop(Code code, std::string_view why, Deadline fence) {
    StoppingParts parts;
    bool tried = false;
    {
        Lock lock(mutex_);
        if (state_ == State::kFinal) return;
        if (stopping_) {
            while (state_ != State::kFinal) changed_.wait(mutex_);
            return;
        }
        for (Part& part : parts_) parts.push_back(std::make_shared<Stopping>(part, running(part)));
        stopping_ = true;  // no attempt starts any more, so that the parts stay
        tried = tries_ > 0;
    }
    // A peer cannot cancel what it has not got yet.
    for (int now = 0; (now = submitting_.load(std::memory_order_acquire)) > 0;) submitting_.wait(now, std::memory_order_acquire);
    const Error reason(code, std::string(why));
    stop_parts(parts, reason, fence);
    Stopped stopped = Stopped::kEverywhere;
    const auto note = [&stopped](Stopped one) { stopped = one == Stopped::kRemoteInDoubt ? one : stopped; };
    for (const auto& one : parts) note(one->stopped);
    std::vector<std::shared_ptr<Link>> broken;  // where a part had failed before we came: it may have left bytes at the peer, too
    {
        Lock lock(mutex_);
        while (state_ == State::kRunning) changed_.wait(mutex_);
        if (state_ == State::kFinal) return;  // it was just about to be when we came
        for (const auto& one : parts)
            if (!one->asked && has_failed(*one->part)) broken.push_back(one->link);
    }
    if (tried && !attempt_.failed()) return finish(nullptr);  // it was done before we could stop it
    if (direction_ == Direction::kWrite)
        for (const auto& link : broken) note(link->peer->cancel(attempt_, reason, fence));
    Error error = stopped_error(code, why, stopped);
    if (!parts.empty()) {
        const auto named = std::find_if(parts.begin(), parts.end(), [](const auto& one) { return !one->running.empty(); });
        error = std::move(error).with_context(
            format_text("{} over {}", session_->name(), (named == parts.end() ? parts.front() : *named)->link->path()));
    }
    finish(&error);
}

void TransferGroup::count_success(const Part& part, Time started) const {
    uint64_t bytes = 0;
    if (part.pieces.empty())
        for (const BatchTask& task : tasks_) bytes += task.completion.bytes();
    for (const Piece& piece : part.pieces) bytes += piece.completion.bytes();
    PathMetrics::PerDirection& metrics = part.link->metrics->of(direction_);
    metrics.bytes->add(bytes);
    metrics.transfers->add();
    metrics.latency_ns->observe(static_cast<uint64_t>((Clock::now() - started).count()));
}

void TransferGroup::finish(const Error* error) {
    std::shared_ptr<Batch> batch;
    Parts parts;  // let go outside the lock
    Service::TimerId timer = 0;
    {
        Lock lock(mutex_);
        if (state_ == State::kFinal) return;
        state_ = State::kFinal;
        if (error != nullptr) error_ = copy_error(*error);
        if (error_.code() == Code::kStale) ended_life_ = addresses_.life;
        batch = std::move(batch_);
        parts.swap(parts_);
        timer = timer_;
        if (error == nullptr)
            for (const Part& part : parts) count_success(part, started_);
        changed_.notify_all();
    }
    if (timer != 0) core_.service->cancel(timer);
    batch->group_finished();
}

bool TransferGroup::over() {
    Lock lock(mutex_);
    return state_ == State::kFinal;
}

Incarnation TransferGroup::reached() {
    Lock lock(mutex_);
    return slices_.empty() && addresses_.caller ? Incarnation() : addresses_.life;
}

std::shared_ptr<Link> TransferGroup::link_under_way(size_t task, size_t part) {
    Lock lock(mutex_);
    if (state_ != State::kRunning || tasks_[task].completion.done() || part >= parts_.size()) return nullptr;
    return std::next(parts_.begin(), static_cast<ptrdiff_t>(part))->link;
}

TransferStatus TransferGroup::status(size_t index) {
    // Who polls would otherwise wait for another thread to get a processor.
    for (size_t part = 0;; ++part) {
        const auto link = link_under_way(index, part);
        if (!link) break;
        link->peer->poke();
    }
    Lock lock(mutex_);
    const BatchTask& task = tasks_[index];
    const bool moved = tries_ > 0 || task.slices == 0;  // a task that was never submitted also looks done
    if (moved && task.completion.done() && !task.completion.failed())
        return {.state = TransferState::kCompleted, .bytes = task.bytes + task.completion.bytes(), .error = {}};
    if (state_ != State::kFinal) return {};
    TransferState state = TransferState::kFailed;
    if (error_.code() == Code::kTimedOut) state = TransferState::kTimedOut;
    if (error_.code() == Code::kCancelled) state = TransferState::kCancelled;
    return {.state = state, .bytes = 0, .error = error_};
}

void TransferGroup::tell(const TransferStatus& status) {
    if (status.error.code() != Code::kStale || !addresses_.caller) return;
    Incarnation ended;
    {
        Lock lock(mutex_);
        ended = ended_life_;
    }
    session_->caller()->told(ended);
}

}  // namespace mooncake
