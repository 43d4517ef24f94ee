// SPDX-License-Identifier: Apache-2.0
//
// The C++ interface as its callers use it: through the shared library and the header alone, with a second process.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "capi_peer_process.h"
#include "mooncake/transfer_engine.h"

namespace {

using namespace std::chrono_literals;
using mooncake::ScatterTransferRange;
using mooncake::Status;
using mooncake::TransferEngine;
using mooncake::TransferRequest;
using mooncake::TransferStatus;

constexpr size_t kBytes = 64 << 20;
constexpr auto kPatience = 60s;  // against hangs only

class CppApi : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_EQ(engine.init("P2PHANDSHAKE", "127.0.0.1"), 0);
        ASSERT_EQ(engine.registerLocalMemory(memory.data(), memory.size()), 0);
        ASSERT_FALSE(peer.name().empty());
        target = engine.openSegment(peer.name());
        ASSERT_NE(target, mooncake::INVALID_SEGMENT_ID);
    }
    TransferStatus finish(mooncake::BatchID batch) {
        TransferStatus status;
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (engine.getBatchTransferStatus(batch, status).ok() && (status.s == mooncake::WAITING || status.s == mooncake::PENDING) &&
               std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
        return status;
    }
    /// A range over the peer's buffer that the three lists describe.
    ScatterTransferRange range(TransferRequest::OpCode opcode, const std::vector<uint64_t>& local, const std::vector<uint64_t>& remote,
                               const std::vector<uint64_t>& lengths) {
        ScatterTransferRange made;
        made.opcode = opcode;
        made.remote_segment = peer.name();
        made.remote_base_offset = peer.address();
        made.remote_size = peer.bytes();
        made.local_buffer = memory.data();
        made.local_capacity = memory.size();
        made.local_offsets = local;
        made.remote_offsets = remote;
        made.lengths = lengths;
        return made;
    }

    PeerProcess peer;
    TransferEngine engine;
    std::vector<char> memory = std::vector<char>(kBytes);
    mooncake::SegmentHandle target = 0;
};

TEST_F(CppApi, MovesBytesAndDeliversMessages) {
    std::memset(memory.data(), 3, 1 << 20);
    const auto batch = engine.allocateBatchID(2);
    ASSERT_NE(batch, mooncake::INVALID_BATCH_ID);
    ASSERT_TRUE(engine.submitTransfer(batch, {{TransferRequest::WRITE, memory.data(), target, peer.address(), 1 << 20}}).ok());
    EXPECT_EQ(finish(batch).s, mooncake::COMPLETED);
    ASSERT_TRUE(engine
                    .submitTransferWithNotify(batch, {{TransferRequest::READ, memory.data() + (1 << 20), target, peer.address(), 1 << 20}},
                                              {"me", "finished"})
                    .ok());
    EXPECT_EQ(finish(batch).transferred_bytes, size_t{2} << 20);
    TransferStatus task;
    ASSERT_TRUE(engine.getTransferStatus(batch, 1, task).ok());
    EXPECT_EQ(task.s, mooncake::COMPLETED);
    EXPECT_TRUE(engine.getTransferStatus(batch, 2, task).IsInvalidArgument());
    EXPECT_TRUE(engine.submitTransfer(batch, {{TransferRequest::READ, memory.data(), target, peer.address(), 1}}).IsTooManyRequests());
    EXPECT_TRUE(engine.freeBatchID(batch).ok());
    EXPECT_FALSE(engine.freeBatchID(batch).ok());
    EXPECT_EQ(memory[(2 << 20) - 1], 3);
    EXPECT_EQ(peer.ask("notified"), "me finished");
}

TEST_F(CppApi, AnEmptyBatchIsComplete) {
    const auto batch = engine.allocateBatchID(1);
    TransferStatus status;
    EXPECT_TRUE(engine.getBatchTransferStatus(batch, status).ok());
    EXPECT_EQ(status.s, mooncake::COMPLETED);
    EXPECT_TRUE(engine.freeBatchID(batch).ok());
}

