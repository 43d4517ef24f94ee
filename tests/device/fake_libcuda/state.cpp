// SPDX-License-Identifier: Apache-2.0
#include "state.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

extern char** environ;

namespace fake {

thread_local std::vector<abi::Context> context_stack;
thread_local int capture_mode = abi::kCaptureGlobal;
thread_local int application_depth = 0;

namespace {

std::string variable(const std::string& name) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        if (text.starts_with(name + "=")) return text.substr(name.size() + 1);
    }
    return {};
}

/// "cuMemAlloc_v2:1:2,cuMemFree_v2:3:1": the first call of one answers 2, the third of the other 1.
std::vector<Fault> parse_faults(const std::string& text) {
    std::vector<Fault> faults;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string one = text.substr(at, end - at);
        const size_t first = one.find(':'), second = one.rfind(':');
        if (first != std::string::npos && second > first)
            faults.push_back({one.substr(0, first), std::atoi(one.c_str() + first + 1), std::atoi(one.c_str() + second + 1)});
        at = end + 1;
    }
    return faults;
}

State* made = nullptr;

/// A child can ask for counts whatever the threads of its parent were doing.
void lock_for_fork() {
    made->gate_mutex.lock();
    made->mutex.lock();
}
void unlock_after_fork() {
    made->mutex.unlock();
    made->gate_mutex.unlock();
}

State* make_state() {
    made = new State;  // never destroyed: threads may call while the process ends
    if (::pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork) != 0) std::abort();
    const std::string devices = variable("FAKE_CUDA_DEVICES");
    const int number = devices.empty() ? 1 : std::atoi(devices.c_str());
    for (int i = 0; i < number; ++i) made->devices.push_back(make_device(i));
    made->peers = variable("FAKE_CUDA_PEER") != "0";
    made->ipc_status = std::atoi(variable("FAKE_CUDA_IPC_ERROR").c_str());
    made->delay_us = static_cast<uint64_t>(std::atoll(variable("FAKE_CUDA_DELAY_US").c_str()));
    made->faults = parse_faults(variable("FAKE_CUDA_FAIL"));
    return made;
}

/// Whether a call of any name is counted. How often in a row it is asked whether something is over depends on how fast that is: the first questions
/// stand for all.
bool counts_as_any(State& s, const std::string& name) {
    s.same_in_a_row = name == s.last_name ? s.same_in_a_row + 1 : 1;
    s.last_name = name;
    return s.same_in_a_row <= 3 || !name.ends_with("Query");
}

Status injected(State& s, const std::string& name) {
    const bool any = counts_as_any(s, name);
    for (auto fault = s.faults.begin(); fault != s.faults.end(); ++fault) {
        if ((fault->name == "*" ? !any : fault->name != name) || --fault->nth > 0) continue;
        const Status status = fault->status;
        s.faults.erase(fault);
        count("faults");
        count("failed:" + name);
        return status;
    }
    return abi::kSuccess;
}

}  // namespace

std::unique_ptr<Device> make_device(int number) {
    auto device = std::make_unique<Device>();
    device->primary.device = number;
    device->attributes = {{16, 132}, {40, 3},  {41, 1},    {75, 9},  {76, 0},  {88, 0},  {91, 1}, {102, 1},
                          {103, 1},  {110, 1}, {118, 100}, {122, 1}, {124, 0}, {125, 1}, {128, 0}};
    return device;
}

State& state() {
    static State& only = *make_state();
    return only;
}

void count(const std::string& what, uint64_t by) { state().counts[what] += by; }

bool is_sticky(Status status) {
    return std::find(abi::kStickyErrors.begin(), abi::kStickyErrors.end(), status) != abi::kStickyErrors.end();
}

