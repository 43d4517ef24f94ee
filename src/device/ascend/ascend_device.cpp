// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/ascend_device.h"

#include <algorithm>

#include "base/log.h"

namespace mooncake::ascend {

namespace {

constexpr uint64_t kStep = 2 << 20;    // pages of devices are no smaller
constexpr uint64_t kProbesMax = 1024;  // of one range: the runtime does not tell where an allocation ends
constexpr size_t kDescribedMax = 262'144;

int kind_of(MemoryKind to, MemoryKind from) noexcept {
    if (to == MemoryKind::kAscend) return from == MemoryKind::kAscend ? abi::kDeviceToDevice : abi::kHostToDevice;
    return abi::kDeviceToHost;
}

bool is_device(const abi::PointerAttributes& attributes) noexcept { return attributes.location.type == abi::kLocationDevice; }

}  // namespace

AscendDevice::~AscendDevice() {
    const auto acl = find_runtime(query_);
    Lock lock(mutex_);
    if (acl == nullptr) return;
    for (const Stream& one : idle_) (void)acl->functions.destroy_stream(one.stream);
}

Result<std::shared_ptr<const Acl>> AscendDevice::runtime() {
    auto acl = find_runtime(query_);
    if (acl == nullptr) return fail(Code::kUnavailable, "the runtime of Ascend is not loaded in this process");
    return acl;
}

Result<std::string> AscendDevice::state() {
    const auto acl = find_runtime(query_);
    if (acl == nullptr) return fail(Code::kNotSupported, "the runtime of Ascend is not loaded in this process");
    MC_ASSIGN_OR_RETURN(const int count, acl->device_count());
    return format_text("{} with {} devices", acl->file, count);
}

Result<std::optional<MemoryInfo>> AscendDevice::describe(const void* address, uint64_t length) {
    const auto acl = find_runtime(query_);
    if (acl == nullptr) return std::nullopt;
    const auto ask = [&acl](uint64_t at, abi::PointerAttributes& answer) {
        return acl->functions.pointer_attributes(reinterpret_cast<const void*>(at), &answer);
    };
    const auto start = reinterpret_cast<uint64_t>(address);
    abi::PointerAttributes first;
    // What it does not know it may refuse to speak about: then it is none of its memory.
    if (ask(start, first) != abi::kAclNone || !is_device(first)) return std::nullopt;
    const uint64_t step = std::max(kStep, length / kProbesMax);
    for (uint64_t at = 0; at < length; at = at == length - 1 ? length : std::min(at + step, length - 1)) {
        abi::PointerAttributes other;
        if (ask(start + at, other) != abi::kAclNone || !is_device(other) || other.location.id != first.location.id)
            return fail(Code::kInvalidArgument, "[{}, +{}) begins in memory of NPU {}, but {:#x} is not", address, length,
                        first.location.id, start + at);
    }
    const int device = static_cast<int>(first.location.id);
    Lock lock(mutex_);
    auto overlapped = described_.upper_bound(start);
    if (overlapped != described_.begin() && std::prev(overlapped)->second.first > start) --overlapped;
    while (overlapped != described_.end() && overlapped->first < start + length) overlapped = described_.erase(overlapped);
    if (described_.size() >= kDescribedMax) described_.clear();
    described_[start] = {start + length, device};
    return MemoryInfo{.kind = MemoryKind::kAscend, .device = device, .base = start, .length = length};
}

Result<int> AscendDevice::device_at(const Acl& acl, const void* address) {
    {
        Lock lock(mutex_);
        const auto at = reinterpret_cast<uint64_t>(address);
        const auto next = described_.upper_bound(at);
        if (next != described_.begin() && std::prev(next)->second.first > at) return std::prev(next)->second.second;
    }
    abi::PointerAttributes attributes;
    MC_RETURN_IF_ERROR(acl.check("aclrtPointerGetAttributes", acl.functions.pointer_attributes(address, &attributes)));
    if (!is_device(attributes)) return fail(Code::kNotRegistered, "{} is not memory of an NPU any more", address);
    return static_cast<int>(attributes.location.id);
}

Result<abi::Context> AscendDevice::context_of(const Acl& acl, int device) {
    Lock lock(mutex_);
    abi::Context& context = contexts_[device];
    if (context == nullptr) {
        MC_ASSIGN_OR_RETURN(context, acl.context_of(device));
    }
    return context;
}

Result<> AscendDevice::copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) {
    if (parts.empty()) return {};
    MC_ASSIGN_OR_RETURN(const auto acl, runtime());
    const int kind = kind_of(to, from);
    std::map<int, Parts> by_device;
    for (const CopyPart& part : parts) {
        MC_ASSIGN_OR_RETURN(const int device, device_at(*acl, to == MemoryKind::kAscend ? part.to : part.from));
        by_device[device].push_back(part);
    }
    for (const auto& [device, some] : by_device) MC_RETURN_IF_ERROR(copy_on(*acl, device, kind, some));
    return {};
}

Result<> AscendDevice::copy_on(const Acl& acl, int device, int kind, std::span<const CopyPart> parts) {
    MC_ASSIGN_OR_RETURN(const abi::Context context, context_of(acl, device));
    MC_ASSIGN_OR_RETURN(const auto scope, ContextScope::enter(acl, context));
    size_t done = 0;
    if (kind != abi::kDeviceToDevice) {
        MC_ASSIGN_OR_RETURN(done, copy_batches(acl, device, kind, parts));
    }
    if (done == parts.size()) return {};
    single_copies_.fetch_add(parts.size() - done, std::memory_order_relaxed);
    return copy_single(acl, device, kind, parts.subspan(done));
}

