// SPDX-License-Identifier: Apache-2.0
#include "net/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <condition_variable>
#include <memory>
#include <optional>
#include <utility>

#include "base/fork.h"
#include "net/lookups.h"

namespace mooncake::net {

namespace {

/// Never deleted: a thread may be deep inside the system's resolver when the process ends.
struct SystemLookups : Lookups {
    SystemLookups() : Lookups([](const std::string& host) { return resolve(host, 0); }) {}
};
constinit PerProcess<SystemLookups> lookups;

}  // namespace

bool is_numeric_host(const std::string& host) {
    in_addr ignored;
    return is_ipv6_literal(host) || ::inet_pton(AF_INET, host.c_str(), &ignored) == 1;
}

void resolve_in_background(const std::string& host, uint16_t port, const Resolved& done) {
    lookups.get().ask(host, [port, done](Result<std::vector<SocketAddress>> addresses) {
        if (addresses)
            for (SocketAddress& address : *addresses) address.set_port(port);
        done(std::move(addresses));
    });
}

Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port, Deadline deadline) {
    if (is_numeric_host(host)) return resolve(host, port);
    struct Answer {
        Mutex mutex;
        std::condition_variable_any arrived;
        std::optional<Result<std::vector<SocketAddress>>> addresses MC_GUARDED_BY(mutex);
    };
    const auto answer = std::make_shared<Answer>();  // the resolver may come back long after we have gone
    resolve_in_background(host, port, [answer](Result<std::vector<SocketAddress>> addresses) {
        Lock lock(answer->mutex);
        answer->addresses = std::move(addresses);
        answer->arrived.notify_all();
    });
    Lock lock(answer->mutex);
    while (!answer->addresses) {
        if (deadline.passed()) return fail_errno(Code::kTimedOut, EAI_AGAIN, "cannot resolve '{}' in time", host);
        if (deadline.is_never()) {
            answer->arrived.wait(answer->mutex);
        } else {
            answer->arrived.wait_until(answer->mutex, deadline.at());
        }
    }
    return std::move(*answer->addresses);
}

}  // namespace mooncake::net
