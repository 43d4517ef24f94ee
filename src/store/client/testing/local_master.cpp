// SPDX-License-Identifier: Apache-2.0
#include "store/client/testing/local_master.h"

#include <regex>

#include "base/thread.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/removal.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store::testing {

namespace {

constexpr Duration kAcknowledgePatience = 5s;

/// Replies that name the life of the master get it filled in.
template <typename Reply>
void set_epoch(Reply& reply, uint64_t epoch) {
    if constexpr (requires { reply.epoch; }) reply.epoch = epoch;
}

}  // namespace

template <typename Operation>
auto LocalMaster::run(const char* name, Deadline deadline, const std::atomic<bool>& stopped, Operation&& operation)
    -> Result<decltype(operation(std::declval<Transaction&>(), Time{}, uint64_t{}))> {
    bool lose_answer = false;
    MC_RETURN_IF_ERROR(arrive(name, deadline, stopped, lose_answer));
    auto reply = [&] {
        Lock lock(mutex_);
        Transaction transaction(*state_);
        auto result = operation(transaction, Clock::now(), epoch_);
        set_epoch(result, epoch_);
        return result;
    }();
    publish();
    if (lose_answer) return fail(Code::kUnavailable, "the connection broke before {} was answered", name);
    return reply;
}

Result<> LocalMaster::arrive(const char* name, Deadline deadline, const std::atomic<bool>& stopped, bool& lose_answer) {
    std::function<void()> hook;
    {
        Lock lock(mutex_);
        hook = faults_[name].before;
    }
    if (hook) hook();
    std::unique_lock lock(mutex_);
    while (silent_ && !stopped.load()) {
        if (deadline.is_never()) mood_changed_.wait(lock);
        else if (mood_changed_.wait_until(lock, deadline.at()) == std::cv_status::timeout) return fail(Code::kTimedOut, "no answer");
    }
    if (stopped.load()) return fail(Code::kCancelled, "the client stops");
    Fault& fault = faults_[name];
    if (fault.lost_calls > 0) {
        --fault.lost_calls;
        return fail(Code::kUnavailable, "the connection broke before {} was sent", name);
    }
    ++fault.count;
    if (fault.lost_answers > 0) {
        --fault.lost_answers;
        lose_answer = true;
    }
    return {};
}

/// One client's way to the master.
class LocalMaster::Api final : public MasterApi {
public:
    explicit Api(LocalMaster& owner) : owner_(owner) {}

    Result<PutStartReply> put_start(const PutStartRequest& request, bool replace, Deadline deadline,
                                    const std::function<void()>& meanwhile) override {
        if (meanwhile) meanwhile();
        return owner_.run("put_start", deadline, stopped_, [&](Transaction& t, Time now, uint64_t) {
            return replace ? store::upsert_start(t, request, now) : store::put_start(t, request, now);
        });
    }
    Result<CodesReply> put_end(const PutEndRequest& request, Deadline deadline) override {
        return owner_.run("put_end", deadline, stopped_,
                          [&](Transaction& t, Time now, uint64_t) { return store::put_end(t, request, now); });
    }
    Result<CodesReply> put_revoke(const PutRevokeRequest& request, Deadline deadline) override {
        return owner_.run("put_revoke", deadline, stopped_,
                          [&](Transaction& t, Time now, uint64_t) { return store::put_revoke(t, request, now); });
    }
    Result<GetReply> get_replicas(const KeysRequest& request, Deadline deadline) override {
        return owner_.run("get_replicas", deadline, stopped_,
                          [&](Transaction& t, Time now, uint64_t) { return store::get_replicas(t, request, now); });
    }
    Result<ExistReply> exist(const KeysRequest& request, Deadline deadline) override {
        return owner_.run("exist", deadline, stopped_, [&](Transaction& t, Time now, uint64_t) { return store::exist(t, request, now); });
    }
    Result<CodesReply> remove(const RemoveRequest& request, Deadline deadline) override {
        return owner_.run("remove", deadline, stopped_, [&](Transaction& t, Time now, uint64_t) { return store::remove(t, request, now); });
    }
    Result<int64_t> remove_matching(std::string_view tenant, std::string_view pattern, bool force, Deadline deadline) override {
        Removal::Matches matches;
        try {
            if (!pattern.empty()) {
                const std::regex expression{std::string(pattern)};
                matches = [expression](std::string_view key) { return std::regex_search(std::string(key), expression); };
            }
        } catch (const std::regex_error&) {
            return static_cast<int64_t>(StoreCode::kInvalidParams);
        }
        return owner_.run("remove_matching", deadline, stopped_, [&](Transaction& t, Time now, uint64_t) {
            Removal removal(t, tenant, matches, force);
            while (!removal.done()) removal.remove(t, removal.choose(removal.look(t.state())), now);
            return static_cast<int64_t>(removal.removed());
        });
    }
    Result<CodesReply> replica_clear(const ReplicaClearRequest& request, Deadline deadline) override {
        return owner_.run("replica_clear", deadline, stopped_,
                          [&](Transaction& t, Time now, uint64_t) { return store::replica_clear(t, request, now); });
    }

