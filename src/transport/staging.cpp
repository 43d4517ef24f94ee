// SPDX-License-Identifier: Apache-2.0
#include "transport/staging.h"

#include <new>

#include "base/error_copy.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"

namespace mooncake {

void StagingSlots::release() noexcept {
    if (Staging* const owner = std::exchange(owner_, nullptr)) owner->give_back(std::move(slots_));
    slots_.clear();
}

Staging::Staging(const Devices& devices, std::string thread_name, Limits limits, DeviceBytes copied)
    : devices_(devices), thread_name_(std::move(thread_name)), limits_(limits), copied_(copied), birth_(fork_generation()) {
    made_.reserve(limits_.slots);
    free_.reserve(limits_.slots);
    threads_.reserve(limits_.threads);  // one that was started and found no place would have to be waited for
}

Staging::~Staging() {
    MC_CHECK(fork_generation() == birth_);
    std::vector<std::jthread> threads;
    {
        Lock lock(mutex_);
        threads.swap(threads_);
    }
    for (std::jthread& thread : threads) thread.request_stop();
    threads.clear();
    Lock lock(mutex_);
    MC_CHECK(ready_.empty() && waiting_.empty() && free_.size() == made_.size());
    for (const Made& made : made_) {
        if (made.device != nullptr) made.device->free_host(made.memory);
        else ::operator delete (made.memory, std::align_val_t{4096});
    }
}

size_t Staging::slots_made() const {
    Lock lock(mutex_);
    return made_.size();
}

size_t Staging::slots_free() const {
    Lock lock(mutex_);
    return free_.size();
}

StagingSlots Staging::try_take(size_t count) noexcept {
    StagingSlots slots;
    try {
        slots.slots_.reserve(count);
    } catch (const std::bad_alloc&) {
        return slots;
    }
    Lock lock(mutex_);
    if (count == 0 || free_.size() < count || !waiting_.empty()) return slots;
    slots.slots_.assign(free_.end() - static_cast<ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    slots.owner_ = this;
    return slots;
}

Result<> Staging::post(std::shared_ptr<StagingTask> task) {
    MC_CHECK(task->slots_wanted <= limits_.slots);
    task->slots.slots_.reserve(task->slots_wanted);
    Lock lock(mutex_);
    if (threads_.size() < limits_.threads && idle_ == 0) {
        auto thread = try_start_thread(thread_name_, [this](std::stop_token stop) { run(std::move(stop)); });
        if (thread) threads_.push_back(std::move(*thread));
        else if (threads_.empty()) return Unexpected(std::move(thread).error());
    }
    (task->slots_wanted > 0 ? waiting_ : ready_).push_back(std::move(task));
    work_.notify_one();
    return {};
}

bool Staging::withdraw(const StagingTask& task) {
    Lock lock(mutex_);
    for (auto* const queue : {&ready_, &waiting_}) {
        const auto found = std::find_if(queue->begin(), queue->end(), [&](const auto& one) { return one.get() == &task; });
        if (found == queue->end()) continue;
        queue->erase(found);
        if (!waiting_.empty()) work_.notify_one();  // the next of them may need less
        return true;
    }
    return false;
}

void Staging::give_back(std::vector<std::byte*> slots) noexcept {
    Lock lock(mutex_);
    free_.insert(free_.end(), slots.begin(), slots.end());  // there is room for all
    if (!waiting_.empty()) work_.notify_one();
}

std::shared_ptr<StagingTask> Staging::next(size_t& missing) {
    missing = 0;
    std::shared_ptr<StagingTask> task;
    if (!ready_.empty()) {
        task = std::move(ready_.front());
        ready_.pop_front();
        return task;
    }
    if (waiting_.empty()) return nullptr;
    const size_t wanted = waiting_.front()->slots_wanted, here = std::min(wanted, free_.size());
    if (wanted - here > limits_.slots - made_.size() - making_) return nullptr;
    task = std::move(waiting_.front());
    waiting_.pop_front();
    missing = wanted - here;
    making_ += missing;
    task->slots.slots_.assign(free_.end() - static_cast<ptrdiff_t>(here), free_.end());
    free_.resize(free_.size() - here);
    task->slots.owner_ = this;
    return task;
}

Result<std::byte*> Staging::make_slot(MemoryKind kind) {
    Device* device = devices_.of(kind);
    if (device == nullptr) return fail(Code::kNotSupported, "nothing here copies {} memory", to_string(kind));
    std::byte* memory = nullptr;
    auto pinned = device->allocate_host(StagingSlots::kBytes);
    if (pinned) {
        memory = *pinned;
    } else {
        // As Devices::copy(): what failed is a device of this process, and no peer or link is to blame.
        if (pinned.error().code() != Code::kNotSupported)
            return Unexpected(Error(pinned.error().code() == Code::kNoSpace ? Code::kNoSpace : Code::kInvalidArgument,
                                    format_text("no pinned host memory: {}", pinned.error().message())));
        device = nullptr;
        memory = static_cast<std::byte*>(::operator new (StagingSlots::kBytes, std::align_val_t{4096}, std::nothrow));
        if (memory == nullptr) return Unexpected(out_of_memory());
    }
    Lock lock(mutex_);
    --making_;
    made_.push_back({.memory = memory, .device = device});
    return memory;
}

void Staging::make_missing(StagingTask& task, size_t missing) noexcept {
    for (; missing > 0; --missing) {
        auto slot = contained([&] { return make_slot(task.kind); });
        if (slot) {
            task.slots.slots_.push_back(*slot);
            continue;
        }
        task.trouble = std::move(slot).error();
        {
            Lock lock(mutex_);
            making_ -= missing;
        }
        return task.slots.release();
    }
}

void Staging::run(std::stop_token stop) {
    mutex_.lock();
    while (!stop.stop_requested()) {
        size_t missing = 0;
        std::shared_ptr<StagingTask> task = next(missing);
        if (task == nullptr) {
            ++idle_;
            work_.wait(mutex_, stop, [this]() MC_REQUIRES(mutex_) {
                return !ready_.empty() ||
                       (!waiting_.empty() && waiting_.front()->slots_wanted <= free_.size() + limits_.slots - made_.size() - making_);
            });
            --idle_;
            continue;
        }
        mutex_.unlock();
        if (missing > 0) make_missing(*task, missing);
        task->slots_wanted = 0;
        task->run();
        task.reset();
        mutex_.lock();
    }
    mutex_.unlock();
}

}  // namespace mooncake
