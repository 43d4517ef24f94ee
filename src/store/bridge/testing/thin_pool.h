// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/incarnation.h"
#include "store/bridge/client/thin_client.h"
#include "store/bridge/server/bridge_server.h"
#include "store/process/testing/pool.h"

namespace mooncake::store::bridge::testing {

/// A pool with one node that serves thin clients, all in this process.
class ThinTest : public store::testing::ClientTest {
protected:
    /// On a port that nobody else in this network namespace names.
    void SetUp() override {
        node_ = client();
        ASSERT_NE(node_, nullptr);
        for (int tries = 0; tries < 100 && !server_; ++tries) {
            options_of_bridge_.port = static_cast<uint16_t>(1024 + random_u64() % 60000);
            start_server();
        }
        ASSERT_NE(server_, nullptr);
    }
    void TearDown() override {
        stop_server();
        if (node_) node_->close();
    }
    void start_server() {
        auto started = BridgeServer::start(*node_, options_of_bridge_);
        if (started) server_ = std::move(*started);
    }
    void stop_server() { server_.reset(); }

    std::unique_ptr<StoreClient> thin(uint64_t buffer_bytes = kMiB) {
        auto made = ThinClient::create(config(buffer_bytes));
        EXPECT_TRUE(made) << (made ? "" : store_code_name(made.error()));
        return made ? std::move(*made) : nullptr;
    }
    ThinConfig config(uint64_t buffer_bytes = kMiB) const {
        ThinConfig config;
        config.buffer_bytes = buffer_bytes;
        config.server_address = format_text("localhost:{}", options_of_bridge_.port);
        config.options.node_wait = wait_;
        return config;
    }

    std::unique_ptr<StoreClient> node_;
    std::unique_ptr<BridgeServer> server_;
    BridgeOptions options_of_bridge_;
    Duration wait_ = 5s;
};

}  // namespace mooncake::store::bridge::testing
