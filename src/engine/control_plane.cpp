// SPDX-License-Identifier: Apache-2.0
#include "engine/control_plane.h"

#include "engine/messages.h"
#include "net/address.h"

namespace mooncake {

namespace {

constexpr size_t kWaitingMax = 1024;

}  // namespace

void RpcControl::serve(std::string transport, Handler handler) {
    std::shared_ptr<Entry> next, last;
    if (handler) {
        next = std::make_shared<Entry>();
        next->handler = std::move(handler);
    }
    {
        Lock lock(mutex_);
        std::shared_ptr<Entry>& place = entries_[transport];
        last = std::exchange(place, std::move(next));
        if (!place) entries_.erase(transport);
    }
    if (last) last->gate.close();
}

std::shared_ptr<RpcControl::Entry> RpcControl::find(const std::string& transport) {
    Lock lock(mutex_);
    const auto found = entries_.find(transport);
    return found == entries_.end() ? nullptr : found->second;
}

Result<ControlPlane::Bytes> RpcControl::call(const SegmentDescriptor& peer, const std::string& transport, Bytes request,
                                             Deadline deadline) {
    if (request.size() > kControlBytesMax)
        return fail(Code::kInvalidArgument, "a control message of {} bytes; at most {} are allowed", request.size(), kControlBytesMax);
    const std::string address = net::join_host_port(peer.host, peer.rpc_port);
    const auto body = encode_control_request({.transport = transport, .target = peer.incarnation, .body = std::move(request)});
    auto reply = client_.call(address, rpc::Method::kControl, body, deadline);
    if (!reply) return Unexpected(std::move(reply).error().with_context(format_text("{}: ask {}", transport, peer.name)));
    return std::move(*reply);
}

void RpcControl::answer(std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
    auto request = decode_control_request(body);
    if (!request) return responder->fail(request.error());
    if (request->target != own_)
        return responder->fail(error(Code::kStale, "this is incarnation {}, not {}", own_.to_string(), request->target.to_string()));
    if (waiting_.fetch_add(1, std::memory_order_relaxed) >= kWaitingMax) {
        waiting_.fetch_sub(1, std::memory_order_relaxed);
        return responder->fail(error(Code::kUnavailable, "too many control messages wait here"));
    }
    // Shared, because a std::function must be copyable. Dropped unanswered, the caller is told.
    auto task = [this, request = std::make_shared<ControlRequest>(std::move(*request)),
                 responder = std::shared_ptr<rpc::Responder>(std::move(responder))] {
        const auto entry = find(request->transport);
        const Gate::Pass pass = entry ? entry->gate.enter() : Gate::Pass();
        if (!pass) responder->fail(error(Code::kNotSupported, "nobody answers for transport {} here", request->transport));
        else if (!responder->abandoned()) {
            auto result = entry->handler(request->body);
            if (!result) responder->fail(result.error());
            else if (result->size() > kControlBytesMax)
                responder->fail(error(Code::kInternal, "transport {} answered with {} bytes", request->transport, result->size()));
            else responder->reply(std::move(*result));
        }
        waiting_.fetch_sub(1, std::memory_order_relaxed);
    };
    if (!threads_.post(std::move(task))) waiting_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace mooncake