    Result<StoreCode> mount(const MountRequest& request, Deadline deadline) override {
        return owner_.run("mount", deadline, never_,
                          [&](Transaction& t, Time now, uint64_t) { return store::mount_segment(t, request, now); });
    }
    Result<RemountReply> remount(const RemountRequest& request, Deadline deadline) override {
        return owner_.run("remount", deadline, never_, [&](Transaction& t, Time now, uint64_t) { return store::remount(t, request, now); });
    }
    Result<StoreCode> unmount(const UnmountRequest& request, Deadline deadline) override {
        return owner_.run("unmount", deadline, never_,
                          [&](Transaction& t, Time now, uint64_t) { return store::unmount_segment(t, request, now); });
    }
    Result<PingReply> ping(const ClientId& client, Deadline deadline) override {
        return owner_.run("ping", deadline, never_, [&](Transaction& t, Time now, uint64_t) { return store::ping(t, client, now); });
    }
    Result<StoreCode> goodbye(const ClientId& client, Deadline deadline) override {
        return owner_.run("goodbye", deadline, never_, [&](Transaction& t, Time now, uint64_t) { return store::goodbye(t, client, now); });
    }
    Result<StoreCode> report_failures(const FailureReport& report, Deadline deadline) override {
        return owner_.run("report_failures", deadline, never_,
                          [&](Transaction& t, Time now, uint64_t) { return store::report_failures(t, report, now); });
    }
    Result<SegmentsReply> segments(Deadline deadline) override {
        return owner_.run("segments", deadline, never_, [&](Transaction& t, Time, uint64_t) {
            SegmentsReply reply;
            const SegmentTable& table = t.state().segments();
            for (const SegmentNumber number : table.numbers()) {
                const Segment& segment = table[number];
                reply.segments.push_back({.number = number,
                                          .segment = segment.spec,
                                          .status = segment.status,
                                          .client = t.state().clients()[segment.client].id,
                                          .used_bytes = segment.allocator.used_bytes()});
            }
            return reply;
        });
    }

    Result<TaskReply> create_task(const TaskRequest&, Deadline) override { return TaskReply{.code = StoreCode::kNotSupported, .task = {}}; }
    Result<TaskInfo> query_task(const TaskId&, Deadline) override { return fail(Code::kNotFound, "no tasks here"); }
    Result<StoreCode> end_task(const TaskEnd& end, Deadline deadline) override {
        return owner_.run("end_task", deadline, stopped_, [&](Transaction&, Time, uint64_t) MC_NO_THREAD_ANALYSIS {
            owner_.ended_.push_back(end);
            return StoreCode::kOk;
        });
    }

    uint64_t follow(const ClientId& client, Feed feed) override { return owner_.follow(client, std::move(feed)); }
    void unfollow(uint64_t feed) override { owner_.unfollow(feed); }
    void acknowledge(const ClientId& client, uint64_t sequence) override { owner_.acknowledge(client, sequence); }
    void stop_calls() override {
        stopped_.store(true);
        Lock lock(owner_.mutex_);
        owner_.mood_changed_.notify_all();
    }

private:
    LocalMaster& owner_;
    std::atomic<bool> stopped_{false};
    const std::atomic<bool> never_{false};
};

MasterOptions LocalMaster::default_options() {
    MasterOptions options;
    options.held_share = 0;  // whole leases, however much of the pool they hold
    return options;
}

LocalMaster::LocalMaster(const MasterOptions& options)
    : options_(options), state_(std::make_unique<MasterState>(options, this)),
      thread_(start_thread("local-feed", [this](const std::stop_token& stop) { deliver(stop); })) {}

