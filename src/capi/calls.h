// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "capi/live_engines.h"
#include "engine/engine.h"

// What the C and the C++ face both do to an engine beyond calling one of its functions. Thread-safe.
namespace mooncake::capi {

/// Engine::create(), listed among the live engines. Logs the reason of a failure: the callers' faces can only say that there was one.
Result<EngineHandle> start_engine(EngineConfig config);

/// "10.0.0.1:15123": where our control port is.
std::string local_address(Engine& engine);

/// Leading '/' of the name do not count.
Result<SegmentId> open_segment(Engine& engine, std::string_view name);
/// The same for who has addresses already: it does not say that they are of whoever lives there now.
Result<SegmentId> connect_segment(Engine& engine, std::string_view name);
/// Forgets what is known of the segment and opens it.
Result<SegmentId> reopen_segment(Engine& engine, std::string_view name);
Result<> forget_segment(Engine& engine, std::string_view name);
/// Fetches all segments again, or the named one. A peer that is gone is logged and no error.
void refresh_segments(Engine& engine, std::string_view name);

Result<> notify(Engine& engine, SegmentId segment, const Notification& notification);

/// The name of a protocol that the engine has a transport for, or that another stands in for; null for an unknown one.
/// The text lives as long as the process.
const char* transport_for(std::string_view protocol);

/// Our NICs and the memory near them, for people or as {"local_nics": [...], "topology": {...}}.
std::string describe_links(const Engine& engine, bool json);

/// Copies text into a caller's buffer, cut to fit, always ended by NUL. `capacity` is not 0.
void copy_text(std::string_view text, char* buffer, size_t capacity) noexcept;

}  // namespace mooncake::capi
