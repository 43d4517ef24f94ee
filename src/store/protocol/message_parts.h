// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "base/verified_message.h"
#include "store/protocol/behind_clients.h"
#include "store/protocol/ids.h"
#include "store/protocol/messages_objects.h"
#include "store/protocol/objects.h"
#include "store_generated.h"

/// What encoders and decoders of the store's messages share. Include only in .cpp files: FlatBuffers is a heavy header.
namespace mooncake::store::parts {

using flatbuffers::FlatBufferBuilder;

/// A builder of this thread, empty; its memory is used again and again.
class Builder {
public:
    Builder() : builder_(local()) { builder_.Clear(); }
    ~Builder() {
        if (builder_.GetSize() > kKeptBytes) builder_.Reset();
    }
    Builder(const Builder&) = delete;
    Builder& operator=(const Builder&) = delete;

    FlatBufferBuilder& operator*() noexcept { return builder_; }
    FlatBufferBuilder* operator->() noexcept { return &builder_; }

    template <typename Table>
    std::vector<std::byte> finish(flatbuffers::Offset<Table> root) {
        builder_.Finish(root);
        const auto* data = reinterpret_cast<const std::byte*>(builder_.GetBufferPointer());
        return std::vector<std::byte>(data, data + builder_.GetSize());
    }

private:
    static constexpr size_t kKeptBytes = 1 << 20;

    static FlatBufferBuilder& local() {
        thread_local FlatBufferBuilder builder(4096);
        return builder;
    }

    FlatBufferBuilder& builder_;
};

template <typename Tag>
wire::Id id_to_wire(const Id<Tag>& id) {
    return wire::Id(id.high, id.low);
}
template <typename To>
To id_from_wire(const wire::Id* id) {
    return id != nullptr ? To{id->high(), id->low()} : To{};
}

inline int64_t duration_to_wire(Duration duration) { return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count(); }
/// Bounded, so that adding it to any sensible time cannot overflow.
inline Duration duration_from_wire(int64_t ns) {
    constexpr Duration kLong = std::chrono::hours(24 * 365 * 10);
    return std::clamp<Duration>(std::chrono::nanoseconds(ns), -kLong, kLong);
}

inline std::string_view view_of(const flatbuffers::String* text) { return text != nullptr ? text->string_view() : std::string_view(); }
inline Result<std::string_view> bounded_view(const flatbuffers::String* text, size_t bytes_max, std::string_view what) {
    const std::string_view view = view_of(text);
    if (view.size() > bytes_max) return fail(Code::kCorrupt, "a {} of {} bytes; at most {} are allowed", what, view.size(), bytes_max);
    return view;
}

template <typename T>
size_t count_of(const flatbuffers::Vector<T>* vector) {
    return vector != nullptr ? vector->size() : 0;
}
template <typename To>
std::vector<To> ids_from_wire(const flatbuffers::Vector<const wire::Id*>* ids) {
    std::vector<To> all;
    all.reserve(count_of(ids));
    for (size_t i = 0; i < count_of(ids); ++i) {
        const auto id = struct_at(*ids, i);
        all.push_back(id_from_wire<To>(&id));
    }
    return all;
}
inline wire::HistoryPoint point_to_wire(const HistoryPoint& point) { return {point.life, point.event}; }
inline HistoryPoint point_from_wire(const wire::HistoryPoint* point) {
    if (point == nullptr) return {};
    return {.life = point->life(), .event = point->event()};
}
inline wire::Behind behind_to_wire(const Behind& behind) { return {id_to_wire(behind.client), point_to_wire(behind.since)}; }
inline std::vector<Behind> behind_from_wire(const flatbuffers::Vector<const wire::Behind*>* items) {
    std::vector<Behind> all;
    all.reserve(count_of(items));
    for (size_t i = 0; i < count_of(items); ++i) {
        const auto item = struct_at(*items, i);
        all.push_back({.client = id_from_wire<ClientId>(&item.client()), .since = point_from_wire(&item.since())});
    }
    return all;
}
template <typename T>
Result<size_t> bounded_count(const flatbuffers::Vector<T>* vector, size_t count_max, std::string_view what) {
    const size_t count = count_of(vector);
    if (count > count_max) return fail(Code::kCorrupt, "{} {}; at most {} are allowed", count, what, count_max);
    return count;
}

/// Numbers as they lie in the message; the wire has the byte order of the machines we run on.
template <typename T>
std::span<const T> numbers_of(const flatbuffers::Vector<T>* vector) {
    return vector != nullptr ? std::span<const T>(vector->data(), vector->size()) : std::span<const T>();
}

/// Hands out the texts of items, which lie one after another.
class TextReader {
public:
    explicit TextReader(const flatbuffers::Vector<uint8_t>* texts)
        : at_(texts != nullptr ? reinterpret_cast<const char*>(texts->data()) : nullptr), left_(count_of(texts)) {}

