// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs that comes in chunks or from pools, between two real processes; what is freed behind our back; and every call of the driver that
// may fail on the way. Each process has the libcuda that the tests build.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"
#include "metrics/metrics.h"
#include "transport/shm/shm.h"
#include "transport/testing/child_process.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {
namespace {

using cuda::testing::FakeCuda;
namespace abi = cuda::abi;

constexpr uint64_t kChunk = FakeCuda::kChunkBytes;

std::vector<std::byte> noise(uint64_t seed, uint64_t length) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

uint64_t sum_of(const std::vector<std::byte>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0},
                           [](uint64_t sum, std::byte byte) { return sum * 31 + static_cast<uint64_t>(byte); });
}

uint64_t open_files() {
    uint64_t count = 0;
    for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
}

std::string int_of(Code code) { return std::to_string(static_cast<int>(code)); }

/// All chunks of a range.
std::set<size_t> all_of(size_t chunks) {
    std::set<size_t> all;
    for (size_t i = 0; i < chunks; ++i) all.insert(i);
    return all;
}

struct Side {
    Side() { devices.push_back(std::make_unique<cuda::CudaDevice>(CudaOptions{})); }

    const MemoryRegion* add(std::byte* address, uint64_t length) {
        return host().add({.address = address, .length = length, .kind = MemoryKind::kCuda, .device = 0, .location = "cuda:0"});
    }
    TransportHost& host() {
        if (all == nullptr) all = std::make_unique<Devices>(std::move(devices));
        if (made == nullptr)
            made = std::make_unique<TransportHost>(
                [this](const TransportContext& context) {
                    TransportContext counted = context;
                    counted.metrics = &metrics;
                    return make_shm_transport(counted);
                },
                EngineOptions{}, *all);
        return *made;
    }
    uint64_t copied(const std::string& path, const std::string& direction) {
        return metrics.counter("mooncake_device_bytes_total", "", {{"path", path}, {"direction", direction}}).value();
    }

    FakeCuda cuda;
    metrics::Registry metrics;
    std::vector<std::unique_ptr<Device>> devices;
    std::unique_ptr<Devices> all;
    std::unique_ptr<TransportHost> made;
};

// ---- the other process

/// Memory of one sort, of so many chunks, all of it registered. Lives as long as its process.
struct Lender {
    explicit Lender(const std::string& words) {
        std::istringstream in(words);
        in >> sort >> chunks;
        length = chunks * kChunk;
        if (sort == "malloc") memory = side.cuda.allocate(length);
        if (sort == "pool") memory = side.cuda.allocate_from_pool(length, side.cuda.make_pool(abi::kHandleDescriptor));
        if (sort == "private-pool") memory = side.cuda.allocate_from_pool(length);
        if (sort == "chunks") memory = side.cuda.reserve(chunks + 1, all_of(chunks));
        if (sort == "private-chunks") memory = side.cuda.reserve(chunks + 1, all_of(chunks), abi::kHandleNone);
        if (sort == "mixed-chunks") {
            memory = side.cuda.reserve(chunks + 1, all_of(chunks - 1));
            side.cuda.map(memory, chunks - 1, abi::kHandleNone);
        }
        region = side.add(memory, length);
        if (chunks <= 16) side.cuda.write(memory, noise(1, length));
    }

    std::string offer() {
        const SegmentDescriptor descriptor = side.host().describe();
        return format_text("{} {} {}", descriptor.incarnation.to_string(), reinterpret_cast<uint64_t>(memory),
                           descriptor.endpoints.at("shm"));
    }

    std::string answer(const std::string& words) {
        std::istringstream in(words);
        std::string command;
        uint64_t first = 0;
        int second = 0;
        in >> command >> first >> second;
        if (command == "remove") return int_of(code_of(side.host().remove(region)));
        if (command == "register") region = side.add(memory, length);
        if (command == "free") side.cuda.free(memory);
        if (command == "unmap") side.cuda.unmap(memory, first);
        if (command == "map") side.cuda.map(memory, first);
        if (command == "fault") FakeCuda::fail("*", static_cast<int>(first), second);
        if (command == "reset") FakeCuda::reset();
        if (command == "sum") return std::to_string(sum_of(side.cuda.read(memory, length)));
        if (command == "held") return format_text("{} {}", FakeCuda::count("live:handles"), open_files());
        if (command == "faults") return std::to_string(FakeCuda::count("faults"));
        return "done";
    }

