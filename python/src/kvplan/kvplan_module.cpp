// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "failures.h"
#include "kv_flow.h"
#include "kvplan/ownership.h"
#include "kvplan/shards.h"
#include "kvplan/tensors.h"

namespace mooncake::python {
namespace {

using namespace nb::literals;
using kvplan::BlockTable;
using kvplan::RankBlocks;
using kvplan::Region;
using Ranks = std::vector<kvplan::Rank>;

/// ValueError: the caller's layouts do not fit together, and the text says where.
template <typename T>
T value_of(const char* call, Result<T> result) {
    if (result) return std::move(*result);
    record_failure(call, result.error());
    throw nb::value_error(result.error().to_string().c_str());
}

void bind_layouts(nb::module_& module) {
    nb::class_<Region>(module, "Region", "Cells of one part of one layer in the memory of one rank.")
        .def(nb::new_([](std::string layer, std::string part, uint64_t base, uint64_t length, uint64_t blocks, uint32_t block_tokens,
                         uint64_t block_stride, uint64_t token_stride, uint64_t head_stride, uint64_t cell_bytes, uint32_t first_head,
                         uint32_t heads, uint32_t total_heads, uint32_t rows, uint32_t group) {
                 return Region{std::move(layer), std::move(part), base,       length, blocks,      block_tokens, block_stride, token_stride,
                               head_stride,      cell_bytes,      first_head, heads,  total_heads, rows,         group};
             }),
             nb::kw_only(), "layer"_a, "part"_a = "kv", "base"_a, "length"_a, "blocks"_a, "block_tokens"_a, "block_stride"_a,
             "token_stride"_a, "head_stride"_a, "cell_bytes"_a, "first_head"_a = 0, "heads"_a = 1, "total_heads"_a = 1, "rows"_a = 0,
             "group"_a = 0)
        .def_ro("layer", &Region::layer)
        .def_ro("part", &Region::part)
        .def_ro("base", &Region::base)
        .def_ro("length", &Region::length)
        .def_ro("blocks", &Region::blocks)
        .def_ro("block_tokens", &Region::block_tokens)
        .def_ro("block_stride", &Region::block_stride)
        .def_ro("token_stride", &Region::token_stride)
        .def_ro("head_stride", &Region::head_stride)
        .def_ro("cell_bytes", &Region::cell_bytes)
        .def_ro("first_head", &Region::first_head)
        .def_ro("heads", &Region::heads)
        .def_ro("total_heads", &Region::total_heads)
        .def_ro("rows", &Region::rows)
        .def_ro("group", &Region::group);
    nb::class_<kvplan::Rank>(module, "Rank", "Where one process of a side keeps its share.")
        .def(nb::new_([](std::string segment, std::vector<Region> regions, uint32_t stripes, uint32_t stripe, uint32_t stripe_tokens) {
                 return kvplan::Rank{std::move(segment), stripes, stripe, stripe_tokens, std::move(regions)};
             }),
             "segment"_a, "regions"_a, nb::kw_only(), "stripes"_a = 1, "stripe"_a = 0, "stripe_tokens"_a = 1)
        .def_ro("segment", &kvplan::Rank::segment)
        .def_ro("regions", &kvplan::Rank::regions)
        .def_ro("stripes", &kvplan::Rank::stripes)
        .def_ro("stripe", &kvplan::Rank::stripe)
        .def_ro("stripe_tokens", &kvplan::Rank::stripe_tokens);
    nb::class_<BlockTable>(module, "BlockTable", "The blocks of one request in one group of a rank, in the order of its tokens.")
        .def(nb::new_([](std::vector<uint64_t> blocks, uint64_t first_token, uint64_t kept_from) {
                 return BlockTable{.first_token = first_token, .blocks = std::move(blocks), .kept_from = kept_from};
             }),
             "blocks"_a, nb::kw_only(), "first_token"_a = 0, "kept_from"_a = 0)
        .def_ro("blocks", &BlockTable::blocks)
        .def_ro("first_token", &BlockTable::first_token)
        .def_ro("kept_from", &BlockTable::kept_from);
}

/// What Python names by a letter or a word.
kvplan::Axis axis_from(const std::string& name) {
    using kvplan::Axis;
    for (const auto& [known, axis] :
         {std::pair{"layer", Axis::kLayer}, std::pair{"part", Axis::kPart}, std::pair{"block", Axis::kBlock},
          std::pair{"token", Axis::kToken}, std::pair{"head", Axis::kHead}, std::pair{"channel", Axis::kChannel}})
        if (name == known) return axis;
    throw nb::value_error(("an axis is layer, part, block, token, head or channel, not " + name).c_str());
}

std::vector<Region> regions_of_tensor(uint64_t base, uint32_t element_bytes,
                                      const std::vector<std::tuple<std::string, uint64_t, uint64_t>>& axes, std::vector<std::string> layers,
                                      std::vector<std::string> parts, uint32_t first_head, uint32_t total_heads, bool is_state,
                                      uint32_t group) {
    kvplan::Tensor tensor{.base = base,
                          .element_bytes = element_bytes,
                          .axes = {},
                          .layers = std::move(layers),
                          .parts = std::move(parts),
                          .first_head = first_head,
                          .total_heads = total_heads,
                          .is_state = is_state,
                          .group = group};
    for (const auto& [name, size, stride] : axes) tensor.axes.push_back({.axis = axis_from(name), .size = size, .stride = stride});
    return value_of("regions_of_tensor", kvplan::regions_of_tensor(tensor));
}

std::shared_ptr<KvPlan> make_plan(Ranks sources, Ranks targets, uint64_t tokens, std::vector<RankBlocks> source_blocks,
                                  std::vector<RankBlocks> target_blocks, uint64_t first_token, uint64_t seed,
                                  const std::vector<uint32_t>& only_targets, std::optional<uint32_t> only_source) {
    auto made = std::make_shared<KvPlan>(KvPlan{.sources = std::move(sources), .targets = std::move(targets), .plan = {}});
    const auto plan = [&]() -> Result<kvplan::Plan> {
        const kvplan::Request request{
            .seed = seed, .first_token = first_token, .tokens = tokens, .source_blocks = source_blocks, .target_blocks = target_blocks};
        if (only_source) return kvplan::make_plan_of_source(made->sources, made->targets, request, *only_source);
        return kvplan::make_plan(made->sources, made->targets, request, only_targets);
    };
    if (only_source && !only_targets.empty()) throw nb::value_error("only_source and only_targets exclude each other");
    made->plan = value_of("make_plan", exiting() ? plan() : without_gil(plan));
    return made;
}

/// Sources, targets and lengths of what one pair moves.
nb::tuple pieces_of(const KvPlan& self, size_t pair, const std::string& layer) {
    if (pair >= self.plan.pairs.size()) throw nb::index_error("no such pair");
    const kvplan::PairPlan& chosen = self.plan.pairs[pair];
    std::vector<uint64_t> sources, targets, lengths;
    const auto expand = [&] {
        return kvplan::expand(chosen, self.sources[chosen.source], self.targets[chosen.target], layer, SIZE_MAX,
                              [&](std::span<const kvplan::Piece> pieces) {
                                  for (const kvplan::Piece& piece : pieces) {
                                      sources.push_back(piece.source);
                                      targets.push_back(piece.target);
                                      lengths.push_back(piece.bytes);
                                  }
                              });
    };
    if (exiting()) expand();
    else without_gil(expand);
    return nb::make_tuple(std::move(sources), std::move(targets), std::move(lengths));
}

void bind_plans(nb::module_& module) {
    nb::class_<kvplan::PairPlan>(module, "Pair", "What one source sends to one target.")
        .def_ro("source", &kvplan::PairPlan::source)
        .def_ro("target", &kvplan::PairPlan::target)
        .def_ro("bytes", &kvplan::PairPlan::bytes);
    nb::class_<KvPlan>(module, "Plan", "Which bytes go where. Made by make_plan().")
        .def_ro("sources", &KvPlan::sources)
        .def_ro("targets", &KvPlan::targets)
        .def_prop_ro(
            "pairs", [](const KvPlan& self) { return self.plan.pairs; }, "Those with anything to move, by target, then source.")
        .def_prop_ro(
            "sources_of", [](const KvPlan& self) { return self.plan.sources_of; }, "How many sources each target hears from.")
        .def_prop_ro(
            "targets_of", [](const KvPlan& self) { return self.plan.targets_of; }, "How many targets each source serves.")
        .def("pieces", pieces_of, "pair"_a, "layer"_a = "",
             "Addresses in the source, addresses in the target, and lengths of everything the pair (its index) moves for one layer, or for "
             "all.");
    module.def("_make_plan", make_plan, "sources"_a, "targets"_a, "tokens"_a, "source_blocks"_a, "target_blocks"_a, "first_token"_a,
               "seed"_a, "only_targets"_a, "only_source"_a.none());
    module.def("_regions_of_tensor", regions_of_tensor, "base"_a, "element_bytes"_a, "axes"_a, "layers"_a, "parts"_a, "first_head"_a,
               "total_heads"_a, "is_state"_a, "group"_a);
}

/// What Python says of a stage: its parts as (layer, part, total heads, bytes of a cell), and the number of shards of its heads.
using StageTuple = std::tuple<std::vector<std::tuple<std::string, std::string, uint32_t, uint64_t>>, uint32_t>;

kvplan::ShardGrid grid_from(const std::vector<StageTuple>& stages, uint32_t block_tokens) {
    kvplan::ShardGrid grid{.stages = {}, .block_tokens = block_tokens};
    for (const auto& [parts, cuts] : stages) {
        kvplan::ShardStage& stage = grid.stages.emplace_back(kvplan::ShardStage{.parts = {}, .head_cuts = cuts});
        for (const auto& [layer, part, heads, bytes] : parts) stage.parts.push_back({layer, part, heads, bytes});
    }
    return grid;
}

std::shared_ptr<KvPlan> plan_of_writes(Ranks ranks, Ranks shards, uint64_t tokens, std::vector<RankBlocks> source_blocks,
                                       std::vector<RankBlocks> target_blocks, uint64_t first_token, uint64_t seed) {
    auto made = std::make_shared<KvPlan>(KvPlan{.sources = std::move(ranks), .targets = std::move(shards), .plan = {}});
    const kvplan::Request request{
        .seed = seed, .first_token = first_token, .tokens = tokens, .source_blocks = source_blocks, .target_blocks = target_blocks};
    made->plan = value_of("make_plan_of_writes", kvplan::make_plan_of_writes(made->sources, made->targets, request));
    return made;
}

void bind_shards(nb::module_& module) {
    using kvplan::ShardGrid;
    nb::class_<ShardGrid>(module, "ShardGrid", "How stored blocks are cut into shards. Made by shard_grid().")
        .def_ro("block_tokens", &ShardGrid::block_tokens)
        .def(
            "shards", [](const ShardGrid& self, const std::string& key) { return value_of("shards", kvplan::shards_of_block(self, key)); },
            "key"_a, "The shards of the block with this key, as ranks: their segments are the keys of the values.")
        .def(
            "table", [](const ShardGrid& self, uint64_t number) { return kvplan::shard_blocks(self, number); }, "number"_a,
            "The block tables of a shard whose block is the number-th of its request.");
    module.def("_shard_grid", grid_from, "stages"_a, "block_tokens"_a);
    module.def(
        "shard_bytes", [](const kvplan::Rank& shard) { return kvplan::value_bytes(shard); }, "shard"_a, "The length of a shard's value.");
    module.def(
        "head_cuts_for",
        [](uint32_t total_heads, const std::vector<uint32_t>& sizes) {
            return value_of("head_cuts_for", kvplan::head_cuts_for(total_heads, sizes));
        },
        "total_heads"_a, "tensor_parallelisms"_a, "The smallest number of shards that no rank of any of these holds in part.");
    module.def("_make_plan_of_writes", plan_of_writes, "ranks"_a, "shards"_a, "tokens"_a, "source_blocks"_a, "target_blocks"_a,
               "first_token"_a, "seed"_a);
}

void bind_ownership(nb::module_& module) {
    module.def(
        "heads_of_rank",
        [](uint32_t total_heads, uint32_t ranks, uint32_t rank) {
            const auto heads = value_of("heads_of_rank", kvplan::heads_of_rank(total_heads, ranks, rank));
            return std::tuple(heads.first, heads.count);
        },
        "total_heads"_a, "ranks"_a, "rank"_a, "The first head and the number of heads of one tensor-parallel rank.");
    module.def(
        "vllm_stages", [](uint32_t layers, uint32_t stages) { return value_of("vllm_stages", kvplan::vllm_stages(layers, stages)); },
        "layers"_a, "stages"_a, "How many layers each pipeline stage of vLLM has.");
    module.def(
        "sglang_stages", [](uint32_t layers, uint32_t stages) { return value_of("sglang_stages", kvplan::sglang_stages(layers, stages)); },
        "layers"_a, "stages"_a, "How many layers each pipeline stage of SGLang has.");
}

/// RuntimeError with the reason.
uint64_t bytes_of(const KvStep& step) {
    const auto outcome = step.outcome();
    if (!outcome) raise_failure("submit", outcome.error());
    return *outcome;
}

void bind_flows(nb::module_& module) {
    nb::class_<kvplan::Flow::Peer>(module, "Peer", "Whom a flow moves bytes with.")
        .def_ro("segment", &kvplan::Flow::Peer::segment)
        .def_ro("rank", &kvplan::Flow::Peer::rank)
        .def_ro("bytes", &kvplan::Flow::Peer::bytes)
        .def_ro("layers", &kvplan::Flow::Peer::layers);
    nb::class_<KvStep>(module, "_Step")
        .def("done", &KvStep::done)
        .def("tell", &KvStep::tell, "port"_a, "token"_a)
        .def(
            "wait",
            [](const KvStep& self, std::optional<double> timeout) {
                return exiting() ? self.done() : without_gil([&] { return self.wait(deadline_from(timeout)); });
            },
            "timeout"_a.none())
        .def("bytes", bytes_of);
    nb::class_<KvFlow>(module, "_Flow")
        .def(nb::init<const InnerEngine&, const KvPlan&, uint32_t, bool, std::optional<Notification>, double>(), "engine"_a, "plan"_a,
             "rank"_a, "writes"_a, "notification"_a.none(), "timeout"_a)
        .def("submit", &KvFlow::submit, "layer"_a, "after"_a.none())
        .def("cancel", &KvFlow::cancel)
        .def("close", &KvFlow::close)
        .def_prop_ro("peers", [](const KvFlow& self) { return self.flow().peers(); })
        .def_prop_ro("layers", [](const KvFlow& self) { return self.flow().layers(); });
}

}  // namespace
}  // namespace mooncake::python

NB_MODULE(_kvplan_of_main, module) {
    using namespace mooncake::python;
    nb::set_leak_warnings(false);
    nb::module_::import_("mooncake.engine");  // whose engines flows take
    bind_layouts(module);
    bind_plans(module);
    bind_shards(module);
    bind_ownership(module);
    bind_flows(module);
}

extern "C" NB_EXPORT PyObject* PyInit__kvplan() { return mooncake::python::in_main_interpreter() ? PyInit__kvplan_of_main() : nullptr; }
