// SPDX-License-Identifier: Apache-2.0
// How long our copies take, beside those of the driver's own calls in the same run.
#include <algorithm>

#include "base/format.h"
#include "race.h"

namespace probe {

using mooncake::CopyPart;
using mooncake::format_text;
using mooncake::MemoryKind;
using mooncake::cuda::CudaDevice;

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr MemoryKind kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;

struct Sides {
    const Application& app;
    CudaDevice& device;
    std::byte *card = nullptr, *other = nullptr, *pinned = nullptr;
    std::vector<std::byte> plain = std::vector<std::byte>(64 * kMiB, std::byte{1});

    void ours(MemoryKind to_kind, std::byte* to, MemoryKind from_kind, const std::byte* from, size_t length) const {
        const CopyPart part{to, from, length};
        (void)device.copy(to_kind, from_kind, {&part, 1});
    }
    void raw(const std::byte* to, const std::byte* from, size_t length) const {
        (void)app.cuda->copy_async(address_of(to), address_of(from), length, app.stream);
        (void)app.stream_synchronize(app.stream);
    }
    void raw_pageable(const std::byte* to, const std::byte* from, size_t length) const {
        (void)app.copy(address_of(to), address_of(from), length);
    }
};

void race_whole(const Sides& s, Race& race) {
    race.row(
        "GPU to pinned, 64 MiB", 64 * kMiB, [&] { s.ours(kHost, s.pinned, kCuda, s.card, 64 * kMiB); },
        [&] { s.raw(s.pinned, s.card, 64 * kMiB); });
    race.row(
        "pinned to GPU, 64 MiB", 64 * kMiB, [&] { s.ours(kCuda, s.card, kHost, s.pinned, 64 * kMiB); },
        [&] { s.raw(s.card, s.pinned, 64 * kMiB); });
    race.row(
        "within the GPU, 256 MiB", 256 * kMiB, [&] { s.ours(kCuda, s.other, kCuda, s.card, 256 * kMiB); },
        [&] { s.raw(s.other, s.card, 256 * kMiB); });
    auto* const plain = const_cast<std::byte*>(s.plain.data());
    race.row(
        "GPU to pageable, 64 MiB, against pageable cuMemcpy", 64 * kMiB, [&] { s.ours(kHost, plain, kCuda, s.card, 64 * kMiB); },
        [&] { s.raw_pageable(plain, s.card, 64 * kMiB); });
    race.row(
        "pageable to GPU, 64 MiB, against pageable cuMemcpy", 64 * kMiB, [&] { s.ours(kCuda, s.card, kHost, plain, 64 * kMiB); },
        [&] { s.raw_pageable(s.card, plain, 64 * kMiB); });
    race.row(
        "GPU to pinned, 64 MiB in calls of 1 MiB, against one", 64 * kMiB,
        [&] {
            for (size_t at = 0; at < 64 * kMiB; at += kMiB) s.ours(kHost, s.pinned + at, kCuda, s.card + at, kMiB);
        },
        [&] { s.raw(s.pinned, s.card, 64 * kMiB); });
    for (const size_t length : {size_t{4096}, size_t{64 << 10}}) {
        race.row(
            format_text("GPU to pinned, {} bytes", length), length, [&] { s.ours(kHost, s.pinned, kCuda, s.card, length); },
            [&] { s.raw(s.pinned, s.card, length); });
        race.row(
            format_text("pinned to GPU, {} bytes", length), length, [&] { s.ours(kCuda, s.card, kHost, s.pinned, length); },
            [&] { s.raw(s.card, s.pinned, length); });
        race.row(
            format_text("GPU to pageable, {} bytes", length), length, [&] { s.ours(kHost, plain, kCuda, s.card, length); },
            [&] { s.raw_pageable(plain, s.card, length); });
    }
}

/// Pieces at every other place of one side, in reverse on the other.
struct Scattered {
    Scattered(const std::byte* to, const std::byte* from, size_t piece, size_t count) {
        for (size_t i = 0; i < count; ++i) {
            auto* const there = const_cast<std::byte*>(to) + (count - 1 - i) * 2 * piece;
            const std::byte* const here = from + i * 2 * piece;
            parts.push_back({there, here, piece});
            targets.push_back(address_of(there));
            sources.push_back(address_of(here));
            lengths.push_back(piece);
        }
    }
    std::vector<CopyPart> parts;
    std::vector<uint64_t> targets, sources;
    std::vector<size_t> lengths;
};

void race_scattered(const Sides& s, Race& race, RawKernel& kernel) {
    struct Case {
        const char* name;
        MemoryKind to_kind, from_kind;
        const std::byte *to, *from;
    };
    const std::byte* const plain = s.plain.data();
    const Case cases[] = {{"GPU to pinned", kHost, kCuda, s.pinned, s.card},
                          {"pinned to GPU", kCuda, kHost, s.card, s.pinned},
                          {"within the GPU", kCuda, kCuda, s.other, s.card},
                          {"GPU to pageable", kHost, kCuda, plain, s.card},
                          {"pageable to GPU", kCuda, kHost, s.card, plain}};
    for (const auto& [piece, count] : {std::pair<size_t, size_t>{64 << 10, 128}, {4096, 1024}, {512, 8192}})
        for (const Case& one : cases) {
            Scattered work(one.to, one.from, piece, count);
            const auto ours = [&] { (void)s.device.copy(one.to_kind, one.from_kind, work.parts); };
            const std::string name = format_text("{}, {} scattered pieces of {} bytes", one.name, count, piece);
            const auto loop = [&] {
                for (size_t i = 0; i < count; ++i) (void)s.app.cuda->copy_async(work.targets[i], work.sources[i], piece, s.app.stream);
                (void)s.app.stream_synchronize(s.app.stream);
            };
            race.row(name + ", against a loop", piece * count, ours, loop);
            if (kernel.usable() && one.to != plain && one.from != plain) {
                kernel.set(work.parts);
                for (const uint32_t blocks : {16u, 32u, 64u})
                    race.row(format_text("{}, against a kernel of {} blocks", name, blocks), piece * count, ours,
                             [&] { kernel.run(blocks); });
            }
            if (s.app.cuda->copy_batch == nullptr || one.to == plain || one.from == plain) continue;
            abi::CopyAttributes attributes{.source_order = abi::kSourceOrderStream};
            size_t first = 0;
            race.row(name + ", against a batch", piece * count, ours, [&] {
                (void)s.app.cuda->copy_batch(work.targets.data(), work.sources.data(), work.lengths.data(), count, &attributes, &first, 1,
                                             s.app.stream);
                (void)s.app.stream_synchronize(s.app.stream);
            });
        }
}

}  // namespace

void probe_times(const Application& app, CudaDevice& device, Table& table) {
    table.title("times: medians, in turn; a ratio above 1: ours is faster");
    Sides sides{.app = app, .device = device};
    sides.card = app.must_allocate(256 * kMiB);
    sides.other = app.must_allocate(256 * kMiB);
    (void)device.describe(sides.card, 256 * kMiB);
    (void)device.describe(sides.other, 256 * kMiB);
    void* memory = nullptr;
    (void)app.cuda->host_allocate(&memory, 64 * kMiB, abi::kHostPortable);
    sides.pinned = static_cast<std::byte*>(memory);
    std::fill_n(sides.pinned, 64 * kMiB, std::byte{2});
    Race race(table, 31);
    race_whole(sides, race);
    RawKernel kernel(app);
    table.tell("the kernel, compiled", kernel.load());
    race_scattered(sides, race, kernel);
    (void)app.cuda->host_free(memory);
    (void)app.free(address_of(sides.card));
    (void)app.free(address_of(sides.other));
}

}  // namespace probe
