// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "base/unique_fd.h"

namespace mooncake::tcp {
namespace {

struct Ends {
    Ends() {
        int fds[2];
        MC_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
        one = UniqueFd(fds[0]);
        other = UniqueFd(fds[1]);
    }
    UniqueFd one, other;
};

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

/// Moves one payload through a socket that takes it only in portions. What follows it is `after`.
struct Journey {
    Journey(size_t bytes, size_t pieces, bool trailer) : source(random_bytes(bytes, 1)), target(bytes) {
        out.start(trailer);
        incoming.start(bytes, trailer);
        const size_t step = (bytes + pieces - 1) / pieces;
        for (size_t at = 0; at < bytes; at += step) {
            // The order of the pieces is the order of the bytes; where they lie is another matter.
            const size_t place = bytes - std::min(bytes, at + step);
            out.payload().append(source.data() + place, std::min(step, bytes - at));
            incoming.into().append(target.data() + place, std::min(step, bytes - at));
        }
    }
    /// False when an end failed.
    bool run() {
        while (!out.done() || !incoming.done()) {
            if (!out.done()) {
                IovList list;
                out.gather(list);
                const IoResult sent = list.send(ends.one.get());
                if (sent.error != 0) return false;
                out.consume(sent.bytes, list);
            }
            const IoResult got = incoming.receive(ends.other.get(), inbox, ahead);
            if (got.error != 0) return false;
            incoming.take(inbox);
        }
        return true;
    }

    Ends ends;
    std::vector<std::byte> source, target;
    Outgoing out;
    Incoming incoming;
    Inbox inbox;
    size_t ahead = 0;
};

TEST(TcpStream, CarriesAPayloadInPiecesWithAndWithoutTrailer) {
    for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{3'000'000}}) {
        for (const size_t pieces : {size_t{1}, size_t{7}, size_t{900}}) {
            for (const bool trailer : {false, true}) {
                for (const size_t ahead : {size_t{0}, size_t{8192}}) {
                    Journey journey(bytes, std::min(pieces, bytes), trailer);
                    journey.ahead = ahead;
                    ASSERT_TRUE(journey.run());
                    EXPECT_TRUE(journey.incoming.intact());
                    EXPECT_TRUE(journey.target == journey.source);
                    EXPECT_TRUE(journey.inbox.bytes().empty());
                }
            }
        }
    }
}

TEST(TcpStream, TrailerTellsThatABitChangedOnTheWay) {
    Ends ends;
    const auto payload = random_bytes(1000, 2);
    Checksum checksum;
    checksum.start(true);
    checksum.update(payload.data(), payload.size());
    const uint64_t value = checksum.value();
    for (const size_t changed : {size_t{0}, size_t{999}, size_t{1000}, size_t{1007}, size_t{5000}}) {
        std::vector<std::byte> sent(payload);
        sent.resize(1000 + kTrailerBytes);
        std::memcpy(sent.data() + 1000, &value, sizeof value);
        if (changed < sent.size()) sent[changed] ^= std::byte{4};
        ASSERT_EQ(::send(ends.one.get(), sent.data(), sent.size(), 0), static_cast<ssize_t>(sent.size()));
        Incoming incoming;
        Inbox inbox;
        std::vector<std::byte> target(1000);
        incoming.start(1000, true);
        incoming.into().append(target.data(), target.size());
        while (!incoming.done()) {
            ASSERT_EQ(incoming.receive(ends.other.get(), inbox, 0).error, 0);
            incoming.take(inbox);
        }
        EXPECT_EQ(incoming.intact(), changed >= sent.size()) << changed;
    }
}

TEST(TcpStream, DiscardsTheRestOfAPayloadAndKeepsWhatFollows) {
    Ends ends;
    const auto sent = random_bytes(100'000, 3);
    Incoming incoming;
    Inbox inbox;
    std::vector<std::byte> target(50'000);
    incoming.start(50'000, false);
    incoming.into().append(target.data(), target.size());
    ASSERT_EQ(::send(ends.one.get(), sent.data(), 20'000, 0), 20'000);
    ASSERT_EQ(incoming.receive(ends.other.get(), inbox, 0).bytes, 20'000u);
    incoming.discard();
    const std::vector<std::byte> before = target;
    ASSERT_EQ(::send(ends.one.get(), sent.data() + 20'000, 30'100, 0), 30'100);
    while (!incoming.done()) {
        ASSERT_EQ(incoming.receive(ends.other.get(), inbox, 1000).error, 0);
        incoming.take(inbox);
    }
    EXPECT_TRUE(incoming.intact());
    EXPECT_TRUE(target == before);
    ASSERT_EQ(inbox.bytes().size(), 100u);
    EXPECT_EQ(std::memcmp(inbox.bytes().data(), sent.data() + 50'000, 100), 0);
}

TEST(TcpStream, FindsThePieceThatIsNotMappedAndSendsTheOnesBefore) {
    Ends ends;
    void* const hole = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(hole, MAP_FAILED);
    const auto good = random_bytes(100, 4);
    IovList list;
    list.add(good.data(), good.size());
    list.add(hole, 4096);
    const IoResult first = list.send(ends.one.get());
    EXPECT_EQ(first.error, 0);
    EXPECT_EQ(first.bytes, 100u);
    IovList rest;
    rest.add(hole, 4096);
    EXPECT_EQ(rest.send(ends.one.get()).error, EFAULT);
    ::munmap(hole, 4096);
}

TEST(TcpStream, InboxKeepsItsBytesWhenItMakesRoom) {
    Ends ends;
    const auto sent = random_bytes(200'000, 5);
    Inbox inbox;
    std::vector<std::byte> seen;
    std::mt19937_64 random(6);
    for (size_t at = 0; at < sent.size() || !inbox.bytes().empty();) {
        if (at < sent.size()) {
            const size_t now = std::min<size_t>(sent.size() - at, 1 + random() % 9000);
            ASSERT_EQ(::send(ends.one.get(), sent.data() + at, now, 0), static_cast<ssize_t>(now));
            at += now;
            for (size_t got = 0; got < now;) {
                const IoResult result = inbox.receive(ends.other.get(), 20'000);
                ASSERT_EQ(result.error, 0);
                got += result.bytes;
            }
        }
        const size_t take = std::min<size_t>(inbox.bytes().size(), at < sent.size() ? random() % 9000 : 9000);
        seen.insert(seen.end(), inbox.bytes().begin(), inbox.bytes().begin() + static_cast<ptrdiff_t>(take));
        inbox.drop(take);
        if (inbox.bytes().size() > kHeadBytesMax / 2) {
            seen.insert(seen.end(), inbox.bytes().begin(), inbox.bytes().end());
            inbox.drop(inbox.bytes().size());
        }
    }
    EXPECT_TRUE(seen == sent);
}

TEST(TcpStream, ReportsTheEndOfTheStream) {
    Ends ends;
    ends.one.reset();
    Inbox inbox;
    EXPECT_EQ(inbox.receive(ends.other.get(), 100).error, IoResult::kStreamEnd);
}

}  // namespace
}  // namespace mooncake::tcp