    std::string sort;
    uint64_t chunks = 0, length = 0;
    Side side;
    std::byte* memory = nullptr;
    const MemoryRegion* region = nullptr;
};

TEST(ShmWaysChild, DISABLED_Lends) {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    Lender lender(read_command());
    say("offer " + lender.offer());
    for (;;) say("answer " + lender.answer(read_command()));
}

/// The same, and the way to it.
class Borrowed {
public:
    Borrowed(Side& side, const std::string& what) : side_(side) {
        child.send_line(what);
        std::istringstream in(child.read_line("offer ", patience()).value());
        std::string incarnation, endpoint;
        in >> incarnation >> address >> std::ws;
        std::getline(in, endpoint);
        descriptor_ = {.name = "child",
                       .incarnation = Incarnation::parse(incarnation).value(),
                       .boot_id = boot_id(),
                       .endpoints = {{"shm", endpoint}}};
        connect();
    }
    void connect() { peer = connect(side_); }
    std::unique_ptr<Peer> connect(Side& from) const { return from.host().transport().connect(descriptor_, patience()).value(); }

    Result<uint64_t> move(Direction direction, const MemoryRegion& local, uint64_t offset, uint64_t length) {
        return transfer(*peer, direction,
                        {.local = local.address + offset, .remote = address + offset, .length = length, .region = &local});
    }
    std::string ask(const std::string& command) {
        child.send_line(command);
        return child.read_line("answer ", patience()).value_or("nothing");
    }

    ChildProcess child{"ShmWaysChild.DISABLED_Lends"};
    uint64_t address = 0;
    std::unique_ptr<Peer> peer;

private:
    Side& side_;
    SegmentDescriptor descriptor_;
};

/// What of the driver is held here.
struct Holdings {
    uint64_t memory = FakeCuda::count("live:memory"), handles = FakeCuda::count("live:handles"),
             ranges = FakeCuda::count("live:reservations"), pools = FakeCuda::count("live:pools"), files = 0;

    bool operator==(const Holdings&) const = default;
    std::string to_string() const {
        return format_text("{} mappings, {} handles, {} ranges, {} pools, {} files", memory, handles, ranges, pools, files);
    }
};
void PrintTo(const Holdings& holdings, std::ostream* out) { *out << holdings.to_string(); }

class ShmWays : public ::testing::Test {
protected:
    static constexpr uint64_t kLength = 4 * kChunk;

    ~ShmWays() override {
        EXPECT_EQ(FakeCuda::count("contexts"), 0u);
        EXPECT_EQ(FakeCuda::count("unrelaxed"), 0u);
    }
    /// There and back, by two kinds of local memory.
    void expect_bytes_move(Borrowed& other) {
        side.cuda.write(card, noise(7, kLength));
        ASSERT_TRUE(other.move(Direction::kWrite, *ours, 100, kLength - 200));
        auto expected = noise(1, kLength);
        const auto here = noise(7, kLength);
        std::copy(here.begin() + 100, here.end() - 100, expected.begin() + 100);
        EXPECT_EQ(other.ask("sum"), std::to_string(sum_of(expected)));
        side.cuda.write(card, noise(8, kLength));
        ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
        EXPECT_EQ(side.cuda.read(card, kLength), expected);
        ASSERT_TRUE(other.move(Direction::kRead, *plain_region, 0, kLength));
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), plain.data()));
    }
    /// Until the peer's process sees that its memory is gone, transfers go where they went before.
    Code first_failure(Borrowed& other, uint64_t offset) {
        for (const Deadline end = patience(); !end.passed(); std::this_thread::yield())
            if (const auto moved = other.move(Direction::kWrite, *ours, offset, 64); !moved) return moved.error().code();
        return Code::kTimedOut;
    }
    void await_holdings(const Holdings& expected) {
        for (const Deadline end = patience(); Holdings{} != expected && !end.passed();) std::this_thread::yield();
        EXPECT_EQ(Holdings{}, expected);
    }

    Side side;
    std::byte* const card = side.cuda.allocate(kLength);
    const MemoryRegion* ours = side.add(card, kLength);
    TestMemory plain{kLength};
    const MemoryRegion* plain_region = side.host().add(plain);
    const Holdings before;
};

