// SPDX-License-Identifier: Apache-2.0
#include "capi/calls.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"
#include "net/address.h"

namespace mooncake::capi {

namespace {

std::string without_slashes(std::string_view name) {
    const size_t start = name.find_first_not_of('/');
    return start == std::string_view::npos ? std::string() : std::string(name.substr(start));
}

/// Also the C++ face promises a number, whatever a part of the engine throws for want of memory or threads.
Result<std::unique_ptr<Engine>> create_engine(EngineConfig config) try {
    return Engine::create(std::move(config));
} catch (const std::exception& thrown) {
    return fail(Code::kUnavailable, "{}", thrown.what());
}

// Opening asks the peer or the directory; a transfer would have this long for the same question.
Deadline open_deadline(const Engine& engine) { return engine.transfer_deadline(0); }

}  // namespace

Result<EngineHandle> start_engine(EngineConfig config) {
    const std::string name = config.local_name;
    auto engine = create_engine(std::move(config));
    auto handle = engine ? add_engine(std::move(*engine)) : Result<EngineHandle>(Unexpected(std::move(engine).error()));
    if (!handle) MC_LOG_ERROR("cannot start a transfer engine for {}: {}", name, handle.error().to_string());
    return handle;
}

std::string local_address(Engine& engine) {
    auto own = engine.describe(engine.segment_name(), 0, open_deadline(engine));
    if (!own || own->host.empty()) return engine.segment_name();
    return net::join_host_port(own->host, engine.rpc_port());
}

Result<SegmentId> open_segment(Engine& engine, std::string_view name) {
    const std::string plain = without_slashes(name);
    if (plain.empty()) return fail(Code::kInvalidArgument, "a segment needs a name");
    return engine.open_segment(plain, open_deadline(engine));
}

Result<SegmentId> connect_segment(Engine& engine, std::string_view name) {
    const std::string plain = without_slashes(name);
    if (plain.empty()) return fail(Code::kInvalidArgument, "a segment needs a name");
    return engine.connect_segment(plain, open_deadline(engine));
}

Result<SegmentId> reopen_segment(Engine& engine, std::string_view name) {
    MC_RETURN_IF_ERROR(forget_segment(engine, name));
    return open_segment(engine, name);
}

Result<> forget_segment(Engine& engine, std::string_view name) {
    const std::string plain = without_slashes(name);
    if (plain.empty()) return fail(Code::kInvalidArgument, "a segment needs a name");
    auto forgotten = engine.refresh_segment(plain, open_deadline(engine));
    if (!forgotten && forgotten.error().code() == Code::kNotFound) return {};  // nothing was known
    return forgotten;
}

void refresh_segments(Engine& engine, std::string_view name) {
    const std::string plain = without_slashes(name);
    auto refreshed = engine.refresh_segment(plain, open_deadline(engine));
    if (!refreshed)
        MC_LOG_WARNING_EVERY(1s, "cannot refresh {}: {}", plain.empty() ? "the segments" : plain, refreshed.error().to_string());
}

Result<> notify(Engine& engine, SegmentId segment, const Notification& notification) {
    MC_ASSIGN_OR_RETURN(const std::string name, engine.segment_name_of(segment));
    return engine.send_notification(name, notification, open_deadline(engine));
}

const char* transport_for(std::string_view protocol) {
    // Protocols that others have between hosts; the engine says so when something else carries the bytes.
    static constexpr std::array kReplaced = {"barex", "ub"};
    if (const char* const own = find_protocol(protocol)) return own;
    for (const char* name : kReplaced)
        if (protocol == name) return name;
    return nullptr;
}

void copy_text(std::string_view text, char* buffer, size_t capacity) noexcept {
    const size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
}

}  // namespace mooncake::capi
