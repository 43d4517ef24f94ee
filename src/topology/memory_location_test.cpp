// SPDX-License-Identifier: Apache-2.0
#include "topology/memory_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <vector>

namespace mooncake {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

/// Private anonymous pages, none of them touched.
class Pages {
public:
    explicit Pages(size_t count)
        : bytes_(count * page_bytes()),
          base_(static_cast<char*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        ::madvise(base_, bytes_, MADV_NOHUGEPAGE);  // touching one page must not bring in its neighbours
    }
    ~Pages() { ::munmap(base_, bytes_); }
    static size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }
    char* page(size_t index) const { return base_ + index * page_bytes(); }
    size_t bytes() const { return bytes_; }

private:
    const size_t bytes_;
    char* const base_;
};

/// A system with pages on nodes of our choice.
class FakeKernel {
public:
    explicit FakeKernel(std::map<uintptr_t, int> nodes_of_pages, int refusal = 0) : nodes_(std::move(nodes_of_pages)), refusal_(refusal) {}

    detail::AskNodes ask() {
        return [this](std::span<void*> pages, std::span<int> nodes) {
            if (refusal_ != 0) return refusal_;
            for (size_t i = 0; i < pages.size(); ++i) {
                const auto page = reinterpret_cast<uintptr_t>(pages[i]);
                asked.push_back(page);
                const auto found = nodes_.find(page);
                nodes[i] = found == nodes_.end() ? -ENOENT : found->second;
            }
            return 0;
        };
    }
    std::vector<uintptr_t> asked;

private:
    const std::map<uintptr_t, int> nodes_;
    const int refusal_;
};

constexpr uintptr_t kBase = uintptr_t{1} << 40;
constexpr int kSeveralNodes = -1;

uintptr_t page(size_t index) { return kBase + index * Pages::page_bytes(); }
const void* at(uintptr_t address) { return reinterpret_cast<const void*>(address); }

TEST(DetectLocation, NamesTheNodeOfTouchedMemory) {
    const Pages pages(100);
    std::memset(pages.page(0), 1, pages.bytes());
    EXPECT_THAT(detect_location(pages.page(0), pages.bytes()), StartsWith("cpu:"));
    EXPECT_THAT(detect_location(pages.page(3) + 5, 10), StartsWith("cpu:"));
    EXPECT_THAT(detect_location(pages.page(3) + Pages::page_bytes() - 1, 2), StartsWith("cpu:"));
}

TEST(DetectLocation, LooksAtTheFirstTheLastAndSomePagesBetween) {
    FakeKernel kernel({});
    EXPECT_EQ(detail::detect_location(at(page(0) + 5), 100 * Pages::page_bytes() - 5, kernel.ask(), kSeveralNodes), "*");
    EXPECT_THAT(kernel.asked, SizeIs(16));
    EXPECT_EQ(kernel.asked.front(), page(0));
    EXPECT_EQ(kernel.asked.back(), page(99));
    EXPECT_EQ(std::set(kernel.asked.begin(), kernel.asked.end()).size(), 16u);

    FakeKernel border({});
    EXPECT_EQ(detail::detect_location(at(page(1) - 1), 2, border.ask(), kSeveralNodes), "*");
    EXPECT_THAT(border.asked, ElementsAre(page(0), page(1)));
}

TEST(DetectLocation, JudgesByTheTouchedPagesAlone) {
    FakeKernel kernel({{page(99), 1}});
    const uint64_t bytes = 100 * Pages::page_bytes();
    EXPECT_EQ(detail::detect_location(at(page(0)), bytes, kernel.ask(), kSeveralNodes), "cpu:1");
    EXPECT_EQ(detail::detect_location(at(page(0)), bytes - Pages::page_bytes(), kernel.ask(), kSeveralNodes), "*");
}

TEST(DetectLocation, NamesNoNodeOfMemorySpreadOverSeveral) {
    std::map<uintptr_t, int> spread;
    for (size_t i = 0; i < 16; ++i) spread[page(i)] = static_cast<int>(i % 2);
    FakeKernel kernel(spread);
    EXPECT_EQ(detail::detect_location(at(page(0)), 16 * Pages::page_bytes(), kernel.ask(), kSeveralNodes), "*");
    EXPECT_EQ(detail::detect_location(at(page(0)), 3 * Pages::page_bytes(), kernel.ask(), kSeveralNodes), "cpu:0");
}

TEST(DetectLocation, NeedsNoAnswerWhereThereIsOneNode) {
    FakeKernel refusing({}, EPERM);
    EXPECT_EQ(detail::detect_location(at(page(0)), 4096, refusing.ask(), 0), "cpu:0");
    EXPECT_EQ(detail::detect_location(at(page(0)), 4096, refusing.ask(), kSeveralNodes), "*");
}

TEST(DetectLocation, DoesNotKnowWhereNothingIs) {
    FakeKernel kernel({});
    EXPECT_EQ(detail::detect_location(nullptr, 0, kernel.ask(), 0), "*");
    EXPECT_EQ(detail::detect_location(at(UINTPTR_MAX - 10), 100, kernel.ask(), 0), "*");
    EXPECT_THAT(kernel.asked, IsEmpty());
    EXPECT_EQ(detail::detect_location(nullptr, 1 << 20, kernel.ask(), 0), "*");
    EXPECT_EQ(detail::detect_location(nullptr, UINT64_MAX, kernel.ask(), 0), "*");
}

TEST(MajorityNode, NeedsMoreThanHalfOfTheKnownPages) {
    EXPECT_EQ(detail::majority_node({}), -1);
    EXPECT_EQ(detail::majority_node({-2, -14}), -1);
    EXPECT_EQ(detail::majority_node({-2, 1, -2}), 1);
    EXPECT_EQ(detail::majority_node({0, 1, 1}), 1);
    EXPECT_EQ(detail::majority_node({0, 1, 0, 1}), -1);  // interleaved: no node is near to all of it
    EXPECT_EQ(detail::majority_node({0, 1, 2, 0}), -1);
}

}  // namespace
}  // namespace mooncake
