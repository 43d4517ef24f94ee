// SPDX-License-Identifier: Apache-2.0
// What planning one request costs: 12,035 tokens, 80 layers, 8 prefill ranks to 4 decode ranks, one head (256 bytes of K, of V) to two. Wall-clock
// times say more about the machine than about the code, so each is also given in passes of the simplest loop over as many descriptors (`raw`).
// Run under `perf stat -e instructions:u` or callgrind with one case and one repeat for counts: kvplan_bench plan|expand|raw [token|head] [repeats].
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "kvplan/ownership.h"
#include "kvplan/plan.h"

using namespace mooncake;
using namespace mooncake::kvplan;

namespace {

constexpr uint32_t kLayers = 80, kHeads = 8, kBlockTokens = 16;
constexpr uint64_t kTokens = 12035, kCell = 256, kBlocks = (kTokens + kBlockTokens - 1) / kBlockTokens;

Rank make_rank(uint32_t ranks, uint32_t number, bool head_major) {
    Rank rank{.segment = "rank", .regions = {}};
    const HeadRange heads = heads_of_rank(kHeads, ranks, number).value();
    uint64_t base = uint64_t{1} << 40;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (const char* part : {"k", "v"}) {
            Region region;
            region.layer = "model.layers." + std::to_string(layer) + ".self_attn.attn";
            region.part = part;
            region.base = base;
            region.blocks = 2 * kBlocks;
            region.block_tokens = kBlockTokens;
            region.cell_bytes = kCell;
            region.head_stride = head_major ? kCell * kBlockTokens : kCell;
            region.token_stride = head_major ? kCell : kCell * heads.count;
            region.block_stride = kCell * heads.count * kBlockTokens;
            region.length = region.block_stride * region.blocks;
            region.first_head = heads.first;
            region.heads = heads.count;
            region.total_heads = kHeads;
            base += region.length;
            rank.regions.push_back(std::move(region));
        }
    }
    return rank;
}

/// Blocks as a used pool hands them out: no two neighbours in order.
std::vector<RankBlocks> make_blocks(size_t ranks, uint64_t factor) {
    BlockTable table;
    for (uint64_t i = 0; i < kBlocks; ++i) table.blocks.push_back(i * factor % (2 * kBlocks));
    return std::vector<RankBlocks>(ranks, RankBlocks{table});
}

template <typename Work>
double seconds_of(int repeats, Work work) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

/// Keeps the compiler from dropping what nobody reads.
void use(const void* memory) { asm volatile("" : : "g"(memory) : "memory"); }

void write_raw(uint64_t pieces) {
    static std::vector<Piece> buffer(4096);
    for (uint64_t done = 0; done < pieces; done += buffer.size()) {
        for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = {done + i * 256, done + i * 512, 256};
        use(buffer.data());
    }
}

}  // namespace

int main(int count, char** arguments) {
    const std::string_view what = count > 1 ? arguments[1] : "all", order = count > 2 ? arguments[2] : "token";
    const int repeats = count > 3 ? std::atoi(arguments[3]) : 20;
    std::vector<Rank> sources, targets;
    for (uint32_t i = 0; i < 8; ++i) sources.push_back(make_rank(8, i, order == "head"));
    for (uint32_t i = 0; i < 4; ++i) targets.push_back(make_rank(4, i, order == "head"));
    const std::vector<RankBlocks> source_blocks = make_blocks(8, 7), target_blocks = make_blocks(4, 11);
    const Request request{.seed = 1, .first_token = 0, .tokens = kTokens, .source_blocks = source_blocks, .target_blocks = target_blocks};
    const auto plan = make_plan_of_source(sources, targets, request, 0);
    if (!plan) {
        std::fprintf(stderr, "%s\n", plan.error().to_string().c_str());
        return 1;
    }
    const PairPlan& pair = plan->pairs[0];
    uint64_t pieces = 0;
    const auto expand_all = [&] {
        pieces = expand(pair, sources[pair.source], targets[pair.target], "", 4096, [](std::span<const Piece> some) { use(some.data()); });
    };
    double planning = 0, expanding = 0, raw = 0;
    if (what == "plan" || what == "all")
        planning = seconds_of(repeats, [&] {
            const auto made = make_plan_of_source(sources, targets, request, 0);
            use(&made);
        });
    if (what != "plan") expand_all();
    if (what == "expand" || what == "all") expanding = seconds_of(repeats, expand_all);
    if (what == "raw" || what == "all") raw = seconds_of(repeats, [&] { write_raw(pieces); });
    std::printf("%s-major: %zu strips, %zu runs, %llu bytes, %llu pieces; plan %.3f ms, expand %.3f ms, raw %.3f ms, expand/raw %.2f\n",
                order.data(), pair.strips.size(), pair.run_sets[0].size(), static_cast<unsigned long long>(pair.bytes),
                static_cast<unsigned long long>(pieces), planning * 1e3, expanding * 1e3, raw * 1e3, raw > 0 ? expanding / raw : 0.0);
    return 0;
}
