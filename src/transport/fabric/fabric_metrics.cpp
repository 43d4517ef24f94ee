// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric_metrics.h"

namespace mooncake::fabric {

RailMetrics::RailMetrics(metrics::Registry& registry, const std::string& nic) {
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
        };
    }
    constexpr std::array<const char*, 5> kClasses = {"none", "path", "stale", "misuse", "again"};
    for (size_t i = 0; i < errors.size(); ++i)
        errors[i] = &registry.counter("mooncake_fabric_errors_total", "Operations that failed, repeated ones included.",
                                      with("class", kClasses[i]));
    unattributed_errors = &registry.counter("mooncake_fabric_unattributed_errors_total",
                                            "Errors of which the provider did not say whose they are.", own);
    again = &registry.counter("mooncake_fabric_again_total", "Posts that the provider had no room for, or no connection.", own);
    recycles = &registry.counter("mooncake_fabric_recycles_total", "Initiating endpoints thrown away with what was stuck on them.", own);
    fences = &registry.counter("mooncake_fabric_fences_total", "Serving endpoints closed so that nothing sent earlier can land.", own);
    in_flight = &registry.gauge("mooncake_fabric_in_flight", "Operations posted and not yet finished.", own);
    pages_used = &registry.gauge("mooncake_fabric_pages", "Page entries of the NIC, used and known to be there.", with("kind", "used"));
    pages_limit = &registry.gauge("mooncake_fabric_pages", "Page entries of the NIC, used and known to be there.", with("kind", "limit"));
}

}  // namespace mooncake::fabric
