// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

namespace mooncake::fabric {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kGiB = 1ull << 30;
constexpr uint64_t kBase = 1ull << 40;

PlanRequest pages(uint64_t count, uint32_t nics, uint64_t page_bytes = kPage) {
    PlanRequest request{.address = kBase, .length = count * page_bytes, .page_bytes = page_bytes, .nics = {}};
    request.nics.resize(nics);
    std::iota(request.nics.begin(), request.nics.end(), 0);
    return request;
}

/// What every plan must be: tiles, at least one NIC each, none twice, nothing beyond the room.
void expect_sound(const PlanRequest& request, const NicLedger& ledger, const std::vector<PlannedChunk>& chunks) {
    uint64_t at = request.address;
    std::map<uint32_t, uint64_t> used;
    for (const PlannedChunk& chunk : chunks) {
        ASSERT_EQ(chunk.address, at);
        ASSERT_GT(chunk.length, 0u);
        ASSERT_EQ(chunk.pages, pages_of(chunk.address, chunk.length, request.page_bytes));
        if (chunk.address != request.address) {
            ASSERT_EQ(chunk.address % request.page_bytes, 0u);
        }
        ASSERT_FALSE(chunk.nics.empty());
        ASSERT_EQ(std::set<uint32_t>(chunk.nics.begin(), chunk.nics.end()).size(), chunk.nics.size());
        for (const uint32_t nic : chunk.nics) used[nic] += chunk.pages;
        at += chunk.length;
    }
    ASSERT_EQ(at, request.address + request.length);
    for (const auto& [nic, count] : used) ASSERT_LE(count, ledger.pages_free(nic)) << "NIC " << nic;
}

size_t fewest_nics(const std::vector<PlannedChunk>& chunks) {
    size_t fewest = SIZE_MAX;
    for (const PlannedChunk& chunk : chunks) fewest = std::min(fewest, chunk.nics.size());
    return fewest;
}

std::vector<PlannedChunk> planned(const PlanRequest& request, const NicLedger& ledger) {
    auto chunks = plan_registration(request, ledger);
    EXPECT_TRUE(chunks) << (chunks ? "" : chunks.error().to_string());
    if (!chunks) return {};
    expect_sound(request, ledger, *chunks);
    return std::move(*chunks);
}

TEST(FabricPlan, CountsThePagesARangeTouches) {
    EXPECT_EQ(pages_of(0, 0, kPage), 0u);
    EXPECT_EQ(pages_of(0, 1, kPage), 1u);
    EXPECT_EQ(pages_of(kPage - 1, 2, kPage), 2u);
    EXPECT_EQ(pages_of(kPage, kPage, kPage), 1u);
    EXPECT_EQ(pages_of(kPage + 1, kPage, kPage), 2u);
    EXPECT_EQ(pages_of(UINT64_MAX - 9, 10, kPage), 1u);
}

TEST(FabricPlan, PutsASmallBufferOnEveryNic) {
    const NicLedger ledger(4, {.pages_max = 100});
    const auto chunks = planned(pages(10, 4), ledger);
    ASSERT_EQ(chunks.size(), 1u);
    EXPECT_THAT(chunks[0].nics, ElementsAre(0, 1, 2, 3));
}

TEST(FabricPlan, UsesOnlyTheNicsItMay) {
    const NicLedger ledger(4, {.pages_max = 100});
    PlanRequest request = pages(10, 4);
    request.nics = {1, 3};
    EXPECT_THAT(planned(request, ledger)[0].nics, ElementsAre(1, 3));
    request.nics = {};
    EXPECT_EQ(plan_registration(request, ledger).error().code(), Code::kNotSupported);
}

TEST(FabricPlan, KnowsTheExactBoundaryOfTheBudget) {
    const NicLedger ledger(1, {.pages_max = 100});
    EXPECT_EQ(planned(pages(100, 1), ledger).size(), 1u);
    const auto refused = plan_registration(pages(101, 1), ledger);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kNoSpace);
    EXPECT_NE(refused.error().message().find("101 pages"), std::string::npos) << refused.error().message();
    EXPECT_NE(refused.error().message().find("100 page entries"), std::string::npos) << refused.error().message();
}

TEST(FabricPlan, CountsTheUnalignedEnds) {
    const NicLedger ledger(1, {.pages_max = 100});
    PlanRequest request = pages(100, 1);
    request.address += 1;
    EXPECT_EQ(plan_registration(request, ledger).error().code(), Code::kNoSpace);
    request.length -= 1;
    EXPECT_EQ(planned(request, ledger).size(), 1u);
}

