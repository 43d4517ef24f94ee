// SPDX-License-Identifier: Apache-2.0
// What anybody may send to a master, and what a master may send: no decoder may read beyond the bytes, and what it accepts must mean the
// same after it was written and read again.
#include <algorithm>
#include <cstdint>
#include <span>

#include "store/protocol/messages.h"

using namespace mooncake;
using namespace mooncake::store;

namespace {

/// Encoded again, it is accepted again, and the third time around nothing changes any more.
template <typename Decode, typename Encode>
void check_stable(std::span<const std::byte> bytes, Decode decode, Encode encode) {
    const auto first = decode(bytes);
    if (!first) return;
    const auto once = encode(*first);
    const auto second = decode(once);
    MC_CHECK(second.has_value());
    MC_CHECK(encode(*second) == once);
}

void check_objects(std::span<const std::byte> bytes) {
    check_stable(bytes, decode_keys_request, [](const ReceivedKeys& received) { return encode_keys_request(received.request); });
    check_stable(bytes, decode_exist_reply, encode_exist_reply);
    check_stable(bytes, decode_get_reply, encode_get_reply);
    check_stable(bytes, decode_put_start_request,
                 [](const ReceivedPutStart& received) { return encode_put_start_request(received.request, received.replace); });
    check_stable(bytes, decode_put_start_reply, encode_put_start_reply);
    check_stable(bytes, decode_put_end_request, [](const ReceivedPutEnd& received) { return encode_put_end_request(received.request); });
    check_stable(bytes, decode_put_revoke_request,
                 [](const ReceivedPutRevoke& received) { return encode_put_revoke_request(received.request); });
    check_stable(bytes, decode_codes_reply, encode_codes_reply);
    check_stable(bytes, decode_remove_request, [](const ReceivedRemove& received) { return encode_remove_request(received.request); });
    check_stable(bytes, decode_remove_matching_request, [](const ReceivedRemoveMatching& received) {
        return encode_remove_matching_request(received.tenant, received.pattern, received.force);
    });
    check_stable(bytes, decode_remove_matching_reply, encode_remove_matching_reply);
    check_stable(bytes, decode_replica_clear_request,
                 [](const ReceivedReplicaClear& received) { return encode_replica_clear_request(received.request); });
}

void check_segments(std::span<const std::byte> bytes) {
    check_stable(bytes, decode_mount_request, encode_mount_request);
    check_stable(bytes, decode_remount_request, [](const ReceivedRemount& received) { return encode_remount_request(received.request); });
    check_stable(bytes, decode_remount_reply, encode_remount_reply);
    check_stable(bytes, decode_unmount_request, encode_unmount_request);
    check_stable(bytes, decode_client_request, encode_client_request);
    check_stable(bytes, decode_heartbeat_reply, encode_heartbeat_reply);
    check_stable(bytes, decode_failure_report,
                 [](const ReceivedFailureReport& received) { return encode_failure_report(received.report); });
    check_stable(bytes, decode_segments_reply, encode_segments_reply);
    check_stable(bytes, decode_code_reply, encode_code_reply);
}

void check_feed_and_tasks(std::span<const std::byte> bytes) {
    check_stable(bytes, decode_event_update, encode_event_update);
    check_stable(bytes, decode_acknowledgement, encode_acknowledgement);
    check_stable(bytes, decode_task_request, [](const ReceivedTask& received) { return encode_task_request(received.request); });
    check_stable(bytes, decode_task_reply, encode_task_reply);
    check_stable(bytes, decode_task_query, encode_task_query);
    check_stable(bytes, decode_task_info, encode_task_info);
    check_stable(bytes, decode_task_end, encode_task_end);
}

void check_tiers(std::span<const std::byte> bytes) {
    check_stable(bytes, decode_copies_end, [](const ReceivedCopiesEnd& received) { return encode_copies_end(received.request); });
    check_stable(bytes, decode_replicas_gone, [](const ReceivedReplicasGone& received) { return encode_replicas_gone(received.request); });
    check_stable(bytes, decode_stage_request, [](const ReceivedStage& received) { return encode_stage_request(received.request); });
    check_stable(bytes, decode_stage_reply, encode_stage_reply);
    check_stable(bytes, decode_release_request, encode_release_request);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    check_objects(bytes);
    check_segments(bytes);
    check_feed_and_tasks(bytes);
    check_tiers(bytes);
    return 0;
}
