// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

// A stand-in for the libraries of CANN, for tests alone: no code of ours is in it, so that it can be wrong in its own ways only. One source for all
// tiers; a version script per tier hides what that one does not have. Built with the old string ABI, as the vendor's libraries are.
#define EMU_API extern "C" __attribute__((visibility("default")))

namespace emu {

using Clock = std::chrono::steady_clock;

/// 82, 85, 90, 91, 92.
int tier();
/// A variable of the environment, as the vendor's libraries read it.
std::string setting(const char* name, const std::string& otherwise);

// ---- devices, contexts, memory

struct Context {
    int device = 0;
};
Context* current();

int devices();
int logical_of(int device);
int physical_of(int device);

enum class Place : uint8_t { kUnregistered, kHost, kDevice };
struct Found {
    Place place = Place::kUnregistered;
    int device = -1;
    std::byte* usable = nullptr;  // where a CPU may touch it
    bool inside = true;           // all of it lies in one allocation
    uint32_t numa = 0;
};
/// What lies there. Memory that is not the runtime's is unregistered, and used as it is.
Found find(const void* address, size_t length);
/// Copies as the hardware would. False: some of it is not mapped.
bool move_bytes(void* to, const void* from, size_t length);

/// Takes part in a copy while it lives: memory is not freed under it.
std::unique_lock<std::mutex> no_frees();

// ---- faults and the log of calls

struct Verdict {
    std::optional<long> answer;  // instead of what the function would do
    bool waiting = false;        // stay WAITING
    bool drop_link = false;
    long corrupt = 0;      // so many bytes
    long stop_after = -1;  // bytes
};
/// Every function calls it first: logs the call, delays or hangs as a rule says. `ended`: a hang is over when it says so.
Verdict enter(const char* function, const std::string& peer = "", const std::function<bool()>& ended = {});

}  // namespace emu
