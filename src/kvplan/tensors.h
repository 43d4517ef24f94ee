// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "kvplan/layout.h"

/// Regions from what frameworks have: tensors, with their dimensions in some order.
namespace mooncake::kvplan {

enum class Axis : uint8_t { kLayer, kPart, kBlock, kToken, kHead, kChannel };

struct TensorAxis {
    Axis axis = Axis::kChannel;
    uint64_t size = 1;
    uint64_t stride = 0;  // bytes; 0: dense, right behind what lies within
};

/// One tensor of a rank. Axes that it lacks have one element. A pool of single token slots is given as blocks of a page's tokens.
struct Tensor {
    uint64_t base = 0;
    uint32_t element_bytes = 0;
    std::vector<TensorAxis> axes;     // outermost first; channels innermost, without gaps: they make a cell
    std::vector<std::string> layers;  // by index along kLayer
    std::vector<std::string> parts;   // by index along kPart: {"k", "v"} for halves of one tensor, {"kv"} if nobody tells them apart
    uint32_t first_head = 0;          // the number of the first head here
    uint32_t total_heads = 0;         // of the model
    bool is_state = false;            // kToken are the rows of a state, kBlock its slots
    uint32_t group = 0;
};

/// A region for each layer and part, layers outside.
MC_EXPORT Result<std::vector<Region>> regions_of_tensor(const Tensor& tensor);

}  // namespace mooncake::kvplan
