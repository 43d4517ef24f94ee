// SPDX-License-Identifier: Apache-2.0
// What memory is, and whether its bytes arrive.
#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "base/format.h"
#include "probe.h"

namespace probe {

using mooncake::CopyPart;
using mooncake::format_text;
using mooncake::MemoryInfo;
using mooncake::MemoryKind;
using mooncake::cuda::CudaDevice;

void probe_machine(const Application& app, Table& table) {
    table.title("machine");
    int version = 0, count = 0;
    if (app.cuda->get_driver_version != nullptr) (void)app.cuda->get_driver_version(&version);
    (void)app.cuda->get_device_count(&count);
    table.tell("driver, GPUs", format_text("{} {}", version, count));
    for (int i = 0; i < count; ++i) {
        char bus[32] = {};
        if (app.cuda->get_device_bus_id != nullptr) (void)app.cuda->get_device_bus_id(bus, sizeof bus, i);
        std::string text = bus;
        for (const int attribute : {16, 40, 41, 75, 76, 88, 91, 102, 103, 110, 118, 122, 124, 125, 128, 134}) {
            int value = 0;
            (void)app.cuda->get_device_attribute(&value, attribute, i);
            text += format_text(" {}={}", attribute, value);
        }
        table.tell(format_text("GPU {}", i), text);
    }
    const auto there = [](const void* function) { return function != nullptr ? "yes" : "no"; };
    table.tell(
        "batch of 13.0, of 12.8, capture query, IPC, VMM",
        format_text("{} {} {} {} {}", there(reinterpret_cast<const void*>(app.cuda->copy_batch)),
                    there(reinterpret_cast<const void*>(app.cuda->copy_batch_old)),
                    there(reinterpret_cast<const void*>(app.cuda->stream_is_capturing)),
                    there(reinterpret_cast<const void*>(app.cuda->ipc_open)), there(reinterpret_cast<const void*>(app.cuda->vmm_create))));
}

namespace {

std::string text_of(const mooncake::Result<std::optional<MemoryInfo>>& info) {
    if (!info) return info.error().to_string();
    if (!*info) return "not of a GPU";
    return format_text("GPU {} base {:#x} length {} id {}", (*info)->device, (*info)->base, (*info)->length, (*info)->allocation);
}

/// The raw answers about one address.
std::string attributes_of(const Application& app, const void* address) {
    std::string text;
    for (const int attribute : {2, 7, 8, 9, 10, 11, 12, 13, 14, 17}) {
        uint64_t value = 0;
        void* data = &value;
        int asked = attribute;
        const Status status = app.cuda->get_pointer_attributes(1, &asked, &data, address_of(address));
        text += status == abi::kSuccess ? format_text(" {}={:#x}", attribute, value) : format_text(" {}:{}", attribute, status);
    }
    return text;
}

void describe_chunks(const Application& app, CudaDevice& device, Table& table) {
    constexpr size_t kChunk = Application::kChunk;
    std::byte* const memory = app.reserve(5, {0, 1, 2, 4});
    const auto three = device.describe(memory + 100, 3 * kChunk - 100);
    table.expect("three mapped chunks of one reservation are one memory",
                 three && *three && (*three)->length == 3 * kChunk && (*three)->base == address_of(memory), text_of(three));
    const auto hole = device.describe(memory, 5 * kChunk);
    table.expect("a hole between chunks is refused", !hole, text_of(hole));
    const auto inside = device.describe(memory + 3 * kChunk, 10);
    table.expect("the hole itself is nobody's", inside && !*inside, text_of(inside));
    for (const size_t chunk : {0, 1, 3})
        table.tell(format_text("raw attributes of chunk {}", chunk), attributes_of(app, memory + chunk * kChunk + 5));
    std::byte* const other = app.reserve(1, {0});
    table.tell("raw attributes of another reservation", attributes_of(app, other));
    app.release(other, 1, {0});
    app.release(memory, 5, {0, 1, 2, 4});
}

}  // namespace

void probe_memory(const Application& app, CudaDevice& device, Table& table) {
    table.title("what memory is");
    constexpr size_t kBytes = 8 << 20;
    std::byte* const card = app.must_allocate(kBytes);
    const auto whole = device.describe(card, kBytes), part = device.describe(card + 4097, 77);
    table.expect("cudaMalloc", whole && *whole && (*whole)->base == address_of(card) && (*whole)->length >= kBytes, text_of(whole));
    table.expect("a part of it", part && *part && whole && *whole && (*part)->allocation == (*whole)->allocation, text_of(part));
    const auto beyond = device.describe(card, size_t{1} << 44);
    table.expect("a range far beyond it is refused", !beyond, text_of(beyond));
    table.tell("raw attributes of cudaMalloc + 4097", attributes_of(app, card + 4097));
    describe_chunks(app, device, table);

    abi::DevicePointer pool = 0, managed = 0;
    if (app.allocate_async(&pool, kBytes, app.stream) == abi::kSuccess) {
        (void)app.stream_synchronize(app.stream);
        const auto info = device.describe(reinterpret_cast<void*>(pool + 5), 100);
        table.expect("cudaMallocAsync", info && *info, text_of(info));
        table.tell("raw attributes", attributes_of(app, reinterpret_cast<void*>(pool)));
        (void)app.free_async(pool, app.stream);
        (void)app.stream_synchronize(app.stream);
    }
    if (app.allocate_managed(&managed, kBytes, 1) == abi::kSuccess) {
        const auto info = device.describe(reinterpret_cast<void*>(managed + 5), 100);
        table.expect("managed", info && *info, text_of(info));
        table.tell("raw attributes", attributes_of(app, reinterpret_cast<void*>(managed)));
        (void)app.free(managed);
    }
    void* pinned = nullptr;
    (void)app.cuda->host_allocate(&pinned, kBytes, abi::kHostPortable);
    std::vector<std::byte> plain(kBytes);
    (void)app.host_register(plain.data(), plain.size(), 0);
    for (const auto& [name, address] :
         {std::pair<const char*, void*>{"cudaHostAlloc", pinned}, {"cudaHostRegister", plain.data()}, {"pageable", &plain}}) {
        const auto info = device.describe(static_cast<std::byte*>(address) + 4, 4);
        table.expect(format_text("{} is left to the host", name), info && !*info, text_of(info));
        table.tell("raw attributes in the middle", attributes_of(app, static_cast<std::byte*>(address) + 4));
    }
    (void)app.host_unregister(plain.data());
    (void)app.cuda->host_free(pinned);
    (void)app.free(address_of(card));
    const auto freed = device.describe(card, kBytes);
    table.expect("freed memory is nobody's", freed && !*freed, text_of(freed));
}

// ---- copies

namespace {

constexpr MemoryKind kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;

mooncake::Result<> copy_one(CudaDevice& device, MemoryKind to_kind, std::byte* to, MemoryKind from_kind, const std::byte* from,
                            size_t length) {
    const CopyPart part{to, from, length};
    return device.copy(to_kind, from_kind, {&part, 1});
}

struct Memories {
    static constexpr size_t kBytes = 80 << 20;
    const Application& app;
    std::byte* const card = app.must_allocate(kBytes);
    std::byte* const other = app.must_allocate(kBytes);
    std::byte* pinned = nullptr;
    std::vector<std::byte> plain = std::vector<std::byte>(kBytes);
    const std::vector<std::byte> from = noise(kBytes, 1);

