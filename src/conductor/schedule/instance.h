// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conductor/schedule/breaker.h"
#include "conductor/schedule/cost.h"
#include "conductor/schedule/request.h"

namespace mooncake::conductor {

enum class Role : uint8_t { kPrefill, kDecode, kBoth };
constexpr bool prefills(Role role) noexcept { return role != Role::kDecode; }
constexpr bool decodes(Role role) noexcept { return role != Role::kPrefill; }

struct InstanceSpec {
    std::string name;
    Role role = Role::kBoth;
    size_t cache_blocks = 6000;
    Pipeline pipeline{};
    double flops_per_second = 0.5 * 8 * 312e12;
    uint64_t kv_tokens_max = 0;                                                        // what a decode instance can hold; 0: no limit known
    double step_seconds = 0.02, per_request_seconds = 2e-4, per_token_seconds = 2e-8;  // first guess of the time between tokens
};

/// One stay of a request on a decode instance: from when to when it is expected there, and how much it holds.
struct DecodeStay {
    RequestId request = 0;
    Time begin, end;
    uint64_t tokens = 0;
};

struct DecodeLoad {
    double requests = 0, tokens = 0;
};

/// What the scheduler knows of one instance.
struct Instance {
    Instance(InstanceSpec what, const ModelShape& shape, const BreakerOptions& breaking)
        : spec(std::move(what)), breaker(breaking), prefill_cost(shape, spec.flops_per_second, spec.pipeline),
          decode_cost(spec.step_seconds, spec.per_request_seconds, spec.per_token_seconds) {}

    InstanceSpec spec;
    bool draining = false, removed = false;  // a removed one stays until its last request is over
    bool healthy = true;                     // what the last probes said
    Breaker breaker;
    PrefillCost prefill_cost;
    DecodeCost decode_cost;

    Time busy_until{};               // when what was started there is expected to be done
    std::vector<RequestId> waiting;  // bound to it, not yet started
    uint32_t prefilling = 0;         // started, not over
    double prefilling_seconds = 0;   // how long those occupy it
    std::vector<DecodeStay> decoding;
    uint32_t jobs = 0;  // how many placements name it

    bool takes_requests(Time now) const noexcept { return !draining && !removed && healthy && breaker.allows(now); }
    /// Who will be decoding at a moment to come, those included whose prefill ends before it. Who should have ended and did not counts, too.
    DecodeLoad load_at(Time moment, Time now) const noexcept {
        DecodeLoad load;
        for (const DecodeStay& stay : decoding) {
            if (stay.begin > moment || (stay.end <= moment && stay.end > now)) continue;
            load.requests += 1;
            load.tokens += static_cast<double>(stay.tokens);
        }
        return load;
    }
    /// The most that may have to be held from a moment on: everybody who is not gone by then.
    uint64_t tokens_from(Time moment, Time now) const noexcept {
        uint64_t tokens = 0;
        for (const DecodeStay& stay : decoding) {
            if (stay.end > moment || stay.end <= now) tokens += stay.tokens;
        }
        return tokens;
    }
};

}  // namespace mooncake::conductor
