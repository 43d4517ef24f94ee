// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <utility>

#include "distributed_store.h"

/// The calls that move values from and to memory that callers name by address.
namespace mooncake::python {

namespace {

constexpr int kInvalid = static_cast<int>(StoreCode::kInvalidParams);

std::byte* address_from(nb::handle value, const char* name) { return reinterpret_cast<std::byte*>(number_from(value, name)); }

}  // namespace

int DistributedStore::register_buffer(nb::handle address, nb::handle size) {
    void* const start = address_from(address, "buffer_ptr");
    const uint64_t length = number_from(size, "size");
    const StoreRef client = use("register_buffer");
    if (!client || start == nullptr || length == 0) return kInvalid;
    return static_cast<int>(without_gil([&] { return client->register_buffer(start, length); }));
}

int DistributedStore::unregister_buffer(nb::handle address) {
    void* const start = address_from(address, "buffer_ptr");
    const StoreRef client = use("unregister_buffer");
    if (!client || start == nullptr) return kInvalid;
    return static_cast<int>(without_gil([&] { return client->unregister_buffer(start); }));
}

int DistributedStore::put_from(nb::handle key, nb::handle address, nb::handle size, const ReplicateConfig* config, bool replace) {
    const std::string_view name = key_from(key);
    store::Piece piece{address_from(address, "buffer_ptr"), number_from(size, "size")};
    const StoreRef client = use(replace ? "upsert_from" : "put_from");
    if (!client) return kInvalid;
    const store::MemoryLoan loan = client->drop_unreadable(std::span(&piece, 1));
    const auto options = write_options(config, 1, SameNode::kRefused, {});
    if (!options) return kInvalid;
    if (piece.length == 0) return 0;
    if (piece.data == nullptr) return kInvalid;
    const store::ValueToWrite wanted{name, std::span(&piece, 1), options->group_of(0)};
    return static_cast<int>(without_gil([&] { return client->write(std::span(&wanted, 1), options->config, replace).front(); }));
}

int DistributedStore::put_with_metadata(nb::handle key, nb::handle address, nb::handle metadata_address, nb::handle size,
                                        nb::handle metadata_size, const ReplicateConfig* config) {
    constexpr int kMisuse = -1;
    const std::string_view name = key_from(key);
    store::Piece pieces[] = {{address_from(metadata_address, "metadata_buffer_ptr"), number_from(metadata_size, "metadata_size")},
                             {address_from(address, "buffer_ptr"), number_from(size, "size")}};
    const StoreRef client = use("put_from_with_metadata");
    if (!client) return kInvalid;
    if (pieces[1].length == 0) return 0;
    const store::MemoryLoan loan = client->drop_unreadable(pieces);
    for (const store::Piece& piece : pieces)
        if (piece.data == nullptr && piece.length != 0) return kMisuse;
    const auto options = write_options(config, 1, SameNode::kRefused, {});
    if (!options) return kMisuse;
    const std::span<const store::Piece> parts = std::span(pieces).subspan(pieces[0].length == 0 ? 1 : 0);
    const store::ValueToWrite wanted{name, parts, options->group_of(0)};
    return static_cast<int>(without_gil([&] { return client->write(std::span(&wanted, 1), options->config, false).front(); }));
}

nb::list DistributedStore::batch_put_from(nb::handle keys, nb::handle addresses, nb::handle sizes, const ReplicateConfig* config,
                                          bool replace) {
    const KeyList names(keys);
    PieceLists pieces;
    const bool fits = pieces.parse(addresses, sizes, names.size());
    const StoreRef client = use(replace ? "batch_upsert_from" : "batch_put_from");
    if (!client || !fits) return repeated(StoreCode::kInvalidParams, names.size());
    const store::MemoryLoan loan = pieces.drop_unreadable(*client);
    const auto options = write_options(config, names.size(), SameNode::kRefused, {});
    if (!options) return repeated(StoreCode::kInvalidParams, names.size());
    return int_list(write(client, names, pieces, *options, replace));
}

nb::list DistributedStore::batch_put_multi(nb::handle keys, nb::handle addresses, nb::handle sizes, const ReplicateConfig* config,
                                           bool replace) {
    const KeyList names(keys);
    PieceLists pieces;
    const bool fits = pieces.parse_nested(addresses, sizes, names.size());
    const StoreRef client = use("batch_put_from_multi_buffers");
    if (!client) return nb::list();
    const auto options = write_options(config, names.size(), SameNode::kAllowed, host_of(client->name()));
    if (!fits || !options) return repeated(StoreCode::kInvalidParams, names.size());
    const store::MemoryLoan loan = pieces.drop_unreadable(*client);
    return int_list(write(client, names, pieces, *options, replace));
}

nb::list DistributedStore::read(const StoreRef& client, const KeyList& keys, const PieceLists& pieces) {
    const store::MemoryLoan loan = client->look_at(pieces.all());
    std::vector<store::ValueToRead> values(keys.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = {keys[i], pieces.pieces_of(i), loan.unsure};
    if (!pieces.has_null()) [[likely]]
        return int_list(without_gil([&] { return client->read(values); }));

    std::vector<int64_t> results(keys.size(), kInvalid);
    std::vector<size_t> kept;
    for (size_t i = 0; i < values.size(); ++i) {
        if (pieces.has_null(i)) continue;
        values[kept.size()] = values[i];
        kept.push_back(i);
    }
    values.resize(kept.size());
    if (kept.empty()) return int_list(results);
    const std::vector<int64_t> read = without_gil([&] { return client->read(values); });
    for (size_t i = 0; i < kept.size(); ++i) results[kept[i]] = read[i];
    return int_list(results);
}

int64_t DistributedStore::get_into(nb::handle key, nb::handle address, nb::handle size) {
    const std::string_view name = key_from(key);
    const store::Piece piece{address_from(address, "buffer_ptr"), number_from(size, "size")};
    const StoreRef client = use("get_into");
    if (!client || piece.data == nullptr) return kInvalid;
    const store::MemoryLoan loan = client->look_at(std::span(&piece, 1));
    const store::ValueToRead wanted{name, std::span(&piece, 1), loan.unsure};
    return without_gil([&] { return client->read(std::span(&wanted, 1)).front(); });
}

nb::list DistributedStore::batch_get_into(nb::handle keys, nb::handle addresses, nb::handle sizes) {
    const KeyList names(keys);
    PieceLists pieces;
    const bool fits = pieces.parse(addresses, sizes, names.size());
    const StoreRef client = use("batch_get_into");
    if (!client || !fits) return repeated(StoreCode::kInvalidParams, names.size());
    return read(client, names, pieces);
}

nb::list DistributedStore::batch_get_multi(nb::handle keys, nb::handle addresses, nb::handle sizes) {
    const KeyList names(keys);
    PieceLists pieces;
    const bool fits = pieces.parse_nested(addresses, sizes, names.size());
    const StoreRef client = use("batch_get_into_multi_buffers");
    if (!client || !fits) return repeated(StoreCode::kInvalidParams, names.size());
    return read(client, names, pieces);
}

uintptr_t DistributedStore::allocate_shared(uint64_t size) {
    if (!is_set_up() || size == 0) return 0;
    const StoreRef client = use("alloc_from_mem_pool");
    return client ? reinterpret_cast<uintptr_t>(without_gil([&] { return client->allocate_shared(size); })) : 0;
}

nb::list DistributedStore::are_shared(nb::handle addresses) {
    std::vector<void*> all;
    for (const uint64_t address : NumberList(addresses, "buffer_ptrs").values()) all.push_back(reinterpret_cast<void*>(address));
    const StoreRef client = use("are_buffers_mapped");
    std::vector<int32_t> known(all.size(), 0);
    if (client)
        for (size_t i = 0; const bool is_known : without_gil([&] { return client->are_shared(all); })) known[i++] = is_known;
    return int_list(known);
}

std::unique_ptr<Block> DistributedStore::stage(uint64_t size) {
    StoreRef client = use("acquire");
    if (!client) return nullptr;
    store::StagingBuffer staged = client->stage(size);
    if (!staged) return nullptr;
    return std::make_unique<Block>(std::move(client), std::move(staged), size);
}

std::unique_ptr<Block> DistributedStore::allocate(uint64_t size, uint64_t alignment) {
    StoreRef client = use("acquire");
    if (!client || size == 0 || !std::has_single_bit(alignment)) return nullptr;
    auto block = std::make_unique<Block>(std::move(client), size, std::max<uint64_t>(alignment, sizeof(void*)));
    return block->data() != nullptr ? std::move(block) : nullptr;
}

}  // namespace mooncake::python
