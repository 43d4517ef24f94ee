// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <shared_mutex>
#include <utility>

#include "store/bridge/server/guest.h"

/// The calls of a client, by the node's own client. A value that names memory which is not the client's is refused by itself.
namespace mooncake::store::bridge {

namespace {

constexpr auto kInvalid = static_cast<int64_t>(StoreCode::kInvalidParams);

Reply one(int64_t number) { return {.numbers = {number}, .values = {}}; }

template <typename Number>
Reply numbers_of(const std::vector<Number>& all) {
    Reply reply;
    reply.numbers.reserve(all.size());
    for (const Number number : all) reply.numbers.push_back(static_cast<int64_t>(number));
    return reply;
}

Reply infos_of(std::vector<ValueInfo> infos) {
    Reply reply;
    for (const ValueInfo& info : infos) reply.numbers.push_back(static_cast<int64_t>(info.code));
    reply.values = std::move(infos);
    return reply;
}

/// Calls `run` with what `make` makes of each key, less those it makes nothing of.
template <typename Value, typename Make, typename Run>
Reply for_each_key(size_t keys, Make&& make, Run&& run) {
    Reply reply;
    reply.numbers.assign(keys, kInvalid);
    std::vector<Value> values;
    std::vector<size_t> where;
    values.reserve(keys);
    for (size_t i = 0; i < keys; ++i) {
        if (std::optional<Value> value = make(i)) {
            values.push_back(*value);
            where.push_back(i);
        }
    }
    if (values.empty()) return reply;
    const auto results = run(values);
    for (size_t i = 0; i < where.size(); ++i) reply.numbers[where[i]] = static_cast<int64_t>(results[i]);
    return reply;
}

}  // namespace

/// What a call names, and what it holds until it is over.
struct Guest::Call {
    struct Held {
        uint32_t number = 0;
        std::shared_ptr<Entry> entry;
        Gate::Pass pass;
    };

    Call(Guest& guest, const ReceivedRequest& named_by) : request(named_by), pieces(named_by.pieces.size()) {
        for (size_t i = 0; i < pieces.size(); ++i) {
            const SharedPiece& named = request.pieces[i];
            if (named.length == 0) {  // nobody's
                pieces[i] = {&nothing, 0};
                continue;
            }
            Entry* const entry = find(guest, named.entry);
            if (entry != nullptr) pieces[i] = {entry->at(named.offset, named.length), named.length};
        }
    }
    Entry* find(Guest& guest, uint32_t number) {
        for (auto known = held.rbegin(); known != held.rend(); ++known)  // mostly there are one or two
            if (known->number == number) return known->entry.get();
        Held next{.number = number, .entry = guest.entry(number), .pass = {}};
        if (next.entry == nullptr) return nullptr;
        next.pass = next.entry->enter();
        if (!next.pass) return nullptr;
        held.push_back(std::move(next));
        return held.back().entry.get();
    }

    std::string_view group(size_t i) const { return request.groups.empty() ? std::string_view() : request.groups[i]; }
    /// The memory of the next key; nothing where some of it is not the client's.
    std::optional<std::span<const Piece>> next_pieces(size_t i) {
        const size_t count = request.piece_counts.empty() ? 0 : request.piece_counts[i];
        const auto own = std::span<const Piece>(pieces).subspan(used, count);
        used += count;
        for (const Piece& piece : own)
            if (piece.data == nullptr) return std::nullopt;
        return own;
    }
    /// Whether every key has one piece and an offset.
    bool parts() const { return request.keys.size() == pieces.size() && request.keys.size() == request.offsets.size(); }

