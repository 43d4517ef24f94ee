// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/conformance.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace mooncake::testing {

TestMemory::TestMemory(uint64_t length, MemorySource source) : length_(length) {
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    if (source == MemorySource::kShared) {
        shared_ = allocate_shared_memory(length).value();
        data_ = shared_.address();
        return;
    }
    const uint64_t inner = (length + page - 1) / page * page;
    void* const address = ::mmap(nullptr, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MC_CHECK(address != MAP_FAILED);
    reserved_ = Mapping(address, inner + 2 * page);
    data_ = reserved_.address() + page;
    MC_CHECK(::mprotect(data_, inner, PROT_READ | PROT_WRITE) == 0);
}

TestMemory::~TestMemory() = default;

MemoryRegion TestMemory::region(uint64_t offset, uint64_t length) const {
    return {.address = data_ + offset, .length = length, .location = "*", .shared_fd = shared_.fd(), .shared_offset = offset};
}

void TestMemory::fill(std::byte value) const { std::memset(data_, static_cast<int>(value), length_); }

void TestMemory::fill_random(uint64_t seed, uint64_t length) const {
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < length; i += sizeof(uint64_t)) {
        const uint64_t word = random();
        std::memcpy(data_ + i, &word, std::min<uint64_t>(sizeof word, length - i));
    }
}

bool TestMemory::all(std::byte value) const {
    return length_ == 0 || (data_[0] == value && std::memcmp(data_, data_ + 1, length_ - 1) == 0);
}

TransportHost::TransportHost(const MakeTransport& make, EngineOptions options, Devices& devices) : options_(std::move(options)) {
    auto made = make(TransportContext{
        .incarnation = incarnation_, .options = options_, .access = access_, .control = control_, .metrics = nullptr, .devices = &devices});
    if (!made) ADD_FAILURE() << made.error().to_string();
    transport_ = std::move(made).value();
}

TransportHost::~TransportHost() { shut_down(); }

void TransportHost::shut_down() {
    while (!entries_.empty()) EXPECT_TRUE(remove(&entries_.back()->region));
    transport_.reset();
}

SegmentDescriptor TransportHost::describe() const {
    SegmentDescriptor descriptor{
        .name = "test", .incarnation = incarnation_, .host = "127.0.0.1", .rpc_port = control_.port(), .boot_id = boot_id()};
    descriptor.endpoints[std::string(transport_->capabilities().name)] = transport_->endpoint();
    return descriptor;
}

const MemoryRegion* TransportHost::add(const MemoryRegion& region) {
    auto entry = std::make_unique<Entry>(Entry{.region = region, .registration = nullptr});
    auto registration = transport_->register_memory(entry->region);
    if (!registration) ADD_FAILURE() << registration.error().to_string();
    entry->registration = std::move(registration).value();
    access_.allow({.range = {reinterpret_cast<uint64_t>(region.address), region.length},
                   .most = region.writable ? Access::kWrite : Access::kRead,
                   .kind = region.kind});
    entries_.push_back(std::move(entry));
    return &entries_.back()->region;
}

Result<> TransportHost::remove(const MemoryRegion* region, Deadline deadline) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [region](const auto& entry) { return &entry->region == region; });
    MC_CHECK(found != entries_.end());
    if (!access_.revoke(reinterpret_cast<uint64_t>(region->address), deadline)) return fail(Code::kBusy, "an access still runs");
    if ((*found)->registration) MC_RETURN_IF_ERROR((*found)->registration->revoke(deadline));
    entries_.erase(found);
    return {};
}

Result<> TransportHost::close(Deadline deadline) {
    if (!access_.close(deadline)) return fail(Code::kBusy, "an access still runs");
    return transport_->stop_serving(deadline);
}

TransportPair::TransportPair(const TransportCase& kind, Devices& devices)
    : target_host(std::make_unique<TransportHost>(kind.make, kind.options, devices)) {
    if (!kind.same_process) initiator_host = std::make_unique<TransportHost>(kind.make, kind.options, devices);
}

std::unique_ptr<Peer> TransportPair::connect() {
    auto connected = initiator().transport().connect(target().describe(), patience());
    if (!connected) ADD_FAILURE() << connected.error().to_string();
    return std::move(connected).value();
}

Result<uint64_t> transfer(Peer& peer, Direction direction, std::span<Slice> slices, Submit how) {
    Completion completion;
    completion.add(static_cast<uint32_t>(slices.size()));
    for (Slice& slice : slices) slice.completion = &completion;
    peer.submit(direction, slices, how);
    if (!peer.wait(completion, patience())) {
        ADD_FAILURE() << "a transfer did not end";
        peer.cancel(completion, Error(Code::kTimedOut, "the test gave up"), patience());  // it is done then
    }
    return completion.result();
}

void TransportConformance::SetUp() {
    pair.emplace(GetParam());
    remote = std::make_unique<TestMemory>(kAreaBytes, GetParam().target_memory);
    local = std::make_unique<TestMemory>(kAreaBytes);
    remote_region = pair->target().add(*remote);
    local_region = pair->initiator().add(*local);
    peer = pair->connect();
}

void TransportConformance::TearDown() {
    peer.reset();
    pair.reset();
}

Slice TransportConformance::slice(uint64_t local_offset, uint64_t remote_offset, uint64_t length) const {
    return {.local = local->data() + local_offset, .remote = remote->address() + remote_offset, .length = length, .region = local_region};
}

}  // namespace mooncake::testing
