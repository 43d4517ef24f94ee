// SPDX-License-Identifier: Apache-2.0
#include "store/client/reader.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/log.h"
#include "base/memory_probe.h"
#include "store/client/value_hash.h"
#include "store/member/any_memory.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

int64_t as_result(StoreCode code) { return static_cast<int64_t>(code); }

/// Bytes the pieces hold together; nothing: null pointers, or more than can be.
std::optional<uint64_t> room_in(std::span<const Piece> pieces) {
    uint64_t total = 0;
    for (const Piece& piece : pieces) {
        if (piece.data == nullptr && piece.length > 0) return std::nullopt;
        if (total + piece.length < total) return std::nullopt;
        total += piece.length;
    }
    return total;
}

StoreCode cannot_look(const Error& error) {
    MC_LOG_WARNING_EVERY(1s, "what was read cannot be verified: {}", error.to_string());
    return StoreCode::kTransferFail;
}

class ValuesFetch final : public Fetch {
public:
    ValuesFetch(ClientCore& core, std::span<const ValueToRead> values, std::vector<std::string_view> keys)
        : Fetch(core, std::move(keys)), values_(values), hashes_(values.size()) {}

    std::vector<int64_t> results() const {
        std::vector<int64_t> results(values_.size());
        for (size_t i = 0; i < results.size(); ++i)
            results[i] = code(i) == StoreCode::kOk ? static_cast<int64_t>(place(i).length) : as_result(code(i));
        return results;
    }

private:
    StoreCode plan(size_t item, const Place& place) override {
        const auto room = room_in(values_[item].pieces);
        if (!room || *room < place.length || (values_[item].unsure && !can_be_filled(item, place.length))) return StoreCode::kInvalidParams;
        return StoreCode::kOk;
    }
    bool can_be_filled(size_t item, uint64_t left) {
        for (const Piece& piece : values_[item].pieces) {
            const uint64_t length = std::min(piece.length, left);
            if (is_host(*core().pool.engine, piece.data, length) && !is_writable(piece.data, length)) return false;
            left -= length;
        }
        return true;
    }
    uint64_t bytes(size_t item) const override { return place(item).length; }
    void add_blocks(size_t item, uint64_t stored_at, std::vector<Block>& blocks) override {
        uint64_t left = place(item).length;
        const std::span<const Piece> pieces = values_[item].pieces;
        const bool hashed = verified(place(item));
        if (hashed) hashes_[item].start(pieces, left, Direction::kRead, core().pool.engine.get());
        for (size_t i = 0; i < pieces.size(); ++i) {
            const uint64_t length = std::min(pieces[i].length, left);
            if (length == 0) continue;
            Copier* const copier = hashed ? hashes_[item].copier(i) : nullptr;
            blocks.push_back({.local = pieces[i].data, .remote = stored_at, .length = length, .copier = copier});
            stored_at += length;
            left -= length;
        }
    }
    StoreCode verify(size_t item) override {
        const auto checksum = hashes_[item].checksum();
        if (!checksum) return cannot_look(checksum.error());
        return *checksum == place(item).checksum ? StoreCode::kOk : StoreCode::kChecksumMismatch;
    }

    const std::span<const ValueToRead> values_;
    std::vector<ValueHash> hashes_;
};

}  // namespace

std::vector<int64_t> read_values(ClientCore& core, std::span<const ValueToRead> values) {
    std::vector<std::string_view> keys;
    keys.reserve(values.size());
    for (const ValueToRead& value : values) keys.push_back(value.key);
    ValuesFetch fetch(core, values, std::move(keys));
    fetch.run();
    std::vector<int64_t> results = fetch.results();
    uint64_t bytes = 0;
    for (const int64_t result : results) bytes += result > 0 ? static_cast<uint64_t>(result) : 0;
    core.metrics.observe_read(values.size(), bytes, fetch.began());
    return results;
}

PartsFetch::Keys PartsFetch::group(std::span<const PartToRead> parts) {
    Keys keys;
    std::unordered_map<std::string_view, uint32_t> numbers;
    for (const PartToRead& part : parts) {
        const auto [found, added] = numbers.emplace(part.key, static_cast<uint32_t>(keys.keys.size()));
        if (added) keys.keys.push_back(part.key);
        keys.of_part.push_back(found->second);
    }
    return keys;
}

