// SPDX-License-Identifier: Apache-2.0
// Engines with the protocol ascend, over the emulated libraries of CANN: in one process and in two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <sstream>

#include "base/ascend_options.h"
#include "device/ascend/ascend_device.h"
#include "device/ascend/testing/emulator.h"
#include "engine/engine.h"
#include "metrics/metrics.h"
#include "transport/testing/child_process.h"

namespace mooncake {
namespace {

using ascend::testing::Emulator;
using mooncake::testing::ChildProcess;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::after(30s); }

/// Variables of the environment, until its end.
class Variables {
public:
    explicit Variables(const std::map<std::string, std::string>& all) : all_(all) {
        for (const auto& [name, value] : all_) ::setenv(name.c_str(), value.c_str(), 1);
    }
    ~Variables() {
        for (const auto& [name, value] : all_) ::unsetenv(name.c_str());
    }
    Variables(const Variables&) = delete;
    Variables& operator=(const Variables&) = delete;

private:
    const std::map<std::string, std::string> all_;
};

std::map<std::string, std::string> emulated(int tier, std::map<std::string, std::string> more = {}) {
    more.insert({{"MC_ASCEND_LIB", Emulator::file_of(tier)}, {"MC_ASCEND_API", "adxl"}, {"ASCEND_BASE_PORT", "26000"}});
    return more;
}

/// An engine on one device, with memory of it and of the host.
struct Side {
    static constexpr uint64_t kBytes = 3 << 20;

    Side(int tier, int device, const std::string& name = "127.0.0.1")
        : emulator(tier), npu(emulator.allocate(device, kBytes)), host(kBytes) {
        emulator.set_device(device);
        AscendOptions options;
        options.libraries = {Emulator::file_of(tier)};
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::make_unique<ascend::AscendDevice>(options));
        devices = std::make_unique<Devices>(std::move(others));
        EngineConfig config{.local_name = name, .metadata = "P2PHANDSHAKE", .protocol = "ascend"};
        config.options.transports = {"ascend", "self"};
        config.memory = devices.get();
        engine = Engine::create(std::move(config)).value();
        MC_CHECK(engine->register_memory(npu, kBytes).has_value());
        MC_CHECK(engine->register_memory(host.data(), kBytes).has_value());
    }
    ~Side() {
        engine.reset();
        emulator.free(npu);
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    std::byte* at(bool of_npu) { return of_npu ? npu : host.data(); }
    void fill(bool of_npu, uint64_t seed) {
        const auto bytes = pattern(seed);
        if (of_npu) emulator.write(npu, bytes);
        else host = bytes;
    }
    std::vector<std::byte> bytes(bool of_npu) { return of_npu ? emulator.read(npu, kBytes) : host; }
    static std::vector<std::byte> pattern(uint64_t seed) {
        std::vector<std::byte> bytes(kBytes);
        for (uint64_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>((i + seed) * 2654435761u >> 11);
        return bytes;
    }

    Emulator emulator;
    std::byte* const npu;
    std::vector<std::byte> host;
    std::unique_ptr<Devices> devices;
    std::unique_ptr<Engine> engine;
};

/// In pieces, with gaps at both ends.
std::vector<Block> blocks(std::byte* local, uint64_t remote) {
    constexpr uint64_t kPiece = 70'001;
    std::vector<Block> all;
    for (uint64_t at = 100; at + kPiece < Side::kBytes - 100; at += kPiece + (at % 7))
        all.push_back({.local = local + at, .remote = remote + at, .length = kPiece});
    return all;
}

std::vector<std::byte> expected(const std::vector<std::byte>& before, const std::vector<std::byte>& from) {
    std::vector<std::byte> after = before;
    for (const Block& block : blocks(nullptr, 0))
        std::copy_n(from.begin() + static_cast<long>(block.remote), block.length, after.begin() + static_cast<long>(block.remote));
    return after;
}

class AscendEngineTest : public ::testing::TestWithParam<int> {};

TEST_P(AscendEngineTest, MovesMemoryInAllDirections) {
    const Variables variables(emulated(GetParam()));
    Side here(GetParam(), 0), there(GetParam(), 1);
    for (const bool local_npu : {false, true})
        for (const bool remote_npu : {false, true})
            for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
                here.fill(local_npu, 1);
                there.fill(remote_npu, 2);
                const auto all = blocks(here.at(local_npu), reinterpret_cast<uint64_t>(there.at(remote_npu)));
                const auto moved = here.engine->transfer(there.engine->segment_name(), direction, all, soon());
                ASSERT_TRUE(moved) << moved.error().to_string();
                const bool write = direction == Direction::kWrite;
                EXPECT_EQ(there.bytes(remote_npu), write ? expected(Side::pattern(2), Side::pattern(1)) : Side::pattern(2));
                EXPECT_EQ(here.bytes(local_npu), write ? Side::pattern(1) : expected(Side::pattern(1), Side::pattern(2)));
            }
    const metrics::Labels labels = {{"path", "ascend"}, {"direction", "write"}};
    EXPECT_GT(here.engine->metrics().counter("mooncake_transfer_bytes_total", "", labels).value(), 0u);
    EXPECT_GT(here.emulator.calls("TransferSync"), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tiers, AscendEngineTest, ::testing::Values(82, 85, 90, 91, 92));

TEST(AscendEngine, IsKnownByItsProtocolAndTellsWhyItIsNotThere) {
    EXPECT_STREQ(find_protocol("ascend"), "ascend");
    const Variables variables({{"MC_ASCEND_LIB", "/nowhere/libascendcl.so"}});
    EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "ascend"};
    const auto refused = Engine::create(config);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kNotSupported);
    EXPECT_THAT(refused.error().message(), HasSubstr("/nowhere/libascendcl.so"));
    const Variables optional({{"MC_ASCEND_REQUIRED", "0"}});
    const auto started = Engine::create(config);
    ASSERT_TRUE(started) << "tcp takes its place";
    EXPECT_FALSE((*started)->describe((*started)->segment_name(), 0, soon()).value().endpoints.contains("ascend"));
}