TEST(FabricPlan, CountsAllBuffersTogether) {
    NicLedger ledger(2, {.pages_max = 100});
    const auto first = planned(pages(60, 2), ledger);
    for (const uint32_t nic : first[0].nics) ledger.take(nic, 60);
    EXPECT_EQ(ledger.pages_free(0), 40u);
    EXPECT_EQ(fewest_nics(planned(pages(40, 2), ledger)), 2u);
    EXPECT_EQ(fewest_nics(planned(pages(80, 2), ledger)), 1u);
    EXPECT_EQ(plan_registration(pages(90, 2), ledger).error().code(), Code::kNoSpace);
    release(first, ledger);
    EXPECT_EQ(ledger.pages_free(0), 100u);
    EXPECT_EQ(fewest_nics(planned(pages(90, 2), ledger)), 2u);
}

TEST(FabricPlan, SpreadsWhatDoesNotFitEverywhereOverTwoNicsEach) {
    const NicLedger ledger(4, {.pages_max = 100});
    const auto chunks = planned(pages(190, 4), ledger);  // 400 entries: twice 190
    EXPECT_EQ(fewest_nics(chunks), 2u);
    std::map<uint32_t, uint64_t> used;
    for (const PlannedChunk& chunk : chunks)
        for (const uint32_t nic : chunk.nics) used[nic] += chunk.pages;
    for (uint32_t nic = 0; nic < 4; ++nic) EXPECT_GE(used[nic], 80u) << "the load is even";
}

TEST(FabricPlan, TakesOneNicPerChunkWhenTwoDoNotFit) {
    const NicLedger ledger(4, {.pages_max = 100});
    const auto chunks = planned(pages(300, 4), ledger);
    EXPECT_EQ(fewest_nics(chunks), 1u);
    const auto twice = std::count_if(chunks.begin(), chunks.end(), [](const PlannedChunk& chunk) { return chunk.nics.size() == 2; });
    EXPECT_GT(twice, 0) << "the rest of the room is used";
}

TEST(FabricPlan, UsesUnevenRoom) {
    NicLedger ledger(3, {.pages_max = 1000});
    ledger.take(0, 900);
    ledger.take(1, 950);
    const auto chunks = planned(pages(1100, 3), ledger);
    std::set<uint32_t> used;
    for (const PlannedChunk& chunk : chunks) used.insert(chunk.nics.begin(), chunk.nics.end());
    EXPECT_EQ(used.size(), 3u);
}

TEST(FabricPlan, CutsAtTheLargestRegistration) {
    const NicLedger ledger(2, {.registration_bytes_max = 64 << 20});
    PlanRequest request{.address = kBase + 100, .length = (200 << 20), .page_bytes = kPage, .nics = {0, 1}};
    const auto chunks = planned(request, ledger);
    EXPECT_GE(chunks.size(), 4u);
    for (const PlannedChunk& chunk : chunks) {
        EXPECT_LE(chunk.length, 64u << 20);
        EXPECT_EQ(chunk.nics.size(), 2u);
    }
    const NicLedger by_pages(2, {.registration_pages_max = 10});
    EXPECT_EQ(planned(pages(35, 2), by_pages).size(), 4u);
}

TEST(FabricPlan, KeepsToTheNumberOfRegistrations) {
    NicLedger ledger(2, {.registrations_max = 3});
    for (int i = 0; i < 3; ++i) ledger.take(0, 1);
    EXPECT_THAT(planned(pages(10, 2), ledger)[0].nics, ElementsAre(1));
    for (int i = 0; i < 3; ++i) ledger.take(1, 1);
    EXPECT_EQ(plan_registration(pages(10, 2), ledger).error().code(), Code::kNoSpace);
}

TEST(FabricPlan, TakesLargePagesAsOneChunk) {
    const NicLedger ledger(16, {.pages_max = 22 << 20});
    PlanRequest request = pages(1536ull * kGiB / (2 << 20), 16, 2 << 20);  // 1.5 TiB
    const auto chunks = planned(request, ledger);
    ASSERT_EQ(chunks.size(), 1u);
    EXPECT_EQ(chunks[0].nics.size(), 16u);
}

TEST(FabricPlan, PlacesOneAndAHalfTerabytesOfSmallPages) {
    const NicLedger ledger(32, {.pages_max = 22 << 20});  // 88 GiB each, 2816 GiB together
    const auto chunks = planned(pages(1536ull * kGiB / kPage, 32), ledger);
    EXPECT_LE(chunks.size(), 4096u);
    EXPECT_EQ(fewest_nics(chunks), 1u);
    EXPECT_EQ(fewest_nics(planned(pages(1300ull * kGiB / kPage, 32), ledger)), 2u);
    EXPECT_EQ(plan_registration(pages(3000ull * kGiB / kPage, 32), ledger).error().code(), Code::kNoSpace);
}

