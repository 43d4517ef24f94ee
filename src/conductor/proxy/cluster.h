// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "conductor/schedule/scheduler.h"
#include "metrics/metrics.h"

namespace mooncake::conductor {

struct Endpoint;

/// One instance as somebody outside describes it.
struct MemberSpec {
    InstanceSpec instance{};  // its name: empty for "host:port"
    std::string host;
    uint16_t port = 0;
    uint16_t bootstrap_port = 8998;
};

/// Who is to blame for how an attempt ended.
enum class Blame : uint8_t { kNobody, kPrefill, kDecode, kPair };

/// What the proxy counts.
struct ProxyMetrics {
    explicit ProxyMetrics(metrics::Registry& to);
    metrics::Counter& rejected(RejectReason reason);
    metrics::Counter& retried(std::string_view side);
    metrics::Counter& ended(std::string_view outcome);

    metrics::Registry& registry;
    metrics::Histogram &ttft, &tbt, &queued, &prefill, &decision;
    metrics::Counter &predicted_tokens, &cached_tokens;
    metrics::Gauge &open, &waiting;
};

/// The scheduler and the instances of a running proxy, for all of its threads. Thread-safe.
class Cluster {
public:
    Cluster(SchedulerOptions options, metrics::Registry& registry);
    ~Cluster();

    /// kAlreadyExists: the name is taken by an instance elsewhere. Adding the same one again changes nothing: instances say that they are there again and again.
    Result<std::string> add(MemberSpec spec) MC_EXCLUDES(mutex_);
    Result<> remove(std::string_view name) MC_EXCLUDES(mutex_);
    Result<> drain(std::string_view name, bool draining) MC_EXCLUDES(mutex_);

    struct Placed {
        Placement placement;
        std::shared_ptr<const Endpoint> prefill, decode;
    };
    /// `wake` is called once, when its turn has come, on any thread; it must not block. It may come before this returns.
    std::variant<Placed, Rejection> submit(Request request, std::function<void()> wake) MC_EXCLUDES(mutex_);
    std::variant<Placed, Rejection> place_again(RequestId id, const Avoid& avoid, std::function<void()> wake) MC_EXCLUDES(mutex_);
    void prefill_done(RequestId id, double seconds, std::optional<uint64_t> cached_tokens) MC_EXCLUDES(mutex_);
    void finished(RequestId id, InstanceId decode, double token_seconds) MC_EXCLUDES(mutex_);
    void cancel(RequestId id) MC_EXCLUDES(mutex_);
    /// What became of an attempt; of the others nothing is known, but that both instances are well when their pair is not.
    void report(const Placement& placement, Blame blame) MC_EXCLUDES(mutex_);
    /// Starts what is due; the proxy calls it when `next_wake` said so.
    void pump() MC_EXCLUDES(mutex_);
    /// Told when pump() should be called next; on any thread, with nothing locked.
    void on_next_wake(std::function<void(Time)> told) { next_wake_ = std::move(told); }

    struct Member {
        InstanceId id = kNoInstance;
        std::shared_ptr<const Endpoint> endpoint;
        Role role = Role::kBoth;
        bool draining = false, removed = false, healthy = true;
        BreakerState breaker = BreakerState::kClosed;
        size_t waiting = 0, prefilling = 0, decoding = 0, cached_blocks = 0;
        double work_seconds = 0;
    };
    std::vector<Member> members() const MC_EXCLUDES(mutex_);
    void probed(InstanceId id, const Endpoint* endpoint, bool ok) MC_EXCLUDES(mutex_);
    void learned_engine_id(const Endpoint& endpoint, const std::string& engine_id) MC_EXCLUDES(mutex_);
    /// Work on the index of cached blocks; `id` by the instance's name.
    void with_cache(const std::function<void(PrefixIndex& cache, const std::function<InstanceId(std::string_view)>& find)>& work)
        MC_EXCLUDES(mutex_);

    RequestId next_id() noexcept { return ++last_id_; }
    ProxyMetrics& metrics() noexcept { return metrics_; }
    const SchedulerOptions& options() const noexcept { return scheduler_options_; }

private:
    struct Wakes;
    std::variant<Placed, Rejection> keep(RequestId id, std::variant<Placement, Rejection> placed, std::function<void()> wake, Wakes& wakes)
        MC_REQUIRES(mutex_);
    void collect(Wakes& wakes, Time now) MC_REQUIRES(mutex_);
    void deliver(Wakes wakes);
    void forget_gone() MC_REQUIRES(mutex_);

    const SchedulerOptions scheduler_options_;
    ProxyMetrics metrics_;
    std::function<void(Time)> next_wake_;
    std::atomic<RequestId> last_id_{0};
    mutable Mutex mutex_;
    Scheduler scheduler_ MC_GUARDED_BY(mutex_);
    std::map<InstanceId, std::shared_ptr<const Endpoint>> endpoints_ MC_GUARDED_BY(mutex_);
    std::map<InstanceId, int> failed_probes_ MC_GUARDED_BY(mutex_);
    std::unordered_map<RequestId, std::function<void()>> waiting_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::conductor
