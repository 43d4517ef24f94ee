// SPDX-License-Identifier: Apache-2.0
// What the transport does when the library fails, hangs or has no room, and how it cuts and shares out work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "device/ascend/testing/emulator.h"
#include "transport/ascend/ascend.h"
#include "transport/ascend/wire.h"
#include "transport/testing/conformance.h"

namespace mooncake::ascend {
namespace {

using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::TransportHost;
using mooncake::testing::transfer;
using testing::Emulator;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 1 << 20;

/// One transport with memory of its NPU.
struct Node {
    Node(const Emulator& emu, int tier, std::vector<std::string> devices, AscendOptions ascend) : emulator(emu) {
        ascend.libraries = {Emulator::file_of(tier)};
        ascend.api = "adxl";
        EngineOptions options;
        options.bind_address = "127.0.0.1";
        options.device_allow = devices;
        host = std::make_unique<TransportHost>([ascend](const TransportContext& context) { return make_ascend_transport(context, ascend); },
                                               options);
        for (const std::string& name : devices) add(std::stoi(name));
    }
    ~Node() {
        host.reset();
        for (const MemoryRegion& one : memories) emulator.free(one.address);
    }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    void add(int device) {
        memories.push_back({.address = emulator.allocate(device, kBytes), .length = kBytes, .kind = MemoryKind::kAscend, .device = device});
        regions.push_back(host->add(memories.back()));
    }
    std::string name(size_t engine = 0) const { return decode_endpoints(host->describe().endpoints.at("ascend")).value()[engine].name; }

    const Emulator& emulator;
    std::unique_ptr<TransportHost> host;
    std::deque<MemoryRegion> memories;
    std::vector<const MemoryRegion*> regions;
};

class AscendFaults : public ::testing::Test {
protected:
    void open(const std::function<void(AscendOptions&)>& change = {}, int used = 92) {
        tier = used;
        emulator = std::make_unique<Emulator>(used);
        options.auto_connect = false;
        options.connect_timeout = 5s;
        if (change) change(options);
        here = std::make_unique<Node>(*emulator, tier, std::vector<std::string>{"0"}, options);
        there = std::make_unique<Node>(*emulator, tier, std::vector<std::string>{"1"}, options);
        peer = connect(*there);
        emulator->clear_log();
    }
    std::unique_ptr<Peer> connect(Node& target) {
        auto connected = here->host->transport().connect(target.host->describe(), patience());
        if (!connected) ADD_FAILURE() << connected.error().to_string();
        return std::move(*connected);
    }
    void TearDown() override {
        if (!emulator) return;
        emulator->set_faults("");
        emulator->release();
        peer.reset();
    }
    Slice slice(Node& target, uint64_t offset = 0, uint64_t length = kBytes) {
        return {.local = here->memories[0].address + offset,
                .remote = reinterpret_cast<uint64_t>(target.memories[0].address) + offset,
                .length = length,
                .region = here->regions[0]};
    }
    Result<uint64_t> write() { return transfer(*peer, Direction::kWrite, slice(*there)); }
    /// Writes new bytes, and looks whether they are there.
    void expect_written(uint8_t value) {
        const std::vector<std::byte> bytes(kBytes, std::byte{value});
        emulator->write(here->memories[0].address, bytes);
        const auto written = write();
        ASSERT_TRUE(written) << written.error().to_string();
        EXPECT_EQ(emulator->read(there->memories[0].address, kBytes), bytes);
    }

    int tier = 92;
    AscendOptions options;
    std::unique_ptr<Emulator> emulator;
    std::unique_ptr<Node> here, there;
    std::unique_ptr<Peer> peer;
};

TEST_F(AscendFaults, ALibraryWithoutRoomIsAskedAgainLater) {
    open();
    emulator->set_faults("TransferSync,count=3->return:203900");
    expect_written(1);
    EXPECT_EQ(emulator->calls("TransferSync"), 4u);
    EXPECT_EQ(emulator->calls("Disconnect"), 0u);
}

TEST_F(AscendFaults, ATimeoutClosesTheLinkBeforeTheNextTry) {
    // Finding 30.
    open();
    emulator->set_faults("TransferSync,count=1->return:103901");
    expect_written(1);
    std::string order;
    for (const std::string& line : emulator->log())
        for (const char* const call : {"TransferSync", "Disconnect", "Connect"})
            if (line.starts_with(std::string(call) + " ")) order += call[0] == 'T' ? 'T' : call[0];
    EXPECT_EQ(order, "TDCT");
}

TEST_F(AscendFaults, FailuresEndAfterThreeTriesAndWithThePeer) {
    open();
    emulator->set_faults("TransferSync->return:503900");
    const auto failed = write();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), Code::kUnavailable);
    EXPECT_THAT(failed.error().message(), HasSubstr("TransferSync to " + there->name()));
    EXPECT_THAT(failed.error().message(), HasSubstr("on device 0"));
    EXPECT_THAT(failed.error().message(), HasSubstr("503900 (FAILED)"));
    EXPECT_EQ(emulator->calls("TransferSync"), 3u);
    EXPECT_FALSE(peer->usable());
    emulator->set_faults("");
    peer = connect(*there);
    expect_written(2);
}

