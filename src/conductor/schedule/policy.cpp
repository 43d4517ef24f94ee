// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/policy.h"

#include <algorithm>
#include <array>
#include <utility>

namespace mooncake::conductor {

namespace {

constexpr std::array<std::pair<std::string_view, Policy>, 6> kNames{{{"random", Policy::kRandom},
                                                                     {"round_robin", Policy::kRoundRobin},
                                                                     {"least_loaded", Policy::kLeastLoaded},
                                                                     {"local", Policy::kLocal},
                                                                     {"global", Policy::kGlobal},
                                                                     {"flow", Policy::kFlow}}};

double score(const Offer& offer, Policy policy) noexcept {
    switch (policy) {
        case Policy::kLeastLoaded: return offer.load;
        case Policy::kFlow: return offer.ttft(true) + offer.delay;
        default: return offer.ttft(false);
    }
}

}  // namespace

Result<Policy> parse_policy(std::string_view name) {
    for (const auto& [known, policy] : kNames) {
        if (known == name) return policy;
    }
    return fail(Code::kInvalidArgument, "no policy {}: there are random, round_robin, least_loaded, local, global and flow", name);
}

std::string_view policy_name(Policy policy) noexcept { return kNames[static_cast<size_t>(policy)].first; }

const Offer* choose_offer(std::span<const Offer> offers, Policy policy, uint64_t turn, uint64_t random) noexcept {
    if (offers.empty()) return nullptr;
    if (policy == Policy::kRandom) return &offers[random % offers.size()];
    if (policy == Policy::kRoundRobin) return &offers[turn % offers.size()];
    return &*std::min_element(offers.begin(), offers.end(),
                              [&](const Offer& a, const Offer& b) { return score(a, policy) < score(b, policy); });
}

uint32_t blocks_to_reuse(const OfferTerms& terms, const PrefillCost& cost) noexcept {
    const uint32_t local = terms.local_blocks, best = terms.best_blocks;
    if (best <= local) return local;
    const Request& request = *terms.request;
    switch (terms.policy) {
        case Policy::kGlobal: return best > terms.copy_threshold * local ? best : local;
        case Policy::kFlow: {
            // Copying pays where it takes less time than computing.
            const double copied = copy_seconds(terms, best) + cost.predict(request.tokens, tokens_in(request, best)).latency;
            return copied < cost.predict(request.tokens, tokens_in(request, local)).latency ? best : local;
        }
        default: return local;
    }
}

double copy_seconds(const OfferTerms& terms, uint32_t blocks) noexcept {
    if (blocks <= terms.local_blocks) return 0;
    const uint64_t tokens = tokens_in(*terms.request, blocks) - tokens_in(*terms.request, terms.local_blocks);
    return static_cast<double>(tokens) * terms.kv_bytes_per_token / terms.copy_bytes_per_second;
}

const char* reason_name(RejectReason reason) noexcept {
    switch (reason) {
        case RejectReason::kNobody: return "no_instance";
        case RejectReason::kTtft: return "ttft";
        case RejectReason::kTbt: return "tbt";
        case RejectReason::kTenant: return "tenant";
        case RejectReason::kQueueFull: return "queue_full";
    }
    return "unknown";
}

}  // namespace mooncake::conductor
