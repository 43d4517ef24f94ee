// SPDX-License-Identifier: Apache-2.0
#include "kv_flow.h"

#include <chrono>

#include "arguments.h"
#include "base/error_copy.h"
#include "failures.h"

namespace mooncake::python {

void KvStep::end(const Result<uint64_t>& outcome) {
    std::vector<Listener> listeners;
    {
        Lock lock(mutex_);
        if (outcome) outcome_ = *outcome;
        else outcome_ = Unexpected(copy_error(outcome.error()));
        listeners.swap(listeners_);
        ended_.notify_all();
    }
    for (const Listener& listener : listeners) listener.port.put(listener.token);
}

void KvStep::tell(const CompletionPort& port, uint64_t token) {
    if (ours()) {
        Lock lock(mutex_);
        if (!outcome_) return listeners_.push_back({.port = port, .token = token});
    }
    port.put(token);
}

bool KvStep::done() const {
    if (!ours()) return true;
    Lock lock(mutex_);
    return outcome_.has_value();
}

bool KvStep::wait(Deadline deadline) const {
    if (!ours()) return true;
    Lock lock(mutex_);
    while (!outcome_) {
        if (deadline.is_never()) ended_.wait(mutex_);
        else if (deadline.passed()) return false;
        else ended_.wait_until(mutex_, deadline.at());
    }
    return true;
}

Result<uint64_t> KvStep::outcome() const {
    if (!ours()) return Unexpected(engine_unusable());
    Lock lock(mutex_);
    if (*outcome_) return **outcome_;
    return Unexpected(copy_error(outcome_->error()));
}

Deadline deadline_from(std::optional<double> seconds) {
    constexpr double kFar = 1e9;
    if (!seconds || !(*seconds < kFar)) return Deadline::never();
    return Deadline::after(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::max(*seconds, 0.0))));
}

KvFlow::KvFlow(const InnerEngine& engine, const KvPlan& plan, uint32_t rank, bool writes, std::optional<Notification> notification,
               double timeout)
    : engine_(engine.engine) {
    if (exiting() || !engine_.ours()) raise_failure("Flow", engine_unusable());
    kvplan::FlowSetup setup{.sources = plan.sources,
                            .targets = plan.targets,
                            .plan = plan.plan,
                            .direction = writes ? Direction::kWrite : Direction::kRead,
                            .rank = rank,
                            .notification = std::move(notification),
                            .lives = {}};
    auto made = without_gil([&] { return kvplan::Flow::create(*engine_, std::move(setup), deadline_from(timeout)); });
    if (!made) raise_failure("Flow", made.error());
    flow_ = NativeRef<ClosableFlow>(std::make_shared<ClosableFlow>(std::move(*made)));
    close_at_exit(flow_.share());
}

std::shared_ptr<KvStep> KvFlow::submit(const std::string& layer, nb::handle after) {
    if (exiting() || !flow_.ours()) raise_failure("submit", engine_unusable());
    const WorkPoint point = work_from(after);
    auto step = std::make_shared<KvStep>();
    const auto started = without_gil([&] {
        return (*flow_)->submit(
            layer, [step](const Result<uint64_t>& outcome) { step->end(outcome); }, point);
    });
    if (!started) raise_failure("submit", started.error());
    return step;
}

void KvFlow::cancel() {
    if (exiting() || !flow_.ours()) return;
    without_gil([&] { return (*flow_)->cancel(), 0; });
}

void KvFlow::close() {
    if (exiting() || !flow_.ours()) return;
    without_gil([&] { return flow_->close(), 0; });
}

const kvplan::Flow& KvFlow::flow() const { return **flow_; }

}  // namespace mooncake::python
