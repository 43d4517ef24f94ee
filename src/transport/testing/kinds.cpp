// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/kinds.h"

#include <cstring>
#include <set>
#include <utility>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"
#include "device/testing/fake_device.h"
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

class FakeKindDevice final : public KindDevice {
public:
    explicit FakeKindDevice(FakeDevice& device) : device_(device) {}
    std::unique_ptr<KindMemory> allocate(uint64_t length) override { return std::make_unique<FakeMemory>(device_, length); }
    uint64_t copies() const override { return device_.copies(); }
    void break_down() override { device_.break_down(); }
    void hold() override { device_.hold(); }
    void resume() override { device_.resume(); }
    unsigned held() const override { return device_.held(); }

private:
    FakeDevice& device_;  // belongs to the Devices
};

// ---- our own device, on a libcuda without a GPU

using cuda::testing::FakeCuda;

class CudaMemory final : public KindMemory {
public:
    /// `chunks`: as expandable segments have it; the memory begins and ends in the midst of one.
    CudaMemory(FakeCuda& cuda, uint64_t length, bool chunks)
        : cuda_(cuda), chunks_(chunks ? (length + 2 * kMargin + FakeCuda::kChunkBytes - 1) / FakeCuda::kChunkBytes : 0),
          base_(chunks ? cuda.reserve(chunks_, all_chunks()) : cuda.allocate(length)), address_(base_ + (chunks ? kMargin : 0)),
          length_(length) {}
    ~CudaMemory() override {
        FakeCuda::reset();  // perhaps the test broke it
        if (chunks_ > 0) cuda_.release(base_, chunks_, all_chunks());
        else cuda_.free(base_);
    }
    CudaMemory(const CudaMemory&) = delete;
    CudaMemory& operator=(const CudaMemory&) = delete;

    MemoryRegion region() const override {
        return {.address = address_, .length = length_, .kind = MemoryKind::kCuda, .device = 0, .location = "cuda:0"};
    }
    void write(std::span<const std::byte> from) override { cuda_.write(address_, from); }
    std::vector<std::byte> read() const override { return cuda_.read(address_, length_); }

private:
    static constexpr uint64_t kMargin = FakeCuda::kChunkBytes - 4096;

    std::set<size_t> all_chunks() const {
        std::set<size_t> all;
        for (size_t i = 0; i < chunks_; ++i) all.insert(i);
        return all;
    }

    FakeCuda& cuda_;
    const size_t chunks_;
    std::byte* const base_;
    std::byte* const address_;
    const uint64_t length_;
};

class CudaKindDevice final : public KindDevice {
public:
    explicit CudaKindDevice(bool chunks) : chunks_(chunks) {}
    std::unique_ptr<KindMemory> allocate(uint64_t length) override { return std::make_unique<CudaMemory>(cuda_, length, chunks_); }
    uint64_t copies() const override { return FakeCuda::count("copies"); }
    void break_down() override { FakeCuda::poison(0, cuda::abi::kIllegalAddress); }
    void hold() override { FakeCuda::hold_streams(true); }
    void resume() override { FakeCuda::hold_streams(false); }
    unsigned held() const override { return static_cast<unsigned>(FakeCuda::count("held")); }

private:
    const bool chunks_;
    FakeCuda cuda_;
};

}  // namespace

KindAllocator::KindAllocator(KindSource source) {
    std::vector<std::unique_ptr<Device>> others;
    if (source != KindSource::kFakeDevice) {
        device_ = std::make_unique<CudaKindDevice>(source == KindSource::kFakeChunks);
        others.push_back(std::make_unique<cuda::CudaDevice>(CudaOptions{}));
    } else {
        auto fake = std::make_unique<FakeDevice>(MemoryKind::kCuda);
        device_ = std::make_unique<FakeKindDevice>(*fake);
        others.push_back(std::move(fake));
    }
    devices_ = std::make_unique<Devices>(std::move(others));
}

KindAllocator::~KindAllocator() {
    devices_.reset();  // gives back what it has of the library
}

std::unique_ptr<KindMemory> KindAllocator::allocate(MemoryKind kind, uint64_t length) {
    if (kind == MemoryKind::kHost) return std::make_unique<HostMemory>(length);
    return device_->allocate(length);
}

}  // namespace mooncake::testing
