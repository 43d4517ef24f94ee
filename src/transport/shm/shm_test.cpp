// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <new>
#include <thread>

#include "base/log.h"
#include "transport/shm/channel.h"
#include "transport/shm/claims.h"
#include "transport/shm/region_table.h"
#include "transport/shm/target.h"
#include "transport/testing/conformance.h"
#include "transport/testing/no_memory.h"

namespace mooncake::testing {
namespace {

class ShmTransport : public ::testing::Test {
protected:
    /// Connects without the transport, to say what it would not.
    net::Socket raw_connection() {
        const std::string name = shm::decode_endpoint(pair.target().transport().endpoint()).value();
        return shm::connect_local(name, patience()).value();
    }
    Result<shm::Received> answer(const net::Socket& socket) {
        if (!net::wait_ready(socket.fd(), POLLIN, patience())) return fail(Code::kTimedOut, "no answer");
        return shm::receive_message(socket.fd());
    }
    shm::Message hello() {
        return {.kind = shm::MessageKind::kHello, .incarnation = 1, .expected = pair.target().describe().incarnation.value};
    }
    Code connect_code(const SegmentDescriptor& descriptor) { return code_of(pair.initiator().transport().connect(descriptor, patience())); }

    TransportPair pair{TransportCase{.name = "shm", .make = make_shm_transport}};
    const TestMemory local{1 << 20};
    const MemoryRegion* const region = pair.initiator().add(local);
};

/// What a peer that was welcomed shares with the target.
class RawClaims {
public:
    explicit RawClaims(const shm::Received& welcome)
        : table_(shm::RemoteTable::open(welcome.files[0], {welcome.message.incarnation}).value()),
          page_(welcome.files[1].map(true, sizeof(shm::Claims)).value()) {}

    shm::Claims& claims() const { return *reinterpret_cast<shm::Claims*>(page_.address()); }
    uint32_t entry_of(const TestMemory& memory) const {
        for (const auto& found : table_.read())
            if (found.region.address == memory.address()) return found.number;
        ADD_FAILURE() << "not in the table";
        return 0;
    }

private:
    const shm::RemoteTable table_;
    const Mapping page_;
};

size_t mappings_of(const std::string& name) {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("memfd:" + name + " ") != std::string::npos;
    return count;
}

/// True as soon as the condition holds; false when patience ends.
bool soon(const std::function<bool()>& condition) {
    for (const Deadline deadline = patience(); !deadline.passed(); std::this_thread::yield())
        if (condition()) return true;
    return false;
}

TEST_F(ShmTransport, CopiesSharedMemoryThroughItsOwnMapping) {
    const TestMemory shared(1 << 20, MemorySource::kShared);
    shared.fill(std::byte{3});
    pair.target().add(shared);
    const auto peer = pair.connect();
    // With the target's own mapping closed the kernel cannot copy there, but a mapping of ours still can.
    ASSERT_EQ(::mprotect(shared.data(), shared.length(), PROT_NONE), 0);
    const Slice one{.local = local.data(), .remote = shared.address(), .length = shared.length(), .region = region};
    EXPECT_TRUE(soon([&] { return transfer(*peer, Direction::kRead, one).has_value(); }));
    EXPECT_TRUE(local.all(std::byte{3}));
    local.fill(std::byte{4});
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, one));
    // Memory that is not registered here goes through the kernel, which knows whether it is there.
    const TestMemory unregistered(1 << 20);
    EXPECT_EQ(
        code_of(transfer(*peer, Direction::kRead, {.local = unregistered.data(), .remote = shared.address(), .length = shared.length()})),
        Code::kNotRegistered);
    ASSERT_EQ(::mprotect(shared.data(), shared.length(), PROT_READ | PROT_WRITE), 0);
    EXPECT_TRUE(shared.all(std::byte{4}));
}

TEST_F(ShmTransport, APeerIsDestroyedWithoutMemory) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    const TestMemory shared(1 << 20, MemorySource::kShared);
    pair.target().add(shared);
    for (const bool busy : {false, true}) {
        auto peer = pair.connect();
        const Slice one{.local = local.data(), .remote = shared.address(), .length = shared.length(), .region = region};
        ASSERT_TRUE(transfer(*peer, Direction::kRead, one));
        std::vector<Completion> completions(busy ? 200 : 0);
        std::vector<Slice> slices(completions.size(), one);
        for (size_t i = 0; i < slices.size(); ++i) {
            completions[i].add(1);
            slices[i].completion = &completions[i];
        }
        if (busy) peer->submit(Direction::kRead, slices, Submit::kLeave);
        {
            const NoMemoryHere none(0);
            peer.reset();
        }
        for (Completion& completion : completions) EXPECT_TRUE(completion.wait(patience()));
        // Nor where the target does not hear us any more.
        auto last = pair.connect();
        ASSERT_TRUE(transfer(*last, Direction::kRead, one));
        if (busy) {
            ASSERT_TRUE(pair.target().transport().stop_serving(patience()));
        }
        const NoMemoryHere none(0);
        last.reset();
    }
}

