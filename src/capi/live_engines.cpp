// SPDX-License-Identifier: Apache-2.0
#include "capi/live_engines.h"

#include <array>
#include <atomic>

#include "base/fork.h"

namespace mooncake::capi {

namespace {

// generation: even = free, odd = in use by the handle that carries it, kLeaving = being removed.
// `engine` and `birth` are written while the gate is closed and the generation is ours, and read inside the gate.
struct alignas(64) Slot {
    Gate gate;
    std::atomic<uint64_t> generation{0};
    Engine* engine = nullptr;
    uint32_t birth = 0;  // fork_generation() when added
};

constexpr uint64_t kLeaving = uint64_t{1} << 63;
constexpr unsigned kSlotBits = 8;
static_assert(kEnginesMax == 1U << kSlotBits);

// Never destroyed: other threads may still be in a call while the process exits.
constinit std::array<Slot, kEnginesMax> slots{};

Slot& slot_of(EngineHandle handle) noexcept { return slots[handle % kEnginesMax]; }
uint64_t generation_of(EngineHandle handle) noexcept { return handle >> kSlotBits; }
bool well_formed(EngineHandle handle) noexcept { return generation_of(handle) % 2 == 1; }

}  // namespace

Result<EngineHandle> add_engine(std::unique_ptr<Engine> engine) {
    for (size_t index = 0; index < slots.size(); ++index) {
        Slot& slot = slots[index];
        uint64_t generation = slot.generation.load(std::memory_order_relaxed);
        if (generation % 2 != 0 || (generation & kLeaving) != 0) continue;
        if (!slot.generation.compare_exchange_strong(generation, generation + 1, std::memory_order_acquire)) continue;
        slot.gate.close();  // open only in a slot that was never used; nobody stays inside without a valid handle
        slot.engine = engine.release();
        slot.birth = fork_generation();
        slot.gate.reopen();
        return ((generation + 1) << kSlotBits) | index;
    }
    return fail(Code::kNoSpace, "{} engines are alive in this process, no more are possible", slots.size());
}

EngineUse use_engine(EngineHandle handle) noexcept {
    if (!well_formed(handle)) return {};
    Slot& slot = slot_of(handle);
    // Cheap refusal of stale handles; the answer that counts is the one inside the gate.
    if (slot.generation.load(std::memory_order_relaxed) != generation_of(handle)) return {};
    Gate::Pass pass = slot.gate.enter();
    if (!pass || slot.generation.load(std::memory_order_relaxed) != generation_of(handle)) return {};
    if (slot.engine == nullptr || slot.birth != fork_generation()) return {};
    return EngineUse(std::move(pass), slot.engine);
}

bool engine_exists(EngineHandle handle) noexcept {
    if (!well_formed(handle)) return false;
    const Slot& slot = slot_of(handle);
    return (slot.generation.load(std::memory_order_acquire) & ~kLeaving) == generation_of(handle) && slot.birth == fork_generation();
}

bool remove_engine(EngineHandle handle) noexcept {
    if (!well_formed(handle)) return false;
    Slot& slot = slot_of(handle);
    uint64_t generation = generation_of(handle);
    if (!slot.generation.compare_exchange_strong(generation, generation | kLeaving, std::memory_order_acq_rel)) return false;
    // In a forked child the threads that used the engine are gone without having left the gate: the slot is lost, which is
    // harmless, and the engine's memory is left to the end of the process.
    if (slot.birth != fork_generation()) return false;
    slot.engine->close();  // ends the calls that other threads are in
    slot.gate.close();
    delete std::exchange(slot.engine, nullptr);
    slot.generation.store(generation + 1, std::memory_order_release);
    return true;
}

}  // namespace mooncake::capi
