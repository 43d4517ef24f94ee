// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "net/address.h"

namespace mooncake::net {

using Resolved = std::function<void(Result<std::vector<SocketAddress>>)>;

/// True for literal addresses, which resolve() turns into numbers without asking anybody.
bool is_numeric_host(const std::string& host);

/// resolve() on a thread of its own, since the system's resolver may block for long and cannot be interrupted. The callback
/// runs on that thread, once, and must not block. Thread-safe.
///
/// The threads belong to the process, not to a caller: nobody who stops has to wait for a name server that is silent. Names that
/// got no answer before leave most of the threads to the others (see Lookups).
void resolve_in_background(const std::string& host, uint16_t port, const Resolved& done);

/// resolve() that returns at the deadline (kTimedOut), whatever the name servers do.
Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port, Deadline deadline);

}  // namespace mooncake::net
