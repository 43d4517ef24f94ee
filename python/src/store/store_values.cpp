// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/unique_ptr.h>

#include <utility>

#include "distributed_store.h"
#include "store/client/fresh_pages.h"

/// The calls on whole values that take and give Python objects.
namespace mooncake::python {

namespace {

constexpr int kInvalid = static_cast<int>(StoreCode::kInvalidParams);
constexpr Duration kReadPatience = 2s;  // with a value that is replaced by one of another length whenever we have asked for its length

int first_failure(const std::vector<StoreCode>& codes) {
    for (const StoreCode code : codes)
        if (code != StoreCode::kOk) return static_cast<int>(code);
    return 0;
}

nb::object empty_bytes() { return nb::steal(PyBytes_FromStringAndSize(nullptr, 0)); }

/// Reads values into new bytes objects; empty ones for what cannot be read.
class BytesReader {
public:
    BytesReader(const StoreRef& client, std::span<const std::string_view> keys) : client_(client), keys_(keys), results_(keys.size()) {}

    std::vector<nb::object> run() {
        std::vector<size_t> left(keys_.size());
        for (size_t i = 0; i < left.size(); ++i) left[i] = i;
        const Deadline deadline = Deadline::after(kReadPatience);
        do left = read(left);
        while (!left.empty() && !deadline.passed());
        for (const size_t index : left) results_[index] = nb::object();
        for (nb::object& result : results_)
            if (!result.is_valid()) result = empty_bytes();
        return std::move(results_);
    }

private:
    /// Returns those that are worth another try.
    std::vector<size_t> read(const std::vector<size_t>& indices) {
        std::vector<std::string_view> keys;
        for (const size_t index : indices) keys.push_back(keys_[index]);
        const std::vector<store::ValueInfo> found = without_gil([&] { return client_->find(keys); });

        std::vector<store::Piece> pieces;
        std::vector<store::ValueToRead> values;
        std::vector<size_t> of_value;
        pieces.reserve(found.size());
        for (size_t i = 0; i < found.size(); ++i) {
            if (found[i].code != StoreCode::kOk) continue;
            nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(found[i].length)));
            if (!bytes.is_valid()) throw nb::python_error();
            pieces.push_back({reinterpret_cast<std::byte*>(PyBytes_AsString(bytes.ptr())), found[i].length});
            values.push_back({keys[i], std::span(&pieces.back(), 1)});
            of_value.push_back(indices[i]);
            results_[indices[i]] = std::move(bytes);
        }
        if (values.empty()) return {};
        const std::vector<int64_t> read = without_gil([&] {
            store::provide_pages(pieces);
            return client_->read(values);
        });

        std::vector<size_t> again;
        for (size_t i = 0; i < read.size(); ++i) {
            if (read[i] == static_cast<int64_t>(pieces[i].length)) continue;
            results_[of_value[i]] = nb::object();
            if (read[i] >= 0 || read[i] == kInvalid) again.push_back(of_value[i]);  // it has another length now
        }
        return again;
    }

    const StoreRef& client_;
    const std::span<const std::string_view> keys_;
    std::vector<nb::object> results_;
};

/// Reads values into staging memory; null for what cannot be read, or does not fit there.
class HandleReader {
public:
    HandleReader(const StoreRef& client, std::span<const std::string_view> keys) : client_(client), keys_(keys), handles_(keys.size()) {}

