// SPDX-License-Identifier: Apache-2.0
#include "engine/link_table.h"

#include <algorithm>

namespace mooncake {

Result<std::shared_ptr<Link>> LinkTable::get(SegmentDescriptor descriptor, std::string rpc_address, const Need& need, Deadline deadline) {
    return find_or_connect(std::move(descriptor), std::move(rpc_address), need, nullptr, deadline);
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

std::shared_ptr<Link> LinkTable::find(const Life& life, const Need& need, const Transport* better_than) const {
    std::shared_ptr<Link> best;
    const auto rank = [](const Transport* transport) { return transport->capabilities().rank; };
    for (const auto& weak : life.links) {
        auto link = weak.lock();
        if (!link || !link->peer->usable() || !need.met_by(*link->transport)) continue;
        if (better_than != nullptr && rank(link->transport) >= rank(better_than)) continue;
        if (!best || rank(link->transport) < rank(best->transport)) best = std::move(link);
    }
    return best;
}

Result<std::shared_ptr<Link>> LinkTable::find_or_connect(SegmentDescriptor descriptor, std::string rpc_address, const Need& need,
                                                         const Transport* better_than, Deadline deadline) {
    const uint64_t incarnation = descriptor.incarnation.value;
    const PeerMemory::Ranges device_memory = std::exchange(descriptor.device_memory, {});
    std::shared_ptr<PeerMemory> memory;
    std::shared_ptr<Link> farther;  // made for bytes that a nearer transport does not carry; declared first, let go outside the lock
    {
        Lock lock(mutex_);
        for (;;) {
            Life& life = lives_[incarnation];
            if (std::exchange(memory, life.memory) != life.memory && better_than == nullptr) memory->replace(device_memory);
            farther = find(life, need, better_than);
            if (farther && router_.nearest(*farther, need)) return farther;
            if (!life.connecting) break;
            if (deadline.passed()) return fail(Code::kTimedOut, "still connecting");
            if (deadline.is_never()) changed_.wait(mutex_);
            else changed_.wait_until(mutex_, deadline.at());
        }
        Life& life = lives_[incarnation];
        life.links.reserve(life.links.size() + 1);  // for the new one; nobody else adds any meanwhile
        life.connecting = true;
    }
    if (farther) better_than = farther->transport;
    auto connected = [&] {
        try {
            return router_.connect(std::move(descriptor), std::move(rpc_address), need, deadline, better_than);
        } catch (...) {
            Lock lock(mutex_);
            connected_to(incarnation);
            throw;
        }
    }();
    Lock lock(mutex_);
    if (connected) {
        (*connected)->memory = std::move(memory);
        lives_[incarnation].links.push_back(*connected);
    }
    connected_to(incarnation);
    if (connected || !farther || connected.error().code() == Code::kStale) return connected;
    if (connected.error().code() != Code::kNotSupported && connected.error().code() != Code::kRefused) farther->second_best = true;
    return farther;
}

void LinkTable::connected_to(uint64_t incarnation) {
    lives_[incarnation].connecting = false;  // is there as long as somebody connects
    forget_ended();
    changed_.notify_all();
}

void LinkTable::forget_ended() {
    for (auto& [incarnation, life] : lives_) std::erase_if(life.links, [](const std::weak_ptr<Link>& link) { return link.expired(); });
    std::erase_if(lives_, [](const Lives::value_type& entry) { return entry.second.links.empty() && !entry.second.connecting; });
}

}  // namespace mooncake
