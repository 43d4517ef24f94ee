// SPDX-License-Identifier: Apache-2.0
// The library of this machine, over its providers that need no hardware.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <vector>

#include "base/time.h"
#include "base/unique_fd.h"
#include "transport/fabric/api.h"
#include "transport/fabric/profile.h"

namespace mooncake::fabric {

namespace {

struct Side {
    std::unique_ptr<Domain> domain;
    std::unique_ptr<Endpoint> endpoint;
    std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
    std::unique_ptr<MemoryKey> key;
    bool virtual_addresses = false;

    uint64_t remote(uint64_t offset) const { return virtual_addresses ? reinterpret_cast<uint64_t>(memory.data()) + offset : offset; }
};

class LibraryMoves : public ::testing::TestWithParam<OfferQuery> {
protected:
    void SetUp() override {
        auto loaded = load_library("");
        if (!loaded) GTEST_SKIP() << loaded.error().to_string();
        api = *loaded;
        const auto offers = api->offers(GetParam());
        ASSERT_TRUE(offers) << offers.error().to_string();
        if (offers->empty()) GTEST_SKIP() << api->description() << " has no provider " << GetParam().provider;
        offer = offers->front();
        for (Side* side : {&left, &right}) ASSERT_NO_FATAL_FAILURE(open(*side));
    }

    void open(Side& side) {
        auto domain = api->open(offer, {.addresses_max = 64});
        ASSERT_TRUE(domain) << domain.error().to_string();
        side.domain = std::move(*domain);
        auto endpoint = side.domain->open_endpoint();
        ASSERT_TRUE(endpoint) << endpoint.error().to_string();
        side.endpoint = std::move(*endpoint);
        auto key = side.domain->register_memory({.address = side.memory.data(), .length = side.memory.size(), .key = 0xfeed'0000'0001});
        ASSERT_TRUE(key) << key.error().to_string();
        side.key = std::move(*key);
        side.virtual_addresses = offer.virtual_addresses;
    }

    /// Moves `length` bytes from the start of one memory to an offset in the other, polling both.
    Finished move(Direction direction, Side& from, Side& to, AddressHandle peer, uint64_t offset, uint64_t length) {
        OperationContext context;
        const Operation operation{.direction = direction,
                                  .local = from.memory.data(),
                                  .length = length,
                                  .local_descriptor = offer.local_keys ? from.key->descriptor() : nullptr,
                                  .peer = peer,
                                  .remote = to.remote(offset),
                                  .key = to.key->key(),
                                  .context = &context};
        const Deadline deadline = Deadline::after(30s);
        bool posted = false;
        Finished finished[4];
        while (!deadline.passed()) {
            if (!posted) {
                const auto result = from.endpoint->post(operation);
                if (!result) return {.error = result.error().system_errno()};
                posted = *result;
            }
            to.domain->poll(finished);
            if (from.domain->poll(finished) == 0) continue;
            EXPECT_EQ(finished[0].context, &context);
            return finished[0];
        }
        return {.error = ETIMEDOUT};
    }

