// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/common/flags_log.h"
#include "apps/common/flags_set.h"
#include "base/options.h"
#include "commands.h"
#include "conductor/simulate/simulator.h"

namespace mooncake {

namespace {

using namespace conductor;

struct SimulateFlags {
    std::string trace, policy = "random,least_loaded,local,global,flow", plot;
    int64_t nodes = 10, stages = 1, chunk_tokens = 4096, cache_blocks = 6000, decode_nodes = 0, seed = 1;
    double speed = 1, tflops = 0.5 * 8 * 312, copy_gbytes = 87, copy_threshold = 1.3, aging = 0.5, ttft_target = 0, tbt_target = 0;
    store::LogFlags log;
};

store::FlagSet flag_set(SimulateFlags& flags) {
    store::FlagSet set;
    set.add({"trace", &flags.trace, "the file of requests: lines of JSON with timestamp, input_length, output_length and hash_ids"});
    set.add({"policy", &flags.policy, "which policies to try, separated by commas"});
    set.add({"plot", &flags.plot, "write the distribution of the time to the first token to this SVG file"});
    set.add({"nodes", &flags.nodes, "prefill nodes", true, 1, 100'000});
    set.add({"stages", &flags.stages, "nodes that form one pipeline", true, 1, 1000});
    set.add({"chunk_tokens", &flags.chunk_tokens, "tokens of a chunk in a pipeline", true, 1, 1e6});
    set.add({"cache_blocks", &flags.cache_blocks, "blocks of 512 tokens that a node caches", true, 0, 1e9});
    set.add({"tflops", &flags.tflops, "what a node computes per second, in units of 10^12", true, 1e-3});
    set.add({"copy_gbytes", &flags.copy_gbytes, "GB that are copied between two nodes per second", true, 1e-3});
    set.add({"copy_threshold", &flags.copy_threshold, "policy global: how much longer a prefix elsewhere must be to be copied", true, 1});
    set.add({"aging", &flags.aging, "policy flow: a second of waiting counts as so many seconds less work"});
    set.add({"decode_nodes", &flags.decode_nodes, "decode nodes; 0: prefill alone", true, 0, 100'000});
    set.add({"ttft_target", &flags.ttft_target, "refuse requests whose first token would take longer, in seconds; 0: none"});
    set.add({"tbt_target", &flags.tbt_target, "refuse requests whose tokens would come more slowly, in seconds; 0: none"});
    set.add({"speed", &flags.speed, "replay so many times as fast", true, 1e-3});
    set.add({"seed", &flags.seed, "of the policy random"});
    store::add_log_flags(set, flags.log);
    return set;
}

SimulationOptions options_of(const SimulateFlags& flags, Policy policy) {
    SimulationOptions options;
    options.scheduler.policy = policy;
    options.scheduler.copy_bytes_per_second = flags.copy_gbytes * 1e9;
    options.scheduler.copy_threshold = flags.copy_threshold;
    options.scheduler.aging = flags.aging;
    options.scheduler.seed = static_cast<uint64_t>(flags.seed);
    options.scheduler.waiting_max = ~size_t{0};
    if (flags.ttft_target > 0) options.scheduler.ttft_target = flags.ttft_target;
    if (flags.tbt_target > 0) options.scheduler.tbt_target = flags.tbt_target;
    options.nodes = static_cast<uint32_t>(flags.nodes);
    options.stages = static_cast<uint32_t>(flags.stages);
    options.chunk_tokens = static_cast<uint32_t>(flags.chunk_tokens);
    options.cache_blocks_per_node = static_cast<size_t>(flags.cache_blocks);
    options.flops_per_second = flags.tflops * 1e12;
    options.decode_nodes = static_cast<uint32_t>(flags.decode_nodes);
    options.speed = flags.speed;
    return options;
}

Result<> write_file(const std::string& path, const std::string& text) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "w"), &std::fclose);
    if (!file) return fail_errno(Code::kUnavailable, errno, "cannot write {}", path);
    if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size())
        return fail_errno(Code::kUnavailable, errno, "cannot write {}", path);
    return {};
}

void print_result(std::string_view policy, const SimulationResult& result) {
    std::printf("%-14.*s %5.1f %%  %8.3f s  %8.2f s  %8.2f s", static_cast<int>(policy.size()), policy.data(), result.hit_ratio() * 100,
                result.mean_ttft, result.quantile(0.5), result.quantile(0.99));
    if (result.mean_tbt > 0) std::printf("  tbt %6.1f ms", result.mean_tbt * 1000);
    for (const auto& [reason, count] : result.rejected)
        std::printf("  refused (%s) %llu", reason.c_str(), static_cast<unsigned long long>(count));
    std::printf("\n");
}

}  // namespace

Result<int> run_simulate(std::span<const std::string> arguments) {
    SimulateFlags flags;
    store::FlagSet set = flag_set(flags);
    MC_ASSIGN_OR_RETURN(const auto assignments, set.split(arguments));
    for (const auto& [name, text] : assignments) MC_RETURN_IF_ERROR(set.set(name, text));
    if (flags.log.help) return std::fputs(set.help().c_str(), stdout) < 0 ? 1 : 0;
    if (flags.trace.empty()) return fail(Code::kInvalidArgument, "--trace is missing");
    MC_ASSIGN_OR_RETURN(const auto trace, read_trace(flags.trace));
    std::printf("%zu requests, %lld nodes in pipelines of %lld\n", trace.size(), static_cast<long long>(flags.nodes),
                static_cast<long long>(flags.stages));
    std::printf("%-14s %7s  %10s  %10s  %10s\n", "policy", "hits", "mean TTFT", "p50", "p99");
    std::vector<Curve> curves;
    for (const std::string& name : split_list(flags.policy)) {
        MC_ASSIGN_OR_RETURN(const Policy policy, parse_policy(name));
        MC_ASSIGN_OR_RETURN(SimulationResult result, simulate(trace, options_of(flags, policy)));
        print_result(name, result);
        curves.push_back({.name = fmt::format("{} ({:.2f} s)", name, result.mean_ttft), .values = std::move(result.ttft)});
    }
    if (!flags.plot.empty()) MC_RETURN_IF_ERROR(write_file(flags.plot, plot_shares("Time to the first token", "seconds", curves)));
    return 0;
}

}  // namespace mooncake
