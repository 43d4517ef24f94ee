// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "distributed_store.h"

/// The calls that move parts of values.
namespace mooncake::python {

namespace {

constexpr int64_t kInvalid = static_cast<int64_t>(StoreCode::kInvalidParams);

bool fits_in(const std::optional<store::Piece>& range, const std::byte* start, uint64_t offset, uint64_t length) {
    if (!range) return false;
    const auto skipped = static_cast<uint64_t>(start - range->data);
    return offset <= range->length - skipped && length <= range->length - skipped - offset;
}

/// -600 for every fragment of `keys` keys; one where it is not said how many there are.
nb::list invalid_rows(size_t keys, const FrozenSequence* to_offsets) {
    nb::list rows;
    for (size_t key = 0; key < keys; ++key) {
        const bool said = to_offsets != nullptr && key < to_offsets->size();
        rows.append(repeated(StoreCode::kInvalidParams, said ? NumberList((*to_offsets)[key], "all_dst_offsets").size() : 1));
    }
    return rows;
}

/// The same for every buffer; one key where it is not said which.
nb::list all_invalid(nb::handle buffers, nb::handle keys, nb::handle to_offsets) {
    const FrozenSequence all_keys(keys, "all_keys"), all_to(to_offsets, "all_dst_offsets");
    nb::list all;
    for (size_t i = 0; i < NumberList(buffers, "buffer_ptrs").size(); ++i) {
        const size_t count = i < all_keys.size() ? KeyList(all_keys[i], "all_keys").size() : 1;
        std::optional<FrozenSequence> to;
        if (i < all_to.size()) to.emplace(all_to[i], "all_dst_offsets");
        all.append(invalid_rows(count, to ? &*to : nullptr));
    }
    return all;
}

/// The fragments of one (buffer, key) in get_into_ranges().
struct Row {
    std::vector<int64_t> results;
    std::vector<size_t> parts;  // which entry of the call each fragment is; only where the shape was right
};

/// Reads the nested arguments of get_into_ranges() and sorts what comes back into the same shape.
class RangesCall {
public:
    explicit RangesCall(store::StoreClient& client) : client_(client) {}

    /// False where the outer lists do not agree.
    bool parse(nb::handle buffers, nb::handle keys, nb::handle to_offsets, nb::handle from_offsets, nb::handle sizes) {
        const std::vector<uint64_t> starts = NumberList(buffers, "buffer_ptrs").values();
        const FrozenSequence all_keys(keys, "all_keys"), all_to(to_offsets, "all_dst_offsets"), all_from(from_offsets, "all_src_offsets"),
            all_sizes(sizes, "all_sizes");
        if (all_keys.size() != starts.size() || all_to.size() != starts.size() || all_from.size() != starts.size() ||
            all_sizes.size() != starts.size())
            return false;
        for (size_t i = 0; i < starts.size(); ++i) {
            keys_.emplace_back(all_keys[i], "all_keys");
            const FrozenSequence to(all_to[i], "all_dst_offsets"), from(all_from[i], "all_src_offsets"), size(all_sizes[i], "all_sizes");
            parse_buffer(reinterpret_cast<std::byte*>(starts[i]), keys_.back(), to, from, size);
        }
        return true;
    }

    nb::list run() {
        const std::vector<int64_t> moved = without_gil([this] { return client_.read_parts(parts_); });
        nb::list all;
        for (std::vector<Row>& rows : rows_) {
            nb::list of_buffer;
            for (Row& row : rows) {
                for (size_t i = 0; i < row.parts.size(); ++i)
                    if (row.parts[i] != kNone) row.results[i] = moved[row.parts[i]];
                of_buffer.append(int_list(row.results));
            }
            all.append(of_buffer);
        }
        return all;
    }

private:
    static constexpr size_t kNone = SIZE_MAX;

    void parse_buffer(std::byte* start, const KeyList& keys, const FrozenSequence& to, const FrozenSequence& from,
                      const FrozenSequence& sizes) {
        const std::optional<store::Piece> range = start != nullptr ? client_.registered_range(start) : std::nullopt;
        const bool shape = to.size() == keys.size() && from.size() == keys.size() && sizes.size() == keys.size();
        std::vector<Row>& rows = rows_.emplace_back(keys.size());
        for (size_t key = 0; key < keys.size(); ++key) {
            Row& row = rows[key];
            row.results.assign(1, kInvalid);
            if (key >= to.size()) continue;
            const std::vector<uint64_t> to_key = offsets(to[key], "all_dst_offsets");
            row.results.assign(to_key.size(), kInvalid);
            if (!shape) continue;
            const std::vector<uint64_t> from_key = offsets(from[key], "all_src_offsets"), size_key = offsets(sizes[key], "all_sizes");
            if (from_key.size() != to_key.size() || size_key.size() != to_key.size()) continue;
            row.parts.assign(to_key.size(), kNone);
            for (size_t i = 0; i < to_key.size(); ++i) {
                if (!fits_in(range, start, to_key[i], size_key[i])) continue;
                row.parts[i] = parts_.size();
                parts_.push_back({keys[key], from_key[i], {start + to_key[i], size_key[i]}});
            }
        }
    }

    static std::vector<uint64_t> offsets(nb::handle list, const char* name) { return NumberList(list, name).values(); }

