// SPDX-License-Identifier: Apache-2.0
#include "base/memory_probe.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/unique_fd.h"

namespace mooncake {
namespace {

constexpr uint64_t kPage = 4096, kPages = 3000;  // more than one question to the kernel

/// Readable and writable pages between two that are neither.
class MemoryProbe : public ::testing::Test {
protected:
    MemoryProbe() {
        void* const mapped = ::mmap(nullptr, (kPages + 2) * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        start = static_cast<std::byte*>(mapped) + kPage;
        protect(0, kPages, PROT_READ | PROT_WRITE);
    }
    ~MemoryProbe() override { ::munmap(start - kPage, (kPages + 2) * kPage); }

    void protect(uint64_t page, uint64_t count, int how) const { ASSERT_EQ(::mprotect(start + page * kPage, count * kPage, how), 0); }

    std::byte* start = nullptr;
    static constexpr uint64_t kLength = kPages * kPage;
};

TEST_F(MemoryProbe, AllowsWhatIsMapped) {
    for (const auto probe : {+[](std::byte*at, uint64_t length) { return is_readable(at, length); },
                             +[](std::byte*at, uint64_t length) { return is_writable(at, length); }}) {
        EXPECT_TRUE(probe(start, kLength));
        EXPECT_TRUE(probe(start + 5, 1));
        EXPECT_TRUE(probe(start + kLength - 1, 1));
        EXPECT_TRUE(probe(start + 4095, 2));
        EXPECT_TRUE(probe(nullptr, 0));
    }
}

TEST_F(MemoryProbe, RefusesWhatIsNot) {
    for (const auto probe : {+[](std::byte*at, uint64_t length) { return is_readable(at, length); },
                             +[](std::byte*at, uint64_t length) { return is_writable(at, length); }}) {
        EXPECT_FALSE(probe(start + kLength - 1, 2));
        EXPECT_FALSE(probe(start - 1, 2));
        EXPECT_FALSE(probe(start + kLength, 1));
        EXPECT_FALSE(probe(reinterpret_cast<std::byte*>(0x1000), 100));
        EXPECT_FALSE(probe(start, UINT64_MAX));
        for (const uint64_t hole : {uint64_t{0}, uint64_t{1023}, uint64_t{1024}, kPages - 1}) {
            protect(hole, 1, PROT_NONE);
            EXPECT_FALSE(probe(start + 7, kLength - 7)) << hole;
            protect(hole, 1, PROT_READ | PROT_WRITE);
            EXPECT_TRUE(probe(start + 7, kLength - 7)) << hole;
        }
    }
}

TEST_F(MemoryProbe, TellsReadingFromWriting) {
    protect(7, 1, PROT_READ);
    EXPECT_TRUE(is_readable(start, kLength));
    EXPECT_FALSE(is_writable(start, kLength));
    EXPECT_TRUE(is_writable(start, 7 * kPage));
}

TEST_F(MemoryProbe, TellsWhetherAnythingIsMapped) {
    EXPECT_TRUE(is_mapped(start + 5));
    EXPECT_FALSE(is_mapped(reinterpret_cast<std::byte*>(0x1000)));
    EXPECT_FALSE(is_mapped(reinterpret_cast<std::byte*>(UINT64_MAX)));
}

TEST_F(MemoryProbe, ChangesNoByte) {
    std::memset(start, 0x5a, kLength);
    EXPECT_TRUE(is_readable(start, kLength));
    EXPECT_TRUE(is_writable(start, kLength));
    EXPECT_TRUE(std::all_of(start, start + kLength, [](std::byte byte) { return byte == std::byte{0x5a}; }));
}

TEST(CopyIfThere, CopiesWhatIsThere) {
    std::vector<std::byte> from(3 * kPage + 5), to(from.size());
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7);
    EXPECT_TRUE(copy_if_there(to.data(), from.data(), from.size()));
    EXPECT_EQ(to, from);
    EXPECT_TRUE(copy_if_there(nullptr, nullptr, 0));
}

TEST(CopyIfThere, SaysThatAFileWasCutOffInsteadOfEndingTheProcess) {
    const UniqueFd file(::memfd_create("cut", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(file.get(), 4 * kPage), 0);
    void* const mapped = ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* const bytes = static_cast<std::byte*>(mapped);
    std::vector<std::byte> other(4 * kPage, std::byte{1});
    ASSERT_TRUE(copy_if_there(bytes, other.data(), other.size()));
    ASSERT_EQ(::ftruncate(file.get(), 2 * kPage), 0);
    EXPECT_FALSE(copy_if_there(other.data(), bytes, other.size()));
    EXPECT_FALSE(copy_if_there(bytes, other.data(), other.size()));
    EXPECT_FALSE(copy_if_there(bytes + 3 * kPage, other.data(), 1));
    EXPECT_TRUE(copy_if_there(bytes, other.data(), 2 * kPage));
    ::munmap(mapped, 4 * kPage);
}

}  // namespace
}  // namespace mooncake
