// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include "base/log.h"

namespace mooncake {

namespace {

// A peer that just failed fails the next callers at once. Short when the failure was quick (nothing listens there), longer when
// it cost somebody a time-out (nothing answers at all).
constexpr Duration kQuickFailureMemory = 50ms;
constexpr Duration kSlowFailureMemory = 1s;
constexpr size_t kSegmentNameMax = 512;
constexpr Duration kImproveMin = 2s, kImproveMax = 1min;
constexpr Duration kImproveTime = 2s;  // for one try

}  // namespace

Result<std::shared_ptr<Link>> Session::link(Deadline deadline) {
    std::set<std::string> excluded;
    for (;;) {
        std::shared_ptr<Link> current, broken;  // destroyed outside the lock
        {
            Lock lock(mutex_);
            MC_RETURN_IF_ERROR(wait_for_turn(broken, deadline));
            current = link_;
            if (!current) {
                opening_ = true;
                excluded = excluded_;
                break;
            }
        }
        if (policy_.cache_descriptors || still_the_same(*current, deadline)) return current;
        Lock lock(mutex_);
        if (link_ == current) link_.reset();
    }
    const Time started = Clock::now();
    auto opened = open(excluded, deadline.earlier(Deadline::after(policy_.connect_timeout)));
    std::shared_ptr<Link> outdated;  // destroyed outside the lock
    Lock lock(mutex_);
    opening_ = false;
    changed_.notify_all();
    if (!opened) {
        last_error_ = opened.error();
        failed_until_ = Clock::now() + (Clock::now() - started > 500ms ? kSlowFailureMemory : kQuickFailureMemory);
        return opened;
    }
    if (closed_) {
        outdated = std::move(*opened);
        return fail(Code::kUnavailable, "the engine is closed");
    }
    link_ = *opened;
    note_opened(*link_, Clock::now());
    return opened;
}

void Session::note_opened(const Link& link, Time now) {
    improve_at_ = Time::max();
    if (!link.second_best) return;
    const bool fresh = improve_pause_ == Duration::zero() || now - improved_ > kImproveMax;
    improve_pause_ = fresh ? kImproveMin : std::min(2 * improve_pause_, kImproveMax);
    improve_at_ = now + improve_pause_;
}

Time Session::improvable_at() {
    Lock lock(mutex_);
    return link_ && !closed_ ? improve_at_ : Time::max();
}

void Session::improve(Time now) {
    std::shared_ptr<Link> current, outdated;  // destroyed outside the lock
    std::set<std::string> excluded;
    {
        Lock lock(mutex_);
        if (!link_ || closed_ || now < improve_at_ || !link_->peer->usable()) return;
        current = link_;
        excluded = excluded_;
        improve_pause_ = std::min(2 * improve_pause_, kImproveMax);
        improve_at_ = now + improve_pause_;
    }
    auto better = router_.connect(current->descriptor, current->rpc_address, excluded, Deadline::after(kImproveTime), current->transport);
    if (!better) return;
    Lock lock(mutex_);
    outdated = std::move(*better);
    if (link_ != current || closed_) return;
    MC_LOG_INFO("segment {} is reached over {} again", name_, outdated->path());
    outdated.swap(link_);
    improve_at_ = Time::max();
    improved_ = now;
}

Result<> Session::wait_for_turn(std::shared_ptr<Link>& broken, Deadline deadline) {
    for (;;) {
        if (closed_) return fail(Code::kUnavailable, "the engine is closed");
        if (link_ && link_->peer->usable()) return {};
        if (link_) broken = std::move(link_);
        link_ = nullptr;
        if (!opening_) break;
        if (deadline.is_never()) changed_.wait(mutex_);
        else if (changed_.wait_until(mutex_, deadline.at()) == std::cv_status::timeout && opening_)
            return fail(Code::kTimedOut, "segment {}: still connecting", name_);
    }
    if (Clock::now() < failed_until_) return Unexpected(Error(last_error_));
    return {};
}

Result<std::shared_ptr<Link>> Session::open(const std::set<std::string>& excluded, Deadline deadline) {
    auto context = [&](Error error) { return Unexpected(std::move(error).with_context(format_text("segment {}", name_))); };
    // The second try is for a descriptor that turned stale between fetch and connect.
    for (int attempt = 0;; ++attempt) {
        auto found = source_.fetch(name_, 0, deadline);
        if (!found) return context(std::move(found).error());
        auto link = router_.connect(std::move(found->descriptor), std::move(found->rpc_address), excluded, deadline);
        if (link) {
            MC_LOG_INFO("segment {} is reached over {}", name_, (*link)->path());
            return link;
        }
        if (link.error().code() != Code::kStale || attempt > 0) return context(std::move(link).error());
    }
}

void Session::report_failure(const std::shared_ptr<Link>& link, const Error& error) {
    std::shared_ptr<Link> outdated;
    Lock lock(mutex_);
    if (error.code() == Code::kNotSupported || error.code() == Code::kRefused) excluded_.emplace(link->path());
    else if (link->peer->usable()) return;
    if (link_ == link) outdated = std::move(link_);
}

void Session::refresh() {
    std::shared_ptr<Link> outdated;
    Lock lock(mutex_);
    outdated = std::move(link_);
    excluded_.clear();
    failed_until_ = Time{};
}

bool Session::still_the_same(const Link& link, Deadline deadline) {
    const auto found = source_.fetch(name_, 0, deadline.earlier(Deadline::after(policy_.connect_timeout)));
    return found && found->descriptor.incarnation == link.descriptor.incarnation;
}

bool Session::confirm(const std::shared_ptr<Link>& link, Deadline deadline) {
    if (still_the_same(*link, deadline)) return true;
    std::shared_ptr<Link> outdated;
    Lock lock(mutex_);
    if (link_ == link) outdated = std::move(link_);
    return false;
}

void Session::sweep(Duration refresh_interval) {
    std::shared_ptr<Link> outdated, asked;
    {
        Lock lock(mutex_);
        if (!link_) return;
        if (!link_->peer->usable()) outdated = std::move(link_);
        else if (refresh_interval > 0s && Clock::now() - checked_ >= refresh_interval) asked = link_;
        if (asked) checked_ = Clock::now();
    }
    if (!asked || still_the_same(*asked, Deadline::never())) return;
    Lock lock(mutex_);
    if (link_ == asked) outdated = std::move(link_);
}

std::shared_ptr<Link> Session::close(const Error& reason) {
    std::shared_ptr<Link> closing;
    {
        Lock lock(mutex_);
        closed_ = true;
        closing = std::move(link_);
        changed_.notify_all();
    }
    if (closing) closing->peer->close(reason);
    return closing;
}

Result<Session*> SessionTable::get(const std::string& name) {
    {
        ReadLock lock(mutex_);
        if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    }
    if (name.empty() || name.size() > kSegmentNameMax) return fail(Code::kInvalidArgument, "a segment name of {} characters", name.size());
    WriteLock lock(mutex_);
    if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    const auto id = static_cast<SegmentId>(sessions_.size());
    sessions_.push_back(std::make_unique<Session>(name, id, source_, router_, policy_));
    by_name_.emplace(name, sessions_.back().get());
    return sessions_.back().get();
}

Result<Session*> SessionTable::get(SegmentId id) const {
    ReadLock lock(mutex_);
    if (id < 0 || static_cast<size_t>(id) >= sessions_.size()) return fail(Code::kNotFound, "no segment has the id {}", id);
    return sessions_[static_cast<size_t>(id)].get();
}

void SessionTable::for_each(const std::function<void(Session&)>& visit) const {
    std::vector<Session*> all;
    {
        ReadLock lock(mutex_);
        for (const auto& session : sessions_) all.push_back(session.get());
    }
    for (Session* const session : all) visit(*session);
}

}  // namespace mooncake
