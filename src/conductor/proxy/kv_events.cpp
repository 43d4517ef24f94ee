// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/kv_events.h"

#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <span>

namespace mooncake::conductor {

namespace {

using Json = nlohmann::json;

constexpr size_t kBlocksMax = 4'000'000;
constexpr uint64_t kFarBack = 10'000;  // a publisher that is so far behind its own numbers has begun anew

/// Engines name blocks by numbers or by digests.
std::optional<uint64_t> hash_from(const Json& value) {
    if (value.is_number_unsigned()) return value.get<uint64_t>();
    if (value.is_number_integer()) return static_cast<uint64_t>(value.get<int64_t>());
    if (value.is_binary()) return XXH3_64bits(value.get_binary().data(), value.get_binary().size());
    if (value.is_string()) return XXH3_64bits(value.get_ref<const std::string&>().data(), value.get_ref<const std::string&>().size());
    return std::nullopt;
}

/// One field of an event, by its place or its name; null where it has none.
struct Fields {
    const Json& event;
    const Json& at(size_t place, std::initializer_list<const char*> names) const {
        static const Json nothing;
        if (event.is_array()) return place < event.size() ? event[place] : nothing;
        for (const char* name : names) {
            const auto found = event.find(name);
            if (found != event.end()) return *found;
        }
        return nothing;
    }
};

std::optional<KvEvent::Kind> kind_from(const Json& name) {
    if (name == "BlockStored" || name == "stored") return KvEvent::Kind::kStored;
    if (name == "BlockRemoved" || name == "removed") return KvEvent::Kind::kRemoved;
    if (name == "AllBlocksCleared" || name == "cleared") return KvEvent::Kind::kCleared;
    return std::nullopt;
}

Result<KvEvent> read_event(const Fields& fields, KvEvent::Kind kind) {
    KvEvent event{.kind = kind};
    if (kind == KvEvent::Kind::kCleared) return event;
    const Json& hashes = fields.at(1, {"block_hashes", "seq_hashes"});
    if (!hashes.is_array()) return fail(Code::kCorrupt, "an event without hashes");
    for (const Json& one : hashes) {
        const auto hash = hash_from(one);
        if (!hash) return fail(Code::kCorrupt, "a hash that is neither number nor bytes");
        event.hashes.push_back(*hash);
    }
    if (kind == KvEvent::Kind::kRemoved) return event;
    event.parent = hash_from(fields.at(2, {"parent_block_hash", "parent_hash"}));
    const Json &tokens = fields.at(3, {"token_ids"}), &size = fields.at(4, {"block_size"});
    if (!tokens.is_array()) return fail(Code::kCorrupt, "blocks without tokens");
    for (const Json& token : tokens) {
        if (!token.is_number_integer()) return fail(Code::kCorrupt, "a token that is no number");
        event.tokens.push_back(token.get<uint32_t>());
    }
    if (size.is_number_unsigned()) event.block_tokens = size.get<uint32_t>();
    return event;
}

}  // namespace

Result<std::vector<KvEvent>> parse_kv_events(std::string_view payload) {
    const Json batch = Json::from_msgpack(payload.begin(), payload.end(), true, false);
    const Json* list = nullptr;
    if (batch.is_array() && batch.size() >= 2 && batch[1].is_array()) list = &batch[1];
    else if (batch.is_object() && batch.contains("events") && batch["events"].is_array()) list = &batch["events"];
    if (list == nullptr) return fail(Code::kCorrupt, "no batch of events");
    std::vector<KvEvent> events;
    for (const Json& one : *list) {
        if (!one.is_array() && !one.is_object()) return fail(Code::kCorrupt, "an event that is neither array nor map");
        const Fields fields{one};
        const auto kind = kind_from(fields.at(0, {"event_type", "type"}));
        if (!kind) continue;
        MC_ASSIGN_OR_RETURN(KvEvent event, read_event(fields, *kind));
        events.push_back(std::move(event));
    }
    return events;
}

void KvView::apply(const KvEvent& event, PrefixIndex& index, InstanceId instance) {
    switch (event.kind) {
        case KvEvent::Kind::kStored: return store(event, index, instance);
        case KvEvent::Kind::kCleared: return clear(index, instance);
        case KvEvent::Kind::kRemoved: break;
    }
    for (const uint64_t hash : event.hashes) {
        const auto found = ours_.find(hash);
        if (found == ours_.end()) continue;
        index.remove(instance, found->second);
        ours_.erase(found);
    }
}

void KvView::store(const KvEvent& event, PrefixIndex& index, InstanceId instance) {
    if (event.block_tokens != 0 && event.block_tokens != block_tokens_) return;
    std::optional<BlockHash> before;
    if (event.parent) {
        const auto parent = ours_.find(*event.parent);
        if (parent == ours_.end()) return;
        before = parent->second;
    }
    if (ours_.size() > kBlocksMax) clear(index, instance);  // more than any cache has: it does not say what it removes
    const std::span<const uint32_t> tokens(event.tokens);
    for (size_t i = 0; i < event.hashes.size() && (i + 1) * block_tokens_ <= tokens.size(); ++i) {
        before = hash_block(before ? &*before : nullptr, tokens.subspan(i * block_tokens_, block_tokens_), seed_);
        ours_[event.hashes[i]] = *before;
        index.insert(instance, *before);
    }
}

void KvView::clear(PrefixIndex& index, InstanceId instance) {
    for (const auto& [theirs, ours] : ours_) index.remove(instance, ours);
    ours_.clear();
}

Turn turn_of(std::optional<uint64_t> last, uint64_t number) noexcept {
    if (!last || number == *last + 1) return Turn::kNext;
    if (number > *last) return Turn::kGap;
    return number == 0 || *last - number > kFarBack ? Turn::kRestarted : Turn::kOld;
}

}  // namespace mooncake::conductor
