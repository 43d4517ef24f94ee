// SPDX-License-Identifier: Apache-2.0
// The engine over the fabric transport: how it is chosen, and that it does all an engine does.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <ostream>

#include "engine/engine.h"
#include "metrics/metrics.h"
#include "transport/fabric/api.h"

namespace mooncake {
namespace {

Deadline soon() { return Deadline::after(20s); }
uint64_t remote(const void* address) { return reinterpret_cast<uint64_t>(address); }

EngineConfig config_for(const std::string& protocol, std::vector<std::string> transports = {}) {
    EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = protocol};
    config.options.transports = std::move(transports);
    config.options.fabric.nodes = {"127.0.0.1"};
    return config;
}

/// The transports of an engine, or what kept it from existing.
std::string transports_of(const EngineConfig& config) {
    auto engine = Engine::create(config);
    if (!engine) return std::string(code_name(engine.error().code()));
    std::string names;
    const auto descriptor = (*engine)->describe((*engine)->segment_name(), 0, soon());
    for (const auto& [name, blob] : descriptor.value().endpoints) names += format_text("{}{}", names.empty() ? "" : " ", name);
    return names;
}

class FabricEngine : public ::testing::Test {
protected:
    void SetUp() override {
        if (const auto library = fabric::load_library(""); !library) GTEST_SKIP() << library.error().to_string();
    }
};

TEST_F(FabricEngine, IsThereOnlyWhenAskedFor) {
    EXPECT_EQ(transports_of(config_for("tcp")), "self shm tcp");
    EXPECT_EQ(transports_of(config_for("")), "self shm tcp");
    EXPECT_EQ(transports_of(config_for("fabric:tcp")), "fabric self shm tcp");
    EXPECT_EQ(transports_of(config_for("tcp", {"fabric"})), "fabric");
    EXPECT_EQ(transports_of(config_for("fabric:tcp", {"fabric", "self"})), "fabric self");
    EXPECT_EQ(transports_of(config_for("fabric:tcp", {"tcp"})), "tcp") << "as MC_FORCE_TCP says";
}

TEST_F(FabricEngine, GivesWayToTcpWhereItCannotWork) {
    EXPECT_EQ(transports_of(config_for("efa")), "self shm tcp");
    EXPECT_EQ(transports_of(config_for("rdma")), "self shm tcp");
    EXPECT_EQ(transports_of(config_for("cxi")), "self shm tcp");
    EXPECT_EQ(transports_of(config_for("efa", {"fabric"})), code_name(Code::kNotSupported));
    EngineConfig elsewhere = config_for("fabric:tcp");
    elsewhere.options.fabric.library = "/there/is/no/libfabric.so";
    EXPECT_EQ(transports_of(elsewhere), "self shm tcp");
    EngineConfig filtered = config_for("fabric:tcp");
    filtered.devices = {"nobody"};
    EXPECT_EQ(transports_of(filtered), "self shm tcp");
}

TEST_F(FabricEngine, MayBeToldNotToGiveWay) {
    EngineConfig strict = config_for("efa");
    strict.options.fabric.fallback = false;
    EXPECT_EQ(transports_of(strict), code_name(Code::kNotSupported));
    strict.options.protocol = "fabric:tcp";
    EXPECT_EQ(transports_of(strict), "fabric self shm");
}

TEST_F(FabricEngine, RefusesWhatMakesNoSense) {
    EXPECT_EQ(transports_of(config_for("fabric:carrier-pigeon")), code_name(Code::kInvalidArgument));
    EngineConfig sideways = config_for("fabric:tcp");
    sideways.options.fabric.mr_style = "sideways";
    EXPECT_EQ(transports_of(sideways), code_name(Code::kInvalidArgument));
    EngineConfig device = config_for("fabric:tcp");
    device.options.require_network_device = true;
    EXPECT_EQ(transports_of(device), code_name(Code::kNotSupported)) << "any machine has tcp; a device was asked for";
}

TEST_F(FabricEngine, ServesNobodyOnceClosed) {
    EngineConfig config = config_for("fabric:tcp", {"fabric"});
    config.options.fabric.stall_timeout = config.options.fabric.connect_timeout = 500ms;
    auto ours = Engine::create(config).value(), theirs = Engine::create(config).value();
    std::vector<std::byte> local(4096), far(4096);
    ASSERT_TRUE(ours->register_memory(local.data(), local.size()));
    ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    const Block block{.local = local.data(), .remote = remote(far.data()), .length = 4096};
    local[0] = std::byte{1};
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()));
    ASSERT_EQ(far[0], std::byte{1});
    theirs->close();
    local[0] = std::byte{2};
    EXPECT_FALSE(ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()));
    EXPECT_EQ(far[0], std::byte{1}) << "a closed engine was written to";
}

