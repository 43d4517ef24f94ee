// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "conductor/proxy/options.h"
#include "metrics/metrics.h"

namespace mooncake::conductor {

/// The proxy as a server. Thread-safe.
class ProxyServer {
public:
    /// Serves when this returns. kAlreadyExists: the port is taken. kInvalidArgument: the options make no sense.
    static Result<std::unique_ptr<ProxyServer>> create(ProxyOptions options, metrics::Registry& registry);
    virtual ~ProxyServer() = default;

    virtual uint16_t port() const noexcept = 0;
    virtual Cluster& cluster() noexcept = 0;
    /// Accepts nothing more, ends what is under way and joins. Idempotent.
    virtual void stop() = 0;
};

}  // namespace mooncake::conductor
