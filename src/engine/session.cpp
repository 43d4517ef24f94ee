// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <algorithm>

#include "base/error_copy.h"
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
// How long a name is remembered that leads nowhere and that nobody uses; longer where callers may still have addresses of a life there.
constexpr Duration kUnusedTime = 1min, kUnusedLifeTime = 1h;

}  // namespace

std::shared_ptr<Link> Session::current(const Need& need) {
    const auto fits = [&](const Link& link) { return link.peer->usable() && need.met_by(*link.transport); };
    if (link_ && fits(*link_)) return link_;
    if (need.plain()) return nullptr;
    Other* nearest = nullptr;
    for (Other& other : others_) {
        if (!fits(*other.link)) continue;
        if (nearest == nullptr || other.link->transport->capabilities().rank < nearest->link->transport->capabilities().rank)
            nearest = &other;
    }
    if (nearest == nullptr) return nullptr;
    nearest->used = Clock::now();
    return nearest->link;
}

Result<std::shared_ptr<Link>> Session::link(Deadline deadline, const Need& need) { return find(deadline, need, nullptr); }

Result<std::shared_ptr<Link>> Session::link_to(Incarnation& life, Deadline deadline, const Need& need) {
    Incarnation before;
    MC_ASSIGN_OR_RETURN(auto found, find(deadline, need, &before));
    return check_life(std::move(found), life, before);
}

Link* Session::borrow(Incarnation& life) noexcept {
    Link* const link = lent_.load(std::memory_order_seq_cst);
    if (link == nullptr || !link->peer->usable() || (life && life != link->descriptor.incarnation)) return nullptr;
    if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
    life = link->descriptor.incarnation;
    return link;
}

void Session::publish() noexcept {
    // Only what link_to() would give at once to whoever deals with the same life as everybody.
    const bool ready = link_ && !closed_ && !recheck_ && policy_.cache_descriptors && life_ == link_->descriptor.incarnation;
    if (ready_.get() == (ready ? link_ : nullptr)) return lent_.store(ready_.get().get(), std::memory_order_seq_cst);
    lent_.store(nullptr, std::memory_order_seq_cst);  // also where there is no memory: then everybody asks, until a sweep publishes it
    try {
        auto next = std::make_unique<const std::shared_ptr<Link>>(ready ? link_ : nullptr);
        ready_.make_room();
        lent_.store(next->get(), std::memory_order_seq_cst);  // before it is seen who may still use the one before
        ready_.replace(std::move(next));
        ready_.clean();
    } catch (const std::bad_alloc&) {}
}

Result<std::shared_ptr<Link>> Session::link_at_hand(Incarnation& life, const Need& need) {
    std::shared_ptr<Link> link;
    Incarnation before;
    {
        Lock lock(mutex_);
        used_ = true;
        before = life_;
        if (!recheck_ && policy_.cache_descriptors) link = current(need);
    }
    if (link) return check_life(std::move(link), life, before);
    if (!life) life = before;
    return nullptr;
}

Result<> Session::check_known(Incarnation life) {
    const auto section = this->section();
    if (!life || borrow(life) != nullptr) return {};
    std::shared_ptr<Link> link;
    Incarnation before;
    {
        Lock lock(mutex_);
        before = life_;
        if (!recheck_) link = current({});
    }
    if (link) MC_RETURN_IF_ERROR(check_life(std::move(link), life, before));
    return {};
}

Result<std::shared_ptr<Link>> Session::check_life(std::shared_ptr<Link> link, Incarnation& life, Incarnation before) {
    if (!life) life = before;
    const Incarnation now = link->descriptor.incarnation;
    if (life == now && before == now) return link;
    Lock lock(mutex_);
    begin_life(now, /*opened=*/false);
    if (!life) life = now;
    if (life == now) return link;
    return fail(Code::kStale, "segment {} has restarted, and addresses of its former life mean nothing now: ask it for new ones", name_);
}

Result<std::shared_ptr<Link>> Session::meet(Incarnation life, Deadline deadline) {
    auto found = link_to(life, deadline);
    if (found || found.error().code() != Code::kStale) return found;
    std::shared_ptr<Link> other;
    {
        Lock lock(mutex_);
        other = link_;
    }
    if (!other || other->descriptor.incarnation == life || confirm(other, deadline)) return found;
    return link_to(life, deadline);
}

Result<std::shared_ptr<Link>> Session::open(Deadline deadline) {
    MC_ASSIGN_OR_RETURN(auto link, find(deadline, {}, nullptr));
    Lock lock(mutex_);
    begin_life(link->descriptor.incarnation, /*opened=*/true);
    return link;
}