TEST_F(ShmWays, ChunksAreReachedByTheirFiles) {
    Borrowed other(side, "chunks 4");
    expect_bytes_move(other);
    EXPECT_EQ(FakeCuda::count("calls:cuMemImportFromShareableHandle"), 4u) << "each once, for all transfers";
    EXPECT_EQ(FakeCuda::count("calls:cuIpcOpenMemHandle_v2"), 0u);
    EXPECT_EQ(side.copied("cuda_fd", "write"), kLength - 200);
    EXPECT_EQ(side.copied("cuda_fd", "read"), 2 * kLength);
    EXPECT_EQ(FakeCuda::count("live:handles"), before.handles);
    EXPECT_EQ(FakeCuda::count("live:reservations"), before.ranges + 1) << "side by side, as at the owner's";
    EXPECT_EQ(other.ask("remove"), "0");
    EXPECT_EQ(Holdings{}, before) << "closed before the owner is told that it may free them";
    EXPECT_EQ(code_of(other.move(Direction::kRead, *ours, 0, 64)), Code::kNotRegistered);
}

TEST_F(ShmWays, OneCopyCrossesFromChunkToChunk) {
    Borrowed other(side, "chunks 4");
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
    const uint64_t copies = FakeCuda::count("copies");
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
    EXPECT_EQ(FakeCuda::count("copies"), copies + 1);
}

TEST_F(ShmWays, OnlyWhatIsUsedIsOpened) {
    Borrowed other(side, "chunks 4");
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 2 * kChunk - 100, 200));
    EXPECT_EQ(FakeCuda::count("calls:cuMemImportFromShareableHandle"), 2u);
    EXPECT_EQ(other.ask("remove"), "0");
    EXPECT_EQ(Holdings{}, before);
}

TEST_F(ShmWays, TwoPeersOfAProcessShareWhatIsOpen) {
    Borrowed other(side, "chunks 4");
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
    const auto first = std::move(other.peer);
    other.connect();
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
    EXPECT_EQ(FakeCuda::count("calls:cuMemImportFromShareableHandle"), 4u);
    other.peer.reset();
    EXPECT_EQ(FakeCuda::count("live:memory"), before.memory + 4);
    ASSERT_TRUE(transfer(*first, Direction::kRead, {.local = ours->address, .remote = other.address, .length = 64, .region = ours}));
}

TEST_F(ShmWays, AThousandChunksTakeNoFiles) {
    constexpr uint64_t kCount = 1000;
    Borrowed other(side, format_text("chunks {}", kCount));
    const uint64_t files = open_files();
    const std::string held = other.ask("held");
    std::vector<Slice> slices;
    for (uint64_t i = 0; i < kCount; ++i)
        slices.push_back({.local = card + i * 64, .remote = other.address + i * kChunk + i, .length = 64, .region = ours});
    const auto here = noise(3, kCount * 64);
    side.cuda.write(card, here);
    ASSERT_TRUE(transfer(*other.peer, Direction::kWrite, slices));
    side.cuda.write(card, noise(4, kCount * 64));
    ASSERT_TRUE(transfer(*other.peer, Direction::kRead, slices));
    EXPECT_EQ(side.cuda.read(card, kCount * 64), here);
    EXPECT_EQ(FakeCuda::count("calls:cuMemImportFromShareableHandle"), kCount);
    EXPECT_EQ(open_files(), files);
    const std::string after = other.ask("held");
    EXPECT_EQ(after.substr(0, after.find(' ')), held.substr(0, held.find(' ')));
    // The owner has a timer more.
    EXPECT_LE(std::stoull(after.substr(after.find(' '))), std::stoull(held.substr(held.find(' '))) + 2);
    EXPECT_EQ(other.ask("remove"), "0");
    EXPECT_EQ(Holdings{}, before);
}

