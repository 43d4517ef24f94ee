// SPDX-License-Identifier: Apache-2.0
#include "store/client/read_sessions.h"

#include <algorithm>

#include "store/client/reader.h"

namespace mooncake::store {

std::vector<StoreCode> ReadSessions::open(std::span<const std::string_view> keys) {
    std::vector<Place> places(keys.size());
    std::vector<StoreCode> codes(keys.size(), StoreCode::kOk);
    if (keys.empty()) return codes;
    ask_places(core_, keys, places, codes);  // always: the session shall begin with a whole lease
    Lock lock(mutex_);
    forget_ended(Clock::now());
    for (size_t i = 0; i < keys.size(); ++i)
        if (codes[i] == StoreCode::kOk) open_.insert_or_assign(std::string(keys[i]), places[i]);
    return codes;
}

void ReadSessions::forget_ended(Time now) {
    if (open_.size() < many_) return;
    std::erase_if(open_, [now](const auto& session) { return session.second.lease_end <= now; });
    many_ = std::max(kManySessions, 2 * open_.size());
}

void ReadSessions::find(std::span<const std::string_view> keys, std::span<Place> places, std::span<StoreCode> codes) {
    const Time now = Clock::now();
    Lock lock(mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
        const auto found = open_.find(keys[i]);
        if (found == open_.end()) {
            codes[i] = StoreCode::kInvalidParams;
        } else if (found->second.lease_end <= now) {
            open_.erase(found);
            codes[i] = StoreCode::kLeaseExpired;
        } else {
            places[i] = found->second;
        }
    }
}

std::vector<int64_t> ReadSessions::read(std::span<const PartToRead> parts) {
    std::vector<int64_t> results(parts.size());
    const PartsFetch::Keys keys = PartsFetch::group(parts);
    std::vector<Place> places(keys.keys.size());
    std::vector<StoreCode> codes(keys.keys.size(), StoreCode::kOk);
    find(keys.keys, places, codes);
    std::vector<PartToRead> wanted;
    std::vector<size_t> where;
    for (size_t i = 0; i < parts.size(); ++i) {
        const StoreCode code = codes[keys.of_part[i]];
        results[i] = static_cast<int64_t>(code);
        if (code != StoreCode::kOk) continue;
        wanted.push_back(parts[i]);
        where.push_back(i);
    }
    if (wanted.empty()) return results;
    PartsFetch::Keys wanted_keys = PartsFetch::group(wanted);
    std::vector<Place> wanted_places(wanted_keys.keys.size());
    for (size_t i = 0; i < wanted.size(); ++i) wanted_places[wanted_keys.of_part[i]] = places[keys.of_part[where[i]]];
    const std::vector<std::string_view> fetched = wanted_keys.keys;
    PartsFetch fetch(core_, wanted, std::move(wanted_keys));
    fetch.run_at(wanted_places);
    const std::vector<int64_t> got = fetch.results();
    for (size_t i = 0; i < where.size(); ++i) results[where[i]] = got[i];
    for (size_t i = 0; i < fetched.size(); ++i)
        if (fetch.code(i) == StoreCode::kLeaseExpired) close(std::span(&fetched[i], 1));
    return results;
}

bool ReadSessions::close(std::span<const std::string_view> keys) {
    bool all = true;
    Lock lock(mutex_);
    for (const std::string_view key : keys) {
        const auto found = open_.find(key);
        if (found == open_.end()) all = false;
        else open_.erase(found);
    }
    return all;
}

void ReadSessions::forget_all() {
    Lock lock(mutex_);
    open_.clear();
}

}  // namespace mooncake::store