void Session::begin_life(Incarnation life, bool opened) {
    if (opened || life_ != life) opened_.store(opened ? life.value : 0, std::memory_order_relaxed);
    life_ = life;
    dealt_ = true;
    publish();
}

Incarnation Session::life() {
    Lock lock(mutex_);
    return life_;
}

Incarnation Session::life_of(CallerLife& caller) const noexcept {
    const Incarnation life = caller.get();
    const uint64_t opened = opened_.load(std::memory_order_relaxed);
    if (!life || opened == 0 || opened == life.value) return life;
    caller.told(life);
    return {};
}

void Session::asked(Incarnation life) {
    caller()->asked(life);
    Lock lock(mutex_);
    // Whoever opened it did so in another life: that does not excuse us, nor anybody else.
    if (opened_.load(std::memory_order_relaxed) != life.value) opened_.store(0, std::memory_order_relaxed);
    if (!link_ || link_->descriptor.incarnation == life) return;
    recheck_ = true;
    publish();
}

/// Whoever connects says when that is over, however it ends: everybody else waits for it.
class Session::Opening {
public:
    explicit Opening(Session& session) noexcept : session_(session) {}
    ~Opening() {
        if (over_) return;
        Lock lock(session_.mutex_);
        session_.opening_ = false;
        session_.changed_.notify_all();
    }
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;

    /// It has been said.
    void over() noexcept { over_ = true; }

private:
    Session& session_;
    bool over_ = false;
};

Result<std::shared_ptr<Link>> Session::find(Deadline deadline, const Need& need, Incarnation* life_before) {
    for (;;) {
        std::shared_ptr<Link> found;
        {
            Lock lock(mutex_);
            if (life_before != nullptr) *life_before = life_;
            life_before = nullptr;
            MC_ASSIGN_OR_RETURN(found, wait_for_turn(need, deadline));
            if (!found) {
                opening_ = true;
                break;
            }
        }
        if (policy_.cache_descriptors || renew(*found, deadline)) return found;
        Dropped dropped;
        Lock lock(mutex_);
        drop(found, dropped);
    }
    const Time started = Clock::now();
    Dropped dropped;
    Opening opening(*this);
    auto opened = connect(need, deadline.earlier(Deadline::after(policy_.connect_timeout)));
    Lock lock(mutex_);
    opening_ = false;
    changed_.notify_all();
    opening.over();
    if (!opened && closed_) return fail(Code::kUnavailable, "the engine is closed");
    if (!opened) {
        if (!need.plain()) return opened;  // says nothing about those that do fit others
        last_error_ = copy_error(opened.error());
        failed_until_ = Clock::now() + (Clock::now() - started > 500ms ? kSlowFailureMemory : kQuickFailureMemory);
        return opened;
    }
    if (closed_) {
        dropped.push_back(std::move(*opened));
        return fail(Code::kUnavailable, "the engine is closed");
    }
    keep(*opened, need.plain(), dropped);
    return opened;
}

void Session::keep(const std::shared_ptr<Link>& link, bool first, Dropped& dropped) {
    const auto other_life = [&](const Link& held) { return held.descriptor.incarnation != link->descriptor.incarnation; };
    const auto outdated = [&](const Other& held) { return held.link->transport == link->transport || other_life(*held.link); };
    for (Other& held : others_)
        if (outdated(held)) dropped.push_back(held.link);
    std::erase_if(others_, outdated);
    if (!first) {
        if (link_ && other_life(*link_)) dropped.push_back(std::move(link_));
        if (link_ != link) others_.push_back({.link = link, .used = Clock::now()});
        return publish();
    }
    recheck_ = false;
    if (link_ != link) {
        if (link_) dropped.push_back(std::move(link_));
        link_ = link;
        note_opened(*link_, Clock::now());
    }
    publish();
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
    std::shared_ptr<Link> current, outdated;  // let go outside the lock
    {
        Lock lock(mutex_);
        if (!link_ || closed_ || now < improve_at_ || !link_->peer->usable()) return;
        current = link_;
        improve_pause_ = std::min(2 * improve_pause_, kImproveMax);
        improve_at_ = now + improve_pause_;
    }
    auto better = links_.better(*current, Deadline::after(kImproveTime));
    if (!better) return;
    Lock lock(mutex_);
    outdated = std::move(*better);
    if (link_ != current || closed_) return;
    MC_LOG_INFO("segment {} is reached over {} again", name_, outdated->path());
    outdated.swap(link_);
    publish();
    improve_at_ = Time::max();
    improved_ = now;
}

