// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace mooncake {
namespace {

TEST(SharedMemory, IsZeroedPageAlignedAndSeenThroughEveryMapping) {
    const SharedMemory memory = allocate_shared_memory(10'000).value();
    EXPECT_EQ(reinterpret_cast<uint64_t>(memory.address()) % 4096, 0u);
    EXPECT_EQ(memory.length(), 12'288u);
    for (uint64_t i = 0; i < memory.length(); ++i) ASSERT_EQ(memory.address()[i], std::byte{0});
    const MemoryFile same(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
    const Mapping mapping = same.map(true, 10'000).value();
    std::memcpy(mapping.address() + 9'999, "x", 1);
    EXPECT_EQ(memory.address()[9'999], std::byte{'x'});
}

TEST(SharedMemory, CanNeitherShrinkNorGrow) {
    const SharedMemory memory = allocate_shared_memory(8192).value();
    EXPECT_NE(::ftruncate(memory.fd(), 4096), 0);
    EXPECT_NE(::ftruncate(memory.fd(), 16'384), 0);
}

TEST(SharedMemory, RefusesLengthsThatMakeNoSense) {
    EXPECT_EQ(allocate_shared_memory(0).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(allocate_shared_memory(~uint64_t{0}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(allocate_shared_memory(uint64_t{1} << 62).error().code(), Code::kNoSpace);
}

TEST(MemoryFile, DoesNotMapWhatMayShrinkOrIsTooSmall) {
    MemoryFile loose(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(loose.fd(), 8192), 0);
    EXPECT_EQ(loose.map(true, 4096).error().code(), Code::kRefused);
    const MemoryFile small = MemoryFile::create("test", 4096).value();
    EXPECT_EQ(small.map(true, 8192).error().code(), Code::kRefused);
    EXPECT_TRUE(small.map(true, 4096));
    int pipe_ends[2];
    ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
    const UniqueFd read_end(pipe_ends[0]);
    const MemoryFile not_memory(pipe_ends[1]);
    EXPECT_EQ(not_memory.map(true, 1).error().code(), Code::kRefused);
}

TEST(MemoryFile, DoesNotMapReservedHugePages) {
    const MemoryFile huge(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
    if (!huge || ::ftruncate(huge.fd(), 2 << 20) != 0) GTEST_SKIP() << "no huge pages in this system";
    ASSERT_EQ(::fcntl(huge.fd(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    EXPECT_EQ(huge.map(true, 1).error().code(), Code::kRefused);
}

TEST(MemoryFile, SurvivesAHoleThatSomebodyPunches) {
    const SharedMemory memory = allocate_shared_memory(8192).value();
    const MemoryFile same(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
    const Mapping mapping = same.map(true, 8192).value();
    std::memcpy(mapping.address(), "x", 1);
    ASSERT_EQ(::fallocate(memory.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8192), 0);
    EXPECT_EQ(mapping.address()[0], std::byte{0});
}

TEST(MemoryFile, LetsNobodyElseWriteOnceForbidden) {
    MemoryFile file = MemoryFile::create("test", 4096).value();
    const Mapping writer = file.map(true, 4096).value();
    file.forbid_new_writers();
    EXPECT_FALSE(file.map(true, 4096));
    const Mapping reader = file.map(false, 4096).value();
    std::memcpy(writer.address(), "x", 1);
    EXPECT_EQ(reader.address()[0], std::byte{'x'});
}

TEST(MemoryFile, IsClosedInAForkedChild) {
    const MemoryFile file = MemoryFile::create("test", 4096).value();
    const pid_t child = ::fork();
    if (child == 0) {
        struct stat status;
        ::_exit(::fstat(file.fd(), &status) == 0 ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mooncake
