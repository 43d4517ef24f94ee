// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/xfer_engine.h"

#include <algorithm>

namespace mooncake::ascend {

namespace {

/// Zero and less are refused by the library; it knows no longer than an int.
int32_t milliseconds(Duration timeout) {
    return static_cast<int32_t>(std::clamp<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(timeout).count(), 1, INT32_MAX));
}

constexpr std::string_view kPrefix = "adxl.";  // which HIXL leaves out

}  // namespace

std::string_view status_name(abi::Status status) noexcept {
    switch (status) {
        case abi::kSuccess: return "SUCCESS";
        case abi::kParamInvalid: return "PARAM_INVALID";
        case abi::kTimeout: return "TIMEOUT";
        case abi::kNotConnected: return "NOT_CONNECTED";
        case abi::kAlreadyConnected: return "ALREADY_CONNECTED";
        case abi::kUnsupported: return "UNSUPPORTED";
        case abi::kResourceExhausted: return "RESOURCE_EXHAUSTED";
        case abi::kFailed: return "FAILED";
        default: return "unknown";
    }
}

void XferEngine::Closer::operator()(abi::EngineObject* object) const {
    library->engine.destroy(object);
    delete object;
}

Error XferEngine::failure(const char* function, abi::Status status, const std::string& peer) const {
    const char* const said = library_->acl.functions.recent_error == nullptr ? nullptr : library_->acl.functions.recent_error();
    const Code code = status == abi::kParamInvalid  ? Code::kInvalidArgument
                      : status == abi::kUnsupported ? Code::kNotSupported
                                                    : Code::kUnavailable;
    return error(code, "{}: {}{}{} on device {} ({}) answered {} ({}){}{}", library_->file, function, peer.empty() ? "" : " to ", peer,
                 device_, name_, status, status_name(status), said == nullptr ? "" : ": ", said == nullptr ? "" : said);
}

Result<> XferEngine::open(const std::string& name, const Options& options) {
    MC_CHECK(object_ == nullptr);
    MC_ASSIGN_OR_RETURN(context_, library_->acl.context_of(device_));
    MC_ASSIGN_OR_RETURN(const auto scope, ContextScope::enter(library_->acl, context_));
    if (name_ != name) name_ = name;  // others may read it while one comes back under its name
    auto* const made = new abi::EngineObject;
    library_->engine.construct(made);
    Object object(made, Closer{library_.get()});
    Options named;
    for (const auto& [key, value] : options)
        named[library_->successor && key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key] = value;
    // Never twice on one object: the newest library forgets the first without ending it.
    const abi::Status status = library_->engine.initialize(made, library_->text(name), library_->options(named));
    if (status != abi::kSuccess) return Unexpected(failure("Initialize", status, ""));
    object_ = std::move(object);
    return {};
}

void XferEngine::close() {
    if (object_ == nullptr) return;
    const auto scope = ContextScope::enter(library_->acl, context_);
    library_->engine.finalize(object_.get());
    object_.reset();
}

Result<void*> XferEngine::add(uint64_t address, uint64_t length, bool host) {
    MC_ASSIGN_OR_RETURN(const auto scope, ContextScope::enter(library_->acl, context_));
    const abi::MemoryDescription memory{.address = address, .length = length};
    void* handle = nullptr;
    const abi::Status status = library_->engine.register_memory(object_.get(), memory, host ? abi::kMemoryHost : abi::kMemoryDevice,
                                                                handle);
    if (status == abi::kSuccess) return handle;
    return Unexpected(failure("RegisterMem", status, "")
                          .with_context(format_text("[{:#x}, +{}) of {}", address, length, host ? "the host" : "the device")));
}

Result<> XferEngine::remove(void* handle) {
    MC_ASSIGN_OR_RETURN(const auto scope, ContextScope::enter(library_->acl, context_));
    const abi::Status status = library_->engine.deregister_memory(object_.get(), handle);
    if (status != abi::kSuccess) return Unexpected(failure("DeregisterMem", status, ""));
    return {};
}

abi::Status XferEngine::connect(const std::string& peer, Duration timeout) {
    const auto scope = ContextScope::enter(library_->acl, context_);
    return library_->engine.connect(object_.get(), library_->text(peer), milliseconds(timeout));
}

abi::Status XferEngine::disconnect(const std::string& peer, Duration timeout) {
    const auto scope = ContextScope::enter(library_->acl, context_);
    return library_->engine.disconnect(object_.get(), library_->text(peer), milliseconds(timeout));
}

abi::Status XferEngine::transfer(const std::string& peer, bool write, const abi::Descriptions& parts, Duration timeout) {
    const auto scope = ContextScope::enter(library_->acl, context_);
    return library_->engine.transfer(object_.get(), library_->text(peer), write ? abi::kOpWrite : abi::kOpRead, parts,
                                     milliseconds(timeout));
}

abi::Status XferEngine::transfer_async(const std::string& peer, bool write, const abi::Descriptions& parts, Request& request) {
    const auto scope = ContextScope::enter(library_->acl, context_);
    return library_->engine.transfer_async(object_.get(), library_->text(peer), write ? abi::kOpWrite : abi::kOpRead, parts, {}, request);
}

abi::Status XferEngine::poll(Request request, abi::TransferState& state) {
    const auto scope = ContextScope::enter(library_->acl, context_);
    state = abi::kWaiting;
    return library_->engine.transfer_status(object_.get(), request, state);
}

}  // namespace mooncake::ascend
