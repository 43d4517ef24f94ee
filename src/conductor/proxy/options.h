// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "conductor/proxy/cluster.h"
#include "conductor/schedule/scheduler.h"

namespace mooncake::conductor {

struct ProxyOptions {
    std::string host;            // where clients reach us; empty: all addresses
    uint16_t port = 8000;        // 0: any free one
    std::string advertised_url;  // as decode instances reach us for callbacks; empty: host and port
    int threads = 2;
    std::string dialect = "vllm-pull";
    SchedulerOptions scheduler{.window = 1s};
    uint32_t block_tokens = 512;
    uint32_t attempts_max = 3;
    size_t body_bytes_max = 64 << 20, answer_bytes_max = 256 << 20;
    Duration prefill_timeout = 300s;      // for the answer of a prefill instance, and for a decode instance to call back
    Duration first_token_timeout = 300s;  // for the header of a decode instance's answer
    Duration stream_timeout = 120s;       // between two pieces of a stream
    Duration client_timeout = 60s;        // for a client to take a piece, or to send its request
    Duration queue_timeout = 300s;        // to wait for its turn
    Duration nobody_timeout = 2s;         // to wait for an instance that is fit; most outages are shorter than a client's patience
    Duration idle_timeout = 75s;          // of a client's connection between two requests
    Duration probe_interval = 5s, probe_timeout = 2s;
    Duration ill_probe_interval = 250ms;  // of instances that are not fit
    size_t connections_max = 20'000;
    std::string api_key;  // asked for by the pages that change something; empty: not
    std::vector<MemberSpec> members{};
};

}  // namespace mooncake::conductor
