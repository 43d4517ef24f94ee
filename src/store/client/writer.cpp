// SPDX-License-Identifier: Apache-2.0
#include "store/client/writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "base/log.h"
#include "store/client/value_hash.h"
#include "store/client/write_again.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

constexpr uint64_t kHashAheadBytes = 512 << 10;
constexpr Duration kJoinPatience = 5s;       // for a master that we are getting to know
constexpr Duration kTurnPatience = 2s;       // for another thread of ours that replaces the same value
constexpr Duration kRevokePatience = 200ms;  // where the master has not answered anyway

/// The length of a value to write; nothing: null pointers, no bytes, or more than can be.
std::optional<uint64_t> length_of(std::span<const Piece> pieces) {
    constexpr uint64_t kMost = uint64_t{1} << 62;
    uint64_t total = 0;
    for (const Piece& piece : pieces) {
        if ((piece.data == nullptr && piece.length > 0) || piece.length > kMost - total) return std::nullopt;
        total += piece.length;
    }
    return total == 0 ? std::nullopt : std::optional(total);
}

/// Finds keys that are there twice; one allocation for all of them.
class FirstOfKey {
public:
    explicit FirstOfKey(size_t keys) : slots_(std::bit_ceil(2 * keys)) {}

    /// The number that came first with this key, perhaps this one. `key_of(number)`: of one that was given before.
    template <typename KeyOf>
    uint32_t find_or_add(std::string_view key, uint32_t number, KeyOf&& key_of) {
        for (size_t at = std::hash<std::string_view>{}(key);; ++at) {
            uint32_t& slot = slots_[at & (slots_.size() - 1)];
            if (slot == 0) slot = number + 1;
            if (slot == number + 1 || key_of(slot - 1) == key) return slot - 1;
        }
    }

private:
    std::vector<uint32_t> slots_;  // 1 + number; 0: empty
};

/// One write() from its arguments to its codes.
class Writer {
public:
    /// `unreachable`: segments to avoid; those that fail are added.
    Writer(ClientCore& core, std::span<const ValueToWrite> values, const WriteConfig& config, bool replace,
           std::vector<uint32_t>& unreachable)
        : core_(core), values_(values), config_(config), replace_(replace), unreachable_(unreachable),
          codes_(values.size(), StoreCode::kOk) {}

    std::vector<StoreCode> run() {
        if (!check()) return std::move(codes_);
        const uint64_t request_id = core_.next_request.fetch_add(1, std::memory_order_relaxed);
        auto started = start_writes(core_, put_items_, config_, replace_, request_id, unreachable_, [this] { hash_some(); });
        if (!started) {
            for (const Item& item : items_) codes_[item.value] = core_.pool.code_of(started.error());
        } else {
            move(*started);
            end_writes(core_, ends_, request_id);
            for (const WriteEnd& end : ends_) codes_[items_[&end - ends_.data()].value] = end.code;
            finish(started->reply);
            disk_wait_ = started->reply.disk_wait;
        }
        for (const auto& [copy, of] : repeats_) codes_[copy] = codes_[of];
        return std::move(codes_);
    }
    uint64_t bytes_written() const noexcept { return bytes_written_; }
    Duration disk_wait() const noexcept { return disk_wait_; }

private:
    struct Item {
        uint32_t value = 0;
        uint64_t length = 0;
    };

    /// Of a key that is there twice, the first counts where nothing is replaced, and the last where it is.
    bool check() {
        FirstOfKey first_of(values_.size());
        const auto key_of = [this](uint32_t item) { return values_[items_[item].value].key; };
        items_.reserve(values_.size());
        for (uint32_t i = 0; i < values_.size(); ++i) {
            const auto length = length_of(values_[i].pieces);
            if (!is_key(values_[i].key) || values_[i].group.size() > kGroupBytesMax || !length) {
                codes_[i] = StoreCode::kInvalidParams;
                continue;
            }
            const auto next = static_cast<uint32_t>(items_.size());
            if (const uint32_t first = first_of.find_or_add(values_[i].key, next, key_of); first != next) {
                Item& item = items_[first];
                const uint32_t loser = replace_ ? std::exchange(item.value, i) : i;
                if (replace_) item.length = *length;
                repeats_.emplace_back(loser, first);
                continue;
            }
            items_.push_back({.value = i, .length = *length});
        }
        for (auto& [copy, of] : repeats_) of = items_[of].value;
        put_items_.reserve(items_.size());
        for (const Item& item : items_)
            put_items_.push_back({.key = values_[item.value].key, .length = item.length, .group = values_[item.value].group});
        if (core_.config.checksum) {
            hashes_ = std::vector<ValueHash>(items_.size());
            for (size_t i = 0; i < items_.size(); ++i)
                hashes_[i].start(values_[items_[i].value].pieces, items_[i].length, Direction::kWrite, core_.pool.engine.get());
        }
        return !items_.empty();
    }

