// SPDX-License-Identifier: Apache-2.0
// Memory of the peer that is mapped or opened here: asking for it, waiting for it, giving it back.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/shm/shm_peer.h"

namespace mooncake::shm {

void ShmPeer::ask_for_memories() {
    // Until the answer is there, and if there is none, the kernel copies. Memory of a device costs the device, here and there, so only what
    // somebody uses is opened.
    size_t mapped = 0, opened = 0;
    for (auto& [number, memory] : memories_) {
        if (memory.device && !memory.wanted) continue;
        if (answers_due_ == kWantedMax) return;
        if (memory.device ? ++opened > kOpenedMax : ++mapped > kMemoriesMax) continue;
        if (memory.asked) continue;
        if (!send_message(link_.socket.fd(), {.kind = MessageKind::kWantMemory, .value = number})) return;
        memory.asked = true;
        ++answers_due_;
    }
}

/// Memory of a device of the peer's. Its end tells the owner, who waits for that before the memory is freed.
class ShmPeer::OpenedMemory final : public ReachedMemory {
public:
    OpenedMemory(Device& device, const MemoryInfo& info, const DeviceBytes& copied_bytes, ClosedMemories& closed, uint64_t number)
        : ReachedMemory(info.kind, reinterpret_cast<std::byte*>(info.base), info.length, copied_bytes), device_(device), closed_(closed),
          number_(ClosedMemories::prepare(number)) {}
    ~OpenedMemory() override {
        device_.close(reinterpret_cast<uint64_t>(address));
        closed_.add(std::move(number_));
    }

private:
    Device& device_;
    ClosedMemories& closed_;
    ClosedMemories::Prepared number_;
};

std::shared_ptr<const ReachedMemory> ShmPeer::reach_device(const Message& message, const MemoryTicket& ticket, const MemoryFile& file) {
    Device* const device = means_.devices.of(static_cast<MemoryKind>(message.address));
    auto info = device == nullptr ? Result<MemoryInfo>(fail(Code::kNotSupported, "no such device here")) : device->open(ticket, file);
    if (info)
        return std::make_shared<const OpenedMemory>(*device, *info, DeviceBytes(means_.metrics, device->way_of(ticket)), closed_,
                                                    message.value);
    if (!std::exchange(told_unreached_, true))
        MC_LOG_WARNING("memory of a device of process {} is not reached directly: {}", link_.pid, info.error().message());
    closed_.add(message.value);
    return nullptr;
}

void ShmPeer::take_memory(const Received& received) {
    auto reached = reach(received);
    Lock lock(refresh_mutex_);
    if (answers_due_ > 0) --answers_due_;
    ++answers_;
    const auto found = memories_.find(received.message.value);
    const bool device = found != memories_.end() && found->second.device;
    if (found != memories_.end()) {
        opened_some_ = opened_some_ || (reached != nullptr && reached->kind != MemoryKind::kHost);
        found->second.reached = std::move(reached);
        found->second.answered = true;
    }
    reached.reset();  // nobody names it any more
    if (device) {
        // Who waits for it may wait for many more, and looks when all of them are there.
        ask_for_memories();
        unseen_answers_ = true;
        closed_.tell(link_.socket.fd(), 0ms);
    } else {
        rebuild();
    }
    answered_.notify_all();
}

bool ShmPeer::await_devices(const CopyChunk& chunk, std::span<const size_t> slices) {
    constexpr Duration kLook = 20ms;  // at whether the connection is still there
    Lock lock(refresh_mutex_);
    std::vector<uint64_t> wanted;
    for (const size_t i : slices)
        view_.get().for_each_in({chunk.slices[i].remote, chunk.slices[i].length}, [&](const RegionView::Region& region) {
            if (region.device() && region.mapped == nullptr && region.memory != 0) wanted.push_back(region.memory);
        });
    const auto pending = [&](uint64_t number) MC_REQUIRES(refresh_mutex_) {
        const auto memory = memories_.find(number);
        return memory != memories_.end() && !memory->second.answered && (memory->second.asked || answers_due_ > 0);
    };
    for (const uint64_t number : wanted)
        if (const auto memory = memories_.find(number); memory != memories_.end()) memory->second.wanted = true;
    ask_for_memories();
    bool waited = false;
    uint64_t seen = answers_;
    for (Deadline end = Deadline::after(kOpenTime); usable() && !end.passed();) {
        while (!wanted.empty() && !pending(wanted.back())) wanted.pop_back();
        if (wanted.empty()) break;
        // Many take their time, and nothing is wrong while they come.
        if (std::exchange(seen, answers_) != answers_) end = Deadline::after(kOpenTime);
        answered_.wait_for(refresh_mutex_, kLook);
        waited = true;
    }
    if (unseen_answers_) rebuild();
    return waited;
}

Error ShmPeer::refused(const RegionView& view, const Slice& slice) {
    bool unreached = false, shared = false;
    view.for_each_in({slice.remote, slice.length}, [&](const RegionView::Region& region) {
        if (!region.device() || region.mapped != nullptr) return;
        unreached = true;
        shared = shared || region.memory != 0;
    });
    if (unreached) {
        // What is shared by a process that is just ending cannot be opened, either.
        constexpr int kLookMs = 20;
        if (shared && !alive(kLookMs)) return lost(0);
        return error(Code::kNotSupported, "remote memory at {:#x} is a device's, which this transport does not reach", slice.remote);
    }
    return error(Code::kNotRegistered, "remote range {:#x}+{} is not registered for this at the peer", slice.remote, slice.length);
}

}  // namespace mooncake::shm
