// SPDX-License-Identifier: Apache-2.0
#include "store/client/write_sessions.h"

#include <algorithm>
#include <set>

#include "store/client/reader.h"
#include "store/client/writer.h"
#include "store/member/any_memory.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

void Coverage::add(uint64_t from, uint64_t to) {
    if (from >= to) return;
    auto next = ranges_.upper_bound(from);
    if (next != ranges_.begin() && std::prev(next)->second >= from) --next;
    while (next != ranges_.end() && next->first <= to) {
        from = std::min(from, next->first);
        to = std::max(to, next->second);
        next = ranges_.erase(next);
    }
    ranges_.emplace(from, to);
}

bool Coverage::covers(uint64_t length) const {
    return length == 0 || (ranges_.size() == 1 && ranges_.begin()->first == 0 && ranges_.begin()->second >= length);
}

bool PartsUnderWay::add(uint64_t from, uint64_t to) {
    if (from >= to) return true;
    const auto next = parts_.lower_bound(from);
    if (next != parts_.end() && next->first < to) return false;
    if (next != parts_.begin() && std::prev(next)->second > from) return false;
    parts_.emplace(from, to);
    return true;
}

void PartsUnderWay::remove(uint64_t from, uint64_t to) {
    if (from < to) parts_.erase(from);
}

std::vector<StoreCode> WriteSessions::open(std::span<const Reservation> values, const WriteConfig& config) {
    std::vector<StoreCode> codes(values.size(), StoreCode::kOk);
    std::vector<PutItem> items;
    std::vector<size_t> where;
    {
        std::set<std::string_view> seen;
        Lock lock(mutex_);
        for (size_t i = 0; i < values.size(); ++i) {
            const bool sensible = is_key(values[i].key) && values[i].group.size() <= kGroupBytesMax && values[i].length > 0 &&
                                  values[i].length < uint64_t{1} << 62;
            if (!sensible || open_.contains(values[i].key) || !seen.insert(values[i].key).second) {
                codes[i] = StoreCode::kInvalidParams;
                continue;
            }
            items.push_back({.key = values[i].key, .length = values[i].length, .group = values[i].group});
            where.push_back(i);
        }
    }
    if (items.empty()) return codes;
    const uint64_t request_id = core_.next_request.fetch_add(1, std::memory_order_relaxed);
    const auto started = start_writes(core_, items, config, false, request_id, core_.pool.directory.unreachable(Clock::now()));
    std::vector<StoreCode> outcome(items.size());
    if (started) adopt(*started, items, request_id, outcome);
    else std::fill(outcome.begin(), outcome.end(), core_.pool.code_of(started.error()));
    for (size_t n = 0; n < items.size(); ++n) codes[where[n]] = outcome[n];
    return codes;
}

void WriteSessions::adopt(const StartedWrites& started, std::span<const PutItem> items, uint64_t request_id, std::span<StoreCode> codes) {
    const PutStartReply& reply = started.reply;
    const auto right = started.enter(core_);
    std::vector<WriteEnd> lost;
    {
        Lock lock(mutex_);
        for (size_t n = 0; n < items.size(); ++n) {
            codes[n] = reply.items[n].code;
            if (codes[n] == StoreCode::kReplicaIsNotReady) codes[n] = StoreCode::kObjectAlreadyExists;  // somebody else is at it
            if (codes[n] != StoreCode::kOk) continue;
            if (!right) {
                codes[n] = StoreCode::kRpcFail;
                lost.push_back({.key = items[n].key, .generation = reply.items[n].generation, .code = codes[n]});
                continue;
            }
            auto session = std::make_shared<Session>();
            session->key = items[n].key;
            session->epoch = reply.epoch;
            session->generation = reply.items[n].generation;
            session->request_id = request_id;
            session->length = items[n].length;
            session->turn = right.turn();
            session->until = started.until;
            const auto replicas = std::span(reply.replicas).subspan(reply.items[n].first_replica, reply.items[n].replica_count);
            session->replicas.assign(replicas.begin(), replicas.end());
            session->hashes.resize(chunk_count(items[n].length));
            open_.insert_or_assign(session->key, std::move(session));
        }
    }
    end_writes(core_, lost, request_id);
}

StoreCode WriteSessions::check(const Session& session, const WriteFence::Pass& right) {
    if (!right || session.turn != right.turn()) return StoreCode::kRpcFail;    // its master was lost in between
    if (BootClock::now() >= session.until) return StoreCode::kObjectNotFound;  // nor does its master know it any more
    return StoreCode::kOk;
}

WriteSessions::Handle WriteSessions::begin(const PartToWrite& part) {
    Lock lock(mutex_);
    const auto found = open_.find(part.key);
    if (found == open_.end() || found->second->sealed) return nullptr;
    Session& session = *found->second;
    if (part.from.data == nullptr || part.offset > session.length || part.from.length > session.length - part.offset) return nullptr;
    if (!session.under_way.add(part.offset, part.offset + part.from.length)) return nullptr;
    ++session.parts_in_flight;
    return found->second;
}

