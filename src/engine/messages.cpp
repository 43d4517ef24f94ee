// SPDX-License-Identifier: Apache-2.0
#include "engine/messages.h"

#include "base/verified_message.h"
#include "engine_generated.h"

namespace mooncake {

namespace {

template <typename Table>
std::vector<std::byte> finish(flatbuffers::FlatBufferBuilder& builder, flatbuffers::Offset<Table> root) {
    builder.Finish(root);
    const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
    return std::vector<std::byte>(data, data + builder.GetSize());
}

Result<std::map<std::string, std::string>> decode_endpoints(const flatbuffers::Vector<flatbuffers::Offset<wire::Endpoint>>* entries) {
    std::map<std::string, std::string> endpoints;
    if (entries == nullptr) return endpoints;
    if (entries->size() > kEndpointsMax) return fail(Code::kCorrupt, "a descriptor with {} endpoints", entries->size());
    for (const wire::Endpoint* entry : *entries) {
        MC_ASSIGN_OR_RETURN(std::string transport, bounded_text(entry->transport(), kSegmentNameBytesMax, "transport name"));
        if (transport.empty()) return fail(Code::kCorrupt, "a descriptor with a nameless transport");
        std::string blob;
        if (entry->blob() != nullptr) {
            if (entry->blob()->size() > kEndpointBytesMax)
                return fail(Code::kCorrupt, "an endpoint of {} bytes for transport {}", entry->blob()->size(), transport);
            blob.assign(reinterpret_cast<const char*>(entry->blob()->data()), entry->blob()->size());
        }
        if (!endpoints.emplace(transport, std::move(blob)).second)
            return fail(Code::kCorrupt, "a descriptor names transport {} twice", transport);
    }
    return endpoints;
}

Result<std::vector<BufferRecord>> decode_buffers(const flatbuffers::Vector<flatbuffers::Offset<wire::Buffer>>* entries) {
    std::vector<BufferRecord> buffers;
    if (entries == nullptr) return buffers;
    buffers.reserve(entries->size());
    for (const wire::Buffer* entry : *entries) {
        BufferRecord record{.address = entry->address(), .length = entry->length()};
        if (record.length == 0 || record.address + record.length < record.address)
            return fail(Code::kCorrupt, "a descriptor with a buffer of {} bytes at {:#x}", record.length, record.address);
        MC_ASSIGN_OR_RETURN(record.location, bounded_text(entry->location(), kLocationBytesMax, "location"));
        buffers.push_back(std::move(record));
    }
    return buffers;
}

Result<std::vector<DeviceRange>> decode_device_memory(const flatbuffers::Vector<const wire::DeviceRange*>* entries) {
    std::vector<DeviceRange> ranges;
    if (entries == nullptr) return ranges;
    if (entries->size() > kDeviceRangesLimit) return fail(Code::kCorrupt, "a descriptor with {} ranges of device memory", entries->size());
    ranges.reserve(entries->size());
    uint64_t end = 0;
    for (size_t i = 0; i < entries->size(); ++i) {
        const wire::DeviceRange entry = struct_at(*entries, i);
        const DeviceRange range{
            .address = entry.address(), .length = entry.length(), .kind = static_cast<MemoryKind>(entry.kind()), .device = entry.device()};
        if (range.length == 0 || range.end() < range.address || range.address < end)
            return fail(Code::kCorrupt, "a descriptor with {} bytes of device memory at {:#x}, after {:#x}", range.length, range.address,
                        end);
        end = range.end();
        // A kind that we do not know is nothing that we could choose a transport for.
        if (entry.kind() < kMemoryKinds && range.kind != MemoryKind::kHost) ranges.push_back(range);
    }
    return ranges;
}

}  // namespace

std::vector<std::byte> encode_describe_request(const std::string& segment_name, uint32_t buffers_max) {
    flatbuffers::FlatBufferBuilder builder(128);
    const auto name = builder.CreateString(segment_name);
    return finish(builder, wire::CreateDescribeRequest(builder, name, buffers_max));
}

Result<DescribeRequest> decode_describe_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::DescribeRequest>::parse(body, "describe request"));
    DescribeRequest request{.buffers_max = message->buffers_max()};
    MC_ASSIGN_OR_RETURN(request.segment_name, bounded_text(message->segment_name(), kSegmentNameBytesMax, "segment name"));
    return request;
}

