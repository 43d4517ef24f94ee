// SPDX-License-Identifier: Apache-2.0
#include "store/tier/testing/memory_tier.h"

#include <algorithm>
#include <cstring>

#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

template <typename Object>
void answer(Object& object, const Result<>& result, uint64_t bytes, Completion& completion) {
    object.result = result ? Code::kOk : result.error().code();
    if (result) return completion.succeed(bytes);
    completion.fail(result.error());
}

}  // namespace

Result<TierFound> MemoryTier::recover() {
    const Lock lock(shelf_->mutex);
    if (shelf_->taken) return fail(Code::kBusy, "used by another");
    shelf_->taken = open_ = true;
    return TierFound{.objects = shelf_->values.size()};
}

void MemoryTier::close() {
    const Lock lock(shelf_->mutex);
    if (open_) shelf_->taken = false;
    open_ = false;
}

bool MemoryTier::evict(uint64_t bytes) {
    while (shelf_->bytes + bytes > capacity_bytes_ && !shelf_->values.empty()) {
        const auto oldest = std::min_element(shelf_->values.begin(), shelf_->values.end(),
                                             [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
        shelf_->bytes -= oldest->second.bytes.size();
        const auto node = shelf_->values.extract(oldest);
        if (observer_ != nullptr) observer_->on_gone(std::span(&node.mapped().object, 1));
    }
    return shelf_->bytes + bytes <= capacity_bytes_;
}

Result<> MemoryTier::write_one(TierWrite& write, Deadline deadline) {
    const TierObject& object = write.object;
    const Lock lock(shelf_->mutex);
    if (!open_) return fail(Code::kCancelled, "closed");
    if (object.key.empty() || object.key.size() > kTierKeyBytesMax || object.length == 0 || object.length != write.value.size()) {
        return fail(Code::kInvalidArgument, "no such value");
    }
    if (deadline.passed()) return fail(Code::kTimedOut, "too late");
    const Shelf::Key key{object.tenant, object.key};
    if (const auto removed = shelf_->removed.find(key); removed != shelf_->removed.end() && removed->second > object.generation) {
        return fail(Code::kStale, "removed");
    }
    if (const auto known = shelf_->values.find(key); known != shelf_->values.end()) {
        if (known->second.object.generation > object.generation) return fail(Code::kStale, "newer");
        if (known->second.object.generation == object.generation) return fail(Code::kAlreadyExists, "there");
    }
    std::vector<uint64_t> table;
    const uint64_t checksum = hash_value(std::span(&write.value, 1), table);
    if (object.checksum != 0 && object.checksum != checksum) return fail(Code::kCorrupt, "other bytes");
    if (!evict(write.value.size())) return fail(Code::kNoSpace, "full");
    auto& value = shelf_->values[key];
    shelf_->bytes += write.value.size() - value.bytes.size();
    value = {object, std::string(object.group), {write.value.begin(), write.value.end()}, shelf_->next_order++};
    const auto placed = shelf_->values.find(key);
    placed->second.object.tenant = placed->first.first;
    placed->second.object.key = placed->first.second;
    placed->second.object.group = placed->second.group;
    placed->second.object.checksum = checksum;
    return {};
}

void MemoryTier::write(std::span<TierWrite> objects, Deadline deadline, Completion& completion) {
    completion.add(static_cast<uint32_t>(objects.size()));
    for (size_t i = 0, count = objects.size(); i < count; ++i) {
        TierWrite& object = objects[i];
        answer(object, write_one(object, deadline), object.object.length, completion);
    }
}

Result<> MemoryTier::read_one(TierRead& object, Deadline deadline) {
    const Lock lock(shelf_->mutex);
    if (!open_) return fail(Code::kCancelled, "closed");
    const auto found = shelf_->values.find({std::string(object.tenant), std::string(object.key)});
    if (found == shelf_->values.end()) return fail(Code::kNotFound, "no such value");
    const auto& value = found->second;
    if (object.generation != 0 && object.generation != value.object.generation) return fail(Code::kNotFound, "another one");
    if (object.offset > value.bytes.size() || object.into.size() > value.bytes.size() - object.offset)
        return fail(Code::kInvalidArgument, "beyond");
    if (deadline.passed()) return fail(Code::kTimedOut, "too late");
    std::copy_n(value.bytes.begin() + static_cast<std::ptrdiff_t>(object.offset), object.into.size(), object.into.begin());
    return {};
}

void MemoryTier::read(std::span<TierRead> objects, Deadline deadline, Completion& completion) {
    completion.add(static_cast<uint32_t>(objects.size()));
    for (size_t i = 0, count = objects.size(); i < count; ++i) {
        TierRead& object = objects[i];
        answer(object, read_one(object, deadline), object.into.size(), completion);
    }
}

Result<> MemoryTier::remove_one(TierRemove& object) {
    const Lock lock(shelf_->mutex);
    if (!open_) return fail(Code::kCancelled, "closed");
    if (object.key.empty()) return fail(Code::kInvalidArgument, "no key");
    const Shelf::Key key{object.tenant, object.key};
    const auto found = shelf_->values.find(key);
    if (found == shelf_->values.end()) return {};
    const uint64_t generation = found->second.object.generation;
    if (object.generation != 0 && generation > object.generation) return {};
    shelf_->removed[key] = std::max(object.generation, generation);
    shelf_->bytes -= found->second.bytes.size();
    shelf_->values.erase(found);
    return {};
}

void MemoryTier::remove(std::span<TierRemove> objects, Completion& completion) {
    completion.add(static_cast<uint32_t>(objects.size()));
    for (size_t i = 0, count = objects.size(); i < count; ++i) answer(objects[i], remove_one(objects[i]), 0, completion);
}

std::optional<TierObject> MemoryTier::find(uint64_t generation, std::string& texts) const {
    const Lock lock(shelf_->mutex);
    for (const auto& [key, value] : shelf_->values) {
        if (value.object.generation != generation) continue;
        TierObject object = value.object;
        texts = key.first + value.group + key.second;
        const std::string_view all = texts;
        object.tenant = all.substr(0, key.first.size());
        object.group = all.substr(key.first.size(), value.group.size());
        object.key = all.substr(key.first.size() + value.group.size());
        return object;
    }
    return std::nullopt;
}

bool MemoryTier::report(size_t objects_max, const std::function<bool(std::span<const TierObject>)>& part) const {
    const Lock lock(shelf_->mutex);
    std::vector<TierObject> objects;
    for (const auto& [key, value] : shelf_->values) {
        objects.push_back(value.object);
        if (objects.size() < objects_max) continue;
        if (!part(objects)) return false;
        objects.clear();
    }
    return objects.empty() || part(objects);
}

TierUsage MemoryTier::usage() const {
    const Lock lock(shelf_->mutex);
    return {.capacity_bytes = capacity_bytes_,
            .used_bytes = shelf_->bytes,
            .live_bytes = shelf_->bytes,
            .objects = shelf_->values.size(),
            .removals = shelf_->removed.size()};
}

}  // namespace mooncake::store
