// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <tuple>

#include "coordination/http/metadata_service.h"
#include "metrics/metrics.h"
#include "net/http_server.h"
#include "net/socket.h"
#include "transport/fabric/api.h"
#include "transport/tcp/handshake.h"

namespace mooncake {
namespace {

std::unique_ptr<Engine> make_engine(const std::function<void(EngineConfig&)>& change = {}) {
    EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
    if (change) change(config);
    auto engine = Engine::create(std::move(config));
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
    return engine ? std::move(*engine) : nullptr;
}

Deadline soon() { return Deadline::after(10s); }
uint64_t remote(const void* address) { return reinterpret_cast<uint64_t>(address); }

/// Two engines in one process, with some registered memory each.
class EngineTest : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_TRUE(ours);
        ASSERT_TRUE(theirs);
        ASSERT_TRUE(ours->register_memory(local.data(), local.size()));
        ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    }
    std::vector<Block> blocks(size_t count, size_t length, size_t step) {
        std::vector<Block> made;
        for (size_t i = 0; i < count; ++i)
            made.push_back({.local = local.data() + i * step, .remote = remote(far.data() + i * step), .length = length});
        return made;
    }
    void fill(std::vector<std::byte>& memory, int seed) {
        for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed));
    }

    std::vector<std::byte> local = std::vector<std::byte>(1 << 20), far = std::vector<std::byte>(1 << 20);
    std::unique_ptr<Engine> ours = make_engine(), theirs = make_engine();
};

TEST_F(EngineTest, WarmsUpAsOftenAsAskedAndTakesItForAHint) {
    EXPECT_TRUE(ours->warm_up(theirs->segment_name(), soon()));
    EXPECT_TRUE(ours->warm_up(theirs->segment_name(), soon()));
    EXPECT_TRUE(ours->warm_up(ours->segment_name(), soon()));
    EXPECT_TRUE(ours->warm_up("127.0.0.1:1", soon())) << "nothing gains by it here";
    EXPECT_EQ(ours->warm_up("", soon()).error().code(), Code::kInvalidArgument);
    theirs->close();
    EXPECT_FALSE(theirs->warm_up(ours->segment_name(), soon()));
}

TEST_F(EngineTest, NamesItselfByHostAndChosenPort) {
    EXPECT_EQ(ours->segment_name(), "127.0.0.1:" + std::to_string(ours->rpc_port()));
    EXPECT_GE(ours->rpc_port(), 15000);
    EXPECT_LE(ours->rpc_port(), 17000);
    EXPECT_NE(ours->rpc_port(), theirs->rpc_port());
}

TEST_F(EngineTest, IsReachedWhereItsNameSaysAndNowhereElse) {
    const auto reached = [&](const Engine& engine, const std::string& host) {
        // At the other address another engine may have got the same port: whoever answers has to be this one.
        const SegmentDescriptor self = ours->describe(engine.segment_name(), 0, soon()).value();
        const uint16_t port = tcp::parse_endpoint(self.endpoints.at("tcp")).value().port;
        const tcp::Hello hello{.initiator = Incarnation::random(), .target = self.incarnation, .session = tcp::SessionId::random()};
        const bool data = tcp::greet({.host = host, .port = port, .incarnation = self.incarnation}, hello, soon()).has_value();
        const auto answer = ours->describe(format_text("{}:{}", host, engine.rpc_port()), 0, soon());
        const bool control = answer && answer->incarnation == self.incarnation;
        EXPECT_EQ(data, control);
        return data && control;
    };
    EXPECT_TRUE(reached(*theirs, "127.0.0.1"));
    EXPECT_FALSE(reached(*theirs, "127.0.0.2")) << "a loopback name binds that address alone";
    const auto local_only = make_engine([](EngineConfig& config) { config.local_name = "localhost"; });
    EXPECT_FALSE(reached(*local_only, "127.0.0.2"));
    EXPECT_TRUE(ours->probe(local_only->segment_name(), soon()));

    const auto open = make_engine([](EngineConfig& config) { config.options.bind_address = "0.0.0.0"; });
    EXPECT_TRUE(reached(*open, "127.0.0.2")) << "unless all addresses are asked for";
    const auto elsewhere = make_engine([](EngineConfig& config) {
        config.local_name = "127.0.0.3";
        config.options.bind_address = "127.0.0.3";
    });
    EXPECT_TRUE(reached(*elsewhere, "127.0.0.3"));
    EXPECT_FALSE(reached(*elsewhere, "127.0.0.1"));
    EXPECT_FALSE(Engine::create([] {
        EngineConfig config{.local_name = "127.0.0.1"};
        config.options.bind_address = "192.0.2.1";  // nobody has it
        return config;
    }()));
}