LocalMaster::~LocalMaster() {
    set_silent(false);
    thread_.request_stop();
    thread_.join();
}

std::unique_ptr<MasterApi> LocalMaster::connect() { return std::make_unique<Api>(*this); }

void LocalMaster::restart() {
    {
        Lock lock(mutex_);
        MasterOptions options = options_;
        options.first_generation = state_->next_generation() + 1000;
        state_ = std::make_unique<MasterState>(options, this);
        ++epoch_;
        caused_.clear();
        changed_.clear();
    }
    Lock lock(feed_mutex_);
    for (auto& [number, follower] : followers_) {
        follower.ended = true;
        follower.why = Error(Code::kUnavailable, "peer closed the connection");
    }
    feed_changed_.notify_all();
}

void LocalMaster::set_silent(bool silent) {
    Lock lock(mutex_);
    silent_ = silent;
    mood_changed_.notify_all();
}

void LocalMaster::lose_answers(const std::string& call, int count) {
    Lock lock(mutex_);
    faults_[call].lost_answers = count;
}

void LocalMaster::lose_calls(const std::string& call, int count) {
    Lock lock(mutex_);
    faults_[call].lost_calls = count;
}

void LocalMaster::before(const std::string& call, std::function<void()> hook) {
    Lock lock(mutex_);
    faults_[call].before = std::move(hook);
}

int LocalMaster::calls(const std::string& call) const {
    Lock lock(mutex_);
    const auto found = faults_.find(call);
    return found == faults_.end() ? 0 : found->second.count;
}

void LocalMaster::run_jobs() {
    act([](Transaction& t, Time now) { store::run_jobs(t, now); });
}

void LocalMaster::act(const std::function<void(Transaction&, Time)>& operation) {
    {
        Lock lock(mutex_);
        Transaction transaction(*state_);
        operation(transaction, Clock::now());
    }
    publish();
}

std::vector<TaskEnd> LocalMaster::ended_tasks() const {
    Lock lock(mutex_);
    return ended_;
}

uint64_t LocalMaster::epoch() const {
    Lock lock(mutex_);
    return epoch_;
}

// ---- the feed

void LocalMaster::range_planned(const MasterState& state, SegmentNumber segment, WriteId id) MC_NO_THREAD_ANALYSIS {
    const Write& write = state.write(id);
    const Object& object = state.objects()[write.object];
    const Segment& on = state.segments()[segment];
    caused_[state.clients()[on.client].id].planned.push_back(
        {.segment = on.spec.id,
         .offset = write.replicas[write.replicas.find(segment)].offset,
         .length = write.length,
         .generation = write.generation,
         .tenant = state.tenants()[object.tenant].name,
         .key = std::string(object.key()),
         .group = object.group == 0 ? std::string() : state.groups()[object.group].name,
         .data_type = write.data_type,
         .hard_pin = write.hard_pin,
         .writer = state.clients()[write.client].id});
}

void LocalMaster::range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation,
                               uint64_t checksum) MC_NO_THREAD_ANALYSIS {
    const Segment& on = state.segments()[segment];
    caused_[state.clients()[on.client].id].filled.push_back({.segment = on.spec.id, .generation = generation, .checksum = checksum});
}

void LocalMaster::range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration rest) MC_NO_THREAD_ANALYSIS {
    const Segment& on = state.segments()[segment];
    caused_[state.clients()[on.client].id].dropped.push_back({.segment = on.spec.id, .generation = generation, .rest = rest});
}

void LocalMaster::value_outdated(const MasterState& state, ObjectId id) MC_NO_THREAD_ANALYSIS {
    const Object& object = state.objects()[id];
    changed_.push_back({.tenant = state.tenants()[object.tenant].name, .key = std::string(object.key())});
}

void LocalMaster::tell(Follower& follower, FeedUpdate update) {
    update.sequence = ++follower.told;
    if (update.acknowledge) follower.wanted = update.sequence;
    follower.queue.push_back(std::move(update));
    feed_changed_.notify_all();
}