void WriteSessions::finish(Session& session, const PartToWrite& part, bool written, std::span<const SegmentHandle> in_doubt,
                           const SeenPiece* seen) {
    const uint64_t end = part.offset + part.from.length;
    std::vector<std::pair<uint64_t, uint64_t>> hashes;  // chunk, hash; computed before the lock
    if (written && core_.config.checksum && part.from.length > 0) {
        for (uint64_t chunk = part.offset / kChunkBytes; chunk * kChunkBytes < end; ++chunk) {
            const uint64_t from = chunk * kChunkBytes, to = std::min(from + kChunkBytes, session.length);
            const bool whole = part.offset <= from && end >= to;
            uint64_t hash = 0;  // not known: it is read back in the end
            if (seen != nullptr) hash = seen->hash(chunk);
            else if (whole) hash = hash_bytes({part.from.data + (from - part.offset), to - from});
            hashes.emplace_back(chunk, hash);
        }
    }
    Lock lock(mutex_);
    if (written) session.coverage.add(part.offset, end);
    else session.failed = true;
    for (const auto& [chunk, hash] : hashes) session.hashes[chunk] = hash;
    session.in_doubt.insert(session.in_doubt.end(), in_doubt.begin(), in_doubt.end());
    session.under_way.remove(part.offset, end);
    if (--session.parts_in_flight == 0) quiet_.notify_all();
}

std::vector<int64_t> WriteSessions::write(std::span<const PartToWrite> parts) {
    std::vector<int64_t> results(parts.size());
    std::vector<Handle> sessions(parts.size());
    std::vector<std::unique_ptr<SeenPiece>> seen(parts.size());  // of those that are a device's
    const auto right = core_.pool.fence.enter();
    WriteMoves moves(core_.pool, right);
    for (uint32_t i = 0; i < parts.size(); ++i) {
        sessions[i] = begin(parts[i]);
        results[i] = sessions[i] ? static_cast<int64_t>(parts[i].from.length) : static_cast<int64_t>(StoreCode::kInvalidParams);
        if (!sessions[i]) continue;
        const StoreCode code = check(*sessions[i], right);
        bool added = code == StoreCode::kOk;
        const Piece& from = parts[i].from;
        if (!is_host(*core_.pool.engine, from.data, from.length))
            seen[i] = std::make_unique<SeenPiece>(from.data, parts[i].offset, from.length, sessions[i]->length);
        if (!added) results[i] = static_cast<int64_t>(code);
        for (size_t r = 0; added && r < sessions[i]->replicas.size() && from.length > 0; ++r) {
            Copier* const copier = r == 0 ? seen[i].get() : nullptr;  // one copy of it is enough to look at
            added = moves.add(i, right.epoch(), sessions[i]->replicas[r], parts[i].offset, from.data, from.length, copier);
            if (!added) results[i] = static_cast<int64_t>(StoreCode::kTransferFail);
        }
    }
    std::vector<std::vector<SegmentHandle>> in_doubt(parts.size());
    for (const WriteMoves::Failure& failure : moves.run()) {
        results[failure.item] = static_cast<int64_t>(core_.closing() ? StoreCode::kUnavailableInCurrentStatus : StoreCode::kTransferFail);
        if (failure.in_doubt) in_doubt[failure.item].push_back(failure.in_doubt);
    }
    for (size_t i = 0; i < parts.size(); ++i)
        if (sessions[i]) finish(*sessions[i], parts[i], results[i] >= 0, in_doubt[i], seen[i].get());
    return results;
}

WriteSessions::Handle WriteSessions::seal(std::string_view key) {
    mutex_.lock();
    Handle session;
    if (const auto found = open_.find(key); found != open_.end() && !found->second->sealed) {
        session = found->second;
        session->sealed = true;
        while (session->parts_in_flight > 0) quiet_.wait(mutex_);
        open_.erase(session->key);
    }
    mutex_.unlock();
    return session;
}

namespace {

/// Chunks of values that nobody can name yet, read back from where they were written.
class ChunkFetch final : public Fetch {
public:
    struct Chunk {
        uint64_t offset = 0, length = 0;
        std::unique_ptr<std::byte[]> bytes;
    };

    ChunkFetch(ClientCore& core, std::vector<Chunk> chunks)
        : Fetch(core, std::vector<std::string_view>(chunks.size())), chunks_(std::move(chunks)) {}
    uint64_t hash(size_t item) const { return hash_bytes({chunks_[item].bytes.get(), chunks_[item].length}); }

private:
    StoreCode plan(size_t, const Place&) override { return StoreCode::kOk; }
    uint64_t bytes(size_t item) const override { return chunks_[item].length; }
    void add_blocks(size_t item, uint64_t stored_at, std::vector<Block>& blocks) override {
        const Chunk& chunk = chunks_[item];
        blocks.push_back({.local = chunk.bytes.get(), .remote = stored_at + chunk.offset, .length = chunk.length});
    }
    StoreCode verify(size_t) override { return StoreCode::kOk; }