TEST_F(ShmWays, PoolsThatAllowItAreShared) {
    Borrowed other(side, "pool 4");
    expect_bytes_move(other);
    EXPECT_EQ(FakeCuda::count("calls:cuMemPoolImportFromShareableHandle"), 1u);
    EXPECT_EQ(FakeCuda::count("calls:cuMemPoolImportPointer"), 1u);
    EXPECT_EQ(side.copied("cuda_pool", "read"), 2 * kLength);
    EXPECT_EQ(other.ask("remove"), "0");
    EXPECT_EQ(Holdings{}, before);
}

TEST_F(ShmWays, WhatCannotBeSharedIsNotSupported) {
    for (const char* const sort : {"private-chunks 4", "private-pool 4"}) {
        Borrowed other(side, sort);
        EXPECT_EQ(code_of(other.move(Direction::kRead, *ours, 0, 64)), Code::kNotSupported) << sort;
        EXPECT_EQ(other.ask("remove"), "0");
    }
    Borrowed other(side, "mixed-chunks 4");
    EXPECT_TRUE(other.move(Direction::kRead, *ours, 0, 3 * kChunk));
    EXPECT_EQ(code_of(other.move(Direction::kRead, *ours, 3 * kChunk - 10, 20)), Code::kNotSupported);
    EXPECT_EQ(code_of(other.move(Direction::kRead, *ours, 3 * kChunk, 20)), Code::kNotSupported);
    EXPECT_EQ(other.ask("remove"), "0");
    EXPECT_EQ(Holdings{}, before);
}

TEST_F(ShmWays, HandlesThatDoNotOpenLeaveFilesThatDo) {
    FakeCuda::ipc_error(abi::kInvalidContext);  // as in another process namespace
    Borrowed malloced(side, "malloc 4");
    EXPECT_EQ(code_of(malloced.move(Direction::kRead, *ours, 0, 64)), Code::kNotSupported);
    Borrowed chunks(side, "chunks 4");
    expect_bytes_move(chunks);
}

// ---- freed behind our back

TEST_F(ShmWays, MemoryFreedWhileItIsRegisteredBecomesAnError) {
    for (const char* const sort : {"malloc 4", "pool 4"}) {
        Borrowed other(side, sort);
        ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength)) << sort;
        EXPECT_EQ(other.ask("free"), "done");
        EXPECT_EQ(first_failure(other, 0), Code::kNotRegistered) << sort;
        await_holdings(before);  // so that the system gets it back
        EXPECT_EQ(other.ask("remove"), "0");
    }
}

TEST_F(ShmWays, AChunkThatIsUnmappedCostsItselfOnly) {
    Borrowed other(side, "chunks 4");
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
    EXPECT_EQ(other.ask("unmap 2"), "done");
    EXPECT_EQ(first_failure(other, 2 * kChunk), Code::kNotRegistered);
    EXPECT_TRUE(other.move(Direction::kRead, *ours, 0, 2 * kChunk));
    EXPECT_TRUE(other.move(Direction::kRead, *ours, 3 * kChunk, kChunk));
    EXPECT_EQ(code_of(other.move(Direction::kRead, *ours, 0, kLength)), Code::kNotRegistered);
    // The same addresses, new memory: as after the sleep of an inference engine.
    EXPECT_EQ(other.ask("map 2"), "done");
    EXPECT_EQ(code_of(other.move(Direction::kRead, *ours, 2 * kChunk, 64)), Code::kNotRegistered) << "nobody registered that";
    EXPECT_EQ(other.ask("remove"), "0");
    EXPECT_EQ(other.ask("register"), "done");
    ASSERT_TRUE(other.move(Direction::kWrite, *ours, 0, kLength));
    EXPECT_EQ(other.ask("sum"), std::to_string(sum_of(side.cuda.read(card, kLength))));
    EXPECT_EQ(other.ask("remove"), "0");
    EXPECT_EQ(Holdings{}, before);
}

TEST_F(ShmWays, WhatWasReplacedBeforeAnyoneUsedItIsNotLent) {
    Borrowed other(side, "chunks 4");
    EXPECT_EQ(other.ask("unmap 1"), "done");
    EXPECT_EQ(other.ask("map 1"), "done");
    const Code code = code_of(other.move(Direction::kRead, *ours, kChunk, 64));
    EXPECT_TRUE(code == Code::kNotRegistered || code == Code::kNotSupported) << static_cast<int>(code);
    EXPECT_TRUE(other.move(Direction::kRead, *ours, 0, 64));
}