TEST_F(CppApi, AFailedTaskFailsTheBatchAndSaysWhy) {
    const auto batch = engine.allocateBatchID(1);
    ASSERT_TRUE(engine.submitTransfer(batch, {{TransferRequest::WRITE, memory.data(), target, peer.address() + peer.bytes(), 4096}}).ok());
    EXPECT_EQ(finish(batch).s, mooncake::FAILED);
    EXPECT_TRUE(engine.freeBatchID(batch).ok());
}

TEST_F(CppApi, KnowsWhatThePeerLends) {
    const auto segment = engine.getMetadata()->getSegmentDescByID(target);
    ASSERT_NE(segment, nullptr);
    EXPECT_EQ(segment->name, peer.name());
    ASSERT_EQ(segment->buffers.size(), 1U);
    EXPECT_EQ(segment->buffers[0].addr, peer.address());
    EXPECT_EQ(segment->buffers[0].length, peer.bytes());
    EXPECT_NE(engine.getMetadata()->getSegmentDescByName(engine.getLocalIpAndPort()), nullptr);
    EXPECT_EQ(engine.getMetadata()->getSegmentDescByID(4711), nullptr);
    EXPECT_EQ(engine.syncSegmentCache(), 0);
    EXPECT_EQ(engine.syncSegmentCache(peer.name()), 0);
}

TEST_F(CppApi, TellsTheLivingFromTheDead) {
    EXPECT_EQ(engine.probePeerAliveByID(target), mooncake::PeerLiveness::Alive);
    EXPECT_TRUE(engine.CheckSegmentStatus(target).ok());
    peer.signal(SIGKILL);
    EXPECT_EQ(peer.wait(), -SIGKILL);
    EXPECT_EQ(engine.probePeerAliveByID(target), mooncake::PeerLiveness::Unreachable);
    EXPECT_EQ(engine.probePeerAliveByID(4711), mooncake::PeerLiveness::Unreachable);
}

TEST_F(CppApi, SendsMessagesByNumberAndName) {
    EXPECT_EQ(engine.sendNotifyByID(target, {"one", "1"}), 0);
    EXPECT_EQ(peer.ask("notified"), "one 1");
    EXPECT_EQ(engine.sendNotifyByName(peer.name(), {"two", "2"}), 0);
    EXPECT_EQ(peer.ask("notified"), "two 2");
    EXPECT_LT(engine.sendNotifyByID(4711, {"x", "y"}), 0);
    EXPECT_EQ(peer.ask("notify " + engine.getLocalIpAndPort() + " back again"), "0");
    std::vector<mooncake::NotifyDesc> messages;
    ASSERT_EQ(engine.getNotifies(messages), 0);
    ASSERT_EQ(messages.size(), 1U);
    EXPECT_EQ(messages[0].notify_msg, "again");
    ASSERT_EQ(engine.getNotifies(messages), 0);
    EXPECT_TRUE(messages.empty());
}

TEST_F(CppApi, KnowsWhatIsRegistered) {
    EXPECT_TRUE(engine.checkOverlap(memory.data() + 100, 10));
    std::vector<char> other(4096), third(4096);
    EXPECT_FALSE(engine.checkOverlap(other.data(), other.size()));
    EXPECT_EQ(engine.registerLocalMemoryBatch({{other.data(), other.size()}, {third.data(), third.size()}}, "cpu:0"), 0);
    EXPECT_TRUE(engine.checkOverlap(other.data(), other.size()));
    EXPECT_EQ(engine.unregisterLocalMemoryBatch({other.data(), third.data()}), 0);
    // Ranges that reach the end of the address space, and beyond.
    const uint64_t rest = UINT64_MAX - reinterpret_cast<uintptr_t>(memory.data());
    for (const uint64_t length : {rest, rest + 100, UINT64_MAX}) EXPECT_TRUE(engine.checkOverlap(memory.data() + 100, length)) << length;
    EXPECT_TRUE(engine.checkOverlap(memory.data() - 1, UINT64_MAX));
    EXPECT_FALSE(engine.checkOverlap(memory.data() - 1, 1));
    EXPECT_EQ(engine.unregisterLocalMemory(other.data()), -3);
}

// ---- scatter

