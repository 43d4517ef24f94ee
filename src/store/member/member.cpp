// SPDX-License-Identifier: Apache-2.0
#include "store/member/member.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "rpc/rpc.h"
#include "store/protocol/messages_events.h"

namespace mooncake::store {

namespace {

constexpr Duration kHeartbeatTimeout = 1s;  // a master that needs longer may as well be gone; the next heartbeat asks again
constexpr Duration kReportTimeout = 30s;    // of one part: all nodes of a pool come at once
constexpr Duration kUnmountTimeout = 1s;
constexpr Duration kClaimExtra = 5s;  // after which whoever has our disk is alive
// What the kernel has of an ended stream comes without a pause, but on a busy machine it may take a while until our thread reads it. Only where
// its host is lost does a stream not end by itself.
constexpr Duration kStreamSilence = 1s;
constexpr int kMountTries = 3;
// A master cuts off who has not read its event stream for 2 s (EventHubOptions::unsent_timeout). We take ourselves for one who slept somewhat sooner, but not
// for a heartbeat that nobody answers.
constexpr Duration kSleep = kHeartbeatTimeout + 500ms;
constexpr Duration kWaking = 5s;  // for our threads to find out what happened meanwhile

}  // namespace

Member::Member(Setup setup)
    : setup_(std::move(setup)), silence_(Code::kUnavailable, "the master was not asked yet"),
      stream_(setup_.master, setup_.client,
              {.on_update = [this](const EventView& update) { on_update(update); },
               .on_end = [this](const Error& why) { on_stream_end(why); }}) {
    awake_at_ = setup_.lease_clock();
    if (!setup_.options.restarted) return;
    const Standing& stood = setup_.options.restarted->standing;
    followed_epoch_ = stood.followed_epoch;
    // What the master did since that process ended it has not heard.
    missed_epoch_ = stood.following && stood.missed_epoch == 0 ? stood.followed_epoch : stood.missed_epoch;
    whole_epoch_ = stood.whole_epoch;
    whole_update_ = stood.whole_update;
    forgotten_ = stood.forgotten;
    restarted_ = true;
    heard_update_ = stood.last_update;
    remembered_epoch_ = stood.followed_epoch;
    remembered_update_ = stood.last_update;
    exact_ = setup_.options.restarted->exact;
    whole_ = exact_;  // for who comes after us, if we do not get so far as to follow
    Lock lock(mutex_);
    heard_ = stood.heard;
    for (const Behind& behind : setup_.options.restarted->behind) behind_.add(behind);
}

// ---- the beat

Time Member::beat(Deadline deadline) {
    const Time now = setup_.clock();
    limit_ = deadline;
    note_awake();
    // Also where it was us who slept: the master has given us up, so nothing it planned may go on.
    if (!told_lost_ && !heard_of()) lose_master();
    const bool unheard = !stream_.open();
    const auto reply = heartbeat();
    note_awake();
    const Time next = reply ? on_answer(*reply, now, unheard) : on_silence(reply.error());
    awake_at_ = setup_.lease_clock();  // joining may take any time
    return next;
}

void Member::note_awake() {
    const BootTime now = setup_.lease_clock();
    if (now - awake_at_.exchange(now) > kSleep) woke_until_ = now + kWaking;
}

bool Member::slept() const {
    const BootTime now = setup_.lease_clock();
    return now - awake_at_.load() > kSleep || now < woke_until_.load();
}

Result<HeartbeatReply> Member::heartbeat() {
    const BootTime sent = setup_.lease_clock();
    MC_ASSIGN_OR_RETURN(const HeartbeatReply reply, setup_.master.heartbeat(setup_.client, within(kHeartbeatTimeout)));
    if (reply.client_ttl > Duration::zero()) client_ttl_.store(reply.client_ttl, std::memory_order_relaxed);
    answered_at_.store(sent, std::memory_order_relaxed);
    return reply;
}

Time Member::on_silence(const Error& why) {
    const Time now = setup_.clock();
    {
        Lock lock(mutex_);
        if (answering_) MC_LOG_WARNING("the master does not answer: {}", why.to_string());
        answering_ = false;
        silence_ = why;
        changed_.notify_all();
    }
    if (told_lost_) return now + setup_.options.retry_interval;
    const Duration left = lost_at() - setup_.lease_clock();
    if (left <= Duration::zero()) lose_master();
    return now + std::clamp(left, Duration::zero(), setup_.options.retry_interval);
}

Time Member::on_answer(const HeartbeatReply& reply, Time asked, bool unheard) {
    // It answered after its event stream had ended, so it goes on without us.
    if (unheard && reply.epoch == followed_epoch_.load(std::memory_order_relaxed)) {
        note_missed();
        tell_standing(/*following=*/true);
    }
    {
        Lock lock(mutex_);
        if (!answering_ && joins_ != 0) MC_LOG_INFO("the master answers again");
        answering_ = true;
    }
    if (reply.status == HeartbeatStatus::kNeedRemount || reply.epoch != joined_epoch_) {
        const auto joined = join(reply.epoch);
        if (!joined) {
            MC_LOG_WARNING_EVERY(1s, "could not join the pool: {}", joined.error().to_string());
            Lock lock(mutex_);
            answering_ = false;
            silence_ = joined.error();
            changed_.notify_all();
            return setup_.clock() + setup_.options.retry_interval;
        }
    } else {
        setup_.listener.master_answered(lost_at());
        if (told_lost_) {
            // It was stopped, or cut off from us, and has not given us up: what our segments hold is what it thinks.
            told_lost_ = false;
            obeys_.store(true, std::memory_order_release);
            epoch_.store(joined_epoch_, std::memory_order_release);
            setup_.listener.master_found(joined_epoch_);
        }
    }
    if (stream_.open()) {
        acknowledge_again();
    } else {
        if (const Time next = followed_at_ + setup_.options.retry_interval; setup_.clock() < next) return next;
        // It lives, so it went on without telling us: only a complete new stream makes the catalogue exact again.
        setup_.holdings.stream_ended(/*orderly=*/false);
        follow();
    }
    settle_unmounts();
    // Several may be lost before the master gives us up.
    const Duration interval = std::min(setup_.options.heartbeat_interval, client_ttl_.load(std::memory_order_relaxed) / 4);
    return asked + (setup_.holdings.lends() ? std::min(interval, setup_.options.node_heartbeat_interval) : interval);
}

void Member::lose_master() {
    epoch_.store(0, std::memory_order_release);
    obeys_.store(false, std::memory_order_release);
    if (std::exchange(told_lost_, true)) return;
    MC_LOG_WARNING("the master is lost: writes it planned are ended");
    setup_.listener.master_lost();
}

Result<> Member::join(uint64_t epoch) {
    joined_epoch_ = 0;
    {
        Lock lock(mutex_);
        if (stage_ == Stage::kLeft) return fail(Code::kCancelled, "leaving the pool");
        stage_ = Stage::kOutside;
    }
    lose_master();
    stream_.drain(kStreamSilence);
    MC_ASSIGN_OR_RETURN(const std::vector<HeldSegment> segments, report_all(epoch));
    // Nobody else may have taken over in between: what a predecessor was told is lost with it.
    MC_RETURN_IF_ERROR(check_master(epoch));
    obeys_.store(true, std::memory_order_release);
    if (followed_epoch_.exchange(epoch) != epoch) heard_update_.store(0, std::memory_order_release);
    follow();
    MC_RETURN_IF_ERROR(await_stream(epoch));
    // Only now: before the event stream tells of new writes there must be none, or a master that dies right away takes them along.
    for (const HeldSegment& segment : segments) MC_RETURN_IF_ERROR(send_part(epoch, segment));
    joined_epoch_ = epoch;
    told_lost_ = false;
    epoch_.store(epoch, std::memory_order_release);
    setup_.listener.master_answered(lost_at());
    setup_.listener.master_found(epoch);
    Lock lock(mutex_);
    if (stage_ != Stage::kLeft) stage_ = Stage::kInside;
    ++joins_;
    changed_.notify_all();
    return {};
}

Result<> Member::check_master(uint64_t epoch) {
    MC_ASSIGN_OR_RETURN(const HeartbeatReply reply, heartbeat());
    if (reply.status != HeartbeatStatus::kOk || reply.epoch != epoch)
        return fail(Code::kStale, "the master changed from life {} to {} while we joined", epoch, reply.epoch);
    return {};
}

Result<> Member::await_stream(uint64_t epoch) {
    uint64_t updates = stream_.updates();
    Time heard = setup_.clock();
    while (!stream_.wait_until_complete(within(setup_.options.heartbeat_interval).left())) {
        if (!stream_.open()) return fail(Code::kUnavailable, "the master's stream broke at its start");
        if (limit_.passed()) return fail(Code::kTimedOut, "the master's stream did not come to its start in time");
        MC_RETURN_IF_ERROR(check_master(epoch));
        acknowledge_again();
        if (const uint64_t now_updates = stream_.updates(); std::exchange(updates, now_updates) != now_updates) heard = setup_.clock();
        else if (setup_.clock() - heard >= kReportTimeout) return fail(Code::kTimedOut, "the master's stream stopped at its start");
    }
    return {};
}

Result<std::vector<HeldSegment>> Member::report_all(uint64_t epoch) {
    {
        Lock lock(mutex_);
        reporting_ = true;
        ++reports_;
    }
    const Result<bool> known = introduce(epoch);  // also where we lend nothing
    Result<> outcome;
    if (!known) outcome = Unexpected(known.error());
    size_t objects = 0;
    std::vector<HeldSegment> segments;
    // What the former master answered to writers after it had cut us off, nobody knows now: a value that is lost is a miss, one that comes
    // back is a lie. The same master tells us, if it is not too much.
    const uint64_t missed = missed_epoch_.load(std::memory_order_acquire);
    const bool doubtful = (missed != 0 && missed != epoch) || (known && !*known);
    if (doubtful && setup_.holdings.lends())
        MC_LOG_WARNING("a master went on without this process, and nobody knows how: what its memory holds is given up");
    // It has been told everything by now, and nothing new was planned there meanwhile.
    const bool exact = exact_ && whole_epoch_.load(std::memory_order_acquire) == epoch;
    if (outcome) {
        setup_.holdings.report(setup_.options.report_entries_max, setup_.clock(), [&](HeldSegment part) {
            part.exact |= exact;
            if (doubtful && part.more) return true;
            if (doubtful) part = {.segment = part.segment};
            if (!part.more) segments.push_back({.segment = part.segment, .exact = part.exact});
            part.more = true;
            outcome = send_part(epoch, part);
            objects += part.objects.size();
            return outcome.has_value();
        });
    }
    Lock lock(mutex_);
    reporting_ = false;
    if (!outcome) return Unexpected(outcome.error());
    if (objects != 0) MC_LOG_INFO("told the master of {} values in our memory", objects);
    return segments;
}

Result<bool> Member::introduce(uint64_t epoch) {
    const bool followed = whole_epoch_.load(std::memory_order_acquire) == epoch;
    RemountRequest request{.client = setup_.client, .epoch = epoch, .segments = {}};
    request.heard_update = followed ? whole_update_.load(std::memory_order_acquire) : 0;
    request.life = setup_.options.life;
    if (restarted_.load(std::memory_order_acquire)) request.remembered_update = (remembered_epoch_ == epoch ? remembered_update_ : 0) + 1;
    std::vector<Behind> behind;
    {
        Lock lock(mutex_);
        if (stage_ == Stage::kLeft) return fail(Code::kCancelled, "leaving the pool");
        behind.assign(behind_.all().begin(), behind_.all().end());
        request.heard = heard_;
    }
    request.behind = behind;
    MC_ASSIGN_OR_RETURN(const RemountReply reply, setup_.master.remount(request, within(kReportTimeout)));
    if (!reply.segments.empty()) return fail(Code::kCorrupt, "{} answers for no segments", reply.segments.size());
    if (reply.missed_lost) forgotten_.store(true, std::memory_order_release);
    if (forgotten_.load(std::memory_order_acquire)) {
        tell_standing(/*following=*/false);
        return false;
    }
    MC_RETURN_IF_ERROR(hear_missed(epoch, reply.missed));
    return true;
}

Result<> Member::hear_missed(uint64_t epoch, std::span<const std::vector<std::byte>> updates) {
    if (updates.empty()) return {};
    setup_.holdings.begin_missed();
    Result<> outcome;
    for (const std::vector<std::byte>& body : updates) {
        const auto update = decode_event_view(body);
        if (!update) outcome = Unexpected(update.error());
        if (!update) break;
        setup_.holdings.apply(*update, setup_.clock());
        whole_update_.store(update->sequence, std::memory_order_release);
        whole_epoch_.store(epoch, std::memory_order_release);
    }
    setup_.holdings.end_missed();
    tell_standing(/*following=*/false);
    return outcome;
}

void Member::tell_standing(bool following) {
    Standing standing{.followed_epoch = followed_epoch_.load(std::memory_order_acquire),
                      .missed_epoch = missed_epoch_.load(std::memory_order_acquire),
                      .whole_epoch = whole_epoch_.load(std::memory_order_acquire),
                      .whole_update = whole_update_.load(std::memory_order_acquire),
                      .last_update = heard_update_.load(std::memory_order_acquire),
                      .following = following,
                      .whole = whole_.load(std::memory_order_acquire),
                      .forgotten = forgotten_.load(std::memory_order_acquire)};
    {
        Lock lock(mutex_);
        standing.heard = heard_;
    }
    setup_.holdings.stands(standing);
}

Result<> Member::send_part(uint64_t epoch, const HeldSegment& part) {
    RemountRequest request{.client = setup_.client, .epoch = epoch, .segments = {&part, 1}};
    request.life = setup_.options.life;
    {
        Lock lock(mutex_);
        if (stage_ == Stage::kLeft) return fail(Code::kCancelled, "leaving the pool");
        request.heard = heard_;
    }
    MC_ASSIGN_OR_RETURN(const RemountReply reply, setup_.master.remount(request, within(kReportTimeout)));
    if (reply.segments.size() != 1) return fail(Code::kCorrupt, "{} answers for one segment", reply.segments.size());
    const RemountReply::Segment& answer = reply.segments[0];
    if (answer.code == StoreCode::kInvalidVersion) return fail(Code::kStale, "the master of life {} is gone", epoch);
    // A disk is claimed by who has its directory: whoever had it before is gone, and the master will notice.
    if (answer.code == StoreCode::kSegmentAlreadyExists && part.segment.kind == SegmentKind::kDisk && may_claim())
        return fail(Code::kBusy, "the disk {} still belongs to another process, as the master sees it", part.segment.id.to_string());
    if (answer.code != StoreCode::kOk)
        MC_LOG_WARNING("segment {} was not mounted again: {}", part.segment.name, store_code_name(answer.code));
    // What lies on a disk is not the master's to judge then: that its events do not name it says nothing.
    if (answer.code != StoreCode::kOk && part.segment.kind == SegmentKind::kDisk) setup_.holdings.remove_segment(part.segment.id);
    if (answer.stale + answer.refused != 0)
        MC_LOG_WARNING("segment {}: of {} values, {} are outdated and {} were refused", part.segment.name, part.objects.size(),
                       answer.stale, answer.refused);
    return {};
}

bool Member::may_claim() {
    const Time now = setup_.clock();
    if (claimed_since_ == Time{}) claimed_since_ = now;
    return now - claimed_since_ < client_ttl_.load(std::memory_order_relaxed) + kClaimExtra;
}

void Member::settle_unmounts() {
    std::set<SegmentId> segments;
    {
        Lock lock(mutex_);
        segments = to_unmount_;
    }
    for (const SegmentId& segment : segments) {
        const auto answer = setup_.master.unmount({.client = setup_.client, .segment = segment}, Deadline::after(kUnmountTimeout));
        if (!answer) return;
        Lock lock(mutex_);
        to_unmount_.erase(segment);
    }
}

// ---- the event stream

void Member::follow() {
    followed_at_ = setup_.clock();
    whole_.store(false, std::memory_order_relaxed);
    last_update_.store(0, std::memory_order_relaxed);
    exact_ = false;  // it is told from the beginning
    tell_standing(/*following=*/true);
    stream_.follow();
}

void Member::on_update(const EventView& update) {
    setup_.holdings.apply(update, setup_.clock());
    note_heard(update);
    if (update.reset || update.complete || !update.behind.empty() || !update.caught_up.empty()) note_history(update);
    if (update.reset || update.all_changed) setup_.listener.all_keys_changed();
    else if (!update.changed.empty()) setup_.listener.keys_changed(update.changed);
    // Orders of a master that is lost, or that must have given us up while we slept, are void; its events about memory are not.
    if (obeys_.load(std::memory_order_acquire) && heard_of())
        for (const CopyOrder& order : update.orders) setup_.listener.copy_ordered(order);
    if (update.acknowledge) setup_.master.acknowledge(setup_.client, update.sequence);
}

void Member::acknowledge_again() {
    if (const uint64_t update = last_update_.load(std::memory_order_acquire); update != 0) setup_.master.acknowledge(setup_.client, update);
}

void Member::note_heard(const EventView& update) {
    last_update_.store(update.sequence, std::memory_order_release);
    heard_update_.store(update.sequence, std::memory_order_release);
    if (update.complete) whole_.store(true, std::memory_order_relaxed);
    if (!whole_.load(std::memory_order_relaxed)) return;
    whole_update_.store(update.sequence, std::memory_order_release);
    whole_epoch_.store(followed_epoch_.load(std::memory_order_acquire), std::memory_order_release);
}

void Member::note_history(const EventView& update) {
    Lock lock(mutex_);
    if (update.reset) behind_.clear();
    for (const Behind& behind : update.behind) {
        if (behind.client == setup_.client) note_missed();
        else behind_.add(behind);
    }
    for (const ClientId& client : update.caught_up) behind_.erase(client);
    if (!update.complete) return;
    heard_ = update.now;
    missed_epoch_.store(0, std::memory_order_release);
    restarted_.store(false, std::memory_order_release);
    forgotten_.store(false, std::memory_order_release);
}

void Member::note_missed() {
    uint64_t none = 0;  // what the first one did without us no later one can tell us, unless it tells us all
    missed_epoch_.compare_exchange_strong(none, followed_epoch_.load(std::memory_order_acquire));
}

void Member::on_stream_end(const Error& why) {
    const bool ended = rpc::peer_closed(why);
    // If we slept ourselves, the end may be old, and the master may have gone on without us.
    const bool awake = setup_.lease_clock() - answered_at_.load(std::memory_order_relaxed) <= 3 * setup_.options.heartbeat_interval;
    setup_.holdings.stream_ended(awake && ended);
    if (!ended && slept()) note_missed();
    // A dead master changes nothing: what it granted holds for its time. A living one changes values without telling us from here on.
    if (!ended) setup_.listener.all_keys_changed();
    setup_.wake();
}

// ---- mounting

Result<> Member::standing() const {
    Lock lock(mutex_);
    if (stage_ == Stage::kInside) return {};
    if (stage_ == Stage::kLeft) return fail(Code::kCancelled, "left the pool");
    return Unexpected(Error(silence_).with_context("not a member of the pool"));
}

bool Member::wait_for_change(Deadline deadline, const std::function<bool()>& changed) MC_NO_THREAD_ANALYSIS {
    std::unique_lock lock(mutex_);
    if (!deadline.is_never()) return changed_.wait_until(lock, deadline.at(), changed);
    changed_.wait(lock, changed);
    return true;
}

/// Waits while the master answers and we are just joining; not while it is silent.
Result<> Member::await_standing(Deadline deadline) {
    const bool settled = wait_for_change(deadline, [this]() MC_NO_THREAD_ANALYSIS { return !answering_ || stage_ != Stage::kOutside; });
    if (!settled) return fail(Code::kTimedOut, "did not become a member of the pool in time");
    {
        Lock lock(mutex_);
        if (!answering_ && stage_ != Stage::kLeft) return Unexpected(Error(silence_).with_context("the master does not answer"));
    }
    return standing();
}

Result<> Member::await_next_join(uint64_t joins, Deadline deadline) {
    setup_.wake();
    const bool joined = wait_for_change(deadline,
                                        [this, joins]() MC_NO_THREAD_ANALYSIS { return joins_ != joins || stage_ == Stage::kLeft; });
    if (!joined) return fail(Code::kTimedOut, "did not become a member of the pool in time");
    return {};
}

Result<StoreCode> Member::mount(const SegmentSpec& segment, Deadline deadline) {
    Result<StoreCode> answer = StoreCode::kClientNotFound;
    const bool added = setup_.holdings.add_segment(segment);  // before the master can plan anything in it
    for (int i = 0; i < kMountTries && answer && *answer == StoreCode::kClientNotFound; ++i) {
        if (const auto ready = await_standing(deadline); !ready) {
            answer = Unexpected(ready.error());
            break;
        }
        uint64_t joins = 0;
        {
            Lock lock(mutex_);
            joins = joins_;
            to_unmount_.erase(segment.id);
        }
        answer = setup_.master.mount({.client = setup_.client, .segment = segment}, deadline);
        if (answer && *answer == StoreCode::kClientNotFound)
            if (const auto joined = await_next_join(joins, deadline); !joined) answer = Unexpected(joined.error());
    }
    if (!added || (answer && *answer == StoreCode::kOk)) return answer;
    // It may have been mounted all the same, by a call whose answer was lost or by a report.
    setup_.holdings.remove_segment(segment.id);
    Lock lock(mutex_);
    to_unmount_.insert(segment.id);
    return answer;
}

Result<StoreCode> Member::unmount(const SegmentId& segment, Duration grace, Deadline deadline) {
    MC_RETURN_IF_ERROR(await_standing(deadline));
    uint64_t reports = 0;
    {
        Lock lock(mutex_);
        reports = reports_;
    }
    MC_ASSIGN_OR_RETURN(const StoreCode code,
                        setup_.master.unmount({.client = setup_.client, .segment = segment, .grace = grace}, deadline));
    if (code != StoreCode::kOk && code != StoreCode::kSegmentNotFound) return code;
    setup_.holdings.remove_segment(segment);
    Lock lock(mutex_);
    if (reporting_ || reports_ != reports) to_unmount_.insert(segment);  // a report may have mounted it again
    return code;
}

// ---- the end

void Member::begin_leaving() {
    {
        Lock lock(mutex_);
        stage_ = Stage::kLeft;
        changed_.notify_all();
    }
    stream_.give_up();
}

void Member::say_goodbye(Deadline deadline) {
    {
        Lock lock(mutex_);
        if (joins_ == 0) return;
    }
    const auto answer = setup_.master.goodbye(setup_.client, deadline);
    if (!answer) MC_LOG_WARNING("the master was not told that we leave: {}", answer.error().to_string());
}

void Member::leave() {
    stream_.close();
    epoch_.store(0, std::memory_order_release);
}

}  // namespace mooncake::store