TEST_F(EngineTest, WritesAndReadsAnotherEngine) {
    fill(local, 1);
    ASSERT_EQ(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(64, 4096, 8192), soon()).value(), 64u * 4096);
    for (size_t i = 0; i < 64; ++i) ASSERT_EQ(0, std::memcmp(&local[i * 8192], &far[i * 8192], 4096)) << i;
    EXPECT_EQ(far[4096], std::byte{0}) << "gaps stay untouched";
    fill(far, 2);
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kRead, blocks(1, far.size(), 0), soon()));
    EXPECT_EQ(local, far);
}

TEST_F(EngineTest, ItsOwnNameWorksToo) {
    fill(local, 1);
    const Block block{.local = local.data(), .remote = remote(local.data() + 4096), .length = 4096};
    ASSERT_TRUE(ours->transfer(ours->segment_name(), Direction::kWrite, {&block, 1}, soon()));
    EXPECT_EQ(0, std::memcmp(local.data(), local.data() + 4096, 4096));
    EXPECT_EQ(ours->open_segment(ours->segment_name(), soon()).value(), 0);
    EXPECT_NE(ours->metrics().to_prometheus_text().find("mooncake_transfers_total{direction=\"write\",path=\"self\"} 1"),
              std::string::npos);
}

TEST_F(EngineTest, RefusesMemoryThatThePeerDidNotRegister) {
    std::vector<std::byte> secret(4096, std::byte{5});
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        const Block block{.local = local.data(), .remote = remote(secret.data()), .length = 4096};
        const auto moved = ours->transfer(theirs->segment_name(), direction, {&block, 1}, soon());
        ASSERT_FALSE(moved);
        EXPECT_EQ(moved.error().code(), Code::kNotRegistered) << moved.error().to_string();
        EXPECT_NE(moved.error().to_string().find(theirs->segment_name()), std::string::npos) << moved.error().to_string();
    }
    EXPECT_EQ(secret[0], std::byte{5});
    EXPECT_EQ(local[0], std::byte{0});
    EXPECT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon())) << "and goes on working";
}

TEST_F(EngineTest, UnregisteredMemoryIsOutOfReachAtOnce) {
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()));
    ASSERT_TRUE(theirs->unregister_memory(far.data()));
    EXPECT_EQ(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()).error().code(), Code::kNotRegistered);
    EXPECT_EQ(theirs->unregister_memory(far.data()).error().code(), Code::kNotRegistered);
}

TEST_F(EngineTest, BadBlocksAreRefused) {
    const Block null{.local = nullptr, .remote = remote(far.data()), .length = 1};
    EXPECT_EQ(ours->transfer(theirs->segment_name(), Direction::kWrite, {&null, 1}, soon()).error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, {}, soon()));
    EXPECT_FALSE(ours->transfer("", Direction::kWrite, {}, soon()));
    EXPECT_FALSE(ours->transfer("not an address", Direction::kWrite, blocks(1, 1, 0), soon()));
}

TEST_F(EngineTest, ADeadPeerGivesAnErrorThatNamesIt) {
    const std::string name = theirs->segment_name();
    theirs.reset();
    const auto moved = ours->transfer(name, Direction::kWrite, blocks(1, 1, 0), soon());
    ASSERT_FALSE(moved);
    EXPECT_NE(moved.error().to_string().find(name), std::string::npos) << moved.error().to_string();
    EXPECT_EQ(ours->probe(name, soon()).has_value(), false);
}

TEST_F(EngineTest, APeerThatRestartsOnTheSamePortWorksAgain) {
    const auto legacy = [&](EngineConfig& config) {
        config.options.legacy_port_binding = true;
        config.local_name = theirs->segment_name();
    };
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()));
    const std::string name = theirs->segment_name();
    EngineConfig config{.local_name = "127.0.0.1"};
    legacy(config);
    theirs.reset();
    auto again = Engine::create(std::move(config));
    ASSERT_TRUE(again) << again.error().to_string();
    ASSERT_EQ((*again)->segment_name(), name);
    ASSERT_TRUE((*again)->register_memory(far.data(), far.size()));
    fill(local, 3);
    EXPECT_EQ(ours->transfer(name, Direction::kWrite, blocks(1, 100, 0), soon()).error().code(), Code::kStale) << "told once";
    const auto moved = ours->transfer(name, Direction::kWrite, blocks(1, 100, 0), soon());
    ASSERT_TRUE(moved) << moved.error().to_string();
    EXPECT_EQ(0, std::memcmp(local.data(), far.data(), 100));
    theirs = std::move(*again);
}

