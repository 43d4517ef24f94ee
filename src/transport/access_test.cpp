// SPDX-License-Identifier: Apache-2.0
#include "transport/access.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

constexpr uint64_t kTop = ~uint64_t{0};

TEST(AccessTable, CoversNothingAtFirst) {
    AccessTable table;
    EXPECT_FALSE(table.covers({.address = 0, .length = 1}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 4096, .length = 1}, Access::kRead));
}

TEST(AccessTable, CoversExactlyTheBytesAllowed) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    EXPECT_TRUE(table.covers({.address = 1000, .length = 100}, Access::kRead));
    EXPECT_TRUE(table.covers({.address = 1000, .length = 1}, Access::kRead));
    EXPECT_TRUE(table.covers({.address = 1099, .length = 1}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 999, .length = 1}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 999, .length = 2}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1000, .length = 101}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1099, .length = 2}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1100, .length = 1}, Access::kRead));
}

TEST(AccessTable, NeverCoversARangeWithoutBytes) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    EXPECT_FALSE(table.covers({.address = 1000, .length = 0}, Access::kRead));
}

TEST(AccessTable, ARangeMaySpanNeighboursButNoGap) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    table.allow({.address = 1100, .length = 100});
    table.allow({.address = 1200, .length = 50});
    table.allow({.address = 1251, .length = 50});
    EXPECT_TRUE(table.covers({.address = 1050, .length = 100}, Access::kRead));
    EXPECT_TRUE(table.covers({.address = 1000, .length = 250}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1000, .length = 251}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1249, .length = 3}, Access::kRead));
}

TEST(AccessTable, HostileRangesDoNotWrapAround) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    EXPECT_FALSE(table.covers({.address = kTop, .length = 2}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = kTop - 10, .length = kTop}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1000, .length = kTop}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1050, .length = kTop - 20}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 0, .length = kTop}, Access::kRead));
}

TEST(AccessTable, FindsTheFirstRangeThatIsNotCovered) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    const std::array<AddressRange, 3> ranges = {{{1000, 10}, {1090, 20}, {5, 1}}};
    EXPECT_EQ(table.first_not_covered(ranges, Access::kRead), 1u);
    EXPECT_EQ(table.first_not_covered(std::span(ranges).first(1), Access::kRead), 1u);
    EXPECT_EQ(table.first_not_covered({}, Access::kRead), 0u);
}

TEST(AccessTable, RevokingForbidsAndMovesTheVersion) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    const uint64_t before = table.version();
    EXPECT_TRUE(table.revoke(1000, Deadline::after(0s)));
    EXPECT_NE(table.version(), before);
    EXPECT_FALSE(table.covers({.address = 1000, .length = 1}, Access::kRead));
}

TEST(AccessTable, RevokingWhatWasNeverAllowedIsHarmless) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    EXPECT_TRUE(table.revoke(1001, Deadline::after(0s)));
    EXPECT_TRUE(table.covers({.address = 1000, .length = 100}, Access::kRead));
}

TEST(AccessTable, ARevokeThatTimesOutForbidsAllTheSame) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    {
        const auto section = table.section();
        EXPECT_FALSE(table.revoke(1000, Deadline::after(1ms)));
        EXPECT_FALSE(table.covers({.address = 1000, .length = 1}, Access::kRead));
    }
    EXPECT_TRUE(table.revoke(1000, Deadline::after(60s)));
}

/// Writes in short Sections; asks the table again only when its version has moved, as a long transfer does.
void write_in_sections(AccessTable& table, std::array<int, 64>& memory, const std::atomic<bool>& stop, int mine) {
    const AddressRange range{.address = reinterpret_cast<uint64_t>(memory.data()), .length = sizeof memory};
    uint64_t version = 0;
    bool allowed = false;
    while (!stop) {
        const auto section = table.section();
        const uint64_t now = table.version();
        if (now != version || !allowed) {
            allowed = table.covers(range, Access::kRead);
            version = now;
        }
        if (allowed) ++memory[static_cast<size_t>(mine)];
    }
}

TEST(AccessTable, NobodyTouchesTheMemoryAfterARevokeReturned) {
    AccessTable table;
    std::array<int, 64> memory{};  // plain on purpose: ThreadSanitizer sees every touch
    std::atomic<bool> stop{false};
    std::vector<std::jthread> writers;
    for (int t = 0; t < 2; ++t) writers.emplace_back([&, t] { write_in_sections(table, memory, stop, t * 16); });
    const AddressRange range{.address = reinterpret_cast<uint64_t>(memory.data()), .length = sizeof memory};
    bool touched = false;
    const Deadline hang = Deadline::after(60s);
    for (int round = 0; (round < 100 || !touched) && !hang.passed(); ++round) {
        table.allow(range);
        for (int i = 0; i < 10; ++i) std::this_thread::yield();
        ASSERT_TRUE(table.revoke(range.address, Deadline::after(60s)));
        for (int& value : memory) {
            touched |= value != 0;
            value = 0;
        }
        std::this_thread::yield();
        for (const int value : memory) ASSERT_EQ(value, 0);
    }
    EXPECT_TRUE(touched);
    stop = true;
}