    std::vector<Chunk> chunks_;
};

}  // namespace

void WriteSessions::complete_hashes(std::span<Closing> closing) {
    std::vector<ChunkFetch::Chunk> chunks;
    std::vector<Place> places;
    std::vector<std::pair<Closing*, uint64_t>> whose;
    for (Closing& one : closing) {
        if (one.code != StoreCode::kOk) continue;
        const Session& session = *one.session;
        // Our own unfinished write is there until we end it: no lease is needed.
        Place place{
            .generation = session.generation, .length = session.length, .checksum = 0, .epoch = session.epoch, .lease_end = Time::max()};
        place.replica_count = std::min<uint32_t>(static_cast<uint32_t>(session.replicas.size()), Place::kReplicasMax);
        std::copy_n(session.replicas.begin(), place.replica_count, place.replicas.begin());
        for (uint64_t chunk = 0; chunk < session.hashes.size(); ++chunk) {
            if (session.hashes[chunk] != 0) continue;
            const uint64_t from = chunk * kChunkBytes, length = std::min(kChunkBytes, session.length - from);
            chunks.push_back({.offset = from, .length = length, .bytes = std::unique_ptr<std::byte[]>(new std::byte[length])});
            places.push_back(place);
            whose.emplace_back(&one, chunk);
        }
    }
    if (chunks.empty()) return;
    ChunkFetch fetch(core_, std::move(chunks));
    fetch.run_at(places);
    for (size_t i = 0; i < whose.size(); ++i) {
        auto& [one, chunk] = whose[i];
        if (fetch.code(i) == StoreCode::kOk) one->session->hashes[chunk] = fetch.hash(i);
        else one->code = StoreCode::kTransferFail;
    }
}

void WriteSessions::write_tables(std::span<Closing> closing) {
    const auto right = core_.pool.fence.enter();
    WriteMoves moves(core_.pool, right);
    for (uint32_t i = 0; i < closing.size(); ++i) {
        Closing& one = closing[i];
        if (one.code != StoreCode::kOk) continue;
        const Session& session = *one.session;
        const auto table = std::as_bytes(std::span(session.hashes));
        one.checksum = session.hashes.size() == 1 ? session.hashes[0] : hash_table(session.hashes);
        one.code = check(session, right);
        if (session.hashes.size() == 1) continue;
        for (size_t r = 0; one.code == StoreCode::kOk && r < session.replicas.size(); ++r)
            if (!moves.add(i, right.epoch(), session.replicas[r], session.length, table.data(), table.size()))
                one.code = StoreCode::kTransferFail;
    }
    for (const WriteMoves::Failure& failure : moves.run()) {
        closing[failure.item].code = StoreCode::kTransferFail;
        if (failure.in_doubt) closing[failure.item].session->in_doubt.push_back(failure.in_doubt);
    }
}

void WriteSessions::revoke_all() {
    std::vector<std::string> keys;
    {
        Lock lock(mutex_);
        for (const auto& [key, session] : open_) keys.push_back(key);
    }
    if (!keys.empty()) (void)close(std::vector<std::string_view>(keys.begin(), keys.end()), true);
}

std::vector<StoreCode> WriteSessions::close(std::span<const std::string_view> keys, bool revoke) {
    std::vector<StoreCode> codes(keys.size(), StoreCode::kInvalidParams);
    std::vector<Closing> closing;
    for (size_t i = 0; i < keys.size(); ++i) {
        Handle session = seal(keys[i]);
        if (!session) continue;
        // A value with holes would be garbage under a good name.
        StoreCode code = StoreCode::kOk;
        if (!revoke && session->failed) code = StoreCode::kTransferFail;
        else if (!revoke && !session->coverage.covers(session->length)) code = StoreCode::kInvalidWrite;
        else if (!revoke) code = check(*session, core_.pool.fence.enter());
        closing.push_back({.session = std::move(session), .place = i, .code = code});
    }
    if (!revoke && core_.config.checksum) {
        complete_hashes(closing);
        write_tables(closing);
    }
    std::vector<WriteEnd> ends;
    for (const Closing& one : closing) {
        const StoreCode code = revoke ? StoreCode::kInvalidWrite : one.code;  // anything but kOk gives it up
        ends.push_back({.key = one.session->key,
                        .generation = one.session->generation,
                        .checksum = one.checksum,
                        .code = code,
                        .in_doubt = one.session->in_doubt});
    }
    end_writes(core_, ends, 0);
    if (!revoke) core_.leases.forget(keys);  // of a value that could not be reached before
    for (size_t i = 0; i < closing.size(); ++i) codes[closing[i].place] = revoke ? StoreCode::kOk : ends[i].code;
    return codes;
}

}  // namespace mooncake::store
