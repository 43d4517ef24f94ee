// SPDX-License-Identifier: Apache-2.0
#include "store/member/membership.h"

#include <condition_variable>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "store/member/member.h"

namespace mooncake::store {

namespace {

constexpr Duration kGoodbyeTimeout = 1s;

/// The thread around a Member.
class MembershipImpl final : public Membership {
public:
    MembershipImpl(MasterApi& master, ClientId client, MembershipListener& listener, Holdings& holdings, MembershipOptions options)
        : master_(master), member_({.master = master,
                                    .client = client,
                                    .listener = listener,
                                    .holdings = holdings,
                                    .options = options,
                                    .clock = Clock::now,
                                    .wake = [this] { wake(); }}) {}
    ~MembershipImpl() override { stop(/*goodbye=*/true); }

    Result<> start(Deadline deadline) override {
        member_.beat(deadline);
        MC_RETURN_IF_ERROR(member_.standing());
        Lock lock(stop_mutex_);
        if (stopped_) return fail(Code::kCancelled, "left the pool");
        MC_ASSIGN_OR_RETURN(thread_, try_start_thread("mc-membership", [this](const std::stop_token& stop) { run(stop); }));
        return {};
    }

    void stop(bool goodbye) override {
        Lock lock(stop_mutex_);
        if (std::exchange(stopped_, true)) return;
        const Deadline deadline = Deadline::after(kGoodbyeTimeout);
        member_.begin_leaving();
        thread_.request_stop();
        // While the master is silent, half of the time is for the answer the thread still waits for.
        const bool quiet = !thread_.joinable() || wait_for_thread(Deadline::after(kGoodbyeTimeout / 2));
        if (goodbye) member_.say_goodbye(deadline);
        if (!quiet && !wait_for_thread(deadline)) master_.stop_liveness();
        if (thread_.joinable()) thread_.join();
        member_.leave();
    }

    Result<StoreCode> mount(const SegmentSpec& segment, Deadline deadline) override { return member_.mount(segment, deadline); }
    Result<StoreCode> unmount(const SegmentId& segment, Duration grace, Deadline deadline) override {
        return member_.unmount(segment, grace, deadline);
    }
    uint64_t epoch() const noexcept override { return member_.epoch(); }
    bool answering() const override { return member_.answering(); }

private:
    void run(const std::stop_token& stop) MC_NO_THREAD_ANALYSIS {
        Time due = Clock::now();
        std::unique_lock lock(mutex_);
        while (!stop.stop_requested()) {
            wake_.wait_until(lock, stop, due, [this]() MC_NO_THREAD_ANALYSIS { return woken_; });
            if (stop.stop_requested()) break;
            woken_ = false;
            lock.unlock();
            due = member_.beat();
            lock.lock();
        }
        ended_ = true;
        wake_.notify_all();
    }
    void wake() {
        Lock lock(mutex_);
        woken_ = true;
        wake_.notify_all();
    }
    bool wait_for_thread(Deadline deadline) MC_NO_THREAD_ANALYSIS {
        std::unique_lock lock(mutex_);
        return wake_.wait_until(lock, deadline.at(), [this]() MC_NO_THREAD_ANALYSIS { return ended_; });
    }

    MasterApi& master_;
    Mutex mutex_;
    std::condition_variable_any wake_;
    bool woken_ MC_GUARDED_BY(mutex_) = false;
    bool ended_ MC_GUARDED_BY(mutex_) = false;
    Member member_;

    Mutex stop_mutex_;
    bool stopped_ MC_GUARDED_BY(stop_mutex_) = false;
    std::jthread thread_ MC_GUARDED_BY(stop_mutex_);
};

}  // namespace

std::unique_ptr<Membership> Membership::create(MasterApi& master, ClientId client, MembershipListener& listener, Holdings& holdings,
                                               MembershipOptions options) {
    return std::make_unique<MembershipImpl>(master, client, listener, holdings, options);
}

}  // namespace mooncake::store
