// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

StoreCode check_mount(const MasterState& state, ClientNumber client, const SegmentSpec& spec, bool& mounted) {
    mounted = false;
    const bool sensible = spec.id && !spec.name.empty() && spec.size >= state.options().alignment && spec.size >> 56 == 0 &&
                          spec.base + spec.size >= spec.base;
    if (!sensible) return StoreCode::kInvalidParams;
    if (state.unwanted().contains(UnwantedSegments::of(spec.id, state.clients()[client].id))) return StoreCode::kSegmentNotFound;
    if (const SegmentNumber known = state.segments().find(spec.id); known != 0) {
        const Segment& segment = state.segments()[known];
        const bool same = segment.spec.base == spec.base && segment.spec.size == spec.size && segment.spec.kind == spec.kind;
        mounted = segment.client == client && same;
        return mounted ? StoreCode::kOk : StoreCode::kSegmentAlreadyExists;
    }
    if (spec.kind == SegmentKind::kDisk) return StoreCode::kOk;  // it has no addresses
    for (const SegmentNumber number : state.clients()[client].segments) {
        if (state.segments().is_disk(number)) continue;
        const SegmentSpec& other = state.segments()[number].spec;
        if (spec.base < other.base + other.size && other.base < spec.base + spec.size) return StoreCode::kSegmentAlreadyExists;
    }
    return StoreCode::kOk;
}

bool name_taken(const MasterState& state, ClientNumber client, std::string_view name, Time now) {
    const auto numbers = state.segments().find_name(name);
    return std::any_of(numbers.begin(), numbers.end(), [&](SegmentNumber number) {
        const ClientNumber other = state.segments()[number].client;
        if (other == client || state.clients().leaving(other)) return false;
        const Client& owner = state.clients()[other];
        const Duration silence = now - (owner.expires - state.options().client_ttl);
        const Duration silent_after = state.options().silent_after;
        return owner.stream_down_since == Time::max() && (silent_after == Duration::zero() ? owner.expires > now : silence < silent_after);
    });
}

void replace_owner_of_disk(Transaction& transaction, ClientNumber client, const SegmentSpec& spec, Time now) {
    const MasterState& state = transaction.state();
    const SegmentNumber known = spec.kind == SegmentKind::kDisk && spec.id ? state.segments().find(spec.id) : 0;
    if (known == 0 || state.segments()[known].client == client) return;
    // A node that comes back is often called otherwise, since it found another port.
    if (!name_taken(state, client, state.segments()[known].spec.name, now))
        end_client(transaction, state.segments()[known].client, ClientEnd::kReplaced, now);
}

void replace_namesakes(Transaction& transaction, ClientNumber client, std::string_view name, Time now) {
    const MasterState& state = transaction.state();
    for (;;) {  // ending one changes the list
        ClientNumber other = 0;
        for (const SegmentNumber number : state.segments().find_name(name))
            if (state.segments()[number].client != client) other = state.segments()[number].client;
        if (other == 0) return;
        end_client(transaction, other, ClientEnd::kReplaced, now);
    }
}

bool end_earlier_life(Transaction& transaction, ClientNumber client, Incarnation life, Time now) {
    const MasterState& state = transaction.state();
    if (!state.clients().alive(client) || !state.clients()[client].is_another(life)) return false;
    // That its connection is not known to have ended does not mean that it might go on.
    if (state.clients()[client].follows)
        transaction.apply(ClientFollows{.client = state.clients()[client].id, .follows = false, .now = now});
    return true;
}

bool make_way(Transaction& transaction, const ClientId& id, const SegmentSpec* segment, Time now, Incarnation life) {
    const MasterState& state = transaction.state();
    const ClientNumber client = state.clients().find(id);
    if (segment == nullptr && end_earlier_life(transaction, client, life, now)) {
        leave(transaction, client, ClientEnd::kSilent, now, kLeaveAtOnce);
        return false;
    }
    ClientNumber leaving = state.clients().leaving(client) ? client : 0;
    bool mounted = false;
    const bool welcome = segment != nullptr && state.clients().alive(client) && state.clients()[client].attached &&
                         check_mount(state, client, *segment, mounted) == StoreCode::kOk && !mounted;
    if (leaving == 0 && welcome && !name_taken(state, client, segment->name, now))
        for (const SegmentNumber number : state.segments().find_name(segment->name))
            if (state.segments()[number].client != client) leaving = state.segments()[number].client;
    if (leaving == 0) return true;
    leave(transaction, leaving, ClientEnd::kReplaced, now, kLeaveAtOnce);
    return false;
}

StoreCode mount_segment(Transaction& transaction, const MountRequest& request, Time now) {
    const MasterState& state = transaction.state();
    const ClientNumber client = state.clients().find(request.client);
    if (!state.clients().alive(client) || !state.clients()[client].attached) return StoreCode::kClientNotFound;
    if (state.clients()[client].is_another(request.segment.incarnation)) return StoreCode::kClientNotFound;  // a late word
    replace_owner_of_disk(transaction, client, request.segment, now);
    bool mounted = false;
    const StoreCode code = check_mount(state, client, request.segment, mounted);
    if (code != StoreCode::kOk) return code;
    if (mounted) {
        // Known from the log of an earlier life, and mounted by a node that was never answered: it has nothing to report.
        const SegmentNumber known = state.segments().find(request.segment.id);
        if (state.segments()[known].reporting && !state.segments()[known].adopting)
            transaction.apply(SegmentOpened{.segment = known, .now = now});
        return code;
    }
    if (name_taken(state, client, request.segment.name, now)) return StoreCode::kSegmentAlreadyExists;
    replace_namesakes(transaction, client, request.segment.name, now);
    transaction.apply(SegmentMounted{.client = request.client, .segment = request.segment, .now = now});
    transaction.apply(SegmentOpened{.segment = state.segments().find(request.segment.id), .now = now});
    return StoreCode::kOk;
}

void give_up_segment(Transaction& transaction, SegmentNumber number, Time now) {
    const MasterState& state = transaction.state();
    const SegmentId id = state.segments()[number].spec.id;
    const ClientId client = state.clients()[state.segments()[number].client].id;
    const bool disk = state.segments().is_disk(number);  // it is what it is, whoever mounts it next
    transaction.apply(SegmentRemoved{.segment = number, .may_return = disk, .now = now});
    transaction.apply(SegmentUnwanted{.segment = id, .client = client, .may_return = disk});
}

StoreCode unmount_segment(Transaction& transaction, const UnmountRequest& request, Time now) {
    const MasterState& state = transaction.state();
    const SegmentNumber number = state.segments().find(request.segment);
    if (number == 0) {
        // Over two connections it may have overtaken its mount.
        if (!state.unwanted().contains(UnwantedSegments::of(request.segment, request.client)))
            transaction.apply(SegmentUnwanted{.segment = request.segment, .client = request.client});
        return StoreCode::kSegmentNotFound;
    }
    if (state.clients()[state.segments()[number].client].id != request.client) return StoreCode::kIllegalClient;
    if (request.grace > Duration::zero())
        transaction.apply(
            SegmentStatusSet{.segment = number, .status = SegmentStatus::kGracefullyUnmounting, .until = now + request.grace, .now = now});
    else give_up_segment(transaction, number, now);
    return StoreCode::kOk;
}

}  // namespace mooncake::store
