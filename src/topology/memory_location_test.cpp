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

TEST(NumaNodeOf, AsksForThePageAroundTheAddress) {
    FakeKernel kernel({{page(0), 3}});
    const auto node = detail::numa_node_of(at(page(0) + 77), kernel.ask());
    ASSERT_TRUE(node) << node.error().to_string();
    EXPECT_EQ(*node, 3);
    EXPECT_EQ(detail::numa_node_of(at(page(1)), kernel.ask()).error().code(), Code::kNotFound);
    EXPECT_THAT(kernel.asked, ElementsAre(page(0), page(1)));
}

TEST(NumaNodeOf, TellsARefusalFromAFailure) {
    EXPECT_EQ(detail::numa_node_of(at(page(0)), FakeKernel({}, EPERM).ask()).error().code(), Code::kNotSupported);
    EXPECT_EQ(detail::numa_node_of(at(page(0)), FakeKernel({}, ENOSYS).ask()).error().code(), Code::kNotSupported);
    EXPECT_EQ(detail::numa_node_of(at(page(0)), FakeKernel({}, ENOMEM).ask()).error().code(), Code::kInternal);
}

TEST(NumaNodeOf, KnowsTouchedPagesOnlyOrThatTheSystemRefuses) {
    const Pages pages(2);
    *pages.page(0) = 1;
    const auto node = numa_node_of(pages.page(0) + 77);
    if (!node) {  // as many containers do
        EXPECT_EQ(node.error().code(), Code::kNotSupported) << node.error().to_string();
        EXPECT_THAT(node.error().system_errno(), AnyOf(EPERM, ENOSYS));
    } else {
        EXPECT_GE(*node, 0);
        EXPECT_EQ(numa_node_of(pages.page(1)).error().code(), Code::kNotFound);
        EXPECT_EQ(numa_node_of(nullptr).error().code(), Code::kNotFound);
    }
    EXPECT_EQ(*pages.page(1), 0);
}

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

TEST(SegmentedLocation, ReadsPageSizeAndNodes) {
    const auto location = SegmentedLocation::parse("segments:4096:0,1,3");
    ASSERT_TRUE(location) << location.error().to_string();
    EXPECT_EQ(location->page_bytes, 4096u);
    EXPECT_THAT(location->nodes, ::testing::ElementsAre(0, 1, 3));
}

TEST(SegmentedLocation, GivesEachPartItsNode) {
    const auto location = SegmentedLocation::parse("segments:4096:5,6,7");
    ASSERT_TRUE(location);
    const uint64_t length = 10 * 4096;  // parts of 3, 3 and 4 pages
    EXPECT_EQ(location->node_at(0, length), 5);
    EXPECT_EQ(location->node_at(3 * 4096 - 1, length), 5);
    EXPECT_EQ(location->node_at(3 * 4096, length), 6);
    EXPECT_EQ(location->node_at(6 * 4096, length), 7);
    EXPECT_EQ(location->node_at(length - 1, length), 7);
    EXPECT_EQ(location->node_at(0, 100), 5);  // smaller than one page
}

TEST(SegmentedLocation, RefusesOtherTexts) {
    for (const char* text : {"", "cpu:0", "segments", "segments:", "segments:4096", "segments:4096:", "segments::0", "segments:0:0",
                             "segments:4096:0,", "segments:4096:,0", "segments:4096:-1", "segments:4096:a", "segments:-1:0",
                             "segments:4096:0 ,1", "segments:99999999999999999999:0"})
        EXPECT_FALSE(SegmentedLocation::parse(text)) << text;
}

}  // namespace
}  // namespace mooncake
