// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/testing/fake_fabric.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

namespace mooncake::fabric {
namespace {

/// Two NICs with 4096 bytes each, and an operation's context.
struct FakeFabricTest : ::testing::TestWithParam<MrStyle> {
    struct Side {
        Side(FakeNetwork& network, const std::string& name, MrStyle style)
            : fabric(network, {FakeNic{.name = name, .style = style, .tx_size = 4}}) {
            const Offer offer = fabric.offers({}).value().at(0);
            domain = fabric.open(offer, {}).value();
            serving = domain->open_endpoint().value();
            initiating = domain->open_endpoint().value();
            memory.resize(4096);
            key = domain->register_memory({.address = memory.data(), .length = memory.size(), .key = 77}).value();
            base = offer.virtual_addresses ? reinterpret_cast<uint64_t>(memory.data()) : 0;
        }
        std::vector<Finished> poll() const {
            std::vector<Finished> finished(16);
            finished.resize(domain->poll(finished));
            return finished;
        }
        FakeFabric fabric;
        std::vector<std::byte> memory;
        std::unique_ptr<Domain> domain;
        std::unique_ptr<Endpoint> serving, initiating;
        std::unique_ptr<MemoryKey> key;
        uint64_t base = 0;
    };

    Operation write(uint64_t offset, uint64_t length) {
        return {.direction = Direction::kWrite,
                .local = a.memory.data() + offset,
                .length = length,
                .peer = to_b,
                .remote = b.base + offset,
                .key = b.key->key(),
                .context = &context};
    }
    bool post(const Operation& operation) { return a.initiating->post(operation).value(); }
    int posted_and_polled(const Operation& operation) {
        EXPECT_TRUE(post(operation));
        (void)b.poll();
        const auto finished = a.poll();
        return finished.size() == 1 ? finished[0].error : -1;
    }

    FakeNetwork network;
    Side a{network, "a", GetParam()}, b{network, "b", GetParam()};
    AddressHandle to_b = a.domain->insert_address(b.serving->name()).value();
    OperationContext context{};
};

INSTANTIATE_TEST_SUITE_P(Styles, FakeFabricTest, ::testing::Values(MrStyle::kOffset, MrStyle::kBasic));

TEST_P(FakeFabricTest, MovesBytesWhenTheTargetPolls) {
    a.memory[5] = std::byte{42};
    ASSERT_TRUE(post(write(0, 16)));
    EXPECT_TRUE(a.poll().empty());
    EXPECT_EQ(b.memory[5], std::byte{0});
    EXPECT_TRUE(b.poll().empty());
    EXPECT_EQ(b.memory[5], std::byte{42});
    const auto finished = a.poll();
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].context, &context);
    EXPECT_EQ(finished[0].error, 0);
    EXPECT_EQ(network.counts("a").bytes, 16u);
    EXPECT_EQ(network.counts("a").in_flight, 0u);

    b.memory[7] = std::byte{43};
    Operation read = write(0, 16);
    read.direction = Direction::kRead;
    EXPECT_EQ(posted_and_polled(read), 0);
    EXPECT_EQ(a.memory[7], std::byte{43});
}

TEST_P(FakeFabricTest, ChecksKeysAndBounds) {
    Operation bad = write(0, 16);
    bad.key += 1;
    EXPECT_EQ(posted_and_polled(bad), ECANCELED);
    network.set_refusal_cancels_all(false);
    EXPECT_EQ(posted_and_polled(bad), EINVAL);
    EXPECT_EQ(posted_and_polled(write(4090, 6)), 0);
    Operation beyond = write(4090, 6);
    beyond.remote += 1;
    EXPECT_EQ(posted_and_polled(beyond), EINVAL);
    EXPECT_EQ(network.counts("a").refused_keys, 3u);
}

TEST_P(FakeFabricTest, TakesOthersAlongWhenAKeyIsRefused) {
    Operation bad = write(0, 16);
    bad.key += 1;
    ASSERT_TRUE(post(bad));
    ASSERT_TRUE(post(write(0, 16)));
    (void)b.poll();
    const auto finished = a.poll();
    ASSERT_EQ(finished.size(), 2u);
    EXPECT_EQ(finished[1].error, ECANCELED);
}

