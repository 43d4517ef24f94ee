// SPDX-License-Identifier: Apache-2.0
#include "mooncake/store_c.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/border.h"
#include "base/options.h"
#include "store_capi/live_stores.h"

using namespace mooncake;
using namespace mooncake::store_capi;
using store::StoreCode;

namespace {

constexpr int kInvalid = static_cast<int>(StoreCode::kInvalidParams);
constexpr int kBroken = static_cast<int>(StoreCode::kInternalError);
constexpr size_t kItemsMax = size_t{1} << 24;  // of one call: more can only be a mistake

using Client = std::shared_ptr<store::StoreClient>;

StoreHandle handle_of(mooncake_store_t store) { return reinterpret_cast<uintptr_t>(store); }
Client use(mooncake_store_t store) { return client_of(handle_of(store)); }

store::WriteConfig config_from(const mooncake_replicate_config_t* given) {
    store::WriteConfig config;
    if (given == nullptr) return config;
    config.replica_num = static_cast<uint32_t>(given->replica_num);
    if (given->with_soft_pin != 0) config.soft_pin = store::SoftPinAction::kEnable;
    config.hard_pin = given->with_hard_pin != 0;
    for (size_t i = 0; given->preferred_segments != nullptr && i < given->preferred_segments_count; ++i)
        if (given->preferred_segments[i] != nullptr) config.preferred_segments.emplace_back(given->preferred_segments[i]);
    return config;
}

bool is_sound(const mooncake_replicate_config_t* given) {
    constexpr size_t kReplicasMax = 1 << 16;
    return given == nullptr || (given->replica_num > 0 && given->replica_num <= kReplicasMax);
}

std::string text_or_empty(const char* text) { return text != nullptr ? text : ""; }

/// Nothing for NULL, which no key is.
std::optional<std::string_view> key_of(const char* key) { return key != nullptr ? std::optional<std::string_view>(key) : std::nullopt; }
std::optional<std::string_view> key_of(const void* key, size_t size) {
    if (key == nullptr && size != 0) return std::nullopt;
    return std::string_view(static_cast<const char*>(key), size);
}

int put(mooncake_store_t store, std::optional<std::string_view> key, void* value, size_t size, const mooncake_replicate_config_t* config) {
    const Client client = use(store);
    if (!client || !key || value == nullptr || size == 0 || !is_sound(config)) return kInvalid;
    store::Piece piece{static_cast<std::byte*>(value), size};
    const store::MemoryLoan loan = client->drop_unreadable(std::span(&piece, 1));
    const store::ValueToWrite wanted{*key, std::span(&piece, 1), {}};
    return static_cast<int>(client->write(std::span(&wanted, 1), config_from(config), false).front());
}

int64_t get_into(mooncake_store_t store, std::optional<std::string_view> key, void* buffer, size_t size) {
    const Client client = use(store);
    if (!client || !key || buffer == nullptr) return kInvalid;
    const store::Piece piece{static_cast<std::byte*>(buffer), size};
    const store::MemoryLoan loan = client->look_at(std::span(&piece, 1));
    const store::ValueToRead wanted{*key, std::span(&piece, 1), loan.unsure};
    return client->read(std::span(&wanted, 1)).front();
}

int is_exist(mooncake_store_t store, std::optional<std::string_view> key) {
    const Client client = use(store);
    if (!client || !key) return kInvalid;
    return client->exist(std::span(&*key, 1)).front();
}

/// Ends a setup() with the client it made, if any, also when making it threw.
struct SetupTurn {
    ~SetupTurn() { end_setup(handle, std::move(client)); }
    const StoreHandle handle;
    Client client;
};

/// The keys and memory of a batch; `sound` is false where something is NULL that must not be, and for absurd counts.
struct Batch {
    Batch(const char** all_keys, void** buffers, const size_t* sizes, size_t count) : sound(count <= kItemsMax) {
        if (!sound) return;
        keys.resize(count);
        pieces.resize(count);
        for (size_t i = 0; i < count; ++i) {
            sound = sound && all_keys[i] != nullptr && buffers[i] != nullptr;
            if (!sound) return;
            keys[i] = all_keys[i];
            pieces[i] = {static_cast<std::byte*>(buffers[i]), sizes[i]};
        }
    }
    std::vector<std::string_view> keys;
    std::vector<store::Piece> pieces;
    bool sound;
};

}  // namespace

