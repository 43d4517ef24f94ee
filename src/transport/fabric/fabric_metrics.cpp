// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric_metrics.h"

#include <algorithm>

namespace mooncake::fabric {

RailMetrics::RailMetrics(metrics::Registry& registry, const std::string& nic) : registry_(registry), nic_(nic) {
    const metrics::Labels own = {{"nic", nic}};
    const auto with = [&](const char* label, const char* value) {
        metrics::Labels labels = own;
        labels.emplace_back(label, value);
        return labels;
    };
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        const metrics::Labels labels = with("direction", direction == Direction::kRead ? "read" : "write");
        of(direction) = {
            .bytes = &registry.counter("mooncake_fabric_bytes_total", "Bytes that a NIC moved for transfers of this process.", labels),
            .operations = &registry.counter("mooncake_fabric_operations_total", "Operations that succeeded.", labels),
            .latency_ns = &registry.histogram("mooncake_fabric_latency_seconds", "From posting an operation to its completion.", labels,
                                              1e9),
        };
    }
    constexpr std::array<const char*, 5> kClasses = {"none", "path", "stale", "misuse", "again"};
    for (size_t i = 0; i < errors.size(); ++i)
        errors[i] = &registry.counter("mooncake_fabric_errors_total", "Operations that failed, repeated ones included.",
                                      with("class", kClasses[i]));
    unattributed_errors = &registry.counter("mooncake_fabric_unattributed_errors_total",
                                            "Errors of which the provider did not say whose they are.", own);
    constexpr std::array<const char*, 2> kAgain = {"room", "connecting"};
    for (size_t i = 0; i < again.size(); ++i)
        again[i] = &registry.counter("mooncake_fabric_again_total", "Posts that the provider had no room for, or no connection.",
                                     with("class", kAgain[i]));
    constexpr std::array<const char*, 4> kStates = {"unknown", "ready", "suspect", "down"};
    for (size_t i = 0; i < paths.size(); ++i)
        paths[i] = &registry.gauge("mooncake_fabric_paths", "Ways to peers' NICs, by what is known of them.", with("state", kStates[i]));
    paths_lost = &registry.counter("mooncake_fabric_paths_lost_total", "Times that a way to a peer's NIC was given up.", own);
    forgotten = &registry.counter("mooncake_fabric_paths_forgotten_total", "Ways to peers' NICs that nobody used for long.", own);
    recycles = &registry.counter("mooncake_fabric_recycles_total", "Initiating endpoints thrown away with what was stuck on them.", own);
    fences = &registry.counter("mooncake_fabric_fences_total", "Serving endpoints closed so that nothing sent earlier can land.", own);
    in_flight = &registry.gauge("mooncake_fabric_in_flight", "Operations posted and not yet finished.", own);
    pages_used = &registry.gauge("mooncake_fabric_pages", "Page entries of the NIC, used and known to be there.", with("kind", "used"));
    pages_limit = &registry.gauge("mooncake_fabric_pages", "Page entries of the NIC, used and known to be there.", with("kind", "limit"));
}

RailMetrics::PerPath& RailMetrics::path_to(uint32_t remote) {
    if (by_remote_.size() <= remote) by_remote_.resize(remote + 1);
    PerPath& path = by_remote_[remote];
    if (path.bytes != nullptr) return path;
    const metrics::Labels labels = {{"nic", nic_}, {"remote_rail", std::to_string(remote)}};
    path = {.bytes = &registry_.counter("mooncake_fabric_path_bytes_total", "Bytes moved to or from peers' NICs of this number.", labels),
            .operations = &registry_.counter("mooncake_fabric_path_operations_total", "Operations that succeeded, by path.", labels),
            .errors = &registry_.counter("mooncake_fabric_path_errors_total", "Operations that failed, by path.", labels)};
    return path;
}

void RailMetrics::took(const Piece& piece, Duration time, uint32_t remote, bool success) {
    PerPath& path = path_to(remote);
    if (!success) return path.errors->add();
    path.bytes->add(piece.length);
    path.operations->add();
    of(piece.direction).latency_ns->observe(static_cast<uint64_t>(std::max<int64_t>(time.count(), 0)));
}

}  // namespace mooncake::fabric
