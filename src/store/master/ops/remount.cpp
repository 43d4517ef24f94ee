// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "store/master/ops/segment_ops.h"
#include "store/protocol/messages_objects.h"

namespace mooncake::store {

namespace {

/// A reported range: exactly one of the two is set.
struct Entry {
    uint64_t offset = 0, end = 0;
    const HeldObject* object = nullptr;
    const HeldWrite* write = nullptr;
};

enum class Verdict : uint8_t { kAdopt, kKnown, kStale, kRefuse };

/// Adopts what one part of a report says that a segment holds.
class Adoption {
public:
    Adoption(Transaction& transaction, const HeldSegment& held, SegmentNumber segment, Time now, bool distrusted,
             const MatchedKeys& matched)
        : transaction_(transaction), held_(held), segment_(segment), now_(now), distrusted_(distrusted), matched_(matched),
          disk_(transaction.state().segments().is_disk(segment)), was_known_(transaction.state().absent().contains(held.segment.id)) {}

    void run(RemountReply::Segment& result) {
        if (!disk_) note_busy();
        for (const Entry& entry : select(result)) {
            if (entry.write != nullptr) {
                if (can_take(entry)) reserve(*entry.write);
                continue;
            }
            const HeldObject& object = *entry.object;
            const Verdict verdict = judge(object, entry);
            if (object.generation >= state().next_generation()) transaction_.apply(GenerationSeen{.generation = object.generation});
            if (verdict == Verdict::kAdopt) adopt(object);
            // Readers sent there by an earlier master may still be on their way.
            if (!disk_ && (verdict == Verdict::kStale || verdict == Verdict::kRefuse))
                busy(object.offset, object.length, state().options().lease_ttl);
            const bool adopted = verdict == Verdict::kAdopt || verdict == Verdict::kKnown;
            ++(adopted ? result.adopted : verdict == Verdict::kStale ? result.stale : result.refused);
        }
    }

private:
    const MasterState& state() const { return transaction_.state(); }
    const RangeAllocator& allocator() const { return state().segments()[segment_].allocator; }
    bool can_take(const Entry& entry) const { return allocator().can_take(entry.offset, entry.end - entry.offset); }

    void note_busy() {
        for (const HeldQuarantine& quarantine : held_.quarantined)
            if (quarantine.left > Duration::zero() && in_bounds(quarantine.offset, quarantine.length) && !stopped(quarantine.writer))
                busy(quarantine.offset, quarantine.length,
                     std::min(quarantine.left, quarantine.writer ? writer_quarantine() : state().options().put_release_timeout),
                     quarantine.writer);
        for (const HeldWrite& write : held_.writes)
            if (in_bounds(write.offset, write.length) && stopped(write.writer) && readers_left() != Duration::zero())
                busy(write.offset, write.length, readers_left());
    }

    bool in_bounds(uint64_t offset, uint64_t length) const {
        if (disk_) return length != 0 && length >> 56 == 0 && offset >> 56 == 0;
        const uint64_t capacity = allocator().capacity();
        return length != 0 && length <= capacity && state().rounded(length) <= capacity && offset % state().options().alignment == 0 &&
               offset <= capacity - state().rounded(length);
    }

    /// The entries that do not overlap, in address order. Writes win, since bytes may land there; of the objects, those that end first:
    /// that keeps as many as possible, and an entry that claims half the segment loses against what really lies in it.
    /// Of a disk all: there nothing overlaps, and what has not come to its end is nothing.
    std::vector<Entry> select(RemountReply::Segment& result) const {
        std::vector<Entry> writes, objects, kept;
        for (const HeldWrite& write : held_.writes)
            if (!disk_ && in_bounds(write.offset, write.length) && !stopped(write.writer))
                writes.push_back({write.offset, write.offset + state().rounded(write.length), nullptr, &write});
        for (const HeldObject& object : held_.objects) {
            const bool sensible = is_key(object.key) && object.group.size() <= kGroupBytesMax && object.tenant.size() <= kNameBytesMax &&
                                  state().generations().credible(object.generation) && in_bounds(object.offset, object.length);
            if (sensible) objects.push_back({object.offset, object.offset + state().rounded(object.length), &object, nullptr});
            else ++result.refused;
        }
        if (disk_) return objects;
        const auto by_end = [](const Entry& a, const Entry& b) { return a.end != b.end ? a.end < b.end : a.offset > b.offset; };
        std::sort(writes.begin(), writes.end(), by_end);
        std::sort(objects.begin(), objects.end(), by_end);
        keep_disjoint(writes);
        result.refused += keep_disjoint(objects);
        size_t next = 0;
        for (const Entry& object : objects) {
            while (next < writes.size() && writes[next].end <= object.offset) kept.push_back(writes[next++]);
            const bool overwritten = next < writes.size() && writes[next].offset < object.end;
            if (overwritten) ++result.refused;
            else kept.push_back(object);
        }
        kept.insert(kept.end(), writes.begin() + static_cast<std::ptrdiff_t>(next), writes.end());
        return kept;
    }
    static size_t keep_disjoint(std::vector<Entry>& entries) {
        uint64_t end = 0;
        return std::erase_if(entries, [&](const Entry& entry) {
            if (entry.offset < end) return true;
            end = entry.end;
            return false;
        });
    }

