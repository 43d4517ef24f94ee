// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "transport/fabric/testing/fake_fabric.h"

namespace mooncake::fabric {
namespace {

constexpr uint64_t kPage = 4096;

/// Memory that nobody touches: a fake NIC does not either.
class Reserved {
public:
    explicit Reserved(uint64_t length) : length_(length) {
        address_ = static_cast<std::byte*>(::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        MC_CHECK(address_ != MAP_FAILED);
    }
    ~Reserved() { ::munmap(address_, length_); }
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;
    MemoryRegion region(uint64_t offset, uint64_t length) const { return {.address = address_ + offset, .length = length}; }

private:
    std::byte* address_ = nullptr;
    uint64_t length_ = 0;
};

FakeNic nic(std::string name, uint64_t pages_max = UINT64_MAX) {
    FakeNic made;
    made.name = std::move(name);
    made.pages_max = pages_max;
    return made;
}
FakeNic needy_nic(std::string name) {
    FakeNic made = nic(std::move(name));
    made.local_keys = true;
    return made;
}

/// A host with some rails, of which nobody else knows.
struct Host {
    explicit Host(FakeNetwork& network, std::vector<FakeNic> nics, FabricMemory::Settings settings = {})
        : fabric(network, std::move(nics)) {
        const std::vector<Offer> offers = fabric.offers({}).value();
        for (const Offer& offer : offers) {
            counted.push_back(std::make_unique<RailMetrics>(metrics, offer.nic));
            const auto index = static_cast<uint32_t>(rails.size());
            rails.push_back(
                Rail::open(fabric, offer, {.index = index, .profile = *find_profile("tcp"), .metrics = counted.back().get()}).value());
        }
        std::vector<Rail*> all;
        for (const auto& rail : rails) all.push_back(rail.get());
        memory = std::make_unique<FabricMemory>(all, settings);
    }
    ResolveAnswer asked(const MemoryRegion& region) const {
        return memory->resolve({.address = reinterpret_cast<uint64_t>(region.address), .length = region.length});
    }

    metrics::Registry metrics;
    FakeFabric fabric;
    std::vector<std::unique_ptr<RailMetrics>> counted;
    std::vector<std::unique_ptr<Rail>> rails;
    std::unique_ptr<FabricMemory> memory;
};

TEST(FabricMemory, IsKnownToEveryRail) {
    FakeNetwork network;
    Host host(network, {nic("n0"), nic("n1")});
    const Reserved space(16 * kPage);
    auto registration = host.memory->add(space.region(0, 16 * kPage)).value();
    const auto answer = host.asked(space.region(5, 10));
    ASSERT_EQ(answer.chunks.size(), 1u);
    EXPECT_TRUE(answer.complete);
    EXPECT_TRUE(answer.chunks[0].key(0) && answer.chunks[0].key(1));
    EXPECT_EQ(answer.rails.size(), 2u);
    EXPECT_EQ(network.counts("n0").registrations, 1u);
    EXPECT_EQ(host.counted[0]->pages_used->value(), 16);
    EXPECT_EQ(host.counted[0]->pages_limit->value(), -1);
    registration.reset();
    EXPECT_EQ(network.counts("n0").registrations, 0u);
    EXPECT_EQ(host.counted[0]->pages_used->value(), 0);
    EXPECT_TRUE(host.asked(space.region(0, 1)).chunks.empty());
}

TEST(FabricMemory, ReopensEndpointsOnlyWhereKeysWereTold) {
    FakeNetwork network;
    Host host(network, {nic("n0")});
    const Reserved space(2 * kPage);
    const uint64_t epoch = host.rails[0]->state().epoch;
    host.memory->add(space.region(0, kPage)).value().reset();
    EXPECT_EQ(host.rails[0]->state().epoch, epoch);
    auto told = host.memory->add(space.region(0, kPage)).value();
    (void)host.asked(space.region(0, kPage));
    ASSERT_TRUE(told->revoke(Deadline::after(1s)));
    EXPECT_GT(host.rails[0]->state().epoch, epoch);
    EXPECT_EQ(host.counted[0]->fences->value(), 1u);
}

TEST(FabricMemory, DoesWithoutANicThatIsFull) {
    FakeNetwork network;
    Host host(network, {nic("n0"), nic("n1", 10)});
    const Reserved space(64 * kPage);
    const auto small = host.memory->add(space.region(0, 8 * kPage)).value();
    const auto large = host.memory->add(space.region(16 * kPage, 16 * kPage)).value();
    EXPECT_TRUE(host.asked(space.region(0, kPage)).chunks.at(0).key(1));
    const auto answer = host.asked(space.region(16 * kPage, kPage));
    EXPECT_FALSE(answer.chunks.at(1).key(1));
    EXPECT_TRUE(answer.chunks.at(1).key(0));
    EXPECT_EQ(host.counted[1]->pages_limit->value(), 8) << "learned";
}

TEST(FabricMemory, SpreadsWhatFitsOnNoNicAlone) {
    FakeNetwork network;
    Host host(network, {nic("n0", 40), nic("n1", 40)}, {.limits = {.pages_max = 40}});
    const Reserved space(128 * kPage);
    const auto registration = host.memory->add(space.region(0, 60 * kPage)).value();
    const auto answer = host.asked(space.region(0, 60 * kPage));
    EXPECT_GT(answer.chunks.size(), 1u);
    uint64_t covered = 0;
    for (const ChunkRecord& chunk : answer.chunks) covered += chunk.length;
    EXPECT_EQ(covered, 60 * kPage);
    EXPECT_EQ(host.memory->add(space.region(64 * kPage, 64 * kPage)).error().code(), Code::kNoSpace);
    EXPECT_LE(network.counts("n0").registrations, answer.chunks.size()) << "nothing is left of what failed";
}

TEST(FabricMemory, OfOurOwnUseIsRegisteredOnlyWhereNicsNeedIt) {
    FakeNetwork network;
    Host plain(network, {nic("n0")}), needy(network, {needy_nic("n1")});
    const Reserved space(kPage);
    MemoryRegion region = space.region(0, kPage);
    region.remote_accessible = false;
    EXPECT_EQ(plain.memory->add(region).value(), nullptr);
    const auto registration = needy.memory->add(region).value();
    ASSERT_NE(registration, nullptr);
    EXPECT_NE(needy.memory->find_local(reinterpret_cast<uint64_t>(region.address), 0).descriptor, nullptr);
    EXPECT_TRUE(needy.asked(region).chunks.empty()) << "peers are not told";
}

TEST(FabricMemory, OfGreatSizeIsRegisteredByManyAtOnce) {
    FakeNetwork network;
    std::vector<FakeNic> nics;
    for (int i = 0; i < 8; ++i) nics.push_back(nic(format_text("n{}", i)));
    Host host(network, nics, {.limits = {.registration_bytes_max = 256 << 20}, .parallel = 4, .populate = true});
    const Reserved space(4ull << 30);
    const auto registration = host.memory->add(space.region(kPage, 3ull << 30)).value();
    for (int i = 0; i < 8; ++i) EXPECT_EQ(network.counts(format_text("n{}", i)).registrations, 12u);
    network.fail_registration("n3", 2);  // of the next buffer: one part of it lies on seven NICs
    const auto second = host.memory->add(space.region((3ull << 30) + 2 * kPage, 512 << 20)).value();
    EXPECT_EQ(network.counts("n3").registrations, 13u);
    EXPECT_EQ(network.counts("n4").registrations, 14u);
}

}  // namespace
}  // namespace mooncake::fabric
