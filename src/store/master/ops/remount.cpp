// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

namespace {

/// A reported range: exactly one of the two is set.
struct Entry {
    uint64_t offset = 0, end = 0;
    const HeldObject* object = nullptr;
    const HeldWrite* write = nullptr;
};

enum class Verdict : uint8_t { kAdopt, kStale, kRefuse };

/// Adopts what one freshly mounted segment holds.
class Adoption {
public:
    Adoption(Transaction& transaction, const HeldSegment& held, SegmentNumber segment, Time now)
        : transaction_(transaction), held_(held), segment_(segment), now_(now) {}

    void run(RemountReply::Segment& result) {
        for (const Entry& entry : select(result)) {
            if (entry.write != nullptr) {
                reserve(*entry.write);
                continue;
            }
            const Verdict verdict = judge(*entry.object);
            if (verdict == Verdict::kAdopt) adopt(*entry.object);
            ++(verdict == Verdict::kAdopt ? result.adopted : verdict == Verdict::kStale ? result.stale : result.refused);
        }
    }

private:
    const MasterState& state() const { return transaction_.state(); }

    bool in_bounds(uint64_t offset, uint64_t length) const {
        const uint64_t capacity = state().segments()[segment_].allocator.capacity();
        return length != 0 && length <= capacity && state().rounded(length) <= capacity && offset % state().options().alignment == 0 &&
               offset <= capacity - state().rounded(length);
    }

    /// The entries that do not overlap, in address order. Writes win, since bytes may land there; of the objects, those that end first:
    /// that keeps as many as possible, and an entry that claims half the segment loses against what really lies in it.
    std::vector<Entry> select(RemountReply::Segment& result) const {
        std::vector<Entry> writes, objects, kept;
        for (const HeldWrite& write : held_.writes)
            if (in_bounds(write.offset, write.length))
                writes.push_back({write.offset, write.offset + state().rounded(write.length), nullptr, &write});
        for (const HeldObject& object : held_.objects) {
            const bool sensible = !object.key.empty() && object.generation != 0 && in_bounds(object.offset, object.length);
            if (sensible) objects.push_back({object.offset, object.offset + state().rounded(object.length), &object, nullptr});
            else ++result.refused;
        }
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

    Verdict judge(const HeldObject& held) const {
        const TenantNumber tenant = state().options().tenants ? state().tenants().find(held.tenant) : TenantTable::kDefault;
        const ObjectId id = tenant == 0 ? 0 : state().objects().find(tenant, held.key);
        if (id == 0) return Verdict::kAdopt;
        const Object& object = state().objects()[id];
        if (object.generation > held.generation) return Verdict::kStale;
        if (object.generation < held.generation) return object.copy == 0 ? Verdict::kAdopt : Verdict::kRefuse;
        const bool same = object.length == held.length && object.checksum == held.checksum;
        return same && object.replicas.find(segment_) == object.replicas.size() ? Verdict::kAdopt : Verdict::kRefuse;
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

    void reserve(const HeldWrite& write) {
        transaction_.apply(RangeReserved{.segment = segment_,
                                         .offset = write.offset,
                                         .length = write.length,
                                         .writer = write.writer,
                                         .until = now_ + state().options().put_release_timeout});
    }

    Transaction& transaction_;
    const HeldSegment& held_;
    const SegmentNumber segment_;
    const Time now_;
};

}  // namespace

RemountReply remount(Transaction& transaction, const RemountRequest& request, Time now) {
    const MasterState& state = transaction.state();
    RemountReply reply;
    reply.segments.resize(request.segments.size(), {.code = StoreCode::kInvalidParams});
    if (!request.client) return reply;
    transaction.advance(now);
    transaction.apply(ClientSeen{.client = request.client, .expires = now + state.options().client_ttl, .attached = true});
    const ClientNumber client = state.clients().find(request.client);
    for (size_t i = 0; i < request.segments.size(); ++i) {
        const SegmentSpec& spec = request.segments[i].segment;
        bool mounted = false;
        reply.segments[i].code = check_mount(state, client, spec, mounted);
        if (reply.segments[i].code != StoreCode::kOk || mounted) continue;
        replace_namesakes(transaction, client, spec.name, now);
        // Leases of the master's earlier life may run on anything in it.
        const Time closed_until = std::max(now + state.options().lease_ttl, state.memory_busy_until(request.client, spec.base, spec.size));
        transaction.apply(SegmentMounted{.client = request.client, .segment = spec, .closed_until = closed_until, .now = now});
        Adoption(transaction, request.segments[i], state.segments().find(spec.id), now).run(reply.segments[i]);
    }
    return reply;
}

}  // namespace mooncake::store
