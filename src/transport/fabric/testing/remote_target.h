// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/thread_annotations.h"
#include "transport/fabric/fabric.h"
#include "transport/testing/child_process.h"
#include "transport/testing/conformance.h"

// A target in another process, over the real libfabric, and network namespaces to put it in.
namespace mooncake::fabric {

EngineOptions options_for(const std::string& nodes);
uint64_t sum_of(std::span<const std::byte> bytes);

/// The control plane to such a process: lines of its input and output. Thread-safe.
class LineControl final : public ControlPlane {
public:
    explicit LineControl(mooncake::testing::ChildProcess& child);
    void serve(std::string, Handler) override {}
    Result<Bytes> call(const SegmentDescriptor& descriptor, const std::string& name, Bytes request, Deadline deadline) override;
    /// Of the first bytes of its memory.
    uint64_t sum(uint64_t length);
    /// Lends more memory, apart from the other, and says where. Once.
    uint64_t lend_more(uint64_t length);
    /// Takes that away though it is registered: "unmap", "forbid" all access, or "write-protect" it.
    void take_away(const std::string& how);

private:
    mooncake::testing::ChildProcess& child_;
    Mutex mutex_;
    uint64_t last_ MC_GUARDED_BY(mutex_) = 0;
};

/// The target. Not thread-safe, but for its control plane.
struct RemoteTarget {
    /// `own_network`: without any link yet; has_network is false where that is not allowed.
    RemoteTarget(bool own_network, uint64_t length);
    /// Starts its transport, with a rail for each address.
    void lend(const std::string& nodes);

    mooncake::testing::ChildProcess child;
    const uint64_t length;
    bool has_network = false;
    LineControl control{child};
    SegmentDescriptor descriptor;
    uint64_t address = 0;
};

/// The control planes of several such processes. Thread-safe.
class ManyControls final : public ControlPlane {
public:
    void add(RemoteTarget& target);
    void serve(std::string, Handler) override {}
    Result<Bytes> call(const SegmentDescriptor& descriptor, const std::string& name, Bytes request, Deadline deadline) override;

private:
    Mutex mutex_;
    std::map<uint64_t, ControlPlane*> controls_ MC_GUARDED_BY(mutex_);  // by incarnation
};

/// An engine in this process that is connected to a target.
struct Initiator {
    /// `controls`: how it speaks to that one and others; null: to that one alone.
    Initiator(RemoteTarget& target, const mooncake::testing::TestMemory& memory, const EngineOptions& options,
              ManyControls* controls = nullptr);

    mooncake::testing::TransportHost host;
    const MemoryRegion* region = nullptr;
    std::unique_ptr<Peer> peer;
};

bool shell(const std::string& command);
/// Runs it in the network of that process.
bool shell_at(pid_t pid, const std::string& command);
/// How many bytes this process's network has sent and received over a link.
uint64_t sent_over(const std::string& link);
uint64_t received_over(const std::string& link);
/// Links r0, r1, ... to a process in another network: 10.77.i.1 here, 10.77.i.2 there.
bool make_links(pid_t pid, int count);
/// How fast our side (or with `there` that of the process) sends over one.
bool limit_link(int link, int megabits, pid_t there = 0);

}  // namespace mooncake::fabric