TEST(AccessTable, MemoryForReadingOnlyIsNotCoveredForWriting) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    table.allow({.address = 1100, .length = 100}, Access::kRead);
    EXPECT_TRUE(table.covers({.address = 1000, .length = 200}, Access::kRead));
    EXPECT_TRUE(table.covers({.address = 1000, .length = 100}, Access::kWrite));
    EXPECT_FALSE(table.covers({.address = 1099, .length = 2}, Access::kWrite)) << "its second byte is for reading only";
    EXPECT_FALSE(table.covers({.address = 1100, .length = 1}, Access::kWrite));
    const std::array<AddressRange, 2> ranges{{{.address = 1000, .length = 10}, {.address = 1150, .length = 10}}};
    EXPECT_EQ(table.first_not_covered(ranges, Access::kWrite), 1u);
    EXPECT_EQ(table.first_not_covered(ranges, Access::kRead), 2u);
    EXPECT_NE(table.refusal(ranges[1], Access::kWrite).find("for reading only"), std::string::npos);
    EXPECT_NE(table.refusal({.address = 1, .length = 1}, Access::kWrite).find("not registered"), std::string::npos);
}

TEST(AccessTable, KnowsTheKindOfARangeAndCoversHostMemoryOnly) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    table.allow({.range = {.address = 1100, .length = 100}, .kind = MemoryKind::kCuda});
    table.allow({.range = {.address = 1200, .length = 100}, .most = Access::kRead, .kind = MemoryKind::kCuda});
    EXPECT_EQ(table.kind_of({.address = 1010, .length = 90}, Access::kWrite), MemoryKind::kHost);
    EXPECT_EQ(table.kind_of({.address = 1100, .length = 100}, Access::kWrite), MemoryKind::kCuda);
    EXPECT_EQ(table.kind_of({.address = 1150, .length = 100}, Access::kRead), MemoryKind::kCuda) << "spans two";
    EXPECT_EQ(table.kind_of({.address = 1150, .length = 100}, Access::kWrite), std::nullopt) << "one is for reading only";
    EXPECT_EQ(table.kind_of({.address = 1050, .length = 100}, Access::kRead), std::nullopt) << "of two kinds";
    EXPECT_EQ(table.kind_of({.address = 1250, .length = 100}, Access::kRead), std::nullopt) << "beyond the end";
    EXPECT_TRUE(table.covers({.address = 1000, .length = 100}, Access::kWrite));
    EXPECT_FALSE(table.covers({.address = 1100, .length = 100}, Access::kRead));
    EXPECT_FALSE(table.covers({.address = 1050, .length = 100}, Access::kRead));
}

TEST(AccessTable, SaysThatMemoryOfADeviceIsNotSupportedWhereItIsAllowed) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    table.allow({.range = {.address = 1100, .length = 100}, .most = Access::kRead, .kind = MemoryKind::kCuda});
    EXPECT_EQ(table.refusal_code({.address = 1100, .length = 10}, Access::kRead), Code::kNotSupported);
    EXPECT_EQ(table.refusal_code({.address = 1090, .length = 20}, Access::kRead), Code::kNotSupported) << "of two kinds";
    EXPECT_EQ(table.refusal_code({.address = 1100, .length = 10}, Access::kWrite), Code::kNotRegistered) << "for reading only";
    EXPECT_EQ(table.refusal_code({.address = 1190, .length = 20}, Access::kRead), Code::kNotRegistered) << "beyond the end";
    EXPECT_NE(table.refusal({.address = 1100, .length = 10}, Access::kRead).find("of a device"), std::string::npos);
    EXPECT_NE(table.refusal({.address = 1100, .length = 10}, Access::kWrite).find("for reading only"), std::string::npos);
}

TEST(AccessTable, CloseForbidsEverythingForGoodAndWaitsForSections) {
    AccessTable table;
    table.allow({.address = 1000, .length = 100});
    const uint64_t version = table.version();
    {
        const auto section = table.section();
        EXPECT_FALSE(table.close(Deadline::after(0s))) << "an access still runs";
        EXPECT_FALSE(table.covers({.address = 1000, .length = 1}, Access::kRead)) << "but none begins";
    }
    EXPECT_TRUE(table.close(Deadline::after(60s)));
    EXPECT_GT(table.version(), version);
    table.allow({.address = 2000, .length = 100});
    EXPECT_FALSE(table.covers({.address = 2000, .length = 1}, Access::kRead));
}

}  // namespace
}  // namespace mooncake
