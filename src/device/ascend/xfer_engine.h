// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "device/ascend/library.h"

namespace mooncake::ascend {

/// One engine of the vendor's transfer library, on one device: the only way to it, whichever of ADXL and HIXL it is. Calls put the engine's context on
/// the thread for as long as they last. Thread-safe as the library is: any calls at once, but nothing beside open() and close().
class XferEngine {
public:
    using Options = std::map<std::string, std::string>;  // by their names in ADXL
    using Request = void*;

    XferEngine(std::shared_ptr<const Library> library, int device) : library_(std::move(library)), device_(device) {}
    /// Closes it.
    ~XferEngine() { close(); }
    XferEngine(const XferEngine&) = delete;
    XferEngine& operator=(const XferEngine&) = delete;

    /// Listens as `name` ("ip:port"). May be called again after close(), or after it failed.
    Result<> open(const std::string& name, const Options& options);
    /// Ends all links and whatever moves over them.
    void close();
    bool is_open() const noexcept { return object_ != nullptr; }
    const std::string& name() const noexcept { return name_; }
    int device() const noexcept { return device_; }
    const Library& library() const noexcept { return *library_; }

    Result<void*> add(uint64_t address, uint64_t length, bool host);
    Result<> remove(void* handle);

    abi::Status connect(const std::string& peer, Duration timeout);
    abi::Status disconnect(const std::string& peer, Duration timeout);
    abi::Status transfer(const std::string& peer, bool write, const abi::Descriptions& parts, Duration timeout);
    abi::Status transfer_async(const std::string& peer, bool write, const abi::Descriptions& parts, Request& request);
    /// `state` is final unless it is abi::kWaiting; then the request is gone.
    abi::Status poll(Request request, abi::TransferState& state);

    /// What a call answered, in words; names library, function, code, device and peer. The code says whether another attempt may help.
    Error failure(const char* function, abi::Status status, const std::string& peer) const;

private:
    struct Closer {
        const Library* library;
        void operator()(abi::EngineObject* object) const;
    };
    using Object = std::unique_ptr<abi::EngineObject, Closer>;

    const std::shared_ptr<const Library> library_;
    const int device_;
    abi::Context context_ = nullptr;
    std::string name_;
    Object object_{nullptr, Closer{nullptr}};
};

/// "TIMEOUT", "NOT_CONNECTED"...
std::string_view status_name(abi::Status status) noexcept;

}  // namespace mooncake::ascend
