// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "export.h"

namespace mooncake::api {

/// The outcome of a call: a code to decide on and a text for people. A value; cheap to copy when ok.
class Status {
public:
    /// The positive numbers of the C interface.
    enum class Code : int {
        kOk = 0,
        kInvalidArgument = 1,
        kTooManyRequests = 2,
        kAddressNotRegistered = 3,
        kBatchBusy = 4,
        kDeviceNotFound = 6,
        kAddressOverlapped = 7,
        kNotSupportedTransport = 8,
        kDns = 101,
        kSocket = 102,
        kMalformedJson = 103,
        kRejectHandshake = 104,
        kMetadata = 200,
        kEndpoint = 201,
        kContext = 202,
        kNuma = 300,
        kClock = 301,
        kMemory = 302,
        kNotImplemented = 999,
    };

    Status() = default;  // ok
    Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

    static Status OK() { return Status(); }
    static Status InvalidArgument(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }
    static Status TooManyRequests(std::string message) { return Status(Code::kTooManyRequests, std::move(message)); }
    static Status AddressNotRegistered(std::string message) { return Status(Code::kAddressNotRegistered, std::move(message)); }
    static Status BatchBusy(std::string message) { return Status(Code::kBatchBusy, std::move(message)); }
    static Status DeviceNotFound(std::string message) { return Status(Code::kDeviceNotFound, std::move(message)); }
    static Status AddressOverlapped(std::string message) { return Status(Code::kAddressOverlapped, std::move(message)); }
    static Status NotSupportedTransport(std::string message) { return Status(Code::kNotSupportedTransport, std::move(message)); }
    static Status Dns(std::string message) { return Status(Code::kDns, std::move(message)); }
    static Status Socket(std::string message) { return Status(Code::kSocket, std::move(message)); }
    static Status MalformedJson(std::string message) { return Status(Code::kMalformedJson, std::move(message)); }
    static Status RejectHandshake(std::string message) { return Status(Code::kRejectHandshake, std::move(message)); }
    static Status Metadata(std::string message) { return Status(Code::kMetadata, std::move(message)); }
    static Status Endpoint(std::string message) { return Status(Code::kEndpoint, std::move(message)); }
    static Status Context(std::string message) { return Status(Code::kContext, std::move(message)); }
    static Status Numa(std::string message) { return Status(Code::kNuma, std::move(message)); }
    static Status Clock(std::string message) { return Status(Code::kClock, std::move(message)); }
    static Status Memory(std::string message) { return Status(Code::kMemory, std::move(message)); }
    static Status NotImplemented(std::string message) { return Status(Code::kNotImplemented, std::move(message)); }

    bool ok() const noexcept { return code_ == Code::kOk; }
    Code code() const noexcept { return code_; }
    std::string_view message() const noexcept { return message_; }
    /// "BatchBusy: 2 tasks still run"
    MOONCAKE_API std::string ToString() const;

    bool IsInvalidArgument() const noexcept { return code_ == Code::kInvalidArgument; }
    bool IsTooManyRequests() const noexcept { return code_ == Code::kTooManyRequests; }
    bool IsAddressNotRegistered() const noexcept { return code_ == Code::kAddressNotRegistered; }
    bool IsBatchBusy() const noexcept { return code_ == Code::kBatchBusy; }
    bool IsDeviceNotFound() const noexcept { return code_ == Code::kDeviceNotFound; }
    bool IsAddressOverlapped() const noexcept { return code_ == Code::kAddressOverlapped; }
    bool IsNotSupportedTransport() const noexcept { return code_ == Code::kNotSupportedTransport; }
    bool IsDns() const noexcept { return code_ == Code::kDns; }
    bool IsSocket() const noexcept { return code_ == Code::kSocket; }
    bool IsMalformedJson() const noexcept { return code_ == Code::kMalformedJson; }
    bool IsRejectHandshake() const noexcept { return code_ == Code::kRejectHandshake; }
    bool IsMetadata() const noexcept { return code_ == Code::kMetadata; }
    bool IsEndpoint() const noexcept { return code_ == Code::kEndpoint; }
    bool IsContext() const noexcept { return code_ == Code::kContext; }
    bool IsNuma() const noexcept { return code_ == Code::kNuma; }
    bool IsClock() const noexcept { return code_ == Code::kClock; }
    bool IsMemory() const noexcept { return code_ == Code::kMemory; }
    bool IsNotImplemented() const noexcept { return code_ == Code::kNotImplemented; }

    /// Equal codes; the text does not count.
    friend bool operator==(const Status& a, const Status& b) noexcept { return a.code_ == b.code_; }

private:
    Code code_ = Code::kOk;
    std::string message_;
};

}  // namespace mooncake::api
