// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/removal.h"

#include <algorithm>
#include <utility>

#include "store/master/ops/object_ops.h"

namespace mooncake::store {

Removal::Removal(Transaction& transaction, std::optional<std::string_view> tenant, Matches matches, bool force, Time now)
    : matches_(std::move(matches)), force_(force) {
    std::optional<std::string> name;
    if (tenant) {
        name = transaction.state().tenant_name(*tenant);
        tenant_ = transaction.state().tenant(*tenant);
        if (tenant_ == 0) next_ = 0;  // there is no such tenant, as far as we know
    }
    // Without force what a node is yet to report would count as leased.
    if (!force_) return;
    if (matches_) transaction.apply(TombstoneOfMatching{.tenant = std::move(name), .matches = matches_, .now = now});
    else transaction.apply(TombstoneOfAll{.tenant = std::move(name)});
}

std::vector<Removal::Key> Removal::look(const MasterState& state) {
    const ObjectTable& objects = state.objects();
    const ObjectId end = std::min(objects.limit(), next_ + kObjectsPerPart);
    std::vector<Key> keys;
    for (ObjectId id = next_; id < end; ++id) {
        if (!objects.exists(id) || !objects[id].has_value()) continue;
        if (tenant_ == 0 || objects[id].tenant == tenant_) keys.push_back({objects[id].tenant, std::string(objects[id].key())});
    }
    next_ = end < objects.limit() ? end : 0;
    return keys;
}

std::vector<Removal::Key> Removal::choose(std::vector<Key> keys) const {
    if (matches_) std::erase_if(keys, [&](const Key& key) { return !matches_(key.text); });
    std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.tenant < b.tenant; });
    return keys;
}

void Removal::remove(Transaction& transaction, const std::vector<Key>& keys, Time now) {
    const TenantTable& tenants = transaction.state().tenants();
    std::vector<std::string_view> texts;
    for (size_t begin = 0, end = 0; begin < keys.size(); begin = end) {
        const TenantNumber tenant = keys[begin].tenant;
        texts.clear();
        for (end = begin; end < keys.size() && keys[end].tenant == tenant; ++end) texts.push_back(keys[end].text);
        if (!tenants.exists(tenant)) continue;  // it went meanwhile, with all it had
        const std::string name = tenants[tenant].name;
        const CodesReply reply = store::remove(transaction, {.tenant = name, .keys = texts, .force = force_}, now);
        removed_ += static_cast<uint64_t>(std::count(reply.codes.begin(), reply.codes.end(), StoreCode::kOk));
    }
}

}  // namespace mooncake::store
