// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kvplan/plan.h"

namespace mooncake::kvplan {
namespace {

constexpr size_t kBufferMax = 4096;  // what stays in the processor's nearest caches, however much may be emitted at a time

struct Step {
    uint64_t count = 1, source = 0, target = 0;
};

/// Gathers pieces and hands them on.
class Pieces {
public:
    Pieces(size_t pieces_max, const std::function<void(std::span<const Piece>)>& emit)
        : buffer_(std::clamp<size_t>(pieces_max, 1, kBufferMax)), emit_(emit) {}

    /// A piece that may go on where the last one ended.
    void add(const Piece& piece) {
        if (used_ != 0) {
            Piece& last = buffer_[used_ - 1];
            if (last.source + last.bytes == piece.source && last.target + last.bytes == piece.target) {
                last.bytes += piece.bytes;
                return;
            }
        }
        if (used_ == buffer_.size()) flush();
        buffer_[used_++] = piece;
    }
    /// Pieces of which none touches the next.
    void add(Piece piece, const Step& step) {
        for (uint64_t left = step.count; left != 0;) {
            if (used_ == buffer_.size()) flush();
            const uint64_t now = std::min<uint64_t>(left, buffer_.size() - used_);
            Piece* out = buffer_.data() + used_;
            for (uint64_t i = 0; i < now; ++i) out[i] = {piece.source + i * step.source, piece.target + i * step.target, piece.bytes};
            piece.source += now * step.source;
            piece.target += now * step.target;
            used_ += now;
            left -= now;
        }
    }
    void flush() {
        if (used_ != 0) emit_(std::span(buffer_).first(used_));
        emitted_ += used_;
        used_ = 0;
    }
    uint64_t emitted() const { return emitted_; }

private:
    std::vector<Piece> buffer_;
    const std::function<void(std::span<const Piece>)>& emit_;
    size_t used_ = 0;
    uint64_t emitted_ = 0;
};

/// Makes the step part of the piece, if it leaves no gap on either side.
bool fold(Piece& piece, Step& step) {
    if (step.count == 1) return true;
    if (step.source != piece.bytes || step.target != piece.bytes) return false;
    piece.bytes *= step.count;
    step.count = 1;
    return true;
}

void add_run(const Region& from, const Region& to, uint32_t first_head, uint32_t heads, const TokenRun& run, Pieces& pieces) {
    Piece piece{
        from.base + run.source_block * from.block_stride + run.source_slot * from.token_stride +
            (first_head - from.first_head) * from.head_stride,
        to.base + run.target_block * to.block_stride + run.target_slot * to.token_stride + (first_head - to.first_head) * to.head_stride,
        from.cell_bytes};
    Step over_heads{heads, from.head_stride, to.head_stride};
    Step over_tokens{run.count, run.source_step * from.token_stride, run.target_step * to.token_stride};
    fold(piece, over_heads);
    fold(piece, over_tokens);
    fold(piece, over_heads);
    if (over_tokens.target > over_heads.target && over_heads.count != 1) std::swap(over_heads, over_tokens);
    // What is left: `over_heads` outside, `over_tokens` inside.
    for (uint64_t i = 0; i < over_heads.count; ++i) {
        if (over_tokens.count == 1) {
            pieces.add(piece);
        } else {
            pieces.add(piece, over_tokens);
        }
        piece.source += over_heads.source;
        piece.target += over_heads.target;
    }
}

}  // namespace

uint64_t expand(const PairPlan& pair, const Rank& source, const Rank& target, std::string_view layer, size_t pieces_max,
                const std::function<void(std::span<const Piece>)>& emit) {
    Pieces pieces(pieces_max, emit);
    for (const Strip& strip : pair.strips) {
        const Region &from = source.regions[strip.source_region], &to = target.regions[strip.target_region];
        if (!layer.empty() && to.layer != layer) continue;
        // Heads that lie outside the blocks are walked outside, so that neighbouring blocks of a head merge.
        const bool heads_outside = from.head_stride > from.block_stride && to.head_stride > to.block_stride;
        const uint32_t heads_at_once = heads_outside ? 1 : strip.heads;
        for (uint32_t done = 0; done < strip.heads; done += heads_at_once) {
            for (const TokenRun& run : pair.run_sets[strip.run_set]) add_run(from, to, strip.first_head + done, heads_at_once, run, pieces);
        }
    }
    pieces.flush();
    return pieces.emitted();
}

}  // namespace mooncake::kvplan
