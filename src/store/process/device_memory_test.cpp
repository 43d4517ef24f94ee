// SPDX-License-Identifier: Apache-2.0
// Values in memory that no CPU may touch: the device traps every such touch.
#include <algorithm>
#include <cstring>
#include <string>

#include "device/testing/fake_device.h"
#include "store/process/testing/pool.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store::testing {
namespace {

using mooncake::testing::FakeDevice;

/// Where the values lie: in the same client, with another of this host, or on both.
enum class Where : uint8_t { kHere, kNear, kBoth };

class DeviceMemory : public ClientTest, public ::testing::WithParamInterface<Where> {
protected:
    static constexpr uint64_t kBytes = 8 * kMiB;

    void SetUp() override {
        auto device = std::make_unique<FakeDevice>();
        device_ = device.get();
        std::vector<std::unique_ptr<Device>> all;
        all.push_back(std::move(device));
        devices_ = std::make_unique<Devices>(std::move(all));
        host_ = GetParam() == Where::kHere ? nullptr : client();
        user_ = client([&](StoreConfig& config) {
            config.segment_bytes = GetParam() == Where::kNear ? 0 : 16 * kMiB;
            config.engine = engine();
        });
        memory_ = device_->allocate(kBytes);
        ASSERT_EQ(user_->register_buffer(memory_, kBytes), StoreCode::kOk);
        config_.replica_num = GetParam() == Where::kBoth ? 2 : 1;
    }
    void TearDown() override {
        if (user_) user_->unregister_buffer(memory_);
        user_.reset();
        engine_.reset();
    }
    std::shared_ptr<Engine> engine(std::vector<std::string> transports = {}) {
        EngineConfig config{.local_name = "127.0.0.1", .memory = devices_.get()};
        config.options.transports = std::move(transports);
        auto made = Engine::create(std::move(config));
        EXPECT_TRUE(made) << (made ? "" : made.error().to_string());
        engine_ = std::move(*made);
        return engine_;
    }
    /// The value is on the device, `at` bytes behind the beginning of its memory.
    Piece on_device(const std::vector<std::byte>& value, uint64_t at = 0) {
        device_->write(memory_ + at, value);
        return {memory_ + at, value.size()};
    }
    StoreCode put(std::string_view key, std::span<const Piece> pieces, bool replace = false) {
        const ValueToWrite one{.key = key, .pieces = pieces};
        return user_->write({&one, 1}, config_, replace).at(0);
    }
    int64_t get(std::string_view key, std::span<const Piece> pieces) {
        const ValueToRead one{.key = key, .pieces = pieces};
        return user_->read({&one, 1}).at(0);
    }

    FakeDevice* device_ = nullptr;
    std::unique_ptr<Devices> devices_;
    std::shared_ptr<Engine> engine_;
    std::unique_ptr<StoreClient> host_, user_;
    std::byte* memory_ = nullptr;
    WriteConfig config_;
};

TEST_P(DeviceMemory, ValuesComeFromItAndGoToIt) {
    for (const uint64_t length : {uint64_t{1}, uint64_t{1000}, kChunkBytes, kChunkBytes + 1, 3 * kMiB + 77}) {
        const std::string key = std::to_string(length);
        const auto value = pattern(length, length);
        const Piece from = on_device(value, 3);
        ASSERT_EQ(put(key, {&from, 1}), StoreCode::kOk) << length;
        EXPECT_TRUE(holds(*user_, key, value));
        const Piece into{memory_ + 4 * kMiB + 5, length};
        ASSERT_EQ(get(key, {&into, 1}), static_cast<int64_t>(length));
        EXPECT_EQ(device_->read(into.data, length), value) << length;
    }
}

TEST_P(DeviceMemory, MayHoldSomePiecesOfAValue) {
    const auto value = pattern(400'000, 7);
    const uint64_t cuts[] = {0, 100, 70'000, 70'001, 200'000, 400'000};  // every other piece is the host's
    std::vector<std::byte> host = value;
    std::vector<Piece> pieces;
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
        const std::span<const std::byte> part(value.data() + cuts[i], cuts[i + 1] - cuts[i]);
        if (i % 2 == 0) device_->write(memory_ + cuts[i], part);
        pieces.push_back({(i % 2 == 0 ? memory_ : host.data()) + cuts[i], part.size()});
    }
    ASSERT_EQ(put("k", pieces), StoreCode::kOk);
    EXPECT_TRUE(holds(*user_, "k", value));
    std::fill(host.begin(), host.end(), std::byte{0});
    device_->write(memory_, host);
    ASSERT_EQ(get("k", pieces), static_cast<int64_t>(value.size()));
    std::vector<std::byte> got;
    for (size_t i = 0; i < pieces.size(); ++i) {
        const auto part = i % 2 == 0 ? device_->read(pieces[i].data, pieces[i].length)
                                     : std::vector<std::byte>(pieces[i].data, pieces[i].data + pieces[i].length);
        got.insert(got.end(), part.begin(), part.end());
    }
    EXPECT_EQ(got, value);
}

TEST_P(DeviceMemory, PartsGoToIt) {
    const auto value = pattern(5 * kChunkBytes + 99, 3);
    const Piece from = on_device(value);
    ASSERT_EQ(put("k", {&from, 1}), StoreCode::kOk);
    for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
             {0, 10}, {kChunkBytes - 5, 10}, {kChunkBytes, 2 * kChunkBytes}, {77, 4 * kChunkBytes}, {0, value.size()}}) {
        std::byte* const into = memory_ + kMiB + 9;
        const PartToRead part{.key = "k", .offset = offset, .to = {into, length}};
        ASSERT_EQ(user_->read_parts({&part, 1}).at(0), static_cast<int64_t>(length)) << offset << " " << length;
        const auto got = device_->read(into, length);
        EXPECT_EQ(std::memcmp(got.data(), value.data() + offset, length), 0) << offset << " " << length;
    }
}