TEST_P(FakeFabricTest, SaysAgainWhenFullOrTold) {
    network.again("a", 2);
    EXPECT_FALSE(post(write(0, 1)));
    EXPECT_FALSE(post(write(0, 1)));
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(post(write(0, 1)));
    EXPECT_FALSE(post(write(0, 1)));
    b.serving.reset();
    EXPECT_EQ(a.poll().size(), 4u);
    EXPECT_FALSE(post(write(0, 1))) << "the peer is gone, and nobody says so";
}

TEST_P(FakeFabricTest, KeepsWhatIsCutOffUntilItHeals) {
    network.cut("b", "a");
    a.memory[0] = std::byte{1};
    EXPECT_EQ(posted_and_polled(write(0, 1)), -1);
    EXPECT_TRUE(b.domain->may_sleep());
    network.heal("a", "b");
    EXPECT_FALSE(b.domain->may_sleep());
    (void)b.poll();
    EXPECT_EQ(a.poll().size(), 1u);
    EXPECT_EQ(b.memory[0], std::byte{1});
    network.stop("b");
    EXPECT_EQ(posted_and_polled(write(0, 1)), -1);
    network.go_on("b");
    (void)b.poll();
    EXPECT_EQ(a.poll().size(), 1u);
}

TEST_P(FakeFabricTest, DeliversLateWritesOnlyToTheSameEndpoint) {
    network.set_late_writes(true);
    network.cut("a", "b");
    a.memory[0] = std::byte{1};
    ASSERT_TRUE(post(write(0, 1)));
    a.initiating = a.domain->open_endpoint().value();
    ASSERT_EQ(a.poll().size(), 1u) << "flushed";
    a.memory[0] = std::byte{2};
    network.heal("a", "b");
    (void)b.poll();
    EXPECT_EQ(b.memory[0], std::byte{1}) << "what was given up has landed";
    EXPECT_EQ(network.counts("a").late_writes, 1u);

    network.cut("a", "b");
    a.memory[0] = std::byte{3};
    ASSERT_TRUE(post(write(0, 1)));
    a.initiating = a.domain->open_endpoint().value();
    b.serving = b.domain->open_endpoint().value();  // the fence
    network.heal("a", "b");
    (void)b.poll();
    EXPECT_EQ(b.memory[0], std::byte{1});
}

TEST_P(FakeFabricTest, MayLoseFlushesAndInventErrors) {
    network.set_lose_flushes(true);
    network.cut("a", "b");
    ASSERT_TRUE(post(write(0, 1)));
    a.initiating = a.domain->open_endpoint().value();
    EXPECT_TRUE(a.poll().empty());
    EXPECT_EQ(network.counts("a").in_flight, 0u);
    network.inject_error("a", EIO, 5);
    const auto finished = a.poll();
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].context, nullptr);
    EXPECT_EQ(finished[0].error, EIO);
    network.heal("a", "b");
    ASSERT_TRUE(post(write(0, 1)));
    network.break_link("a", "b", ECONNRESET);
    EXPECT_EQ(a.poll().at(0).error, ECONNRESET);
}

TEST_P(FakeFabricTest, RefusesRegistrationsWhenTold) {
    network.fail_registration("a", 2);
    const Domain::KeyRequest request{.address = a.memory.data(), .length = 1, .key = 1};
    EXPECT_TRUE(a.domain->register_memory(request));
    EXPECT_EQ(a.domain->register_memory(request).error().code(), Code::kNoSpace);
    const auto first = a.domain->register_memory(request);
    EXPECT_TRUE(first);
    if (GetParam() == MrStyle::kOffset) {
        EXPECT_EQ(a.domain->register_memory(request).error().code(), Code::kBusy);
    }
}

TEST_P(FakeFabricTest, UsesAddressSlotsAgain) {
    a.domain->remove_address(to_b);
    EXPECT_FALSE(a.initiating->post(write(0, 1)));
    EXPECT_EQ(network.counts("a").stale_addresses, 1u);
    EXPECT_EQ(a.domain->insert_address(a.serving->name()).value(), to_b);
}

}  // namespace
}  // namespace mooncake::fabric
