// SPDX-License-Identifier: Apache-2.0
#include "store/node/lent_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>

namespace mooncake::store {
namespace {

constexpr uint64_t kBytes = 4 << 20;

class LentMemoryTest : public ::testing::Test {
protected:
    const std::shared_ptr<Engine> engine_ = Engine::create({.local_name = "127.0.0.1", .protocol = "tcp"}).value();
};

TEST_F(LentMemoryTest, ThatWasTakenBackLeavesItsAddressesAloneForAWhile) {
    std::set<std::byte*> lent;
    for (int i = 0; i < 20; ++i) {
        const auto memory = LentMemory::allocate(engine_, kBytes, "", {.early = false}).value();
        EXPECT_TRUE(lent.insert(memory->base()).second) << "who wrote to the former one would write to this one";
    }
}

TEST_F(LentMemoryTest, OfAFileLeavesItsAddressesAloneForAWhile) {
    std::string path = ::testing::TempDir() + "mooncake-lent-XXXXXX";
    const int file = ::mkstemp(path.data());
    ASSERT_GE(file, 0);
    ASSERT_EQ(::ftruncate(file, kBytes), 0);
    std::set<std::byte*> lent;
    for (int i = 0; i < 20; ++i) {
        const auto memory = LentMemory::map_file(engine_, path, 0, kBytes, "").value();
        EXPECT_TRUE(lent.insert(memory->base()).second);
    }
    ::close(file);
    ::unlink(path.c_str());
}

}  // namespace
}  // namespace mooncake::store
