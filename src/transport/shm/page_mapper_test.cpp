// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/page_mapper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/unique_fd.h"

namespace mooncake::shm {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// Memory, and a second mapping of it as a peer has it.
struct Shared {
    explicit Shared(uint64_t length) : memory(std::move(*allocate_shared_memory(length))) {
        const MemoryFile file(::dup(memory.fd()));
        peers = std::make_shared<const Mapping>(std::move(*file.map(true, length)));
    }
    uint64_t allocated() const {
        struct stat status {};
        EXPECT_EQ(::fstat(memory.fd(), &status), 0);
        return static_cast<uint64_t>(status.st_blocks) * 512;
    }
    /// Bytes of the peer's mapping that are in the page table.
    uint64_t entered() const {
        const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
        const UniqueFd table(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
        std::vector<uint64_t> entries(peers->length() / page);
        const auto at = static_cast<off_t>(reinterpret_cast<uint64_t>(peers->address()) / page * sizeof(uint64_t));
        const auto wanted = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
        EXPECT_EQ(::pread(table.get(), entries.data(), static_cast<size_t>(wanted), at), wanted);
        return page * static_cast<uint64_t>(std::count_if(entries.begin(), entries.end(), [](uint64_t one) { return one >> 63 != 0; }));
    }

    SharedMemory memory;
    std::shared_ptr<const Mapping> peers;
};

bool eventually(const std::function<bool()>& holds) {
    for (const Deadline deadline = Deadline::after(20s); !deadline.passed(); std::this_thread::yield())
        if (holds()) return true;
    return holds();
}

TEST(PageMapper, EntersWhatIsThereAndMakesNothing) {
    Shared shared(32 * kMiB);
    std::memset(shared.memory.address(), 1, 16 * kMiB);
    const uint64_t before = shared.allocated();
    const auto there = PageMapper::enter(shared.peers->address(), PageMapper::kStepBytes);
    if (!there) GTEST_SKIP() << there.error().to_string();
    EXPECT_TRUE(*there);
    EXPECT_EQ(shared.entered(), PageMapper::kStepBytes);
    const auto missing = PageMapper::enter(shared.peers->address() + 20 * kMiB, PageMapper::kStepBytes);
    ASSERT_TRUE(missing);
    EXPECT_FALSE(*missing);
    EXPECT_EQ(shared.allocated(), before);
}

TEST(PageMapper, FollowsAPeerThatIsJustTouchingItsMemory) {
    Shared shared(32 * kMiB);
    if (!PageMapper::enter(shared.peers->address(), 4096)) GTEST_SKIP() << "this kernel cannot";
    PageMapper mapper;
    std::memset(shared.memory.address(), 1, 16 * kMiB);
    mapper.add(shared.peers);
    EXPECT_TRUE(eventually([&] { return shared.entered() >= 16 * kMiB; }));
    std::memset(shared.memory.address() + 16 * kMiB, 1, 8 * kMiB);
    EXPECT_TRUE(eventually([&] { return shared.entered() >= 24 * kMiB; }));
    EXPECT_EQ(shared.allocated(), 24 * kMiB);
}

TEST(PageMapper, KeepsNothingMappedAndEndsAtOnce) {
    PageMapper mapper;
    std::weak_ptr<const Mapping> seen;
    {
        const Shared shared(32 * kMiB);
        mapper.add(shared.peers);
        seen = shared.peers;
    }
    EXPECT_TRUE(eventually([&] { return seen.expired(); }));
    const Shared other(32 * kMiB);
    mapper.add(other.peers);
}

}  // namespace
}  // namespace mooncake::shm
