// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "store/master/state.h"
#include "store/master/transaction.h"
#include "store/member/master_link.h"
#include "store/service/event_hub.h"
#include "store/service/locked_master.h"

namespace mooncake::store::testing {

/// A master in this process: the real core and the real event streams, without connections in between, and faults on demand. Hands out one MasterApi
/// per client. Thread-safe. Must outlive the MasterApis.
class LocalMaster {
public:
    explicit LocalMaster(const MasterOptions& options = default_options());
    ~LocalMaster();

    static MasterOptions default_options();
    std::unique_ptr<MasterApi> connect();

    /// Another life at the same address: knows nothing, and the event streams of the old one have ended.
    void restart();
    /// Takes calls about objects and answers none of them, until told otherwise.
    void set_silent(bool silent);
    /// The next `count` calls of this name act, but their answers are lost.
    void lose_answers(const std::string& call, int count);
    /// The next `count` calls of this name do not arrive.
    void lose_calls(const std::string& call, int count);
    /// Runs before each call of this name, on the caller's thread, without any lock.
    void before(const std::string& call, std::function<void()> hook);
    /// How many calls of this name arrived.
    int calls(const std::string& call) const;
    /// Runs the jobs the master does by itself.
    void run_jobs();
    /// Looks at, or alters, the state as an operation would.
    void act(const std::function<void(Transaction&, Time)>& operation);
    /// Orders the owner of the source to copy.
    void order_copy(const ClientId& owner, const CopyOrder& order);
    std::vector<TaskEnd> ended_tasks() const;
    uint64_t epoch() const;

private:
    class Api;
    class Stream;
    class Answer;
    /// From its start to a restart().
    struct Life {
        Life(const MasterOptions& options, uint64_t number);
        const uint64_t epoch;
        EventHub hub;
        LockedMaster master;
    };
    /// One event stream, between the hub and the client.
    struct EventStream {
        ClientId client;
        MasterApi::EventStream to;
        std::deque<rpc::Bytes> queue;
        bool ended = false;
        Error why;
    };
    struct Fault {
        int lost_answers = 0, lost_calls = 0, count = 0;
        std::function<void()> before;
    };

    template <typename Operation>
    auto run(const char* name, Deadline deadline, const std::atomic<bool>& stopped, Operation&& operation)
        -> Result<decltype(operation(std::declval<Transaction&>(), Time{}, uint64_t{}))>;
    /// Runs an operation and returns once the event streams have told what it caused.
    template <typename Operation>
    static auto run_in(Life& life, Operation&& operation);
    /// Returns when the followers have heard of that.
    static void wait_told(Life& life, const EventHub::Caused& caused);
    void wait_told(const EventHub::Caused& caused);
    Result<> arrive(const char* name, Deadline deadline, const std::atomic<bool>& stopped, bool& lose_answer);
    std::shared_ptr<Life> life() const;
    uint64_t follow(const ClientId& client, MasterApi::EventStream stream);
    void unfollow(uint64_t number);
    void acknowledge(const ClientId& client, uint64_t sequence);
    static void report(Life& life, const ClientId& client);
    static void drop_lost(Life& life);
    void end(uint64_t number, Error why, bool at_once);
    void deliver(const std::stop_token& stop);

    const MasterOptions options_;
    mutable Mutex mutex_;
    std::condition_variable_any mood_changed_;
    std::shared_ptr<Life> life_ MC_GUARDED_BY(mutex_);
    bool silent_ MC_GUARDED_BY(mutex_) = false;
    std::map<std::string, Fault> faults_ MC_GUARDED_BY(mutex_);
    std::vector<TaskEnd> ended_ MC_GUARDED_BY(mutex_);

    mutable Mutex stream_mutex_;  // taken inside all others
    std::condition_variable_any stream_changed_;
    std::map<uint64_t, EventStream> streams_ MC_GUARDED_BY(stream_mutex_);
    uint64_t next_stream_ MC_GUARDED_BY(stream_mutex_) = 1;
    std::jthread thread_;
};

}  // namespace mooncake::store::testing