    /// Whoever has reported to us has ended all writes that earlier masters planned.
    bool stopped(const ClientId& writer) const {
        const ClientNumber number = writer ? state().clients().find(writer) : 0;
        return number != 0 && state().clients()[number].has_stopped();
    }

    /// Whether every write that may have replaced this one has left a tombstone.
    bool watched(uint64_t generation) const {
        return was_known_ || (!state().generations().is_own(generation) && state().absent().believes_earlier_lives());
    }

    Verdict judge(const HeldObject& held, const Entry& entry) const {
        const TenantNumber tenant = state().options().tenants ? state().tenants().find(held.tenant) : TenantTable::kDefault;
        const ObjectId id = tenant == 0 ? 0 : state().objects().find(tenant, held.key);
        if (state().segments()[segment_].dropped.contains(held.generation)) return Verdict::kStale;
        if (distrusted_ && !state().generations().is_own(held.generation)) return Verdict::kStale;
        if (was_known_ && state().tellers().withdrawn(held.generation)) return Verdict::kStale;
        const uint64_t rank = state().generations().rank(held.generation);
        const uint64_t tenant_hash = state().tenants().hash(state().tenant_name(held.tenant));
        const Tombstones& tombstones = state().tombstones();
        const bool known = id != 0 && state().objects()[id].has_value() && state().objects()[id].generation == held.generation;
        if (tombstones.covers(tenant_hash, state().tombstone_hash(tenant_hash, held.key), rank)) return Verdict::kStale;
        if (tombstones.covers_matching(tenant_hash, held.key, rank, matched_.of(static_cast<size_t>(&held - held_.objects.data()))))
            return Verdict::kStale;
        if (!known && (tombstones.forgot(rank) || !watched(held.generation))) return Verdict::kStale;
        const bool free = can_take(entry);
        if (id == 0) return free ? Verdict::kAdopt : Verdict::kRefuse;
        const Object& object = state().objects()[id];
        if (object.has_value() && state().generations().newer(object.generation, held.generation)) return Verdict::kStale;
        if (object.generation != held.generation) return free && !state().has_task(object) ? Verdict::kAdopt : Verdict::kRefuse;
        if (object.length != held.length || object.checksum != held.checksum) return Verdict::kRefuse;
        const size_t here = object.replicas.find(segment_);
        if (here == object.replicas.size()) return free ? Verdict::kAdopt : Verdict::kRefuse;
        return disk_ || object.replicas[here].offset == held.offset ? Verdict::kKnown : Verdict::kRefuse;  // the same part once more
    }

    void adopt(const HeldObject& held) {
        transaction_.apply(ValueAdopted{.segment = segment_,
                                        .tenant = std::string(state().options().tenants ? held.tenant : TenantTable::kDefaultName),
                                        .key = std::string(held.key),
                                        .group = std::string(held.group),
                                        .offset = held.offset,
                                        .length = held.length,
                                        .generation = held.generation,
                                        .checksum = held.checksum,
                                        .data_type = held.data_type,
                                        .hard_pin = held.hard_pin,
                                        .soft_pin_end = held.soft_pin_left > Duration::zero()
                                                            ? now_ + std::min(held.soft_pin_left, state().options().soft_pin_ttl_max)
                                                            : Time{},
                                        .writer = held.writer,
                                        .lease_end = now_ + state().options().lease_ttl,
                                        .now = now_});
    }

