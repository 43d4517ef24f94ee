// SPDX-License-Identifier: Apache-2.0
#include "device/host/host_device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <vector>

namespace mooncake {
namespace {

const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));

/// Four pages of their own: readable and writable, read-only, without access, and a hole.
class Pages {
public:
    Pages() : start_(static_cast<std::byte*>(::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        EXPECT_EQ(::mprotect(start_ + kPage, kPage, PROT_READ), 0);
        EXPECT_EQ(::mprotect(start_ + 2 * kPage, kPage, PROT_NONE), 0);
        EXPECT_EQ(::munmap(start_ + 3 * kPage, kPage), 0);
    }
    ~Pages() { ::munmap(start_, 3 * kPage); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    uint64_t at(uint64_t page, uint64_t offset = 0) const { return reinterpret_cast<uint64_t>(start_) + page * kPage + offset; }

private:
    std::byte* start_;
};

using Answer = Result<std::optional<MemoryInfo>>;
using Describe = std::function<Answer(uint64_t, uint64_t)>;

Answer ask_mappings(uint64_t address, uint64_t length) { return detail::describe_by_mappings(address, length, detail::find_mapping); }

/// Both ways to ask the kernel, where it has them, and the one that is used.
std::vector<Describe> ways() {
    std::vector<Describe> all{detail::describe_by_probing, [](uint64_t address, uint64_t length) {
                                  return make_host_device()->describe(reinterpret_cast<void*>(address), length);
                              }};
    if (ask_mappings(reinterpret_cast<uint64_t>(&all), 1)) all.emplace_back(ask_mappings);
    return all;
}

TEST(HostDevice, KnowsMemoryThatMayBeWritten) {
    const Pages pages;
    for (const Describe& describe : ways()) {
        const auto info = describe(pages.at(0, 10), kPage - 10);
        ASSERT_TRUE(info && *info);
        EXPECT_EQ((*info)->kind, MemoryKind::kHost);
        EXPECT_TRUE((*info)->writable);
        EXPECT_EQ((*info)->base, pages.at(0, 10));
        EXPECT_EQ((*info)->length, kPage - 10);
    }
}

TEST(HostDevice, TellsReadOnlyMemoryFromTheRest) {
    const Pages pages;
    for (const Describe& describe : ways()) {
        const auto read_only = describe(pages.at(1), kPage);
        ASSERT_TRUE(read_only && *read_only);
        EXPECT_FALSE((*read_only)->writable);
        const auto mixed = describe(pages.at(0), 2 * kPage);
        ASSERT_TRUE(mixed && *mixed);
        EXPECT_FALSE((*mixed)->writable);
    }
}

TEST(HostDevice, RefusesMemoryWithoutAccess) {
    const Pages pages;
    for (const Describe& describe : ways()) {
        EXPECT_EQ(describe(pages.at(2), 1).error().code(), Code::kInvalidArgument);
        EXPECT_EQ(describe(pages.at(0), 3 * kPage).error().code(), Code::kInvalidArgument);
    }
}

TEST(HostDevice, RefusesARangeWithAHoleAndKnowsNothingOfOneThatBeginsInIt) {
    const Pages pages;
    for (const Describe& describe : ways()) {
        EXPECT_EQ(describe(pages.at(1), 3 * kPage).error().code(), Code::kInvalidArgument);
        const auto hole = describe(pages.at(3), 1);
        ASSERT_TRUE(hole) << hole.error().to_string();
        EXPECT_FALSE(hole->has_value());
    }
}

TEST(HostDevice, RefusesALengthNoMemoryHas) {
    const Pages pages;
    for (const Describe& describe : ways()) EXPECT_FALSE(describe(pages.at(0), uint64_t{1} << 50).has_value());
}

TEST(HostDevice, DoesNotMakePagesPresentWhereTheKernelCanBeAsked) {
    if (!ask_mappings(reinterpret_cast<uint64_t>(&kPage), 1)) GTEST_SKIP() << "this kernel does not say what is mapped";
    void* const memory = ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(ask_mappings(reinterpret_cast<uint64_t>(memory), 2 * kPage));
    std::array<unsigned char, 2> present{1, 1};
    ASSERT_EQ(::mincore(memory, 2 * kPage, present.data()), 0);
    EXPECT_EQ(present[0] & 1, 0);
    EXPECT_EQ(present[1] & 1, 0);
    ::munmap(memory, 2 * kPage);
}

TEST(HostDevice, WalksAllMappingsOfARange) {
    int asked = 0;
    const auto find = [&](uint64_t at) -> Result<detail::HostMapping> {
        ++asked;
        const uint64_t start = at / 100 * 100;
        return detail::HostMapping{.start = start, .end = start + 100, .readable = true, .writable = start != 300};
    };
    const auto info = detail::describe_by_mappings(150, 249, find);  // to the last byte before 400
    ASSERT_TRUE(info && *info);
    EXPECT_FALSE((*info)->writable);
    EXPECT_EQ(asked, 3);
}

TEST(HostDevice, BearsAMappingAtTheVeryEnd) {
    const auto find = [](uint64_t) -> Result<detail::HostMapping> {
        return detail::HostMapping{.start = UINT64_MAX - 4095, .end = 0, .readable = true, .writable = true};
    };
    const auto info = detail::describe_by_mappings(UINT64_MAX - 99, 100, find);
    ASSERT_TRUE(info && *info);
    EXPECT_TRUE((*info)->writable);
}

TEST(HostDevice, CopiesAllParts) {
    std::vector<std::byte> from(64, std::byte{7}), to(64);
    const std::array<CopyPart, 2> parts{{{to.data(), from.data(), 10}, {to.data() + 20, from.data() + 20, 44}}};
    ASSERT_TRUE(make_host_device()->copy(MemoryKind::kHost, MemoryKind::kHost, parts));
    for (size_t i = 0; i < to.size(); ++i) EXPECT_EQ(to[i], i >= 10 && i < 20 ? std::byte{0} : std::byte{7}) << i;
}

}  // namespace
}  // namespace mooncake
