// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "conductor/schedule/instance.h"

namespace mooncake::conductor {

/// How a prefill instance is chosen.
enum class Policy : uint8_t {
    kRandom,
    kRoundRobin,
    kLeastLoaded,  // the shortest queue
    kLocal,        // the earliest first token, with what the instance itself has cached
    kGlobal,       // the same, where blocks of others may be copied when that pays
    kFlow,         // the least time for this request and for those that it delays; short prompts go first
};
Result<Policy> parse_policy(std::string_view name);
std::string_view policy_name(Policy policy) noexcept;
/// Whether short prompts overtake long ones that wait.
constexpr bool orders_by_length(Policy policy) noexcept { return policy == Policy::kFlow; }

/// What one instance would do with a request.
struct Offer {
    InstanceId instance = kNoInstance;
    uint32_t reused_blocks = 0, local_blocks = 0;
    double transfer = 0;  // seconds to bring the blocks that are reused and not there
    double wait = 0;      // seconds until its turn
    PrefillTime compute;
    double delay = 0;  // seconds that all others wait longer because of it
    double load = 0;   // seconds of work that are there already

    double ttft(bool overlap) const noexcept { return (overlap ? std::max(wait, transfer) : wait + transfer) + compute.latency; }
};

struct OfferTerms {
    const Request* request = nullptr;
    uint32_t local_blocks = 0;  // from the first on, on this instance
    uint32_t best_blocks = 0;   // anywhere
    double kv_bytes_per_token = 0, copy_bytes_per_second = 0;
    double copy_threshold = 1.3;
    Policy policy = Policy::kFlow;
};

/// The first of the offers that the policy likes best; none if there are none. `turn`: a number for round robin, `random`: one for chance.
const Offer* choose_offer(std::span<const Offer> offers, Policy policy, uint64_t turn, uint64_t random) noexcept;
/// How many of the best known blocks to bring to an instance.
uint32_t blocks_to_reuse(const OfferTerms& terms, const PrefillCost& cost) noexcept;
double copy_seconds(const OfferTerms& terms, uint32_t blocks) noexcept;

/// Tokens in the first blocks of a request; the last one may not be full.
inline uint64_t tokens_in(const Request& request, uint32_t blocks) noexcept {
    return std::min<uint64_t>(uint64_t{blocks} * request.block_tokens, request.tokens);
}

}  // namespace mooncake::conductor
