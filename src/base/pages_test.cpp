// SPDX-License-Identifier: Apache-2.0
#include "base/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>

namespace mooncake {
namespace {

TEST(Pages, AreMadeToExistWithoutChangingAByte) {
    if (!kernel_populates_pages()) GTEST_SKIP() << "the kernel does not make pages exist on demand";
    const uint64_t page = page_bytes();
    auto* const memory = static_cast<char*>(::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memory[page - 1] = 'x';
    ASSERT_TRUE(populate_pages(memory + page - 1, 2));  // two pages are touched by it
    std::array<unsigned char, 3> present{};
    ASSERT_EQ(::mincore(memory, 3 * page, present.data()), 0);
    EXPECT_EQ(present[1] & 1, 1);
    EXPECT_EQ(present[2] & 1, 0);
    EXPECT_EQ(memory[page - 1], 'x');
    EXPECT_EQ(memory[page], 0);
    ::munmap(memory, 3 * page);
}

TEST(Pages, AreRefusedWhereTheyMayNotBeWrittenOrNothingIs) {
    if (!kernel_populates_pages()) GTEST_SKIP() << "the kernel does not make pages exist on demand";
    const uint64_t page = page_bytes();
    void* const memory = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_FALSE(populate_pages(memory, page));
    ::munmap(memory, page);
    EXPECT_FALSE(populate_pages(memory, page));
    EXPECT_EQ(errno, ENOMEM);
}

}  // namespace
}  // namespace mooncake
