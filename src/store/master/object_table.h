// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "store/allocation/slab.h"
#include "store/allocation/slot_index.h"
#include "store/master/object.h"

namespace mooncake::store {

/// The objects by (tenant, key) and by number. Not thread-safe.
class ObjectTable {
public:
    explicit ObjectTable(uint64_t hash_seed) : hash_seed_(hash_seed) {}

    uint64_t hash(TenantNumber tenant, std::string_view key) const;
    ObjectId find(TenantNumber tenant, std::string_view key) const { return find(tenant, key, hash(tenant, key)); }  // 0: not there
    ObjectId find(TenantNumber tenant, std::string_view key, uint64_t hash) const;
    /// As find() for each key, with the cache misses of different keys overlapping. An empty key is not there.
    void find_many(TenantNumber tenant, std::span<const std::string_view> keys, std::span<ObjectId> found) const;
    static constexpr size_t kWindow = 32;  // keys whose cache misses overlap
    using Hashes = std::array<uint64_t, kWindow>;
    /// Brings into the cache what find() will touch of so many keys at most, and says their hashes.
    Hashes prefetch_many(TenantNumber tenant, std::span<const std::string_view> keys) const;

    ObjectId insert(TenantNumber tenant, std::string_view key);  // must not be there
    void erase(ObjectId id);
    /// Brings into the cache what erase() will touch.
    void prefetch_erase(std::span<const ObjectId> ids) const;

    Object& operator[](ObjectId id) { return objects_[id]; }
    const Object& operator[](ObjectId id) const { return objects_[id]; }
    bool exists(ObjectId id) const { return id != 0 && id < objects_.limit() && objects_[id].key_bytes != nullptr; }
    size_t size() const noexcept { return objects_.size(); }
    ObjectId limit() const noexcept { return objects_.limit(); }
    size_t memory_bytes() const noexcept { return objects_.memory_bytes() + index_.memory_bytes(); }  // without the keys

private:
    bool is(ObjectId id, TenantNumber tenant, std::string_view key) const;

    const uint64_t hash_seed_;
    Slab<Object, 8192> objects_;
    SlotIndex<8> index_;
};

}  // namespace mooncake::store
