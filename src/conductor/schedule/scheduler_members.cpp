// SPDX-License-Identifier: Apache-2.0
// Who belongs to the cluster, and how well they are.
#include "conductor/schedule/scheduler.h"

namespace mooncake::conductor {

Result<InstanceId> Scheduler::add_instance(InstanceSpec spec) {
    if (spec.name.empty()) return fail(Code::kInvalidArgument, "an instance needs a name");
    if (names_.contains(spec.name)) return fail(Code::kAlreadyExists, "there is an instance {} already", spec.name);
    InstanceId id = 0;
    while (id < instances_.size() && instances_[id]) ++id;
    if (id == instances_.size()) instances_.emplace_back();
    cache_.add_instance(id, spec.cache_blocks);
    names_.emplace(spec.name, id);
    instances_[id].emplace(std::move(spec), options_.shape, options_.breaker);
    return id;
}

Result<> Scheduler::remove_instance(std::string_view name) {
    const auto found = names_.find(name);
    if (found == names_.end()) return fail(Code::kNotFound, "no instance {}", name);
    const InstanceId id = found->second;
    at(id).removed = true;
    names_.erase(found);  // the name is free at once: a new life of the instance may register while requests of the old one end
    cache_.clear(id);
    free_if_gone(id);
    return {};
}

Result<> Scheduler::drain_instance(std::string_view name, bool draining) {
    const InstanceId id = find(name);
    if (id == kNoInstance) return fail(Code::kNotFound, "no instance {}", name);
    at(id).draining = draining;
    return {};
}

void Scheduler::set_healthy(InstanceId id, bool healthy) {
    if (find(id) != nullptr) at(id).healthy = healthy;
}

const Instance* Scheduler::find(InstanceId id) const noexcept {
    return id < instances_.size() && instances_[id] ? &*instances_[id] : nullptr;
}

InstanceId Scheduler::find(std::string_view name) const noexcept {
    const auto found = names_.find(name);
    return found == names_.end() ? kNoInstance : found->second;
}

std::vector<InstanceId> Scheduler::instances() const {
    std::vector<InstanceId> ids;
    for (InstanceId id = 0; id < instances_.size(); ++id) {
        if (instances_[id]) ids.push_back(id);
    }
    return ids;
}

void Scheduler::instance_failed(InstanceId id, Time now) {
    if (find(id) != nullptr) at(id).breaker.failed(now);
}

void Scheduler::instance_succeeded(InstanceId id) {
    if (find(id) != nullptr) at(id).breaker.succeeded();
}

void Scheduler::instance_answered(InstanceId id, Time now) {
    if (find(id) != nullptr) at(id).breaker.answered(now);
}

void Scheduler::pair_failed(InstanceId prefill, InstanceId decode, Time now) {
    if (find(prefill) == nullptr || find(decode) == nullptr) return;
    pairs_.try_emplace({prefill, decode}, options_.pair_breaker).first->second.failed(now);
}

void Scheduler::pair_succeeded(InstanceId prefill, InstanceId decode) { pairs_.erase({prefill, decode}); }

BreakerState Scheduler::pair_state(InstanceId prefill, InstanceId decode, Time now) const {
    const auto found = pairs_.find({prefill, decode});
    return found == pairs_.end() ? BreakerState::kClosed : found->second.state(now);
}

void Scheduler::free_if_gone(InstanceId id) {
    if (!instances_[id] || !instances_[id]->removed || instances_[id]->jobs > 0) return;
    cache_.remove_instance(id);
    std::erase_if(pairs_, [&](const auto& entry) { return entry.first.first == id || entry.first.second == id; });
    instances_[id].reset();
}

}  // namespace mooncake::conductor