Result<std::shared_ptr<Link>> Session::wait_for_turn(const Need& need, Deadline deadline) {
    used_ = true;
    for (;;) {
        if (closed_) return fail(Code::kUnavailable, "the engine is closed");
        if (!recheck_)
            if (auto found = current(need)) return found;
        if (!opening_) break;
        if (deadline.is_never()) changed_.wait(mutex_);
        else if (changed_.wait_until(mutex_, deadline.at()) == std::cv_status::timeout && opening_)
            return fail(Code::kTimedOut, "segment {}: still connecting", name_);
    }
    if (Clock::now() < failed_until_) return Unexpected(Error(last_error_));
    return nullptr;
}

Result<std::shared_ptr<Link>> Session::connect(const Need& need, Deadline deadline) {
    auto context = [&](Error error) { return Unexpected(std::move(error).with_context(format_text("segment {}", name_))); };
    // The peer need not be asked for what we cannot do with anybody.
    if (auto possible = links_.check(need); !possible) return context(std::move(possible).error());
    // The second try is for a descriptor that turned stale between fetch and connect.
    for (int attempt = 0;; ++attempt) {
        auto found = source_.fetch(name_, 0, deadline);
        if (!found) return context(std::move(found).error());
        auto link = links_.get(std::move(found->descriptor), std::move(found->rpc_address), need, deadline);
        if (link) {
            MC_LOG_INFO("segment {} is reached over {}", name_, (*link)->path());
            return link;
        }
        if (link.error().code() != Code::kStale || attempt > 0) return context(std::move(link).error());
    }
}

bool Session::connected() {
    Lock lock(mutex_);
    return !recheck_ && current({}) != nullptr;
}

void Session::drop(const std::shared_ptr<Link>& link, Dropped& dropped) {
    dropped.push_back(link);
    if (link_ == link) link_.reset();
    std::erase_if(others_, [&](const Other& other) { return other.link == link; });
    publish();
}

void Session::report_failure(const std::shared_ptr<Link>& link) {
    if (link->peer->usable()) return;
    Dropped dropped;
    Lock lock(mutex_);
    drop(link, dropped);
}

void Session::refresh() {
    Lock lock(mutex_);
    recheck_ = true;
    failed_until_ = Time{};
    publish();
}

bool Session::renew(const Link& link, Deadline deadline) {
    auto found = source_.fetch(name_, 0, deadline.earlier(Deadline::after(policy_.connect_timeout)));
    if (!found || found->descriptor.incarnation != link.descriptor.incarnation) return false;
    link.memory->replace(std::move(found->descriptor.device_memory));
    return true;
}

bool Session::confirm(const std::shared_ptr<Link>& link, Deadline deadline) {
    if (renew(*link, deadline)) return true;
    Dropped dropped;
    Lock lock(mutex_);
    drop(link, dropped);
    return false;
}

bool Session::sweep(Time now, Duration refresh_interval) {
    Dropped dropped;
    Lock lock(mutex_);
    const auto idle = [now](const Other& other) { return !other.link->peer->usable() || now - other.used > kUnusedTime; };
    for (Other& other : others_)
        if (idle(other)) dropped.push_back(other.link);
    std::erase_if(others_, idle);
    if (link_ && !link_->peer->usable()) dropped.push_back(std::move(link_));
    publish();
    ready_.clean();
    if (used_.exchange(false, std::memory_order_relaxed) || link_ || opening_) unused_since_ = Time::max();
    else if (unused_since_ == Time::max()) unused_since_ = now;
    if (!link_ || looked_after_ || closed_) return false;
    check_due_ = refresh_interval > 0s && now - checked_ >= refresh_interval;
    looked_after_ = check_due_ || now >= improve_at_;
    return looked_after_;
}

void Session::look_after(Time now) {
    std::shared_ptr<Link> asked;
    {
        Lock lock(mutex_);
        if (std::exchange(check_due_, false)) {
            asked = link_;
            checked_ = now;
        }
    }
    try {
        if (asked) confirm(asked, Deadline::never());
        improve(now);
    } catch (const std::bad_alloc&) {
        MC_LOG_WARNING_EVERY(1s, "segment {} is not looked after: out of memory", name_);
    }
    leave_alone();
}

void Session::leave_alone() noexcept {
    Lock lock(mutex_);
    looked_after_ = false;
}