TEST_P(DeviceMemory, PartsComeFromIt) {
    const auto value = pattern(4 * kChunkBytes + 10, 5);
    on_device(value);
    const StoreClient::Reservation wanted{.key = "k", .length = value.size()};
    ASSERT_EQ(user_->open_writes({&wanted, 1}, config_).at(0), StoreCode::kOk);
    const uint64_t cut = kChunkBytes + 1000;
    for (const auto& [offset, length] : {std::pair{uint64_t{0}, cut}, std::pair{cut, value.size() - cut}}) {
        const PartToWrite part{.key = "k", .offset = offset, .from = {memory_ + offset, length}};
        ASSERT_EQ(user_->write_open({&part, 1}).at(0), static_cast<int64_t>(length));
    }
    const std::string_view key = "k";
    ASSERT_EQ(user_->close_writes({&key, 1}, false).at(0), StoreCode::kOk);
    EXPECT_TRUE(holds(*user_, "k", value));
}

TEST_P(DeviceMemory, WhatGoesToItIsVerified) {
    config_.replica_num = 1;
    const auto value = pattern(3 * kChunkBytes, 9);
    const Piece from = on_device(value);
    ASSERT_EQ(put("k", {&from, 1}), StoreCode::kOk);
    damage(*user_, "k", 2 * kChunkBytes + 1);
    const Piece into{memory_ + kMiB, value.size()};
    EXPECT_EQ(get("k", {&into, 1}), static_cast<int64_t>(StoreCode::kChecksumMismatch));
    const PartToRead good{.key = "k", .offset = 100, .to = {memory_ + kMiB, kChunkBytes}};
    EXPECT_EQ(user_->read_parts({&good, 1}).at(0), static_cast<int64_t>(kChunkBytes));
    const PartToRead bad{.key = "k", .offset = 2 * kChunkBytes, .to = {memory_ + kMiB, kChunkBytes}};
    EXPECT_EQ(user_->read_parts({&bad, 1}).at(0), static_cast<int64_t>(StoreCode::kChecksumMismatch));
}

INSTANTIATE_TEST_SUITE_P(Store, DeviceMemory, ::testing::Values(Where::kHere, Where::kNear, Where::kBoth), [](const auto& param) {
    return param.param == Where::kHere ? "Here" : param.param == Where::kNear ? "Near" : "Both";
});

class DeviceMemoryHere : public DeviceMemory {};

TEST_P(DeviceMemoryHere, ADeviceThatFailsCostsTheCallAlone) {
    auto value = pattern(2 * kChunkBytes, 1);
    const Piece piece = on_device(value);
    ASSERT_EQ(put("k", {&piece, 1}), StoreCode::kOk);
    device_->break_down();
    EXPECT_EQ(get("k", {&piece, 1}), static_cast<int64_t>(StoreCode::kTransferFail));
    EXPECT_EQ(put("other", {&piece, 1}), StoreCode::kTransferFail);
    EXPECT_TRUE(holds(*user_, "k", value));
    EXPECT_EQ(ClientTest::put(*user_, "third", value), StoreCode::kOk) << "nobody is to blame but the device";
}

INSTANTIATE_TEST_SUITE_P(Store, DeviceMemoryHere, ::testing::Values(Where::kHere));

class DeviceMemoryFarAway : public DeviceMemory {};

TEST_P(DeviceMemoryFarAway, IsReachedOverTheNetwork) {
    user_->unregister_buffer(memory_);
    user_ = requester([&](StoreConfig& config) { config.engine = engine({"tcp"}); });
    ASSERT_EQ(user_->register_buffer(memory_, kBytes), StoreCode::kOk);
    for (const uint64_t length : {uint64_t{1000}, 3 * kMiB + 5}) {
        const std::string key = format_text("k{}", length);
        auto value = pattern(length, 2);
        const Piece piece = on_device(value);
        ASSERT_EQ(put(key, {&piece, 1}), StoreCode::kOk);
        EXPECT_TRUE(holds(*user_, key, value));
        device_->write(memory_, std::vector<std::byte>(length));
        ASSERT_EQ(get(key, {&piece, 1}), static_cast<int64_t>(length));
        EXPECT_EQ(device_->read(memory_, length), value);
    }
}

INSTANTIATE_TEST_SUITE_P(Store, DeviceMemoryFarAway, ::testing::Values(Where::kNear));

}  // namespace
}  // namespace mooncake::store::testing
