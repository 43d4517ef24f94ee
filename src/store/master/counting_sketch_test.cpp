// SPDX-License-Identifier: Apache-2.0
#include "store/master/counting_sketch.h"

#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

TEST(CountingSketch, CountsEachThingByItself) {
    CountingSketch sketch;
    EXPECT_EQ(sketch.add(1), 1u);
    EXPECT_EQ(sketch.add(2), 1u);
    EXPECT_EQ(sketch.add(1), 2u);
    sketch.forget(1);
    EXPECT_EQ(sketch.add(1), 1u);
    EXPECT_EQ(sketch.add(2), 2u);
}

TEST(CountingSketch, IsSeldomTooHighForThousandsOfThings) {
    CountingSketch sketch;
    for (uint64_t i = 0; i < 20'000; ++i) sketch.add(i);
    int wrong = 0;
    for (uint64_t i = 0; i < 1000; ++i) wrong += sketch.add(1'000'000 + i) > 1 ? 1 : 0;
    EXPECT_LT(wrong, 50);
}

TEST(CountingSketch, ForgetsWhatWasLongAgo) {
    CountingSketch sketch;
    for (int i = 0; i < 100; ++i) sketch.add(7);
    for (uint64_t i = 0; i < (1 << 20); ++i) sketch.add(1000 + i % 1000);
    EXPECT_LT(sketch.add(7), 60u);
}

TEST(CountingSketch, HasAnUpperEnd) {
    CountingSketch sketch;
    for (int i = 0; i < 1000; ++i) sketch.add(7);
    EXPECT_EQ(sketch.add(7), 255u);
}

}  // namespace
}  // namespace mooncake::store