    /// While the master looks for room: as much as fits the caches, from where it is copied right afterwards.
    void hash_some() {
        uint64_t bytes = 0;
        for (hashed_ = 0; hashed_ < hashes_.size() && (bytes += items_[hashed_].length) <= kHashAheadBytes; ++hashed_) {
            if (hashes_[hashed_].of_devices()) return;  // seen when it has left the device
            (void)hashes_[hashed_].checksum();
        }
    }

    void move(const StartedWrites& writes) {
        const PutStartReply& reply = writes.reply;
        ends_.resize(items_.size());
        const auto pass = writes.enter(core_);
        WriteMoves moves(core_.pool, pass);
        for (uint32_t i = 0; i < items_.size(); ++i) {
            const PutStartItem& started = reply.items[i];
            ends_[i] = {.key = put_items_[i].key, .generation = started.generation, .checksum = 0, .code = started.code};
            if (started.code != StoreCode::kOk) continue;
            if (!pass) {
                ends_[i].code = core_.lost_code();
                continue;
            }
            if (!add(moves, i, reply)) ends_[i].code = StoreCode::kTransferFail;
        }
        run(moves);
        if (hashes_.empty()) return;
        for (uint32_t i = 0; i < items_.size(); ++i) {
            if (ends_[i].code != StoreCode::kOk) continue;
            const auto checksum = hashes_[i].checksum();
            if (!checksum) MC_LOG_WARNING_EVERY(1s, "key {} cannot be hashed: {}", put_items_[i].key, checksum.error().to_string());
            ends_[i].checksum = checksum.value_or(0);
            if (!checksum || !add_table(moves, i, reply)) ends_[i].code = StoreCode::kTransferFail;
        }
        run(moves);
    }

    void run(WriteMoves& moves) {
        for (const WriteMoves::Failure& failure : moves.run()) {
            ends_[failure.item].code = core_.closing() ? StoreCode::kUnavailableInCurrentStatus : StoreCode::kTransferFail;
            if (failure.in_doubt) ends_[failure.item].in_doubt.push_back(failure.in_doubt);
            if (!failure.right_ended && !avoided(failure.segment)) unreachable_.push_back(failure.segment);
        }
    }

    static std::span<const ReplicaLocation> replicas_of(uint32_t i, const PutStartReply& reply) {
        return std::span(reply.replicas).subspan(reply.items[i].first_replica, reply.items[i].replica_count);
    }
    bool avoided(uint32_t segment) const { return std::find(unreachable_.begin(), unreachable_.end(), segment) != unreachable_.end(); }

    bool add(WriteMoves& moves, uint32_t i, const PutStartReply& reply) {
        const std::span<const Piece> pieces = values_[items_[i].value].pieces;
        bool hashed = hashes_.empty() || i < hashed_;
        for (const ReplicaLocation& replica : replicas_of(i, reply)) {
            // Planned for want of anything better, but it has just failed: not worth waiting for.
            if (avoided(replica.segment)) return false;
            // Hashed as it goes; one copy of it is enough to look at.
            const bool look = !std::exchange(hashed, true);
            uint64_t offset = 0;
            for (size_t piece = 0; piece < pieces.size(); ++piece) {
                const auto& [data, length] = pieces[piece];
                if (length == 0) continue;
                Copier* const copier = look ? hashes_[i].copier(piece) : nullptr;
                if (!moves.add(i, reply.epoch, replica, offset, data, length, copier)) return false;
                offset += length;
            }
        }
        return true;
    }