bool ip(const std::string& arguments) { return std::system(("ip " + arguments + " 2>/dev/null").c_str()) == 0; }

constexpr int kSkipped = 77;

/// In a network of its own: two engines whose rails have addresses that go away and come back, while the rest of the network stays.
int rails_come_and_go() {
    if (::unshare(CLONE_NEWNET) != 0 || !ip("link set lo up") || !ip("addr add 10.78.0.1/32 dev lo") || !ip("addr add 10.78.0.2/32 dev lo"))
        return kSkipped;
    EngineConfig config = config_for("fabric:tcp", {"fabric", "tcp"});
    config.options.fabric.stall_timeout = config.options.fabric.connect_timeout = 500ms;
    config.options.fabric.nodes = {"10.78.0.1"};
    auto ours = Engine::create(config);
    config.options.fabric.nodes = {"10.78.0.2"};
    auto theirs = Engine::create(config);
    if (!ours || !theirs) return 1;
    std::vector<std::byte> local(4 << 20, std::byte{1}), far(4 << 20);
    if (!(*ours)->register_memory(local.data(), local.size()) || !(*theirs)->register_memory(far.data(), far.size())) return 2;
    const Block block{.local = local.data(), .remote = remote(far.data()), .length = local.size()};
    const auto move = [&] { return (*ours)->transfer((*theirs)->segment_name(), Direction::kWrite, {&block, 1}, Deadline::after(60s)); };
    const auto over = [&](const char* path) {
        const metrics::Labels labels = {{"path", path}, {"direction", "write"}};
        return (*ours)->metrics().counter("mooncake_transfer_bytes_total", "", labels).value();
    };
    if (!move() || over("fabric") == 0 || over("tcp") != 0) return 3;
    if (!ip("addr del 10.78.0.1/32 dev lo") || !ip("addr del 10.78.0.2/32 dev lo")) return 4;
    std::fill(local.begin(), local.end(), std::byte{2});
    if (const auto moved = move(); !moved) {
        std::fprintf(stderr, "%s\n", moved.error().to_string().c_str());
        return 5;
    }
    if (over("tcp") == 0) return 6;
    if (far != local) return 7;
    if (!ip("addr add 10.78.0.1/32 dev lo") || !ip("addr add 10.78.0.2/32 dev lo")) return 8;
    uint8_t value = 3;
    const uint64_t before = over("fabric");
    for (const Deadline patience = Deadline::after(60s); over("fabric") == before; ++value) {
        if (patience.passed()) return 9;
        std::fill(local.begin(), local.end(), std::byte{value});
        if (!move()) return 10;
        if (far != local) return 11;
    }
    return 0;
}

TEST_F(FabricEngine, GivesWayToTcpWhileNoRailIsLeft) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs a network namespace";
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    int code = -1;
    EXPECT_EXIT(std::exit(rails_come_and_go()), ([&](int status) {
                    code = WEXITSTATUS(status);
                    return WIFEXITED(status) && (code == 0 || code == kSkipped);
                }),
                "");
    if (code == kSkipped) GTEST_SKIP() << "needs a network namespace";
}

struct Style {
    std::string name;
    std::string mr_style;
    std::vector<std::string> nodes;

    friend std::ostream& operator<<(std::ostream& out, const Style& style) { return out << style.name; }
};

/// Two engines over nothing but the fabric.
class FabricEngineStyles : public ::testing::TestWithParam<Style> {
protected:
    void SetUp() override {
        if (const auto library = fabric::load_library(""); !library) GTEST_SKIP() << library.error().to_string();
        ours = make();
        theirs = make();
        ASSERT_TRUE(ours && theirs);
        std::iota(reinterpret_cast<uint32_t*>(local.data()), reinterpret_cast<uint32_t*>(local.data() + local.size()), 0);
        ASSERT_TRUE(ours->register_memory(local.data(), local.size()));
        ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    }
    static std::unique_ptr<Engine> make() {
        EngineConfig config = config_for("fabric:tcp", {"fabric"});
        config.options.fabric.mr_style = GetParam().mr_style;
        config.options.fabric.nodes = GetParam().nodes;
        config.options.fabric.stripe_bytes = 256 << 10;
        auto engine = Engine::create(std::move(config));
        EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
        return engine ? std::move(*engine) : nullptr;
    }

    std::vector<std::byte> local = std::vector<std::byte>(8 << 20), far = std::vector<std::byte>(8 << 20);
    std::unique_ptr<Engine> ours, theirs;
};