TEST_F(AscendFaults, WhatTheLibraryCallsWrongIsTriedOnceMoreAfterAskingThePeer) {
    open();
    emulator->set_faults("TransferSync,count=1->return:103900");
    expect_written(1);
    emulator->set_faults("TransferSync->return:103900");
    emulator->clear_log();
    EXPECT_EQ(write().error().code(), Code::kInvalidArgument);
    EXPECT_EQ(emulator->calls("TransferSync"), 2u);
    EXPECT_TRUE(peer->usable());
}

TEST_F(AscendFaults, ALibraryThatDoesNotConnectByItselfIsToldTo) {
    // Finding 7.
    open([](AscendOptions& o) { o.auto_connect = true; });
    expect_written(1);
    EXPECT_EQ(emulator->calls("Connect"), 0u);
    emulator->set_faults("TransferSync,count=1->return:103902");
    expect_written(2);
    EXPECT_EQ(emulator->calls("Connect"), 1u);
}

TEST_F(AscendFaults, APeerThatHangsDoesNotSlowAnother) {
    // Finding 8, with one worker left.
    open([](AscendOptions& o) { o.workers = 2; });
    Node other(*emulator, tier, {"2"}, options);
    auto live = connect(other);
    emulator->set_faults("TransferSync,peer=" + there->name() + "->hang");
    Completion stuck;
    Slice one = slice(*there);
    one.completion = &stuck;
    stuck.add(1);
    peer->submit(Direction::kWrite, {&one, 1}, Submit::kLeave);
    const Deadline deadline = patience();
    while (emulator->hanging() == 0 && !deadline.passed()) std::this_thread::yield();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(transfer(*live, Direction::kWrite, slice(other)));
    EXPECT_FALSE(stuck.done());
    // Cancelling ends what hangs in the library.
    EXPECT_EQ(peer->cancel(stuck, Error(Code::kTimedOut, "enough"), patience()), Stopped::kEverywhere);
    EXPECT_EQ(stuck.result().error().code(), Code::kTimedOut);
    emulator->set_faults("");
    expect_written(3);
    live.reset();
}

TEST_F(AscendFaults, EverybodyWhoWaitsIsToldWhenAPeerIsClosed) {
    // Finding 5.
    open();
    emulator->set_faults("TransferSync->hang");
    std::vector<Slice> slices(100, slice(*there, 0, 1000));
    std::vector<Completion> completions(100);
    for (size_t i = 0; i < 100; ++i) {
        slices[i].completion = &completions[i];
        completions[i].add(1);
        peer->submit(Direction::kWrite, {&slices[i], 1}, Submit::kLeave);
    }
    peer->close(Error(Code::kCancelled, "closed"));
    for (const Completion& one : completions) {
        ASSERT_TRUE(one.done());
        EXPECT_EQ(one.result().error().code(), Code::kCancelled);
    }
}

TEST_F(AscendFaults, CallsAreCutAt4096Descriptors) {
    open();
    for (const size_t count : {1, 4095, 4096, 4097, 8193}) {
        std::vector<Slice> slices;
        for (size_t i = 0; i < count; ++i) slices.push_back(slice(*there, (i * 120) % (kBytes - 100), 50));
        emulator->clear_log();
        ASSERT_TRUE(transfer(*peer, Direction::kRead, slices));
        EXPECT_EQ(emulator->calls("TransferSync"), (count + 4095) / 4096) << count;
    }
}