TEST_F(EngineTest, ProbesAndDescribes) {
    EXPECT_TRUE(ours->probe(theirs->segment_name(), soon()));
    EXPECT_TRUE(ours->probe(ours->segment_name(), soon()));
    const auto descriptor = ours->describe(theirs->segment_name(), 10, soon());
    ASSERT_TRUE(descriptor);
    EXPECT_EQ(descriptor->incarnation, theirs->incarnation());
    ASSERT_EQ(descriptor->buffers.size(), 1u);
    EXPECT_EQ(descriptor->buffers[0].address, remote(far.data()));
}

TEST_F(EngineTest, BatchesRunBesideEachOther) {
    fill(local, 4);
    const SegmentId segment = ours->open_segment(theirs->segment_name(), soon()).value();
    const BatchId batch = ours->allocate_batch(64).value();
    std::vector<Request> requests;
    for (size_t i = 0; i < 64; ++i)
        requests.push_back({.direction = Direction::kWrite,
                            .local = local.data() + i * 4096,
                            .segment = segment,
                            .remote = remote(far.data() + i * 4096),
                            .length = 4096});
    ASSERT_TRUE(ours->submit(batch, requests));
    requests.clear();
    ASSERT_EQ(ours->wait_batch(batch)->state, TransferState::kCompleted);
    EXPECT_EQ(ours->batch_status(batch)->bytes, 64u * 4096);
    EXPECT_EQ(0, std::memcmp(local.data(), far.data(), 64 * 4096));
    ASSERT_TRUE(ours->free_batch(batch));
    EXPECT_EQ(ours->task_status(batch, 0).error().code(), Code::kNotFound);
    EXPECT_EQ(ours->wait_batch(12345).error().code(), Code::kNotFound);
}

TEST_F(EngineTest, NotificationsFollowTheData) {
    const Notification notification{.name = "request 7", .message = std::string("done\0here", 9)};
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon(), &notification));
    auto taken = theirs->take_notifications();
    ASSERT_EQ(taken.size(), 1u);
    EXPECT_EQ(taken[0].name, "request 7");
    EXPECT_EQ(taken[0].message, notification.message);
    EXPECT_TRUE(theirs->take_notifications().empty());
    ASSERT_TRUE(ours->send_notification(ours->segment_name(), notification, soon()));
    EXPECT_EQ(ours->take_notifications().size(), 1u);
}

TEST_F(EngineTest, PreparedTransfersMayBeRepeated) {
    auto plan = ours->prepare(theirs->segment_name(), blocks(16, 4096, 8192)).value();
    for (int round = 0; round < 3; ++round) {
        fill(local, round);
        ASSERT_EQ(plan->run(Direction::kWrite).value(), 16u * 4096);
        ASSERT_EQ(0, std::memcmp(&local[8192], &far[8192], 4096));
    }
    fill(far, 9);
    const BatchId batch = plan->submit(Direction::kRead).value();
    EXPECT_EQ(ours->wait_batch(batch)->state, TransferState::kCompleted);
    EXPECT_EQ(0, std::memcmp(&local[8192], &far[8192], 4096));
    ASSERT_TRUE(theirs->unregister_memory(far.data()));
    EXPECT_EQ(plan->run(Direction::kWrite).error().code(), Code::kNotRegistered);
}

TEST_F(EngineTest, AllocatedMemoryIsRegistered) {
    void* const memory = theirs->allocate_memory(1 << 16).value();
    const Block block{.local = local.data(), .remote = remote(memory), .length = 1 << 16};
    fill(local, 5);
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()));
    EXPECT_EQ(0, std::memcmp(local.data(), memory, 1 << 16));
    ASSERT_TRUE(theirs->free_memory(memory));
    EXPECT_EQ(theirs->free_memory(memory).error().code(), Code::kNotRegistered);
}