TEST(FabricPlan, IsSoundForEverySize) {
    std::mt19937_64 random(11);
    int possible = 0;
    for (int round = 0; round < 500; ++round) {
        const uint32_t nics = 1 + random() % 6;
        NicLedger ledger(nics, {.pages_max = 50 + random() % 200, .registration_pages_max = random() % 2 == 0 ? 0 : 5 + random() % 50});
        uint64_t free = 0;
        for (uint32_t nic = 0; nic < nics; ++nic) {
            ledger.take(nic, random() % 60);
            free += ledger.pages_free(nic);
        }
        PlanRequest request = pages(1 + random() % 400, nics);
        request.address += random() % kPage;
        request.length -= random() % kPage;
        if (request.length == 0) continue;
        const auto chunks = plan_registration(request, ledger);
        if (!chunks) {
            ASSERT_EQ(chunks.error().code(), Code::kNoSpace);
            ASSERT_GT(pages_of(request.address, request.length, kPage) * 100, free * 70)
                << "it gives up only when the NICs are nearly full";
            continue;
        }
        ++possible;
        expect_sound(request, ledger, *chunks);
    }
    EXPECT_GT(possible, 200);
}

/// NICs with a real limit that the ledger does not know.
struct Machine {
    explicit Machine(std::vector<uint64_t> pages) : room(std::move(pages)) {}

    std::vector<uint64_t> room;
    uint64_t largest = UINT64_MAX;  // pages of one registration
    uint64_t page_bytes = kPage;
    std::set<std::pair<uint64_t, uint32_t>> registered;  // address, NIC
    int calls = 0, broken_call = -1;

    PlanWork work() {
        return {.place =
                    [this](std::span<const Placement> wanted) {
                        std::vector<Result<>> results;
                        for (const Placement& placement : wanted) results.push_back(place(placement));
                        return results;
                    },
                .undo =
                    [this](std::span<const Placement> placed) {
                        for (const Placement& placement : placed) {
                            EXPECT_EQ(registered.erase({placement.address, placement.nic}), 1u);
                            room[placement.nic] += pages_of(placement.address, placement.length, page_bytes);
                        }
                    }};
    }
    Result<> place(const Placement& placement) {
        if (calls++ == broken_call) return fail(Code::kInternal, "something else");
        const uint64_t pages = pages_of(placement.address, placement.length, page_bytes);
        if (pages > room[placement.nic] || pages > largest) return fail(Code::kNoSpace, "no room");
        room[placement.nic] -= pages;
        EXPECT_TRUE(registered.insert({placement.address, placement.nic}).second);
        return {};
    }
};

TEST(FabricPlan, IsCarriedOut) {
    Machine machine({1000, 1000});
    NicLedger ledger(2, {});
    const auto chunks = carry_out(pages(10, 2), ledger, machine.work());
    ASSERT_TRUE(chunks);
    EXPECT_EQ(machine.registered.size(), 2u);
    EXPECT_EQ(ledger.pages_used(0), 10u);
    EXPECT_EQ(ledger.registrations(1), 1u);
    release(*chunks, ledger);
    EXPECT_EQ(ledger.pages_used(0), 0u);
    EXPECT_EQ(ledger.registrations(1), 0u);
}

TEST(FabricPlan, LearnsFromAFullNicAndGoesOnWithTheOthers) {
    Machine machine({100, 50});
    NicLedger ledger(2, {});
    ASSERT_TRUE(carry_out(pages(40, 2), ledger, machine.work()));
    EXPECT_EQ(machine.registered.size(), 2u);
    PlanRequest second = pages(40, 2);
    second.address += kGiB;
    const auto chunks = carry_out(second, ledger, machine.work());
    ASSERT_TRUE(chunks);
    EXPECT_THAT((*chunks)[0].nics, ElementsAre(0));
    EXPECT_EQ(ledger.pages_limit(1), 40u) << "what fitted is what it can take";
    EXPECT_EQ(ledger.pages_free(1), 0u);
    const int calls = machine.calls;
    PlanRequest third = pages(10, 2);
    third.address += 2 * kGiB;
    ASSERT_TRUE(carry_out(third, ledger, machine.work()));
    EXPECT_EQ(machine.calls, calls + 1) << "the full one is not asked again";
}

TEST(FabricPlan, MovesAChunkWhoseOnlyNicIsFull) {
    Machine machine({30, 500});
    NicLedger ledger(2, {.pages_max = 100, .registration_pages_max = 50});
    const auto chunks = carry_out(pages(100, 2), ledger, machine.work());
    ASSERT_TRUE(chunks) << chunks.error().to_string();
    EXPECT_EQ(fewest_nics(*chunks), 1u);
    uint64_t used = 0;
    for (const PlannedChunk& chunk : *chunks) used += chunk.pages * chunk.nics.size();
    EXPECT_EQ(used, ledger.pages_used(0) + ledger.pages_used(1));
    EXPECT_EQ(machine.room[0] + ledger.pages_used(0), 30u);
    EXPECT_EQ(machine.room[1] + ledger.pages_used(1), 500u);
}

