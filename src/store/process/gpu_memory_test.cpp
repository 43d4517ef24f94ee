// SPDX-License-Identifier: Apache-2.0
// Values in memory of GPUs, by our own code for them on a libcuda without one: what crosses the bus, what is pinned, and what goes wrong.
#include <algorithm>
#include <cstring>
#include <string>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"
#include "store/process/testing/pool.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store::testing {
namespace {

using cuda::testing::FakeCuda;

/// Where the values lie: in the same client, or with another of this host: mapped, or over a socket.
enum class Where : uint8_t { kHere, kNear, kFar };

class GpuMemory : public ClientTest, public ::testing::WithParamInterface<Where> {
protected:
    static constexpr uint64_t kBytes = 8 * kMiB, kPinChunk = 4 * kMiB;

    void SetUp() override { start(64 * kMiB); }
    void start(uint64_t pin_max) {
        auto device = std::make_unique<cuda::CudaDevice>(CudaOptions{.pin_max = pin_max, .pin_chunk = kPinChunk});
        device_ = device.get();
        std::vector<std::unique_ptr<Device>> all;
        all.push_back(std::move(device));
        devices_ = std::make_unique<Devices>(std::move(all));
        host_ = GetParam() == Where::kHere ? nullptr : client();
        EngineConfig config{.local_name = "127.0.0.1", .memory = devices_.get()};
        if (GetParam() == Where::kFar) config.options.transports = {"tcp"};
        user_ = client([&](StoreConfig& options) {
            options.segment_bytes = GetParam() == Where::kHere ? 16 * kMiB : 0;
            options.engine = Engine::create(std::move(config)).value();
        });
        memory_ = fake_.allocate(kBytes);
        ASSERT_EQ(user_->register_buffer(memory_, kBytes), StoreCode::kOk);
    }
    void TearDown() override {
        user_.reset();
        host_.reset();
        EXPECT_EQ(device_ == nullptr ? 0 : device_->pinned_bytes(), 0u);
        devices_.reset();
        EXPECT_EQ(FakeCuda::count("live:pinned"), pinned_) << "pins and staging memory are given back";
        EXPECT_EQ(FakeCuda::count("pageable"), 0u);
        EXPECT_EQ(FakeCuda::count("unrelaxed"), 0u);
        if (memory_ != nullptr) fake_.free(memory_);
    }
    StoreCode put(std::string_view key, std::span<const Piece> pieces, bool replace = true) {
        const ValueToWrite one{.key = key, .pieces = pieces};
        return user_->write({&one, 1}, {}, replace).at(0);
    }
    int64_t get(std::string_view key, std::span<const Piece> pieces) {
        const ValueToRead one{.key = key, .pieces = pieces};
        return user_->read({&one, 1}).at(0);
    }
    /// How many bytes the GPU has copied for this.
    template <typename Call>
    static uint64_t bytes_for(Call&& call) {
        const auto all = [] { return FakeCuda::count("bytes") + FakeCuda::count("kernel_bytes"); };
        const uint64_t before = all();
        call();
        return all() - before;
    }
    static uint64_t copies() { return FakeCuda::count("copies"); }
    /// Whether a put is one copy, or two where it lies across the border of what is pinned at one go.
    bool puts_directly(const Piece& piece) {
        const uint64_t before = copies();
        EXPECT_EQ(put("k", {&piece, 1}), StoreCode::kOk);
        return copies() - before <= 2;
    }