// ---- whatever fails

constexpr const char* kGiveBack[] = {"cuMemUnmap",          "cuMemRelease",        "cuMemAddressFree",
                                     "cuIpcCloseMemHandle", "cuMemFree_v2",        "cuMemPoolDestroy",
                                     "cuCtxPopCurrent_v2",  "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode"};

class ShmWaysFaults : public ShmWays, public ::testing::WithParamInterface<const char*> {};

TEST_P(ShmWaysFaults, AnyCallHereMayFail) {
    Borrowed other(side, GetParam());
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));  // streams and buffers are there
    other.peer.reset();
    const auto own = [&] {
        Holdings now;
        now.files = open_files();
        return now;
    };
    Holdings clean = own();
    for (const abi::Status status : {abi::kInvalidValue, abi::kOutOfMemory, abi::kInvalidContext})
        for (int nth = 1; nth < 200; ++nth) {
            FakeCuda::reset();
            other.connect();
            FakeCuda::fail("*", nth, status);
            const auto moved = other.move(Direction::kRead, *ours, 0, kLength);
            other.peer.reset();
            if (FakeCuda::count("faults") == 0) {
                EXPECT_TRUE(moved) << "the last round is one without a fault";
                EXPECT_GT(nth, 10);
                break;
            }
            const bool kept = std::any_of(std::begin(kGiveBack), std::end(kGiveBack),
                                          [](const char* name) { return FakeCuda::count(std::string("failed:") + name) != 0; });
            // What the driver does not take back stays, and nothing else does.
            if (kept) {
                clean = own();
            } else {
                ASSERT_EQ(own(), clean) << GetParam() << " call " << nth << " answers " << status;
            }
            FakeCuda::reset();
        }
    FakeCuda::reset();
    other.connect();
    EXPECT_TRUE(other.move(Direction::kRead, *ours, 0, kLength)) << "afterwards all is well";
}

/// A driver that goes down with its process is not asked anything any more; a GPU that is lost takes nothing else along.
TEST_P(ShmWaysFaults, AnyCallHereMayBeTheLast) {
    Borrowed other(side, GetParam());
    for (const abi::Status status : {abi::kDeinitialized, abi::kIllegalAddress}) {
        bool fell = true;
        for (int nth = 1; fell && nth < 200; ++nth) {
            FakeCuda::reset();
            Side fresh;
            std::byte* const memory = fresh.cuda.allocate(kLength);
            const MemoryRegion* const region = fresh.add(memory, kLength);
            FakeCuda::fail("*", nth, status);
            auto peer = other.connect(fresh);
            const auto moved = transfer(*peer, Direction::kRead,
                                        {.local = memory, .remote = other.address, .length = kLength, .region = region});
            fell = FakeCuda::count("faults") != 0;
            EXPECT_TRUE(moved || fell) << moved.error().to_string();
            peer.reset();
            fresh.made.reset();
            fresh.all.reset();
            EXPECT_EQ(FakeCuda::count("after_end"), 0u) << nth;
            FakeCuda::reset();
            fresh.cuda.wait_for_streams();  // with a driver that is lost nobody waited for what was on its way
            FakeCuda::reset();
            fresh.cuda.free(memory);
        }
        EXPECT_FALSE(fell);
    }
}

TEST_P(ShmWaysFaults, AnyCallOfTheOwnerMayFail) {
    Borrowed other(side, GetParam());
    ASSERT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
    const std::string clean = other.ask("held");
    for (const abi::Status status : {abi::kInvalidValue, abi::kOutOfMemory}) {
        for (int nth = 1; nth < 60; ++nth) {
            other.peer.reset();
            other.ask(format_text("fault {} {}", nth, status));
            other.connect();
            const auto moved = other.move(Direction::kRead, *ours, 0, kLength);
            const bool fell = other.ask("faults") != "0";
            other.ask("reset");
            if (!moved) {
                const Code code = moved.error().code();
                EXPECT_TRUE(code == Code::kNotSupported || code == Code::kNotRegistered) << moved.error().to_string();
            }
            if (!fell) break;
            if (moved || code_of(moved) == Code::kNotSupported) continue;
            // The driver said that the memory is not there.
            EXPECT_EQ(other.ask("remove"), "0");
            other.ask("register");
        }
        EXPECT_EQ(other.ask("remove"), "0");
        other.ask("register");
    }
    other.peer.reset();
    other.connect();
    EXPECT_TRUE(other.move(Direction::kRead, *ours, 0, kLength));
    const std::string after = other.ask("held");
    EXPECT_LE(std::stoull(after), std::stoull(clean) + 2 * 4) << "handles whose release failed, each once, are all that may stay";
    EXPECT_EQ(after.substr(after.find(' ')), clean.substr(clean.find(' ')));
}