TEST_F(EngineTest, BatchRegistrationIsAllOrNothing) {
    std::vector<std::byte> more(4096);
    const std::vector<Permission> ranges = {{.range = {.address = remote(more.data()), .length = 100}},
                                            {.range = {.address = remote(more.data() + 50), .length = 100}}};
    EXPECT_EQ(ours->register_memory_batch(ranges).error().code(), Code::kOverlap);
    EXPECT_EQ(ours->buffers().size(), 1u);
}

TEST_F(EngineTest, ThreadsShareOneEngine) {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 8; ++t) {
        threads.emplace_back([this, t] {
            for (int i = 0; i < 50; ++i) {
                const Block block{.local = local.data() + t * 65536, .remote = remote(far.data() + t * 65536), .length = 65536};
                EXPECT_TRUE(ours->transfer(theirs->segment_name(), i % 2 == 0 ? Direction::kWrite : Direction::kRead, {&block, 1}, soon()));
            }
        });
    }
}

TEST_F(EngineTest, AfterCloseEveryCallFails) {
    const BatchId batch = ours->allocate_batch(1).value();
    auto plan = ours->prepare(theirs->segment_name(), blocks(1, 1, 0)).value();
    EXPECT_TRUE(ours->close());
    EXPECT_TRUE(ours->close());
    EXPECT_EQ(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 1, 0), soon()).error().code(), Code::kUnavailable);
    EXPECT_EQ(plan->run(Direction::kRead).error().code(), Code::kUnavailable);
    EXPECT_EQ(ours->register_memory(far.data(), 1).error().code(), Code::kUnavailable);
    EXPECT_EQ(ours->batch_status(batch).error().code(), Code::kUnavailable);
    EXPECT_TRUE(ours->take_notifications().empty());
}

TEST_F(EngineTest, ClosingTakesTheMemoryBackFromPeersThatAreConnected) {
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()));
    ASSERT_TRUE(theirs->close());
    fill(far, 1);
    const std::vector<std::byte> before = far;
    EXPECT_FALSE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()));
    EXPECT_FALSE(ours->transfer(theirs->segment_name(), Direction::kRead, blocks(1, 100, 0), soon()));
    EXPECT_EQ(far, before);
    EXPECT_EQ(theirs->unregister_memory(far.data()).error().code(), Code::kUnavailable) << "it is done already";
}

TEST_F(EngineTest, FreedMemoryIsOutOfReachHoweverOftenItWasRegistered) {
    for (const bool inner : {false, true}) {
        constexpr uint64_t kLength = 1 << 20;
        auto* const own = static_cast<std::byte*>(theirs->allocate_memory(kLength).value());
        ASSERT_TRUE(theirs->register_memory(own, inner ? 4096 : kLength));
        const Block block{.local = local.data(), .remote = remote(own), .length = 100};
        ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()));
        ASSERT_TRUE(theirs->free_memory(own));
        const auto moved = ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon());
        ASSERT_FALSE(moved);
        EXPECT_EQ(moved.error().code(), Code::kNotRegistered) << moved.error().to_string();
        EXPECT_EQ(theirs->buffers().size(), 1u) << "only what SetUp() registered";
        EXPECT_EQ(theirs->free_memory(own).error().code(), Code::kNotRegistered);
    }
}