    /// Empty, and ok() is false from then on, when there are not that many bytes.
    std::string_view next(uint32_t bytes) noexcept {
        if (bytes > left_) {
            ok_ = false;
            return {};
        }
        const std::string_view text(at_, bytes);
        at_ += bytes;
        left_ -= bytes;
        return text;
    }
    bool ok() const noexcept { return ok_; }
    Result<> check() const {
        if (!ok_ || left_ != 0) return fail(Code::kCorrupt, "the texts do not fit their items");
        return {};
    }

private:
    const char* at_;
    size_t left_;
    bool ok_ = true;
};

/// A vector of bytes, filled by appending exactly `bytes` of them.
class TextWriter {
public:
    TextWriter(FlatBufferBuilder& builder, size_t bytes) {
        uint8_t* memory = nullptr;
        offset_ = builder.CreateUninitializedVector<uint8_t>(bytes, &memory);
        at_ = reinterpret_cast<char*>(memory);
    }
    void add(std::string_view text) noexcept {
        if (text.empty()) return;
        std::memcpy(at_, text.data(), text.size());
        at_ += text.size();
    }
    flatbuffers::Offset<flatbuffers::Vector<uint8_t>> offset() const noexcept { return offset_; }

private:
    flatbuffers::Offset<flatbuffers::Vector<uint8_t>> offset_;
    char* at_ = nullptr;
};

/// A vector of structs; `convert(item)` makes each.
template <typename Wire, typename Items, typename Convert>
flatbuffers::Offset<flatbuffers::Vector<const Wire*>> structs_to_wire(FlatBufferBuilder& builder, const Items& items, Convert&& convert) {
    Wire* memory = nullptr;
    const auto offset = builder.CreateUninitializedVectorOfStructs<Wire>(items.size(), &memory);
    for (const auto& item : items) *memory++ = convert(item);
    return offset;
}

/// The replicas of all items (with first_replica and replica_count), in the order of the items.
template <typename Items>
flatbuffers::Offset<flatbuffers::Vector<const wire::Replica*>> replicas_to_wire(FlatBufferBuilder& builder, const Items& items,
                                                                                std::span<const ReplicaLocation> replicas) {
    size_t count = 0;
    for (const auto& item : items) count += item.replica_count;
    wire::Replica* memory = nullptr;
    const auto offset = builder.CreateUninitializedVectorOfStructs<wire::Replica>(count, &memory);
    for (const auto& item : items)
        for (const ReplicaLocation& replica : replicas.subspan(item.first_replica, item.replica_count))
            *memory++ = wire::Replica(replica.segment, replica.offset);
    return offset;
}
inline std::vector<ReplicaLocation> replicas_from_wire(const flatbuffers::Vector<const wire::Replica*>* replicas) {
    std::vector<ReplicaLocation> locations(count_of(replicas));
    for (size_t i = 0; i < locations.size(); ++i) {
        const auto replica = struct_at(*replicas, i);
        locations[i] = {.segment = replica.segment(), .offset = replica.offset()};
    }
    return locations;
}

// ---- keys, and how values are written

using Numbers = flatbuffers::Vector<uint32_t>;
using Texts = flatbuffers::Vector<uint8_t>;

struct WireKeys {
    flatbuffers::Offset<Numbers> key_bytes;
    flatbuffers::Offset<Texts> texts;
};

inline WireKeys keys_to_wire(FlatBufferBuilder& builder, std::span<const std::string_view> keys) {
    uint32_t* lengths = nullptr;
    WireKeys wire{.key_bytes = builder.CreateUninitializedVector<uint32_t>(keys.size(), &lengths), .texts = {}};
    size_t bytes = 0;
    for (const std::string_view key : keys) {
        *lengths++ = static_cast<uint32_t>(key.size());
        bytes += key.size();
    }
    TextWriter texts(builder, bytes);
    for (const std::string_view key : keys) texts.add(key);
    wire.texts = texts.offset();
    return wire;
}

inline Result<std::vector<std::string_view>> keys_from_wire(const Numbers* key_bytes, const Texts* texts) {
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(key_bytes, kKeysMax, "keys"));
    std::vector<std::string_view> keys;
    keys.reserve(count);
    TextReader reader(texts);
    for (const uint32_t bytes : numbers_of(key_bytes)) keys.push_back(reader.next(bytes));
    MC_RETURN_IF_ERROR(reader.check());
    return keys;
}

