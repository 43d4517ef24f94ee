// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs over tcp, between two processes of one host: whether every byte is right, and how fast it is beside host memory in the same run.
#include <iostream>
#include <sstream>

#include "../cuda_probe/race.h"
#include "pair.h"

namespace pair {

namespace {

using mooncake::Direction;
using mooncake::format_text;
using mooncake::MemoryRegion;
using mooncake::Slice;
using probe::address_of;

constexpr size_t kMiB = 1 << 20;

/// The other process: its GPU's memory, and its host's, both of kBytes.
class TcpOther {
public:
    TcpOther(Side& side, const std::string& library) : child_("lend-tcp", library) {
        std::istringstream in(child_.hear());
        std::string incarnation, endpoint;
        in >> incarnation >> card_ >> host_ >> std::ws;
        std::getline(in, endpoint);
        peer_ = side.connect(incarnation, endpoint);
    }

    mooncake::Result<uint64_t> move(Direction direction, const MemoryRegion& local, bool card, uint64_t local_offset,
                                    uint64_t remote_offset, uint64_t length) {
        return pair::move(peer_.get(), direction,
                          {{.local = local.address + local_offset,
                            .remote = (card ? card_ : host_) + remote_offset,
                            .length = length,
                            .region = &local}});
    }
    /// Blocks of one length that lie apart, in reverse on the other side.
    mooncake::Result<uint64_t> blocks(Direction direction, const MemoryRegion& local, bool card, size_t block, size_t count) {
        std::vector<Slice> slices;
        for (size_t i = 0; i < count; ++i)
            slices.push_back({.local = local.address + i * 2 * block,
                              .remote = (card ? card_ : host_) + (count - 1 - i) * 2 * block,
                              .length = block,
                              .region = &local});
        return pair::move(peer_.get(), direction, std::move(slices));
    }

private:
    Child child_;
    uint64_t card_ = 0, host_ = 0;
    std::unique_ptr<mooncake::Peer> peer_;
};

struct TcpOurs {
    explicit TcpOurs(Side& side) : card(side.add(side.app.must_allocate(kBytes), kBytes)), host(side.add_host(memory.data(), kBytes)) {}
    std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
    const MemoryRegion *card, *host;
};

struct Ends {
    const char* name;
    bool here, there;  // memory of a GPU
};
constexpr Ends kEnds[] = {
    {"our GPU and their host", true, false}, {"our host and their GPU", false, true}, {"our GPU and theirs", true, true}};

void check_bytes(Side& side, const TcpOurs& ours, TcpOther& other, size_t longest, probe::Table& table) {
    table.title("bytes over tcp");
    const auto noise = probe::noise(longest, 7);
    const std::vector<std::byte> zeros(longest);
    for (const Ends& ends : kEnds) {
        const MemoryRegion& local = ends.here ? *ours.card : *ours.host;
        for (const size_t length : {size_t{1}, size_t{4097}, 3 * kMiB + 5, longest - 64}) {
            side.put(local, noise);
            const auto there = other.move(Direction::kWrite, local, ends.there, 3, 7, length);
            side.put(local, zeros);
            const auto back = other.move(Direction::kRead, local, ends.there, 11, 7, length);
            const auto got = side.get(local, longest);
            const bool equal = std::equal(got.begin() + 11, got.begin() + 11 + static_cast<ptrdiff_t>(length), noise.begin() + 3);
            table.expect(format_text("{}, {} bytes there and back", ends.name, length), there && back && equal,
                         there ? back ? "" : back.error().to_string() : there.error().to_string());
        }
        for (const auto& [block, count] : {std::pair<size_t, size_t>{64 << 10, 128}, {4096, 1024}, {500, 8192}}) {
            side.put(local, noise);
            const auto there = other.blocks(Direction::kWrite, local, ends.there, block, count);
            side.put(local, zeros);
            const auto back = other.blocks(Direction::kRead, local, ends.there, block, count);
            const auto got = side.get(local, 2 * block * count);
            bool equal = there && back;
            for (size_t i = 0; i < count && equal; ++i)
                equal = std::equal(noise.begin() + static_cast<ptrdiff_t>(2 * i * block),
                                   noise.begin() + static_cast<ptrdiff_t>(2 * i * block + block),
                                   got.begin() + static_cast<ptrdiff_t>(2 * i * block));
            table.expect(format_text("{}, {} blocks of {} bytes there and back", ends.name, count, block), equal,
                         there ? back ? "" : back.error().to_string() : there.error().to_string());
        }
    }
}

void race(const TcpOurs& ours, TcpOther& other, probe::Table& table) {
    table.title("times over tcp, loopback: medians, in turn; the second column is host memory at both ends");
    probe::Race race(table, 15);
    for (const Ends& ends : kEnds)
        for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
            const MemoryRegion& local = ends.here ? *ours.card : *ours.host;
            const char* const verb = direction == Direction::kWrite ? "write" : "read";
            for (const size_t length : {kBytes, kMiB, size_t{64 << 10}, size_t{4096}})
                race.row(
                    format_text("{}, {} {} bytes", ends.name, verb, length), length,
                    [&] { (void)other.move(direction, local, ends.there, 0, 0, length); },
                    [&] { (void)other.move(direction, *ours.host, false, 0, 0, length); });
            for (const auto& [block, count] : {std::pair<size_t, size_t>{kMiB, 64}, {64 << 10, 512}, {4096, 4096}})
                race.row(
                    format_text("{}, {} {} blocks of {} bytes", ends.name, verb, count, block), block * count,
                    [&] { (void)other.blocks(direction, local, ends.there, block, count); },
                    [&] { (void)other.blocks(direction, *ours.host, false, block, count); });
        }
}

}  // namespace

void check_tcp(const std::string& library, bool times, probe::Table& table) {
    Side side(library, "tcp");
    if (!side.ready) return table.expect("a side for tcp", false);
    const TcpOurs ours(side);
    {
        TcpOther other(side, library);
        check_bytes(side, ours, other, times ? kBytes : 24 * kMiB, table);
        if (times) race(ours, other, table);
    }
    std::byte* const card = ours.card->address;
    side.remove_all();
    (void)side.app.free(address_of(card));
}

int lend_over_tcp(const std::string& library) {
    Side side(library, "tcp");
    if (!side.ready) return 2;
    const MemoryRegion* const card = side.add(side.app.must_allocate(kBytes), kBytes);
    std::vector<std::byte> memory(kBytes);
    const MemoryRegion* const host = side.add_host(memory.data(), kBytes);
    std::cout << side.incarnation.to_string() << ' ' << address_of(card->address) << ' ' << address_of(host->address) << ' '
              << side.transport->endpoint() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {}
    return 0;
}

}  // namespace pair
