// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/abi.h"

/// A CUDA driver without a GPU, for tests: built as libcuda.so.1. Device memory is a file that is mapped once for the copies of this library; the
/// address that is given out is mapped without access, so that a touch by CPU crashes. Streams are threads. What goes wrong, and when, is told by the
/// functions of control.cpp or by the environment; what was called and is still held is counted. Thread-safe.
#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace mooncake::cuda::abi {

struct ContextObject {
    int device = 0;
    int references = 0;
};

/// A point of a stream.
struct EventObject {
    std::atomic<uint64_t> recorded{0}, happened{0};
    std::atomic<int> waiting{0};  // streams that do
    int device = 0;
};

/// A thread that does one thing after the other.
struct StreamObject {
    explicit StreamObject(int number) : device(number), thread([this] { run(); }) {}
    ~StreamObject();

    void add(std::function<void()> step);
    bool idle();
    void drain();

    const int device;
    bool legacy = false, blocking = false;
    std::atomic<bool> capturing{false};  // a graph: what is put on it does not happen

private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> steps_;
    bool busy_ = false, ending_ = false;

public:
    std::thread thread;  // last: it uses the others
};

/// Text that was loaded, and the one function that is known.
struct ModuleObject {
    std::string text;
};
struct FunctionObject {
    ModuleObject* module = nullptr;
};

}  // namespace mooncake::cuda::abi

namespace fake {

namespace abi = mooncake::cuda::abi;
using abi::Status;

/// Memory without an address: a file.
struct Physical {
    int fd = -1;
    uint64_t length = 0;
    std::byte* alias = nullptr;
    int device = 0;
    uint32_t handle_types = 0;
    std::string origin;  // which process and file it came from

    Physical() = default;
    ~Physical();
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;
};
/// Bytes of all of them that exist.
extern std::atomic<uint64_t> physical_bytes;
/// Null: there is no more.
std::shared_ptr<Physical> make_physical(uint64_t length, int device);
/// Takes over the file.
std::shared_ptr<Physical> open_physical(int fd, uint64_t length, int device);
/// Memory that another process made: no file is kept of it.
std::shared_ptr<Physical> import_physical(int fd, uint64_t length, int device);

enum class Kind { kMalloc, kPool, kPoolImport, kVmm, kManaged, kIpc };

/// Physical memory at an address.
struct Mapping {
    uint64_t length = 0;
    Kind kind = Kind::kMalloc;
    std::shared_ptr<Physical> physical;  // empty: managed memory, which is at its address
    uint64_t offset = 0;
    uint64_t buffer_id = 0;
    uint64_t reservation = 0, reserved = 0;
    int references = 1;
    std::set<int> access = {};  // GPUs that may touch it, for addresses that were reserved
    void* pool = nullptr;
};

/// Where allocations of a stream come from.
struct Pool {
    int device = 0;
    uint32_t handle_types = 0;
    std::set<int> access;
    bool imported = false;
    int process = 0;  // that made it
};

struct Pinned {
    uint64_t length = 0;
    uint64_t buffer_id = 0;
    bool allocated = false;
};

struct Fault {
    std::string name;
    int nth = 0;
    Status status = 0;
};

struct Device {
    abi::ContextObject primary;
    std::atomic<Status> poison{0};
    std::map<int, int> attributes;
    std::unique_ptr<abi::StreamObject> legacy;
};

struct State {
    std::mutex mutex;
    std::vector<std::unique_ptr<Device>> devices;
    std::map<uint64_t, Mapping> mappings;
    std::map<uint64_t, Pinned> pinned;
    std::map<uint64_t, uint64_t> reservations;  // start to length
    std::map<uint64_t, std::pair<std::shared_ptr<Physical>, int>> handles;
    std::map<void*, std::unique_ptr<Pool>> pools;
    std::set<abi::Stream> streams;
    std::set<abi::Event> events;
    std::vector<abi::Event> destroyed_events;  // that a stream still has: deleted when the next one is destroyed after that
    std::map<abi::Module, std::unique_ptr<abi::FunctionObject>> modules;
    std::set<abi::ContextObject*> contexts;
    uint64_t next_id = 1;
    uint64_t memory_max = 0;  // of all devices together; 0: no limit
    bool initialized = false, ended = false, captures = false, peers = true;
    int process = 0;
    bool capture_global = false, capture_broken = false;
    Status ipc_status = 0;
    std::atomic<uint64_t> delay_us{0};
    std::vector<Fault> faults;
    std::string last_name;  // of the call before, and how many of them there were without another in between
    int same_in_a_row = 0;
    int async_nth = 0;
    Status async_status = 0;
    std::map<std::string, uint64_t> counts;
    // gates of the streams
    std::mutex gate_mutex;
    std::condition_variable gate_opened;
    bool hold_streams = false, hold_legacy = false;
    uint64_t held = 0;  // streams that wait there
};

State& state();
std::unique_ptr<Device> make_device(int number);

extern thread_local std::vector<abi::Context> context_stack;
extern thread_local int capture_mode;
extern thread_local int application_depth;  // the test itself calls: not counted

enum class Needs { kNothing, kInit, kContext };

/// One call of a function: counts it and says what it answers at once, if anything.
struct Call {
    /// `unsafe`: disturbs a graph that is captured unless the thread's mode is relaxed.
    Call(const char* name, Needs needs, bool unsafe = false);
    Status status = abi::kSuccess;
    Device* device = nullptr;  // of the current context
    int ordinal = -1;
};

bool is_sticky(Status status);
void count(const std::string& what, uint64_t by = 1);
/// The default stream of a context for NULL and the legacy handle.
abi::StreamObject* stream_of(abi::Stream stream, Device& device, int ordinal);
/// Both ends are checked now, the copy happens on the stream.
Status enqueue_copy(uint64_t to, uint64_t from, uint64_t length, abi::StreamObject& stream);
/// Copies here and now, as that GPU. Called under the mutex.
Status copy_now(uint64_t to, uint64_t from, uint64_t length, int device);
void poison(int device, Status status);
/// The mapping that holds an address; end() if none does.
std::map<uint64_t, Mapping>::iterator mapping_at(uint64_t address);
std::map<uint64_t, Pinned>::iterator pinned_at(uint64_t address);
uint64_t reserve_addresses(uint64_t length, uint64_t alignment, uint64_t wanted);
/// New memory at a new address. Called under the mutex.
Status allocate(uint64_t* address, uint64_t length, Kind kind, int device);

}  // namespace fake
