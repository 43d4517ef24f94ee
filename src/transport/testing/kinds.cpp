// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/kinds.h"

#include <cstring>
#include <utility>

#include "transport/testing/conformance.h"

namespace mooncake::testing {

namespace {

class HostMemory final : public KindMemory {
public:
    explicit HostMemory(uint64_t length) : memory_(length) {}
    MemoryRegion region() const override { return memory_.region(0, memory_.length()); }
    void write(std::span<const std::byte> from) override { std::memcpy(memory_.data(), from.data(), from.size()); }
    std::vector<std::byte> read() const override { return {memory_.data(), memory_.data() + memory_.length()}; }

private:
    const TestMemory memory_;
};

class FakeMemory final : public KindMemory {
public:
    FakeMemory(FakeDevice& device, uint64_t length) : device_(device), address_(device.allocate(length)), length_(length) {}
    ~FakeMemory() override { device_.free(address_); }
    FakeMemory(const FakeMemory&) = delete;
    FakeMemory& operator=(const FakeMemory&) = delete;

    MemoryRegion region() const override {
        return {.address = address_, .length = length_, .kind = device_.kind(), .device = 0, .location = "cuda:0"};
    }
    void write(std::span<const std::byte> from) override { device_.write(address_, from); }
    std::vector<std::byte> read() const override { return device_.read(address_, length_); }

private:
    FakeDevice& device_;
    std::byte* const address_;
    const uint64_t length_;
};

}  // namespace

KindAllocator::KindAllocator() {
    auto fake = std::make_unique<FakeDevice>(MemoryKind::kCuda);
    fake_ = fake.get();
    std::vector<std::unique_ptr<Device>> others;
    others.push_back(std::move(fake));
    devices_ = std::make_unique<Devices>(std::move(others));
}

std::unique_ptr<KindMemory> KindAllocator::allocate(MemoryKind kind, uint64_t length) {
    if (kind == MemoryKind::kHost) return std::make_unique<HostMemory>(length);
    return std::make_unique<FakeMemory>(*fake_, length);
}

}  // namespace mooncake::testing