std::vector<std::byte> encode_descriptor(const SegmentDescriptor& descriptor) {
    flatbuffers::FlatBufferBuilder builder(1024);
    std::vector<flatbuffers::Offset<wire::Endpoint>> endpoints;
    for (const auto& [transport, blob] : descriptor.endpoints) {
        const auto name = builder.CreateString(transport);
        const auto bytes = builder.CreateVector(reinterpret_cast<const uint8_t*>(blob.data()), blob.size());
        endpoints.push_back(wire::CreateEndpoint(builder, name, bytes));
    }
    std::vector<flatbuffers::Offset<wire::Buffer>> buffers;
    buffers.reserve(descriptor.buffers.size());
    for (const BufferRecord& buffer : descriptor.buffers) {
        // A process has few different locations: each text is stored once.
        const auto location = builder.CreateSharedString(buffer.location);
        buffers.push_back(wire::CreateBuffer(builder, buffer.address, buffer.length, location));
    }
    std::vector<wire::DeviceRange> devices;
    devices.reserve(descriptor.device_memory.size());
    for (const DeviceRange& range : descriptor.device_memory)
        devices.emplace_back(range.address, range.length, range.device, static_cast<uint8_t>(range.kind));
    const auto name = builder.CreateString(descriptor.name);
    const auto host = builder.CreateString(descriptor.host);
    const auto boot = builder.CreateString(descriptor.boot_id);
    const auto endpoint_list = builder.CreateVector(endpoints);
    const auto buffer_list = builder.CreateVector(buffers);
    flatbuffers::Offset<flatbuffers::Vector<const wire::DeviceRange*>> device_list;
    if (!devices.empty()) device_list = builder.CreateVectorOfStructs(devices);
    return finish(builder, wire::CreateDescribeReply(builder, name, descriptor.incarnation.value, host, descriptor.rpc_port, boot,
                                                     endpoint_list, buffer_list, device_list));
}

Result<SegmentDescriptor> decode_descriptor(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::DescribeReply>::parse(body, "segment descriptor"));
    SegmentDescriptor descriptor{.incarnation = {message->incarnation()}, .rpc_port = message->rpc_port()};
    MC_ASSIGN_OR_RETURN(descriptor.name, bounded_text(message->name(), kSegmentNameBytesMax, "segment name"));
    if (descriptor.name.empty() || !descriptor.incarnation || descriptor.rpc_port == 0)
        return fail(Code::kCorrupt, "the descriptor of '{}' lacks its name, incarnation or port", descriptor.name);
    MC_ASSIGN_OR_RETURN(descriptor.host, bounded_text(message->host(), kHostBytesMax, "host name"));
    MC_ASSIGN_OR_RETURN(descriptor.boot_id, bounded_text(message->boot_id(), kBootIdBytesMax, "boot id"));
    MC_ASSIGN_OR_RETURN(descriptor.endpoints, decode_endpoints(message->endpoints()));
    MC_ASSIGN_OR_RETURN(descriptor.buffers, decode_buffers(message->buffers()));
    MC_ASSIGN_OR_RETURN(descriptor.device_memory, decode_device_memory(message->device_memory()));
    return descriptor;
}

std::vector<std::byte> encode_notification(const Notification& notification, Incarnation target) {
    flatbuffers::FlatBufferBuilder builder(64 + notification.name.size() + notification.message.size());
    const auto name = builder.CreateString(notification.name);
    const auto message = builder.CreateString(notification.message);
    return finish(builder, wire::CreateNotifyRequest(builder, name, message, target.value));
}

Result<NotifyRequest> decode_notification(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::NotifyRequest>::parse(body, "notification"));
    NotifyRequest request{.notification = {}, .target = {message->target()}};
    MC_ASSIGN_OR_RETURN(request.notification.name, bounded_text(message->name(), body.size(), "notification name"));
    MC_ASSIGN_OR_RETURN(request.notification.message, bounded_text(message->message(), body.size(), "notification"));
    return request;
}

std::vector<std::byte> encode_control_request(const ControlRequest& request) {
    flatbuffers::FlatBufferBuilder builder(128 + request.body.size());
    const auto transport = builder.CreateString(request.transport);
    const auto bytes = builder.CreateVector(reinterpret_cast<const uint8_t*>(request.body.data()), request.body.size());
    return finish(builder, wire::CreateControlRequest(builder, transport, request.target.value, bytes));
}

Result<ControlRequest> decode_control_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::ControlRequest>::parse(body, "control message"));
    ControlRequest request{.transport = {}, .target = {message->target()}, .body = {}};
    MC_ASSIGN_OR_RETURN(request.transport, bounded_text(message->transport(), kSegmentNameBytesMax, "transport name"));
    if (request.transport.empty() || !request.target) return fail(Code::kCorrupt, "a control message for nobody");
    if (message->body() == nullptr) return request;
    if (message->body()->size() > kControlBytesMax) return fail(Code::kCorrupt, "a control message of {} bytes", message->body()->size());
    const auto* data = reinterpret_cast<const std::byte*>(message->body()->data());
    request.body.assign(data, data + message->body()->size());
    return request;
}

}  // namespace mooncake
