// SPDX-License-Identifier: Apache-2.0
// What this driver answers where the documentation leaves it open. None of it is right or wrong, except that our own copies must not suffer.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/format.h"
#include "device/cuda/pointers.h"
#include "probe.h"

namespace probe {

using mooncake::CopyPart;
using mooncake::format_text;
using mooncake::MemoryKind;
using mooncake::cuda::CudaDevice;

namespace {

uint64_t buffer_id(const Application& app, uint64_t address) {
    uint64_t id = 0;
    void* data = &id;
    int attribute = abi::kAttributeBufferId;
    (void)app.cuda->get_pointer_attributes(1, &attribute, &data, address);
    return id;
}

/// P3, P4.
void probe_ipc(const Application& app, Importer& importer, Table& table) {
    if (app.cuda->ipc_get == nullptr) return table.tell("IPC", "not in this library");
    constexpr size_t kBytes = 4 << 20;
    const uint64_t first = address_of(app.must_allocate(kBytes));
    abi::IpcHandle handle;
    table.tell("cuIpcGetMemHandle", app.name_of(app.cuda->ipc_get(&handle, first)));
    uint64_t opened = 0;
    table.tell("P3 own handle opened in this process", app.name_of(app.cuda->ipc_open(&opened, handle, abi::kIpcLazyPeerAccess)));
    const auto there = importer.open(handle), twice = importer.open(handle);
    table.tell("   opened by another process; again", app.name_of(there.status) + "; " + app.name_of(twice.status) +
                                                          (there.address == twice.address ? ", same address" : ", another address"));
    const uint64_t old_id = buffer_id(app, first);
    (void)app.free(first);
    const uint64_t second = address_of(app.must_allocate(kBytes));
    table.tell("P4 freed and allocated again while mapped there", second == first ? "same address" : "another address");
    table.tell("   BUFFER_ID before, after", format_text("{} {}", old_id, buffer_id(app, second)));
    abi::IpcHandle again;
    table.tell("   exported again", app.name_of(app.cuda->ipc_get(&again, second)));
    const auto reopened = importer.open(again);
    table.tell("   opened there while the old mapping lives", app.name_of(reopened.status));
    if (reopened.status == abi::kSuccess) (void)importer.close(reopened.address);
    table.tell("   the old mapping closed, twice",
               app.name_of(importer.close(there.address).status) + "; " + app.name_of(importer.close(there.address).status));
    const auto after = importer.open(again);
    table.tell("   then opened", app.name_of(after.status));
    if (after.status == abi::kSuccess) (void)importer.close(after.address);
    (void)app.free(second);
}

/// P6.
void probe_fabric(const Application& app, Table& table) {
    int says = 0;
    (void)app.cuda->get_device_attribute(&says, abi::kDeviceFabric, 0);
    for (const uint32_t handles : {abi::kHandleFabric, abi::kHandleDescriptor, abi::kHandleFabric | abi::kHandleDescriptor}) {
        const abi::AllocationProperties properties{
            .type = abi::kAllocationPinned, .handle_types = handles, .location = {.type = abi::kLocationDevice, .id = 0}};
        abi::Handle handle = 0;
        const Status status = app.cuda->vmm_create(&handle, Application::kChunk, &properties, 0);
        table.tell(format_text("P6 attribute 128 is {}; cuMemCreate with handles {}", says, handles), app.name_of(status));
        if (status == abi::kSuccess) (void)app.cuda->vmm_release(handle);
    }
}

/// P8.
void probe_registrations(const Application& app, CudaDevice& device, Table& table) {
    constexpr size_t kBytes = 4 << 20;
    auto* const host = static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::fill_n(host, kBytes, std::byte{1});
    std::byte* const card = app.must_allocate(kBytes);
    (void)device.describe(card, kBytes);  // as whoever registers it does; the address may have been another's before
    const auto raw = [&] {
        const Status issued = app.cuda->copy_async(address_of(card), address_of(host), kBytes, app.stream);
        return app.name_of(issued) + ", then " + app.name_of(app.stream_synchronize(app.stream));
    };
    const auto ours = [&] {
        const CopyPart there{card, host, kBytes}, back{host, card, kBytes};
        return device.copy(MemoryKind::kCuda, MemoryKind::kHost, {&there, 1}).has_value() &&
               device.copy(MemoryKind::kHost, MemoryKind::kCuda, {&back, 1}).has_value();
    };
    (void)app.host_register(host, kBytes / 2, 0);
    table.tell("P8 raw copy from half pinned, half pageable memory", raw());
    table.expect("   ours", ours());
    (void)app.host_register(host + kBytes / 2, kBytes / 2, 0);
    table.tell("   raw copy across two registrations", raw());
    table.expect("   ours", ours());
    (void)app.host_unregister(host);
    (void)app.host_unregister(host + kBytes / 2);
    ::munmap(host, kBytes);
    (void)app.free(address_of(card));
}

/// P11.
void probe_words(const Application& app, Table& table) {
    void* memory = nullptr;
    (void)app.cuda->host_allocate(&memory, 4096, abi::kHostPortable | abi::kHostDeviceMap);
    auto* const word = new (memory) std::atomic<uint64_t>(0);
    const uint64_t address = address_of(memory);
    table.tell("P11 cuStreamWriteValue64", app.name_of(app.write_value(app.stream, address, 1, 0)));
    (void)app.stream_synchronize(app.stream);
    table.tell("    the word is then", std::to_string(word->load()));
    table.tell("    cuStreamWaitValue64", app.name_of(app.wait_value(app.stream, address, 2, 0)));
    const Status before = app.stream_query(app.stream);
    word->store(2);
    table.tell("    stream before and after the word is set", app.name_of(before) + "; " + app.name_of(app.stream_synchronize(app.stream)));
    std::byte* const card = app.must_allocate(4096);
    uint64_t number = 10;
    const double by_word = median_seconds(501, [&] {
        ++number;
        (void)app.cuda->copy_async(address + 1024, address_of(card), 512, app.stream);
        (void)app.write_value(app.stream, address, number, 0);
        while (word->load(std::memory_order_acquire) != number) {}
    });
    abi::Event event = nullptr;
    (void)app.cuda->event_create(&event, abi::kEventDisableTiming);
    const double by_event = median_seconds(501, [&] {
        (void)app.cuda->copy_async(address + 1024, address_of(card), 512, app.stream);
        (void)app.cuda->event_record(event, app.stream);
        while (app.cuda->event_query(event) == abi::kNotReady) {}
    });
    const double by_stream = median_seconds(501, [&] {
        (void)app.cuda->copy_async(address + 1024, address_of(card), 512, app.stream);
        while (app.stream_query(app.stream) == abi::kNotReady) {}
    });
    table.tell("    512 bytes to the host, seen by word, by event, by stream",
               format_text("{:.2f} {:.2f} {:.2f} us", by_word * 1e6, by_event * 1e6, by_stream * 1e6));
    (void)app.cuda->event_destroy(event);
    (void)app.free(address_of(card));
    (void)app.cuda->host_free(memory);
}

/// What another thread's work does to a graph that this one captures in mode GLOBAL.
std::string captured_beside(const Application& app, uint32_t stream_flags, const std::function<std::string()>& work) {
    abi::Stream stream = nullptr;
    (void)app.cuda->stream_create(&stream, stream_flags);
    std::string answer;
    if (const Status status = app.begin_capture(stream, abi::kCaptureGlobal); status != abi::kSuccess)
        return "begin: " + app.name_of(status);
    std::jthread([&] {
        (void)app.set_context(app.context);
        answer = work();
    }).join();
    void* graph = nullptr;
    answer += ", capture ends with " + app.name_of(app.end_capture(stream, &graph));
    (void)app.cuda->stream_destroy(stream);
    return answer;
}

/// P12.
void probe_capture(const Application& app, CudaDevice& device, Table& table) {
    if (app.begin_capture == nullptr || app.end_capture == nullptr) return table.tell("P12 capture", "not in this library");
    std::byte* const card = app.must_allocate(4096);
    (void)device.describe(card, 4096);
    std::vector<std::byte> host(4096);
    const auto unsafe = [&](int mode) {
        return [&app, mode]() -> std::string {
            int exchanged = mode;
            (void)app.cuda->exchange_capture_mode(&exchanged);
            void* memory = nullptr;
            const Status status = app.cuda->host_allocate(&memory, 4096, 0);
            if (status == abi::kSuccess) (void)app.cuda->host_free(memory);
            return "cuMemHostAlloc " + app.name_of(status);
        };
    };
    table.tell("P12 another thread, mode global", captured_beside(app, 0, unsafe(abi::kCaptureGlobal)));
    table.tell("    another thread, relaxed", captured_beside(app, 0, unsafe(abi::kCaptureRelaxed)));
    table.tell("    question about the default stream, blocking stream captured", captured_beside(app, 0, [&] {
                   int capturing = 0;
                   return "cuStreamIsCapturing " + app.name_of(app.cuda->stream_is_capturing(abi::legacy_stream(), &capturing));
               }));
    table.tell("    event on the default stream, relaxed, blocking stream captured", captured_beside(app, 0, [&]() -> std::string {
                   int mode = abi::kCaptureRelaxed;
                   (void)app.cuda->exchange_capture_mode(&mode);
                   abi::Event event = nullptr;
                   (void)app.cuda->event_create(&event, abi::kEventDisableTiming);
                   const std::string answer = "cuEventRecord " + app.name_of(app.cuda->event_record(event, abi::legacy_stream()));
                   (void)app.cuda->event_destroy(event);
                   return answer;
               }));
    const auto ours = [&](bool reads) {
        return [&, reads]() -> std::string {
            const CopyPart there{card, host.data(), 4096}, back{host.data(), card, 4096};
            const auto copied = reads ? device.copy(MemoryKind::kHost, MemoryKind::kCuda, {&back, 1})
                                      : device.copy(MemoryKind::kCuda, MemoryKind::kHost, {&there, 1});
            return copied ? "copied" : copied.error().to_string();
        };
    };
    const auto survives = [&](const std::string& text) { return text.ends_with("capture ends with " + app.name_of(abi::kSuccess)); };
    for (const bool reads : {false, true})
        for (const uint32_t flags : {abi::kStreamNonBlocking, uint32_t{0}}) {
            const std::string answer = captured_beside(app, flags, ours(reads));
            table.expect(format_text("    our {} beside the capture of a {} stream", reads ? "read" : "write",
                                     flags == 0 ? "blocking" : "non-blocking"),
                         survives(answer) && (flags == 0 || answer.starts_with("copied")), answer);
        }
    (void)app.free(address_of(card));
}

/// P14.
void probe_questions(const Application& app, CudaDevice& device, Table& table) {
    std::byte* const card = app.must_allocate(64 << 20);
    void* pinned = nullptr;
    (void)app.cuda->host_allocate(&pinned, 4096, 0);
    int pageable = 0;
    const auto each = [](const std::function<void()>& work) {
        constexpr int kTimes = 1000;
        return median_seconds(11,
                              [&] {
                                  for (int i = 0; i < kTimes; ++i) work();
                              }) /
               kTimes * 1e9;
    };
    mooncake::cuda::Driver& driver = device.driver();
    const auto asked = [&](const void* address) { return each([&] { (void)mooncake::cuda::ask(driver, address_of(address)); }); };
    table.tell("P14 our question about GPU, pinned, pageable memory",
               format_text("{:.0f} {:.0f} {:.0f} ns", asked(card), asked(pinned), asked(&pageable)));
    uint64_t answers[7] = {};
    void* data[7] = {};
    for (int i = 0; i < 7; ++i) data[i] = &answers[i];
    int attributes[7] = {8, 2, 9, 7, 11, 12, 3};
    table.tell("    cuPointerGetAttributes of 7, of 1",
               format_text("{:.0f} {:.0f} ns", each([&] { (void)app.cuda->get_pointer_attributes(7, attributes, data, address_of(card)); }),
                           each([&] { (void)app.cuda->get_pointer_attributes(1, attributes + 3, data, address_of(card)); })));
    uint64_t base = 0;
    size_t length = 0;
    table.tell("    cuMemGetAddressRange",
               format_text("{:.0f} ns", each([&] { (void)app.cuda->get_address_range(&base, &length, address_of(card)); })));
    table.tell("    a scope: push, mode, mode, pop",
               format_text("{:.0f} ns", each([&] { (void)mooncake::cuda::Scope::enter(driver, 0); })));
    table.tell("    10,000 tensors of one allocation described", format_text("{:.2f} ms", seconds_of([&] {
                                                                                              for (int i = 0; i < 10'000; ++i)
                                                                                                  (void)device.describe(card + i * 4096,
                                                                                                                        4096);
                                                                                          }) * 1e3));
    std::set<size_t> all;
    for (size_t i = 0; i < 512; ++i) all.insert(i);
    std::byte* const expandable = app.reserve(512, all);
    table.tell("    1 GiB in chunks of 2 MiB described",
               format_text("{:.2f} ms", seconds_of([&] { (void)device.describe(expandable, size_t{1} << 30); }) * 1e3));
    app.release(expandable, 512, all);
    (void)app.cuda->host_free(pinned);
    (void)app.free(address_of(card));
}

/// P17: whether the default stream counts as busy while a stream is that waits for it and for which it waits, and what each way to ask costs.
void probe_default_stream(const Application& app, Table& table) {
    void* memory = nullptr;
    (void)app.cuda->host_allocate(&memory, 4096, abi::kHostPortable | abi::kHostDeviceMap);
    auto* const word = new (memory) std::atomic<uint64_t>(0);
    abi::Stream blocking = nullptr;
    abi::Event event = nullptr;
    (void)app.cuda->stream_create(&blocking, 0);
    (void)app.cuda->event_create(&event, abi::kEventDisableTiming);
    (void)app.stream_synchronize(abi::legacy_stream());
    (void)app.wait_value(blocking, address_of(memory), 1, 0);
    table.tell("P17 default stream, while a blocking stream is busy",
               "cuStreamQuery " + app.name_of(app.stream_query(abi::legacy_stream())));
    word->store(1);
    (void)app.stream_synchronize(blocking);
    const auto microseconds = [](const std::function<void()>& work) { return median_seconds(501, work) * 1e6; };
    int capturing = 0;
    const double is_capturing = microseconds([&] { (void)app.cuda->stream_is_capturing(abi::legacy_stream(), &capturing); });
    const double query = microseconds([&] { (void)app.stream_query(abi::legacy_stream()); });
    const double record = microseconds([&] { (void)app.cuda->event_record(event, abi::legacy_stream()); });
    (void)app.stream_synchronize(abi::legacy_stream());
    const double happened = microseconds([&] {
        (void)app.cuda->event_record(event, abi::legacy_stream());
        while (app.cuda->event_query(event) == abi::kNotReady) {}
    });
    table.tell("    idle: is it captured, is it busy, record an event, until that has happened",
               format_text("{:.2f} {:.2f} {:.2f} {:.2f} us", is_capturing, query, record, happened));
    if (app.stream_wait_event != nullptr) {
        std::byte* const card = app.must_allocate(4096);
        const double waited = microseconds([&] {
            (void)app.cuda->event_record(event, abi::legacy_stream());
            (void)app.stream_wait_event(app.stream, event, 0);
            (void)app.cuda->copy_async(address_of(memory) + 1024, address_of(card), 512, app.stream);
            while (app.stream_query(app.stream) == abi::kNotReady) {}
        });
        const double plain = microseconds([&] {
            (void)app.cuda->copy_async(address_of(memory) + 1024, address_of(card), 512, app.stream);
            while (app.stream_query(app.stream) == abi::kNotReady) {}
        });
        table.tell("    512 bytes to the host behind such an event, and without", format_text("{:.2f} {:.2f} us", waited, plain));
        (void)app.free(address_of(card));
    }
    if (app.begin_capture != nullptr)
        table.tell("    cuStreamQuery of it, relaxed, while a blocking stream is captured", captured_beside(app, 0, [&]() -> std::string {
                       int mode = abi::kCaptureRelaxed;
                       (void)app.cuda->exchange_capture_mode(&mode);
                       return app.name_of(app.stream_query(abi::legacy_stream()));
                   }));
    (void)app.cuda->event_destroy(event);
    (void)app.cuda->stream_destroy(blocking);
    (void)app.cuda->host_free(memory);
}

}  // namespace

void probe_driver(const Application& app, CudaDevice& device, Importer& importer, Table& table) {
    table.title("what the driver answers");
    probe_ipc(app, importer, table);
    probe_fabric(app, table);
    probe_registrations(app, device, table);
    probe_words(app, table);
    probe_capture(app, device, table);
    probe_default_stream(app, table);
    probe_questions(app, device, table);
}

}  // namespace probe
