// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "store/member/master_link.h"
#include "store/protocol/messages_events.h"

namespace mooncake::store::testing {

/// A master with a life, clients and event streams, that fails as told. Of values it knows what it told itself and what was reported to it, and
/// each event stream begins with that. Event streams run on a thread of its own, as real ones do.
/// Thread-safe; hooks are set before use.
class FakeMaster : public MasterApi {
public:
    enum class Mood : uint8_t {
        kAnswers,
        kGone,    // nobody listens at its address
        kSilent,  // takes calls and answers none, until the mood changes
    };
    struct Part {
        uint64_t epoch = 0;
        SegmentId segment;
        std::vector<std::string> keys;
        size_t writes = 0, quarantined = 0;
        bool exact = false, more = false;
    };

    FakeMaster() {
        thread_ = start_thread("fake-stream", [this](const std::stop_token& stop) { run(stop); });
    }
    ~FakeMaster() override {
        thread_.request_stop();
        thread_.join();
    }

    // ---- the script
    void set_mood(Mood mood) {
        std::unique_lock lock(mutex_);
        mood_ = mood;
        changed_.notify_all();
    }
    /// As kill -9: connections end, nothing answers.
    void die() {
        set_mood(Mood::kGone);
        end_streams(Error(Code::kUnavailable, "peer closed the connection"));
        std::unique_lock lock(mutex_);
        known_.clear();
        mounted_.clear();
        held_.clear();
    }
    /// Another life at the same address.
    void come_back(uint64_t epoch) {
        std::unique_lock lock(mutex_);
        epoch_ = epoch;
        mood_ = Mood::kAnswers;
        changed_.notify_all();
    }
    void give_up(const ClientId& client) {
        {
            std::unique_lock lock(mutex_);
            known_.erase(client);
            mounted_.clear();
            held_.clear();
        }
        end_streams(Error(Code::kNotFound, "the client was given up"));
    }
    void end_streams(const Error& why) {
        std::unique_lock lock(mutex_);
        for (auto& [number, stream] : streams_) post([end = stream.on_end, why] { end(why); });
        streams_.clear();
    }
    /// To all who follow; returns when they have heard it.
    void tell(const EventUpdate& update) {
        {
            std::unique_lock lock(mutex_);
            for (const RangePlanned& event : update.planned) held_[event.generation].planned = event;
            for (const RangeFilled& event : update.filled) held_[event.generation].filled = event;
            for (auto& [number, stream] : streams_) post([hear = stream.on_update, update] { hear(update); });
        }
        settle();
    }
    /// Waits until everything told so far was heard.
    void settle() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return work_.empty() && !working_; });
    }
    /// Runs in the given call, before it is answered, without a lock.
    std::function<void()> in_heartbeat, in_remount, in_mount, in_unmount;
    std::function<Result<StoreCode>(const MountRequest&)> mount_code;
    std::function<StoreCode(const SegmentSpec&)> remount_code;
    SegmentsReply list;
    std::function<void()> in_segments;
    bool streams_complete = true;     // at once
    bool streams_break = false;       // when they have begun
    std::vector<EventUpdate> missed;  // whoever joins is told that it missed this
    bool missed_lost = false;

    // ---- what happened
    std::vector<std::string> take_log() {
        std::unique_lock lock(mutex_);
        return std::exchange(log_, {});
    }
    size_t count(const std::string& what) const {
        std::unique_lock lock(mutex_);
        size_t count = 0;
        for (const std::string& line : log_) count += line == what ? 1 : 0;
        return count;
    }
    bool wait_for(const std::string& what, size_t times = 1) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, 20s, [&] { return static_cast<size_t>(std::count(log_.begin(), log_.end(), what)) >= times; });
    }
    std::vector<Part> take_parts() {
        std::unique_lock lock(mutex_);
        return std::exchange(parts_, {});
    }
    /// Until when the last who joined had heard everything.
    HistoryPoint heard() {
        std::unique_lock lock(mutex_);
        return heard_;
    }
    uint64_t heard_update() {
        std::unique_lock lock(mutex_);
        return heard_update_;
    }
    uint64_t remembered_update() {
        std::unique_lock lock(mutex_);
        return remembered_update_;
    }
    /// Of whom members have said that an earlier master went on without them.
    std::vector<Behind> take_witnessed() {
        std::unique_lock lock(mutex_);
        return std::exchange(witnessed_, {});
    }
    std::set<SegmentId> mounted() const {
        std::unique_lock lock(mutex_);
        return mounted_;
    }
    std::vector<SegmentId> failures() const {
        std::unique_lock lock(mutex_);
        return failures_;
    }
    size_t streams() const {
        std::unique_lock lock(mutex_);
        return streams_.size();
    }

    // ---- MasterApi
    Result<PutStartReply> put_start(const PutStartRequest&, bool, Deadline, const std::function<void()>&) override { return none(); }
    Result<CodesReply> put_end(const PutEndRequest&, Deadline) override { return none(); }
    Result<CodesReply> put_revoke(const PutRevokeRequest&, Deadline) override { return none(); }
    Result<GetReply> get_replicas(const KeysRequest&, Deadline) override { return none(); }
    Result<ExistReply> exist(const KeysRequest&, Deadline) override { return none(); }
    Result<CodesReply> remove(const RemoveRequest&, Deadline) override { return none(); }
    Result<int64_t> remove_matching(std::string_view, std::string_view, bool, Deadline) override { return none(); }
    Result<CodesReply> replica_clear(const ReplicaClearRequest&, Deadline) override { return none(); }
    Result<TaskReply> create_task(const TaskRequest&, Deadline) override { return none(); }
    Result<TaskInfo> query_task(const TaskId&, Deadline) override { return none(); }
    Result<StoreCode> end_task(const TaskEnd&, Deadline) override { return none(); }
    Result<CodesReply> end_copies(const CopiesEnd&, Deadline) override { return none(); }
    Result<StoreCode> replicas_gone(const ReplicasGone&, Deadline) override { return none(); }
    void stop_calls() override {}
    void stop_liveness() override {
        std::unique_lock lock(mutex_);
        stopped_ = true;
        changed_.notify_all();
    }

    Result<StoreCode> mount(const MountRequest& request, Deadline deadline) override {
        MC_RETURN_IF_ERROR(arrive("mount", deadline, in_mount));
        if (mount_code) return mount_code(request);
        std::unique_lock lock(mutex_);
        if (!known_.contains(request.client)) return StoreCode::kClientNotFound;
        mounted_.insert(request.segment.id);
        return StoreCode::kOk;
    }
    Result<RemountReply> remount(const RemountRequest& request, Deadline deadline) override {
        MC_RETURN_IF_ERROR(arrive("remount", deadline, in_remount));
        std::unique_lock lock(mutex_);
        RemountReply reply;
        const bool meant = request.epoch == 0 || request.epoch == epoch_;
        reply.segments.resize(request.segments.size(), {.code = meant ? StoreCode::kOk : StoreCode::kInvalidVersion});
        if (!meant) return reply;
        known_.insert(request.client);
        witnessed_.insert(witnessed_.end(), request.behind.begin(), request.behind.end());
        if (request.segments.empty()) {
            heard_ = request.heard;
            heard_update_ = request.heard_update;
            remembered_update_ = request.remembered_update;
            for (const EventUpdate& update : missed) reply.missed.push_back(encode_event_update(update));
            reply.missed_lost = missed_lost;
        }
        for (const HeldSegment& held : request.segments) {
            StoreCode& code = reply.segments[static_cast<size_t>(&held - request.segments.data())].code;
            if (remount_code) code = remount_code(held.segment);
            if (code != StoreCode::kOk) continue;
            Part& part = parts_.emplace_back();
            part = {.epoch = epoch_,
                    .segment = held.segment.id,
                    .writes = held.writes.size(),
                    .quarantined = held.quarantined.size(),
                    .exact = held.exact,
                    .more = held.more};
            for (const HeldObject& object : held.objects) {
                part.keys.emplace_back(object.key);
                held_[object.generation] = {.planned = {.segment = held.segment.id,
                                                        .offset = object.offset,
                                                        .length = object.length,
                                                        .generation = object.generation,
                                                        .tenant = std::string(object.tenant),
                                                        .key = std::string(object.key)},
                                            .filled = RangeFilled{held.segment.id, object.generation, object.checksum}};
            }
            mounted_.insert(held.segment.id);
        }
        return reply;
    }
    Result<StoreCode> unmount(const UnmountRequest& request, Deadline deadline) override {
        MC_RETURN_IF_ERROR(arrive("unmount", deadline, in_unmount));
        std::unique_lock lock(mutex_);
        return mounted_.erase(request.segment) != 0 ? StoreCode::kOk : StoreCode::kSegmentNotFound;
    }
    Result<HeartbeatReply> heartbeat(const ClientId& client, Deadline deadline) override {
        MC_RETURN_IF_ERROR(arrive("ping", deadline, in_heartbeat));
        std::unique_lock lock(mutex_);
        const bool known = known_.contains(client);
        return HeartbeatReply{.status = known ? HeartbeatStatus::kOk : HeartbeatStatus::kNeedRemount, .epoch = epoch_, .client_ttl = 10s};
    }
    Result<StoreCode> goodbye(const ClientId& client, Deadline deadline) override {
        MC_RETURN_IF_ERROR(arrive("goodbye", deadline, nullptr));
        std::unique_lock lock(mutex_);
        known_.erase(client);
        return StoreCode::kOk;
    }
    Result<StoreCode> report_failures(const FailureReport& report, Deadline deadline) override {
        MC_RETURN_IF_ERROR(arrive("report_failures", deadline, nullptr));
        std::unique_lock lock(mutex_);
        failures_.insert(failures_.end(), report.segments.begin(), report.segments.end());
        return StoreCode::kOk;
    }
    Result<SegmentsReply> segments(Deadline deadline) override {
        MC_RETURN_IF_ERROR(arrive("segments", deadline, in_segments));
        std::unique_lock lock(mutex_);
        return list;
    }
    uint64_t follow(const ClientId& client, EventStream stream) override {
        std::unique_lock lock(mutex_);
        note("follow");
        const uint64_t number = ++stream_number_;
        if (mood_ == Mood::kGone) post([end = stream.on_end] { end(Error(Code::kUnavailable, "connect", ECONNREFUSED)); });
        else if (!known_.contains(client)) post([end = stream.on_end] { end(Error(Code::kNotFound, "who are you")); });
        else begin(streams_.emplace(number, std::move(stream)).first->second);
        const auto begun = streams_.find(number);
        if (streams_break && begun != streams_.end()) {
            post([end = begun->second.on_end] { end(Error(Code::kUnavailable, "connection lost", ECONNRESET)); });
            streams_.erase(begun);
        }
        return number;
    }
    void unfollow(uint64_t number) override {
        std::unique_lock lock(mutex_);
        const auto found = streams_.find(number);
        if (found == streams_.end()) return;
        post([end = found->second.on_end] { end(Error(Code::kCancelled, "cancelled")); });
        streams_.erase(found);
    }
    void acknowledge(const ClientId&, uint64_t sequence) override {
        std::unique_lock lock(mutex_);
        note("acknowledge " + std::to_string(sequence));
    }

