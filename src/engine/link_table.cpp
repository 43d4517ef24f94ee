// SPDX-License-Identifier: Apache-2.0
#include "engine/link_table.h"

#include <algorithm>

namespace mooncake {

Result<std::shared_ptr<Link>> LinkTable::get(SegmentDescriptor descriptor, std::string rpc_address, const Unfit& unfit, Deadline deadline) {
    return find_or_connect(std::move(descriptor), std::move(rpc_address), unfit, nullptr, deadline);
}

Result<std::shared_ptr<Link>> LinkTable::better(const Link& current, Deadline deadline) {
    return find_or_connect(current.descriptor, current.rpc_address, {}, current.transport, deadline);
}

std::vector<std::shared_ptr<Link>> LinkTable::all() {
    std::vector<std::shared_ptr<Link>> held;
    Lock lock(mutex_);
    for (const auto& [incarnation, life] : lives_)
        for (const auto& weak : life.links)
            if (auto link = weak.lock()) held.push_back(std::move(link));
    return held;
}

std::shared_ptr<Link> LinkTable::find(const Life& life, const Unfit& unfit, const Transport* better_than) const {
    std::shared_ptr<Link> best;
    const auto rank = [](const Transport* transport) { return transport->capabilities().rank; };
    for (const auto& weak : life.links) {
        auto link = weak.lock();
        if (!link || !link->peer->usable() || std::find(unfit.begin(), unfit.end(), link->transport) != unfit.end()) continue;
        if (better_than != nullptr && rank(link->transport) >= rank(better_than)) continue;
        if (!best || rank(link->transport) < rank(best->transport)) best = std::move(link);
    }
    return best;
}

Result<std::shared_ptr<Link>> LinkTable::find_or_connect(SegmentDescriptor descriptor, std::string rpc_address, const Unfit& unfit,
                                                         const Transport* better_than, Deadline deadline) {
    const uint64_t incarnation = descriptor.incarnation.value;
    {
        Lock lock(mutex_);
        for (;;) {
            Life& life = lives_[incarnation];
            if (auto link = find(life, unfit, better_than)) return link;
            if (!life.connecting) break;
            if (deadline.passed()) return fail(Code::kTimedOut, "still connecting");
            if (deadline.is_never()) changed_.wait(mutex_);
            else changed_.wait_until(mutex_, deadline.at());
        }
        lives_[incarnation].connecting = true;
    }
    auto connected = router_.connect(std::move(descriptor), std::move(rpc_address), unfit, deadline, better_than);
    Lock lock(mutex_);
    Life& life = lives_[incarnation];
    life.connecting = false;
    if (connected) life.links.push_back(*connected);
    forget_ended();
    changed_.notify_all();
    return connected;
}

void LinkTable::forget_ended() {
    for (auto& [incarnation, life] : lives_) std::erase_if(life.links, [](const std::weak_ptr<Link>& link) { return link.expired(); });
    std::erase_if(lives_, [](const Lives::value_type& entry) { return entry.second.links.empty() && !entry.second.connecting; });
}

}  // namespace mooncake