// ---- life

mooncake_store_t mooncake_store_create(void) try { return reinterpret_cast<mooncake_store_t>(static_cast<uintptr_t>(add_store())); }
MC_BORDER(nullptr)

void mooncake_store_destroy(mooncake_store_t store) try { remove_store(handle_of(store)); }
MC_BORDER()

int mooncake_store_setup(mooncake_store_t store, const char* local_hostname, const char* metadata_server, uint64_t global_segment_size,
                         uint64_t local_buffer_size, const char* protocol, const char* device_name, const char* master_server_addr) try {
    if (local_hostname == nullptr || *local_hostname == '\0' || metadata_server == nullptr || master_server_addr == nullptr)
        return kInvalid;
    if (!begin_setup(handle_of(store))) return kInvalid;
    SetupTurn turn{.handle = handle_of(store), .client = nullptr};
    const std::string devices = text_or_empty(device_name);
    auto created = store::StoreClient::create({.local_hostname = local_hostname,
                                               .metadata_server = metadata_server,
                                               .segment_bytes = global_segment_size,
                                               .buffer_bytes = local_buffer_size,
                                               .protocol = protocol != nullptr && *protocol != '\0' ? protocol : "tcp",
                                               .devices = devices == "auto-discovery" ? std::vector<std::string>() : split_list(devices),
                                               .master = master_server_addr,
                                               .engine = nullptr,
                                               .options = store::load_store_options(process_environment())});
    if (!created) return static_cast<int>(created.error());
    turn.client = std::move(*created);
    return 0;
}
MC_BORDER(kBroken)

int mooncake_store_init_all(mooncake_store_t store, const char* protocol, const char* device_name, uint64_t mount_segment_size) try {
    constexpr uint64_t kBufferBytes = 1 << 30;
    return mooncake_store_setup(store, "localhost:12345", "127.0.0.1:2379", mount_segment_size, kBufferBytes, protocol, device_name,
                                "127.0.0.1:50051");
}
MC_BORDER(kBroken)

int mooncake_store_health_check(mooncake_store_t store) try {
    const Client client = use(store);
    if (!client) return 1;
    return client->master_reachable() ? 0 : 2;
}
MC_BORDER(1)

int mooncake_store_get_hostname(mooncake_store_t store, char* buffer, size_t size) try {
    const Client client = use(store);
    if (!client || buffer == nullptr) return kInvalid;
    const std::string& name = client->name();
    if (name.size() >= size) return static_cast<int>(StoreCode::kBufferOverflow);
    std::memcpy(buffer, name.c_str(), name.size() + 1);
    return 0;
}
MC_BORDER(kBroken)

// ---- values

int mooncake_store_put(mooncake_store_t store, const char* key, const void* value, size_t size,
                       const mooncake_replicate_config_t* config) try {
    return put(store, key_of(key), const_cast<void*>(value), size, config);
}
MC_BORDER(kBroken)

int mooncake_store_put_from(mooncake_store_t store, const char* key, void* buffer, size_t size,
                            const mooncake_replicate_config_t* config) try {
    return put(store, key_of(key), buffer, size, config);
}
MC_BORDER(kBroken)

int mooncake_store_put_from_n(mooncake_store_t store, const void* key, size_t key_size, void* buffer, size_t size,
                              const mooncake_replicate_config_t* config) try {
    return put(store, key_of(key, key_size), buffer, size, config);
}
MC_BORDER(kBroken)

int mooncake_store_batch_put_from(mooncake_store_t store, const char** keys, void** buffers, const size_t* sizes, size_t count,
                                  const mooncake_replicate_config_t* config, int* results) try {
    const Client client = use(store);
    if (!client || keys == nullptr || buffers == nullptr || sizes == nullptr || results == nullptr || !is_sound(config)) return kInvalid;
    Batch batch(keys, buffers, sizes, count);
    if (!batch.sound) return kInvalid;
    const store::MemoryLoan loan = client->drop_unreadable(batch.pieces);
    std::vector<store::ValueToWrite> values;
    for (size_t i = 0; i < count; ++i) values.push_back({batch.keys[i], std::span(&batch.pieces[i], 1), {}});
    const std::vector<StoreCode> codes = client->write(values, config_from(config), false);
    for (size_t i = 0; i < count; ++i) results[i] = static_cast<int>(codes[i]);
    return 0;
}
MC_BORDER(kBroken)

