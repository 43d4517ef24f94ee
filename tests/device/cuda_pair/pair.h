// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "../cuda_probe/probe.h"
#include "transport/transport.h"

/// A process with a GPU and a transport, and the other such process.
namespace pair {

constexpr size_t kBytes = 256 << 20, kHostBytes = 64 << 20;
constexpr size_t kChunks = 1000;  // of 2 MiB, mapped side by side

class NoControl final : public mooncake::ControlPlane {
public:
    void serve(std::string, Handler) override {}
    mooncake::Result<Bytes> call(const mooncake::SegmentDescriptor&, const std::string&, Bytes, mooncake::Deadline) override {
        return mooncake::fail(mooncake::Code::kNotSupported, "nobody is asked");
    }
};

struct Side {
    explicit Side(const std::string& library, const std::string& name = "shm");
    ~Side();

    const mooncake::MemoryRegion* add(std::byte* card, size_t length);
    const mooncake::MemoryRegion* add_host(std::byte* memory, size_t length);
    mooncake::Result<> remove(const mooncake::MemoryRegion* region);
    void remove_all();
    /// One line that tells another process how to reach a region.
    std::string offer(const mooncake::MemoryRegion& region) const;
    /// From the region's start.
    void put(const mooncake::MemoryRegion& region, const std::vector<std::byte>& bytes) const;
    std::vector<std::byte> get(const mooncake::MemoryRegion& region, size_t length) const;

    /// For the one who reads an offer(). Null, and it is printed why: it cannot be reached.
    std::unique_ptr<mooncake::Peer> connect(const std::string& incarnation, const std::string& endpoint);

    struct Entry {
        mooncake::MemoryRegion region;
        std::unique_ptr<mooncake::Registration> registration;
    };
    const mooncake::Incarnation incarnation = mooncake::Incarnation::random();
    const mooncake::EngineOptions options;
    const std::string protocol;
    mooncake::AccessTable access;
    NoControl control;
    probe::Application app;
    bool ready = false;
    std::unique_ptr<mooncake::Transport> transport;
    std::vector<std::unique_ptr<Entry>> entries;
};

/// This program once more.
class Child {
public:
    Child(const std::string& role, const std::string& library);
    ~Child();
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    void send(const std::string& line) const;
    std::string hear() const;
    void kill();

private:
    pid_t pid_ = -1;
    int to_ = -1, from_ = -1;
};

/// What a process offers, and the connection to it.
class Reached {
public:
    Reached(Side& side, const std::string& offer);

    mooncake::Result<uint64_t> move(mooncake::Direction direction, std::vector<mooncake::Slice> slices);
    uint64_t address() const noexcept { return address_; }
    mooncake::Peer* peer() const noexcept { return peer_.get(); }
    const probe::abi::IpcHandle& handle() const noexcept { return handle_; }

private:
    uint64_t address_ = 0;
    probe::abi::IpcHandle handle_;
    std::unique_ptr<mooncake::Peer> peer_;
};

/// A process that lends kBytes of its GPU.
class Other {
public:
    Other(Side& side, const std::string& library);

    mooncake::Result<uint64_t> move(Side& side, mooncake::Direction direction, const mooncake::MemoryRegion& local, uint64_t local_offset,
                                    uint64_t remote_offset, uint64_t length);
    /// Pieces at `apart` on one side, in reverse on the other.
    mooncake::Result<uint64_t> scatter(Side& side, mooncake::Direction direction, const mooncake::MemoryRegion& local, size_t piece,
                                       size_t apart, size_t count);
    /// `remote` counts from the start of their memory.
    mooncake::Result<uint64_t> move(mooncake::Direction direction, std::vector<mooncake::Slice> slices);
    std::string ask(const std::string& command);
    void kill() { child_.kill(); }
    const probe::abi::IpcHandle& handle() const noexcept { return reached_->handle(); }

private:
    Side& side_;
    Child child_;
    std::unique_ptr<Reached> reached_;
};

mooncake::Result<uint64_t> move(mooncake::Peer* peer, mooncake::Direction direction, std::vector<mooncake::Slice> slices);

int lend(const std::string& library);
int lend_over_tcp(const std::string& library);
void check_tcp(const std::string& library, bool times, probe::Table& table);
int write(const std::string& library);
int run(const std::string& library, bool times);

}  // namespace pair
