// SPDX-License-Identifier: Apache-2.0
#include "engine/describer.h"

#include "engine/messages.h"

namespace mooncake {

void Describer::answer(uint32_t buffers_max, std::unique_ptr<rpc::Responder> responder) {
    if (buffers_max <= kShortList) return responder->reply(encode_descriptor(source_.describe(buffers_max)));
    if (waiting_.fetch_add(1, std::memory_order_relaxed) >= kWaitingMax) {
        waiting_.fetch_sub(1, std::memory_order_relaxed);
        return responder->fail(error(Code::kUnavailable, "too many ask for lists of memory here"));
    }
    // Shared, because a std::function must be copyable. Dropped unanswered, the caller is told.
    auto posted = thread_.post([this, buffers_max, responder = std::shared_ptr<rpc::Responder>(std::move(responder))] {
        if (!responder->abandoned()) responder->reply(long_list(buffers_max));
        waiting_.fetch_sub(1, std::memory_order_relaxed);
    });
    if (!posted) waiting_.fetch_sub(1, std::memory_order_relaxed);
}

rpc::Bytes Describer::long_list(uint32_t buffers_max) {
    const uint64_t version = source_.version();
    // Endpoints may change by themselves.
    auto endpoints = source_.describe(0).endpoints;
    if (encoded_.empty() || version != version_ || buffers_max != buffers_max_ || endpoints != endpoints_) {
        encoded_ = encode_descriptor(source_.describe(buffers_max));
        version_ = version;
        buffers_max_ = buffers_max;
        endpoints_ = std::move(endpoints);
    }
    return encoded_;
}

}  // namespace mooncake
