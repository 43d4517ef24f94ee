// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"

/// cuda_probe: what our code for GPUs does on this machine, and what its driver answers where we are not sure. It loads libcuda and makes a context
/// as any program would, prints tables, and ends with 1 if something was wrong. Needs no GPU with the libcuda that the tests build.
namespace probe {

namespace abi = mooncake::cuda::abi;
using abi::Status;

/// What a program calls, beside what our own code does.
struct Application {
    void* library = nullptr;
    const abi::Functions* cuda = nullptr;
    abi::Context context = nullptr;
    abi::Stream stream = nullptr;  // non-blocking, for raw copies

    Status (*init)(uint32_t) = nullptr;
    Status (*set_context)(abi::Context) = nullptr;
    Status (*allocate)(abi::DevicePointer*, size_t) = nullptr;
    Status (*free)(abi::DevicePointer) = nullptr;
    Status (*allocate_managed)(abi::DevicePointer*, size_t, uint32_t) = nullptr;
    Status (*allocate_async)(abi::DevicePointer*, size_t, abi::Stream) = nullptr;
    Status (*free_async)(abi::DevicePointer, abi::Stream) = nullptr;
    Status (*host_register)(void*, size_t, uint32_t) = nullptr;
    Status (*host_unregister)(void*) = nullptr;
    Status (*copy)(abi::DevicePointer, abi::DevicePointer, size_t) = nullptr;
    Status (*stream_synchronize)(abi::Stream) = nullptr;
    Status (*stream_query)(abi::Stream) = nullptr;
    Status (*stream_wait_event)(abi::Stream, abi::Event, uint32_t) = nullptr;  // perhaps not there
    Status (*write_value)(abi::Stream, abi::DevicePointer, uint64_t, uint32_t) = nullptr;
    Status (*wait_value)(abi::Stream, abi::DevicePointer, uint64_t, uint32_t) = nullptr;
    Status (*begin_capture)(abi::Stream, int) = nullptr;   // perhaps not there
    Status (*end_capture)(abi::Stream, void**) = nullptr;  // likewise
    Status (*memory_info)(size_t*, size_t*) = nullptr;

    /// Loads the library and becomes a program with a context on GPU 0. False: says why.
    bool start(const std::string& path);
    std::byte* must_allocate(size_t length) const;
    void write(std::byte* to, std::span<const std::byte> from) const;
    std::vector<std::byte> read(const std::byte* from, size_t length) const;
    std::string name_of(Status status) const;

    /// Reserved addresses with memory in the named chunks of 2 MiB.
    std::byte* reserve(size_t chunks, const std::set<size_t>& mapped) const;
    void release(std::byte* start, size_t chunks, const std::set<size_t>& mapped) const;
    static constexpr size_t kChunk = 2 << 20;
};

/// Lines of a table, and whether all of them were as they should be.
class Table {
public:
    void title(const std::string& text);
    /// Something that has to be so.
    void expect(const std::string& what, bool well, const std::string& detail = {});
    /// Something that we want to know.
    void tell(const std::string& what, const std::string& answer);
    int wrong() const noexcept { return wrong_; }

private:
    int wrong_ = 0;
};

uint64_t address_of(const void* pointer);
std::vector<std::byte> noise(size_t length, uint32_t seed);
double seconds_of(const std::function<void()>& work);
/// The median of several runs, in seconds.
double median_seconds(int rounds, const std::function<void()>& work);

/// Another process that opens what this one shares. Must be made before CUDA is used.
class Importer {
public:
    explicit Importer(const std::string& library);
    ~Importer();
    Importer(const Importer&) = delete;
    Importer& operator=(const Importer&) = delete;

    struct Answer {
        Status status = -1;
        uint64_t address = 0;
    };
    Answer open(const abi::IpcHandle& handle);
    Answer close(uint64_t address);

private:
    Answer ask(char what, const abi::IpcHandle& handle, uint64_t address);

    int pid_ = -1, to_ = -1, from_ = -1;
};

void probe_machine(const Application& app, Table& table);
void probe_memory(const Application& app, mooncake::cuda::CudaDevice& device, Table& table);
void probe_copies(const Application& app, mooncake::cuda::CudaDevice& device, Table& table);
void probe_driver(const Application& app, mooncake::cuda::CudaDevice& device, Importer& importer, Table& table);
void probe_times(const Application& app, mooncake::cuda::CudaDevice& device, Table& table);

}  // namespace probe
