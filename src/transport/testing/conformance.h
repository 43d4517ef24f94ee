// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/shared_memory.h"
#include "transport/testing/kinds.h"
#include "transport/testing/local_control.h"
#include "transport/transport.h"

/// One suite of promises that every transport keeps. A transport's folder runs it, in its *_conformance_test.cpp, with
///     MC_INSTANTIATE_CONFORMANCE(Tcp, TransportCase{.name = "tcp", .make = make_tcp_transport});
/// and, where target and initiator are two, what can only happen between two with MC_INSTANTIATE_CONFORMANCE_OF_TWO. What they do with memory
/// of devices is the part MC_INSTANTIATE_KINDS.
namespace mooncake::testing {

using MakeTransport = std::function<Result<std::unique_ptr<Transport>>(const TransportContext&)>;

enum class MemorySource : uint8_t {
    kPrivate,  // as users allocate it
    kShared,   // as the engine allocates it
};

/// What the suite runs against.
struct TransportCase {
    std::string name;
    MakeTransport make;
    bool same_process = false;  // target and initiator are one transport (self)
    MemorySource target_memory = MemorySource::kPrivate;
    EngineOptions options{};
    KindSource devices = KindSource::kFakeDevice;
};

inline void PrintTo(const TransportCase& kind, std::ostream* out) { *out << kind.name; }
inline std::string case_name(const ::testing::TestParamInfo<TransportCase>& info) { return info.param.name; }

/// No test waits longer; only a hang gets there.
inline Deadline patience() { return Deadline::after(60s); }

/// Memory of a test, between two unmapped pages: what runs over its end is noticed.
class TestMemory {
public:
    TestMemory(uint64_t length, MemorySource source = MemorySource::kPrivate);
    ~TestMemory();
    TestMemory(const TestMemory&) = delete;
    TestMemory& operator=(const TestMemory&) = delete;

    std::byte* data() const noexcept { return data_; }
    uint64_t length() const noexcept { return length_; }
    std::span<std::byte> bytes() const noexcept { return {data_, length_}; }
    uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(data_); }
    /// What the engine would say of a part of it.
    MemoryRegion region(uint64_t offset, uint64_t length) const;

    void fill(std::byte value) const;
    void fill_random(uint64_t seed) const { fill_random(seed, length_); }
    void fill_random(uint64_t seed, uint64_t length) const;  // the beginning
    bool all(std::byte value) const;

private:
    Mapping reserved_;  // private: the data with its guard pages
    SharedMemory shared_;
    std::byte* data_ = nullptr;
    uint64_t length_ = 0;
};

/// What an engine keeps around a transport: identity, options, access table, registrations.
class TransportHost {
public:
    explicit TransportHost(const MakeTransport& make, EngineOptions options = {}, Devices& devices = Devices::of_process());
    ~TransportHost();

    Transport& transport() { return *transport_; }
    LocalControl& control() { return control_; }
    SegmentDescriptor describe() const;
    /// As Engine::register_memory. The result stays valid until it is removed.
    const MemoryRegion* add(const MemoryRegion& region);
    const MemoryRegion* add(const TestMemory& memory) { return add(memory.region(0, memory.length())); }
    /// As Engine::unregister_memory: a fence.
    Result<> remove(const MemoryRegion* region, Deadline deadline = patience());
    /// As Engine::close(): a fence around everything.
    Result<> close(Deadline deadline = patience());
    /// Ends the transport, as a process that leaves.
    void shut_down();

private:
    struct Entry {
        MemoryRegion region;
        std::unique_ptr<Registration> registration;
    };

    const Incarnation incarnation_ = Incarnation::random();
    const EngineOptions options_;
    AccessTable access_;
    LocalControl control_{incarnation_};
    std::unique_ptr<Transport> transport_;
    std::vector<std::unique_ptr<Entry>> entries_;
};

/// Target and initiator of one kind of transport, in this process.
struct TransportPair {
    explicit TransportPair(const TransportCase& kind, Devices& devices = Devices::of_process());

    std::unique_ptr<TransportHost> target_host;
    std::unique_ptr<TransportHost> initiator_host;  // empty: the target's

    TransportHost& target() { return *target_host; }
    TransportHost& initiator() { return initiator_host ? *initiator_host : *target_host; }
    std::unique_ptr<Peer> connect();
};

template <typename T>
Code code_of(const Result<T>& result) {
    return result ? Code::kOk : result.error().code();
}

