// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/host_pins.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/thread.h"

namespace mooncake::cuda {

HostPins::HostPins(Driver& driver, uint64_t bytes_max, uint64_t chunk_bytes)
    : driver_(driver), bytes_max_(bytes_max), chunk_bytes_(chunk_bytes), birth_(fork_generation()) {}

HostPins::~HostPins() {
    if (in_child()) return;
    std::jthread ended;
    {
        Lock lock(mutex_);
        MC_CHECK(offers_.empty());
        ended = std::move(thread_);
    }
}

bool HostPins::in_child() const noexcept { return fork_generation() != birth_; }

uint64_t HostPins::length_of(const Offer& offer, size_t chunk) const noexcept {
    return std::min(chunk_bytes_, offer.length - chunk * chunk_bytes_);
}

uint64_t HostPins::pinned_bytes() const {
    Lock lock(mutex_);
    return pinned_;
}

void HostPins::offer(std::byte* start, uint64_t length) {
    if (in_child() || bytes_max_ == 0 || length == 0) return;
    Offer offer{.length = length};
    offer.chunks.resize(static_cast<size_t>((length + chunk_bytes_ - 1) / chunk_bytes_));
    Lock lock(mutex_);
    offers_.emplace(reinterpret_cast<uint64_t>(start), std::move(offer));
}

void HostPins::take_back(std::byte* start) noexcept {
    if (in_child()) return;
    const auto address = reinterpret_cast<uint64_t>(start);
    Offer gone;
    std::jthread ended;
    {
        Lock lock(mutex_);
        const auto found = offers_.find(address);
        if (found == offers_.end()) return;
        std::erase_if(queue_, [&](const Wanted& wanted) { return wanted.start == address; });
        const auto busy = [](const Chunk& chunk) { return chunk.state == State::kPinning; };
        while (std::any_of(found->second.chunks.begin(), found->second.chunks.end(), busy)) changed_.wait(mutex_);
        gone = std::move(found->second);
        offers_.erase(found);
        // Nobody waits for it at the end of the process: then there is none.
        if (offers_.empty()) ended = std::move(thread_);
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < gone.chunks.size(); ++i) {
        if (gone.chunks[i].state != State::kPinned) continue;
        unpin(address + i * chunk_bytes_, gone.device);
        bytes += length_of(gone, i);
    }
    Lock lock(mutex_);
    pinned_ -= bytes;
    claimed_ -= bytes;
}

void HostPins::want(uint64_t address, uint64_t length, int device) {
    if (in_child() || bytes_max_ == 0) return;
    Lock lock(mutex_);
    const auto next = offers_.upper_bound(address);
    if (next == offers_.begin()) return;
    const uint64_t start = std::prev(next)->first;
    Offer& offer = std::prev(next)->second;
    if (address - start >= offer.length) return;
    offer.device = device;
    const uint64_t end = std::min(offer.length, address - start + length);
    bool any = false;
    for (auto chunk = static_cast<size_t>((address - start) / chunk_bytes_); chunk * chunk_bytes_ < end; ++chunk) {
        if (offer.chunks[chunk].state != State::kIdle || Clock::now() < offer.chunks[chunk].not_before) continue;
        offer.chunks[chunk].state = State::kWanted;
        queue_.push_back({.start = start, .chunk = chunk});
        any = true;
    }
    if (!any) return;
    changed_.notify_all();
    if (thread_.joinable()) return;
    try {
        thread_ = start_thread("mc-cuda-pin", [this](const std::stop_token& stop) { run(stop); });
    } catch (const std::system_error& exception) {
        MC_LOG_WARNING_EVERY(60s, "no thread to pin memory: {}", exception.what());
    }
}

void HostPins::run(const std::stop_token& stop) {
    for (;;) {
        uint64_t address = 0, length = 0;
        int device = 0;
        Wanted next;
        {
            Lock lock(mutex_);
            const auto work = [this]() MC_REQUIRES(mutex_) { return !queue_.empty(); };
            if (!changed_.wait(mutex_, stop, work) || stop.stop_requested()) return;
            next = queue_.front();
            queue_.pop_front();
            Offer& offer = offers_.find(next.start)->second;  // it goes together with what is wanted of it
            offer.chunks[next.chunk].state = State::kPinning;
            address = next.start + next.chunk * chunk_bytes_;
            length = length_of(offer, next.chunk);
            device = offer.device;
        }
        const Chunk outcome = pin(address, length, device);
        Lock lock(mutex_);
        offers_.find(next.start)->second.chunks[next.chunk] = outcome;
        if (outcome.state == State::kPinned) pinned_ += length;
        changed_.notify_all();
    }
}

HostPins::Chunk HostPins::pin(uint64_t address, uint64_t length, int device) {
    const auto later = [](Duration pause) { return Chunk{.state = State::kIdle, .not_before = Clock::now() + pause}; };
    if (!has_all_pages(address, length)) return later(kLookAgain);
    {
        Lock lock(mutex_);
        if (length > bytes_max_ - std::min(claimed_, bytes_max_)) return later(kAskAgain);
        claimed_ += length;
    }
    abi::Status status = abi::kNotSupported;
    if (const auto scope = Scope::enter(driver_, device);
        scope && (*scope)->host_register != nullptr && (*scope)->host_unregister != nullptr)
        status = (*scope)->host_register(reinterpret_cast<void*>(address), length, abi::kHostPortable | abi::kHostDeviceMap);
    if (status == abi::kSuccess) return {.state = State::kPinned};
    {
        Lock lock(mutex_);
        claimed_ -= length;
    }
    if (status != abi::kNotSupported)
        MC_LOG_WARNING_EVERY(60s, "{} bytes of shared memory are not pinned: copies between them and GPUs take longer: {}", length,
                             driver_.failure(device, "cuMemHostRegister", status).message());
    return {.state = State::kLeftAlone};
}

bool HostPins::has_all_pages(uint64_t address, uint64_t length) {
    constexpr uint64_t kLeastPage = 4096, kStepBytes = 16 << 20;
    std::array<unsigned char, kStepBytes / kLeastPage> pages;
    for (uint64_t at = 0; at < length; at += kStepBytes) {
        const uint64_t now = std::min(kStepBytes, length - at);
        if (::mincore(reinterpret_cast<void*>(address + at), now, pages.data()) != 0) return false;
        const auto end = pages.begin() + static_cast<ptrdiff_t>((now + page_bytes() - 1) / page_bytes());
        if (!std::all_of(pages.begin(), end, [](unsigned char page) { return (page & 1) != 0; })) return false;
    }
    return true;
}

void HostPins::unpin(uint64_t address, int device) noexcept {
    // Where one GPU is lost, another gives it back: addresses that CUDA takes for pinned must not become those of other memory.
    for (int other = 0; driver_.dead(device) && other < Driver::kDevicesMax; ++other)
        if (driver_.in_use(other) && !driver_.dead(other)) device = other;
    if (driver_.dead(device) || driver_.silent()) return;  // with a driver that is going, or its last GPU, all of it goes
    const auto scope = Scope::enter(driver_, device);
    if (!scope) return;
    if (const abi::Status status = (*scope)->host_unregister(reinterpret_cast<void*>(address)); status != abi::kSuccess)
        MC_LOG_WARNING_EVERY(60s, "{}", driver_.failure(device, "cuMemHostUnregister", status).message());
}

}  // namespace mooncake::cuda