INSTANTIATE_TEST_SUITE_P(All, ShmWaysFaults, ::testing::Values("malloc 4", "chunks 4", "pool 4"), [](const auto& name) {
    const std::string words = name.param;
    return words.substr(0, words.find(' '));
});

// ---- deaths

TEST_F(ShmWays, AnOwnerKilledWhileItsChunksAreOpenedLeavesNothing) {
    std::mt19937 random(5);
    for (int round = 0; round < 6; ++round) {
        Borrowed other(side, "chunks 300");
        std::vector<Slice> slices;
        for (uint64_t i = 0; i < 300; ++i)
            slices.push_back({.local = card + i * 64, .remote = other.address + i * kChunk, .length = 64, .region = ours});
        const uint64_t until = FakeCuda::count("calls:cuMemImportFromShareableHandle") + random() % 300;
        std::jthread user([&] {
            while (transfer(*other.peer, Direction::kWrite, slices)) {}
        });
        while (FakeCuda::count("calls:cuMemImportFromShareableHandle") < until) std::this_thread::yield();
        other.child.kill();
        user.join();
        EXPECT_FALSE(other.peer->usable());
        other.peer.reset();
        EXPECT_EQ(Holdings{}, before);
    }
}

TEST(ShmWaysChild, DISABLED_WritesToChunks) {
    Side side;
    std::istringstream in(read_command());
    std::string incarnation, endpoint;
    uint64_t address = 0, length = 0;
    in >> incarnation >> address >> length >> std::ws;
    std::getline(in, endpoint);
    const auto peer = side.host()
                          .transport()
                          .connect({.name = "parent",
                                    .incarnation = Incarnation::parse(incarnation).value(),
                                    .boot_id = boot_id(),
                                    .endpoints = {{"shm", endpoint}}},
                                   patience())
                          .value();
    const MemoryRegion* const region = side.add(side.cuda.allocate(length), length);
    for (int round = 0;; ++round) {
        (void)transfer(*peer, Direction::kWrite, {.local = region->address, .remote = address, .length = length, .region = region});
        if (round == 2) say("writing");
    }
}

TEST_F(ShmWays, WritersToChunksThatStopOrDieAreFenced) {
    std::byte* const memory = side.cuda.reserve(9, all_of(8));
    for (int round = 0; round < 6; ++round) {
        const MemoryRegion* const region = side.add(memory, 8 * kChunk);
        ChildProcess writer("ShmWaysChild.DISABLED_WritesToChunks");
        const SegmentDescriptor descriptor = side.host().describe();
        writer.send_line(format_text("{} {} {} {}", descriptor.incarnation.to_string(), reinterpret_cast<uint64_t>(memory), 8 * kChunk,
                                     descriptor.endpoints.at("shm")));
        ASSERT_TRUE(writer.read_line("writing", patience()));
        if (round % 3 == 0) writer.kill();
        if (round % 3 == 1) {
            writer.signal(SIGSTOP);
            const auto removed = side.host().remove(region, Deadline::after(20ms));
            EXPECT_EQ(code_of(removed), Code::kBusy) << "it has the chunks open";
            writer.signal(round == 1 ? SIGCONT : SIGKILL);
        }
        ASSERT_TRUE(side.host().remove(region));
        const auto poison = noise(static_cast<uint64_t>(round), 8 * kChunk);
        side.cuda.write(memory, poison);
        writer.kill();
        EXPECT_EQ(side.cuda.read(memory, 8 * kChunk), poison) << "a byte landed behind the fence";
    }
    side.cuda.release(memory, 9, all_of(8));
}

}  // namespace
}  // namespace mooncake::testing