INSTANTIATE_TEST_SUITE_P(Tcp, FabricEngineStyles,
                         ::testing::Values(Style{"Offset", "offset", {"127.0.0.2", "127.0.0.3"}}, Style{"Basic", "basic", {"127.0.0.2"}}),
                         [](const auto& style) { return style.param.name; });

TEST_P(FabricEngineStyles, MovesBytesBothWays) {
    const Block whole{.local = local.data(), .remote = remote(far.data()), .length = local.size()};
    const auto written = ours->transfer(theirs->segment_name(), Direction::kWrite, {&whole, 1}, soon());
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_EQ(*written, local.size());
    EXPECT_EQ(far, local);
    std::fill(local.begin(), local.end(), std::byte{0});
    const auto read = ours->transfer(theirs->segment_name(), Direction::kRead, {&whole, 1}, soon());
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ(far, local);
}

TEST_P(FabricEngineStyles, WarmsUpAndGoesOnDoingSo) {
    for (int i = 0; i < 3; ++i) {
        const auto warm = ours->warm_up(theirs->segment_name(), soon());
        EXPECT_TRUE(warm) << warm.error().to_string();
    }
    EXPECT_FALSE(ours->warm_up("127.0.0.1:1", soon())) << "with a fabric one wants to know";
}

TEST_P(FabricEngineStyles, MovesManySmallBlocksInBatches) {
    constexpr size_t kBlocks = 500, kLength = 1000, kStep = 8192;
    std::vector<Block> blocks;
    for (size_t i = 0; i < kBlocks; ++i)
        blocks.push_back({.local = local.data() + i * kStep, .remote = remote(far.data() + (kBlocks - 1 - i) * kStep), .length = kLength});
    const auto batch = ours->submit(theirs->segment_name(), Direction::kWrite, blocks);
    ASSERT_TRUE(batch) << batch.error().to_string();
    const auto status = ours->wait_batch(*batch);
    ASSERT_TRUE(status);
    EXPECT_EQ(status->state, TransferState::kCompleted) << status->error.to_string();
    for (size_t i = 0; i < kBlocks; ++i)
        ASSERT_EQ(std::memcmp(local.data() + i * kStep, far.data() + (kBlocks - 1 - i) * kStep, kLength), 0) << i;
    EXPECT_TRUE(ours->free_batch(*batch));
}

TEST_P(FabricEngineStyles, FindsMemoryRegisteredAfterTheFirstTransfer) {
    const Block first{.local = local.data(), .remote = remote(far.data()), .length = 100};
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, {&first, 1}, soon()));
    std::vector<std::byte> later(4096);
    const Block second{.local = local.data(), .remote = remote(later.data()), .length = later.size()};
    EXPECT_EQ(ours->transfer(theirs->segment_name(), Direction::kWrite, {&second, 1}, soon()).error().code(), Code::kNotRegistered);
    ASSERT_TRUE(theirs->register_memory(later.data(), later.size()));
    const auto moved = ours->transfer(theirs->segment_name(), Direction::kWrite, {&second, 1}, soon());
    ASSERT_TRUE(moved) << moved.error().to_string();
    EXPECT_EQ(std::memcmp(later.data(), local.data(), later.size()), 0);
    ASSERT_TRUE(theirs->unregister_memory(later.data()));
    EXPECT_EQ(ours->transfer(theirs->segment_name(), Direction::kWrite, {&second, 1}, soon()).error().code(), Code::kNotRegistered);
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, {&first, 1}, soon()));
}

TEST_P(FabricEngineStyles, NoticesThatAPeerIsGoneAndReachesAnother) {
    const Block block{.local = local.data(), .remote = remote(far.data()), .length = 1 << 20};
    ASSERT_TRUE(ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()));
    const std::string gone = theirs->segment_name();
    theirs.reset();
    EXPECT_FALSE(ours->transfer(gone, Direction::kWrite, {&block, 1}, Deadline::after(3s)));
    theirs = make();
    ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    const auto again = ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon());
    EXPECT_TRUE(again) << again.error().to_string();
}

TEST_P(FabricEngineStyles, TalksToAnEngineWithoutAFabricOverTcp) {
    auto plain = Engine::create(config_for("tcp", {"tcp"}));
    auto both = Engine::create(config_for("fabric:tcp", {"fabric", "tcp"}));
    ASSERT_TRUE(plain && both);
    std::vector<std::byte> target(100);
    ASSERT_TRUE((*plain)->register_memory(target.data(), target.size()));
    const Block block{.local = local.data(), .remote = remote(target.data()), .length = target.size()};
    const auto moved = (*both)->transfer((*plain)->segment_name(), Direction::kWrite, {&block, 1}, soon());
    EXPECT_TRUE(moved) << moved.error().to_string();
}

}  // namespace
}  // namespace mooncake