    std::vector<std::unique_ptr<BufferHandle>> run() {
        std::vector<size_t> left(keys_.size());
        for (size_t i = 0; i < left.size(); ++i) left[i] = i;
        const Deadline deadline = Deadline::after(kReadPatience);
        do left = read(left);
        while (!left.empty() && !deadline.passed());
        return std::move(handles_);
    }

private:
    /// Returns those that are worth another try.
    std::vector<size_t> read(const std::vector<size_t>& indices) {
        std::vector<std::string_view> keys;
        for (const size_t index : indices) keys.push_back(keys_[index]);
        const std::vector<store::ValueInfo> found = without_gil([&] { return client_->find(keys); });
        std::vector<store::Piece> pieces(keys.size());
        std::vector<store::ValueToRead> wanted;
        std::vector<size_t> of_value;
        for (size_t i = 0; i < found.size(); ++i) {
            if (found[i].code != StoreCode::kOk) continue;
            store::StagingBuffer staged = client_->stage(found[i].length);
            if (!staged) continue;
            pieces[i] = {staged.data(), found[i].length};
            handles_[indices[i]] = std::make_unique<BufferHandle>(client_, std::move(staged), found[i].length);
            wanted.push_back({keys[i], std::span(&pieces[i], 1)});
            of_value.push_back(indices[i]);
        }
        const std::vector<int64_t> read = without_gil([&] { return client_->read(wanted); });
        std::vector<size_t> again;
        for (size_t i = 0; i < read.size(); ++i) {
            std::unique_ptr<BufferHandle>& handle = handles_[of_value[i]];
            if (read[i] == static_cast<int64_t>(handle->size())) continue;
            handle.reset();
            if (read[i] >= 0 || read[i] == kInvalid) again.push_back(of_value[i]);  // it has another length now
        }
        return again;
    }

    const StoreRef& client_;
    const std::span<const std::string_view> keys_;
    std::vector<std::unique_ptr<BufferHandle>> handles_;
};

}  // namespace

