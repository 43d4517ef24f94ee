// SPDX-License-Identifier: Apache-2.0
#include "store/service/testing/local_master.h"

#include <regex>
#include <utility>

#include "base/thread.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/removal.h"
#include "store/master/ops/segment_ops.h"
#include "store/master/ops/tier_ops.h"
#include "store/service/copy_end.h"
#include "store/service/remounting.h"

namespace mooncake::store::testing {

namespace {

// Long enough for every follower of a test on a busy machine: there a change counts as told only when it is.
constexpr Duration kAcknowledgePatience = 5s;
constexpr Duration kLookInterval = 20ms;

/// Replies that name the life of the master get it filled in.
template <typename Reply>
void set_epoch(Reply& reply, uint64_t epoch) {
    if constexpr (requires { reply.epoch; }) reply.epoch = epoch;
}

/// A responder that is used in this process only.
class LocalResponder : public rpc::Responder {
public:
    using Responder::part;
    Deadline deadline() const noexcept override { return Deadline::never(); }
    const rpc::PeerInfo& peer() const noexcept override { return peer_; }

private:
    const rpc::PeerInfo peer_;
};

/// Waits for the hub's leave to answer.
struct Leave {
    Mutex mutex;
    std::condition_variable_any changed;
    bool given MC_GUARDED_BY(mutex) = false;
};

}  // namespace

/// What the hub answers when everybody has been told.
class LocalMaster::Answer final : public LocalResponder {
public:
    explicit Answer(std::shared_ptr<Leave> leave) : leave_(std::move(leave)) {}
    ~Answer() override { give(); }
    void reply(rpc::Bytes) override { give(); }
    void fail(const Error&) override { give(); }
    bool part(rpc::Bytes, Haste) override { return false; }
    bool abandoned() const noexcept override { return false; }

private:
    void give() {
        Lock lock(leave_->mutex);
        leave_->given = true;
        leave_->changed.notify_all();
    }
    const std::shared_ptr<Leave> leave_;
};

/// The hub's end of an event stream.
class LocalMaster::Stream final : public LocalResponder {
public:
    Stream(LocalMaster& owner, uint64_t number) : owner_(owner), number_(number) {}
    void reply(rpc::Bytes) override {}
    void fail(const Error& error) override { owner_.end(number_, error, /*at_once=*/false); }
    bool part(rpc::Bytes body, Haste) override {
        Lock lock(owner_.stream_mutex_);
        const auto found = owner_.streams_.find(number_);
        if (found == owner_.streams_.end() || found->second.ended) return false;
        found->second.queue.push_back(std::move(body));
        owner_.stream_changed_.notify_all();
        return true;
    }
    bool abandoned() const noexcept override {
        Lock lock(owner_.stream_mutex_);
        const auto found = owner_.streams_.find(number_);
        return found == owner_.streams_.end() || found->second.ended;
    }

private:
    LocalMaster& owner_;
    const uint64_t number_;
};

LocalMaster::Life::Life(const MasterOptions& options, uint64_t number)
    : epoch(number), hub({.life = number, .acknowledge_timeout = kAcknowledgePatience}), master(options, &hub, &hub) {}

template <typename Operation>
auto LocalMaster::run_in(Life& life, Operation&& operation) {
    EventHub::Caused caused;
    auto reply = life.master.run([&](Transaction& transaction, Time now) {
        const EventHub::Position before = life.hub.position();
        auto result = operation(transaction, now);
        life.hub.drop_strangers(transaction.state());
        caused.add(before, life.hub.position());
        return result;
    });
    wait_told(life, caused);
    return reply;
}

void LocalMaster::wait_told(const EventHub::Caused& caused) { wait_told(*life(), caused); }

void LocalMaster::wait_told(Life& life, const EventHub::Caused& caused) {
    if (caused.nothing()) return;
    const auto leave = std::make_shared<Leave>();
    Time next = life.hub.answer_when_told(caused, std::make_unique<Answer>(leave), {}, Clock::now());
    leave->mutex.lock();
    while (!leave->given) {
        leave->changed.wait_until(leave->mutex, std::min(next, Clock::now() + kLookInterval));
        leave->mutex.unlock();
        drop_lost(life);  // nobody waits for who has gone meanwhile
        next = life.hub.expire(Clock::now());
        leave->mutex.lock();
    }
    leave->mutex.unlock();
}

template <typename Operation>
auto LocalMaster::run(const char* name, Deadline deadline, const std::atomic<bool>& stopped, Operation&& operation)
    -> Result<decltype(operation(std::declval<Transaction&>(), Time{}, uint64_t{}))> {
    bool lose_answer = false;
    MC_RETURN_IF_ERROR(arrive(name, deadline, stopped, lose_answer));
    const std::shared_ptr<Life> now_living = life();
    auto reply = run_in(*now_living, [&](Transaction& transaction, Time now) { return operation(transaction, now, now_living->epoch); });
    set_epoch(reply, now_living->epoch);
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
            Removal removal(t, {.tenant = std::string(tenant), .matches = matches, .force = force});
            removal.start(t, now);
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
        return owner_.run("remount", deadline, never_, [&](Transaction& t, Time now, uint64_t epoch) {
            const std::shared_ptr<Life> life = owner_.life();
            return life->epoch == epoch ? remount_member(life->hub, t, request, now) : store::remount(t, request, now);
        });
    }
    Result<StoreCode> unmount(const UnmountRequest& request, Deadline deadline) override {
        return owner_.run("unmount", deadline, never_,
                          [&](Transaction& t, Time now, uint64_t) { return store::unmount_segment(t, request, now); });
    }
    Result<HeartbeatReply> heartbeat(const ClientId& client, Deadline deadline) override {
        return owner_.run("ping", deadline, never_, [&](Transaction& t, Time now, uint64_t) { return store::heartbeat(t, client, now); });
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
        return owner_.run("end_task", deadline, stopped_, [&](Transaction&, Time, uint64_t) {
            Lock lock(owner_.mutex_);
            owner_.ended_.push_back(end);
            return StoreCode::kOk;
        });
    }
    Result<CodesReply> end_copies(const CopiesEnd& ends, Deadline deadline) override {
        EventHub::Caused caused;
        if (const auto told = owner_.run("end_copies", deadline, stopped_,
                                         [&](Transaction& t, Time, uint64_t) {
                                             tell_of_copies(owner_.life()->hub, t.state(), ends, caused);
                                             return true;
                                         });
            !told)
            return Unexpected(told.error());
        owner_.wait_told(caused);
        return owner_.run("finish_copies", deadline, stopped_, [&](Transaction& t, Time now, uint64_t) {
            CodesReply reply = store::end_copies(t, ends, now);
            order_tier_copies(t, t.state().clients().find(ends.client), now, SIZE_MAX);
            return reply;
        });
    }
    Result<StoreCode> replicas_gone(const ReplicasGone& gone, Deadline deadline) override {
        return owner_.run("replicas_gone", deadline, stopped_,
                          [&](Transaction& t, Time now, uint64_t) { return store::replicas_gone(t, gone, now); });
    }