private:
    static Unexpected none() { return fail(Code::kNotSupported, "no objects here"); }
    void begin(const EventStream& stream) {
        EventUpdate first{.sequence = 1, .reset = true, .complete = streams_complete};
        first.now = {.life = epoch_, .event = 7};
        for (const auto& [generation, held] : held_) {
            first.planned.push_back(held.planned);
            if (held.filled) first.filled.push_back(*held.filled);
        }
        post([hear = stream.on_update, first] { hear(first); });
    }
    void note(std::string line) {
        log_.push_back(std::move(line));
        changed_.notify_all();
    }
    Result<> arrive(const char* call, Deadline deadline, const std::function<void()>& hook) {
        {
            std::unique_lock lock(mutex_);
            note(call);
            if (mood_ == Mood::kGone) return Unexpected(Error(Code::kUnavailable, "connect", ECONNREFUSED));
            const auto heard = [this] { return mood_ != Mood::kSilent || stopped_; };
            if (deadline.is_never()) changed_.wait(lock, heard);
            else if (!changed_.wait_until(lock, deadline.at(), heard)) return fail(Code::kTimedOut, "no answer before the deadline");
            if (stopped_) return fail(Code::kCancelled, "stopped");
            if (mood_ == Mood::kGone) return fail(Code::kUnavailable, "peer closed the connection");
        }
        if (hook) hook();
        return {};
    }
    void post(std::function<void()> work) {
        work_.push_back(std::move(work));
        changed_.notify_all();
    }
    void run(const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        while (changed_.wait(lock, stop, [this] { return !work_.empty(); })) {
            const auto work = std::move(work_.front());
            work_.pop_front();
            working_ = true;
            lock.unlock();
            work();
            lock.lock();
            working_ = false;
            changed_.notify_all();
        }
    }

    mutable std::mutex mutex_;
    std::condition_variable_any changed_;
    Mood mood_ = Mood::kAnswers;
    bool stopped_ = false;
    uint64_t epoch_ = 100;
    std::set<ClientId> known_;
    std::set<SegmentId> mounted_;
    std::vector<SegmentId> failures_;
    struct Held {
        RangePlanned planned;
        std::optional<RangeFilled> filled;
    };
    std::map<uint64_t, Held> held_;  // by generation
    std::vector<Part> parts_;
    std::vector<Behind> witnessed_;
    HistoryPoint heard_;
    uint64_t heard_update_ = 0, remembered_update_ = 0;
    std::vector<std::string> log_;
    std::map<uint64_t, EventStream> streams_;
    uint64_t stream_number_ = 0;
    std::deque<std::function<void()>> work_;
    bool working_ = false;
    std::jthread thread_;
};

}  // namespace mooncake::store::testing
