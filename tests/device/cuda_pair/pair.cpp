// SPDX-License-Identifier: Apache-2.0
#include "pair.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <set>
#include <sstream>
#include <thread>

#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace pair {

using mooncake::Deadline;
using mooncake::Direction;
using mooncake::MemoryKind;
using mooncake::MemoryRegion;
using mooncake::Result;
using mooncake::Slice;
using namespace std::chrono_literals;
using probe::address_of;

Side::Side(const std::string& library, const std::string& name) : protocol(name) {
    if (!app.start(library)) return;
    const mooncake::TransportContext context{.incarnation = incarnation, .options = options, .access = access, .control = control};
    auto made = name == "tcp" ? mooncake::tcp::make_tcp_transport(context) : mooncake::make_shm_transport(context);
    if (!made) {
        std::printf("%s\n", made.error().to_string().c_str());
        return;
    }
    transport = std::move(*made);
    ready = true;
}

Side::~Side() { remove_all(); }

const MemoryRegion* Side::add(std::byte* card, size_t length) {
    entries.push_back(std::make_unique<Entry>(
        Entry{.region = {.address = card, .length = length, .kind = MemoryKind::kCuda, .location = "cuda:0"}, .registration = nullptr}));
    (void)mooncake::Devices::of_process().describe(card, length);  // as the registry of an engine does
    access.allow({.range = {.address = address_of(card), .length = length}, .kind = MemoryKind::kCuda});
    auto registration = transport->register_memory(entries.back()->region);
    if (registration) entries.back()->registration = std::move(*registration);
    else std::printf("%s\n", registration.error().to_string().c_str());
    return &entries.back()->region;
}

const MemoryRegion* Side::add_host(std::byte* memory, size_t length) {
    entries.push_back(
        std::make_unique<Entry>(Entry{.region = {.address = memory, .length = length, .location = "*"}, .registration = nullptr}));
    access.allow({.address = address_of(memory), .length = length});
    return &entries.back()->region;
}

Result<> Side::remove(const MemoryRegion* region) {
    const auto found = std::find_if(entries.begin(), entries.end(), [region](const auto& entry) { return &entry->region == region; });
    if (!access.revoke(address_of(region->address), Deadline::after(10s))) return mooncake::fail(mooncake::Code::kBusy, "still in use");
    if ((*found)->registration) MC_RETURN_IF_ERROR((*found)->registration->revoke(Deadline::after(10s)));
    entries.erase(found);
    return {};
}

void Side::remove_all() {
    for (const auto& entry : entries)
        if (entry->registration) (void)entry->registration->revoke(Deadline::after(10s));
    entries.clear();
}

std::string Side::offer(const MemoryRegion& region) const {
    probe::abi::IpcHandle handle;
    (void)app.cuda->ipc_get(&handle, address_of(region.address));
    std::ostringstream line;
    line << incarnation.to_string() << ' ' << address_of(region.address) << ' ';
    for (const uint8_t byte : handle.bytes) line << static_cast<int>(byte) << ' ';
    line << transport->endpoint();
    return line.str();
}

void Side::put(const MemoryRegion& region, const std::vector<std::byte>& bytes) const {
    if (region.kind == MemoryKind::kCuda) app.write(region.address, bytes);
    else std::copy(bytes.begin(), bytes.end(), region.address);
}

std::vector<std::byte> Side::get(const MemoryRegion& region, size_t length) const {
    if (region.kind == MemoryKind::kCuda) return app.read(region.address, length);
    return {region.address, region.address + length};
}

Child::Child(const std::string& role, const std::string& library) {
    int there[2], back[2];
    if (::pipe2(there, O_CLOEXEC) != 0 || ::pipe2(back, O_CLOEXEC) != 0) std::exit(2);
    const char* const arguments[] = {"cuda_pair", role.c_str(), library.c_str(), nullptr};
    pid_ = ::fork();
    if (pid_ == 0) {
        ::dup2(there[0], 0);
        ::dup2(back[1], 1);
        ::execv("/proc/self/exe", const_cast<char* const*>(arguments));
        ::_exit(2);
    }
    ::close(there[0]);
    ::close(back[1]);
    to_ = there[1];
    from_ = back[0];
}

Child::~Child() {
    kill();
    ::close(to_);
    ::close(from_);
}

