// SPDX-License-Identifier: Apache-2.0
#include "store/node/lent_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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

/// A file of that many bytes, none of which exist, until destruction.
class SparseFile {
public:
    SparseFile(std::string folder, uint64_t bytes) : path_(std::move(folder) + "/mooncake-lent-XXXXXX") {
        file_ = ::mkstemp(path_.data());
        made_ = file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(bytes)) == 0;
    }
    ~SparseFile() {
        ::close(file_);
        ::unlink(path_.c_str());
    }
    SparseFile(const SparseFile&) = delete;
    SparseFile& operator=(const SparseFile&) = delete;
    bool made() const noexcept { return made_; }
    const std::string& path() const noexcept { return path_; }
    uint64_t bytes_that_exist() const {
        struct stat status {};
        EXPECT_EQ(::fstat(file_, &status), 0);
        return static_cast<uint64_t>(status.st_blocks) * 512;
    }

private:
    std::string path_;
    int file_ = -1;
    bool made_ = false;
};

TEST_F(LentMemoryTest, OfAFileWithHolesExistsBeforeItIsLent) {
    for (const std::string& folder : {std::string("/dev/shm"), ::testing::TempDir()}) {
        const SparseFile file(folder, 2 * kBytes);
        ASSERT_TRUE(file.made()) << folder;
        ASSERT_LT(file.bytes_that_exist(), kBytes);
        const auto memory = LentMemory::map_file(engine_, file.path(), kBytes, kBytes, "");
        ASSERT_TRUE(memory) << memory.error().to_string();
        EXPECT_GE(file.bytes_that_exist(), kBytes) << folder;
        EXPECT_LT(file.bytes_that_exist(), 2 * kBytes) << "of the part that is lent alone";
    }
}

TEST_F(LentMemoryTest, OfAFileThatIsMoreThanItsFileSystemHasIsRefused) {
    struct statvfs system {};
    ASSERT_EQ(::statvfs("/dev/shm", &system), 0);
    const uint64_t bytes = system.f_blocks * system.f_frsize;
    ASSERT_GT(bytes, 0u) << "this one has no limit";
    const SparseFile file("/dev/shm", bytes + kBytes);
    ASSERT_TRUE(file.made());
    const auto memory = LentMemory::map_file(engine_, file.path(), 0, bytes + kBytes, "");
    ASSERT_FALSE(memory) << "the first byte without room ends the process";
    EXPECT_EQ(memory.error().code(), Code::kNoSpace);
    EXPECT_EQ(file.bytes_that_exist(), 0u);
}

}  // namespace
}  // namespace mooncake::store
