// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/shared_memory.h"

// Kinds of memory, and the only ways to ask about and to touch memory that may not be the host's. See docs/memory.md.
namespace mooncake {

enum class MemoryKind : uint8_t { kHost, kCuda, kAscend };  // the numbers travel between processes
constexpr size_t kMemoryKinds = 3;

/// "host", "cuda", "ascend".
std::string_view to_string(MemoryKind kind) noexcept;

/// The two ends of a transfer.
struct KindPair {
    MemoryKind local = MemoryKind::kHost;
    MemoryKind remote = MemoryKind::kHost;

    bool operator==(const KindPair&) const = default;
    constexpr bool host() const noexcept { return local == MemoryKind::kHost && remote == MemoryKind::kHost; }
};

/// A set of pairs.
class KindPairs {
public:
    /// Host memory at both ends, and `more`.
    constexpr KindPairs(std::initializer_list<KindPair> more = {}) noexcept : bits_(bit({})) {
        for (const KindPair pair : more) add(pair);
    }
    constexpr void add(KindPair pair) noexcept { bits_ |= bit(pair); }
    constexpr bool has(KindPair pair) const noexcept { return (bits_ & bit(pair)) != 0; }

private:
    static constexpr uint32_t bit(KindPair pair) noexcept {
        return uint32_t{1} << (static_cast<size_t>(pair.local) * kMemoryKinds + static_cast<size_t>(pair.remote));
    }
    uint32_t bits_;
};

/// What lies at an address.
struct MemoryInfo {
    MemoryKind kind = MemoryKind::kHost;
    int device = -1;          // GPU or NPU number in this process; -1: of no device
    uint64_t base = 0;        // of the allocation around it; host memory: of what was asked for
    uint64_t length = 0;      // likewise
    uint64_t allocation = 0;  // tells an allocation from a later one at the same address; 0: nobody knows
    bool writable = true;
};

/// One contiguous piece to copy. The sides do not overlap.
struct CopyPart {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t length = 0;
    bool ordered = false;  // whoever asked for it has waited for all work that it depends on
};

/// Work of a device that somebody waits for: all that is on a stream now, or what an event stands for now.
struct WorkPoint {
    enum class What : uint8_t { kNothing, kStream, kEvent };
    What what = What::kNothing;
    uint64_t handle = 0;  // as the device's own library calls it
    int device = -1;      // of a default stream, which has no other name; -1: of all that are in use

    explicit operator bool() const noexcept { return what != What::kNothing; }
};

/// Such work, since it was named. What happens to the stream or the event afterwards does not matter. For one thread at a time.
class PendingWork {
public:
    virtual ~PendingWork() = default;
    /// Without waiting. An error: nobody will ever know.
    virtual Result<bool> over() = 0;
};

/// Holds a stream back: what is put on it afterwards does not happen before open(), or before this goes. Thread-safe.
class StreamGate {
public:
    virtual ~StreamGate() = default;
    virtual void open() noexcept = 0;
};

/// What another process of this host has to know to reach an allocation of a device. Travels between processes; only the device understands it.
using MemoryTicket = std::array<std::byte, 128>;

/// One kind of memory. Thread-safe; lives as long as the process or, in tests, as everything that uses it.
class Device {
public:
    virtual ~Device() = default;

    virtual MemoryKind kind() const noexcept = 0;

    /// What [address, address + length) is, without touching it. Nothing: not of this kind. kInvalidArgument, with the reason: it begins
    /// in memory of this kind, but cannot be used as a whole (a hole, two allocations, freed). Never called for no bytes, or for a range
    /// that wraps around.
    virtual Result<std::optional<MemoryInfo>> describe(const void* address, uint64_t length) = 0;

    /// Copies between memory of this kind, or between it and the host's, and returns when all bytes are there. Host memory must be mapped. The
    /// kinds are what was registered: memory of this kind that is not there any more is an error, and never taken for the host's. After an
    /// error some parts may have been copied.
    virtual Result<> copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) = 0;

    /// Host memory that it reads and writes directly, while other host memory may pass through buffers. Given back by free_host(). Takes
    /// milliseconds: to be kept. kNotSupported: any host memory is as good as any other.
    virtual Result<std::byte*> allocate_host(uint64_t /*length*/) {
        return fail(Code::kNotSupported, "this device has no host memory of its own");
    }
    virtual void free_host(std::byte* /*memory*/) noexcept {}