    explicit Memories(const Application& application) : app(application) {
        void* memory = nullptr;
        (void)app.cuda->host_allocate(&memory, kBytes, abi::kHostPortable);
        pinned = static_cast<std::byte*>(memory);
    }
    ~Memories() {
        (void)app.cuda->host_free(pinned);
        (void)app.free(address_of(card));
        (void)app.free(address_of(other));
    }
};

void copy_lengths(CudaDevice& device, Memories& m, Table& table) {
    for (const size_t length : {size_t{1}, size_t{4097}, size_t{2 << 20}, size_t{5 << 20} + 3, Memories::kBytes - 64})
        for (std::byte* const host : {m.plain.data(), m.pinned}) {
            std::copy_n(m.from.begin(), length, host + 1);
            const bool there = copy_one(device, kCuda, m.card + 3, kHost, host + 1, length).has_value();
            const bool across = copy_one(device, kCuda, m.other + 5, kCuda, m.card + 3, length).has_value();
            std::fill_n(host, length + 32, std::byte{0});
            const bool back = copy_one(device, kHost, host + 7, kCuda, m.other + 5, length).has_value();
            const bool equal = std::equal(m.from.begin(), m.from.begin() + static_cast<ptrdiff_t>(length), host + 7) &&
                               host[6] == std::byte{0} && host[7 + length] == std::byte{0};
            table.expect(format_text("{} bytes, {} host memory, there, across and back", length, host == m.pinned ? "pinned" : "pageable"),
                         there && across && back && equal, format_text("{} {} {} {}", there, across, back, equal));
        }
}

/// Pieces of every length and alignment from one memory of the GPU to another: by the kernel, where there is one.
void copy_pieces_within(CudaDevice& device, const Memories& m, Table& table) {
    constexpr size_t kApart = 9000, kCount = 7000, kBytes = kApart * kCount;
    static_assert(kBytes <= Memories::kBytes);
    const std::vector<std::byte> zeros(kBytes);
    bool well = copy_one(device, kCuda, m.card, kHost, m.from.data(), kBytes) &&
                copy_one(device, kCuda, m.other, kHost, zeros.data(), kBytes);
    std::vector<CopyPart> parts;
    auto expected = zeros;
    for (size_t i = 0; i < kCount; ++i) {
        const size_t there = (kCount - 1 - i) * kApart + i % 17, here = i * kApart + i % 13, length = 1 + i * 37 % 8900;
        parts.push_back({m.other + there, m.card + here, length});
        std::copy_n(m.from.begin() + static_cast<ptrdiff_t>(here), length, expected.begin() + static_cast<ptrdiff_t>(there));
    }
    well = well && device.copy(kCuda, kCuda, parts).has_value();
    std::vector<std::byte> back(kBytes);
    well = well && copy_one(device, kHost, back.data(), kCuda, m.other, kBytes) && back == expected;
    table.expect("7,000 scattered parts of every length and alignment within the GPU", well);
}

void copy_scattered(CudaDevice& device, Memories& m, Table& table) {
    constexpr size_t kPiece = 512, kApart = 700, kCount = 100'000;
    static_assert(kApart * kCount <= Memories::kBytes);
    for (std::byte* const host : {m.plain.data(), m.pinned}) {
        std::copy(m.from.begin(), m.from.end(), host);
        std::vector<CopyPart> there, back;
        for (size_t i = 0; i < kCount; ++i) {
            there.push_back({m.card + (kCount - 1 - i) * kApart, host + i * kApart, kPiece});
            back.push_back({host + i * kApart, m.card + (kCount - 1 - i) * kApart, kPiece});
        }
        bool well = true;
        const double to = seconds_of([&] { well = device.copy(kCuda, kHost, there).has_value() && well; });
        std::fill_n(host, Memories::kBytes, std::byte{0});
        const double from = seconds_of([&] { well = device.copy(kHost, kCuda, back).has_value() && well; });
        for (size_t i = 0; i < kCount; ++i)
            well = well && std::equal(host + i * kApart, host + i * kApart + kPiece, m.from.begin() + static_cast<ptrdiff_t>(i * kApart));
        table.expect(format_text("100,000 scattered parts of 512 bytes, {} host memory", host == m.pinned ? "pinned" : "pageable"), well,
                     format_text("{:.1f} ms to, {:.1f} ms from the GPU", to * 1e3, from * 1e3));
    }
}

void copy_odd_memory(const Application& app, CudaDevice& device, Memories& m, Table& table) {
    constexpr size_t kBytes = 6 << 20;
    std::byte* const chunks = app.reserve(4, {0, 1, 2});
    std::vector<std::byte> back(kBytes);
    (void)device.describe(chunks, kBytes);
    bool well = copy_one(device, kCuda, chunks, kHost, m.from.data(), kBytes) &&
                copy_one(device, kHost, back.data(), kCuda, chunks, kBytes);
    table.expect("across the chunks of a reservation", well && std::equal(back.begin(), back.end(), m.from.begin()));
    const auto hole = copy_one(device, kHost, back.data(), kCuda, chunks + 100, kBytes);
    table.expect("beyond them is an error", !hole, hole ? "" : hole.error().to_string());
    app.release(chunks, 4, {0, 1, 2});

    (void)app.host_register(m.plain.data(), kBytes / 2, 0);
    std::copy_n(m.from.begin(), kBytes, m.plain.begin());
    well = copy_one(device, kCuda, m.card, kHost, m.plain.data(), kBytes).has_value();
    std::fill_n(m.plain.begin(), kBytes, std::byte{0});
    well = well && copy_one(device, kHost, m.plain.data(), kCuda, m.card, kBytes);
    table.expect("host memory that is pinned in part", well && std::equal(m.plain.begin(), m.plain.begin() + kBytes, m.from.begin()));
    (void)app.host_unregister(m.plain.data());

    for (const bool managed : {true, false}) {
        abi::DevicePointer memory = 0;
        const Status status = managed ? app.allocate_managed(&memory, kBytes, 1) : app.allocate_async(&memory, kBytes, app.stream);
        (void)app.stream_synchronize(app.stream);
        auto* const bytes = reinterpret_cast<std::byte*>(memory);
        if (status == abi::kSuccess) (void)device.describe(bytes, kBytes);
        std::fill(back.begin(), back.end(), std::byte{0});
        well = status == abi::kSuccess && copy_one(device, kCuda, bytes, kHost, m.from.data(), kBytes) &&
               copy_one(device, kHost, back.data(), kCuda, bytes, kBytes) && back == std::vector(m.from.begin(), m.from.begin() + kBytes);
        table.expect(managed ? "managed memory" : "memory of a pool", well);
        if (managed) (void)app.free(memory);
        else (void)app.free_async(memory, app.stream);
        (void)app.stream_synchronize(app.stream);
    }
}

void copy_freed(const Application& app, CudaDevice& device, Memories& m, Table& table) {
    std::byte* const gone = app.must_allocate(4 << 20);
    (void)device.describe(gone, 4 << 20);
    (void)app.free(address_of(gone));
    const auto read = copy_one(device, kHost, m.plain.data(), kCuda, gone, 4096);
    table.expect("reading freed memory is an error", !read, read ? "" : read.error().to_string());
    const auto write = copy_one(device, kCuda, gone, kHost, m.plain.data(), 4096);
    table.expect("writing freed memory is an error", !write, write ? "" : write.error().to_string());
    table.expect("and the GPU is well", copy_one(device, kHost, m.plain.data(), kCuda, m.card, 4096).has_value());
    std::byte* const again = app.must_allocate(4 << 20);
    const auto reused = copy_one(device, kHost, m.plain.data(), kCuda, again, 4096);
    if (again == gone) table.expect("the same address, allocated again, is refused", !reused, reused ? "" : reused.error().to_string());
    else table.tell("the address was not given again", "");
    (void)app.free(address_of(again));
}

void copy_behind_the_default_stream(const Application& app, CudaDevice& device, Memories& m, Table& table) {
    app.write(m.card, m.from);
    int wrong = 0;
    for (int round = 0; round < 20; ++round) {
        app.write(m.other, std::vector<std::byte>(Memories::kBytes));
        // Long work on the default stream, the last of which is what a reader must see.
        for (int i = 0; i < 50; ++i)
            (void)app.cuda->copy_async(address_of(m.other), address_of(m.card), Memories::kBytes, abi::legacy_stream());
        if (!copy_one(device, kHost, m.pinned, kCuda, m.other + Memories::kBytes - 4096, 4096) ||
            !std::equal(m.pinned, m.pinned + 4096, m.from.end() - 4096))
            ++wrong;
        (void)app.stream_synchronize(abi::legacy_stream());
    }
    table.expect("what is on the default stream happens before a read", wrong == 0, format_text("{} of 20 wrong", wrong));
}

}  // namespace

void probe_copies(const Application& app, CudaDevice& device, Table& table) {
    table.title("copies");
    Memories m(app);
    (void)device.describe(m.card, Memories::kBytes);
    (void)device.describe(m.other, Memories::kBytes);
    copy_lengths(device, m, table);
    copy_pieces_within(device, m, table);
    copy_scattered(device, m, table);
    copy_odd_memory(app, device, m, table);
    copy_freed(app, device, m, table);
    copy_behind_the_default_stream(app, device, m, table);
    std::jthread([&] {
        table.expect("a thread that never chose a GPU", copy_one(device, kHost, m.plain.data(), kCuda, m.card, 4096).has_value());
    }).join();
}

}  // namespace probe