    bool add_table(WriteMoves& moves, uint32_t i, const PutStartReply& reply) {
        const auto table = std::as_bytes(hashes_[i].table());
        if (table.empty()) return true;
        const auto replicas = replicas_of(i, reply);
        return std::all_of(replicas.begin(), replicas.end(), [&](const ReplicaLocation& replica) {
            return moves.add(i, reply.epoch, replica, items_[i].length, table.data(), table.size());
        });
    }

    void finish(const PutStartReply& reply) {
        std::vector<std::string_view> replaced;
        for (size_t i = 0; i < items_.size(); ++i) {
            StoreCode& code = codes_[items_[i].value];
            if (reply.items[i].code == StoreCode::kOk) {
                if (code == StoreCode::kOk) bytes_written_ += items_[i].length;
                // A put replaces as well, what it could not reach.
                if (replace_ || !unreachable_.empty()) replaced.push_back(put_items_[i].key);
                // Its range went with a node or a master that was given up meanwhile: there are others.
                if (code == StoreCode::kObjectNotFound) code = StoreCode::kTransferFail;
                // Somebody replaces it before it was there: as if that had begun earlier.
                if (!replace_ && (code == StoreCode::kIllegalClient || code == StoreCode::kInvalidWrite))
                    code = StoreCode::kReplicaIsNotReady;
            } else if (code == StoreCode::kObjectAlreadyExists && !replace_) {
                code = StoreCode::kOk;  // values do not change: it is as good as written
            }
        }
        if (!replaced.empty()) core_.leases.forget(replaced);
    }

    ClientCore& core_;
    const std::span<const ValueToWrite> values_;
    const WriteConfig& config_;
    const bool replace_;
    std::vector<uint32_t>& unreachable_;
    std::vector<StoreCode> codes_;
    std::vector<Item> items_;
    std::vector<PutItem> put_items_;
    std::vector<WriteEnd> ends_;
    std::vector<ValueHash> hashes_;                       // of the items; empty where nothing is hashed
    size_t hashed_ = 0;                                   // so many of them ahead
    std::vector<std::pair<uint32_t, uint32_t>> repeats_;  // this value got the fate of that one
    uint64_t bytes_written_ = 0;
    Duration disk_wait_{0};
};

KeyTurns::Turn take_turn(ClientCore& core, std::span<const ValueToWrite> values) {
    std::vector<std::string_view> keys;
    keys.reserve(values.size());
    for (const ValueToWrite& value : values) keys.push_back(value.key);
    return core.replacing.take(keys, Deadline::after(kTurnPatience));
}

bool makes_sense(const PutStartReply& reply, size_t items) {
    return reply.items.size() == items && std::all_of(reply.items.begin(), reply.items.end(), [&](const PutStartItem& item) {
               return item.code != StoreCode::kOk ||
                      (item.generation != 0 && item.replica_count > 0 && item.first_replica <= reply.replicas.size() &&
                       item.replica_count <= reply.replicas.size() - item.first_replica);
           });
}

}  // namespace

std::vector<StoreCode> write_values(ClientCore& core, std::span<const ValueToWrite> values, const WriteConfig& config, bool replace) {
    const Time started = Clock::now();
    const KeyTurns::Turn turn = replace ? take_turn(core, values) : KeyTurns::Turn();
    std::vector<uint32_t> unreachable = core.pool.directory.unreachable(started);
    Writer writer(core, values, config, replace, unreachable);
    std::vector<StoreCode> codes = writer.run();
    uint64_t bytes = writer.bytes_written();
    Duration disk_wait = writer.disk_wait();
    WriteAgain again(core);
    std::vector<ValueToWrite> rest;
    for (std::vector<size_t> which = again.wait(codes, disk_wait); !which.empty(); which = again.wait(codes, disk_wait)) {
        rest.clear();
        for (const size_t i : which) rest.push_back(values[i]);
        Writer once_more(core, rest, config, replace, unreachable);
        const std::vector<StoreCode> then = once_more.run();
        for (size_t i = 0; i < which.size(); ++i) codes[which[i]] = then[i];
        bytes += once_more.bytes_written();
        disk_wait = once_more.disk_wait();
    }
    core.metrics.observe_write(values.size(), bytes, started);
    return codes;
}

WriteFence::Pass StartedWrites::enter(ClientCore& core) const {
    if (BootClock::now() >= until) return {};
    return core.pool.fence.enter(reply.epoch, asked, Deadline::after(std::min(kJoinPatience, core.pool.rpc_timeout)));
}