    /// Host memory of ours, of which no user has the address, that stays until take_back_host(): once it copies from or to it, it may make it
    /// reachable for itself, in the background, so that it need not pass through buffers. Ranges lie apart, on whole pages.
    virtual void offer_host(std::byte* /*start*/, uint64_t /*length*/) {}
    /// Before that memory goes; nobody copies from or to it any more.
    virtual void take_back_host(std::byte* /*start*/) noexcept {}
    /// From now on. kInvalidArgument: there is no such stream or event, or a graph is being captured on it.
    virtual Result<std::unique_ptr<PendingWork>> follow(const WorkPoint&) {
        return fail(Code::kNotSupported, "this device has no streams");
    }
    /// Work that the program has given to the device whose memory lies there without naming it to anybody (CUDA's default stream), and that whoever
    /// reads that memory is to wait for; null: none is under way, or nobody waits for it. copy() waits for it by itself, for a while, unless
    /// a part is `ordered`: who has a deadline, or holds anything that others wait for, does so before.
    virtual Result<std::unique_ptr<PendingWork>> unnamed_work(const void* /*address*/) { return nullptr; }
    /// Likewise, for a stream of one device.
    virtual Result<std::unique_ptr<StreamGate>> hold(const WorkPoint& /*stream*/) {
        return fail(Code::kNotSupported, "this device has no streams");
    }
    /// Whether it can be used in this process, in words: what there is, or why not. Changes nothing.
    virtual Result<std::string> state() { return std::string("usable"); }

    /// Whether other processes of this host can be given its memory.
    virtual bool shares() const noexcept { return false; }
    /// The allocations in which a range lies that describe() takes, one after the other. Each of them is shared, and may go, by itself.
    virtual Result<std::vector<MemoryInfo>> allocations(const void* address, uint64_t length);
    /// Lets other processes reach one of them. kNotSupported: not this one. Nothing has to be given back.
    virtual Result<MemoryTicket> share(const MemoryInfo&) { return fail(Code::kNotSupported, "this memory cannot be shared"); }
    /// The file that has to travel with a ticket of share(), if any: a new one for each who is given the ticket, who closes it after open().
    /// kNotRegistered: the memory is not there any more.
    virtual Result<MemoryFile> file_of(const MemoryInfo&, const MemoryTicket&) { return MemoryFile(); }
    /// Whether an allocation is still the one that was found; also when nobody can tell. Costs a microsecond.
    virtual bool still_there(const MemoryInfo&) noexcept { return true; }
    /// Makes reachable here what another process shares: an allocation for copy(), until close(). kNotSupported: not from here.
    virtual Result<MemoryInfo> open(const MemoryTicket&, const MemoryFile& /*file*/) {
        return fail(Code::kNotSupported, "this memory cannot be shared");
    }
    /// Once for each open(), with its base.
    virtual void close(uint64_t /*base*/) noexcept {}
    /// By which means a ticket lets others reach the memory; for metrics.
    virtual std::string_view way_of(const MemoryTicket&) const noexcept { return "device"; }
};

/// The kinds of memory this process can have. Constant after construction; thread-safe.
class Devices {
public:
    /// Host memory, which is always there, and `others`, none of which may be of a kind named before.
    explicit Devices(std::vector<std::unique_ptr<Device>> others = {});
    /// Those of this build, made when first asked for. What needs a vendor's library loads it only in a process that has it already.
    MC_EXPORT static Devices& of_process();

    Devices(const Devices&) = delete;
    Devices& operator=(const Devices&) = delete;
    ~Devices();

    /// Asks every kind, host memory last. kInvalidArgument: not mapped, or mixed; the text says where and why.
    Result<MemoryInfo> describe(const void* address, uint64_t length);

    bool has(MemoryKind kind) const noexcept { return by_kind_[static_cast<size_t>(kind)] != nullptr; }
    /// Null: there is none.
    Device* of(MemoryKind kind) const noexcept { return by_kind_[static_cast<size_t>(kind)]; }
    /// Who copies between two kinds of memory in this process; null: nobody can.
    Device* between(MemoryKind one, MemoryKind other) const noexcept;
    /// Copies by whoever can: kNotSupported where nobody does. What a device could not copy is kInvalidArgument, or kNoSpace; kTimedOut:
    /// it had to wait too long for work of the program, as it would have for any other part.
    Result<> copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) const;
    /// By the device that has streams.
    Result<std::unique_ptr<PendingWork>> follow(const WorkPoint& point) const;
    Result<std::unique_ptr<StreamGate>> hold(const WorkPoint& stream) const;
    /// By the device of that kind, if there is one.
    Result<std::unique_ptr<PendingWork>> unnamed_work(MemoryKind kind, const void* address) const;

private:
    friend class HostOffer;

    std::vector<std::unique_ptr<Device>> all_;  // host memory last
    Device* by_kind_[kMemoryKinds] = {};
};

/// Memory that is offered to all devices, as Device::offer_host() says, until destruction, which comes before the memory's own. The devices outlive
/// it. Not thread-safe.
class HostOffer {
public:
    HostOffer() = default;
    HostOffer(const Devices& devices, std::byte* start, uint64_t length);
    HostOffer(HostOffer&& other) noexcept : devices_(std::exchange(other.devices_, nullptr)), start_(other.start_) {}
    HostOffer& operator=(HostOffer&& other) noexcept {
        std::swap(devices_, other.devices_);
        std::swap(start_, other.start_);
        return *this;
    }
    ~HostOffer() { take_back(); }

    void take_back() noexcept;

private:
    const Devices* devices_ = nullptr;
    std::byte* start_ = nullptr;
};

}  // namespace mooncake