void LocalMaster::publish() {
    std::vector<uint64_t> waited_for;
    {
        Lock lock(mutex_);
        if (caused_.empty() && changed_.empty()) return;
        const auto caused = std::exchange(caused_, {});
        const auto changed = std::exchange(changed_, {});
        Lock feed_lock(feed_mutex_);
        for (auto& [number, follower] : followers_) {
            const auto own = caused.find(follower.client);
            if (follower.ended || (own == caused.end() && changed.empty())) continue;
            FeedUpdate update = own == caused.end() ? FeedUpdate{} : own->second;
            update.changed = changed;
            update.acknowledge = !changed.empty();
            tell(follower, std::move(update));
            if (!changed.empty()) waited_for.push_back(number);
        }
    }
    const Time give_up = Clock::now() + kAcknowledgePatience;
    std::unique_lock lock(feed_mutex_);
    for (const uint64_t number : waited_for) {
        feed_changed_.wait_until(lock, give_up, [&]() MC_NO_THREAD_ANALYSIS {
            const auto found = followers_.find(number);
            return found == followers_.end() || found->second.ended || found->second.acknowledged >= found->second.wanted;
        });
    }
}

FeedUpdate LocalMaster::first_report(const ClientId& client) {
    FeedUpdate report{.reset = true, .complete = true};
    const ClientNumber number = state_->clients().find(client);
    for (ObjectId id = 1; number != 0 && id < state_->objects().limit(); ++id) {
        if (!state_->objects().exists(id)) continue;
        const Object& object = state_->objects()[id];
        for (size_t i = 0; object.has_value() && i < object.replicas.size(); ++i) {
            const Segment& on = state_->segments()[object.replicas[i].segment];
            if (on.client != number) continue;
            report.planned.push_back({.segment = on.spec.id,
                                      .offset = object.replicas[i].offset,
                                      .length = object.length,
                                      .generation = object.generation,
                                      .tenant = state_->tenants()[object.tenant].name,
                                      .key = std::string(object.key()),
                                      .data_type = object.data_type,
                                      .hard_pin = object.hard_pin});
            report.filled.push_back({.segment = on.spec.id, .generation = object.generation, .checksum = object.checksum});
        }
    }
    return report;
}

uint64_t LocalMaster::follow(const ClientId& client, MasterApi::Feed feed) {
    Lock lock(mutex_);
    FeedUpdate report = first_report(client);
    Lock feed_lock(feed_mutex_);
    const uint64_t number = next_follower_++;
    Follower& follower = followers_[number];
    follower.client = client;
    follower.feed = std::move(feed);
    tell(follower, std::move(report));
    return number;
}

void LocalMaster::unfollow(uint64_t number) {
    std::unique_lock lock(feed_mutex_);
    const auto found = followers_.find(number);
    if (found == followers_.end()) return;
    found->second.ended = true;
    found->second.queue.clear();
    found->second.why = Error(Code::kCancelled, "not followed any more");
    feed_changed_.notify_all();
}

void LocalMaster::acknowledge(const ClientId& client, uint64_t sequence) {
    Lock lock(feed_mutex_);
    for (auto& [number, follower] : followers_)
        if (follower.client == client) follower.acknowledged = std::max(follower.acknowledged, sequence);
    feed_changed_.notify_all();
}

void LocalMaster::order_copy(const ClientId& owner, const CopyOrder& order) {
    Lock lock(feed_mutex_);
    for (auto& [number, follower] : followers_)
        if (follower.client == owner && !follower.ended) tell(follower, {.orders = {order}});
}

void LocalMaster::deliver(const std::stop_token& stop) {
    std::unique_lock lock(feed_mutex_);
    while (!stop.stop_requested()) {
        uint64_t number = 0;
        for (auto& [candidate, follower] : followers_)
            if (!follower.queue.empty() || follower.ended) number = candidate;
        if (number == 0) {
            feed_changed_.wait(lock, stop, [this]() MC_NO_THREAD_ANALYSIS {
                return std::any_of(followers_.begin(), followers_.end(),
                                   [](const auto& one) { return !one.second.queue.empty() || one.second.ended; });
            });
            continue;
        }
        Follower& follower = followers_[number];
        if (!follower.queue.empty()) {
            const FeedUpdate update = std::move(follower.queue.front());
            follower.queue.pop_front();
            const auto on_update = follower.feed.on_update;
            lock.unlock();
            on_update(update);
            lock.lock();
            continue;
        }
        const auto on_end = follower.feed.on_end;
        const Error why = follower.why;
        followers_.erase(number);
        lock.unlock();
        on_end(why);
        lock.lock();
    }
}

}  // namespace mooncake::store::testing
