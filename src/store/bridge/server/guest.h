// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/gate.h"
#include "base/shared_memory.h"
#include "base/thread_annotations.h"
#include "net/socket.h"
#include "store/bridge/frame.h"
#include "store/bridge/messages.h"
#include "store/process/store_client.h"

namespace mooncake::store::bridge {

/// Memory that a client shares with its node: mapped and registered here until close().
class Entry {
public:
    /// kRefused: a file that is not as long as told, or that its owner could cut; kNoSpace.
    static Result<std::shared_ptr<Entry>> create(StoreClient& node, MemoryFile file, uint64_t length);
    Entry(StoreClient& node, Mapping mapping) : node_(node), mapping_(std::move(mapping)) {}
    ~Entry() { close(); }

    uint64_t length() const noexcept { return mapping_.length(); }
    /// While a call has the pass, the memory stays. Empty: it is going.
    Gate::Pass enter() noexcept { return gate_.enter(); }
    /// Null unless these bytes lie inside.
    std::byte* at(uint64_t offset, uint64_t length) const noexcept;
    /// Waits for the calls inside, then lets go of the memory.
    void close();

private:
    StoreClient& node_;
    Gate gate_;
    Mapping mapping_;
    Mutex mutex_;
    bool closed_ MC_GUARDED_BY(mutex_) = false;
};

/// One thin client, as its node sees it: what it shares, its sessions, and its calls, which the node's own client carries out. Thread-safe. When it goes,
/// everything of it goes.
class Guest {
public:
    struct Limits {
        uint64_t memory_max = UINT64_MAX;  // bytes that it may share
    };
    Guest(StoreClient& node, BootId boot, net::Socket socket, Limits limits);

    int fd() const noexcept { return socket_.fd(); }
    /// Carries the request out and answers it. False: what it says makes no sense, or it does not read its answers.
    bool serve(Frame frame);
    /// Sends what waits for the socket. False: it is gone.
    bool flush();
    bool wants_to_send() const noexcept { return unsent_.load(std::memory_order_acquire); }

private:
    struct Call;  // of guest_calls.cpp

    Reply run(Kind kind, const ReceivedRequest& request, MemoryFile file);
    Reply run_with_memory(Kind kind, const ReceivedRequest& request);
    StoreCode map(const SharedPiece& piece, MemoryFile file);
    StoreCode unmap(uint32_t number);
    std::shared_ptr<Entry> entry(uint32_t number);
    bool answer(const Head& request, Kind kind, std::vector<std::byte> body);

    static constexpr uint64_t kUnsentBytesMax = 16 << 20;

    StoreClient& node_;
    const BootId boot_;
    const Limits limits_;
    const net::Socket socket_;
    std::atomic<uint64_t> table_version_{0};
    SharedMutex entries_mutex_;
    std::map<uint32_t, std::shared_ptr<Entry>> entries_ MC_GUARDED_BY(entries_mutex_);
    uint64_t shared_bytes_ MC_GUARDED_BY(entries_mutex_) = 0;
    const std::unique_ptr<PartSessions> sessions_;

    struct Unsent {
        Head head;
        std::vector<std::byte> body;
    };
    std::atomic<bool> unsent_{false};
    Mutex out_mutex_;
    std::deque<Unsent> out_ MC_GUARDED_BY(out_mutex_);
    uint64_t out_bytes_ MC_GUARDED_BY(out_mutex_) = 0;
};

}  // namespace mooncake::store::bridge
