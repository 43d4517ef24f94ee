// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ascend_options.h"
#include "base/thread_annotations.h"
#include "device/ascend/xfer_engine.h"
#include "transport/ascend/ports.h"
#include "transport/ascend/wire.h"

namespace mooncake::ascend {

/// Our engine of the library on one device: its port, its memory, its links. Thread-safe.
class Station {
public:
    struct Settings {
        std::shared_ptr<const Library> library;
        AscendOptions options;
        std::string host;
        int device = 0;
    };
    /// Takes a port and listens there. kUnavailable: no port of the device's window could be had; the text says what was tried. kNotSupported: the library refuses.
    static Result<std::unique_ptr<Station>> open(Settings settings);
    ~Station();

    EndpointRecord endpoint() const;
    int device() const noexcept { return settings_.device; }
    int physical() const noexcept { return physical_; }
    /// Whether links are left to the library.
    bool connects_by_itself() const noexcept { return auto_connect_; }

    /// Memory that peers may reach, and our own transfers use. Handles are of this class: they survive a restart.
    Result<uint64_t> add(uint64_t address, uint64_t length, bool host);
    /// Returns when no peer reaches it any more. `reached`: somebody may be linked who knows it, so that all links have to go.
    Result<> remove(uint64_t handle, bool reached);
    /// Ends everything. No call afterwards does anything.
    void shut_down();

    /// A link, for whoever owns it: an older owner's disconnect() does not end a newer one's. ALREADY_CONNECTED never comes: such a link is replaced.
    abi::Status connect(const std::string& peer, uint64_t owner);
    abi::Status disconnect(const std::string& peer, uint64_t owner);
    abi::Status transfer(const std::string& peer, bool write, const abi::Descriptions& parts, Duration timeout);
    abi::Status transfer_async(const std::string& peer, bool write, const abi::Descriptions& parts, XferEngine::Request& request);
    abi::Status poll(XferEngine::Request request, abi::TransferState& state);
    Error failure(const char* function, abi::Status status, const std::string& peer) const {
        return engine_.failure(function, status, peer);
    }

private:
    struct Memory {
        uint64_t address = 0, length = 0;
        bool host = false;
        void* handle = nullptr;
    };
    struct Link {
        Mutex mutex;  // held while it is made or ended
        uint64_t owner MC_GUARDED_BY(mutex) = 0;
    };

    explicit Station(Settings settings);
    Result<> listen();
    XferEngine::Options options(bool client_server) const;
    void restart() MC_REQUIRES(calls_);
    void cut_links();
    std::shared_ptr<Link> link(const std::string& peer);

    const Settings settings_;
    const int physical_;
    PortLease lease_;
    bool auto_connect_ = false, client_server_ = false;
    XferEngine engine_;
    // Shared by all calls of the library, which take it for their time; exclusive for ending and restarting it.
    mutable SharedMutex calls_;
    Mutex mutex_;
    std::map<uint64_t, Memory> memory_ MC_GUARDED_BY(mutex_);
    uint64_t next_handle_ MC_GUARDED_BY(mutex_) = 1;
    std::map<std::string, std::shared_ptr<Link>> links_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::ascend
