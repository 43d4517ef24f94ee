// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "apps/common/flags_log.h"
#include "apps/common/flags_set.h"
#include "apps/common/stop_signals.h"
#include "base/log.h"
#include "base/options.h"
#include "commands.h"
#include "conductor/proxy/pages.h"
#include "conductor/proxy/server.h"

namespace mooncake {

namespace {

using namespace conductor;

struct ProxyFlags {
    ProxyOptions options;
    std::string prefill, decode, both, policy = "flow";
    int64_t port = 8000, threads = 2, block_tokens = 512, attempts = 3, tenant_requests = 0, connections = 20'000;
    double ttft_target = 0, tbt_target = 0, tenant_tokens_per_second = 0;
    store::LogFlags log;
};

void add_flags(store::FlagSet& set, ProxyFlags& flags) {
    ProxyOptions& options = flags.options;
    set.add({"host", &options.host, "where to listen; empty: all addresses"});
    set.add({"port", &flags.port, "where to listen; 0: any free port", true, 0, 65535});
    set.add({"prefill", &flags.prefill, "prefill instances, host:port or host:port/BOOTSTRAP_PORT, separated by commas"});
    set.add({"decode", &flags.decode, "decode instances, host:port, separated by commas"});
    set.add({"both", &flags.both, "instances that do both, separated by commas"});
    set.add({"dialect", &options.dialect, "vllm-mooncake, vllm-pull, ascend-pull, ascend-layerwise, sglang or vllm-multiturn"});
    set.add({"policy", &flags.policy, "random, round_robin, least_loaded, local, global or flow"});
    set.add({"threads", &flags.threads, "I/O threads", true, 1, 64});
    set.add({"block_tokens", &flags.block_tokens, "tokens of a block by which cached prefixes are known", true, 1, 1e6});
    set.add({"attempts", &flags.attempts, "how often a request is tried while nothing was streamed", true, 1, 100});
    set.add({"ttft_target", &flags.ttft_target, "refuse requests whose first token would take longer, in seconds; 0: none"});
    set.add({"tbt_target", &flags.tbt_target, "refuse requests whose tokens would come more slowly, in seconds; 0: none"});
    set.add({"tenant_requests", &flags.tenant_requests, "requests of one tenant (X-Tenant-Id) at the same time; 0: any number"});
    set.add({"tenant_tokens_per_second", &flags.tenant_tokens_per_second, "prompt tokens of one tenant; 0: any number"});
    set.add({"window", store::Milliseconds{&options.scheduler.window},
             "an instance is given more when its work is expected to end within so long"});
    set.add({"prefill_timeout", store::Seconds{&options.prefill_timeout}, "for the answer of a prefill instance"});
    set.add({"first_token_timeout", store::Seconds{&options.first_token_timeout}, "for the first byte of a decode instance"});
    set.add({"stream_timeout", store::Seconds{&options.stream_timeout}, "between two pieces of a stream"});
    set.add({"queue_timeout", store::Seconds{&options.queue_timeout}, "to wait for its turn"});
    set.add({"nobody_timeout", store::Milliseconds{&options.nobody_timeout}, "to wait for an instance that is fit, before 503"});
    set.add({"probe_interval", store::Seconds{&options.probe_interval}, "between two looks at /health of each instance; 0: none"});
    set.add({"advertised_url", &options.advertised_url, "how decode instances reach us, for dialects that call back"});
    set.add({"api_key", &options.api_key, "asked for (X-API-Key) by pages that change something"});
    set.add({"connections", &flags.connections, "clients at the same time", true, 1, 1e6});
    store::add_log_flags(set, flags.log);
}

Result<> add_members(const std::string& list, Role role, ProxyOptions& options) {
    for (const std::string& address : split_list(list)) {
        MC_ASSIGN_OR_RETURN(MemberSpec spec, parse_member_address(address, role));
        options.members.push_back(std::move(spec));
    }
    return {};
}

Result<> finish(ProxyFlags& flags) {
    ProxyOptions& options = flags.options;
    MC_ASSIGN_OR_RETURN(options.scheduler.policy, parse_policy(flags.policy));
    MC_RETURN_IF_ERROR(add_members(flags.prefill, Role::kPrefill, options));
    MC_RETURN_IF_ERROR(add_members(flags.decode, Role::kDecode, options));
    MC_RETURN_IF_ERROR(add_members(flags.both, Role::kBoth, options));
    options.port = static_cast<uint16_t>(flags.port);
    options.threads = static_cast<int>(flags.threads);
    options.block_tokens = static_cast<uint32_t>(flags.block_tokens);
    options.attempts_max = static_cast<uint32_t>(flags.attempts);
    options.connections_max = static_cast<size_t>(flags.connections);
    if (flags.ttft_target > 0) options.scheduler.ttft_target = flags.ttft_target;
    if (flags.tbt_target > 0) options.scheduler.tbt_target = flags.tbt_target;
    options.scheduler.tenant = {.requests_max = static_cast<uint32_t>(flags.tenant_requests),
                                .tokens_per_second = flags.tenant_tokens_per_second};
    return {};
}

}  // namespace

Result<int> run_proxy(std::span<const std::string> arguments) {
    StopSignals signals;
    ProxyFlags flags;
    store::FlagSet set;
    add_flags(set, flags);
    MC_ASSIGN_OR_RETURN(const auto assignments, set.split(arguments));
    for (const auto& [name, text] : assignments) MC_RETURN_IF_ERROR(set.set(name, text));
    if (flags.log.help) return std::fputs(set.help().c_str(), stdout) < 0 ? 1 : 0;
    MC_RETURN_IF_ERROR(finish(flags));
    store::configure_program_log(flags.log, load_options(process_environment()).log, "mooncake");
    metrics::Registry registry;
    MC_ASSIGN_OR_RETURN(const auto server, ProxyServer::create(flags.options, registry));
    // The line that scripts wait for.
    std::printf("Proxy started on port %u\n", server->port());
    std::fflush(stdout);
    const int number = signals.wait();  // not as an argument of what may not be logged
    MC_LOG_INFO("ending on signal {}", number);
    server->stop();
    return 0;
}

}  // namespace mooncake