void Child::send(const std::string& line) const {
    const std::string whole = line + "\n";
    if (::write(to_, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) std::printf("the other process is gone\n");
}

std::string Child::hear() const {
    std::string line;
    for (char c = 0; ::read(from_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
}

void Child::kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

Reached::Reached(Side& side, const std::string& offer) {
    std::istringstream in(offer);
    std::string incarnation, endpoint;
    in >> incarnation >> address_;
    for (uint8_t& byte : handle_.bytes) {
        int value = 0;
        in >> value;
        byte = static_cast<uint8_t>(value);
    }
    in >> std::ws;
    std::getline(in, endpoint);
    peer_ = side.connect(incarnation, endpoint);
}

std::unique_ptr<mooncake::Peer> Side::connect(const std::string& other, const std::string& endpoint) {
    const auto parsed = mooncake::Incarnation::parse(other);
    if (!parsed) return nullptr;
    auto peer = transport->connect(
        {.name = "other", .incarnation = *parsed, .host = "127.0.0.1", .boot_id = mooncake::boot_id(), .endpoints = {{protocol, endpoint}}},
        Deadline::after(10s));
    if (peer) return std::move(*peer);
    std::printf("%s\n", peer.error().to_string().c_str());
    return nullptr;
}

Result<uint64_t> Reached::move(Direction direction, std::vector<Slice> slices) {
    return pair::move(peer_.get(), direction, std::move(slices));
}

Result<uint64_t> move(mooncake::Peer* peer, Direction direction, std::vector<Slice> slices) {
    if (peer == nullptr) return mooncake::fail(mooncake::Code::kUnavailable, "not connected");
    mooncake::Completion completion;
    completion.add(static_cast<uint32_t>(slices.size()));
    for (Slice& slice : slices) slice.completion = &completion;
    peer->submit(direction, slices, mooncake::Submit::kWait);
    if (!peer->wait(completion, Deadline::after(60s)))
        (void)peer->cancel(completion, mooncake::Error(mooncake::Code::kTimedOut, "a minute"), Deadline::after(60s));
    return completion.result();
}

Other::Other(Side& side, const std::string& library) : side_(side), child_("lend", library) {
    reached_ = std::make_unique<Reached>(side, child_.hear());
}

Result<uint64_t> Other::move(Side&, Direction direction, const MemoryRegion& local, uint64_t local_offset, uint64_t remote_offset,
                             uint64_t length) {
    return reached_->move(
        direction,
        {{.local = local.address + local_offset, .remote = reached_->address() + remote_offset, .length = length, .region = &local}});
}

Result<uint64_t> Other::scatter(Side&, Direction direction, const MemoryRegion& local, size_t piece, size_t apart, size_t count) {
    std::vector<Slice> slices;
    slices.reserve(count);
    for (size_t i = 0; i < count; ++i)
        slices.push_back({.local = local.address + i * apart,
                          .remote = reached_->address() + (count - 1 - i) * apart,
                          .length = piece,
                          .region = &local});
    return reached_->move(direction, std::move(slices));
}

Result<uint64_t> Other::move(Direction direction, std::vector<Slice> slices) {
    for (Slice& slice : slices) slice.remote += reached_->address();
    return reached_->move(direction, std::move(slices));
}

std::string Other::ask(const std::string& command) {
    child_.send(command);
    const std::string answer = child_.hear();
    if (!answer.starts_with("renewed ")) return answer;
    reached_ = std::make_unique<Reached>(side_, answer.substr(8));
    return "renewed";
}

int lend(const std::string& library) {
    // A library without a GPU may take a file for each chunk.
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    Side side(library);
    if (!side.ready) return 2;
    std::byte* card = side.app.must_allocate(kBytes);
    const MemoryRegion* region = side.add(card, kBytes);
    std::cout << side.offer(*region) << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        if (line == "remove") {
            const auto removed = side.remove(region);
            std::cout << (removed ? "removed" : removed.error().to_string()) << std::endl;
        } else if (line == "renew") {
            (void)side.app.free(address_of(card));
            card = side.app.must_allocate(kBytes);
            region = side.add(card, kBytes);
            std::cout << "renewed " << side.offer(*region) << std::endl;
        } else if (line == "chunks") {
            std::set<size_t> all;
            for (size_t i = 0; i < kChunks; ++i) all.insert(i);
            card = side.app.reserve(kChunks, all);
            region = side.add(card, kChunks * probe::Application::kChunk);
            std::cout << "renewed " << side.offer(*region) << std::endl;
        } else if (line == "unmap") {
            const auto status = side.app.cuda->vmm_unmap(address_of(card), probe::Application::kChunk);
            std::cout << side.app.name_of(status) << std::endl;
        }
    }
    return 0;
}

int write(const std::string& library) {
    Side side(library);
    if (!side.ready) return 2;
    const MemoryRegion* const card = side.add(side.app.must_allocate(kBytes / 4), kBytes / 4);
    std::string offer;
    std::getline(std::cin, offer);
    Reached reached(side, offer);
    for (uint64_t round = 0;; ++round) {
        (void)reached.move(Direction::kWrite,
                           {{.local = card->address, .remote = reached.address(), .length = kBytes / 4, .region = card}});
        if (round == 3) std::cout << "writing" << std::endl;
    }
}

}  // namespace pair
