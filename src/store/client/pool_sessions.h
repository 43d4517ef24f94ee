// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/client/part_sessions.h"
#include "store/client/pool_client.h"
#include "store/client/read_sessions.h"
#include "store/client/write_sessions.h"

namespace mooncake::store {

/// Those of one user of a client, which lets its calls in.
class PoolClient::Sessions final : public PartSessions {
public:
    explicit Sessions(PoolClient& client) : client_(client), reads_(*client.core_), writes_(*client.core_) {
        Lock lock(client_.sessions_mutex_);
        client_.all_sessions_.insert(this);
    }
    ~Sessions() override {
        {
            Lock lock(client_.sessions_mutex_);
            client_.all_sessions_.erase(this);
        }
        if (const auto pass = client_.enter()) writes_.revoke_all();
    }
    void forget_reads() { reads_.forget_all(); }

    std::vector<StoreCode> open_reads(std::span<const std::string_view> keys) override;
    std::vector<int64_t> read_open(std::span<const PartToRead> parts) override;
    bool close_reads(std::span<const std::string_view> keys) override;
    std::vector<StoreCode> open_writes(std::span<const Reservation> values, const WriteConfig& config) override;
    std::vector<int64_t> write_open(std::span<const PartToWrite> parts) override;
    std::vector<StoreCode> close_writes(std::span<const std::string_view> keys, bool revoke) override;

private:
    PoolClient& client_;
    ReadSessions reads_;
    WriteSessions writes_;
};

}  // namespace mooncake::store
