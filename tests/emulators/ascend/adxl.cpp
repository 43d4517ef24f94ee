// SPDX-License-Identifier: Apache-2.0
// The faces of the transfer libraries.
#include "tests/emulators/ascend/adxl_types.h"

#include <sys/mman.h>

#include "tests/emulators/ascend/engine_core.h"

namespace ge {
AscendString::AscendString(const char* text) : name_(text == nullptr ? nullptr : std::make_shared<std::string>(text)) {}
const char* AscendString::GetString() const {
    if (const auto verdict = emu::enter("GetString"); verdict.answer) return "something else";
    return name_ == nullptr ? "" : name_->c_str();
}
size_t AscendString::GetLength() const { return name_ == nullptr ? 0 : name_->size(); }
bool AscendString::operator<(const AscendString& other) const {
    if (name_ == nullptr) return other.name_ != nullptr;
    return other.name_ != nullptr && *name_ < *other.name_;
}
}  // namespace ge

namespace {

emu::Options plain(const std::map<ge::AscendString, ge::AscendString>& options) {
    emu::Options all;
    for (const auto& one : options) {
        // Found by its own order, or the map was built by another.
        if (options.find(one.first) == options.end()) return {{"out of order", ""}};
        all[one.first.GetString()] = one.second.GetString();
    }
    return all;
}

template <typename Parts>
std::vector<emu::Part> plain_parts(const Parts& parts) {
    std::vector<emu::Part> all;
    for (const auto& part : parts) all.push_back({part.local_addr, part.remote_addr, part.len});
    return all;
}

uint32_t capability(int feature, int32_t& value) {
    if (const auto verdict = emu::enter("GetCapability"); verdict.answer) return value = static_cast<int32_t>(*verdict.answer), 0u;
    if (feature != 0 && feature != 1) return value = 0, emu::tier() == 91 ? emu::kUnsupported : emu::kSuccess;
    value = 1;
    return emu::kSuccess;
}

}  // namespace

EMU_API int aclrtMallocHost(void** address, size_t length);
EMU_API int aclrtFreeHost(void* address);

#define EMU_CLASS(space, Name, successor) \
    namespace space { \
    Name::Name() : core_(new emu::EngineCore(successor)) {} \
    Name::~Name() = default; \
    Status Name::Initialize(const AscendString& name, const std::map<AscendString, AscendString>& options) { \
        return core_->initialize(name.GetString(), plain(options)); \
    } \
    void Name::Finalize() { core_->finalize(); } \
    Status Name::RegisterMem(const MemDesc& memory, MemType type, MemHandle& handle) { \
        return core_->add({memory.addr, memory.len, static_cast<uint32_t>(type), 0}, handle); \
    } \
    Status Name::DeregisterMem(MemHandle handle) { return core_->remove(handle); } \
    Status Name::Connect(const AscendString& remote, int32_t milliseconds) { return core_->connect(remote.GetString(), milliseconds); } \
    Status Name::Disconnect(const AscendString& remote, int32_t milliseconds) { \
        return core_->disconnect(remote.GetString(), milliseconds); \
    } \
    Status Name::TransferSync(const AscendString& remote, TransferOp op, const std::vector<TransferOpDesc>& parts, int32_t milliseconds) { \
        return core_->transfer(remote.GetString(), op == WRITE, plain_parts(parts), milliseconds); \
    } \
    Status Name::TransferAsync(const AscendString& remote, TransferOp op, const std::vector<TransferOpDesc>& parts, const TransferArgs&, \
                               TransferReq& request) { \
        return core_->transfer_async(remote.GetString(), op == WRITE, plain_parts(parts), request); \
    } \
    Status Name::GetTransferStatus(const TransferReq& request, TransferStatus& status) { \
        int state = 0; \
        const Status answer = core_->status(request, state); \
        status = static_cast<TransferStatus>(state); \
        return answer; \
    } \
    Status Name::MallocMem(MemType, size_t length, void** address) { \
        if (const auto verdict = emu::enter("MallocMem"); verdict.answer) return static_cast<Status>(*verdict.answer); \
        return aclrtMallocHost(address, length) == 0 ? emu::kSuccess : emu::kFailed; \
    } \
    Status Name::FreeMem(void* address) { return aclrtFreeHost(address) == 0 ? emu::kSuccess : emu::kParamInvalid; } \
    Status Name::GetCapability(FeatureType feature, int32_t& value) { return capability(feature, value); } \
    }

EMU_CLASS(adxl, AdxlEngine, false)
EMU_CLASS(hixl, Hixl, true)