TEST_F(CppApi, ScattersAndGathersFragments) {
    const std::vector<uint64_t> packed = {0, 1000, 1000, 3000}, spread = {500'000, 0, 4000, 90'000}, lengths = {1000, 0, 2000, 500};
    std::memset(memory.data(), 'A', 1000);
    std::memset(memory.data() + 1000, 'B', 2000);
    std::memset(memory.data() + 3000, 'C', 500);
    EXPECT_TRUE(engine.transferScatter({range(TransferRequest::WRITE, packed, spread, lengths)}).ok());
    EXPECT_EQ(peer.ask("check 500000 1000 65"), "yes");
    EXPECT_EQ(peer.ask("check 4000 2000 66"), "yes");
    EXPECT_EQ(peer.ask("check 90000 500 67"), "yes");
    EXPECT_EQ(peer.ask("check 0 1000 0"), "yes") << "a fragment of no bytes writes nothing";

    std::memset(memory.data(), 0, 4000);
    auto operation = engine.submitScatter({range(TransferRequest::READ, packed, spread, lengths)});
    EXPECT_TRUE(operation.wait().ok());
    EXPECT_TRUE(operation.wait().ok());
    EXPECT_EQ(memory[999], 'A');
    EXPECT_EQ(memory[1000], 'B');
    EXPECT_EQ(memory[3499], 'C');
}

TEST_F(CppApi, ReportsEveryFragmentOnce) {
    const std::vector<uint64_t> offsets = {0, 8192, 16384, 24576}, lengths = {4096, 4096, 0, 4096};
    std::vector<int> calls(lengths.size(), 0);
    auto good = range(TransferRequest::WRITE, offsets, offsets, lengths);
    good.on_fragment = [&](size_t fragment, const Status& status) { calls[fragment] += status.ok() ? 1 : 100; };
    EXPECT_TRUE(engine.transferScatter({good}).ok());
    EXPECT_EQ(calls, (std::vector<int>{1, 1, 1, 1}));

    // Memory that the peer does not lend, though the caller says so: the fragments that do lie in its buffer may succeed.
    auto bad = good;
    bad.remote_base_offset += peer.bytes();
    calls.assign(lengths.size(), 0);
    EXPECT_FALSE(engine.transferScatter({bad}).ok());
    EXPECT_EQ(calls, (std::vector<int>{100, 100, 1, 100}));
}

TEST_F(CppApi, LeadingSlashesOfAScatteredSegmentDoNotCount) {
    const std::vector<uint64_t> zero = {0}, length = {4096};
    auto together = range(TransferRequest::WRITE, zero, zero, length);
    together.remote_segment = "//" + peer.name();
    auto each = together;
    each.on_fragment = [](size_t, const Status&) {};
    for (const auto& named : {together, each}) {
        const Status status = engine.transferScatter({named});
        EXPECT_TRUE(status.ok()) << status.message();
    }
}

TEST_F(CppApi, MovesNothingWhenARangeIsWrong) {
    const std::vector<uint64_t> zero = {0}, length = {4096};
    std::memset(memory.data(), 'Z', 4096);
    const auto good = range(TransferRequest::WRITE, zero, zero, length);
    auto beyond_local = good, beyond_remote = good, wrapping = good, uneven = good, nowhere = good, no_buffer = good;
    beyond_local.local_capacity = 4095;
    beyond_remote.remote_size = 4095;
    const std::vector<uint64_t> huge = {UINT64_MAX - 10};
    wrapping.remote_offsets = huge;
    uneven.lengths = {};
    nowhere.remote_segment = "";
    no_buffer.local_buffer = nullptr;
    for (const auto& wrong : {beyond_local, beyond_remote, wrapping, uneven, nowhere, no_buffer}) {
        EXPECT_TRUE(engine.transferScatter({good, wrong}).IsInvalidArgument());
        EXPECT_EQ(peer.ask("check 0 4096 0"), "yes");
    }
    EXPECT_TRUE(engine.transferScatter({}).ok());
}

