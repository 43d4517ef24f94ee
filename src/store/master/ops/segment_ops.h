// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/master/matched_keys.h"
#include "store/master/transaction.h"
#include "store/protocol/segments.h"

/// How nodes lend memory and stay known, one file each. `now` never runs backwards.
namespace mooncake::store {

/// Makes the client known, and adopts what its segments hold, told in one or several parts each; a part may be repeated. An earlier life
/// under the same segment name ends at once. Per segment: kOk (also when mounted already), kInvalidParams, kSegmentAlreadyExists (another
/// client's id, overlapping memory, or the name of another client that is alive), kSegmentNotFound (unmounted before).
/// Another life of the client's process than the one that is known ends that one if it tells of no segments; otherwise it is late itself: kInvalidVersion.
/// `distrusted`: an earlier master went on without this client, so values of its time may have been removed or replaced: they are stale.
/// `matched`: of the first segment's objects; what is not in there is found out now.
RemountReply remount(Transaction& transaction, const RemountRequest& request, Time now, bool distrusted = false,
                     const MatchedKeys& matched = {});
/// New, empty memory: kOk (also when repeated), kClientNotFound (remount first), kInvalidParams, kSegmentAlreadyExists.
StoreCode mount_segment(Transaction& transaction, const MountRequest& request, Time now);
/// kOk, kSegmentNotFound, kIllegalClient.
StoreCode unmount_segment(Transaction& transaction, const UnmountRequest& request, Time now);

HeartbeatReply heartbeat(Transaction& transaction, const ClientId& client, Time now);
/// The client has stopped all its transfers and leaves: kOk, kClientNotFound.
StoreCode goodbye(Transaction& transaction, const ClientId& client, Time now);
/// Keeps new writes away from the segments for a while: kOk, kClientNotFound. At most half of the pool is believed to be ill.
StoreCode report_failures(Transaction& transaction, const FailureReport& report, Time now);

/// Takes the client's segments away and ends it; for the operations and jobs.
void end_client(Transaction& transaction, ClientNumber client, ClientEnd how, Time now);
/// The same, or as much of it as gives back about so many ranges: to be called again while it is leaving. Returns how many that were, at least 1. It has
/// ended for everybody else from the first call on.
size_t leave(Transaction& transaction, ClientNumber client, ClientEnd how, Time now, size_t most);
constexpr size_t kLeaveAtOnce = 4096;  // ranges, under one hold of the lock
/// goodbye() in parts: call it until it returns true. `code` begins as kClientNotFound.
bool goodbye_some(Transaction& transaction, const ClientId& client, Time now, StoreCode& code);
/// Does some of what a client's coming back, or its mounting this, has to do first: takes away what it had, or what others had under the same name that are not
/// alive. Call it until it returns true; whatever is left is done by the operation itself.
/// Without a segment, also what an earlier `life` of the client's process had.
bool make_way(Transaction& transaction, const ClientId& client, const SegmentSpec* segment, Time now, Incarnation life = {});
/// Whether the client that is known is an earlier life of this one, which is to be ended as one that fell silent.
bool end_earlier_life(Transaction& transaction, ClientNumber client, Incarnation life, Time now);
/// What is wrong with mounting this: kOk, kInvalidParams, kSegmentAlreadyExists, kSegmentNotFound (its node has unmounted it). `mounted` tells
/// that it is there already.
StoreCode check_mount(const MasterState& state, ClientNumber client, const SegmentSpec& spec, bool& mounted);
/// Takes a segment away that its node does not lend any more: a late mount of it is refused.
void give_up_segment(Transaction& transaction, SegmentNumber segment, Time now);
/// Whether somebody else lends memory under this name who is alive: was heard lately, and its event stream has not broken. To replace it would make
/// the two end each other for ever.
bool name_taken(const MasterState& state, ClientNumber client, std::string_view name, Time now);
/// A disk keeps its id: ends the earlier life of the node that mounts it, unless that one is alive.
void replace_owner_of_disk(Transaction& transaction, ClientNumber client, const SegmentSpec& spec, Time now);
/// Ends other lives of the client that mounts under this name.
void replace_namesakes(Transaction& transaction, ClientNumber client, std::string_view name, Time now);

}  // namespace mooncake::store
