// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/region_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "transport/shm/region_view.h"
#include "transport/testing/conformance.h"

namespace mooncake::shm {
namespace {

using testing::code_of;

MemoryFile duplicate(int fd) { return MemoryFile(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

class RegionTableTest : public ::testing::Test {
protected:
    RegionView view() { return {remote, memories}; }
    bool covers(const RegionView& seen, uint64_t address, uint64_t length, Access access = Access::kWrite) {
        size_t hint = random() % 10;
        Claims::Section section(claims);
        return seen.find(remote, section, {address, length}, access, hint) != nullptr;
    }

    const Incarnation incarnation = Incarnation::random();
    const std::unique_ptr<RegionTable> table = RegionTable::create(incarnation).value();
    const RemoteTable remote = RemoteTable::open(duplicate(table->fd()), incarnation).value();
    const Devices devices;
    RemoteMemories memories;
    Claims claims;
    std::mt19937_64 random{1};
};

TEST_F(RegionTableTest, ShowsPublishedRegionsToPeers) {
    EXPECT_TRUE(view().regions().empty());
    ASSERT_TRUE(table->publish({.address = 1000, .length = 100}));
    ASSERT_TRUE(table->publish({.address = 5000, .length = 100}));
    const RegionView seen = view();
    EXPECT_TRUE(covers(seen, 1000, 100));
    EXPECT_TRUE(covers(seen, 1099, 1));
    EXPECT_TRUE(covers(seen, 5000, 1));
    EXPECT_FALSE(covers(seen, 1000, 101));
    EXPECT_FALSE(covers(seen, 999, 1));
    EXPECT_FALSE(covers(seen, 999, 2));
    EXPECT_FALSE(covers(seen, 1100, 1));
    EXPECT_FALSE(covers(seen, 1050, 4000));
    EXPECT_FALSE(covers(seen, 1000, 0));
    EXPECT_FALSE(covers(seen, 1000, ~uint64_t{0}));
    EXPECT_FALSE(covers(seen, 0, 10));
}

TEST_F(RegionTableTest, FindsRangesAcrossAdjacentRegions) {
    std::vector<uint32_t> entries;
    for (uint64_t i = 0; i < 10; ++i) entries.push_back(table->publish({.address = 1000 + (9 - i) * 100, .length = 100}).value());
    const RegionView seen = view();
    EXPECT_TRUE(covers(seen, 1000, 1000));
    EXPECT_TRUE(covers(seen, 1050, 900));
    EXPECT_FALSE(covers(seen, 1050, 951));
    table->withdraw(entries[5]);
    EXPECT_FALSE(covers(seen, 1000, 1000));
    EXPECT_TRUE(covers(seen, 1000, 400));
    EXPECT_TRUE(covers(seen, 1500, 500));
}

TEST_F(RegionTableTest, AnOldViewNeverTakesANewRegionForTheOldOne) {
    const uint32_t first = table->publish({.address = 1000, .length = 100}).value();
    const RegionView old = view();
    table->withdraw(first);
    EXPECT_FALSE(covers(old, 1000, 100));
    table->release(first);
    EXPECT_EQ(table->publish({.address = 1000, .length = 50}).value(), first);
    EXPECT_FALSE(covers(old, 1000, 50));
    EXPECT_NE(old.changes(), remote.changes());
    EXPECT_TRUE(covers(view(), 1000, 50));
}

TEST_F(RegionTableTest, TellsWhatMayOnlyBeRead) {
    ASSERT_TRUE(table->publish({.address = 1000, .length = 100}));
    ASSERT_TRUE(table->publish({.address = 1100, .length = 100, .writable = false}));
    const RegionView seen = view();
    EXPECT_TRUE(covers(seen, 1000, 200, Access::kRead));
    EXPECT_FALSE(covers(seen, 1000, 200, Access::kWrite));
    EXPECT_FALSE(covers(seen, 1150, 1, Access::kWrite));
    EXPECT_TRUE(covers(seen, 1000, 100, Access::kWrite));
}

TEST_F(RegionTableTest, ClaimsEveryRegionOfARangeBeforeItIsUsed) {
    std::vector<uint32_t> entries;
    for (uint64_t i = 0; i < 4; ++i) entries.push_back(table->publish({.address = 1000 + i * 100, .length = 100}).value());
    const RegionView seen = view();
    Claims::Section section(claims);
    size_t hint = 0;
    ASSERT_NE(seen.find(remote, section, {1150, 100}, Access::kWrite, hint), nullptr);
    EXPECT_TRUE(claims.wait_for(entries[0], Deadline::after(0s)));
    EXPECT_FALSE(claims.wait_for(entries[1], Deadline::after(0s)));
    EXPECT_FALSE(claims.wait_for(entries[2], Deadline::after(0s)));
    EXPECT_TRUE(claims.wait_for(entries[3], Deadline::after(0s)));
}

TEST_F(RegionTableTest, HasNothingForAnybodyOnceClosed) {
    const uint32_t entry = table->publish({.address = 1000, .length = 100}).value();
    const RegionView old = view();
    table->close();
    EXPECT_FALSE(covers(old, 1000, 1));
    EXPECT_NE(old.changes(), remote.changes());
    EXPECT_TRUE(view().regions().empty());
    EXPECT_EQ(code_of(table->publish({.address = 1000, .length = 100})), Code::kUnavailable);
    table->withdraw(entry);
    table->release(entry);
    EXPECT_TRUE(view().regions().empty());
}

TEST_F(RegionTableTest, TakesAHundredThousandRegionsInNoTime) {
    const Deadline hang = Deadline::after(60s);
    std::vector<uint32_t> entries;
    for (uint64_t i = 0; i < 100'000; ++i) entries.push_back(table->publish({.address = 4096 * (i + 1), .length = 2048}).value());
    const RegionView seen = view();
    EXPECT_EQ(seen.regions().size(), 100'000u);
    EXPECT_TRUE(covers(seen, 4096 * 77'777, 2048));
    for (const uint32_t entry : entries) {
        table->withdraw(entry);
        table->release(entry);
    }
    EXPECT_TRUE(view().regions().empty());
    EXPECT_FALSE(hang.passed());
}

TEST_F(RegionTableTest, RefusesMoreRegionsThanItHasRoomFor) {
    for (uint32_t i = 0; i < kTableEntries; ++i) ASSERT_TRUE(table->publish({.address = 4096, .length = 1}));
    EXPECT_EQ(code_of(table->publish({.address = 4096, .length = 1})), Code::kNoSpace);
    table->withdraw(7);
    table->release(7);
    EXPECT_EQ(table->publish({.address = 4096, .length = 1}).value(), 7u);
}

TEST_F(RegionTableTest, ReadersSeeWholeRegionsWhileTheOwnerChangesThem) {
    std::atomic<bool> over{false};
    std::jthread owner([&] {
        for (uint64_t i = 1; !over.load(); ++i) {
            const uint64_t value = i % 1000 + 1;
            const uint32_t entry = table->publish({.address = value << 20, .length = value, .memory = value, .offset = value}).value();
            table->withdraw(entry);
            table->release(entry);
        }
    });
    uint64_t seen = 0;
    for (int i = 0; i < 20'000 || (seen < 10 && i < 2'000'000); ++i) {
        for (const RemoteTable::Found& found : remote.read()) {
            ++seen;
            ASSERT_EQ(found.region.address, found.region.length << 20);
            ASSERT_EQ(found.region.memory, found.region.length);
            ASSERT_EQ(found.region.offset, found.region.length);
        }
    }
    over = true;
}

TEST_F(RegionTableTest, PointsIntoMappedMemoryOnlyWhereTheRegionFits) {
    const SharedMemory backing = allocate_shared_memory(8192).value();
    ASSERT_TRUE(table->publish({.address = 1 << 20, .length = 4096, .memory = 5, .offset = 4096}));
    ASSERT_TRUE(table->publish({.address = 2 << 20, .length = 4097, .memory = 5, .offset = 4096}));
    ASSERT_TRUE(table->publish({.address = 3 << 20, .length = 1, .memory = 5, .offset = ~uint64_t{0}}));
    ASSERT_TRUE(table->publish({.address = 4 << 20, .length = 4096, .memory = 6, .offset = 0}));
    memories[5].reached = std::make_shared<const MappedMemory>(
        std::make_shared<const Mapping>(duplicate(backing.fd()).map(true, 8192).value()), devices);
    memories[9].asked = true;
    std::byte* const base = memories[5].reached->address;

    const RegionView seen = view();

    ASSERT_EQ(seen.regions().size(), 4u);
    EXPECT_EQ(seen.regions()[0].mapped, base + 4096);
    EXPECT_EQ(seen.regions()[1].mapped, nullptr);
    EXPECT_EQ(seen.regions()[2].mapped, nullptr);
    EXPECT_EQ(seen.regions()[3].mapped, nullptr);
    EXPECT_TRUE(memories.contains(6)) << "to be asked for";
    EXPECT_FALSE(memories.contains(9)) << "no longer in the table";
}

TEST_F(RegionTableTest, AViewKeepsTheMemoryItPointsIntoMapped) {
    const SharedMemory backing = allocate_shared_memory(4096).value();
    const uint32_t entry = table->publish({.address = 1 << 20, .length = 4096, .memory = 5}).value();
    memories[5].reached = std::make_shared<const MappedMemory>(
        std::make_shared<const Mapping>(duplicate(backing.fd()).map(true, 4096).value()), devices);
    const RegionView old = view();
    table->withdraw(entry);
    (void)view();
    EXPECT_TRUE(memories.empty());
    std::memset(old.regions()[0].mapped, 1, 4096);
    EXPECT_EQ(backing.address()[4095], std::byte{1});
}

TEST(RemoteTable, DoesNotReadBeyondItsEnd) {
    const MemoryFile file = MemoryFile::create("test", kTableBytes).value();
    const Mapping forged = file.map(true, kTableBytes).value();
    auto& header = *reinterpret_cast<TableHeader*>(forged.address());
    header.magic = kTableMagic;
    header.version = kVersion;
    header.entry_bytes = sizeof(TableEntry);
    header.incarnation = 1;
    header.used.store(UINT32_MAX);
    EXPECT_TRUE(RemoteTable::open(file, Incarnation{1}).value().read().empty());
}

TEST(RemoteTable, RefusesFilesThatAreNoTables) {
    const Incarnation incarnation = Incarnation::random();
    EXPECT_EQ(code_of(RemoteTable::open(MemoryFile::create("test", 4096).value(), incarnation)), Code::kRefused);
    EXPECT_EQ(code_of(RemoteTable::open(MemoryFile::create("test", kTableBytes).value(), incarnation)), Code::kRefused);
    const auto table = RegionTable::create(incarnation).value();
    EXPECT_EQ(code_of(RemoteTable::open(duplicate(table->fd()), Incarnation::random())), Code::kStale);
}

}  // namespace
}  // namespace mooncake::shm
