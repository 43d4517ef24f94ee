// SPDX-License-Identifier: Apache-2.0
#include "topology/memory_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace mooncake {
namespace {

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

/// Some containers forbid the question.
bool system_tells_nodes() {
    const int here = 0;
    const auto node = numa_node_of(&here);
    return node || node.error().code() != Code::kNotSupported;
}

TEST(NumaNodeOf, KnowsTouchedPagesOnly) {
    if (!system_tells_nodes()) GTEST_SKIP() << "this system does not tell the nodes of pages";
    const Pages pages(2);
    *pages.page(0) = 1;
    const auto node = numa_node_of(pages.page(0) + 77);
    ASSERT_TRUE(node) << node.error().to_string();
    EXPECT_GE(*node, 0);
    EXPECT_EQ(numa_node_of(pages.page(1)).error().code(), Code::kNotFound);
    EXPECT_EQ(numa_node_of(nullptr).error().code(), Code::kNotFound);
    EXPECT_EQ(*pages.page(1), 0);
}

TEST(DetectLocation, NamesTheNodeOfTouchedMemory) {
    const Pages pages(100);
    std::memset(pages.page(0), 1, pages.bytes());
    EXPECT_THAT(detect_location(pages.page(0), pages.bytes()), StartsWith("cpu:"));
    EXPECT_THAT(detect_location(pages.page(3) + 5, 10), StartsWith("cpu:"));
    EXPECT_THAT(detect_location(pages.page(3) + Pages::page_bytes() - 1, 2), StartsWith("cpu:"));
}

TEST(DetectLocation, JudgesByTheTouchedPagesAlone) {
    if (!system_tells_nodes()) GTEST_SKIP() << "this system does not tell the nodes of pages";
    const Pages pages(100);
    EXPECT_EQ(detect_location(pages.page(0), pages.bytes()), "*");
    *pages.page(99) = 1;  // the last page is always looked at
    EXPECT_THAT(detect_location(pages.page(0), pages.bytes()), StartsWith("cpu:"));
    EXPECT_EQ(detect_location(pages.page(0), pages.bytes() - Pages::page_bytes()), "*");
}

TEST(DetectLocation, DoesNotKnowWhereNothingIs) {
    EXPECT_EQ(detect_location(nullptr, 0), "*");
    EXPECT_EQ(detect_location(reinterpret_cast<void*>(UINTPTR_MAX - 10), 100), "*");
    if (!system_tells_nodes()) GTEST_SKIP() << "this system does not tell the nodes of pages";
    EXPECT_EQ(detect_location(nullptr, 1 << 20), "*");
    EXPECT_EQ(detect_location(nullptr, UINT64_MAX), "*");
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
