// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "store/process/store_client.h"
#include "store/process/store_process.h"
#include "store/service/testing/local_master.h"

namespace mooncake::store {

/// For the messages of failed tests; found by argument-dependent lookup.
inline void PrintTo(StoreCode code, std::ostream* to) { *to << store_code_name(code); }

namespace testing {

/// Bytes that tell which value they are of, and where in it they stand.
inline std::vector<std::byte> pattern(size_t length, uint64_t seed) {
    std::vector<std::byte> bytes(length);
    uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
    for (size_t i = 0; i < length; ++i) {
        if (i % 8 == 0) state = state * 6364136223846793005 + 1442695040888963407;
        bytes[i] = static_cast<std::byte>(state >> (8 * (i % 8)));
    }
    return bytes;
}

/// A master and some clients in one process, each with an engine of its own, and one line per call.
class ClientTest : public ::testing::Test {
protected:
    static constexpr uint64_t kMiB = 1 << 20;

    using Change = std::function<void(StoreConfig&)>;
    tl::expected<std::unique_ptr<StoreClient>, StoreCode> try_client(const Change& change = {}) {
        StoreConfig config;
        config.local_hostname = "127.0.0.1";
        config.segment_bytes = 16 * kMiB;
        config.buffer_bytes = kMiB;
        config.options.setup_tries = 100;
        if (change) change(config);
        return StoreProcess::create(std::move(config), master().connect(), membership_);
    }
    std::unique_ptr<StoreClient> client(const Change& change = {}) {
        auto made = try_client(change);
        EXPECT_TRUE(made) << (made ? "" : store_code_name(made.error()));
        return made ? std::move(*made) : nullptr;
    }
    /// A client that lends nothing.
    std::unique_ptr<StoreClient> requester(const Change& change = {}) {
        return client([&](StoreConfig& config) {
            config.segment_bytes = 0;
            if (change) change(config);
        });
    }
    LocalMaster& master() {
        if (!master_) master_ = std::make_unique<LocalMaster>(options_);
        return *master_;
    }

    static StoreCode put(StoreClient& client, std::string_view key, std::vector<std::byte>& value, const WriteConfig& config = {},
                         bool replace = false) {
        const Piece piece{value.data(), value.size()};
        const ValueToWrite one{.key = key, .pieces = {&piece, 1}};
        return client.write({&one, 1}, config, replace).at(0);
    }
    static StoreCode upsert(StoreClient& client, std::string_view key, std::vector<std::byte>& value) {
        return put(client, key, value, {}, true);
    }
    static int64_t get(StoreClient& client, std::string_view key, std::vector<std::byte>& into) {
        const Piece piece{into.data(), into.size()};
        const ValueToRead one{.key = key, .pieces = {&piece, 1}};
        return client.read({&one, 1}).at(0);
    }
    /// Reads and compares.
    static ::testing::AssertionResult holds(StoreClient& client, std::string_view key, const std::vector<std::byte>& value) {
        std::vector<std::byte> into(value.size() + 16, std::byte{0xee});
        const int64_t got = get(client, key, into);
        if (got != static_cast<int64_t>(value.size()))
            return ::testing::AssertionFailure() << key << ": " << got << " instead of " << value.size();
        if (std::memcmp(into.data(), value.data(), value.size()) != 0) return ::testing::AssertionFailure() << key << ": other bytes";
        if (into[value.size()] != std::byte{0xee}) return ::testing::AssertionFailure() << key << ": wrote beyond its end";
        return ::testing::AssertionSuccess();
    }
    static int exists(StoreClient& client, std::string_view key) { return client.exist({&key, 1}).at(0); }
    static StoreCode remove(StoreClient& client, std::string_view key, bool force = false) { return client.remove({&key, 1}, force).at(0); }
    static int64_t part(StoreClient& client, std::string_view key, uint64_t offset, std::vector<std::byte>& into) {
        const PartToRead one{.key = key, .offset = offset, .to = {into.data(), into.size()}};
        return client.read_parts({&one, 1}).at(0);
    }
    /// Waits until something comes true, against hangs only.
    static bool eventually(const std::function<bool()>& condition, Duration patience = 20s) {
        const Deadline deadline = Deadline::after(patience);
        while (!condition()) {
            if (deadline.passed()) return false;
            std::this_thread::yield();
        }
        return true;
    }
    /// Alters what lies in the segment of a client in this process, behind everybody's back.
    static void damage(StoreClient& reader, std::string_view key, uint64_t at, size_t replica = 0) {
        const ValueInfo info = reader.find({&key, 1}).at(0);
        ASSERT_EQ(info.code, StoreCode::kOk);
        ASSERT_GT(info.replicas.size(), replica);
        auto* const byte = reinterpret_cast<std::byte*>(info.replicas[replica].address + at);
        *byte = ~*byte;
    }

    MasterOptions options_ = LocalMaster::default_options();
    MembershipOptions membership_{.heartbeat_interval = 20ms, .retry_interval = 5ms};

private:
    std::unique_ptr<LocalMaster> master_;
};

}  // namespace testing
}  // namespace mooncake::store
