// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/transport.h"

namespace mooncake::testing {

/// What the fake peers of one test do. Shared by the test and the transport.
struct FakeScript {
    Mutex mutex;
    /// Outcome of each connect(); nothing set = success.
    std::function<Result<>()> on_connect;
    /// Outcome of each slice; nothing set = copied.
    std::function<Result<>(const Slice&)> on_slice;
    bool hold = false;  // slices wait for release()
    bool work_when_poked = false;
    bool withdraws = false;  // knows which slices are parts of a whole
    std::vector<Slice> held;
    Direction held_direction = Direction::kRead;
    Stopped on_cancel = Stopped::kEverywhere;
    std::function<void()> before_submit, before_cancel;
    std::set<Time> cancel_deadlines;
    std::function<void()> on_peer_end;
    std::atomic<int> connects{0}, submits{0}, cancels{0}, closes{0}, registrations{0}, revocations{0};
    std::atomic<bool> peers_usable{true};
    std::function<Result<>()> on_register, on_revoke, on_stop_serving;

    void release();
};

inline void finish_slice(FakeScript& script, Direction direction, const Slice& slice) {
    if (script.on_slice) {
        if (auto outcome = script.on_slice(slice); !outcome) return slice.completion->fail(outcome.error());
    }
    auto* const remote = reinterpret_cast<std::byte*>(slice.remote);
    if (direction == Direction::kWrite) std::memcpy(remote, slice.local, slice.length);
    else std::memcpy(slice.local, remote, slice.length);
    slice.completion->succeed(slice.length);
}

inline void FakeScript::release() {
    std::vector<Slice> slices;
    {
        Lock lock(mutex);
        slices.swap(held);
        hold = false;
    }
    for (const Slice& slice : slices) finish_slice(*this, held_direction, slice);
}

class FakePeer final : public Peer {
public:
    explicit FakePeer(FakeScript& script) : script_(script) {}
    ~FakePeer() override {
        if (script_.on_peer_end) script_.on_peer_end();
    }

    void submit(Direction direction, std::span<const Slice> slices, Submit) override {
        ++script_.submits;
        if (script_.before_submit) script_.before_submit();
        std::vector<Slice> copy;  // the owner may free them while we still loop
        try {
            copy.assign(slices.begin(), slices.end());
        } catch (const std::bad_alloc&) {
            return fail_slices(slices, out_of_memory());
        }
        {
            Lock lock(script_.mutex);
            if (script_.hold) {
                script_.held.insert(script_.held.end(), copy.begin(), copy.end());
                script_.held_direction = direction;
                return;
            }
        }
        for (const Slice& slice : copy) finish_slice(script_, direction, slice);
    }
    void poke() override {
        if (script_.work_when_poked) script_.release();
    }
    void withdraw(const Completion& whole, const Error& reason) override {
        if (script_.withdraws) fail_held(reason, &whole);
    }
    Stopped cancel(Completion& completion, const Error& reason, Deadline deadline) override {
        ++script_.cancels;
        {
            Lock lock(script_.mutex);
            script_.cancel_deadlines.insert(deadline.at());
        }
        if (script_.before_cancel) script_.before_cancel();
        fail_held(reason, &completion);
        return script_.on_cancel;
    }
    void close(const Error& reason) override {
        ++script_.closes;
        usable_ = false;
        fail_held(reason, nullptr);
    }
    bool usable() const noexcept override { return usable_ && script_.peers_usable; }

private:
    void fail_held(const Error& reason, const Completion* only) {
        std::vector<Slice> failed;
        {
            Lock lock(script_.mutex);
            std::vector<Slice> kept;
            for (const Slice& slice : script_.held)
                (only == nullptr || slice.completion->is_part_of(*only) ? failed : kept).push_back(slice);
            script_.held.swap(kept);
        }
        for (const Slice& slice : failed) slice.completion->fail(reason);
    }

    FakeScript& script_;
    std::atomic<bool> usable_{true};
};

class FakeRegistration final : public Registration {
public:
    explicit FakeRegistration(FakeScript& script) : script_(script) {}
    Result<> revoke(Deadline) override {
        ++script_.revocations;
        return script_.on_revoke ? script_.on_revoke() : Result<>();
    }

private:
    FakeScript& script_;
};

/// In-memory twin of a transport: remote addresses are addresses of this process.
class FakeTransport final : public Transport {
public:
    explicit FakeTransport(FakeScript& script, std::string_view name = "fake", Reach reach = Reach::kNetwork, int rank = 0,
                           KindPairs pairs = {})
        : script_(script), capabilities_{.name = name, .reach = reach, .rank = rank, .pairs = pairs} {}

    const Capabilities& capabilities() const noexcept override { return capabilities_; }
    std::string endpoint() const override { return "fake"; }
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion&) override {
        ++script_.registrations;
        if (script_.on_register) MC_RETURN_IF_ERROR(script_.on_register());
        return std::make_unique<FakeRegistration>(script_);
    }
    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor&, Deadline) override {
        ++script_.connects;
        if (script_.on_connect) MC_RETURN_IF_ERROR(script_.on_connect());
        return std::make_unique<FakePeer>(script_);
    }
    Result<> stop_serving(Deadline) override { return script_.on_stop_serving ? script_.on_stop_serving() : Result<>(); }

private:
    FakeScript& script_;
    const Capabilities capabilities_;
};

}  // namespace mooncake::testing