TEST_F(ShmTransport, UnmapsSharedMemoryThatIsNoLongerRegistered) {
    const auto peer = pair.connect();
    const size_t before = mappings_of("mooncake");
    for (int round = 0; round < 20; ++round) {
        const TestMemory shared(1 << 20, MemorySource::kShared);
        const MemoryRegion* const lower = pair.target().add(shared.region(0, 4096));
        const MemoryRegion* const upper = pair.target().add(shared.region(4096, 4096));
        const Slice one{.local = local.data(), .remote = shared.address(), .length = 8192, .region = region};
        ASSERT_TRUE(transfer(*peer, Direction::kRead, one));
        EXPECT_TRUE(soon([&] { return mappings_of("mooncake") == before + 2; })) << "one of the target, one of the peer";
        ASSERT_TRUE(pair.target().remove(lower));
        ASSERT_TRUE(pair.target().remove(upper));
        EXPECT_TRUE(soon([&] { return mappings_of("mooncake") == before + 1; })) << "also without any transfer";
    }
    EXPECT_TRUE(peer->usable());
}

TEST_F(ShmTransport, CopiesByTheKernelWhatMayShrink) {
    const UniqueFd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(loose.get(), 8192), 0);
    const Mapping mapping(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, loose.get(), 0), 8192);
    const MemoryRegion* const shrinking = pair.target().add({.address = mapping.address(), .length = 8192, .shared_fd = loose.get()});
    const auto peer = pair.connect();
    const Slice one{.local = local.data(), .remote = reinterpret_cast<uint64_t>(mapping.address()), .length = 8192, .region = region};
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, one));
    ASSERT_EQ(::ftruncate(loose.get(), 0), 0);
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, one)), Code::kNotRegistered);
    ASSERT_TRUE(pair.target().remove(shrinking));
}

TEST_F(ShmTransport, DoesNotLendMemoryThatIsNotForPeers) {
    const TestMemory hidden(4096);
    MemoryRegion mine = hidden.region(0, 4096);
    mine.remote_accessible = false;
    EXPECT_EQ(pair.target().transport().register_memory(mine).value(), nullptr);
}

TEST_F(ShmTransport, ConnectsOnlyOnThisHostToWhoOffersIt) {
    SegmentDescriptor descriptor = pair.target().describe();
    descriptor.boot_id = "another";
    EXPECT_EQ(connect_code(descriptor), Code::kNotSupported);
    descriptor.boot_id = "";
    EXPECT_EQ(connect_code(descriptor), Code::kNotSupported);
    descriptor = pair.target().describe();
    descriptor.endpoints["shm"] = "nonsense";
    EXPECT_EQ(connect_code(descriptor), Code::kNotSupported);
    descriptor.endpoints.clear();
    EXPECT_EQ(connect_code(descriptor), Code::kNotSupported);
    descriptor = pair.target().describe();
    descriptor.endpoints["shm"] = shm::encode_endpoint("mooncake-nobody-" + Incarnation::random().to_string());
    EXPECT_EQ(connect_code(descriptor), Code::kUnavailable);
    descriptor = pair.target().describe();
    descriptor.incarnation = Incarnation::random();
    EXPECT_EQ(connect_code(descriptor), Code::kStale);
    EXPECT_EQ(connect_code(pair.target().describe()), Code::kOk);
}

TEST_F(ShmTransport, RefusesOtherVersionsPolitely) {
    const net::Socket socket = raw_connection();
    shm::Message message = hello();
    message.version = shm::kVersion + 1;
    ASSERT_TRUE(shm::send_message(socket.fd(), message));
    const auto received = answer(socket);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->message.kind, shm::MessageKind::kRefusal);
    EXPECT_EQ(received->message.value, static_cast<uint64_t>(shm::Refusal::kOtherVersion));
    EXPECT_EQ(code_of(answer(socket)), Code::kUnavailable) << "and hangs up";
}