TEST_F(CppApi, WaitsForAScatterOnlyAsLongAsAsked) {
    // TCP alone, so that a stopped peer really stops the transfer.
    ::setenv("MC_TRANSPORTS", "tcp", 1);
    TransferEngine slow;
    ASSERT_EQ(slow.init("P2PHANDSHAKE", "127.0.0.1"), 0);
    ::unsetenv("MC_TRANSPORTS");
    ASSERT_EQ(slow.registerLocalMemory(memory.data(), memory.size()), 0);
    const std::vector<uint64_t> zero = {0}, length = {kBytes}, little = {1};
    ASSERT_TRUE(slow.transferScatter({range(TransferRequest::WRITE, zero, zero, little)}).ok());
    peer.signal(SIGSTOP);
    auto operation = slow.submitScatter({range(TransferRequest::WRITE, zero, zero, length)});
    EXPECT_TRUE(operation.waitFor(10ms).IsClock());
    peer.signal(SIGCONT);
    EXPECT_TRUE(operation.wait().ok());
}

TEST_F(CppApi, EndsAScatterWhoseEngineIsFreed) {
    const std::vector<uint64_t> zero = {0}, length = {kBytes};
    peer.signal(SIGSTOP);
    auto operation = engine.submitScatter({range(TransferRequest::WRITE, zero, zero, length)});
    EXPECT_EQ(engine.freeEngine(), 0);
    (void)operation.wait();  // ok if the bytes were already there; what counts is that it ends
    peer.signal(SIGCONT);
}

/// A peer in this process that comes back at the same port, with other contents at the same address.
class Returning {
public:
    void start() {
        engine_.emplace();
        ::setenv("MC_TRANSPORTS", "tcp", 1);
        if (port_ != 0) ::setenv("MC_LEGACY_RPC_PORT_BINDING", "1", 1);
        EXPECT_EQ(engine_->init("P2PHANDSHAKE", name()), 0);
        ::unsetenv("MC_LEGACY_RPC_PORT_BINDING");
        ::unsetenv("MC_TRANSPORTS");
        EXPECT_EQ(engine_->registerLocalMemory(memory.data(), memory.size()), 0);
        port_ = engine_->getRpcPort();
    }
    void restart() {
        engine_.reset();
        std::fill(memory.begin(), memory.end(), 'e');
        start();
    }
    std::string name() const { return port_ == 0 ? "127.0.0.1" : "127.0.0.1:" + std::to_string(port_); }

    std::vector<char> memory = std::vector<char>(4096);

private:
    std::optional<TransferEngine> engine_;
    int port_ = 0;
};

TEST_F(CppApi, AScatterWithAddressesOfAFormerLifeIsRefusedOnce) {
    Returning back;
    back.start();
    const std::vector<uint64_t> zero = {0}, length = {4096};
    auto one = range(TransferRequest::WRITE, zero, zero, length);
    one.remote_segment = back.name();
    one.remote_base_offset = reinterpret_cast<uint64_t>(back.memory.data());
    one.remote_size = back.memory.size();
    std::memset(memory.data(), 'Z', 4096);
    ASSERT_TRUE(engine.transferScatter({one}).ok());
    for (const bool each : {false, true}) {
        if (each) one.on_fragment = [](size_t, const Status&) {};
        back.restart();
        EXPECT_FALSE(engine.transferScatter({one}).ok());
        EXPECT_EQ(back.memory[0], 'e');
        EXPECT_TRUE(engine.transferScatter({one}).ok());
        EXPECT_EQ(back.memory[0], 'Z');
    }
}

// ---- life

