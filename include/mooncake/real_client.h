// SPDX-License-Identifier: Apache-2.0
#pragma once

// The store for C++ programs that were written against classes of these names. Only what is in store_c.h stands behind it, so that
// nothing but libmooncake_store.so is needed. C++17.
//
//     auto client = mooncake::RealClient::create();
//     if (!client->setup_internal({{"local_hostname", "10.0.0.1"}, {"metadata_server", "P2PHANDSHAKE"}}).has_value()) ...

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "store_c.h"

namespace mooncake {

using ConfigDict = std::unordered_map<std::string, std::string>;

struct GlobalConfig {
    size_t max_mr_size = SIZE_MAX;  // longest range that can be registered at once
};
inline GlobalConfig& globalConfig() {
    static GlobalConfig config;
    return config;
}

/// A member of the pool. Thread-safe.
class PyClient {
public:
    PyClient() = default;
    PyClient(const PyClient&) = delete;
    PyClient& operator=(const PyClient&) = delete;
    virtual ~PyClient() = default;

    /// Bytes, or a negative code.
    virtual int64_t get_into(const std::string& key, void* buffer, size_t size) = 0;
    virtual int put_from(const std::string& key, void* buffer, size_t size) = 0;
    virtual int isExist(const std::string& key) = 0;
    virtual int register_buffer(void* buffer, size_t size) = 0;
    virtual int unregister_buffer(void* buffer) = 0;
    /// Leaves the pool.
    virtual int tearDownAll() = 0;
};

class RealClient : public PyClient {
public:
    static std::shared_ptr<RealClient> create() { return std::make_shared<RealClient>(); }

    RealClient() : store_(mooncake_store_create()) {}
    ~RealClient() override { mooncake_store_destroy(store_.load()); }

    /// Keys as in MooncakeDistributedStore.setup(); sizes are numbers of bytes. Empty on failure: see last_code().
    std::optional<int> setup_internal(const ConfigDict& config) {
        const auto text = [&](const char* name, const char* other_name, const char* otherwise) {
            for (const char* const key : {name, other_name}) {
                const auto found = config.find(key);
                if (found != config.end()) return found->second;
            }
            return std::string(otherwise);
        };
        const auto size = [&](const char* name) -> uint64_t {
            const std::string digits = text(name, name, "16777216");
            const bool sound = !digits.empty() && digits.size() < 20 && digits.find_first_not_of("0123456789") == std::string::npos;
            return sound ? std::stoull(digits) : UINT64_MAX;
        };
        const uint64_t segment = size("global_segment_size"), buffer = size("local_buffer_size");
        const int code = segment == UINT64_MAX || buffer == UINT64_MAX
                             ? -600
                             : mooncake_store_setup(store_.load(), text("local_hostname", "hostname", "").c_str(),
                                                    text("metadata_server", "metadata_server", "P2PHANDSHAKE").c_str(), segment, buffer,
                                                    text("protocol", "protocol", "tcp").c_str(),
                                                    text("rdma_devices", "device_name", "").c_str(),
                                                    text("master_server_addr", "master_server_address", "127.0.0.1:50051").c_str());
        code_.store(code);
        return code == 0 ? std::optional<int>(0) : std::nullopt;
    }
    /// What the last setup_internal() came to.
    int last_code() const { return code_.load(); }

    int64_t get_into(const std::string& key, void* buffer, size_t size) override {
        return mooncake_store_get_into_n(store_.load(), key.data(), key.size(), buffer, size);
    }
    int put_from(const std::string& key, void* buffer, size_t size) override {
        return mooncake_store_put_from_n(store_.load(), key.data(), key.size(), buffer, size, nullptr);
    }
    int isExist(const std::string& key) override { return mooncake_store_is_exist_n(store_.load(), key.data(), key.size()); }
    int register_buffer(void* buffer, size_t size) override { return mooncake_store_register_buffer(store_.load(), buffer, size); }
    int unregister_buffer(void* buffer) override { return mooncake_store_unregister_buffer(store_.load(), buffer); }
    int tearDownAll() override {
        mooncake_store_destroy(store_.exchange(mooncake_store_create()));  // calls of other threads end with -1010 or go to the new one
        return 0;
    }

private:
    std::atomic<mooncake_store_t> store_;
    std::atomic<int> code_{0};
};

}  // namespace mooncake
