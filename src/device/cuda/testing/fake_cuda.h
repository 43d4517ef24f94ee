// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/abi.h"
#include "device/cuda/driver.h"

namespace mooncake::cuda::testing {

/// The stand-in for libcuda.so.1 that the tests build (tests/device/fake_libcuda), loaded into this process and used as a program with a GPU
/// would: initialised, with the primary context of each device. What it does here is neither counted nor failed. Loaded once; the objects share
/// it. Memory is addressed as the GPU's, and may be looked at only by read() and write(). Thread-safe, as the driver is.
class FakeCuda {
public:
    /// Loads it, as any library of the process might. Nothing is initialised.
    static void load();
    /// As if the machine had so many GPUs. Those that are there stay; for objects that are made afterwards.
    static void have_devices(int number);
    /// load(), and makes the contexts.
    FakeCuda();
    ~FakeCuda();
    FakeCuda(const FakeCuda&) = delete;
    FakeCuda& operator=(const FakeCuda&) = delete;

    std::byte* allocate(uint64_t length, int device = 0);
    std::byte* allocate_managed(uint64_t length);
    /// `pool`: of make_pool(); else of the one that is always there, which cannot be shared.
    std::byte* allocate_from_pool(uint64_t length, abi::Pool pool = nullptr);
    abi::Pool make_pool(uint32_t handle_types);
    void destroy(abi::Pool pool);
    void free(std::byte* address, int device = 0);
    /// Until nothing is on its way on any stream, however that ended: also what a driver that was lost had left there.
    void wait_for_streams(int device = 0);
    void* allocate_pinned(uint64_t length);
    void free_pinned(void* address);
    void pin(void* address, uint64_t length);
    void unpin(void* address);

    /// A reserved range of addresses, with memory in the named chunks of 2 MiB.
    std::byte* reserve(size_t chunks, const std::set<size_t>& mapped, uint32_t handle_types = abi::kHandleDescriptor);
    /// New memory in a chunk that has none.
    void map(std::byte* start, size_t chunk, uint32_t handle_types = abi::kHandleDescriptor);
    void unmap(std::byte* start, size_t chunk);
    void release(std::byte* start, size_t chunks, const std::set<size_t>& mapped);
    static constexpr uint64_t kChunkBytes = 2 << 20;

    void write(std::byte* to, std::span<const std::byte> from);
    std::vector<std::byte> read(const std::byte* from, uint64_t length);
    /// A stream of the program's own, that no other waits for.
    abi::Stream make_stream(int device = 0);
    void destroy_stream(abi::Stream stream);
    abi::Event make_event(int device = 0);
    void record(abi::Event event, abi::Stream stream);
    void destroy_event(abi::Event event);
    /// Waits until all is over that was put on the stream.
    void drain(abi::Stream stream);
    /// Puts a write on a stream and does not wait for it. The source must stay.
    void write_on(abi::Stream stream, std::byte* to, std::span<const std::byte> from);
    /// A graph is captured on the stream from now on, or not any more.
    void capture_on(abi::Stream stream, bool on);
    /// Puts a write on the default stream and does not wait for it. The source must stay.
    void write_later(std::byte* to, std::span<const std::byte> from);

    // What goes wrong; see tests/device/fake_libcuda/control.cpp.
    static void fail(const char* name, int nth, abi::Status status);
    static void fail_async(int nth, abi::Status status);
    static void reset();
    static void hold_streams(bool hold);
    static void hold_default_stream(bool hold);
    static void capture(bool on);
    /// Whatever is asked of the device from now on answers this.
    static void poison(int device, abi::Status status);
    static void replace(std::byte* address);
    static void attribute(int device, int number, int value);
    /// How memory can be exported; 0: as that of cudaMalloc, or not at all.
    static uint64_t handle_types(const std::byte* address);
    static void limit_memory(uint64_t bytes);
    static void let_peers_reach(bool reach);
    /// What is answered where memory is shared by handles, as between process namespaces. 0: nothing is wrong.
    static void ipc_error(abi::Status status);
    static uint64_t count(const std::string& what);

    /// For a Driver that must not see some functions.
    static FindLibrary without(std::set<std::string> names);

private:
    std::vector<abi::Context> contexts_;
};

}  // namespace mooncake::cuda::testing