TEST_F(ShmTransport, HangsUpOnGarbage) {
    for (const size_t length : {1u, 40u, 64u, 4000u}) {
        const net::Socket socket = raw_connection();
        const std::string garbage(length, 'x');
        ASSERT_EQ(::send(socket.fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL), static_cast<ssize_t>(garbage.size()));
        EXPECT_EQ(code_of(answer(socket)), Code::kUnavailable);
    }
    const net::Socket impatient = raw_connection();
    ASSERT_TRUE(shm::send_message(impatient.fd(), {.kind = shm::MessageKind::kWantMemory, .value = 1}));
    EXPECT_EQ(code_of(answer(impatient)), Code::kUnavailable);
    EXPECT_TRUE(pair.connect()->usable());
}

TEST_F(ShmTransport, AnswersForMemoryThatDoesNotExist) {
    const net::Socket socket = raw_connection();
    ASSERT_TRUE(shm::send_message(socket.fd(), hello()));
    ASSERT_EQ(answer(socket)->message.kind, shm::MessageKind::kWelcome);
    ASSERT_TRUE(shm::send_message(socket.fd(), {.kind = shm::MessageKind::kWantMemory, .value = 12345}));
    const auto received = answer(socket);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->message.kind, shm::MessageKind::kMemory);
    EXPECT_FALSE(received->files[0]);
}

TEST_F(ShmTransport, KeepsWaitingForAPeerItHungUpOn) {
    const TestMemory lent(4096);
    const MemoryRegion* const lent_region = pair.target().add(lent);
    net::Socket socket = raw_connection();
    ASSERT_TRUE(shm::send_message(socket.fd(), hello()));
    const auto welcome = answer(socket);
    ASSERT_TRUE(welcome);
    const RawClaims raw(*welcome);
    {
        shm::Claims::Section section(raw.claims());
        section.claim(raw.entry_of(lent));
        ASSERT_TRUE(shm::send_message(socket.fd(), hello()));  // a second hello is against the rules
        EXPECT_EQ(code_of(answer(socket)), Code::kUnavailable);
        const auto removed = pair.target().remove(lent_region, Deadline::after(20ms));
        ASSERT_FALSE(removed);
        EXPECT_EQ(removed.error().code(), Code::kBusy);
        EXPECT_NE(removed.error().message().find(std::to_string(::getpid())), std::string::npos);
    }
    EXPECT_TRUE(pair.target().remove(lent_region));
}

TEST_F(ShmTransport, DoesNotWaitForAPeerThatIsGone) {
    const TestMemory lent(4096);
    const MemoryRegion* const lent_region = pair.target().add(lent);
    net::Socket socket = raw_connection();
    ASSERT_TRUE(shm::send_message(socket.fd(), hello()));
    const auto welcome = answer(socket);
    const RawClaims raw(*welcome);
    // A process that died inside a copy leaves its claim behind.
    alignas(shm::Claims::Section) std::array<std::byte, sizeof(shm::Claims::Section)> never_left;
    (new (never_left.data()) shm::Claims::Section(raw.claims()))->claim(raw.entry_of(lent));
    std::jthread dies([&] { socket.reset(); });
    EXPECT_TRUE(pair.target().remove(lent_region));
}

TEST_F(ShmTransport, WaitsOnlyForPeersThatTouchTheMemory) {
    const TestMemory touched(4096), untouched(4096);
    const MemoryRegion *const busy = pair.target().add(touched), *const idle = pair.target().add(untouched);
    net::Socket socket = raw_connection();
    ASSERT_TRUE(shm::send_message(socket.fd(), hello()));
    const auto welcome = answer(socket);
    ASSERT_TRUE(welcome);
    const RawClaims raw(*welcome);
    {
        shm::Claims::Section section(raw.claims());  // as of a process that was stopped inside a copy
        section.claim(raw.entry_of(touched));
        EXPECT_TRUE(pair.target().remove(idle, Deadline::after(20ms)));
        EXPECT_EQ(code_of(pair.target().remove(busy, Deadline::after(20ms))), Code::kBusy);
    }
    EXPECT_TRUE(pair.target().remove(busy));
}