/// Nothing where there are none.
inline flatbuffers::Offset<Numbers> numbers_to_wire(FlatBufferBuilder& builder, std::span<const uint32_t> numbers) {
    return numbers.empty() ? flatbuffers::Offset<Numbers>() : builder.CreateVector(numbers.data(), numbers.size());
}

inline flatbuffers::Offset<wire::WriteConfig> config_to_wire(FlatBufferBuilder& builder, const WriteConfig& config) {
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>> preferred;
    if (!config.preferred_segments.empty()) preferred = builder.CreateVectorOfStrings(config.preferred_segments);
    flatbuffers::Offset<flatbuffers::String> host;
    if (!config.writer_host.empty()) host = builder.CreateString(config.writer_host);
    wire::WriteConfigBuilder table(builder);
    table.add_replica_num(config.replica_num);
    table.add_soft_pin(static_cast<uint8_t>(config.soft_pin));
    if (config.soft_pin_ttl) table.add_soft_pin_ttl_ns(duration_to_wire(*config.soft_pin_ttl));
    table.add_hard_pin(config.hard_pin);
    table.add_data_type(static_cast<uint8_t>(config.data_type));
    table.add_preferred_segments(preferred);
    table.add_writer_host(host);
    return table.Finish();
}

inline Result<WriteConfig> config_from_wire(const wire::WriteConfig* table) {
    WriteConfig config;
    if (table == nullptr) return config;
    config.replica_num = table->replica_num();
    // What we do not understand we cannot do: better refused than ignored.
    if (table->soft_pin() > static_cast<uint8_t>(SoftPinAction::kDisable))
        return fail(Code::kCorrupt, "a soft pin action of {}", table->soft_pin());
    config.soft_pin = static_cast<SoftPinAction>(table->soft_pin());
    if (const auto ttl = table->soft_pin_ttl_ns()) config.soft_pin_ttl = duration_from_wire(*ttl);
    config.hard_pin = table->hard_pin();
    config.data_type = static_cast<ObjectDataType>(table->data_type());
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(table->preferred_segments(), kPreferredSegmentsMax, "preferred segments"));
    config.preferred_segments.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const auto* name = table->preferred_segments()->Get(static_cast<flatbuffers::uoffset_t>(i));
        MC_ASSIGN_OR_RETURN(config.preferred_segments.emplace_back(), bounded_text(name, kNameBytesMax, "segment name"));
    }
    MC_ASSIGN_OR_RETURN(config.writer_host, bounded_text(table->writer_host(), kNameBytesMax, "host name"));
    return config;
}

}  // namespace mooncake::store::parts
