// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/object_ops.h"

namespace mooncake::store {

namespace {

/// The write that this client may end, or why not; kOk without a write: it was ended before.
struct Ended {
    StoreCode code = StoreCode::kOk;
    WriteId write = 0;
};

Ended find_write(const MasterState& state, ClientNumber client, const PutEndItem& item, ObjectId id) {
    if (id == 0) return {StoreCode::kObjectNotFound};
    const Object& object = state.objects()[id];
    if (object.has_value() && object.generation == item.generation) return {StoreCode::kOk};
    if (object.write != 0) {
        const Write& write = state.write(object.write);
        if (write.client != client) return {StoreCode::kIllegalClient};
        if (item.generation != 0 && write.generation != item.generation) return {StoreCode::kInvalidWrite};
        return {StoreCode::kOk, object.write};
    }
    if (object.writer != client || client == 0) return {StoreCode::kIllegalClient};
    return {item.generation == 0 ? StoreCode::kOk : StoreCode::kInvalidWrite};
}

template <typename End>
CodesReply end_writes(Transaction& transaction, std::string_view tenant_name, const ClientId& client_id, std::span<const PutEndItem> items,
                      std::span<const SegmentNumber> in_doubt, Time now, End&& end) {
    const MasterState& state = transaction.state();
    CodesReply reply;
    reply.codes.resize(items.size());
    const TenantNumber tenant = state.tenant(tenant_name);
    const ClientNumber client = state.clients().find(client_id);  // stays: it is alive, or has values
    std::vector<std::string_view> keys(items.size());
    for (size_t i = 0; i < items.size(); ++i) keys[i] = items[i].key;
    constexpr size_t kPrefetch = ObjectTable::kWindow;
    ObjectTable::Hashes hashes;
    size_t from = 0;  // the item whose hash is the first of these
    // From the last to the first, which so becomes the youngest: a prefix is of use without the rest, not the other way round.
    for (size_t i = items.size(); i-- > 0;) {
        if (tenant != 0 && (items.size() - 1 - i) % kPrefetch == 0) {
            from = i < kPrefetch ? 0 : i + 1 - kPrefetch;
            hashes = state.objects().prefetch_many(tenant, std::span(keys).subspan(from, i + 1 - from));
        }
        if (!is_key(items[i].key)) {
            reply.codes[i] = StoreCode::kInvalidParams;
            continue;
        }
        const ObjectId id = tenant == 0 ? 0 : state.objects().find(tenant, items[i].key, hashes[i - from]);
        const Ended ended = find_write(state, client, items[i], id);
        // It was taken from this client, which has stopped writing all the same.
        if (ended.code != StoreCode::kOk && client != 0 && state.quarantine().fears(items[i].generation, client))
            transaction.apply(WriterStopped{
                .client = client_id, .generation = items[i].generation, .in_doubt = {in_doubt.begin(), in_doubt.end()}, .now = now});
        reply.codes[i] = end(items[i], ended);
    }
    return reply;
}

}  // namespace

CodesReply put_end(Transaction& transaction, const PutEndRequest& request, Time now) {
    return end_writes(transaction, request.tenant, request.client, request.items, {}, now, [&](const PutEndItem& item, const Ended& ended) {
        if (ended.write != 0)
            transaction.apply(WriteCommitted{
                .write = ended.write, .checksum = item.checksum, .replaced_rests = transaction.state().replaced_rests(), .now = now});
        return ended.code;
    });
}

CodesReply put_revoke(Transaction& transaction, const PutRevokeRequest& request, Time now) {
    CodesReply reply = end_writes(
        transaction, request.tenant, request.client, request.items, request.in_doubt, now, [&](const PutEndItem& item, const Ended& ended) {
            if (ended.code != StoreCode::kOk) return ended.code;
            if (ended.write == 0) return StoreCode::kInvalidWrite;
            // Who never heard of a generation means the write of that request, not another one of its own to the same key.
            const uint64_t started_by = transaction.state().write(ended.write).request_id;
            if (item.generation == 0 && request.request_id != 0 && started_by != request.request_id) return StoreCode::kInvalidWrite;
            transaction.apply(WriteDropped{
                .write = ended.write, .quarantine_until = now, .now = now, .in_doubt = {request.in_doubt.begin(), request.in_doubt.end()}});
            return StoreCode::kOk;
        });
    const ClientNumber client = transaction.state().clients().find(request.client);
    if (request.request_id != 0 && transaction.state().clients().alive(client) &&
        !transaction.state().clients()[client].closed(request.request_id))
        transaction.apply(RequestClosed{.client = request.client, .request_id = request.request_id});
    return reply;
}

}  // namespace mooncake::store