/// Submits slices of one completion (set here) and waits. One that does not end is a failure of the test, and is cancelled.
Result<uint64_t> transfer(Peer& peer, Direction direction, std::span<Slice> slices, Submit how = Submit::kWait);
inline Result<uint64_t> transfer(Peer& peer, Direction direction, Slice slice, Submit how = Submit::kWait) {
    return transfer(peer, direction, std::span(&slice, 1), how);
}

/// A pair with one registered area on each side and a connection.
class TransportConformance : public ::testing::TestWithParam<TransportCase> {
protected:
    static constexpr uint64_t kAreaBytes = 24 << 20;

    void SetUp() override;
    Slice slice(uint64_t local_offset, uint64_t remote_offset, uint64_t length) const;

    std::optional<TransportPair> pair;
    std::unique_ptr<TestMemory> remote, local;
    const MemoryRegion* remote_region = nullptr;
    const MemoryRegion* local_region = nullptr;
    std::unique_ptr<Peer> peer;
    std::mt19937_64 random{7};

    void TearDown() override;
};

/// The same fixture, for the part of the suite about stopping.
class TransportStops : public TransportConformance {
protected:
    /// All of the area, in slices of this length.
    std::vector<Slice> pieces(uint64_t length) const;

    const Error reason{Code::kTimedOut, "the test gave up"};
};

/// The same fixture, for transports whose target can leave while the initiator stays.
class TransportOfTwo : public TransportConformance {};

/// A pair whose sides have memory of any two kinds, and a connection.
class TransportKinds : public ::testing::TestWithParam<std::tuple<TransportCase, MemoryKind, MemoryKind>> {
protected:
    static constexpr uint64_t kBytes = 3'200'000;  // several chunks of those who copy in chunks

    void SetUp() override;
    void TearDown() override;
    Slice slice(uint64_t local_offset, uint64_t remote_offset, uint64_t length) const;
    KindPair kinds() const { return {std::get<1>(GetParam()), std::get<2>(GetParam())}; }
    /// Whether the transport says that it carries this pair.
    bool carried() { return pair->initiator().transport().capabilities().pairs.has(kinds()); }
    /// Whether each side copies between its own memory and a network.
    bool copies_apart() { return pair->initiator().transport().capabilities().reach == Reach::kNetwork; }
    /// Waits until a thread is held in a copy of the device. False: the transfer ended without one.
    bool wait_until_held(const Completion& completion);
    /// Whether it is promised that it goes on where allocations fail.
    bool survives_want_of_memory();
    /// After the end of a transfer, whose source is all ones: nothing of it lands any more.
    void expect_quiet(Direction direction, Submit how);

    KindAllocator allocator{std::get<0>(GetParam()).devices};
    std::optional<TransportPair> pair;
    std::unique_ptr<KindMemory> remote, local;
    const MemoryRegion* local_region = nullptr;
    const MemoryRegion* remote_region = nullptr;
    std::unique_ptr<Peer> peer;
};

inline std::string kinds_name(const ::testing::TestParamInfo<TransportKinds::ParamType>& info) {
    const auto& [kind, here, there] = info.param;
    return kind.name + "_" + std::string(to_string(here)) + "_to_" + std::string(to_string(there));
}

}  // namespace mooncake::testing

#define MC_INSTANTIATE_CONFORMANCE(name, ...) \
    INSTANTIATE_TEST_SUITE_P(name, TransportConformance, ::testing::Values(__VA_ARGS__), case_name); \
    INSTANTIATE_TEST_SUITE_P(name, TransportStops, ::testing::Values(__VA_ARGS__), case_name)

#define MC_INSTANTIATE_KINDS(name, ...) \
    INSTANTIATE_TEST_SUITE_P(name, TransportKinds, \
                             ::testing::Combine(::testing::Values(__VA_ARGS__), ::testing::Values(MemoryKind::kHost, MemoryKind::kCuda), \
                                                ::testing::Values(MemoryKind::kHost, MemoryKind::kCuda)), \
                             kinds_name)

#define MC_INSTANTIATE_CONFORMANCE_OF_TWO(name, ...) \
    MC_INSTANTIATE_CONFORMANCE(name, __VA_ARGS__); \
    INSTANTIATE_TEST_SUITE_P(name, TransportOfTwo, ::testing::Values(__VA_ARGS__), case_name)