Result<StartedWrites> start_writes(ClientCore& core, std::span<const PutItem> items, const WriteConfig& config, bool replace,
                                   uint64_t request_id, std::span<const uint32_t> unreachable, const std::function<void()>& meanwhile) {
    PoolAccess& pool = core.pool;
    PutStartRequest request{.client = pool.id,
                            .request_id = request_id,
                            .tenant = core.config.tenant,
                            .config = config,
                            .items = items,
                            .unreachable = unreachable};
    if (request.config.writer_host.empty()) request.config.writer_host = pool.host;
    const WriteFence::Mark mark = pool.fence.mark();
    const BootTime asked = BootClock::now();
    auto reply = pool.ask_twice(MasterCall::kPutStart,
                                [&] { return pool.master->put_start(request, replace, pool.rpc_deadline(), meanwhile); });
    if (reply && !makes_sense(*reply, items.size())) return fail(Code::kCorrupt, "the master's answer makes no sense");
    if (!reply && !core.closing()) {
        // It may have heard us all the same, and would keep the keys for a writer that never comes.
        std::vector<PutEndItem> started;
        for (const PutItem& item : items) started.push_back({.key = item.key});
        (void)pool.ask(MasterCall::kPutRevoke, [&] {
            return pool.master->put_revoke({.client = pool.id, .request_id = request_id, .tenant = core.config.tenant, .items = started},
                                           pool.rpc_deadline().earlier(Deadline::after(kRevokePatience)));
        });
    }
    if (!reply) return Unexpected(std::move(reply).error());
    const BootTime until = reply->release > Duration::zero() ? asked + reply->release : BootTime::max();
    return StartedWrites{.reply = std::move(*reply), .asked = mark, .until = until};
}

void end_writes(ClientCore& core, std::span<WriteEnd> ends, uint64_t request_id) {
    PoolAccess& pool = core.pool;
    std::vector<PutEndItem> good, bad;
    std::vector<WriteEnd*> good_ends;
    std::vector<uint32_t> in_doubt;
    for (WriteEnd& end : ends) {
        if (end.generation == 0) continue;  // never started
        const PutEndItem item{.key = end.key, .generation = end.generation, .checksum = end.checksum};
        if (end.code == StoreCode::kOk) {
            good.push_back(item);
            good_ends.push_back(&end);
        } else {
            bad.push_back(item);
            for (const SegmentHandle& segment : end.in_doubt) in_doubt.push_back(segment->number);
        }
    }
    if (!good.empty()) {
        const PutEndRequest request{.client = pool.id, .tenant = core.config.tenant, .items = good};
        const auto reply = pool.ask_twice(MasterCall::kPutEnd, [&] { return pool.master->put_end(request, pool.rpc_deadline()); });
        const bool sensible = reply && reply->codes.size() == good.size();
        const StoreCode lost = reply ? StoreCode::kRpcFail : pool.code_of(reply.error());
        for (size_t i = 0; i < good.size(); ++i) good_ends[i]->code = sensible ? reply->codes[i] : lost;
    }
    if (bad.empty() || core.closing()) return;  // goodbye gives up all the rest
    std::sort(in_doubt.begin(), in_doubt.end());
    in_doubt.erase(std::unique(in_doubt.begin(), in_doubt.end()), in_doubt.end());
    const PutRevokeRequest request{
        .client = pool.id, .request_id = request_id, .tenant = core.config.tenant, .items = bad, .in_doubt = in_doubt};
    const auto reply = pool.ask_twice(MasterCall::kPutRevoke, [&] { return pool.master->put_revoke(request, pool.rpc_deadline()); });
    if (!reply) MC_LOG_WARNING_EVERY(1s, "{} writes are left to time out: {}", bad.size(), reply.error().to_string());
    for (const WriteEnd& end : ends) {
        std::vector<std::string> endpoints;
        for (const SegmentHandle& segment : end.in_doubt) endpoints.push_back(segment->spec.endpoint);
        core.doubts.add({.key = std::string(end.key), .generation = end.generation}, endpoints,
                        Clock::now() + DoubtfulWrites::kDoubtfulFor);
    }
}

}  // namespace mooncake::store