TEST(CppApiLife, RefusesEverythingWithoutAnEngine) {
    TransferEngine engine;
    TransferStatus status;
    std::vector<mooncake::NotifyDesc> messages;
    std::vector<mooncake::NicLoadStats> loads;
    char byte = 0;
    EXPECT_EQ(engine.openSegment("127.0.0.1:1"), mooncake::INVALID_SEGMENT_ID);
    EXPECT_LT(engine.registerLocalMemory(&byte, 1), 0);
    EXPECT_LT(engine.unregisterLocalMemory(&byte), 0);
    EXPECT_EQ(engine.allocateBatchID(1), mooncake::INVALID_BATCH_ID);
    EXPECT_TRUE(engine.submitTransfer(1, {}).IsInvalidArgument());
    EXPECT_TRUE(engine.getTransferStatus(1, 0, status).IsInvalidArgument());
    EXPECT_TRUE(engine.getBatchTransferStatus(1, status).IsInvalidArgument());
    EXPECT_TRUE(engine.freeBatchID(1).IsInvalidArgument());
    EXPECT_TRUE(engine.transferScatter({ScatterTransferRange{}}).IsInvalidArgument());
    EXPECT_LT(engine.getNotifies(messages), 0);
    EXPECT_LT(engine.sendNotifyByName("127.0.0.1:1", {}), 0);
    EXPECT_LT(engine.getNicLoadStats(loads), 0);
    EXPECT_EQ(engine.probePeerAliveByID(0), mooncake::PeerLiveness::Unreachable);
    EXPECT_EQ(engine.getMetadata()->getSegmentDescByID(0), nullptr);
    EXPECT_EQ(engine.installTransport("tcp"), nullptr);
    EXPECT_LT(engine.getRpcPort(), 0);
    EXPECT_EQ(engine.getLocalIpAndPort(), "");
    EXPECT_TRUE(engine.getLocalTopology()->empty());
    EXPECT_EQ(engine.freeEngine(), 0);
}

TEST(CppApiLife, StartsOnceMovesAndEnds) {
    TransferEngine engine(true, {});
    ASSERT_EQ(engine.init("P2PHANDSHAKE", "127.0.0.1"), 0);
    EXPECT_LT(engine.init("P2PHANDSHAKE", "127.0.0.1"), 0);
    const auto metadata = engine.getMetadata();
    EXPECT_EQ(engine.getLocalIpAndPort(), "127.0.0.1:" + std::to_string(engine.getRpcPort()));
    EXPECT_EQ(engine.openSegment(engine.getLocalIpAndPort()), mooncake::LOCAL_SEGMENT_ID);
    EXPECT_NE(engine.installTransport("tcp"), nullptr);
    EXPECT_EQ(engine.getTransport("pigeons"), nullptr);
    EXPECT_TRUE(engine.isTcpOnly());
    EXPECT_NE(engine.getLocalTopologyString().find("cpu:0"), std::string::npos);
    const auto topology = engine.getLocalTopology();
    ASSERT_TRUE(topology->getMatrix().contains("cpu:0")) << topology->toString();
    EXPECT_EQ(topology->getMatrix().at("cpu:0").name, "cpu:0");
    EXPECT_EQ(topology->toString(), engine.getLocalTopologyString());
    EXPECT_NE(engine.showLinks(true).find("topology"), std::string::npos);
    std::vector<mooncake::NicLoadStats> loads(1);
    EXPECT_EQ(engine.getNicLoadStats(loads), 0);
    EXPECT_TRUE(loads.empty());

    TransferEngine moved(std::move(engine));
    EXPECT_NE(metadata->getSegmentDescByID(0), nullptr);
    EXPECT_GT(moved.getRpcPort(), 0);
    EXPECT_LT(engine.getRpcPort(), 0);  // NOLINT(bugprone-use-after-move): it must fail, not crash
    EXPECT_EQ(moved.freeEngine(), 0);
    EXPECT_EQ(metadata->getSegmentDescByID(0), nullptr);
    EXPECT_EQ(moved.init("P2PHANDSHAKE", "127.0.0.1"), 0) << "it may start again";
    EXPECT_LT(TransferEngine().init("nonsense://x", "127.0.0.1"), 0);
}

TEST(CppApiStatus, HasCodesPredicatesAndText) {
    EXPECT_TRUE(Status::OK().ok());
    const Status busy = Status::BatchBusy("two tasks run");
    EXPECT_FALSE(busy.ok());
    EXPECT_TRUE(busy.IsBatchBusy());
    EXPECT_FALSE(busy.IsClock());
    EXPECT_EQ(static_cast<int>(busy.code()), 4);
    EXPECT_EQ(busy.message(), "two tasks run");
    EXPECT_EQ(busy.ToString(), "BatchBusy: two tasks run");
    EXPECT_EQ(Status::OK().ToString(), "OK");
    EXPECT_EQ(busy, Status::BatchBusy("other text"));
}

}  // namespace