PartsFetch::PartsFetch(ClientCore& core, std::span<const PartToRead> parts, Keys keys)
    : Fetch(core, std::move(keys.keys)), parts_(parts), item_of_part_(std::move(keys.of_part)), wanted_(size()), beyond_(parts.size()),
      view_(*core.pool.engine) {
    for (uint32_t i = 0; i < parts_.size(); ++i) wanted_[item_of_part_[i]].parts.push_back(i);
}

StoreCode PartsFetch::plan(size_t item, const Place& place) {
    Wanted& wanted = wanted_[item];
    wanted.plan.begin(place.length, verified(place));
    bool any = false;
    for (const uint32_t i : wanted.parts) {
        const PartToRead& part = parts_[i];
        beyond_[i] = part.offset > place.length || part.to.length > place.length - part.offset || !can_be_filled(part);
        if (beyond_[i]) continue;
        any = true;
        if (part.to.length == 0) continue;
        wanted.plan.add(part.to.data, part.offset, part.to.length, is_host(*core().pool.engine, part.to.data, part.to.length));
    }
    wanted.plan.finish();
    return any ? StoreCode::kOk : StoreCode::kInvalidParams;
}

bool PartsFetch::can_be_filled(const PartToRead& part) {
    if (part.to.data == nullptr || part.to.length == 0) return part.to.length == 0;
    return !part.unsure || !is_host(*core().pool.engine, part.to.data, part.to.length) || is_writable(part.to.data, part.to.length);
}

void PartsFetch::add_blocks(size_t item, uint64_t stored_at, std::vector<Block>& blocks) {
    wanted_[item].plan.expect_table();
    for (const Block& block : wanted_[item].plan.blocks())
        blocks.push_back({.local = block.local, .remote = stored_at + block.remote, .length = block.length, .copier = block.copier});
}

StoreCode PartsFetch::verify(size_t item) {
    const PartsPlan& plan = wanted_[item].plan;
    const std::span<const uint64_t> table = plan.table();
    const bool one = table.empty();
    if (!one && !plan.told() && hash_table(table) != place(item).checksum) return StoreCode::kChecksumMismatch;
    for (const PartsPlan::Chunk& chunk : plan.chunks()) {
        const uint64_t expected = one ? place(item).checksum : table[chunk.number];
        const auto hash = hash_of(chunk);
        if (!hash) return cannot_look(hash.error());
        if (*hash != expected) return StoreCode::kChecksumMismatch;
    }
    return accept(item);
}

void PartsFetch::expect(size_t item, uint64_t chunk, uint64_t hash) { wanted_[item].plan.expect(chunk, hash); }

StoreCode PartsFetch::accept(size_t item) {
    for (const PartsPlan::Copy& copy : wanted_[item].plan.copies())
        if (auto copied = copy_any(*core().pool.engine, copy.to, copy.from, copy.length); !copied) return cannot_look(copied.error());
    return StoreCode::kOk;
}

Result<uint64_t> PartsFetch::hash_of(const PartsPlan::Chunk& chunk) {
    if (chunk.seen == nullptr) return hash_bytes({chunk.at, chunk.length});
    if (const uint64_t hash = chunk.seen->hash(chunk.number); hash != 0) return hash;
    const Piece piece{chunk.at, chunk.length};
    MC_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, view_.look({&piece, 1}, 0, chunk.length));
    return hash_bytes(bytes);
}

std::vector<int64_t> PartsFetch::results() const {
    std::vector<int64_t> results(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
        const StoreCode outcome = code(item_of_part_[i]);
        if (outcome != StoreCode::kOk) results[i] = as_result(outcome);
        else results[i] = beyond_[i] ? as_result(StoreCode::kInvalidParams) : static_cast<int64_t>(parts_[i].to.length);
    }
    return results;
}

std::vector<int64_t> read_value_parts(ClientCore& core, std::span<const PartToRead> parts) {
    const Time started = Clock::now();
    PartsFetch fetch(core, parts, PartsFetch::group(parts));
    fetch.run();
    std::vector<int64_t> results = fetch.results();
    uint64_t bytes = 0;
    for (const int64_t result : results) bytes += result > 0 ? static_cast<uint64_t>(result) : 0;
    core.metrics.observe_read(parts.size(), bytes, started);
    return results;
}

}  // namespace mooncake::store