    store::StoreClient& client_;
    std::vector<KeyList> keys_;
    std::vector<std::vector<Row>> rows_;
    std::vector<store::PartToRead> parts_;
};

/// The lists of lists of the session calls: fragments, and which key each belongs to.
struct Fragments {
    PieceLists pieces;
    std::vector<uint64_t> offsets;

    bool parse(nb::handle addresses, nb::handle sizes, nb::handle all_offsets, size_t keys) {
        if (!pieces.parse_nested(addresses, sizes, keys) || pieces.has_null()) return false;
        const FrozenSequence rows(all_offsets, "offsets");
        if (rows.size() != keys) return false;
        for (size_t key = 0; key < keys; ++key) {
            const std::vector<uint64_t> row = NumberList(rows[key], "offsets").values();
            if (row.size() != pieces.pieces_of(key).size()) return false;
            offsets.insert(offsets.end(), row.begin(), row.end());
        }
        return true;
    }

    /// Per key the sum of what its fragments moved, or the first failure among them.
    nb::list per_key(const std::vector<int64_t>& moved, size_t keys) const {
        std::vector<int64_t> sums(keys, 0);
        size_t fragment = 0;
        for (size_t key = 0; key < keys; ++key)
            for (size_t i = 0; i < pieces.pieces_of(key).size(); ++i, ++fragment)
                if (sums[key] >= 0) sums[key] = moved[fragment] < 0 ? moved[fragment] : sums[key] + moved[fragment];
        return int_list(sums);
    }
};

}  // namespace

nb::list DistributedStore::get_into_ranges(nb::handle buffers, nb::handle keys, nb::handle to_offsets, nb::handle from_offsets,
                                           nb::handle sizes) {
    const StoreRef client = use("get_into_ranges");
    if (!client) return all_invalid(buffers, keys, to_offsets);
    RangesCall call(*client);
    return call.parse(buffers, keys, to_offsets, from_offsets, sizes) ? call.run() : all_invalid(buffers, keys, to_offsets);
}

nb::list DistributedStore::open_reads(nb::handle keys) {
    const KeyList names(keys);
    const StoreRef client = use("batch_get_session_start");
    if (!client) return nb::list();
    return int_list(without_gil([&] { return client->open_reads(names.views()); }));
}

nb::list DistributedStore::read_open(nb::handle keys, nb::handle addresses, nb::handle sizes, nb::handle offsets) {
    const KeyList names(keys);
    Fragments fragments;
    const bool fits = fragments.parse(addresses, sizes, offsets, names.size());
    const StoreRef client = use("batch_get_into_multi_buffer_ranges");
    if (!client) return nb::list();
    if (!fits) return repeated(StoreCode::kInvalidParams, names.size());
    const store::MemoryLoan loan = client->look_at(fragments.pieces.all());
    std::vector<store::PartToRead> parts;
    for (size_t key = 0; key < names.size(); ++key)
        for (const store::Piece& piece : fragments.pieces.pieces_of(key))
            parts.push_back({names[key], fragments.offsets[parts.size()], piece, loan.unsure});
    return fragments.per_key(without_gil([&] { return client->read_open(parts); }), names.size());
}

int DistributedStore::close_reads(nb::handle keys) {
    const KeyList names(keys);
    const StoreRef client = use("batch_get_session_end");
    if (!client) return -1;
    without_gil([&] { return client->close_reads(names.views()); });
    return 0;
}

nb::list DistributedStore::open_writes(nb::handle keys, nb::handle sizes, const ReplicateConfig* config) {
    const KeyList names(keys);
    const std::vector<uint64_t> lengths = NumberList(sizes, "sizes").values();
    const StoreRef client = use("batch_put_session_start");
    if (!client) return nb::list();
    if (lengths.size() != names.size()) return repeated(StoreCode::kInvalidParams, names.size());
    const auto options = write_options(config, names.size(), SameNode::kAllowed, host_of(client->name()));
    if (!options) return repeated(StoreCode::kInvalidParams, names.size());
    std::vector<store::StoreClient::Reservation> values;
    for (size_t i = 0; i < names.size(); ++i) values.push_back({names[i], lengths[i], options->group_of(i)});
    return int_list(without_gil([&] { return client->open_writes(values, options->config); }));
}

nb::list DistributedStore::write_open(nb::handle keys, nb::handle addresses, nb::handle sizes, nb::handle offsets) {
    const KeyList names(keys);
    Fragments fragments;
    const bool fits = fragments.parse(addresses, sizes, offsets, names.size());
    const StoreRef client = use("batch_put_from_multi_buffer_ranges");
    if (!client) return nb::list();
    if (!fits) return repeated(StoreCode::kInvalidParams, names.size());
    const store::MemoryLoan loan = fragments.pieces.drop_unreadable(*client);
    if (fragments.pieces.has_null()) return repeated(StoreCode::kInvalidParams, names.size());
    std::vector<store::PartToWrite> parts;
    for (size_t key = 0; key < names.size(); ++key)
        for (const store::Piece& piece : fragments.pieces.pieces_of(key))
            parts.push_back({names[key], fragments.offsets[parts.size()], piece});
    return fragments.per_key(without_gil([&] { return client->write_open(parts); }), names.size());
}

nb::list DistributedStore::close_writes(nb::handle keys, bool revoke) {
    const KeyList names(keys);
    const StoreRef client = use(revoke ? "batch_put_session_revoke" : "batch_put_session_end");
    if (!client) return nb::list();
    return int_list(without_gil([&] { return client->close_writes(names.views(), revoke); }));
}

}  // namespace mooncake::python