std::vector<StoreCode> DistributedStore::write(const StoreRef& client, const KeyList& keys, const PieceLists& pieces,
                                               const WriteOptions& options, bool replace) {
    std::vector<store::ValueToWrite> values(keys.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = {keys[i], pieces.pieces_of(i), options.group_of(i)};
    if (!pieces.has_null()) [[likely]]
        return without_gil([&] { return client->write(values, options.config, replace); });

    std::vector<StoreCode> codes(keys.size(), StoreCode::kInvalidParams);
    std::vector<size_t> kept;
    for (size_t i = 0; i < values.size(); ++i) {
        if (pieces.has_null(i)) continue;
        values[kept.size()] = values[i];
        kept.push_back(i);
    }
    values.resize(kept.size());
    if (kept.empty()) return codes;
    const std::vector<StoreCode> written = without_gil([&] { return client->write(values, options.config, replace); });
    for (size_t i = 0; i < kept.size(); ++i) codes[kept[i]] = written[i];
    return codes;
}

int DistributedStore::put(nb::handle key, nb::handle value, const ReplicateConfig* config, bool replace) {
    const std::string_view name = key_from(key);
    PieceLists pieces;
    pieces.parse_objects(nb::make_tuple(value), 1, "value");
    const StoreRef client = use(replace ? "upsert" : "put");
    if (!client || client->config().buffer_bytes == 0 || pieces.bytes() == 0) return kInvalid;
    const auto options = write_options(config, 1, SameNode::kRefused, {});
    if (!options) return kInvalid;
    const store::ValueToWrite wanted{name, pieces.pieces_of(0), options->group_of(0)};
    return first_failure(without_gil([&] { return client->write(std::span(&wanted, 1), options->config, replace); }));
}

int DistributedStore::put_batch(nb::handle keys, nb::handle values, const ReplicateConfig* config, bool replace) {
    const KeyList names(keys);
    PieceLists pieces;
    const bool fits = pieces.parse_objects(values, names.size(), "values");
    const StoreRef client = use(replace ? "upsert_batch" : "put_batch");
    if (!client || !fits || client->config().buffer_bytes == 0) return kInvalid;
    const auto options = write_options(config, names.size(), SameNode::kRefused, {});
    return options ? first_failure(write(client, names, pieces, *options, replace)) : kInvalid;
}

int DistributedStore::put_parts(nb::handle key, nb::handle parts, const ReplicateConfig* config, bool replace) {
    const std::string_view name = key_from(key);
    PieceLists pieces;
    pieces.parse_parts(parts);
    const StoreRef client = use(replace ? "upsert_parts" : "put_parts");
    if (!client || client->config().buffer_bytes == 0) return kInvalid;
    const auto options = write_options(config, 1, SameNode::kRefused, {});
    if (!options) return kInvalid;
    if (pieces.bytes() == 0) return 0;
    const store::ValueToWrite wanted{name, pieces.all(), options->group_of(0)};
    return first_failure(without_gil([&] { return client->write(std::span(&wanted, 1), options->config, replace); }));
}

nb::object DistributedStore::get(nb::handle key) {
    const std::string_view name = key_from(key);
    const StoreRef client = use("get");
    if (!client || client->config().buffer_bytes == 0) return empty_bytes();
    return std::move(BytesReader(client, std::span(&name, 1)).run().front());
}

nb::list DistributedStore::get_batch(nb::handle keys) {
    const KeyList names(keys);
    const StoreRef client = use("get_batch");
    nb::list values;
    if (!client) {
        values.append(empty_bytes());
    } else if (client->config().buffer_bytes == 0) {
        for (size_t i = 0; i < names.size(); ++i) values.append(empty_bytes());
    } else {
        for (nb::object& value : BytesReader(client, names.views()).run()) values.append(std::move(value));
    }
    return values;
}

nb::list DistributedStore::get_buffers(nb::handle keys) {
    const KeyList names(keys);
    const StoreRef client = use("get_buffer");
    std::vector<std::unique_ptr<BufferHandle>> handles(names.size());
    if (client) handles = HandleReader(client, names.views()).run();
    nb::list results;
    for (auto& handle : handles) results.append(handle ? nb::cast(std::move(handle)) : nb::none());
    return results;
}

int DistributedStore::is_exist(nb::handle key) {
    const std::string_view name = key_from(key);
    const StoreRef client = use("is_exist");
    if (!client) return kInvalid;
    return without_gil([&] { return client->exist(std::span(&name, 1)).front(); });
}

nb::list DistributedStore::batch_is_exist(nb::handle keys) {
    const KeyList names(keys);
    const StoreRef client = use("batch_is_exist");
    if (!client) return repeated(StoreCode::kInvalidParams, names.size());
    return int_list(without_gil([&] { return client->exist(names.views()); }));
}

int64_t DistributedStore::get_size(nb::handle key) {
    const std::string_view name = key_from(key);
    const StoreRef client = use("get_size");
    if (!client) return kInvalid;
    const store::ValueInfo found = without_gil([&] { return std::move(client->find(std::span(&name, 1)).front()); });
    return found.code == StoreCode::kOk ? static_cast<int64_t>(found.length) : static_cast<int64_t>(found.code);
}

nb::list DistributedStore::batch_get_size(nb::handle keys) {
    const KeyList names(keys);
    const StoreRef client = use("get_size");
    if (!client) return repeated(StoreCode::kInvalidParams, names.size());
    std::vector<int64_t> sizes;
    for (const store::ValueInfo& found : without_gil([&] { return client->find(names.views()); }))
        sizes.push_back(found.code == StoreCode::kOk ? static_cast<int64_t>(found.length) : static_cast<int64_t>(found.code));
    return int_list(sizes);
}

int DistributedStore::remove(nb::handle key, bool force) {
    const std::string_view name = key_from(key);
    const StoreRef client = use("remove");
    if (!client) return kInvalid;
    return static_cast<int>(without_gil([&] { return client->remove(std::span(&name, 1), force).front(); }));
}

nb::list DistributedStore::batch_remove(nb::handle keys, bool force) {
    const KeyList names(keys);
    const StoreRef client = use("batch_remove");
    if (!client) return repeated(StoreCode::kInvalidParams, names.size());
    return int_list(without_gil([&] { return client->remove(names.views(), force); }));
}

int64_t DistributedStore::remove_by_regex(nb::handle pattern, bool force) {
    const std::string_view text = key_from(pattern, "regex_pattern");
    const StoreRef client = use("remove_by_regex");
    if (!client) return kInvalid;
    return without_gil([&] { return client->remove_by_regex(text, force); });
}

int64_t DistributedStore::remove_all(bool force) {
    const StoreRef client = use("remove_all");
    if (!client) return kInvalid;
    return without_gil([&] { return client->remove_all(force); });
}

}  // namespace mooncake::python