Call::Call(const char* name, Needs needs, bool unsafe) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const bool ours = application_depth == 0;
    if (s.initialized && ::getpid() != s.process) {
        count("in_child");
        status = abi::kNotInitialized;
        return;
    }
    if (ours) {
        count("calls");
        count(std::string("calls:") + name);
        if (s.ended) count("after_end");
        if (unsafe && capture_mode != abi::kCaptureRelaxed) count("unrelaxed");
        status = injected(s, name);
        if (status == abi::kDeinitialized) s.ended = true;
    }
    if (status == abi::kSuccess && unsafe && s.capture_global && capture_mode != abi::kCaptureRelaxed) {
        s.capture_broken = true;
        status = abi::kCaptureUnsupported;
    }
    if (status != abi::kSuccess) {
        if (is_sticky(status) && !context_stack.empty() && context_stack.back() != nullptr)
            s.devices[static_cast<size_t>(context_stack.back()->device)]->poison = status;
        return;
    }
    if (s.ended && ours) {
        status = abi::kDeinitialized;
        return;
    }
    if (needs == Needs::kNothing) return;
    if (!s.initialized) {
        status = abi::kNotInitialized;
        return;
    }
    if (!context_stack.empty() && context_stack.back() != nullptr) {
        ordinal = context_stack.back()->device;
        device = s.devices[static_cast<size_t>(ordinal)].get();
    }
    if (needs != Needs::kContext) return;
    if (device == nullptr) status = abi::kInvalidContext;
    else if (device->poison != 0) {
        status = device->poison;
        if (ours) count("after_poison");
    }
}

// ---- memory behind addresses

std::atomic<uint64_t> physical_bytes{0};

Physical::~Physical() {
    if (alias != nullptr) physical_bytes -= length;
    if (alias != nullptr) ::munmap(alias, length);
    if (fd >= 0) ::close(fd);
}

std::shared_ptr<Physical> open_physical(int fd, uint64_t length, int device) {
    auto physical = std::make_shared<Physical>();
    physical->fd = fd;
    physical->length = length;
    physical->device = device;
    void* const alias = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (alias == MAP_FAILED) return nullptr;
    physical->alias = static_cast<std::byte*>(alias);
    physical_bytes += length;
    return physical;
}

std::shared_ptr<Physical> import_physical(int fd, uint64_t length, int device) {
    auto physical = open_physical(fd, length, device);
    if (physical != nullptr) ::close(std::exchange(physical->fd, -1));
    return physical;
}

std::shared_ptr<Physical> make_physical(uint64_t length, int device) {
    if (state().memory_max != 0 && physical_bytes + length > state().memory_max) return nullptr;
    const int fd = ::memfd_create("fake-gpu", MFD_CLOEXEC);
    if (fd < 0) return nullptr;
    if (::ftruncate(fd, static_cast<off_t>(length)) != 0) {
        ::close(fd);
        return nullptr;
    }
    return open_physical(fd, length, device);
}

uint64_t reserve_addresses(uint64_t length, uint64_t alignment, uint64_t wanted) {
    const uint64_t extra = alignment > 4096 ? alignment : 0;
    void* const found = ::mmap(reinterpret_cast<void*>(wanted), length + extra, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                               0);
    if (found == MAP_FAILED) return 0;
    const auto start = reinterpret_cast<uint64_t>(found);
    if (extra == 0) return start;
    const uint64_t aligned = (start + alignment - 1) / alignment * alignment;
    if (aligned > start) ::munmap(found, aligned - start);
    if (const uint64_t end = start + length + extra; end > aligned + length)
        ::munmap(reinterpret_cast<void*>(aligned + length), end - aligned - length);
    return aligned;
}

namespace {

template <typename Map>
typename Map::iterator holder(Map& map, uint64_t address) {
    const auto next = map.upper_bound(address);
    if (next == map.begin()) return map.end();
    const auto found = std::prev(next);
    return address - found->first < found->second.length ? found : map.end();
}

}  // namespace

std::map<uint64_t, Mapping>::iterator mapping_at(uint64_t address) { return holder(state().mappings, address); }
std::map<uint64_t, Pinned>::iterator pinned_at(uint64_t address) { return holder(state().pinned, address); }

}  // namespace fake
