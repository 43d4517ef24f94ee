// SPDX-License-Identifier: Apache-2.0
#include "store/master/object_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/prefetch.h"

namespace mooncake::store {

namespace {

void prefetch_key(const Object& object) {
    prefetch(object.key_bytes.get());
    if (object.key_length > 48) prefetch(object.key_bytes.get() + 64);
}

}  // namespace

uint64_t ObjectTable::hash(TenantNumber tenant, std::string_view key) const {
    return XXH3_64bits_withSeed(key.data(), key.size(), hash_seed_ + tenant);
}

bool ObjectTable::is(ObjectId id, TenantNumber tenant, std::string_view key) const {
    const Object& object = objects_[id];
    return object.tenant == tenant && object.key_length == key.size() && std::memcmp(object.key_bytes.get(), key.data(), key.size()) == 0;
}

ObjectId ObjectTable::find(TenantNumber tenant, std::string_view key, uint64_t hash) const {
    return index_.find(hash, [&](ObjectId id) { return is(id, tenant, key); });
}

void ObjectTable::find_many(TenantNumber tenant, std::span<const std::string_view> keys, std::span<ObjectId> found) const {
    Hashes hashes;
    for (size_t start = 0; start < keys.size(); start += kWindow) {
        const size_t count = std::min(kWindow, keys.size() - start);
        for (size_t i = 0; i < count; ++i) index_.prefetch(hashes[i] = hash(tenant, keys[start + i]));
        for (size_t i = 0; i < count; ++i) {
            found[start + i] = index_.guess(hashes[i]);
            if (found[start + i] != 0) prefetch_to_write(&objects_[found[start + i]]);
        }
        for (size_t i = 0; i < count; ++i)
            if (found[start + i] != 0) prefetch_key(objects_[found[start + i]]);
        for (size_t i = 0; i < count; ++i) {
            const std::string_view key = keys[start + i];
            ObjectId& id = found[start + i];
            if (id != 0 && !is(id, tenant, key)) id = index_.find(hashes[i], [&](ObjectId other) { return is(other, tenant, key); });
        }
    }
}

ObjectTable::Hashes ObjectTable::prefetch_many(TenantNumber tenant, std::span<const std::string_view> keys) const {
    MC_CHECK(keys.size() <= kWindow);
    Hashes hashes;
    std::array<ObjectId, kWindow> guesses;
    for (size_t i = 0; i < keys.size(); ++i) index_.prefetch(hashes[i] = hash(tenant, keys[i]));
    for (size_t i = 0; i < keys.size(); ++i)
        if ((guesses[i] = index_.guess(hashes[i])) != 0) prefetch_to_write(&objects_[guesses[i]]);
    for (size_t i = 0; i < keys.size(); ++i)
        if (guesses[i] != 0) prefetch_key(objects_[guesses[i]]);
    return hashes;
}

ObjectId ObjectTable::insert(TenantNumber tenant, std::string_view key) {
    const ObjectId id = objects_.take();
    Object& object = objects_[id];
    object.key_bytes = std::make_unique_for_overwrite<char[]>(key.size());
    std::memcpy(object.key_bytes.get(), key.data(), key.size());
    object.key_length = static_cast<uint32_t>(key.size());
    object.tenant = tenant;
    index_.insert(hash(tenant, key), id);
    return id;
}

void ObjectTable::erase(ObjectId id) {
    index_.erase(hash(objects_[id].tenant, objects_[id].key()), id);
    objects_.give_back(id);
}

void ObjectTable::prefetch_erase(std::span<const ObjectId> ids) const {
    for (const ObjectId id : ids) prefetch_key(objects_[id]);
    for (const ObjectId id : ids) index_.prefetch(hash(objects_[id].tenant, objects_[id].key()));
}

}  // namespace mooncake::store
