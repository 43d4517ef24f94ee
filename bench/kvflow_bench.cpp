// SPDX-License-Identifier: Apache-2.0
// Moving the KV cache of one request between unequal sides: two prefill ranks of one head each to one decode rank of two, against the same bytes in one piece per
// layer and source, in turns. kvflow_bench [shm|tcp] [token|head] [layers] [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/log.h"
#include "engine/engine.h"
#include "kvflow/flow.h"
#include "kvplan/ownership.h"

using namespace mooncake;
using namespace mooncake::kvplan;

namespace {

constexpr uint32_t kHeads = 2, kBlockTokens = 16;
constexpr uint64_t kTokens = 12035, kCell = 256, kBlocks = (kTokens + kBlockTokens - 1) / kBlockTokens;

struct Side {
    std::vector<std::unique_ptr<Engine>> engines;
    std::vector<Rank> ranks;
};

Side make_side(uint32_t tp, uint32_t layers, bool head_major, const std::string& transport) {
    Side side;
    for (uint32_t number = 0; number < tp; ++number) {
        EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
        config.options.transports = {transport};
        side.engines.push_back(Engine::create(std::move(config)).value());
        const HeadRange heads = heads_of_rank(kHeads, tp, number).value();
        const uint64_t length = 2 * kBlocks * kBlockTokens * heads.count * kCell;
        void* const memory = side.engines.back()->allocate_memory(2 * layers * length).value();
        std::memset(memory, static_cast<int>(number), 2 * layers * length);
        Rank rank{.segment = side.engines.back()->segment_name(), .regions = {}};
        auto base = reinterpret_cast<uint64_t>(memory);
        for (uint32_t i = 0; i < 2 * layers; ++i, base += length) {
            Region region{.layer = "model.layers." + std::to_string(i / 2), .part = i % 2 == 0 ? "k" : "v", .base = base, .length = length};
            region.blocks = 2 * kBlocks;
            region.block_tokens = kBlockTokens;
            region.cell_bytes = kCell;
            region.head_stride = head_major ? kCell * kBlockTokens : kCell;
            region.token_stride = head_major ? kCell : kCell * heads.count;
            region.block_stride = kCell * heads.count * kBlockTokens;
            region.first_head = heads.first;
            region.heads = heads.count;
            region.total_heads = kHeads;
            rank.regions.push_back(std::move(region));
        }
        side.ranks.push_back(std::move(rank));
    }
    return side;
}

std::vector<RankBlocks> make_blocks(size_t ranks, uint64_t factor) {
    BlockTable table;
    for (uint64_t i = 0; i < kBlocks; ++i) table.blocks.push_back(i * factor % (2 * kBlocks));
    return std::vector<RankBlocks>(ranks, RankBlocks{table});
}

template <typename Work>
double seconds_of(Work work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
}

/// The bytes of the plan, as if they lay together: each half of a region from one source.
void move_contiguous(Side& sources, Side& target) {
    std::vector<std::pair<Engine*, BatchId>> batches;
    const Rank& to = target.ranks[0];
    for (size_t i = 0; i < sources.ranks.size(); ++i) {
        std::vector<Block> blocks;
        const uint64_t length = kTokens * kCell;
        for (size_t region = 0; region < to.regions.size(); ++region)
            blocks.push_back({.local = reinterpret_cast<std::byte*>(to.regions[region].base + i * length),
                              .remote = sources.ranks[i].regions[region].base,
                              .length = length});
        batches.emplace_back(target.engines[0].get(),
                             target.engines[0]->submit(sources.ranks[i].segment, Direction::kRead, blocks).value());
    }
    for (const auto& [engine, batch] : batches) {
        if (engine->wait_batch(batch).value().state != TransferState::kCompleted) std::abort();
        (void)engine->free_batch(batch);
    }
}

}  // namespace

int main(int count, char** arguments) {
    const std::string transport = count > 1 ? arguments[1] : "shm", order = count > 2 ? arguments[2] : "token";
    const auto layers = static_cast<uint32_t>(count > 3 ? std::atoi(arguments[3]) : 8);
    const int rounds = count > 4 ? std::atoi(arguments[4]) : 15;
    Side sources = make_side(2, layers, order == "head", transport), target = make_side(1, layers, order == "head", transport);
    const auto source_blocks = make_blocks(2, 7), target_blocks = make_blocks(1, 11);
    const kvplan::Request request{
        .seed = 1, .first_token = 0, .tokens = kTokens, .source_blocks = source_blocks, .target_blocks = target_blocks};
    std::vector<double> planning, starting, flowing, together;
    uint64_t bytes = 0;
    for (int round = 0; round < rounds + 2; ++round) {
        std::unique_ptr<Flow> flow;
        kvplan::Plan plan;
        planning.push_back(seconds_of([&] { plan = make_plan(sources.ranks, target.ranks, request).value(); }));
        flow = Flow::create(*target.engines[0],
                            {.sources = sources.ranks, .targets = target.ranks, .plan = std::move(plan), .direction = Direction::kRead},
                            Deadline::never())
                   .value();
        flowing.push_back(seconds_of([&] {
            starting.push_back(seconds_of([&] {
                if (!flow->submit("", {})) std::abort();
            }));
            bytes = flow->wait(Deadline::never()).value();
        }));
        together.push_back(seconds_of([&] { move_contiguous(sources, target); }));
        if (round >= 2) continue;
        planning.clear(), starting.clear(), flowing.clear(), together.clear();  // connecting, and pages
    }
    std::printf("%s, %s-major, %u layers, %.1f MB: plan %.2f ms, submit %.2f ms, %.2f GB/s, in one piece %.2f GB/s, ratio %.2f\n",
                transport.c_str(), order.c_str(), layers, static_cast<double>(bytes) / 1e6, median(planning) * 1e3, median(starting) * 1e3,
                static_cast<double>(bytes) / median(flowing) / 1e9, static_cast<double>(bytes) / median(together) / 1e9,
                median(together) / median(flowing));
}
