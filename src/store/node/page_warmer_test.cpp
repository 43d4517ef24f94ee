// SPDX-License-Identifier: Apache-2.0
#include "store/node/page_warmer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/shared_memory.h"
#include "base/time.h"

namespace mooncake::store {
namespace {

constexpr uint64_t kMiB = 1 << 20;

uint64_t resident_bytes(const SharedMemory& memory) {
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages(memory.length() / page);
    EXPECT_EQ(::mincore(memory.address(), memory.length(), pages.data()), 0);
    return page * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char one) { return (one & 1) != 0; }));
}

/// Counts what it is asked for.
struct Counted {
    uint64_t asked = 0, spare = uint64_t{1} << 40, refuse_at = UINT64_MAX;

    PageSource source() {
        return {.populate =
                    [this](std::byte*, uint64_t length) {
                        if (asked >= refuse_at) return false;
                        asked += length;
                        spare -= std::min(spare, length);
                        return true;
                    },
                .spare_bytes = [this] { return spare; }};
    }
};

TEST(PageWarmer, MakesPagesExistAndKeepsTheirBytes) {
    const SharedMemory memory = std::move(*allocate_shared_memory(5 * kMiB + 4096));
    memory.address()[3 * kMiB] = std::byte{7};
    ASSERT_LT(resident_bytes(memory), kMiB);
    const uint64_t warm = PageWarmer::warm(memory.address(), memory.length(), PageSource::system(), {});
    EXPECT_EQ(memory.address()[3 * kMiB], std::byte{7});
    EXPECT_GE(resident_bytes(memory), warm);
    if (warm == 0) GTEST_SKIP() << "this kernel does not populate, or has little memory left";
    EXPECT_EQ(warm, memory.length());
}

TEST(PageWarmer, WorksByItselfAndStopsWhenItGoes) {
    const SharedMemory memory = std::move(*allocate_shared_memory(64 * kMiB));
    std::atomic<uint64_t> asked{0};
    const PageSource source{.populate =
                                [&](std::byte* at, uint64_t length) {
                                    EXPECT_TRUE(at >= memory.address() && at + length <= memory.address() + memory.length());
                                    asked.fetch_add(length);
                                    asked.notify_all();
                                    return true;
                                },
                            .spare_bytes = [] { return UINT64_MAX; }};
    {
        const PageWarmer warmer(memory.address(), memory.length(), source);
        asked.wait(0);
    }
    const uint64_t after = asked.load();
    EXPECT_GE(after, PageWarmer::kStepBytes);
    EXPECT_LE(after, memory.length());
}

TEST(PageWarmer, StopsWhereTheSystemRefuses) {
    Counted counted{.refuse_at = 3 * kMiB};
    EXPECT_EQ(PageWarmer::warm(nullptr, 100 * kMiB, counted.source(), {}), 3 * kMiB);
}

TEST(PageWarmer, LeavesMemoryToOthers) {
    Counted counted{.spare = 1000 * kMiB};
    const uint64_t warm = PageWarmer::warm(nullptr, 4096 * kMiB, counted.source(), {});
    EXPECT_GE(warm, 500 * kMiB);
    EXPECT_LT(warm, 1000 * kMiB);
    Counted nothing{.spare = 10 * kMiB};
    EXPECT_EQ(PageWarmer::warm(nullptr, 4096 * kMiB, nothing.source(), {}), 0u);
}

TEST(PageWarmer, DoesNothingOnceStopped) {
    Counted counted;
    std::stop_source stop;
    stop.request_stop();
    EXPECT_EQ(PageWarmer::warm(nullptr, 100 * kMiB, counted.source(), stop.get_token()), 0u);
    EXPECT_EQ(counted.asked, 0u);
}

}  // namespace
}  // namespace mooncake::store