    uint64_t follow(const ClientId& client, EventStream stream) override { return owner_.follow(client, std::move(stream)); }
    void unfollow(uint64_t stream) override { owner_.unfollow(stream); }
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
    : options_(options), life_(std::make_shared<Life>(options, 1)),
      thread_(start_thread("local-stream", [this](const std::stop_token& stop) { deliver(stop); })) {}

LocalMaster::~LocalMaster() {
    set_silent(false);
    thread_.request_stop();
    thread_.join();
}

std::unique_ptr<MasterApi> LocalMaster::connect() { return std::make_unique<Api>(*this); }

std::shared_ptr<LocalMaster::Life> LocalMaster::life() const {
    Lock lock(mutex_);
    return life_;
}

void LocalMaster::restart() {
    MasterOptions options = options_;
    options.first_generation = life()->master.look([](const MasterState& state, Time) { return state.next_generation() + 1000; });
    std::vector<uint64_t> streams;
    {
        Lock lock(mutex_);
        life_ = std::make_shared<Life>(options, life_->epoch + 1);
    }
    {
        Lock lock(stream_mutex_);
        for (const auto& [number, stream] : streams_) streams.push_back(number);
    }
    for (const uint64_t number : streams) end(number, Error(Code::kUnavailable, "peer closed the connection"), /*at_once=*/false);
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
    act([](Transaction& transaction, Time now) { store::run_jobs(transaction, now); });
}

void LocalMaster::act(const std::function<void(Transaction&, Time)>& operation) {
    run_in(*life(), [&](Transaction& transaction, Time now) {
        operation(transaction, now);
        return true;
    });
}

std::vector<TaskEnd> LocalMaster::ended_tasks() const {
    Lock lock(mutex_);
    return ended_;
}

uint64_t LocalMaster::epoch() const { return life()->epoch; }

// ---- the event streams

uint64_t LocalMaster::follow(const ClientId& client, MasterApi::EventStream stream) {
    uint64_t number = 0;
    {
        Lock lock(stream_mutex_);
        number = next_stream_++;
        streams_[number] = {.client = client, .to = std::move(stream)};
    }
    const std::shared_ptr<Life> now_living = life();
    const bool known = now_living->master.run([&](Transaction& transaction, Time now) {
        const ClientTable& clients = transaction.state().clients();
        const ClientNumber who = clients.find(client);
        if (!clients.alive(who) || !clients[who].attached) return false;
        now_living->hub.follow(transaction.state(), who, std::make_unique<Stream>(*this, number));
        transaction.apply(ClientFollows{.client = client, .follows = true, .now = now});
        return true;
    });
    if (known) report(*now_living, client);
    else end(number, Error(Code::kNotFound, "the client is unknown to this master"), /*at_once=*/false);
    return number;
}

void LocalMaster::report(Life& life, const ClientId& client) {
    while (life.hub.wants_report(client)) {
        life.master.look([&](const MasterState& state, Time now) {
            life.hub.report(state, client, now);
            return true;
        });
        life.hub.flush();
    }
}

void LocalMaster::end(uint64_t number, Error why, bool at_once) {
    Lock lock(stream_mutex_);
    const auto found = streams_.find(number);
    if (found == streams_.end() || found->second.ended) return;
    found->second.ended = true;
    found->second.why = std::move(why);
    if (at_once) found->second.queue.clear();
    stream_changed_.notify_all();
}

void LocalMaster::unfollow(uint64_t number) {
    end(number, Error(Code::kCancelled, "not followed any more"), /*at_once=*/true);
    drop_lost(*life());
}

void LocalMaster::drop_lost(Life& life) {
    life.master.run([&](Transaction& transaction, Time now) {
        for (const ClientId& client : life.hub.take_lost(transaction.state()))
            transaction.apply(ClientFollows{.client = client, .follows = false, .now = now});
        return true;
    });
}

void LocalMaster::acknowledge(const ClientId& client, uint64_t sequence) {
    const std::shared_ptr<Life> now_living = life();
    now_living->hub.acknowledge(client, sequence);
    report(*now_living, client);
}

void LocalMaster::order_copy(const ClientId& owner, const CopyOrder& order) {
    Lock lock(stream_mutex_);
    for (auto& [number, stream] : streams_)
        if (stream.client == owner && !stream.ended) stream.queue.push_back(encode_event_update({.orders = {order}}));
    stream_changed_.notify_all();
}

void LocalMaster::deliver(const std::stop_token& stop) {
    std::unique_lock lock(stream_mutex_);
    const auto has_news = [](const auto& one) { return !one.second.queue.empty() || one.second.ended; };
    while (!stop.stop_requested()) {
        const auto found = std::find_if(streams_.begin(), streams_.end(), has_news);
        if (found == streams_.end()) {
            stream_changed_.wait(lock, stop,
                                 [&]() MC_NO_THREAD_ANALYSIS { return std::any_of(streams_.begin(), streams_.end(), has_news); });
            continue;
        }
        EventStream& stream = found->second;
        if (!stream.queue.empty()) {
            const rpc::Bytes body = std::move(stream.queue.front());
            stream.queue.pop_front();
            const auto on_update = stream.to.on_update;
            lock.unlock();
            const auto update = decode_event_view(body);
            MC_CHECK(update);
            on_update(*update);
            lock.lock();
            continue;
        }
        const auto on_end = stream.to.on_end;
        const Error why = stream.why;
        streams_.erase(found);
        lock.unlock();
        on_end(why);
        lock.lock();
    }
}

}  // namespace mooncake::store::testing
