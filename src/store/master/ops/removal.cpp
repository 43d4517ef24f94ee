// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/removal.h"

#include <algorithm>
#include <utility>

#include "store/master/ops/object_ops.h"

namespace mooncake::store {

Removal::Removal(Transaction& transaction, Wish wish) : wish_(std::move(wish)) {
    transaction.apply(RemovalBegun{});
    before_ = transaction.state().generations().next_rank();
}

void Removal::start(Transaction& transaction, Time now) {
    const MasterState& state = transaction.state();
    std::optional<std::string> name;
    if (wish_.tenant) {
        name = state.tenant_name(*wish_.tenant);
        tenant_ = state.tenant(*wish_.tenant);
        if (tenant_ == 0) next_ = 0;  // there is no such tenant, as far as we know
    }
    // Without force what a node is yet to report would count as leased.
    if (!wish_.force) return;
    if (wish_.matches)
        transaction.apply(
            TombstoneOfMatching{.tenant = std::move(name), .matches = wish_.matches, .cost = wish_.cost, .rank = before_, .now = now});
    else transaction.apply(TombstoneOfAll{.tenant = std::move(name), .rank = before_});
}

bool Removal::is_meant(const MasterState& state, const Object& object) const {
    return object.has_value() && !state.tombstones().outlives(state.generations().rank(object.generation), before_);
}

std::vector<Removal::Key> Removal::look(const MasterState& state) {
    const ObjectTable& objects = state.objects();
    const ObjectId end = std::min(objects.limit(), next_ + kObjectsPerPart);
    std::vector<Key> keys;
    for (ObjectId id = next_; id < end; ++id) {
        if (!objects.exists(id) || !is_meant(state, objects[id])) continue;
        if (tenant_ == 0 || objects[id].tenant == tenant_) keys.push_back({objects[id].tenant, std::string(objects[id].key())});
    }
    next_ = end < objects.limit() ? end : 0;
    return keys;
}

std::vector<Removal::Key> Removal::choose(std::vector<Key> keys, const std::function<bool()>& stopped) const {
    if (wish_.matches) std::erase_if(keys, [&](const Key& key) { return (stopped && stopped()) || !wish_.matches(key.text); });
    std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.tenant < b.tenant; });
    return keys;
}

void Removal::remove(Transaction& transaction, const std::vector<Key>& keys, Time now) {
    const MasterState& state = transaction.state();
    std::vector<std::string_view> texts;
    for (size_t begin = 0, end = 0; begin < keys.size(); begin = end) {
        const TenantNumber tenant = keys[begin].tenant;
        texts.clear();
        const bool there = state.tenants().exists(tenant);  // else it went meanwhile, with all it had
        for (end = begin; end < keys.size() && keys[end].tenant == tenant; ++end) {
            const ObjectId id = there ? state.objects().find(tenant, keys[end].text) : 0;
            if (id != 0 && is_meant(state, state.objects()[id])) texts.push_back(keys[end].text);  // not replaced since it was chosen
        }
        if (texts.empty()) continue;
        const std::string name = state.tenants()[tenant].name;
        const CodesReply reply = store::remove(transaction, {.tenant = name, .keys = texts, .force = wish_.force}, now);
        removed_ += static_cast<uint64_t>(std::count(reply.codes.begin(), reply.codes.end(), StoreCode::kOk));
    }
}

}  // namespace mooncake::store