    FakeCuda fake_;
    const uint64_t pinned_ = FakeCuda::count("live:pinned");
    cuda::CudaDevice* device_ = nullptr;
    std::unique_ptr<Devices> devices_;
    std::unique_ptr<StoreClient> host_, user_;
    std::byte* memory_ = nullptr;
};

TEST_P(GpuMemory, AValueCrossesTheBusOnceEachWay) {
    const auto value = pattern(3 * kMiB + 77, 1);
    fake_.write(memory_, value);
    const Piece from{memory_, value.size()}, into{memory_ + 4 * kMiB, value.size()};
    EXPECT_EQ(bytes_for([&] { ASSERT_EQ(put("k", {&from, 1}), StoreCode::kOk); }), value.size()) << "not once more for its checksum";
    EXPECT_TRUE(holds(*user_, "k", value));
    EXPECT_EQ(bytes_for([&] { ASSERT_EQ(get("k", {&into, 1}), static_cast<int64_t>(value.size())); }), value.size());
    EXPECT_EQ(fake_.read(into.data, value.size()), value);
}

TEST_P(GpuMemory, ScatteredPiecesCrossItOnceToo) {
    // In an order of their own, of lengths that chunks are cut across, and some of them the host's.
    constexpr uint64_t kPiece = 10'000, kCount = 200;
    const auto value = pattern(kPiece * kCount, 2);
    std::vector<std::byte> host(kPiece * kCount);
    std::vector<Piece> pieces;
    for (uint64_t i = 0; i < kCount; ++i) {
        const std::span<const std::byte> part(value.data() + i * kPiece, kPiece);
        std::byte* at = memory_ + (kCount - 1 - i) * 2 * kPiece;
        if (i % 7 == 3) std::memcpy(at = host.data() + i * kPiece, part.data(), kPiece);
        else fake_.write(at, part);
        pieces.push_back({at, kPiece});
    }
    const uint64_t on_gpu = kPiece * (kCount - (kCount - 4) / 7 - 1);
    ASSERT_EQ(user_->register_buffer(host.data(), host.size()), StoreCode::kOk);
    EXPECT_EQ(bytes_for([&] { ASSERT_EQ(put("k", pieces), StoreCode::kOk); }), on_gpu);
    EXPECT_TRUE(holds(*user_, "k", value));
    for (const Piece& piece : pieces)
        if (piece.data < memory_ || piece.data >= memory_ + kBytes) std::memset(piece.data, 0, kPiece);
        else fake_.write(piece.data, std::vector<std::byte>(kPiece));
    EXPECT_EQ(bytes_for([&] { ASSERT_EQ(get("k", pieces), static_cast<int64_t>(value.size())); }), on_gpu);
    for (uint64_t i = 0; i < kCount; ++i) {
        const bool on_host = i % 7 == 3;
        const auto got = on_host ? std::vector<std::byte>(pieces[i].data, pieces[i].data + kPiece) : fake_.read(pieces[i].data, kPiece);
        ASSERT_EQ(std::memcmp(got.data(), value.data() + i * kPiece, kPiece), 0) << i;
    }
    EXPECT_EQ(user_->unregister_buffer(host.data()), StoreCode::kOk);
}

TEST_P(GpuMemory, PartsCrossItOnceToo) {
    const auto value = pattern(8 * kChunkBytes + 5, 3);
    fake_.write(memory_, value);
    const StoreClient::Reservation wanted{.key = "k", .length = value.size()};
    ASSERT_EQ(user_->open_writes({&wanted, 1}, {}).at(0), StoreCode::kOk);
    const uint64_t cut = 3 * kChunkBytes + 1000;
    EXPECT_EQ(bytes_for([&] {
                  for (const auto& [offset, length] : {std::pair{uint64_t{0}, cut}, std::pair{cut, value.size() - cut}}) {
                      const PartToWrite part{.key = "k", .offset = offset, .from = {memory_ + offset, length}};
                      ASSERT_EQ(user_->write_open({&part, 1}).at(0), static_cast<int64_t>(length));
                  }
                  const std::string_view key = "k";
                  ASSERT_EQ(user_->close_writes({&key, 1}, false).at(0), StoreCode::kOk);
              }),
              value.size());
    EXPECT_TRUE(holds(*user_, "k", value));
    std::byte* const into = memory_ + 4 * kMiB;
    const PartToRead part{.key = "k", .offset = kChunkBytes - 10, .to = {into, 4 * kChunkBytes}};
    EXPECT_EQ(bytes_for([&] { ASSERT_EQ(user_->read_parts({&part, 1}).at(0), static_cast<int64_t>(part.to.length)); }), part.to.length);
    const auto got = fake_.read(into, part.to.length);
    EXPECT_EQ(std::memcmp(got.data(), value.data() + part.offset, part.to.length), 0);
}

TEST_P(GpuMemory, OfAPoolOfThisHostTheGpuCopiesDirectlyOnceItIsPinned) {
    const auto value = pattern(3 * kMiB, 4);
    fake_.write(memory_, value);
    const Piece piece{memory_, value.size()};
    if (GetParam() == Where::kFar) {
        ASSERT_EQ(put("k", {&piece, 1}), StoreCode::kOk);
        EXPECT_EQ(device_->pinned_bytes(), 0u) << "nothing of it is mapped";
        return;
    }
    ASSERT_TRUE(eventually([&] { return puts_directly(piece); }));
    EXPECT_GT(device_->pinned_bytes(), 0u);
    fake_.write(memory_, std::vector<std::byte>(value.size()));
    const uint64_t before = copies();
    ASSERT_EQ(get("k", {&piece, 1}), static_cast<int64_t>(value.size()));
    EXPECT_LE(copies() - before, 2u);
    EXPECT_EQ(fake_.read(memory_, value.size()), value);
}

TEST_P(GpuMemory, WithoutAQuotaItPassesThroughBuffers) {
    TearDown();
    FakeCuda::reset();
    start(0);
    const auto value = pattern(3 * kMiB, 5);
    fake_.write(memory_, value);
    const Piece piece{memory_, value.size()};
    for (int i = 0; i < 5; ++i) ASSERT_EQ(put("k", {&piece, 1}), StoreCode::kOk);
    EXPECT_EQ(device_->pinned_bytes(), 0u);
    EXPECT_TRUE(holds(*user_, "k", value));
}

TEST_P(GpuMemory, ThatWasFreedIsAnErrorOfTheCallAndNoWrongBytes) {
    const auto value = pattern(300'000, 6);
    fake_.write(memory_, value);
    const Piece piece{memory_, value.size()};
    ASSERT_EQ(put("k", {&piece, 1}), StoreCode::kOk);
    fake_.free(std::exchange(memory_, nullptr));
    EXPECT_EQ(put("other", {&piece, 1}), StoreCode::kTransferFail);
    EXPECT_EQ(exists(*user_, "other"), 0);
    EXPECT_EQ(get("k", {&piece, 1}), static_cast<int64_t>(StoreCode::kTransferFail));
    auto host = pattern(1000, 7);
    EXPECT_EQ(ClientTest::put(*user_, "third", host), StoreCode::kOk) << "nobody else is to blame";
    EXPECT_TRUE(holds(*user_, "k", value));
    user_->unregister_buffer(piece.data);
}

TEST_P(GpuMemory, WhatLiesInThePoolIsVerified) {
    const auto value = pattern(3 * kChunkBytes, 8);
    fake_.write(memory_, value);
    const Piece piece{memory_, value.size()};
    ASSERT_EQ(put("k", {&piece, 1}), StoreCode::kOk);
    damage(*user_, "k", kChunkBytes + 1);
    EXPECT_EQ(get("k", {&piece, 1}), static_cast<int64_t>(StoreCode::kChecksumMismatch));
    const PartToRead part{.key = "k", .offset = kChunkBytes, .to = {memory_, kChunkBytes}};
    EXPECT_EQ(user_->read_parts({&part, 1}).at(0), static_cast<int64_t>(StoreCode::kChecksumMismatch));
}

TEST_P(GpuMemory, NeedNotBeRegistered) {
    std::byte* const other = fake_.allocate(2 * kMiB);
    const auto value = pattern(200'000, 9);
    fake_.write(other + 100, value);
    Piece from{other + 100, value.size()};
    {
        const MemoryLoan loan = user_->drop_unreadable({&from, 1});
        ASSERT_NE(from.data, nullptr);
        EXPECT_EQ(put("k", {&from, 1}), StoreCode::kOk);
    }
    EXPECT_TRUE(holds(*user_, "k", value));
    const Piece into{other + kMiB, value.size()};
    {
        const MemoryLoan loan = user_->look_at({&into, 1});
        EXPECT_FALSE(loan.unsure);
        EXPECT_EQ(get("k", {&into, 1}), static_cast<int64_t>(value.size()));
    }
    EXPECT_EQ(fake_.read(into.data, value.size()), value);
    EXPECT_EQ(user_->register_buffer(other, 2 * kMiB), StoreCode::kOk) << "nothing of the loans is left";
    EXPECT_EQ(user_->unregister_buffer(other), StoreCode::kOk);
    fake_.free(other);
    Piece gone{other, 4096};
    const MemoryLoan loan = user_->drop_unreadable({&gone, 1});
    EXPECT_EQ(gone.data, nullptr) << "nobody has memory there";
    EXPECT_TRUE(user_->look_at({&from, 1}).unsure);
}

INSTANTIATE_TEST_SUITE_P(Store, GpuMemory, ::testing::Values(Where::kHere, Where::kNear, Where::kFar), [](const auto& param) {
    return param.param == Where::kHere ? "Here" : param.param == Where::kNear ? "Near" : "Far";
});

}  // namespace
}  // namespace mooncake::store::testing