void Session::close() noexcept {
    std::shared_ptr<Link> first;  // let go outside the lock
    std::vector<Other> others;
    Lock lock(mutex_);
    closed_ = true;
    first.swap(link_);
    others.swap(others_);
    publish();
    ready_.clean();
    changed_.notify_all();
}

Time Session::unused_since(bool& dealt) {
    Lock lock(mutex_);
    dealt = dealt_;
    return unused_since_;
}

Result<std::shared_ptr<Session>> SessionTable::get(const std::string& name) {
    {
        ReadLock lock(mutex_);
        if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    }
    if (name.empty() || name.size() > kSegmentNameMax) return fail(Code::kInvalidArgument, "a segment name of {} characters", name.size());
    auto made = std::make_shared<Session>(name, source_, links_, policy_);
    WriteLock lock(mutex_);
    return by_name_.try_emplace(name, std::move(made)).first->second;
}

Session* SessionTable::find(std::string_view name) const {
    ReadLock lock(mutex_);
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second.get();
}

Session* SessionTable::find_anew(std::string_view name, Last& last) const {
    const uint64_t list = list_.load(std::memory_order_seq_cst);
    Session* const session = find(name);
    if (session != nullptr) last = {.list = list, .name = std::string(name), .session = session};
    return session;
}

Result<std::shared_ptr<Session>> SessionTable::get(SegmentId id) const {
    ReadLock lock(mutex_);
    if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return fail(Code::kNotFound, "no segment has the id {}", id);
    return by_id_[static_cast<size_t>(id)];
}

SegmentId SessionTable::id_of(const std::shared_ptr<Session>& session) {
    if (const SegmentId id = session->id_.load(std::memory_order_acquire); id >= 0) return id;
    WriteLock lock(mutex_);
    if (const SegmentId id = session->id_.load(std::memory_order_relaxed); id >= 0) return id;
    const auto id = static_cast<SegmentId>(by_id_.size());
    by_id_.push_back(session);
    session->id_.store(id, std::memory_order_release);
    return id;
}

void SessionTable::for_each(const std::function<void(const std::shared_ptr<Session>&)>& visit) const {
    std::vector<std::shared_ptr<Session>> all;
    {
        ReadLock lock(mutex_);
        for (const auto& [name, session] : by_name_) all.push_back(session);
    }
    for (const auto& session : all) visit(session);
}

std::vector<std::shared_ptr<Link>> SessionTable::close(const Error& reason) {
    // Also those that no session has any more, because it found a better one or asked anew: somebody may wait on them.
    auto links = links_.all();
    for_each([](const std::shared_ptr<Session>& session) { session->close(); });
    for (auto& late : links_.all()) links.push_back(std::move(late));
    for (const auto& link : links) link->peer->close(reason);
    return links;
}

void SessionTable::let_go() {
    for_each([](const std::shared_ptr<Session>& session) { session->close(); });
    std::vector<Forgotten> forgotten;  // destroyed outside the lock
    WriteLock lock(mutex_);
    forgotten.swap(forgotten_);
}

void SessionTable::forget_unused(Time now) {
    std::vector<std::shared_ptr<Session>> unused;  // destroyed outside the lock
    WriteLock lock(mutex_);
    for (Forgotten& forgotten : forgotten_)
        if (links_.users().over(forgotten.used_by)) unused.push_back(std::move(forgotten.session));
    std::erase_if(forgotten_, [](const Forgotten& forgotten) { return !forgotten.session; });
    for (auto entry = by_name_.begin(); entry != by_name_.end();) {
        const auto next = std::next(entry);
        const std::shared_ptr<Session>& session = entry->second;
        bool dealt = false;
        const Time since = session.use_count() > 1 ? Time::max() : session->unused_since(dealt);  // held by an id, a plan, a transfer
        if (since != Time::max() && now - since >= (dealt ? kUnusedLifeTime : kUnusedTime)) {
            forgotten_.reserve(forgotten_.size() + 1);  // first: it is not let go for want of memory while somebody uses it
            Forgotten gone{.session = session, .used_by = {}};
            gone.used_by.reserve(Quiescence::kSlots);
            by_name_.erase(entry);
            list_.store(unique_number(), std::memory_order_seq_cst);
            links_.users().open_now(gone.used_by);
            forgotten_.push_back(std::move(gone));
        }
        entry = next;
    }
}

size_t SessionTable::size() const {
    ReadLock lock(mutex_);
    return by_name_.size();
}

}  // namespace mooncake