    std::shared_ptr<FabricApi> api;
    Offer offer;
    Side left, right;
};

TEST_P(LibraryMoves, VerifiedBytesBothWaysFromBothSides) {
    for (const bool swapped : {false, true}) {
        Side& from = swapped ? right : left;
        Side& to = swapped ? left : right;
        const auto peer = from.domain->insert_address(to.endpoint->name());
        ASSERT_TRUE(peer) << peer.error().to_string();
        for (const uint64_t length : {1u, 4096u, 700'001u}) {
            for (size_t i = 0; i < from.memory.size(); ++i) from.memory[i] = static_cast<std::byte>(i * 7 + length);
            std::fill(to.memory.begin(), to.memory.end(), std::byte{0xa5});
            ASSERT_EQ(move(Direction::kWrite, from, to, *peer, 100, length).error, 0);
            EXPECT_EQ(std::memcmp(to.memory.data() + 100, from.memory.data(), length), 0);
            EXPECT_EQ(to.memory[99], std::byte{0xa5});
            EXPECT_EQ(to.memory[100 + length], std::byte{0xa5});

            std::fill(from.memory.begin(), from.memory.end(), std::byte{});
            ASSERT_EQ(move(Direction::kRead, from, to, *peer, 100, length).error, 0);
            EXPECT_EQ(std::memcmp(to.memory.data() + 100, from.memory.data(), length), 0);
        }
    }
}

TEST_P(LibraryMoves, AnEndpointOpenedAnewServesTheSameRegistrations) {
    right.endpoint.reset();
    auto endpoint = right.domain->open_endpoint();
    ASSERT_TRUE(endpoint) << endpoint.error().to_string();
    right.endpoint = std::move(*endpoint);
    const auto peer = left.domain->insert_address(right.endpoint->name());
    ASSERT_TRUE(peer) << peer.error().to_string();
    left.memory[0] = std::byte{42};
    ASSERT_EQ(move(Direction::kWrite, left, right, *peer, 7, 1).error, 0);
    EXPECT_EQ(right.memory[7], std::byte{42});
}

size_t open_descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_P(LibraryMoves, AHalfMadeConnectionGoesWithItsEndpoint) {
    const std::vector<std::byte> name = right.endpoint->name();
    if (name.size() != sizeof(sockaddr_in)) GTEST_SKIP() << "no endpoint of TCP over IPv4";
    Finished finished[4];
    const size_t before = open_descriptors();
    {
        // They connect and say nothing. A first byte after the endpoint was closed made the library follow a stale pointer.
        std::vector<UniqueFd> clients;
        for (int i = 0; i < 100; ++i) {
            clients.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            ASSERT_EQ(::connect(clients.back().get(), reinterpret_cast<const sockaddr*>(name.data()), sizeof(sockaddr_in)), 0);
            if (i < 90) right.domain->poll(finished);  // accepted; the last ones are not
        }
        right.endpoint.reset();
        for (const UniqueFd& client : clients) {
            char byte = 0;
            EXPECT_EQ(::recv(client.get(), &byte, 1, MSG_DONTWAIT), -1);
            EXPECT_EQ(errno, ECONNRESET);
            (void)!::send(client.get(), &byte, 1, MSG_NOSIGNAL);
        }
        for (int i = 0; i < 10; ++i) right.domain->poll(finished);
    }
    auto endpoint = right.domain->open_endpoint();
    ASSERT_TRUE(endpoint) << endpoint.error().to_string();
    right.endpoint = std::move(*endpoint);
    EXPECT_EQ(open_descriptors(), before);
    const auto peer = left.domain->insert_address(right.endpoint->name());
    ASSERT_TRUE(peer) << peer.error().to_string();
    EXPECT_EQ(move(Direction::kWrite, left, right, *peer, 7, 1).error, 0);
}

TEST_P(LibraryMoves, AReadThatIsJustComingInEndsOnceWhenItsEndpointIsClosed) {
    const auto peer = left.domain->insert_address(right.endpoint->name());
    ASSERT_TRUE(peer) << peer.error().to_string();
    // More than fits into what is between them while the target does nothing.
    std::vector<std::byte> source(64 << 20, std::byte{0x5a}), into(source.size());
    const auto source_key = right.domain->register_memory({.address = source.data(), .length = source.size(), .key = 0xfeed'0000'0002});
    const auto into_key = left.domain->register_memory({.address = into.data(), .length = into.size(), .key = 0xfeed'0000'0002});
    ASSERT_TRUE(source_key && into_key);
    OperationContext context;
    const Operation operation{.direction = Direction::kRead,
                              .local = into.data(),
                              .length = into.size(),
                              .local_descriptor = offer.local_keys ? (*into_key)->descriptor() : nullptr,
                              .peer = *peer,
                              .remote = offer.virtual_addresses ? reinterpret_cast<uint64_t>(source.data()) : 0,
                              .key = (*source_key)->key(),
                              .context = &context};
    Finished finished[4];
    size_t ended = 0;
    const Deadline patience = Deadline::after(30s);
    for (bool posted = false; !patience.passed() && ended == 0 && into[0] != std::byte{0x5a};) {
        if (!posted) posted = left.endpoint->post(operation).value();
        right.domain->poll(finished);
        ended += left.domain->poll(finished);
    }
    if (ended > 0) GTEST_SKIP() << "the provider copies all of it at once";
    ASSERT_EQ(into[0], std::byte{0x5a});

    left.endpoint->retire();
    auto fresh = left.domain->open_endpoint();
    ASSERT_TRUE(fresh) << fresh.error().to_string();
    left.endpoint = std::move(*fresh);
    for (int round = 0; round < 10; ++round) {
        const size_t count = left.domain->poll(finished);
        for (size_t i = 0; i < count; ++i) ended += finished[i].context == &context ? 1 : 0;
    }
    EXPECT_LE(ended, 1u) << "its record is free twice, so that two operations will share it";
    for (const Direction direction : {Direction::kWrite, Direction::kRead, Direction::kWrite})
        EXPECT_EQ(move(direction, left, right, *peer, 0, 4096).error, 0);
}

TEST_P(LibraryMoves, NamesOfAnotherLengthAreRefused) {
    std::vector<std::byte> name = right.endpoint->name();
    EXPECT_FALSE(left.domain->insert_address({}));
    EXPECT_FALSE(left.domain->insert_address(std::vector<std::byte>(257)));
    if (GetParam().provider != "shm") {
        name.pop_back();
        EXPECT_FALSE(left.domain->insert_address(name));
    }
}

INSTANTIATE_TEST_SUITE_P(Net, LibraryMoves,
                         ::testing::Values(OfferQuery{.provider = "net", .node = "127.0.0.1", .style = MrStyle::kOffset},
                                           OfferQuery{.provider = "net", .node = "127.0.0.1", .style = MrStyle::kBasic},
                                           OfferQuery{.provider = "tcp", .node = "127.0.0.1", .style = MrStyle::kAuto},
                                           OfferQuery{.provider = "shm", .delivery_complete = false}));

TEST(Library, ChoosesKeysAndAddressesAsAsked) {
    const auto api = load_library("");
    if (!api) GTEST_SKIP() << api.error().to_string();
    for (const MrStyle style : {MrStyle::kOffset, MrStyle::kBasic}) {
        const auto offers = (*api)->offers({.provider = "net", .node = "127.0.0.1", .style = style});
        ASSERT_TRUE(offers);
        for (const Offer& offer : *offers) {
            EXPECT_EQ(offer.virtual_addresses, style == MrStyle::kBasic);
            EXPECT_EQ(offer.provider_keys, style == MrStyle::kBasic);
            EXPECT_TRUE(offer.delivery_complete);
            EXPECT_EQ(offer.nic, "127.0.0.1");
        }
    }
}

TEST(Library, AKeyThatIsTakenIsBusy) {
    const auto api = load_library("");
    if (!api) GTEST_SKIP() << api.error().to_string();
    const auto offers = (*api)->offers({.provider = "net", .node = "127.0.0.1", .style = MrStyle::kOffset});
    ASSERT_TRUE(offers);
    if (offers->empty()) GTEST_SKIP() << "no provider net";
    const auto domain = (*api)->open(offers->front(), {});
    ASSERT_TRUE(domain);
    std::vector<std::byte> memory(4096);
    const auto first = (*domain)->register_memory({.address = memory.data(), .length = 100, .key = 5});
    ASSERT_TRUE(first);
    const auto second = (*domain)->register_memory({.address = memory.data(), .length = 100, .key = 5});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kBusy) << second.error().to_string();
}

/// What SIGINT and SIGTERM do: whoever starts a program in the background may have the first ignored.
std::array<void (*)(int), 2> signal_handlers() {
    struct sigaction interrupt {
    }, terminate{};
    ::sigaction(SIGINT, nullptr, &interrupt);
    ::sigaction(SIGTERM, nullptr, &terminate);
    return {interrupt.sa_handler, terminate.sa_handler};
}

bool signals_are_as_before() {
    const auto before = signal_handlers();
    const auto api = load_library("");
    if (api && !(*api)->offers({.provider = "net"})) return false;
    return signal_handlers() == before;
}

TEST(LibraryDeathTest, LeavesTheProgramsSignalsAlone) {
    // In a fresh process: the provider shm, which other tests use, does take some.
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(::_exit(signals_are_as_before() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(Library, SaysWhyThereIsNone) {
    const auto api = load_library("/nowhere/libfabric.so.1");
    ASSERT_FALSE(api);
    EXPECT_EQ(api.error().code(), Code::kNotSupported);
}

TEST(Library, AnotherLibraryIsNotTakenForIt) {
    const auto api = load_library("libdl.so.2");
    ASSERT_FALSE(api);
    EXPECT_EQ(api.error().code(), Code::kNotSupported);
}

TEST(Library, HasNothingForAProviderThatDoesNotExist) {
    const auto api = load_library("");
    if (!api) GTEST_SKIP() << api.error().to_string();
    const auto offers = (*api)->offers({.provider = "no-such-provider"});
    ASSERT_TRUE(offers) << offers.error().to_string();
    EXPECT_TRUE(offers->empty());
}

// ---- another one, which looks newer (tests/fabric/other_libfabric.cpp)

constexpr uint32_t kOtherVersion = 2 << 16 | 6;

TEST(OtherLibrary, IsAskedInTheVersionsWeKnow) {
    const auto api = load_library(OTHER_LIBFABRIC);
    ASSERT_TRUE(api) << api.error().to_string();
    EXPECT_EQ((*api)->version(), kOtherVersion);
    EXPECT_TRUE((*api)->description().starts_with("libfabric 2.6 from "));
    // It ends the process that calls its newest functions, and has nothing for who asks for an API that is not 1.18.
    const auto offers = (*api)->offers({.provider = "efa"});
    ASSERT_TRUE(offers) << offers.error().to_string();
    EXPECT_EQ(offers->size(), 2u);
}

TEST(OtherLibrary, OffersWhatOnlyNewerOnesHave) {
    const auto api = load_library(OTHER_LIBFABRIC);
    ASSERT_TRUE(api) << api.error().to_string();
    const auto queries = queries_for(*find_profile("efa-direct"), (*api)->version(), {}, false);
    ASSERT_TRUE(queries) << queries.error().to_string();
    const auto offers = (*api)->offers(queries->tries.at(0).at(0));
    ASSERT_TRUE(offers) << offers.error().to_string();
    ASSERT_EQ(offers->size(), 1u);
    EXPECT_EQ(offers->front().fabric, "efa-direct");
    EXPECT_TRUE(offers->front().local_keys && offers->front().virtual_addresses && offers->front().provider_keys);
    EXPECT_FALSE(offers->front().endpoint_keys);
}

TEST(OtherLibrary, IsAskedForLessWhereItHasNoMore) {
    const auto api = load_library(OTHER_LIBFABRIC);
    ASSERT_TRUE(api) << api.error().to_string();
    const auto offers = (*api)->offers({.provider = "cxi"});  // makes connections only while it is polled
    ASSERT_TRUE(offers) << offers.error().to_string();
    ASSERT_EQ(offers->size(), 1u);
    EXPECT_EQ(offers->front().nic, "cxi0");
    EXPECT_EQ(offers->front().key_bytes, 4u);
    EXPECT_TRUE(offers->front().endpoint_keys && offers->front().provider_keys && offers->front().delivery_complete);
    EXPECT_FALSE(offers->front().local_keys || offers->front().virtual_addresses);
}

bool shares_what_is_loaded() {
    if (::dlopen(OTHER_LIBFABRIC, RTLD_NOW | RTLD_LOCAL) == nullptr) return false;
    const auto api = load_library("");
    return api && (*api)->version() == kOtherVersion;
}

TEST(OtherLibraryDeathTest, ThatIsLoadedAlreadyIsShared) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(::_exit(shares_what_is_loaded() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

}  // namespace

}  // namespace mooncake::fabric
