// SPDX-License-Identifier: Apache-2.0
// cuda_pair [path of libcuda.so.1 [notimes]]: memory of a GPU between two processes, over the transport of one host: whether every byte is right, what
// taking memory back, killing either side and freeing do, and how fast it is beside the driver's own calls; and the same over tcp, beside host memory.
// Ends with 1 if something was wrong. "cuda_pair lend PATH", "cuda_pair lend-tcp PATH" and "cuda_pair write PATH" are its other process.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>

#include "../cuda_probe/race.h"
#include "pair.h"

namespace pair {

namespace {

using mooncake::Code;
using mooncake::CopyPart;
using mooncake::Direction;
using mooncake::format_text;
using mooncake::Result;
using probe::address_of;

struct Ours {
    explicit Ours(Side& side) : card(side.add(side.app.must_allocate(kBytes), kBytes)) {
        void* memory = nullptr;
        (void)side.app.cuda->host_allocate(&memory, kHostBytes, probe::abi::kHostPortable);
        pinned = side.add_host(static_cast<std::byte*>(memory), kHostBytes);
        plain = side.add_host(pageable.data(), pageable.size());
    }
    std::vector<std::byte> pageable = std::vector<std::byte>(kHostBytes);
    const mooncake::MemoryRegion *card, *pinned = nullptr, *plain = nullptr;
};

void check_bytes(Side& side, const Ours& ours, Other& other, probe::Table& table) {
    table.title("bytes between two processes");
    const auto noise = probe::noise(kHostBytes, 5);
    for (const size_t length : {size_t{1}, size_t{4097}, size_t{3 << 20} + 5, kHostBytes - 64})
        for (const mooncake::MemoryRegion* const local : {ours.card, ours.pinned, ours.plain}) {
            side.put(*local, noise);
            const auto there = other.move(side, Direction::kWrite, *local, 3, 7, length);
            side.put(*local, std::vector<std::byte>(kHostBytes));
            const auto back = other.move(side, Direction::kRead, *local, 11, 7, length);
            const auto got = side.get(*local, kHostBytes);
            const bool equal = std::equal(got.begin() + 11, got.begin() + 11 + static_cast<ptrdiff_t>(length), noise.begin() + 3);
            table.expect(format_text("{} bytes from {} to their GPU and back", length,
                                     local == ours.card     ? "our GPU"
                                     : local == ours.pinned ? "pinned memory"
                                                            : "pageable memory"),
                         there && back && equal, there ? back ? "" : back.error().to_string() : there.error().to_string());
        }
    for (const auto& [piece, count] : {std::pair<size_t, size_t>{64 << 10, 128}, {4096, 1024}, {500, 8192}}) {
        side.put(*ours.card, noise);
        const size_t apart = std::min<size_t>(2 * piece, kHostBytes / count);
        const auto there = other.scatter(side, Direction::kWrite, *ours.card, piece, apart, count);
        const auto whole = other.move(side, Direction::kRead, *ours.plain, 0, 0, kHostBytes);
        bool equal = there && whole;
        for (size_t i = 0; i < count && equal; ++i)
            equal = std::equal(noise.begin() + static_cast<ptrdiff_t>(i * apart), noise.begin() + static_cast<ptrdiff_t>(i * apart + piece),
                               ours.pageable.begin() + static_cast<ptrdiff_t>((count - 1 - i) * apart));
        table.expect(format_text("{} scattered pieces of {} bytes between the GPUs", count, piece), equal,
                     there ? "" : there.error().to_string());
    }
}

void race(Side& side, const Ours& ours, Other& other, probe::Table& table) {
    table.title("times between two processes: medians, in turn; a ratio above 1: ours is faster");
    probe::Race race(table, 31);
    uint64_t mapped = 0;
    const probe::Status opened = side.app.cuda->ipc_open(&mapped, other.handle(), probe::abi::kIpcLazyPeerAccess);
    if (opened != probe::abi::kSuccess) return table.tell("raw handle", side.app.name_of(opened));
    auto* const theirs = reinterpret_cast<std::byte*>(mapped);
    const auto raw = [&](const std::byte* to, const std::byte* from, size_t length) {
        (void)side.app.cuda->copy_async(address_of(to), address_of(from), length, side.app.stream);
        (void)side.app.stream_synchronize(side.app.stream);
    };
    const std::byte* const card = ours.card->address;
    for (const size_t length : {kBytes, size_t{16 << 20}, size_t{1 << 20}, size_t{64 << 10}, size_t{4096}}) {
        race.row(
            format_text("our GPU to theirs, {} bytes, against a raw IPC copy", length), length,
            [&] { (void)other.move(side, Direction::kWrite, *ours.card, 0, 0, length); }, [&] { raw(theirs, card, length); });
        race.row(
            format_text("their GPU to ours, {} bytes, against a raw IPC copy", length), length,
            [&] { (void)other.move(side, Direction::kRead, *ours.card, 0, 0, length); }, [&] { raw(card, theirs, length); });
    }
    for (const size_t length : {kHostBytes, size_t{4096}})
        for (const bool write : {true, false})
            race.row(
                format_text("{}, {} bytes, against a raw IPC copy", write ? "pinned to their GPU" : "their GPU to pinned", length), length,
                [&] { (void)other.move(side, write ? Direction::kWrite : Direction::kRead, *ours.pinned, 0, 0, length); },
                [&] { write ? raw(theirs, ours.pinned->address, length) : raw(ours.pinned->address, theirs, length); });
    probe::RawKernel kernel(side.app);
    for (const auto& [piece, count] : {std::pair<size_t, size_t>{64 << 10, 128}, {4096, 1024}, {512, 8192}}) {
        std::vector<CopyPart> parts;
        for (size_t i = 0; i < count; ++i) parts.push_back({theirs + (count - 1 - i) * 2 * piece, card + i * 2 * piece, piece});
        const std::string name = format_text("our GPU to theirs, {} scattered pieces of {} bytes", count, piece);
        const auto mine = [&] { (void)other.scatter(side, Direction::kWrite, *ours.card, piece, 2 * piece, count); };
        race.row(name + ", against a loop", piece * count, mine, [&] {
            for (const CopyPart& part : parts)
                (void)side.app.cuda->copy_async(address_of(part.to), address_of(part.from), part.length, side.app.stream);
            (void)side.app.stream_synchronize(side.app.stream);
        });
        if (!kernel.usable()) continue;
        kernel.set(parts);
        race.row(name + ", against a kernel of 32 blocks", piece * count, mine, [&] { kernel.run(32); });
    }
    (void)side.app.cuda->ipc_close(mapped);
}

void check_taking_back(Side& side, const Ours& ours, Other& other, probe::Table& table) {
    table.title("taking back");
    std::string answer;
    const double time = probe::seconds_of([&] { answer = other.ask("remove"); });
    table.expect("they unregister their memory, and we close it", answer == "removed", format_text("{}, {:.2f} ms", answer, time * 1e3));
    const auto refused = other.move(side, Direction::kRead, *ours.card, 0, 0, 100);
    table.expect("then it is not registered", !refused && refused.error().code() == Code::kNotRegistered,
                 refused ? "copied" : refused.error().to_string());
    table.expect("they free it and allocate anew", other.ask("renew") == "renewed");
    const auto again = other.move(side, Direction::kWrite, *ours.card, 0, 0, 1 << 20);
    table.expect("which we reach", again.has_value(), again ? "" : again.error().to_string());
}

void check_chunks(Side& side, const Ours& ours, const std::string& library, probe::Table& table) {
    table.title("memory mapped in chunks");
    constexpr size_t kChunk = probe::Application::kChunk, kPiece = 64;
    Other other(side, library);
    table.expect("they map and register chunks", other.ask("chunks") == "renewed");
    const auto noise = probe::noise(kHostBytes, 6);
    std::vector<mooncake::Slice> pieces;
    for (size_t i = 0; i < kChunks; ++i)
        pieces.push_back({.local = ours.card->address + i * kPiece, .remote = i * kChunk, .length = kPiece, .region = ours.card});
    side.put(*ours.card, noise);
    Result<uint64_t> first(uint64_t{0});
    const double time = probe::seconds_of([&] { first = other.move(Direction::kWrite, pieces); });
    table.expect(format_text("the first transfer opens {}", kChunks), first.has_value(),
                 first ? format_text("{:.1f} ms", time * 1e3) : first.error().to_string());
    const auto there = other.move(side, Direction::kWrite, *ours.card, 3, kChunk - 7, kHostBytes - 64);
    side.put(*ours.card, std::vector<std::byte>(kHostBytes));
    const auto back = other.move(side, Direction::kRead, *ours.card, 3, kChunk - 7, kHostBytes - 64);
    const auto got = side.get(*ours.card, kHostBytes);
    table.expect("bytes across chunks, there and back", there && back && std::equal(got.begin() + 3, got.end() - 61, noise.begin() + 3),
                 there ? back ? "" : back.error().to_string() : there.error().to_string());
    table.tell("they unmap a chunk that is registered", other.ask("unmap"));
    Result<uint64_t> refused(uint64_t{0});
    const double until = probe::seconds_of([&] {
        for (const auto end = mooncake::Deadline::after(std::chrono::seconds(10)); refused && !end.passed();)
            refused = other.move(side, Direction::kWrite, *ours.card, 0, 0, 64);
    });
    table.expect("which becomes an error here", !refused && refused.error().code() == Code::kNotRegistered,
                 format_text("{} after {:.0f} ms", refused ? "none" : refused.error().to_string(), until * 1e3));
    table.expect("they unregister the rest", other.ask("remove") == "removed");
}

void check_owner_killed(Side& side, const Ours& ours, const std::string& library, probe::Table& table) {
    table.title("kills");
    for (int round = 0; round < 3; ++round) {
        Other other(side, library);
        std::string how;
        if (round != 0) (void)other.move(side, Direction::kRead, *ours.card, 0, 0, 1);
        std::jthread user([&] {
            while (true)
                if (const auto moved = other.move(side, Direction::kWrite, *ours.card, 0, 0, kBytes / 4); !moved) {
                    how = moved.error().to_string();
                    return;
                }
        });
        other.kill();
        user.join();
        table.expect("the owner of the memory is killed while we write to it", how.starts_with("unavailable"), how);
    }
    const auto noise = probe::noise(1 << 20, 9);
    side.put(*ours.card, noise);
    table.expect("our GPU is well", side.get(*ours.card, noise.size()) == noise);
}

void check_writer_killed(Side& side, const Ours& ours, const std::string& library, probe::Table& table) {
    bool quiet = true, fenced = true;
    std::byte* const memory = side.app.must_allocate(kBytes / 4);
    for (int round = 0; round < 5; ++round) {
        const mooncake::MemoryRegion* const region = side.add(memory, kBytes / 4);
        Child writer("write", library);
        writer.send(side.offer(*region));
        if (writer.hear() != "writing") table.expect("a writer begins", false);
        if (round != 0) writer.kill();
        fenced = side.remove(region).has_value() && fenced;
        const auto poison = probe::noise(kBytes / 4, static_cast<uint32_t>(round));
        side.app.write(memory, poison);
        writer.kill();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for bytes that come too late
        quiet = side.app.read(memory, kBytes / 4) == poison && quiet;
    }
    table.expect("five writers are killed, or not, and fenced", fenced);
    table.expect("no byte lands behind the fence", quiet);
    (void)side.app.free(address_of(memory));
    (void)ours;
}

}  // namespace

int run(const std::string& library, bool times) {
    Side side(library);
    if (!side.ready) return 2;
    probe::Table table;
    size_t free_before = 0, free_after = 0, total = 0;
    (void)side.app.memory_info(&free_before, &total);
    {
        const Ours ours(side);
        {
            Other other(side, library);
            check_bytes(side, ours, other, table);
            if (times) race(side, ours, other, table);
            check_taking_back(side, ours, other, table);
        }
        check_chunks(side, ours, library, table);
        check_owner_killed(side, ours, library, table);
        check_writer_killed(side, ours, library, table);
        std::byte* const card = ours.card->address;
        side.remove_all();
        (void)side.app.free(address_of(card));
    }
    check_tcp(library, times, table);
    (void)side.app.memory_info(&free_after, &total);
    table.title("end");
    table.tell("GPU memory taken meanwhile",
               format_text("{} MiB", (static_cast<int64_t>(free_before) - static_cast<int64_t>(free_after)) >> 20));
    std::printf("%d wrong\n", table.wrong());
    return table.wrong() == 0 ? 0 : 1;
}

}  // namespace pair

int main(int count, char** arguments) {
    std::signal(SIGPIPE, SIG_IGN);
    const std::string first = count > 1 ? arguments[1] : "libcuda.so.1";
    if (first == "lend") return pair::lend(arguments[2]);
    if (first == "lend-tcp") return pair::lend_over_tcp(arguments[2]);
    if (first == "write") return pair::write(arguments[2]);
    return pair::run(first, count < 3);
}
