// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/access.h"
#include "transport/staging.h"
#include "transport/tcp/io_thread.h"
#include "transport/tcp/wire.h"

namespace mooncake::tcp {

/// What a connection at the target shares with the threads that copy for it. Thread-safe.
class DeviceGate {
public:
    DeviceGate(IoThread& io, IoThread::Token token) : io_(io), token_(token) {}

    /// False: closed. Otherwise leave() follows, and close() waits for it.
    bool enter();
    void leave();
    /// Has the connection look at its messages.
    void wake();
    /// From now on nothing is copied.
    void close();
    bool closed() const;
    bool copying() const;
    void wait_until_left() const;
    /// The connection is gone: nobody wakes it any more.
    void forget();

private:
    IoThread& io_;
    const IoThread::Token token_;
    mutable Mutex mutex_;
    mutable std::condition_variable_any left_;
    unsigned inside_ MC_GUARDED_BY(mutex_) = 0;
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    bool forgotten_ MC_GUARDED_BY(mutex_) = false;
};

/// A write or read of memory of a device at the target: its bytes pass through slots, from which the device copies behind the last byte of a write, or to
/// which it copies before the first of a read. Belongs to the thread that runs it until done(), then to the connection.
class DeviceMessage final : public StagingTask {
public:
    struct Means {
        AccessTable& access;
        Staging& staging;
        std::shared_ptr<DeviceGate> gate;
    };
    DeviceMessage(Means means, Access access, std::vector<AddressRange> ranges, MemoryKind device, uint32_t bytes);

    void run() noexcept override;

    /// Nobody else has it.
    bool done() const noexcept { return done_.load(std::memory_order_acquire); }
    /// Of a write: that it has its slots, and the next run() copies.
    void begin_copy() noexcept;
    uint32_t bytes() const noexcept { return bytes_; }
    Access access() const noexcept { return access_; }

    /// The outcome.
    Status status = Status::kOk;
    std::string text;

private:
    void copy();
    /// Of a read, before its Section, since who unregisters other memory need not wait for it. False: it took too long, or the connection is closed.
    bool wait_for_unnamed_work();

    Means means_;
    const Access access_;
    const std::vector<AddressRange> ranges_;
    const uint32_t bytes_;
    bool copies_;  // with the next run()
    std::atomic<bool> done_{false};
};

}  // namespace mooncake::tcp