    /// The writer reports to us, or it must stop by itself because no master answers it.
    Duration writer_quarantine() const {
        const MasterOptions& options = state().options();
        return std::min(options.put_release_timeout, options.client_ttl + options.silent_writer_quarantine);
    }
    /// A write may have ended just before the earlier master did, without its node being told: then its value may have been read. (What ended in this life
    /// is known.)
    Duration readers_left() const { return was_known_ ? Duration::zero() : state().options().lease_ttl; }
    void reserve(const HeldWrite& write) {
        transaction_.apply(RangeReserved{.segment = segment_,
                                         .offset = write.offset,
                                         .length = write.length,
                                         .writer = write.writer,
                                         .until = now_ + std::max(writer_quarantine(), readers_left()),
                                         .leased_until = now_ + readers_left()});
    }
    void busy(uint64_t offset, uint64_t length, Duration quarantine, const ClientId& writer = {}) {
        transaction_.apply(
            RangeBusy{.segment = segment_, .offset = offset, .length = length, .until = now_ + quarantine, .writer = writer});
    }

    Transaction& transaction_;
    const HeldSegment& held_;
    const SegmentNumber segment_;
    const Time now_;
    const bool distrusted_;
    const MatchedKeys& matched_;
    const bool disk_;
    const bool was_known_;  // by this life, which watched all writes since
};

/// By values of its time, or as the one that the client has followed.
bool tells_of_earlier_life(const MasterState& state, const RemountRequest& request) {
    if (request.heard.life != 0 && request.heard.life != state.options().first_generation) return true;
    return std::any_of(request.segments.begin(), request.segments.end(), [&](const HeldSegment& held) {
        return std::any_of(held.objects.begin(), held.objects.end(),
                           [&](const HeldObject& object) { return !state.generations().is_own(object.generation); });
    });
}

}  // namespace

RemountReply remount(Transaction& transaction, const RemountRequest& request, Time now, bool distrusted, const MatchedKeys& matched) {
    const MasterState& state = transaction.state();
    RemountReply reply;
    reply.segments.resize(request.segments.size(), {.code = StoreCode::kInvalidParams});
    if (!request.client) return reply;
    transaction.advance(now);
    const ClientNumber known = state.clients().find(request.client);
    if (!request.segments.empty() && known != 0 && state.clients()[known].is_another(request.life)) {
        for (auto& segment : reply.segments) segment.code = StoreCode::kInvalidVersion;  // late words of a process that is gone
        return reply;
    }
    if (state.clients().leaving(known)) end_client(transaction, known, *state.clients()[known].leaving, now);
    else if (end_earlier_life(transaction, known, request.life, now)) end_client(transaction, known, ClientEnd::kSilent, now);
    transaction.apply(ClientSeen{.client = request.client,
                                 .expires = now + state.options().client_ttl,
                                 .attached = true,
                                 .life = request.life,
                                 .restarted = request.remembered_update != 0});
    const ClientNumber client = state.clients().find(request.client);
    if (!state.absent().earlier_life() && tells_of_earlier_life(state, request)) transaction.apply(EarlierLifeSeen{});
    if (state.clients()[client].quarantined != 0 && state.clients()[client].has_stopped())
        transaction.apply(WriterQuiet{.client = request.client, .now = now});
    for (size_t i = 0; i < request.segments.size(); ++i) {
        const HeldSegment& held = request.segments[i];
        replace_owner_of_disk(transaction, client, held.segment, now);
        bool mounted = false;
        reply.segments[i].code = check_mount(state, client, held.segment, mounted);
        if (reply.segments[i].code != StoreCode::kOk) continue;
        if (!mounted && name_taken(state, client, held.segment.name, now)) {
            reply.segments[i].code = StoreCode::kSegmentAlreadyExists;
            continue;
        }
        if (!mounted) {
            replace_namesakes(transaction, client, held.segment.name, now);
            transaction.apply(SegmentMounted{.client = request.client, .segment = held.segment, .now = now});
        }
        const SegmentNumber number = state.segments().find(held.segment.id);
        if (!state.segments()[number].reporting) continue;  // the last part once more
        const bool adopting = state.segments()[number].adopting;
        if (adopting) Adoption(transaction, held, number, now, distrusted, i == 0 ? matched : MatchedKeys()).run(reply.segments[i]);
        if (held.more) continue;
        // Not told to the end: leases of the master's earlier life may run on anything in it, and writers that have no master may go
        // on for so long.
        const Duration doubt = std::max(state.options().lease_ttl, state.options().client_ttl);
        const bool disk = held.segment.kind == SegmentKind::kDisk;  // where no place is used twice
        const Time closed_until = disk || (held.exact && !distrusted) || !adopting ? Time{} : now + doubt;
        transaction.apply(SegmentOpened{.segment = number, .closed_until = closed_until, .now = now});
    }
    return reply;
}

}  // namespace mooncake::store