TEST_F(AscendFaults, PeersTakeTurns) {
    open([](AscendOptions& o) { o.workers = 1; });
    Node other(*emulator, tier, {"2"}, options);
    auto second = connect(other);
    std::vector<Slice> many, few;
    for (size_t i = 0; i < 40'000; ++i) many.push_back(slice(*there, (i * 120) % (kBytes - 100), 20));
    few.push_back(slice(other, 0, 100));
    Completion long_one, short_one;
    for (Slice& one : many) one.completion = &long_one;
    few[0].completion = &short_one;
    long_one.add(static_cast<uint32_t>(many.size()));
    short_one.add(1);
    emulator->set_faults("TransferSync,peer=" + there->name() + "->delay:20");
    peer->submit(Direction::kWrite, many, Submit::kLeave);
    second->submit(Direction::kWrite, few, Submit::kLeave);
    ASSERT_TRUE(second->wait(short_one, patience()));
    EXPECT_FALSE(long_one.done()) << "ten calls that take their time";
    ASSERT_TRUE(peer->wait(long_one, patience()));
    second.reset();
}

TEST_F(AscendFaults, LinksThatNobodyUsesAreReleasedAndComeBack) {
    open([](AscendOptions& o) { o.idle_release = 30ms; });
    const Deadline deadline = patience();
    expect_written(1);
    while (emulator->calls("Disconnect") == 0 && !deadline.passed()) std::this_thread::yield();
    EXPECT_GE(emulator->calls("Disconnect"), 1u);
    EXPECT_TRUE(peer->usable());
    expect_written(2);
    EXPECT_GE(emulator->calls("Connect"), 1u);
}

TEST_F(AscendFaults, ShortConnectionsLastForOneBatch) {
    open([](AscendOptions& o) { o.short_connection = true; });
    for (uint8_t i = 0; i < 3; ++i) expect_written(i);
    EXPECT_GE(emulator->calls("Connect"), 2u);
    EXPECT_TRUE(peer->usable());
}

TEST_F(AscendFaults, ARequestThatNeverEndsIsCutOff) {
    open([](AscendOptions& o) { o.async = true, o.transfer_timeout = 100ms; });
    expect_written(1);
    EXPECT_EQ(emulator->calls("TransferSync"), 0u);
    emulator->set_faults("GetTransferStatus->waiting");
    EXPECT_EQ(code_of(write()), Code::kUnavailable);
    EXPECT_GE(emulator->calls("Disconnect"), 3u);
}

TEST_F(AscendFaults, WorkersCallTheLibraryInItsOwnContext) {
    open();
    emulator->set_device(3);
    expect_written(1);
    for (const std::string& line : emulator->log())
        if (line.starts_with("TransferSync") || line.starts_with("Connect")) EXPECT_THAT(line, HasSubstr("device=0"));
    EXPECT_EQ(emulator->device_of_thread(), 3);
}

TEST_F(AscendFaults, APoolCarriesMemoryToo) {
    open([](AscendOptions& o) { o.buffer_pool = "4:8", o.workers = 1; });
    expect_written(1);
}

TEST_F(AscendFaults, AnOldLibraryMakesLinksExplicitlyWhateverIsAsked) {
    open([](AscendOptions& o) { o.auto_connect = true, o.async = true; }, 82);
    expect_written(1);
    EXPECT_EQ(emulator->calls("TransferSync"), 1u);
}

TEST_F(AscendFaults, SeveralDevicesOfAProcessHaveAnEngineEach) {
    open();
    Node many(*emulator, tier, {"2", "3"}, options);
    auto connected = connect(many);
    const std::vector<std::byte> bytes(kBytes, std::byte{9});
    emulator->write(here->memories[0].address, bytes);
    for (size_t i = 0; i < 2; ++i) {
        Slice one = slice(*there);
        one.remote = reinterpret_cast<uint64_t>(many.memories[i].address);
        const auto written = transfer(*connected, Direction::kWrite, one);
        ASSERT_TRUE(written) << written.error().to_string();
        EXPECT_EQ(emulator->read(many.memories[i].address, kBytes), bytes);
    }
    EXPECT_NE(many.name(0), many.name(1));
    auto back = many.host->transport().connect(here->host->describe(), patience()).value();
    for (size_t i = 0; i < 2; ++i) {
        const Slice one{.local = many.memories[i].address,
                        .remote = reinterpret_cast<uint64_t>(here->memories[0].address),
                        .length = kBytes,
                        .region = many.regions[i]};
        EXPECT_TRUE(transfer(*back, Direction::kRead, one));
    }
    connected.reset();
    back.reset();
}

TEST_F(AscendFaults, ADeviceThatCannotBeLinkedToItselfIsLeftToOthers) {
    open({}, 90);
    Node same(*emulator, tier, {"0"}, options);
    const auto refused = here->host->transport().connect(same.host->describe(), patience());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kNotSupported);
}

}  // namespace
}  // namespace mooncake::ascend