    static inline std::byte nothing{};
    const ReceivedRequest& request;
    std::vector<Held> held;
    std::vector<Piece> pieces;  // null: not the client's
    size_t used = 0;
};

Reply Guest::run(Kind kind, const ReceivedRequest& request, MemoryFile file) {
    const std::span<const std::string_view> keys = request.keys;
    switch (kind) {
        case Kind::kHello: return {.numbers = {kEntriesMax, static_cast<int64_t>(kBodyBytesMax)}, .values = {}};
        case Kind::kPing: {
            const bool reachable = node_.master_reachable();
            const std::shared_lock lock(entries_mutex_);
            return {.numbers = {reachable, static_cast<int64_t>(entries_.size())}, .values = {}};
        }
        case Kind::kMap:
            return one(request.pieces.size() == 1 ? static_cast<int64_t>(map(request.pieces.front(), std::move(file))) : kInvalid);
        case Kind::kUnmap:
        case Kind::kIsMapped: {
            Reply reply;
            for (const SharedPiece& piece : request.pieces)
                reply.numbers.push_back(kind == Kind::kUnmap ? static_cast<int64_t>(unmap(piece.entry)) : entry(piece.entry) != nullptr);
            return reply;
        }
        case Kind::kFind: return infos_of(node_.find(keys));
        case Kind::kLocate: return infos_of(node_.locate(keys));
        case Kind::kExist: return numbers_of(node_.exist(keys));
        case Kind::kRemove: return numbers_of(node_.remove(keys, request.flag));
        case Kind::kRemoveByRegex: return one(node_.remove_by_regex(request.text, request.flag));
        case Kind::kRemoveAll: return one(node_.remove_all(request.flag));
        case Kind::kReplicaClear: return numbers_of(node_.replica_clear(keys, request.text));
        case Kind::kOpenReads: return numbers_of(sessions_->open_reads(keys));
        case Kind::kCloseReads: return one(sessions_->close_reads(keys));
        case Kind::kCloseWrites: return numbers_of(sessions_->close_writes(keys, request.flag));
        case Kind::kDiskReads: return one(static_cast<int64_t>(node_.far_disk_reads()));
        default: return run_with_memory(kind, request);
    }
}

Reply Guest::run_with_memory(Kind kind, const ReceivedRequest& request) {
    Call call(*this, request);
    const std::span<const std::string_view> keys = request.keys;
    const auto part = [&](size_t i) { return call.parts() && call.pieces[i].data != nullptr; };
    const auto to_read = [&](size_t i) {
        return part(i) ? std::optional(PartToRead{.key = keys[i], .offset = request.offsets[i], .to = call.pieces[i]}) : std::nullopt;
    };
    switch (kind) {
        case Kind::kWrite:
            return for_each_key<ValueToWrite>(
                keys.size(),
                [&](size_t i) -> std::optional<ValueToWrite> {
                    const auto pieces = call.next_pieces(i);
                    if (!pieces) return std::nullopt;
                    return ValueToWrite{.key = keys[i], .pieces = *pieces, .group = call.group(i)};
                },
                [&](const auto& values) { return node_.write(values, request.config, request.flag); });
        case Kind::kRead:
            return for_each_key<ValueToRead>(
                keys.size(),
                [&](size_t i) -> std::optional<ValueToRead> {
                    const auto pieces = call.next_pieces(i);
                    if (!pieces) return std::nullopt;
                    return ValueToRead{.key = keys[i], .pieces = *pieces};
                },
                [&](const auto& values) { return node_.read(values); });
        case Kind::kReadParts:
            return for_each_key<PartToRead>(keys.size(), to_read, [&](const auto& parts) { return node_.read_parts(parts); });
        case Kind::kReadOpen:
            return for_each_key<PartToRead>(keys.size(), to_read, [&](const auto& parts) { return sessions_->read_open(parts); });
        case Kind::kWriteOpen:
            return for_each_key<PartToWrite>(
                keys.size(),
                [&](size_t i) {
                    return part(i) ? std::optional(PartToWrite{.key = keys[i], .offset = request.offsets[i], .from = call.pieces[i]})
                                   : std::nullopt;
                },
                [&](const auto& parts) { return sessions_->write_open(parts); });
        case Kind::kOpenWrites:
            return for_each_key<Reservation>(
                request.offsets.size(),
                [&](size_t i) { return std::optional(Reservation{.key = keys[i], .length = request.offsets[i], .group = call.group(i)}); },
                [&](const auto& values) { return sessions_->open_writes(values, request.config); });
        default: return one(static_cast<int64_t>(StoreCode::kNotSupported));
    }
}

}  // namespace mooncake::store::bridge
