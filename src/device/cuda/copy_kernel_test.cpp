// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/copy_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "device/cuda/testing/ptx.h"

namespace mooncake::cuda {
namespace {

/// Runs the text itself over pieces of plain memory, and compares with what they should be.
class CopyKernelText : public ::testing::Test {
protected:
    static constexpr uint64_t kGap = 64;

    struct Shape {
        uint64_t from_offset, to_offset, length;
    };

    void run(const std::vector<Shape>& shapes, uint32_t blocks, uint32_t threads) {
        std::vector<CopyKernel::Piece> pieces;
        uint64_t bytes = kGap;
        for (const Shape& shape : shapes) bytes += (shape.length + 2 * kGap) / 16 * 16 + kGap;
        struct alignas(16) Unit {
            std::byte bytes[16];
        };
        std::vector<Unit> from(bytes / 16 + 1), to(bytes / 16 + 1);
        auto* const source = reinterpret_cast<std::byte*>(from.data());
        auto* const target = reinterpret_cast<std::byte*>(to.data());
        std::mt19937 random(7);
        for (uint64_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(random());
        std::vector<std::byte> expected(bytes);
        uint64_t at = kGap;
        for (const Shape& shape : shapes) {
            pieces.push_back({reinterpret_cast<uint64_t>(source + at + shape.from_offset),
                              reinterpret_cast<uint64_t>(target + at + shape.to_offset), shape.length});
            std::copy_n(source + at + shape.from_offset, shape.length, expected.begin() + static_cast<ptrdiff_t>(at + shape.to_offset));
            at += (shape.length + 2 * kGap) / 16 * 16;
        }
        program.run(blocks, threads, {{"pieces", reinterpret_cast<uint64_t>(pieces.data())}, {"count", pieces.size()}});
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), target)) << "every byte of a piece, and no other";
    }

    const testing::PtxProgram program{CopyKernel::text()};
};

TEST_F(CopyKernelText, CopiesPiecesOfEveryLengthAndAlignment) {
    std::vector<Shape> shapes;
    for (const uint64_t from : {0, 1, 3, 4, 8, 15})
        for (const uint64_t to : {0, 1, 4, 7, 12, 15})
            for (const uint64_t length : {1, 2, 15, 16, 17, 63, 511, 512, 513, 2047, 2048, 2049, 4100})
                shapes.push_back({from, to, length});
    run(shapes, 2, 64);
}

TEST_F(CopyKernelText, AWarpTakesManyPieces) {
    std::vector<Shape> shapes(301, {0, 0, 64});
    for (const uint32_t blocks : {1u, 3u}) run(shapes, blocks, 96);
}

TEST_F(CopyKernelText, MoreWarpsThanPiecesAndNoPiecesDoNoHarm) {
    run({{0, 0, 5000}, {1, 2, 333}}, 4, 128);
    run({}, 1, 32);
}

}  // namespace
}  // namespace mooncake::cuda