TEST(AscendEngine, AnEngineThatDoesNotComeUpPublishesNothing) {
    // Finding 16.
    const Variables variables(emulated(92, {{"MC_ASCEND_REQUIRED", "0"}}));
    const Emulator emulator(92);
    emulator.set_device(0);
    emulator.set_faults("Initialize->return:503900");
    EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "ascend"};
    const auto engine = Engine::create(config).value();
    EXPECT_FALSE(engine->describe(engine->segment_name(), 0, soon()).value().endpoints.contains("ascend"));
    emulator.set_faults("");
}

TEST(AscendEngine, ANameMayNameADevice) {
    const Variables variables(emulated(92));
    const Side side(92, 3, "127.0.0.1:12345:npu_3");
    const auto endpoint = side.engine->describe(side.engine->segment_name(), 0, soon()).value().endpoints.at("ascend");
    EXPECT_THAT(endpoint, HasSubstr("@3"));
}

// ---- two processes

/// The other process: a Side on device 1. Says its name and addresses, and obeys.
TEST(AscendEngine, DISABLED_Child) {
    const Variables variables(emulated(92, {{"ASCEND_AUTO_CONNECT", "0"}}));
    Side side(92, 1);
    mooncake::testing::say(format_text("READY {} {} {}", side.engine->segment_name(), reinterpret_cast<uint64_t>(side.npu),
                                       reinterpret_cast<uint64_t>(side.host.data())));
    for (;;) {
        std::istringstream command(mooncake::testing::read_command());
        std::string what;
        bool of_npu = false;
        uint64_t number = 0;
        command >> what >> of_npu >> number;
        if (what == "fill") side.fill(of_npu, number);
        if (what == "forget") MC_CHECK(side.engine->unregister_memory(side.npu).has_value());
        // Whether it is what a writer of `number` left in memory that was filled with 2.
        const bool right = side.bytes(of_npu) == expected(Side::pattern(2), Side::pattern(number));
        mooncake::testing::say(format_text("DONE {}", right ? 1 : 0));
    }
}

struct Child {
    Child() : process("AscendEngine.DISABLED_Child") {
        std::istringstream line(process.read_line("READY ", soon()).value());
        line >> name >> npu >> host;
    }
    bool tell(const std::string& command) {
        process.send_line(command);
        return process.read_line("DONE ", soon()).value() == "1";
    }
    ChildProcess process;
    std::string name;
    uint64_t npu = 0, host = 0;
};

TEST(AscendTwoProcesses, BytesArriveInBothDirections) {
    const Variables variables(emulated(92, {{"ASCEND_AUTO_CONNECT", "0"}}));
    Side side(92, 0);
    Child child;
    for (const bool local_npu : {false, true})
        for (const bool remote_npu : {false, true}) {
            side.fill(local_npu, 5);
            child.tell(format_text("fill {} 2", remote_npu ? 1 : 0));
            const auto all = blocks(side.at(local_npu), remote_npu ? child.npu : child.host);
            const auto written = side.engine->transfer(child.name, Direction::kWrite, all, soon());
            ASSERT_TRUE(written) << written.error().to_string();
            EXPECT_TRUE(child.tell(format_text("compare {} 5", remote_npu ? 1 : 0)));
            side.fill(local_npu, 6);
            ASSERT_TRUE(side.engine->transfer(child.name, Direction::kRead, all, soon()));
            EXPECT_EQ(side.bytes(local_npu), expected(Side::pattern(6), Side::pattern(5)));
        }
}

TEST(AscendTwoProcesses, APeerThatIsKilledCostsAnErrorAndItsSuccessorIsReached) {
    const Variables variables(emulated(92, {{"ASCEND_AUTO_CONNECT", "0"}, {"ASCEND_CONNECT_TIMEOUT", "1000"}}));
    Side side(92, 0);
    for (int round = 0; round < 3; ++round) {
        Child child;
        side.fill(true, 5);
        child.tell("fill 1 2");
        const auto all = blocks(side.npu, child.npu);
        const auto first = side.engine->transfer(child.name, Direction::kWrite, all, soon());
        ASSERT_TRUE(first) << first.error().to_string();
        EXPECT_TRUE(child.tell("compare 1 5"));
        child.process.kill();
        const auto lost = side.engine->transfer(child.name, Direction::kWrite, all, soon());
        ASSERT_FALSE(lost);
        EXPECT_THAT(lost.error().message(), HasSubstr(child.name));
    }
}

TEST(AscendTwoProcesses, MemoryThatIsTakenBackIsRefusedAndTheRestGoesOn) {
    const Variables variables(emulated(92, {{"ASCEND_AUTO_CONNECT", "0"}}));
    Side side(92, 0);
    Child child;
    child.tell("fill 1 2");
    const auto npu = blocks(side.npu, child.npu), host = blocks(side.npu, child.host);
    ASSERT_TRUE(side.engine->transfer(child.name, Direction::kRead, npu, soon()));
    child.tell("forget");
    EXPECT_EQ(side.engine->transfer(child.name, Direction::kRead, npu, soon()).error().code(), Code::kNotRegistered);
    const auto other = side.engine->transfer(child.name, Direction::kRead, host, soon());
    EXPECT_TRUE(other) << other.error().to_string();
}

}  // namespace
}  // namespace mooncake
