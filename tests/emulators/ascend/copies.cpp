// SPDX-License-Identifier: Apache-2.0
// Streams and copies, with the rules of the runtime.
#include <cstring>

#include "tests/emulators/ascend/state.h"

using namespace emu;  // NOLINT(google-build-using-namespace): the functions below have no namespace

namespace {

constexpr int kNone = 0, kParam = 107000, kContextNull = 107002, kStreamContext = 107003, kTimeout = 507046, kFailure = 500001;
constexpr int kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3;

struct Stream {
    Context* context = nullptr;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<int()>> work;
    bool busy = false, stop = false;
    int error = 0;
    std::thread thread;

    void run() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return stop || !work.empty(); });
            if (work.empty()) return;
            const auto one = std::move(work.front());
            work.pop_front();
            busy = true;
            lock.unlock();
            const int status = one();
            lock.lock();
            busy = false;
            if (status != kNone && error == kNone) error = status;
            changed.notify_all();
        }
    }
};

bool fits(int kind, const Found& to, const Found& from) {
    const bool device_to = kind == kHostToDevice || kind == kDeviceToDevice;
    const bool device_from = kind == kDeviceToHost || kind == kDeviceToDevice;
    return device_to == (to.place == Place::kDevice) && device_from == (from.place == Place::kDevice);
}

int copy_now(void* to, size_t room, const void* from, size_t length, int kind) {
    if (to == nullptr || from == nullptr || length == 0 || length > room || kind < 0 || kind > 3) return kParam;
    const auto lock = no_frees();
    const Found there = find(to, length), here = find(from, length);
    if (!there.inside || !here.inside || !fits(kind, there, here)) return kParam;
    return move_bytes(there.usable, here.usable, length) ? kNone : kFailure;
}

}  // namespace

#define ENTER(name) \
    if (const auto verdict = enter(#name); verdict.answer) return static_cast<int>(*verdict.answer)

EMU_API int aclrtCreateStreamWithConfig(void** stream, uint32_t, uint32_t) {
    ENTER(aclrtCreateStreamWithConfig);
    if (current() == nullptr) return kContextNull;
    auto* const made = new Stream;
    made->context = current();
    made->thread = std::thread([made] { made->run(); });
    *stream = made;
    return kNone;
}

EMU_API int aclrtDestroyStream(void* stream) {
    ENTER(aclrtDestroyStream);
    auto* const gone = static_cast<Stream*>(stream);
    {
        const std::lock_guard<std::mutex> lock(gone->mutex);
        gone->stop = true;
        gone->changed.notify_all();
    }
    gone->thread.join();
    delete gone;
    return kNone;
}

EMU_API int aclrtSynchronizeStreamWithTimeout(void* stream, int32_t milliseconds) {
    ENTER(aclrtSynchronizeStreamWithTimeout);
    auto* const waited = static_cast<Stream*>(stream);
    if (waited->context != current()) return kStreamContext;
    std::unique_lock<std::mutex> lock(waited->mutex);
    const auto over = [waited] { return waited->work.empty() && !waited->busy; };
    if (milliseconds < 0) waited->changed.wait(lock, over);
    else if (!waited->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), over)) return kTimeout;
    const int error = waited->error;
    waited->error = kNone;
    return error;
}

EMU_API int aclrtStreamAbort(void* stream) {
    ENTER(aclrtStreamAbort);
    auto* const ended = static_cast<Stream*>(stream);
    std::unique_lock<std::mutex> lock(ended->mutex);
    ended->work.clear();
    ended->changed.wait(lock, [ended] { return !ended->busy; });
    ended->error = kNone;
    return kNone;
}

EMU_API int aclrtMemcpy(void* to, size_t room, const void* from, size_t length, int kind) {
    ENTER(aclrtMemcpy);
    if (current() == nullptr) return kContextNull;
    return copy_now(to, room, from, length, kind);
}

EMU_API int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t length, int kind, void* stream) {
    ENTER(aclrtMemcpyAsync);
    auto* const on = static_cast<Stream*>(stream);
    if (current() == nullptr) return kContextNull;
    if (on->context != current()) return kStreamContext;
    if (to == nullptr || from == nullptr || length == 0 || length > room) return kParam;
    const std::lock_guard<std::mutex> lock(on->mutex);
    on->work.emplace_back([=] {
        const auto verdict = enter("stream");
        return verdict.answer ? static_cast<int>(*verdict.answer) : copy_now(to, room, from, length, kind);
    });
    on->changed.notify_all();
    return kNone;
}

struct BatchAttribute {
    uint32_t to_id, to_type, from_id, from_type;
    uint8_t reserved[16];
};

EMU_API int aclrtMemcpyBatch(void** to, size_t* rooms, void** from, size_t* lengths, size_t count, BatchAttribute* attributes,
                             size_t* indices, size_t attribute_count, size_t* failed) {
    *failed = SIZE_MAX;
    ENTER(aclrtMemcpyBatch);
    if (current() == nullptr) return kContextNull;
    if (count < 1 || count > 4096 || attribute_count < 1 || attribute_count > count || indices[0] != 0) return kParam;
    for (size_t i = 1; i < attribute_count; ++i)
        if (indices[i] <= indices[i - 1] || indices[i] >= count) return kParam;
    const bool up = attributes[0].to_type == 1 && attributes[0].from_type != 1;
    const bool down = attributes[0].to_type != 1 && attributes[0].from_type == 1;
    if (!up && !down) return kParam;
    for (size_t i = 0; i < attribute_count; ++i)
        if ((attributes[i].to_type == 1) != up || (attributes[i].from_type == 1) != down) return kParam;
    // In no particular order.
    for (size_t i = count; i-- > 0;) {
        const int status = copy_now(to[i], rooms[i], from[i], lengths[i], up ? kHostToDevice : kDeviceToHost);
        if (status == kNone) continue;
        *failed = i;
        return status;
    }
    return kNone;
}
