// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

// The vendor's classes as they are declared there, so that the compiler makes the names that programs look for.
namespace ge {
class __attribute__((visibility("default"))) AscendString {
public:
    AscendString() = default;
    AscendString(const char* text);  // NOLINT(google-explicit-constructor): as it is
    const char* GetString() const;
    size_t GetLength() const;
    bool operator<(const AscendString& other) const;

private:
    std::shared_ptr<std::string> name_;
};
}  // namespace ge

struct aclrtMemFabricHandle {
    uint8_t data[128];
};

namespace emu {
class EngineCore;
}

#define EMU_TYPES \
    using AscendString = ge::AscendString; \
    using Status = uint32_t; \
    using TransferReq = void*; \
    using MemHandle = void*; \
    enum MemType { MEM_DEVICE = 0, MEM_HOST = 1 }; \
    enum TransferOp { READ = 0, WRITE = 1 }; \
    enum class TransferStatus { WAITING = 0, COMPLETED = 1, TIMEOUT = 2, FAILED = 3 }; \
    enum FeatureType : int32_t { AUTO_CONNECT = 0, CLIENT_SERVER_COMM = 1 }; \
    struct MemDesc { \
        uintptr_t addr; \
        size_t len; \
        uint8_t reserved[128]; \
    }; \
    struct TransferOpDesc { \
        uintptr_t local_addr, remote_addr; \
        size_t len; \
    }; \
    struct TransferArgs { \
        uint8_t reserved[128]; \
    };

#define EMU_METHODS(Name) \
    Name(); \
    ~Name(); \
    Status Initialize(const AscendString& name, const std::map<AscendString, AscendString>& options); \
    void Finalize(); \
    Status RegisterMem(const MemDesc& memory, MemType type, MemHandle& handle); \
    Status DeregisterMem(MemHandle handle); \
    Status Connect(const AscendString& remote, int32_t milliseconds); \
    Status Disconnect(const AscendString& remote, int32_t milliseconds); \
    Status TransferSync(const AscendString& remote, TransferOp op, const std::vector<TransferOpDesc>& parts, int32_t milliseconds); \
    Status TransferAsync(const AscendString& remote, TransferOp op, const std::vector<TransferOpDesc>& parts, \
                         const TransferArgs& arguments, TransferReq& request); \
    Status GetTransferStatus(const TransferReq& request, TransferStatus& status); \
    static Status MallocMem(MemType type, size_t length, void** address); \
    static Status FreeMem(void* address); \
    static Status GetCapability(FeatureType feature, int32_t& value); \
\
private: \
    std::unique_ptr<emu::EngineCore> core_;

namespace adxl {
EMU_TYPES
class __attribute__((visibility("default"))) AdxlEngine {
public:
    EMU_METHODS(AdxlEngine)
};
}  // namespace adxl

namespace hixl {
EMU_TYPES
class __attribute__((visibility("default"))) Hixl {
public:
    EMU_METHODS(Hixl)
};
}  // namespace hixl