TEST_F(EngineTest, RefusesToRegisterWhatIsNotMapped) {
    auto* const page = static_cast<std::byte*>(::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_EQ(::munmap(page + 4096, 4096), 0);
    const auto hole = theirs->register_memory(page, 3 * 4096);
    ASSERT_FALSE(hole);
    EXPECT_EQ(hole.error().code(), Code::kInvalidArgument);
    EXPECT_NE(hole.error().message().find(format_text("{}", static_cast<void*>(page + 4096))), std::string::npos) << hole.error().message();
    EXPECT_EQ(theirs->register_memory(page + 4096, 1).error().code(), Code::kInvalidArgument);
    ASSERT_EQ(::mprotect(page, 4096, PROT_NONE), 0);
    EXPECT_EQ(theirs->register_memory(page, 4096).error().code(), Code::kInvalidArgument) << "no access at all";
    EXPECT_EQ(theirs->register_memory(nullptr, 4096).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(theirs->register_memory(page, UINT64_MAX).error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(theirs->register_memory(page + 2 * 4096, 4096));
    EXPECT_EQ(theirs->buffers().size(), 2u);
    ASSERT_TRUE(theirs->unregister_memory(page + 2 * 4096));
    ::munmap(page, 3 * 4096);
}

/// Memory that may be read only, in one of two ways.
class ReadOnlyMemory : public EngineTest, public ::testing::WithParamInterface<std::tuple<std::string, bool>> {
protected:
    static constexpr uint64_t kLength = 1 << 20;

    void SetUp() override {
        const auto& [transport, mapped_so] = GetParam();
        if (transport == "fabric" && !fabric::load_library("")) GTEST_SKIP() << "there is no libfabric here";
        const auto only = [&](EngineConfig& config) {
            config.options.transports = {transport};
            if (transport == "fabric") config.protocol = "fabric:tcp";
            config.options.fabric.nodes = {"127.0.0.1"};
        };
        ours = make_engine(only);
        theirs = make_engine(only);
        EngineTest::SetUp();
        page = static_cast<std::byte*>(::mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        std::memset(page, 7, kLength);
        ASSERT_EQ(::mprotect(page, kLength, mapped_so ? PROT_READ : PROT_READ | PROT_WRITE), 0);
        most = mapped_so ? Access::kWrite : Access::kRead;
    }
    void TearDown() override {
        ours.reset();
        theirs.reset();
        if (page != nullptr) ::munmap(page, kLength);
    }
    std::byte* page = nullptr;
    Access most = Access::kWrite;
};

TEST_P(ReadOnlyMemory, IsReadByPeersAndTheirWritesAreRefused) {
    Engine& target = std::get<0>(GetParam()) == "self" ? *ours : *theirs;
    ASSERT_TRUE(target.register_memory(page, kLength, "*", true, most));
    for (const uint64_t length : {uint64_t{64}, kLength}) {
        const Block block{.local = local.data(), .remote = remote(page), .length = length};
        fill(local, 1);
        const auto read = ours->transfer(target.segment_name(), Direction::kRead, {&block, 1}, soon());
        ASSERT_TRUE(read) << read.error().to_string();
        EXPECT_EQ(0, std::memcmp(local.data(), page, length));
        fill(local, 2);
        const auto written = ours->transfer(target.segment_name(), Direction::kWrite, {&block, 1}, soon());
        ASSERT_FALSE(written);
        EXPECT_EQ(written.error().code(), Code::kNotRegistered) << written.error().to_string();
        EXPECT_NE(written.error().message().find("registered for"), std::string::npos) << written.error().message();
    }
    for (size_t i = 0; i < kLength; ++i) ASSERT_EQ(page[i], std::byte{7});
}

TEST_P(ReadOnlyMemory, OnOurOwnSideIsSentButNotReceivedInto) {
    if (!std::get<1>(GetParam())) GTEST_SKIP() << "what we do with our own memory is our own business";
    Engine& target = std::get<0>(GetParam()) == "self" ? *ours : *theirs;
    const uint64_t far_address = remote(far.data());
    if (&target == ours.get()) {
        ASSERT_TRUE(ours->register_memory(far.data(), far.size()));
    }
    ASSERT_TRUE(ours->register_memory(page, kLength));
    for (const uint64_t length : {uint64_t{64}, kLength}) {
        const Block block{.local = page, .remote = far_address, .length = length};
        const auto written = ours->transfer(target.segment_name(), Direction::kWrite, {&block, 1}, soon());
        ASSERT_TRUE(written) << written.error().to_string();
        EXPECT_EQ(0, std::memcmp(far.data(), page, length));
        const auto read = ours->transfer(target.segment_name(), Direction::kRead, {&block, 1}, soon());
        ASSERT_FALSE(read);
        EXPECT_EQ(read.error().code(), Code::kNotRegistered) << read.error().to_string();
    }
}

INSTANTIATE_TEST_SUITE_P(Over, ReadOnlyMemory, ::testing::Combine(::testing::Values("tcp", "shm", "self", "fabric"), ::testing::Bool()),
                         [](const auto& one) {
                             return std::get<0>(one.param) + (std::get<1>(one.param) ? "_mapped_so" : "_registered_so");
                         });

TEST_F(EngineTest, ListsMemoryInTheOrderItWasRegistered) {
    ASSERT_TRUE(theirs->unregister_memory(far.data()));
    for (const size_t offset : {500'000, 0, 250'000}) ASSERT_TRUE(theirs->register_memory(far.data() + offset, 1000));
    const auto descriptor = ours->describe(theirs->segment_name(), 10, soon());
    ASSERT_TRUE(descriptor);
    ASSERT_EQ(descriptor->buffers.size(), 3u);
    EXPECT_EQ(descriptor->buffers[0].address, remote(far.data() + 500'000)) << "the first, not the lowest";
    EXPECT_EQ(descriptor->buffers[2].address, remote(far.data() + 250'000));
}

TEST_F(EngineTest, AForkedChildIsRefusedAndLeavesTheParentAlone) {
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()));
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused = ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()).error().code() ==
                             Code::kUnavailable;
        ours.reset();
        theirs.reset();
        ::_exit(refused ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks(1, 100, 0), soon()));
}

TEST(EngineCreate, RefusesWhatMakesNoSense) {
    EXPECT_FALSE(Engine::create({.local_name = ""}));
    EXPECT_FALSE(Engine::create({.local_name = "127.0.0.1:99999"}));
    EXPECT_FALSE(Engine::create({.local_name = "127.0.0.1", .metadata = "ftp://nowhere"}));
    EngineConfig config{.local_name = "127.0.0.1"};
    config.options.transports = {"carrier-pigeon"};
    EXPECT_EQ(Engine::create(config).error().code(), Code::kInvalidArgument);
    config.options.transports = {};
    config.options.require_network_device = true;
    EXPECT_EQ(Engine::create(config).error().code(), Code::kNotSupported);
}

TEST(EngineDirectory, FindsPeersByName) {
    const auto named = [](const char* name) {
        return make_engine([name](EngineConfig& config) {
            config.local_name = name;
            config.metadata = "memory://engine-test";
            config.options.advertised_address = "127.0.0.1";
        });
    };
    auto ours = named("node-a:1"), theirs = named("node-b:1");
    ASSERT_TRUE(ours && theirs);
    EXPECT_EQ(ours->segment_name(), "node-a:1");
    std::vector<std::byte> local(100, std::byte{1}), far(100);
    ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    const Block block{.local = local.data(), .remote = remote(far.data()), .length = 100};
    const auto moved = ours->transfer("node-b:1", Direction::kWrite, {&block, 1}, soon());
    ASSERT_TRUE(moved) << moved.error().to_string();
    EXPECT_EQ(far, local);
    EXPECT_EQ(ours->probe("node-c:1", soon()).error().code(), Code::kNotFound);

    // A successor under the same name: its entries replace the old ones, and the old one's farewell does not remove them.
    auto successor = named("node-b:1");
    theirs.reset();
    ASSERT_TRUE(successor->register_memory(far.data(), far.size()));
    ASSERT_TRUE(ours->refresh_segment("node-b:1", soon()));  // nobody may have told us yet
    const auto again = ours->transfer("node-b:1", Direction::kWrite, {&block, 1}, soon());
    EXPECT_TRUE(again) << again.error().to_string();
}

class EngineHttpDirectory : public ::testing::Test {
protected:
    EngineHttpDirectory() : server_(net::HttpServer::create({.host = "127.0.0.1"}).value()) {
        entries_.attach(*server_);
        server_->start();
    }
    Result<std::unique_ptr<Engine>> create(const char* name) {
        EngineConfig config{.local_name = name, .metadata = format_text("http://127.0.0.1:{}/metadata", server_->port())};
        config.options.bind_address = "127.0.0.1";
        return Engine::create(config);
    }

    MetadataService entries_;
    std::unique_ptr<net::HttpServer> server_;
};

TEST_F(EngineHttpDirectory, RefusesTheNameOfAnEngineThatLives) {
    auto first = create("node:1");
    ASSERT_TRUE(first) << first.error().to_string();
    const auto second = create("node:1");
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
    EXPECT_THAT(second.error().message(), ::testing::HasSubstr("node:1"));
    (*first)->close();
    EXPECT_TRUE(create("node:1"));
}

TEST_F(EngineHttpDirectory, TakesOverTheNameOfOneThatIsGone) {
    auto other = create("other:1");
    ASSERT_TRUE(other);
    // One left an entry for a port where nobody listens now, another for one that belongs to an engine of another name.
    for (const uint16_t port : {uint16_t{1}, static_cast<uint16_t>((*other)->rpc_port())}) {
        const std::string left = format_text(R"({{"ip_or_host_name": "127.0.0.1", "rpc_port": {}}})", port);
        entries_.handle(
            {.method = "PUT", .path = "/metadata", .parameters = {{"key", "mooncake/rpc_meta/node:1"}}, .content_type = {}, .body = left});
        const auto engine = create("node:1");
        EXPECT_TRUE(engine) << port << " " << engine.error().to_string();
    }
}

}  // namespace
}  // namespace mooncake