Result<size_t> AscendDevice::copy_batches(const Acl& acl, int device, int kind, std::span<const CopyPart> parts) {
    {
        Lock lock(mutex_);
        if (acl.functions.copy_batch == nullptr || no_batches_[device]) return 0;
    }
    const abi::Location here{.id = static_cast<uint32_t>(device), .type = abi::kLocationDevice}, host{};
    abi::BatchAttribute attribute{.to = kind == abi::kHostToDevice ? here : host, .from = kind == abi::kHostToDevice ? host : here};
    size_t first_index = 0, done = 0;
    std::vector<void*> to, from;
    std::vector<size_t> lengths;
    while (done < parts.size()) {
        const auto some = parts.subspan(done, std::min(abi::kBatchMax, parts.size() - done));
        to.clear(), from.clear(), lengths.clear();
        for (const CopyPart& part : some) {
            to.push_back(part.to);
            from.push_back(const_cast<std::byte*>(part.from));
            lengths.push_back(part.length);
        }
        size_t failed = SIZE_MAX;
        const abi::AclError status = acl.functions.copy_batch(to.data(), lengths.data(), from.data(), lengths.data(), some.size(),
                                                              &attribute, &first_index, 1, &failed);
        if (status == abi::kAclNotSupported) {
            MC_LOG_INFO("NPU {} copies no batches; single copies take their place", device);
            Lock lock(mutex_);
            no_batches_[device] = true;
            return done;
        }
        if (status != abi::kAclNone) {
            const std::string where = failed == SIZE_MAX ? format_text("a batch of {}", some.size())
                                                         : format_text("part {} of {}", done + failed, parts.size());
            return Unexpected(acl.failure("aclrtMemcpyBatch", status, device).with_context(where));
        }
        done += some.size();
    }
    return done;
}

Result<> AscendDevice::copy_single(const Acl& acl, int device, int kind, std::span<const CopyPart> parts) {
    MC_ASSIGN_OR_RETURN(Stream stream, take_stream(acl, device));
    Result<> given;
    for (const CopyPart& part : parts) {
        const std::byte* const host = kind == abi::kHostToDevice ? part.from : kind == abi::kDeviceToHost ? part.to : nullptr;
        abi::PointerAttributes attributes;
        // Only memory that the runtime has pinned may be left to it.
        const bool pinned = host == nullptr || (acl.functions.pointer_attributes(host, &attributes) == abi::kAclNone &&
                                                attributes.location.type != abi::kLocationUnregistered);
        if (pinned)
            given = acl.check("aclrtMemcpyAsync",
                              acl.functions.copy_async(part.to, part.length, part.from, part.length, kind, stream.stream), device);
        else given = acl.check("aclrtMemcpy", acl.functions.copy(part.to, part.length, part.from, part.length, kind), device);
        if (!given) break;
    }
    // Also after an error: nothing of it may go on behind our back.
    auto over = wait(acl, stream);
    if (stream.stream != nullptr) return_stream(stream);
    return given ? over : given;
}

Result<> AscendDevice::wait(const Acl& acl, Stream& stream) {
    const auto patience = static_cast<int32_t>(kPatience / 1ms);
    const abi::AclError status = acl.functions.synchronize(stream.stream, patience);
    if (status == abi::kAclNone) return {};
    const Error failure = acl.failure("aclrtSynchronizeStreamWithTimeout", status, stream.device);
    if (acl.functions.abort_stream != nullptr) (void)acl.functions.abort_stream(stream.stream);
    (void)acl.functions.synchronize(stream.stream, -1);
    (void)acl.functions.destroy_stream(std::exchange(stream.stream, nullptr));
    return Unexpected(failure);
}

Result<AscendDevice::Stream> AscendDevice::take_stream(const Acl& acl, int device) {
    {
        Lock lock(mutex_);
        const auto found = std::find_if(idle_.begin(), idle_.end(), [device](const Stream& one) { return one.device == device; });
        if (found != idle_.end()) {
            const Stream taken = *found;
            idle_.erase(found);
            return taken;
        }
    }
    Stream made{.device = device};
    MC_RETURN_IF_ERROR(acl.check("aclrtCreateStreamWithConfig",
                                 acl.functions.create_stream(&made.stream, 0, abi::kStreamFastLaunch | abi::kStreamFastSync), device));
    return made;
}

void AscendDevice::return_stream(Stream stream) {
    Lock lock(mutex_);
    idle_.push_back(stream);
}

Result<std::byte*> AscendDevice::allocate_host(uint64_t length) {
    MC_ASSIGN_OR_RETURN(const auto acl, runtime());
    // Of any device that is in use: pinned memory is for all of them.
    int device = acl->current_device();
    {
        Lock lock(mutex_);
        if (device < 0 && !contexts_.empty()) device = contexts_.begin()->first;
        if (device < 0 && !described_.empty()) device = described_.begin()->second.second;
    }
    if (device < 0) return fail(Code::kUnavailable, "no NPU is in use");
    MC_ASSIGN_OR_RETURN(const abi::Context context, context_of(*acl, device));
    MC_ASSIGN_OR_RETURN(const auto scope, ContextScope::enter(*acl, context));
    void* memory = nullptr;
    MC_RETURN_IF_ERROR(acl->check("aclrtMallocHost", acl->functions.allocate_host(&memory, length), device));
    return static_cast<std::byte*>(memory);
}

void AscendDevice::free_host(std::byte* memory) noexcept {
    if (const auto acl = find_runtime(query_)) (void)acl->functions.free_host(memory);
}

}  // namespace mooncake::ascend
