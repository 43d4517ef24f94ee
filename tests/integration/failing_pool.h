// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "metrics/metrics.h"
#include "store/process/store_client.h"
#include "tests/integration/store_role.h"

namespace mooncake::store {

constexpr uint64_t kMiB = 1 << 20;
constexpr int64_t kMiss = static_cast<int64_t>(StoreCode::kObjectNotFound), kFailed = static_cast<int64_t>(StoreCode::kTransferFail);

inline std::vector<std::byte> pattern(size_t length, uint64_t seed) {
    std::vector<std::byte> bytes(length);
    for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>((i * 131 + seed * 7919) >> 3);
    return bytes;
}

/// Waits until something comes true, against hangs only.
template <typename Condition>
bool eventually(Condition&& condition) {
    const Deadline deadline = Deadline::after(60s);
    while (!condition()) {
        if (deadline.passed()) return false;
        std::this_thread::yield();
    }
    return true;
}

/// Nodes and a master in processes of their own, and clients of them here; the parameter is the transport.
class FailingPool : public ::testing::TestWithParam<const char*> {
protected:
    /// `unsent_ms`: EventHubOptions::unsent_timeout. `client_ttl_ms`: for so long silence is borne.
    void start_master(const std::string& unsent_ms = "2000", const std::string& client_ttl_ms = "10000") {
        master_ = std::make_unique<RoleProcess>(
            std::vector<std::string>{"master", std::to_string(port_), client_ttl_ms, "5000", unsent_ms});
        std::istringstream(master_->line()) >> port_;
        ASSERT_NE(port_, 0);
    }
    /// How often a segment let this client down: each time cost some call its patience.
    static uint64_t failures(StoreClient& client) {
        const std::string text = client.metrics().to_prometheus_text(), name = "\nmooncake_client_replica_failures_total";
        const size_t line = text.find(name);
        EXPECT_NE(line, std::string::npos);
        return std::stoull(text.substr(text.find(' ', line)));
    }
    std::string address() const { return format_text("127.0.0.1:{}", port_); }
    /// Its process; `name` becomes that of its segment, and is its address if it is not empty.
    std::unique_ptr<RoleProcess> lender(std::string& name) {
        std::vector<std::string> arguments{"client", address(), std::to_string(64 * kMiB), GetParam()};
        if (!name.empty()) arguments.push_back(name);
        auto process = std::make_unique<RoleProcess>(arguments);
        name = process->line();
        EXPECT_FALSE(name.empty());
        return process;
    }
    std::unique_ptr<StoreClient> client() {
        StoreConfig config;
        config.local_hostname = "127.0.0.1";
        config.master = address();
        config.segment_bytes = config.buffer_bytes = 0;
        if (std::string(GetParam()) == "tcp") config.options.engine.transports = {"tcp"};
        auto made = StoreClient::create(std::move(config));
        // There is nothing to go on with: the test ends here, with this as its failure.
        if (!made) throw std::runtime_error(format_text("no client of {}: {}", address(), store_code_name(made.error())));
        return std::move(*made);
    }
    static StoreCode put(StoreClient& client, std::string_view key, std::vector<std::byte>& value, const WriteConfig& config = {},
                         bool replace = false) {
        const Piece piece{value.data(), value.size()};
        const ValueToWrite one{.key = key, .pieces = {&piece, 1}, .group = {}};
        return client.write({&one, 1}, config, replace).at(0);
    }
    /// What read() answers; where that is a length, the bytes have been compared.
    static int64_t get(StoreClient& client, std::string_view key, const std::vector<std::byte>& value) {
        std::vector<std::byte> into(value.size());
        const Piece piece{into.data(), into.size()};
        const ValueToRead one{.key = key, .pieces = {&piece, 1}};
        const int64_t got = client.read({&one, 1}).at(0);
        EXPECT_TRUE(got < 0 || into == value) << key;
        return got;
    }

    std::unique_ptr<RoleProcess> master_;
    uint16_t port_ = 0;
};

}  // namespace mooncake::store