TEST(FabricPlan, CutsSmallerWhenOneRegistrationIsTooLarge) {
    Machine machine({100 << 20, 100 << 20});
    machine.largest = 1 << 20;  // pages, as on older devices
    NicLedger ledger(2, {.pages_max = 22 << 20});
    const auto chunks = carry_out(pages(10 << 20, 2), ledger, machine.work());
    ASSERT_TRUE(chunks) << chunks.error().to_string();
    EXPECT_GE(chunks->size(), 10u);
    EXPECT_EQ(fewest_nics(*chunks), 2u);
    EXPECT_EQ(ledger.pages_used(0), 10u << 20);
}

TEST(FabricPlan, UndoesEverythingWhenNothingIsLeft) {
    Machine machine({50, 30});
    NicLedger ledger(2, {});
    const auto chunks = carry_out(pages(200, 2), ledger, machine.work());
    ASSERT_FALSE(chunks);
    EXPECT_EQ(chunks.error().code(), Code::kNoSpace);
    EXPECT_TRUE(machine.registered.empty());
    EXPECT_EQ(machine.room, (std::vector<uint64_t>{50, 30}));
    EXPECT_EQ(ledger.pages_used(0), 0u);
    EXPECT_EQ(ledger.registrations(1), 0u);
    EXPECT_LT(machine.calls, 1000) << "it does not try for ever";
    EXPECT_TRUE(carry_out(pages(20, 2), ledger, machine.work())) << "small ones still find room";
}

TEST(FabricPlan, UndoesEverythingWhereverItBreaks) {
    for (int call = 0; call < 8; ++call) {
        Machine machine({100, 100});
        machine.broken_call = call;
        NicLedger ledger(2, {.registration_pages_max = 10});
        const auto chunks = carry_out(pages(40, 2), ledger, machine.work());
        ASSERT_FALSE(chunks) << call;
        EXPECT_EQ(chunks.error().code(), Code::kInternal);
        EXPECT_TRUE(machine.registered.empty());
        EXPECT_EQ(ledger.pages_used(0) + ledger.pages_used(1), 0u);
    }
}

constexpr std::string_view kSmaps =
    "7f0000000000-7f0040000000 rw-p 00000000 00:0f 12345   /anon_hugepage (deleted)\n"
    "Size:            1048576 kB\n"
    "KernelPageSize:     2048 kB\n"
    "MMUPageSize:        2048 kB\n"
    "7f0040000000-7f0040001000 rw-p 00000000 00:00 0 \n"
    "Size:                  4 kB\n"
    "KernelPageSize:        4 kB\n"
    "VmFlags: rd wr mr mw me ac\n"
    "7f0080000000-7f00c0000000 rw-p 00000000 00:0f 12346   /dev/hugepages/one gig\n"
    "KernelPageSize:  1048576 kB\n";

TEST(FabricPageSize, IsThatOfTheMapping) {
    EXPECT_EQ(page_bytes_in(kSmaps, 0x7f0000000000, 1 << 30), 2u << 20);
    EXPECT_EQ(page_bytes_in(kSmaps, 0x7f0010000000, 1), 2u << 20);
    EXPECT_EQ(page_bytes_in(kSmaps, 0x7f0080000000, 1 << 20), 1u << 30);
}

TEST(FabricPageSize, IsTheSmallestOfSeveralMappings) { EXPECT_EQ(page_bytes_in(kSmaps, 0x7f003ffff000, 2 * kPage), kPage); }

TEST(FabricPageSize, IsSmallWhereNothingIsKnown) {
    EXPECT_EQ(page_bytes_in(kSmaps, 0x7f0070000000, kPage), kPage);
    EXPECT_EQ(page_bytes_in("", 0, kPage), kPage);
    EXPECT_EQ(page_bytes_in("0-ffffffffffffffff rw-p\nKernelPageSize: 3 kB\n", 0, kPage), kPage) << "no power of two";
    EXPECT_EQ(page_bytes_in("KernelPageSize: 2048 kB\nfoo-bar \n-\nKernelPageSize:\n", 0, kPage), kPage);
}

TEST(FabricPageSize, OfOurOwnMemoryCanBeRead) {
    const std::vector<char> memory(1 << 20);
    const uint64_t found = page_bytes_of(reinterpret_cast<uint64_t>(memory.data()), memory.size());
    EXPECT_GE(found, kPage);
    EXPECT_EQ(found & (found - 1), 0u);
}

}  // namespace
}  // namespace mooncake::fabric
