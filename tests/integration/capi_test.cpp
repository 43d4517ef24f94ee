// SPDX-License-Identifier: Apache-2.0
//
// The C interface as its callers use it: through the shared library and the header alone, with a second process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "capi_peer_process.h"
#include "mooncake/transfer_engine_c.h"

namespace {

using namespace std::chrono_literals;

constexpr size_t kBytes = 64 << 20;
constexpr auto kPatience = 60s;  // against hangs only

bool running(const transfer_status_t& status) { return status.status == STATUS_WAITING || status.status == STATUS_PENDING; }

/// An engine with a registered buffer.
class Side {
public:
    Side() : engine(createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1)), memory(kBytes) {
        EXPECT_NE(engine, nullptr);
        EXPECT_EQ(registerLocalMemory(engine, memory.data(), memory.size(), "*", 1), 0);
    }
    ~Side() { destroyTransferEngine(engine); }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;

    std::string name() const {
        char text[64];
        EXPECT_EQ(getLocalIpAndPort(engine, text, sizeof(text)), 0);
        return text;
    }
    int submit(batch_id_t batch, int opcode, segment_id_t target, uint64_t offset, uint64_t remote, uint64_t length) {
        // On the heap and overwritten at once: the engine must not look at it after the call.
        auto request = std::make_unique<transfer_request_t>(transfer_request_t{opcode, memory.data() + offset, target, remote, length});
        const int result = submitTransfer(engine, batch, request.get(), 1);
        std::memset(static_cast<void*>(request.get()), 0xff, sizeof(*request));
        return result;
    }
    /// Polls until the task is over.
    transfer_status_t finish(batch_id_t batch, size_t task) {
        transfer_status_t status{STATUS_WAITING, 0};
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (getTransferStatus(engine, batch, task, &status) == 0 && running(status) && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
        return status;
    }
    /// One transfer from start to end: its status.
    int transfer(int opcode, segment_id_t target, uint64_t offset, uint64_t remote, uint64_t length) {
        const batch_id_t batch = allocateBatchID(engine, 1);
        EXPECT_EQ(submit(batch, opcode, target, offset, remote, length), 0);
        const int status = finish(batch, 0).status;
        EXPECT_EQ(freeBatchID(engine, batch), 0);
        return status;
    }
    // That a peer's access is over, or has not begun, is known from the peer: a sanitizer of this process cannot see it.
    __attribute__((no_sanitize("thread"), noinline)) void fill(uint64_t offset, uint64_t length, char value) {
        char* const bytes = memory.data() + offset;
        for (uint64_t i = 0; i < length; ++i) {
            bytes[i] = value;
            std::atomic_signal_fence(std::memory_order_seq_cst);  // or the compiler makes it a memset(), which is seen
        }
    }
    __attribute__((no_sanitize("thread"), noinline)) bool holds(uint64_t offset, uint64_t length, char value) const {
        const char* const bytes = memory.data() + offset;
        for (uint64_t i = 0; i < length; ++i)
            if (bytes[i] != value) return false;
        return true;
    }
    /// Messages since the last call; waits for the first.
    std::vector<std::pair<std::string, std::string>> messages() {
        std::vector<std::pair<std::string, std::string>> found;
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (found.empty() && std::chrono::steady_clock::now() < end) {
            int size = -1;
            notify_msg_t* list = getNotifsFromEngine(engine, &size);
            for (int i = 0; i < size; ++i) found.emplace_back(list[i].name, list[i].msg);
            EXPECT_EQ(freeNotifsMsgBuf(list, size), 0);
            std::this_thread::yield();
        }
        return found;
    }

    transfer_engine_t engine;
    std::vector<char> memory;
};

/// Sets a variable for the engines created meanwhile.
class Environment {
public:
    Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    ~Environment() { ::unsetenv(name_); }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    const char* name_;
};

/// All of it on both ways between two processes on one host: shared memory, and TCP alone.
class CApi : public testing::TestWithParam<const char*> {
protected:
    Environment transports_{"MC_TRANSPORTS", GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Paths, CApi, testing::Values("", "tcp"), [](const auto& path) { return *path.param ? path.param : "any"; });

TEST_P(CApi, MovesBytesBothWaysAndDeliversMessagesAsPluginsExpect) {
    Side side;
    PeerProcess peer;
    const segment_id_t target = openSegment(side.engine, peer.name().c_str());
    ASSERT_GT(target, 0);
    const batch_id_t batch = allocateBatchID(side.engine, 1024);
    ASSERT_NE(batch, INVALID_BATCH);

    // Post after post on one batch, as long as it has room.
    constexpr size_t kPosts = 8, kLength = 100'000;
    for (size_t i = 0; i < kPosts; ++i) {
        side.fill(i * kLength, kLength, static_cast<char>('a' + i));
        ASSERT_EQ(side.submit(batch, OPCODE_WRITE, target, i * kLength, peer.address() + i * kLength, kLength), 0);
    }
    for (size_t i = 0; i < kPosts; ++i) {
        const transfer_status_t status = side.finish(batch, i);
        EXPECT_EQ(status.status, STATUS_COMPLETED);
        EXPECT_EQ(status.transferred_bytes, kLength);
    }
    transfer_request_t last{OPCODE_READ, side.memory.data() + kPosts * kLength, target, peer.address(), kLength};
    char name[] = "me", text[] = "all-there";
    ASSERT_EQ(submitTransferWithNotify(side.engine, batch, &last, 1, {name, text}), 0);
    EXPECT_EQ(side.finish(batch, kPosts).status, STATUS_COMPLETED);
    EXPECT_TRUE(side.holds(kPosts * kLength, kLength, 'a'));
    EXPECT_EQ(freeBatchID(side.engine, batch), 0);

    for (size_t i = 0; i < kPosts; ++i)
        EXPECT_EQ(peer.ask("check " + std::to_string(i * kLength) + " " + std::to_string(kLength) + " " + std::to_string('a' + i)), "yes");
    EXPECT_EQ(peer.ask("notified"), "me all-there");
}

TEST_P(CApi, ServesAPeerThatReadsAndWrites) {
    Side side;
    PeerProcess peer;
    const std::string ours = std::to_string(reinterpret_cast<uintptr_t>(side.memory.data()));
    ASSERT_EQ(peer.ask("fill 0 5000000 7"), "ok");
    EXPECT_EQ(peer.ask("write " + side.name() + " 0 " + ours + " 5000000 done"), "4 0");
    EXPECT_TRUE(side.holds(0, 5'000'000, 7));
    EXPECT_EQ(side.messages(), (std::vector<std::pair<std::string, std::string>>{{"peer", "done"}}));

    side.fill(0, 5'000'000, 9);
    EXPECT_EQ(peer.ask("read " + side.name() + " 0 " + ours + " 5000000 -"), "4 0");
    EXPECT_EQ(peer.ask("check 0 5000000 9"), "yes");
}

TEST_P(CApi, KeepsTheAccountOfABatch) {
    Side side;
    PeerProcess peer;
    const segment_id_t target = openSegment(side.engine, peer.name().c_str());
    const batch_id_t batch = allocateBatchID(side.engine, 2);
    transfer_status_t status{};
    EXPECT_EQ(getTransferStatus(side.engine, batch, 0, &status), 1) << "no task yet";

    std::vector<transfer_request_t> three(3, transfer_request_t{OPCODE_WRITE, side.memory.data(), target, peer.address(), 4096});
    EXPECT_EQ(submitTransfer(side.engine, batch, three.data(), 3), 2);
    EXPECT_EQ(getTransferStatus(side.engine, batch, 0, &status), 1) << "a refused call leaves nothing behind";
    EXPECT_EQ(submitTransfer(side.engine, batch, three.data(), 2), 0);
    EXPECT_EQ(submitTransfer(side.engine, batch, three.data(), 1), 2);
    EXPECT_EQ(getTransferStatus(side.engine, batch, 2, &status), 1);
    EXPECT_EQ(side.finish(batch, 0).status, STATUS_COMPLETED);
    EXPECT_EQ(side.finish(batch, 1).status, STATUS_COMPLETED);

    EXPECT_EQ(freeBatchID(side.engine, batch), 0);
    EXPECT_GT(getTransferStatus(side.engine, batch, 0, &status), 0);
    EXPECT_GT(submitTransfer(side.engine, batch, three.data(), 1), 0);
    EXPECT_GT(freeBatchID(side.engine, batch), 0);
}

TEST_P(CApi, FailsATransferToMemoryThatNobodyLends) {
    Side side;
    PeerProcess peer;
    const segment_id_t target = openSegment(side.engine, peer.name().c_str());
    ASSERT_EQ(side.transfer(OPCODE_WRITE, target, 0, peer.address(), 4096), STATUS_COMPLETED);
    EXPECT_EQ(side.transfer(OPCODE_WRITE, target, 0, peer.address() + peer.bytes(), 4096), STATUS_FAILED);
    EXPECT_EQ(side.transfer(OPCODE_READ, target, 0, 4096, 4096), STATUS_FAILED);
    EXPECT_EQ(side.transfer(OPCODE_WRITE, target, 0, peer.address(), 0), STATUS_COMPLETED) << "no bytes, no problem";
    EXPECT_EQ(side.transfer(OPCODE_READ, target, 0, peer.address(), 4096), STATUS_COMPLETED) << "the peer is still usable";
}

TEST_P(CApi, ReachesItself) {
    Side side;
    EXPECT_EQ(openSegment(side.engine, side.name().c_str()), LOCAL_SEGMENT);
    EXPECT_EQ(openSegment(side.engine, ("//" + side.name()).c_str()), LOCAL_SEGMENT);
    side.fill(0, 1 << 20, 5);
    const auto there = reinterpret_cast<uintptr_t>(side.memory.data()) + (2 << 20);
    EXPECT_EQ(side.transfer(OPCODE_WRITE, LOCAL_SEGMENT, 0, there, 1 << 20), STATUS_COMPLETED);
    EXPECT_TRUE(side.holds(2 << 20, 1 << 20, 5));
    char name[] = "to", text[] = "myself";
    EXPECT_EQ(genNotifyInEngine(side.engine, LOCAL_SEGMENT, {name, text}), 0);
    EXPECT_EQ(side.messages(), (std::vector<std::pair<std::string, std::string>>{{"to", "myself"}}));
}

TEST_P(CApi, ServesManyThreadsAtOnce) {
    Side side;
    PeerProcess peer;
    constexpr size_t kThreads = 8, kRounds = 40, kLength = 50'000;
    std::atomic<int> failures{0};
    auto work = [&](size_t id) {
        const segment_id_t target = openSegment(side.engine, peer.name().c_str());
        for (size_t round = 0; round < kRounds; ++round) {
            const uint64_t offset = id * 2 * kLength;
            side.fill(offset, kLength, static_cast<char>(round + id));
            if (side.transfer(OPCODE_WRITE, target, offset, peer.address() + offset, kLength) != STATUS_COMPLETED) ++failures;
            if (side.transfer(OPCODE_READ, target, offset + kLength, peer.address() + offset, kLength) != STATUS_COMPLETED) ++failures;
            if (!side.holds(offset + kLength, kLength, static_cast<char>(round + id))) ++failures;
        }
    };
    {
        std::vector<std::jthread> threads;
        for (size_t id = 0; id < kThreads; ++id) threads.emplace_back(work, id);
    }
    EXPECT_EQ(failures, 0);
}

TEST_P(CApi, EndsTheTransfersToAPeerThatDied) {
    Side side;
    auto peer = std::make_unique<PeerProcess>();
    const std::string name = peer->name();
    const segment_id_t target = openSegment(side.engine, name.c_str());
    ASSERT_EQ(side.transfer(OPCODE_WRITE, target, 0, peer->address(), 4096), STATUS_COMPLETED);
    const uint64_t address = peer->address();
    peer.reset();
    const int status = side.transfer(OPCODE_WRITE, target, 0, address, 4096);
    EXPECT_TRUE(status == STATUS_FAILED || status == STATUS_TIMEOUT) << status;
    EXPECT_LT(openSegmentNoCache(side.engine, name.c_str()), 0);
}

// With TCP alone a stopped peer cannot take 64 MiB, so the transfer is certainly under way.
class CApiWithAStoppedPeer : public testing::Test {
protected:
    Environment transports_{"MC_TRANSPORTS", "tcp"};
};

TEST_F(CApiWithAStoppedPeer, KeepsABatchThatIsStillRunning) {
    Side side;
    PeerProcess peer;
    const segment_id_t target = openSegment(side.engine, peer.name().c_str());
    ASSERT_EQ(side.transfer(OPCODE_WRITE, target, 0, peer.address(), 4096), STATUS_COMPLETED);
    peer.signal(SIGSTOP);
    const batch_id_t batch = allocateBatchID(side.engine, 1);
    ASSERT_EQ(side.submit(batch, OPCODE_WRITE, target, 0, peer.address(), kBytes), 0);
    transfer_status_t status{};
    EXPECT_EQ(getTransferStatus(side.engine, batch, 0, &status), 0);
    EXPECT_TRUE(running(status)) << status.status;
    EXPECT_EQ(freeBatchID(side.engine, batch), 4);
    peer.signal(SIGCONT);
    EXPECT_EQ(side.finish(batch, 0).status, STATUS_COMPLETED);
    EXPECT_EQ(freeBatchID(side.engine, batch), 0);
}

TEST_F(CApiWithAStoppedPeer, EndsWithoutWaitingForThePeer) {
    PeerProcess peer;
    const auto start = std::chrono::steady_clock::now();
    {
        Side side;
        const segment_id_t target = openSegment(side.engine, peer.name().c_str());
        peer.signal(SIGSTOP);
        const batch_id_t batch = allocateBatchID(side.engine, 1);
        ASSERT_EQ(side.submit(batch, OPCODE_WRITE, target, 0, peer.address(), kBytes), 0);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 25s);
    peer.signal(SIGCONT);
}

// ---- wrong calls

void expect_refusals(transfer_engine_t engine) {
    char text[64];
    int size = -1;
    size_t count = 3;
    char byte = 0;
    void* address = &byte;
    buffer_entry_t entry{&byte, 1};
    nic_load_stat_t load{};
    transfer_request_t request{OPCODE_READ, &byte, LOCAL_SEGMENT, 0, 1};
    transfer_status_t status{};
    EXPECT_LT(discoverTopology(engine), 0);
    EXPECT_LT(getLocalIpAndPort(engine, text, sizeof(text)), 0);
    EXPECT_EQ(installTransport(engine, "tcp", nullptr), nullptr);
    EXPECT_LT(uninstallTransport(engine, "tcp"), 0);
    enableGracefulShutdown(engine);
    EXPECT_LT(openSegment(engine, "127.0.0.1:1"), 0);
    EXPECT_LT(openSegmentNoCache(engine, "127.0.0.1:1"), 0);
    EXPECT_LT(closeSegment(engine, 0), 0);
    EXPECT_LT(removeLocalSegment(engine, "127.0.0.1:1"), 0);
    EXPECT_LT(syncSegmentCache(engine), 0);
    EXPECT_LT(warmupEfaSegment(engine, "127.0.0.1:1"), 0);
    EXPECT_LT(registerLocalMemory(engine, &byte, 1, "*", 1), 0);
    EXPECT_LT(unregisterLocalMemory(engine, &byte), 0);
    EXPECT_LT(registerLocalMemoryBatch(engine, &entry, 1, "*"), 0);
    EXPECT_LT(unregisterLocalMemoryBatch(engine, &address, 1), 0);
    EXPECT_EQ(allocateBatchID(engine, 1), INVALID_BATCH);
    EXPECT_GT(submitTransfer(engine, 1, &request, 1), 0);
    EXPECT_GT(submitTransferWithNotify(engine, 1, &request, 1, {text, text}), 0);
    EXPECT_GT(getTransferStatus(engine, 1, 0, &status), 0);
    EXPECT_GT(freeBatchID(engine, 1), 0);
    EXPECT_EQ(getNotifsFromEngine(engine, &size), nullptr);
    EXPECT_EQ(size, 0);
    EXPECT_LT(genNotifyInEngine(engine, 0, {text, text}), 0);
    EXPECT_LT(getNicLoadStats(engine, &load, &count), 0);
    EXPECT_EQ(showLinks(engine, text, sizeof(text), 1), -1);
}

TEST(CApiMistakes, NoEngineIsAnErrorEverywhere) {
    expect_refusals(nullptr);
    expect_refusals(reinterpret_cast<transfer_engine_t>(0xdeadbeef));  // NOLINT(performance-no-int-to-ptr)
    destroyTransferEngine(nullptr);
}

TEST(CApiMistakes, ADestroyedEngineIsAnErrorEverywhere) {
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", nullptr, 0, 0);
    ASSERT_NE(engine, nullptr);
    destroyTransferEngine(engine);
    destroyTransferEngine(engine);
    expect_refusals(engine);
    transfer_engine_t next = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", nullptr, 0, 0);
    EXPECT_NE(next, engine) << "an old handle must not name a new engine";
    expect_refusals(engine);
    destroyTransferEngine(next);
}

TEST(CApiMistakes, AnEngineNeedsANameAndADirectoryThatExists) {
    EXPECT_EQ(createTransferEngine(nullptr, "127.0.0.1", "", 0, 1), nullptr);
    EXPECT_EQ(createTransferEngine("P2PHANDSHAKE", nullptr, "", 0, 1), nullptr);
    EXPECT_EQ(createTransferEngine("nonsense://x", "127.0.0.1", "", 0, 1), nullptr);
}

TEST(CApiMistakes, NullWhereAnObjectIsNeededIsAnError) {
    Side side;
    transfer_engine_t engine = side.engine;
    char text[8];
    EXPECT_LT(getLocalIpAndPort(engine, nullptr, 10), 0);
    EXPECT_LT(getLocalIpAndPort(engine, text, 0), 0);
    EXPECT_EQ(installTransport(engine, nullptr, nullptr), nullptr);
    EXPECT_LT(openSegment(engine, nullptr), 0);
    EXPECT_LT(openSegment(engine, ""), 0);
    EXPECT_LT(openSegmentNoCache(engine, nullptr), 0);
    EXPECT_LT(removeLocalSegment(engine, nullptr), 0);
    EXPECT_EQ(registerLocalMemory(engine, nullptr, 10, "*", 1), -1);
    EXPECT_EQ(registerLocalMemory(engine, text, 0, "*", 1), -1);
    EXPECT_EQ(registerLocalMemoryBatch(engine, nullptr, 1, "*"), -1);
    EXPECT_EQ(registerLocalMemoryBatch(engine, nullptr, 0, "*"), 0);
    EXPECT_EQ(unregisterLocalMemoryBatch(engine, nullptr, 1), -1);
    EXPECT_EQ(unregisterLocalMemory(engine, text), -3);
    const batch_id_t batch = allocateBatchID(engine, 4);
    EXPECT_EQ(submitTransfer(engine, batch, nullptr, 1), 1);
    EXPECT_EQ(submitTransfer(engine, batch, nullptr, 0), 0);
    EXPECT_EQ(side.submit(batch, 7, LOCAL_SEGMENT, 0, 0, 1), 1) << "no such opcode";
    EXPECT_GT(side.submit(batch, OPCODE_READ, 12345, 0, 0, 1), 0) << "no such segment";
    EXPECT_GT(side.submit(batch, OPCODE_READ, -1, 0, 0, 1), 0);
    EXPECT_EQ(getTransferStatus(engine, batch, 0, nullptr), 1);
    EXPECT_EQ(getNotifsFromEngine(engine, nullptr), nullptr);
    EXPECT_EQ(freeNotifsMsgBuf(nullptr, 0), 0);
    EXPECT_LT(genNotifyInEngine(engine, 12345, {text, nullptr}), 0);
    EXPECT_LT(genNotifyInEngine(engine, UINT64_MAX, {nullptr, nullptr}), 0);
    EXPECT_LT(getNicLoadStats(engine, nullptr, nullptr), 0);
    EXPECT_EQ(showLinks(engine, nullptr, 10, 0), -1);
    EXPECT_EQ(showLinks(engine, text, 0, 0), -1);
    EXPECT_EQ(freeBatchID(engine, batch), 0);
}

TEST(CApiMistakes, BatchesThatDoNotExistAreErrors) {
    Side side;
    transfer_status_t status{};
    for (const batch_id_t batch : {batch_id_t{0}, batch_id_t{1}, batch_id_t{0x7f0000001000}, batch_id_t{INVALID_BATCH}}) {
        EXPECT_GT(getTransferStatus(side.engine, batch, 0, &status), 0);
        EXPECT_GT(side.submit(batch, OPCODE_READ, LOCAL_SEGMENT, 0, 0, 1), 0);
        EXPECT_GT(freeBatchID(side.engine, batch), 0);
    }
}

TEST(CApiMistakes, CountsThatNoListHasAreErrors) {
    Side side;
    buffer_entry_t entry{side.memory.data(), 10};
    void* address = side.memory.data();
    transfer_request_t request{OPCODE_READ, side.memory.data(), LOCAL_SEGMENT, 0, 1};
    const batch_id_t batch = allocateBatchID(side.engine, 4);
    for (const size_t count : {SIZE_MAX, SIZE_MAX / sizeof(entry), size_t{1} << 62}) {
        EXPECT_LT(registerLocalMemoryBatch(side.engine, &entry, count, "*"), 0);
        EXPECT_LT(unregisterLocalMemoryBatch(side.engine, &address, count), 0);
        EXPECT_GT(submitTransfer(side.engine, batch, &request, count), 0);
        EXPECT_GT(submitTransferWithNotify(side.engine, batch, &request, count, {nullptr, nullptr}), 0);
    }
    EXPECT_EQ(freeBatchID(side.engine, batch), 0);
}

TEST(CApiMistakes, MemoryThatOverlapsIsRefused) {
    Side side;
    EXPECT_EQ(registerLocalMemory(side.engine, side.memory.data() + kBytes - 10, 100, "*", 1), -7);
    EXPECT_EQ(unregisterLocalMemory(side.engine, side.memory.data()), 0);
    EXPECT_EQ(unregisterLocalMemory(side.engine, side.memory.data()), -3);
}

// ---- the rest

TEST(CApiInsight, CutsTextToTheBuffer) {
    Side side;
    const std::string name = side.name();
    char text[8];
    std::memset(text, 'x', sizeof(text));
    EXPECT_EQ(getLocalIpAndPort(side.engine, text, 6), 0);
    EXPECT_EQ(std::string(text), name.substr(0, 5));
    EXPECT_EQ(text[6], 'x') << "written behind the end";
    EXPECT_EQ(showLinks(side.engine, text, 4, 1), 0);
    EXPECT_EQ(std::strlen(text), 3U);
}

TEST(CApiInsight, ShowsItsLinks) {
    Side side;
    std::vector<char> text(1 << 16);
    ASSERT_EQ(showLinks(side.engine, text.data(), text.size(), 1), 0);
    EXPECT_NE(std::string(text.data()).find("\"local_nics\""), std::string::npos);
    EXPECT_NE(std::string(text.data()).find("\"topology\""), std::string::npos);
    ASSERT_EQ(showLinks(side.engine, text.data(), text.size(), 0), 0);
    EXPECT_NE(std::string(text.data()).find("cpu:0"), std::string::npos);
    size_t count = 7;
    EXPECT_EQ(getNicLoadStats(side.engine, nullptr, &count), 0);
    EXPECT_EQ(count, 0U);
    EXPECT_EQ(discoverTopology(side.engine), 0);
}

TEST(CApiTransports, HasThoseItHasAndStandsInForOthers) {
    Side side;
    transport_t tcp = installTransport(side.engine, "tcp", nullptr);
    EXPECT_NE(tcp, nullptr);
    EXPECT_EQ(installTransport(side.engine, "tcp", nullptr), tcp);
    EXPECT_NE(installTransport(side.engine, "rdma", nullptr), nullptr);
    EXPECT_EQ(installTransport(side.engine, "pigeons", nullptr), nullptr);
    EXPECT_EQ(uninstallTransport(side.engine, "tcp"), 0);
}

TEST(CApiSegments, ForgetsAndFindsThemAgain) {
    Side side;
    PeerProcess peer;
    const segment_id_t target = openSegment(side.engine, peer.name().c_str());
    ASSERT_GT(target, 0);
    EXPECT_EQ(openSegment(side.engine, peer.name().c_str()), target);
    EXPECT_EQ(closeSegment(side.engine, target), 0);
    EXPECT_EQ(removeLocalSegment(side.engine, peer.name().c_str()), 0);
    EXPECT_EQ(syncSegmentCache(side.engine), 0);
    const segment_id_t again = openSegmentNoCache(side.engine, peer.name().c_str());
    ASSERT_GT(again, 0);
    EXPECT_EQ(warmupEfaSegment(side.engine, peer.name().c_str()), 0);
    EXPECT_EQ(side.transfer(OPCODE_WRITE, again, 0, peer.address(), 4096), STATUS_COMPLETED);
}

TEST(CApiMessages, GoBothWaysAtOnce) {
    Side side;
    PeerProcess peer;
    const segment_id_t target = openSegment(side.engine, peer.name().c_str());
    char name[] = "agent", text[] = "hello";
    EXPECT_EQ(genNotifyInEngine(side.engine, static_cast<uint64_t>(target), {name, text}), 0);
    EXPECT_EQ(peer.ask("notified"), "agent hello");
    EXPECT_EQ(peer.ask("notify " + side.name() + " peer answer"), "0");
    EXPECT_EQ(side.messages(), (std::vector<std::pair<std::string, std::string>>{{"peer", "answer"}}));
    int size = -1;
    EXPECT_EQ(getNotifsFromEngine(side.engine, &size), nullptr);
    EXPECT_EQ(size, 0);
}

TEST(CApiLife, AnEngineMayBeDestroyedWhileOthersCallIt) {
    for (int round = 0; round < 10; ++round) {
        transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
        std::atomic<int> started{0};
        std::vector<std::jthread> callers;
        for (int i = 0; i < 4; ++i)
            callers.emplace_back([&] {
                ++started;
                for (batch_id_t batch = 0; batch != INVALID_BATCH;) {
                    batch = allocateBatchID(engine, 1);
                    transfer_status_t status{};
                    EXPECT_GT(getTransferStatus(engine, batch, 0, &status), 0);
                    const int freed = freeBatchID(engine, batch);
                    EXPECT_GE(freed, 0);
                }
            });
        while (started < 4) std::this_thread::yield();
        destroyTransferEngine(engine);
    }
}

TEST(CApiLife, SignalsCloseTheEngineAndEndTheProcess) {
    for (const int number : {SIGTERM, SIGINT}) {
        PeerProcess peer({}, "graceful");
        ASSERT_FALSE(peer.name().empty());
        peer.signal(number);
        EXPECT_EQ(peer.wait(), 128 + number);
    }
    PeerProcess orderly({}, "graceful");
    orderly.close_commands();
    EXPECT_EQ(orderly.wait(), 0) << "exit() in order";
}

#ifndef __SANITIZE_THREAD__  // which does not support forking with threads
TEST(CApiLife, AForkedChildCannotUseTheEngineOfItsParent) {
    Side side;
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused = allocateBatchID(side.engine, 1) == INVALID_BATCH && openSegment(side.engine, "127.0.0.1:1") < 0;
        destroyTransferEngine(side.engine);
        ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    PeerProcess peer;
    const segment_id_t target = openSegment(side.engine, peer.name().c_str());
    EXPECT_EQ(side.transfer(OPCODE_WRITE, target, 0, peer.address(), 4096), STATUS_COMPLETED);
}
#endif

}  // namespace