int64_t mooncake_store_get_into(mooncake_store_t store, const char* key, void* buffer, size_t size) try {
    return get_into(store, key_of(key), buffer, size);
}
MC_BORDER(kBroken)

int64_t mooncake_store_get_into_n(mooncake_store_t store, const void* key, size_t key_size, void* buffer, size_t size) try {
    return get_into(store, key_of(key, key_size), buffer, size);
}
MC_BORDER(kBroken)

int mooncake_store_batch_get_into(mooncake_store_t store, const char** keys, void** buffers, const size_t* sizes, size_t count,
                                  int64_t* results) try {
    const Client client = use(store);
    if (!client || keys == nullptr || buffers == nullptr || sizes == nullptr || results == nullptr) return kInvalid;
    const Batch batch(keys, buffers, sizes, count);
    if (!batch.sound) return kInvalid;
    const store::MemoryLoan loan = client->look_at(batch.pieces);
    std::vector<store::ValueToRead> values;
    for (size_t i = 0; i < count; ++i) values.push_back({batch.keys[i], std::span(&batch.pieces[i], 1), loan.unsure});
    const std::vector<int64_t> read = client->read(values);
    std::copy(read.begin(), read.end(), results);
    return 0;
}
MC_BORDER(kBroken)

int mooncake_store_is_exist(mooncake_store_t store, const char* key) try { return is_exist(store, key_of(key)); }
MC_BORDER(kBroken)

int mooncake_store_is_exist_n(mooncake_store_t store, const void* key, size_t key_size) try {
    return is_exist(store, key_of(key, key_size));
}
MC_BORDER(kBroken)

int mooncake_store_batch_is_exist(mooncake_store_t store, const char** keys, size_t count, int* results) try {
    const Client client = use(store);
    if (!client || keys == nullptr || results == nullptr || count > kItemsMax) return kInvalid;
    std::vector<std::string_view> names;
    for (size_t i = 0; i < count; ++i) {
        if (keys[i] == nullptr) return kInvalid;
        names.emplace_back(keys[i]);
    }
    const std::vector<int32_t> found = client->exist(names);
    std::copy(found.begin(), found.end(), results);
    return 0;
}
MC_BORDER(kBroken)

int64_t mooncake_store_get_size(mooncake_store_t store, const char* key) try {
    const Client client = use(store);
    if (!client || key == nullptr) return kInvalid;
    const std::string_view name = key;
    const store::ValueInfo found = std::move(client->find(std::span(&name, 1)).front());
    return found.code == StoreCode::kOk ? static_cast<int64_t>(found.length) : static_cast<int64_t>(found.code);
}
MC_BORDER(kBroken)

int mooncake_store_remove(mooncake_store_t store, const char* key, int force) try {
    const Client client = use(store);
    if (!client || key == nullptr) return kInvalid;
    const std::string_view name = key;
    return static_cast<int>(client->remove(std::span(&name, 1), force != 0).front());
}
MC_BORDER(kBroken)

int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char* pattern, int force) try {
    const Client client = use(store);
    return client && pattern != nullptr ? client->remove_by_regex(pattern, force != 0) : kInvalid;
}
MC_BORDER(kBroken)

int64_t mooncake_store_remove_all(mooncake_store_t store, int force) try {
    const Client client = use(store);
    return client ? client->remove_all(force != 0) : kInvalid;
}
MC_BORDER(kBroken)

// ---- memory

int mooncake_store_register_buffer(mooncake_store_t store, void* buffer, size_t size) try {
    const Client client = use(store);
    if (!client || buffer == nullptr || size == 0) return kInvalid;
    return static_cast<int>(client->register_buffer(buffer, size));
}
MC_BORDER(kBroken)

int mooncake_store_unregister_buffer(mooncake_store_t store, void* buffer) try {
    const Client client = use(store);
    if (!client || buffer == nullptr) return kInvalid;
    return static_cast<int>(client->unregister_buffer(buffer));
}
MC_BORDER(kBroken)