TEST_F(ShmTransport, GivesNothingAwayOnceItHasStoppedServing) {
    const TestMemory shared(1 << 20, MemorySource::kShared);
    pair.target().add(shared);
    const auto peer = pair.connect();
    const Slice one{.local = local.data(), .remote = shared.address(), .length = shared.length(), .region = region};
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, one));
    const SegmentDescriptor descriptor = pair.target().describe();
    net::Socket silent = raw_connection();  // here before, but not greeted yet

    ASSERT_TRUE(pair.target().transport().stop_serving(patience()));

    shared.fill(std::byte{9});
    local.fill(std::byte{5});
    const Code refused = code_of(transfer(*peer, Direction::kWrite, one));
    EXPECT_TRUE(refused == Code::kNotRegistered || refused == Code::kUnavailable) << code_name(refused);
    EXPECT_TRUE(shared.all(std::byte{9}));
    EXPECT_TRUE(soon([&] { return !peer->usable(); })) << "it is told";
    EXPECT_EQ(connect_code(descriptor), Code::kUnavailable);
    (void)shm::send_message(silent.fd(), hello());
    const auto late = answer(silent);
    EXPECT_TRUE(!late || late->message.kind == shm::MessageKind::kRefusal);
    EXPECT_FALSE(pair.target().transport().register_memory(shared.region(0, 4096)));
    EXPECT_TRUE(pair.target().transport().stop_serving(patience())) << "again";
}

TEST_F(ShmTransport, SaysWhenItStopsServingWhileAPeerStillCopies) {
    const TestMemory lent(4096);
    pair.target().add(lent);
    net::Socket socket = raw_connection();
    ASSERT_TRUE(shm::send_message(socket.fd(), hello()));
    const auto welcome = answer(socket);
    ASSERT_TRUE(welcome);
    const RawClaims raw(*welcome);
    {
        shm::Claims::Section section(raw.claims());
        section.claim(raw.entry_of(lent));
        EXPECT_EQ(code_of(pair.target().transport().stop_serving(Deadline::after(20ms))), Code::kBusy);
    }
    EXPECT_TRUE(pair.target().transport().stop_serving(patience()));
}

TEST_F(ShmTransport, RefusesToWriteMemoryThatMayOnlyBeRead) {
    for (const MemorySource source : {MemorySource::kPrivate, MemorySource::kShared}) {
        const TestMemory lent(1 << 20, source);
        lent.fill(std::byte{7});
        MemoryRegion read_only = lent.region(0, lent.length());
        read_only.writable = false;
        const MemoryRegion* const added = pair.target().add(read_only);
        const auto peer = pair.connect();
        const Slice one{.local = local.data(), .remote = lent.address(), .length = lent.length(), .region = region};
        EXPECT_TRUE(transfer(*peer, Direction::kRead, one));
        local.fill(std::byte{8});
        EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, one)), Code::kNotRegistered);
        EXPECT_TRUE(lent.all(std::byte{7}));
        EXPECT_TRUE(pair.target().remove(added));
    }
}

TEST_F(ShmTransport, ReportsLocalMemoryThatCannotBeWritten) {
    const TestMemory shared(1 << 20, MemorySource::kShared);
    pair.target().add(shared);
    const auto peer = pair.connect();
    const Slice one{.local = local.data(), .remote = shared.address(), .length = 4096, .region = region};
    ASSERT_TRUE(transfer(*peer, Direction::kRead, one));
    ASSERT_TRUE(soon([&] { return mappings_of("mooncake") == 2; })) << "copied without the kernel";
    const TestMemory sealed(4096);
    ASSERT_EQ(::mprotect(sealed.data(), sealed.length(), PROT_READ), 0);
    MemoryRegion read_only = sealed.region(0, 4096);
    read_only.writable = false;
    const MemoryRegion* const sealed_region = pair.initiator().add(read_only);
    const Slice into{.local = sealed.data(), .remote = shared.address(), .length = 4096, .region = sealed_region};
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, into)), Code::kNotRegistered);
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, into));
}

/// In the target's copy or the peer's: it is the same page.
void spoil_claims() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("memfd:mooncake-claims ") == std::string::npos) continue;
        auto* const page = reinterpret_cast<uint32_t*>(std::stoull(line, nullptr, 16));
        for (size_t slot = 0; slot < shm::Claims::kSlots; ++slot) std::atomic_ref(page[slot * 16]).fetch_or(1);
    }
}

TEST_F(ShmTransport, GivesUpAPeerWhosePageSaysThatAllSlotsAreTaken) {
    const TestMemory lent(1 << 20);
    pair.target().add(lent);
    const auto peer = pair.connect();
    const Slice one{.local = local.data(), .remote = lent.address(), .length = 4096, .region = region};
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, one));
    spoil_claims();
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, one)), Code::kUnavailable);
    EXPECT_FALSE(peer->usable());
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, one)), Code::kUnavailable);
    EXPECT_TRUE(transfer(*pair.connect(), Direction::kWrite, one)) << "another connection has another page";
}

TEST_F(ShmTransport, LetsMoreThreadsCopyThanThereAreSlots) {
    const TestMemory lent(1 << 20);
    pair.target().add(lent);
    const auto peer = pair.connect();
    std::atomic<int> failed{0};
    {
        std::vector<std::jthread> threads;
        for (uint32_t t = 0; t < shm::Claims::kSlots + 16; ++t)
            threads.emplace_back([&] {
                for (int i = 0; i < 8; ++i)
                    failed += !transfer(*peer, Direction::kWrite,
                                        Slice{.local = local.data(), .remote = lent.address(), .length = 1 << 20, .region = region});
            });
    }
    EXPECT_EQ(failed, 0);
    EXPECT_TRUE(peer->usable());
}

TEST_F(ShmTransport, IsNotBlockedByStrangersThatSayNothing) {
    std::vector<net::Socket> strangers;
    for (size_t i = 0; i < shm::Target::kStrangersMax + 16; ++i) strangers.push_back(raw_connection());
    EXPECT_TRUE(pair.connect()->usable());
    EXPECT_EQ(code_of(answer(strangers.front())), Code::kUnavailable) << "the oldest had to make room";
}

TEST_F(ShmTransport, TurnsPeersAwayWhenDescriptorsRunOut) {
    // UBSan looks at objects of a type it meets for the first time through a pipe, so those of the log must not be new to it below.
    MC_LOG_WARNING("descriptors run out");
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    std::vector<UniqueFd> filling(1);
    filling.front().reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit low{.rlim_cur = static_cast<rlim_t>(filling.front().get()) + 20, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    while (filling.back()) filling.emplace_back(::fcntl(filling.front().get(), F_DUPFD_CLOEXEC, 0));
    std::vector<Code> answers;
    for (int round = 0; round < 5; ++round) {
        filling.pop_back();
        filling.back().reset();  // room for our end, not for the other
        const net::Socket socket = raw_connection();
        answers.push_back(code_of(answer(socket)));
        filling.emplace_back();
    }
    filling.clear();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(answers, std::vector(5, Code::kUnavailable));
    EXPECT_TRUE(pair.connect()->usable());
}

TEST_F(ShmTransport, FindsMemoryThatIsRegisteredAtEveryMomentByOneOfTwo) {
    const TestMemory remote(1 << 20);
    Transport& target = pair.target().transport();
    // As an engine does when the wider of two registrations goes: first the narrow one is there, then the wide one is not.
    auto wide = target.register_memory(remote.region(0, 1 << 20)).value();
    const auto peer = pair.connect();
    std::atomic<bool> over{false};
    std::jthread changing([&] {
        while (!over.load()) {
            auto narrow = target.register_memory(remote.region(4096, 8192)).value();
            EXPECT_TRUE(wide->revoke(patience()));
            wide.reset();
            wide = target.register_memory(remote.region(0, 1 << 20)).value();
            EXPECT_TRUE(narrow->revoke(patience()));
        }
    });
    for (int round = 0; round < 20'000; ++round) {
        const auto read = transfer(*peer, Direction::kRead,
                                   {.local = local.data(), .remote = remote.address() + 4096, .length = 64, .region = region});
        if (!read) {
            ADD_FAILURE() << "round " << round << ": " << read.error().to_string();
            break;
        }
    }
    over = true;
}

TEST_F(ShmTransport, RegistersAHundredThousandRegionsQuickly) {
    const TestMemory many(100'000 * 64);
    const auto peer = pair.connect();
    std::vector<std::unique_ptr<Registration>> registrations;
    const Deadline hang = patience();
    for (uint64_t i = 0; i < 100'000; ++i)
        registrations.push_back(pair.target().transport().register_memory(many.region(i * 64, 64)).value());
    EXPECT_FALSE(hang.passed());
    const auto written = transfer(*peer, Direction::kWrite,
                                  {.local = local.data(), .remote = many.address(), .length = 1 << 20, .region = region});
    EXPECT_TRUE(written) << written.error().to_string();
    for (auto& registration : registrations) ASSERT_TRUE(registration->revoke(patience()));
    EXPECT_EQ(
        code_of(transfer(*peer, Direction::kWrite, {.local = local.data(), .remote = many.address(), .length = 64, .region = region})),
        Code::kNotRegistered);
}

}  // namespace
}  // namespace mooncake::testing
