// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>

namespace mooncake::store {
namespace {

using testing::ElementsAre;

constexpr ClientId kClient{1, 2};
constexpr SegmentId kSegment{3, 4};
constexpr TaskId kTask{5, 6};

SegmentSpec some_segment() {
    return {.id = kSegment,
            .name = "host:1",
            .base = 0x7f0000000000,
            .size = uint64_t{1} << 40,
            .endpoint = "host:2",
            .protocol = "tcp",
            .incarnation = {0xfedcba9876543210},
            .kind = SegmentKind::kDisk,
            .service = "host:3"};
}

/// What is decoded may borrow from the message.
const std::vector<std::byte>& keep(std::vector<std::byte> message) {
    static std::deque<std::vector<std::byte>> kept;
    return kept.emplace_back(std::move(message));
}

TEST(StoreMessages, KeysComeBackWithTheirOrder) {
    const std::vector<std::string_view> keys{"a", "", std::string_view("b\0c", 3), "a long key that is not short at all"};
    const std::vector<uint32_t> unreachable{7, 9};
    const auto body = encode_keys_request({.tenant = "team", .keys = keys, .unreachable = unreachable});
    const auto received = decode_keys_request(body);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->request.tenant, "team");
    EXPECT_TRUE(std::ranges::equal(received->request.keys, keys));
    EXPECT_TRUE(std::ranges::equal(received->request.unreachable, unreachable));
}

TEST(StoreMessages, KeysAtAnOddAddressAreReadFromACopyThatMovesAlong) {
    const std::vector<std::string_view> keys{"one", "two"};
    const std::vector<uint32_t> unreachable{7};
    const auto body = encode_keys_request({.tenant = {}, .keys = keys, .unreachable = unreachable});
    std::vector<std::byte> odd(body.size() + 1);
    std::memcpy(odd.data() + 1, body.data(), body.size());
    auto first = decode_keys_request(std::span(odd).subspan(1));
    ASSERT_TRUE(first);
    std::ranges::fill(odd, std::byte{0xff});
    const ReceivedKeys moved = std::move(*first);
    EXPECT_THAT(moved.keys, ElementsAre("one", "two"));
    EXPECT_THAT(moved.request.unreachable, ElementsAre(7));
}

TEST(StoreMessages, ExistReplyComesBack) {
    const auto reply = decode_exist_reply(keep(encode_exist_reply({.results = {1, 0, -600}, .soft_lease = 5s})));
    ASSERT_TRUE(reply);
    EXPECT_THAT(reply->results, ElementsAre(1, 0, -600));
    EXPECT_EQ(reply->soft_lease, 5s);
}

TEST(StoreMessages, GetReplyComesBack) {
    GetReply reply{.items = {},
                   .replicas = {{.segment = 9, .offset = 90}, {.segment = 1, .offset = 10}, {.segment = 2, .offset = 20}},
                   .lease = 10s,
                   .epoch = 77};
    reply.items.push_back(
        {.first_replica = 1, .replica_count = 2, .length = 100, .checksum = 5, .generation = 6, .data_type = ObjectDataType::kTensor});
    reply.items.push_back({.code = StoreCode::kObjectNotFound});
    reply.items.push_back({.first_replica = 0, .replica_count = 1, .length = 7});
    const auto back = decode_get_reply(keep(encode_get_reply(reply)));
    ASSERT_TRUE(back);
    ASSERT_EQ(back->items.size(), 3u);
    EXPECT_EQ(back->epoch, 77u);
    EXPECT_EQ(back->lease, 10s);
    EXPECT_EQ(back->items[0].first_replica, 0u) << "replicas are told in the order of the items";
    EXPECT_EQ(back->items[0].replica_count, 2u);
    EXPECT_EQ(back->items[0].length, 100u);
    EXPECT_EQ(back->items[0].checksum, 5u);
    EXPECT_EQ(back->items[0].generation, 6u);
    EXPECT_EQ(back->items[0].data_type, ObjectDataType::kTensor);
    EXPECT_EQ(back->items[1].code, StoreCode::kObjectNotFound);
    EXPECT_EQ(back->items[1].replica_count, 0u);
    EXPECT_EQ(back->items[2].first_replica, 2u);
    EXPECT_THAT(back->replicas, ElementsAre(ReplicaLocation{1, 10}, ReplicaLocation{2, 20}, ReplicaLocation{9, 90}));
}

TEST(StoreMessages, PutStartComesBackWithEveryFieldOfItsConfiguration) {
    const std::vector<PutItem> items{{.key = "a", .length = 1, .group = "g"}, {.key = "bb", .length = 2, .group = {}}};
    WriteConfig config{.replica_num = 3,
                       .soft_pin = SoftPinAction::kEnable,
                       .soft_pin_ttl = Duration(0),
                       .hard_pin = true,
                       .data_type = ObjectDataType::kWeight,
                       .preferred_segments = {"x:1", "y:2"},
                       .writer_host = "here"};
    const std::vector<uint32_t> segments{3, 9};
    const auto bytes = encode_put_start_request(
        {.client = kClient, .request_id = 11, .tenant = "t", .config = config, .items = items, .unreachable = segments}, true);
    const auto back = decode_put_start_request(bytes);
    ASSERT_TRUE(back);
    EXPECT_TRUE(back->replace);
    EXPECT_THAT(back->request.unreachable, ElementsAre(3, 9));
    EXPECT_EQ(back->request.client, kClient);
    EXPECT_EQ(back->request.request_id, 11u);
    EXPECT_EQ(back->request.tenant, "t");
    EXPECT_EQ(back->request.config.replica_num, 3u);
    EXPECT_EQ(back->request.config.soft_pin, SoftPinAction::kEnable);
    EXPECT_EQ(back->request.config.soft_pin_ttl, Duration(0)) << "zero is not the same as nothing";
    EXPECT_TRUE(back->request.config.hard_pin);
    EXPECT_EQ(back->request.config.data_type, ObjectDataType::kWeight);
    EXPECT_EQ(back->request.config.preferred_segments, config.preferred_segments);
    EXPECT_EQ(back->request.config.writer_host, "here");
    ASSERT_EQ(back->request.items.size(), 2u);
    EXPECT_EQ(back->request.items[0].key, "a");
    EXPECT_EQ(back->request.items[0].group, "g");
    EXPECT_EQ(back->request.items[1].key, "bb");
    EXPECT_EQ(back->request.items[1].length, 2u);
    EXPECT_EQ(back->request.items[1].group, "");

    const auto plain = decode_put_start_request(keep(encode_put_start_request({.items = items}, false)));
    ASSERT_TRUE(plain);
    EXPECT_FALSE(plain->replace);
    EXPECT_FALSE(plain->request.config.soft_pin_ttl);
    EXPECT_EQ(plain->request.config.replica_num, 1u);
    EXPECT_TRUE(plain->request.unreachable.empty());
}

TEST(StoreMessages, PutStartReplyComesBack) {
    PutStartReply reply{.items = {}, .replicas = {{1, 2}, {3, 4}}, .retry_after = 7ms, .disk_wait = 9ms, .epoch = 8};
    reply.items.push_back({.code = StoreCode::kNoAvailableHandle});
    reply.items.push_back({.first_replica = 0, .replica_count = 2, .generation = 99});
    const auto back = decode_put_start_reply(keep(encode_put_start_reply(reply)));
    ASSERT_TRUE(back);
    ASSERT_EQ(back->items.size(), 2u);
    EXPECT_EQ(back->items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(back->items[1].generation, 99u);
    EXPECT_EQ(back->items[1].replica_count, 2u);
    EXPECT_EQ(back->replicas, reply.replicas);
    EXPECT_EQ(back->retry_after, 7ms);
    EXPECT_EQ(back->disk_wait, 9ms);
    EXPECT_EQ(back->epoch, 8u);
}

TEST(StoreMessages, PutEndAndRevokeComeBack) {
    const std::vector<PutEndItem> items{{.key = "a", .generation = 1, .checksum = 2}, {.key = "b", .generation = 3, .checksum = 4}};
    const auto end_bytes = encode_put_end_request({.client = kClient, .tenant = "t", .items = items});
    const auto end = decode_put_end_request(end_bytes);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->request.client, kClient);
    EXPECT_EQ(end->request.tenant, "t");
    ASSERT_EQ(end->request.items.size(), 2u);
    EXPECT_EQ(end->request.items[1].key, "b");
    EXPECT_EQ(end->request.items[1].generation, 3u);
    EXPECT_EQ(end->request.items[1].checksum, 4u);

    const std::vector<uint32_t> segments{4};
    const auto revoke_bytes = encode_put_revoke_request(
        {.client = kClient, .request_id = 5, .tenant = "t", .items = items, .in_doubt = segments});
    const auto revoke = decode_put_revoke_request(revoke_bytes);
    ASSERT_TRUE(revoke);
    EXPECT_THAT(revoke->request.in_doubt, ElementsAre(4));
    EXPECT_EQ(revoke->request.request_id, 5u);
    EXPECT_EQ(revoke->request.items.size(), 2u);

    const auto codes = decode_codes_reply(keep(encode_codes_reply({.codes = {StoreCode::kOk, StoreCode::kInvalidWrite}})));
    ASSERT_TRUE(codes);
    EXPECT_THAT(codes->codes, ElementsAre(StoreCode::kOk, StoreCode::kInvalidWrite));
}

TEST(StoreMessages, RemovalsComeBack) {
    const std::vector<std::string_view> keys{"a", "b"};
    const auto remove = decode_remove_request(keep(encode_remove_request({.tenant = "t", .keys = keys, .force = true})));
    ASSERT_TRUE(remove);
    EXPECT_TRUE(remove->request.force);
    EXPECT_TRUE(std::ranges::equal(remove->request.keys, keys));

    const auto matching = decode_remove_matching_request(keep(encode_remove_matching_request("t", "^a.*", true)));
    ASSERT_TRUE(matching);
    EXPECT_EQ(matching->tenant, "t");
    EXPECT_EQ(matching->pattern, "^a.*");
    EXPECT_TRUE(matching->force);
    EXPECT_EQ(decode_remove_matching_reply(encode_remove_matching_reply(-600)), -600);

    const auto clear = decode_replica_clear_request(
        keep(encode_replica_clear_request({.client = kClient, .tenant = "t", .keys = keys, .segment_name = "host:1"})));
    ASSERT_TRUE(clear);
    EXPECT_EQ(clear->request.client, kClient);
    EXPECT_EQ(clear->request.segment_name, "host:1");
    EXPECT_EQ(clear->request.keys.size(), 2u);
}

TEST(StoreMessages, RemountComesBackWithAllASegmentHolds) {
    const std::vector<HeldObject> objects{{.tenant = "t",
                                           .key = "k",
                                           .group = "g",
                                           .offset = 1,
                                           .length = 2,
                                           .generation = 3,
                                           .checksum = 4,
                                           .data_type = ObjectDataType::kSample,
                                           .hard_pin = true,
                                           .soft_pin_left = 5s,
                                           .writer = kClient},
                                          {.tenant = {}, .key = "second", .group = {}, .offset = 64, .length = 2}};
    const std::vector<HeldWrite> writes{{.offset = 10, .length = 20, .writer = kClient}};
    const std::vector<HeldQuarantine> quarantined{{.offset = 30, .length = 40, .left = 6s},
                                                  {.offset = 80, .length = 1, .left = 7s, .writer = {5, 6}}};
    const std::vector<HeldSegment> segments{
        {.segment = some_segment(), .objects = objects, .writes = writes, .quarantined = quarantined, .exact = true, .more = true},
        {.segment = {.id = {9, 9}, .name = "empty", .endpoint = {}, .protocol = {}}, .objects = {}, .writes = {}, .quarantined = {}}};
    auto decoded = decode_remount_request(keep(encode_remount_request({.client = kClient, .epoch = 8, .segments = segments})));
    ASSERT_TRUE(decoded);
    const ReceivedRemount back = std::move(*decoded);
    EXPECT_EQ(back.request.client, kClient);
    EXPECT_EQ(back.request.epoch, 8u);
    ASSERT_EQ(back.request.segments.size(), 2u);
    const HeldSegment& held = back.request.segments[0];
    EXPECT_EQ(held.segment.id, kSegment);
    EXPECT_EQ(held.segment.name, "host:1");
    EXPECT_EQ(held.segment.base, 0x7f0000000000u);
    EXPECT_EQ(held.segment.endpoint, "host:2");
    EXPECT_EQ(held.segment.protocol, "tcp");
    EXPECT_EQ(held.segment.incarnation, some_segment().incarnation);
    EXPECT_FALSE(back.request.segments[1].segment.incarnation);
    EXPECT_TRUE(held.exact && held.more);
    ASSERT_EQ(held.objects.size(), 2u);
    EXPECT_EQ(held.objects[0].tenant, "t");
    EXPECT_EQ(held.objects[0].group, "g");
    EXPECT_EQ(held.objects[0].checksum, 4u);
    EXPECT_EQ(held.objects[0].data_type, ObjectDataType::kSample);
    EXPECT_TRUE(held.objects[0].hard_pin);
    EXPECT_EQ(held.objects[0].soft_pin_left, 5s);
    EXPECT_EQ(held.objects[0].writer, kClient);
    EXPECT_EQ(held.objects[1].key, "second");
    EXPECT_FALSE(held.objects[1].writer);
    ASSERT_EQ(held.writes.size(), 1u);
    EXPECT_EQ(held.writes[0].length, 20u);
    ASSERT_EQ(held.quarantined.size(), 2u);
    EXPECT_EQ(held.quarantined[0].left, 6s);
    EXPECT_FALSE(held.quarantined[0].writer);
    EXPECT_EQ(held.quarantined[1].writer, (ClientId{5, 6}));
    EXPECT_EQ(back.request.segments[1].segment.name, "empty");
    EXPECT_FALSE(back.request.segments[1].exact);

    const auto reply = decode_remount_reply(
        keep(encode_remount_reply({.segments = {{.code = StoreCode::kInvalidParams, .adopted = 1, .stale = 2, .refused = 3}}})));
    ASSERT_TRUE(reply);
    ASSERT_EQ(reply->segments.size(), 1u);
    EXPECT_EQ(reply->segments[0].code, StoreCode::kInvalidParams);
    EXPECT_EQ(reply->segments[0].adopted, 1u);
    EXPECT_EQ(reply->segments[0].stale, 2u);
    EXPECT_EQ(reply->segments[0].refused, 3u);
}

TEST(StoreMessages, SegmentsAndLivenessComeBack) {
    const auto mount = decode_mount_request(keep(encode_mount_request({.client = kClient, .segment = some_segment()})));
    ASSERT_TRUE(mount);
    EXPECT_EQ(mount->client, kClient);
    EXPECT_EQ(mount->segment.size, uint64_t{1} << 40);
    EXPECT_EQ(mount->segment.incarnation, some_segment().incarnation);
    const auto unmount = decode_unmount_request(keep(encode_unmount_request({.client = kClient, .segment = kSegment, .grace = 3s})));
    ASSERT_TRUE(unmount);
    EXPECT_EQ(unmount->segment, kSegment);
    EXPECT_EQ(unmount->grace, 3s);
    EXPECT_EQ(decode_client_request(encode_client_request(kClient)), kClient);
    const auto answer = decode_heartbeat_reply(
        keep(encode_heartbeat_reply({.status = HeartbeatStatus::kNeedRemount, .epoch = 4, .client_ttl = 10s})));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, HeartbeatStatus::kNeedRemount);
    EXPECT_EQ(answer->epoch, 4u);
    EXPECT_EQ(answer->client_ttl, 10s);
    const std::vector<SegmentId> failed{kSegment};
    const auto report = decode_failure_report(keep(encode_failure_report({.client = kClient, .segments = failed})));
    ASSERT_TRUE(report);
    EXPECT_THAT(report->report.segments, ElementsAre(kSegment));
    EXPECT_EQ(decode_code_reply(encode_code_reply(StoreCode::kClientNotFound)), StoreCode::kClientNotFound);
    const auto list = decode_segments_reply(keep(encode_segments_reply(
        {.segments = {{.number = 6, .segment = some_segment(), .status = SegmentStatus::kDraining, .client = kClient, .used_bytes = 12}},
         .epoch = 3})));
    ASSERT_TRUE(list);
    EXPECT_EQ(list->epoch, 3u);
    ASSERT_EQ(list->segments.size(), 1u);
    EXPECT_EQ(list->segments[0].number, 6u);
    EXPECT_EQ(list->segments[0].status, SegmentStatus::kDraining);
    EXPECT_EQ(list->segments[0].client, kClient);
    EXPECT_EQ(list->segments[0].used_bytes, 12u);
    EXPECT_EQ(list->segments[0].segment.name, "host:1");
    EXPECT_EQ(list->segments[0].segment.incarnation, some_segment().incarnation);
}

TEST(StoreMessages, TasksComeBack) {
    const auto task = decode_task_request(
        keep(encode_task_request({.type = TaskType::kMove, .tenant = "t", .key = "k", .source = "a:1", .targets = {"b:1"}})));
    ASSERT_TRUE(task);
    EXPECT_EQ(task->request.type, TaskType::kMove);
    EXPECT_EQ(task->request.key, "k");
    EXPECT_EQ(task->request.source, "a:1");
    EXPECT_THAT(task->request.targets, ElementsAre("b:1"));
    const auto reply = decode_task_reply(keep(encode_task_reply({.code = StoreCode::kTaskPendingLimitExceeded, .task = kTask})));
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->code, StoreCode::kTaskPendingLimitExceeded);
    EXPECT_EQ(reply->task, kTask);
    EXPECT_EQ(decode_task_query(encode_task_query(kTask)), kTask);
    const auto info = decode_task_info(keep(encode_task_info({.id = kTask,
                                                              .type = TaskType::kCopy,
                                                              .status = TaskStatus::kFailed,
                                                              .created_ms = 1,
                                                              .updated_ms = 2,
                                                              .client = kClient,
                                                              .message = "why"})));
    ASSERT_TRUE(info);
    EXPECT_EQ(info->status, TaskStatus::kFailed);
    EXPECT_EQ(info->updated_ms, 2u);
    EXPECT_EQ(info->message, "why");
    const auto end = decode_task_end(
        keep(encode_task_end({.client = kClient, .task = kTask, .code = StoreCode::kTransferFail, .message = "lost", .in_doubt = {4}})));
    ASSERT_TRUE(end);
    EXPECT_THAT(end->in_doubt, ElementsAre(4));
    EXPECT_EQ(end->code, StoreCode::kTransferFail);
    EXPECT_EQ(end->task, kTask);
    EXPECT_EQ(end->message, "lost");
}

TEST(StoreMessages, AnEventStreamIsHeardWithoutCopyingItsTextsUnlessItLiesAtAnOddAddress) {
    EventUpdate update{.sequence = 9, .filled = {{kSegment, 1, 2}}, .changed = {{"t", "k"}}, .orders = {}};
    for (uint64_t i = 0; i < 3; ++i)
        update.planned.push_back(
            {.segment = kSegment, .offset = i, .generation = i, .tenant = "t", .key = format_text("key {}", i), .group = {}});
    const auto body = encode_event_update(update);
    std::vector<std::byte> odd(1);
    odd.insert(odd.end(), body.begin(), body.end());
    for (const bool at_odd_address : {false, true}) {
        const auto bytes = at_odd_address ? std::span<const std::byte>(odd).subspan(1) : std::span<const std::byte>(body);
        const auto view = decode_event_view(bytes);
        ASSERT_TRUE(view);
        EXPECT_EQ(view->copy != nullptr, at_odd_address);
        ASSERT_EQ(view->planned.size(), 3u);
        const auto* key = reinterpret_cast<const std::byte*>(view->planned[2].key.data());
        EXPECT_EQ(key >= bytes.data() && key < bytes.data() + bytes.size(), !at_odd_address);
        EXPECT_EQ(view->planned[2].key, "key 2");
        EXPECT_EQ(encode_event_update(view->owned()), body);
        EXPECT_EQ(encode_event_update(EventView(update).owned()), body);
    }
}

TEST(StoreMessages, AnEventStreamUpdateComesBack) {
    EventUpdate update{.sequence = 9,
                       .acknowledge = true,
                       .reset = true,
                       .complete = true,
                       .planned = {},
                       .filled = {{kSegment, 1, 2}},
                       .dropped = {{kSegment, 3, 4s}},
                       .changed = {{"t", "k"}, {"", "another"}},
                       .all_changed = false,
                       .orders = {}};
    update.planned.push_back({.segment = kSegment,
                              .offset = 1,
                              .length = 2,
                              .generation = 3,
                              .tenant = "t",
                              .key = "k",
                              .group = "g",
                              .data_type = ObjectDataType::kWeight,
                              .hard_pin = true,
                              .soft_pin_left = 5s,
                              .writer = kClient});
    update.orders.push_back({.task = kTask,
                             .tenant = "t",
                             .key = "k",
                             .generation = 1,
                             .length = 2,
                             .checksum = 3,
                             .source = {4, 5},
                             .targets = {{6, 7}, {8, 9}}});
    const auto back = decode_event_update(keep(encode_event_update(update)));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->sequence, 9u);
    EXPECT_TRUE(back->acknowledge && back->reset && back->complete && !back->all_changed);
    ASSERT_EQ(back->planned.size(), 1u);
    EXPECT_EQ(back->planned[0].key, "k");
    EXPECT_EQ(back->planned[0].group, "g");
    EXPECT_EQ(back->planned[0].writer, kClient);
    EXPECT_EQ(back->planned[0].soft_pin_left, 5s);
    EXPECT_TRUE(back->planned[0].hard_pin);
    ASSERT_EQ(back->filled.size(), 1u);
    EXPECT_EQ(back->filled[0].checksum, 2u);
    ASSERT_EQ(back->dropped.size(), 1u);
    EXPECT_EQ(back->dropped[0].quarantine, 4s);
    ASSERT_EQ(back->changed.size(), 2u);
    EXPECT_EQ(back->changed[0].tenant, "t");
    EXPECT_EQ(back->changed[1].key, "another");
    ASSERT_EQ(back->orders.size(), 1u);
    EXPECT_EQ(back->orders[0].source, (ReplicaLocation{4, 5}));
    EXPECT_THAT(back->orders[0].targets, ElementsAre(ReplicaLocation{6, 7}, ReplicaLocation{8, 9}));

    const auto acknowledged = decode_acknowledgement(keep(encode_acknowledgement({.client = kClient, .sequence = 9})));
    ASSERT_TRUE(acknowledged);
    EXPECT_EQ(acknowledged->client, kClient);
    EXPECT_EQ(acknowledged->sequence, 9u);
}

TEST(StoreMessages, AnEncodedUpdateCanBeToldUnderAnotherNumber) {
    EventWriter writer;
    writer.changed("tenant", "key");
    auto body = writer.encode({.sequence = 1, .acknowledge = true});
    set_event_sequence(body, 0x123456789abc);
    EXPECT_EQ(body, writer.encode({.sequence = 0x123456789abc, .acknowledge = true}));
}

TEST(StoreMessages, AnEventStreamWriterThatWasClearedBeginsAnew) {
    EventWriter writer;
    EXPECT_TRUE(writer.empty());
    writer.changed("t", "one");
    writer.all_changed();
    writer.changed("t", "two");
    EXPECT_EQ(writer.changed_keys(), 0u) << "all means all";
    EXPECT_FALSE(writer.empty());
    const auto all = decode_event_update(writer.encode({.sequence = 1}));
    ASSERT_TRUE(all);
    EXPECT_TRUE(all->all_changed);
    EXPECT_TRUE(all->changed.empty());
    writer.clear();
    EXPECT_TRUE(writer.empty());
    writer.dropped({kSegment, 1, 0s});
    const auto next = decode_event_update(writer.encode({.sequence = 2}));
    ASSERT_TRUE(next);
    EXPECT_FALSE(next->all_changed);
    EXPECT_EQ(next->dropped.size(), 1u);
}

TEST(StoreMessages, EndsOfCopiesComeBack) {
    const std::vector<CopyEnd> items{{.task = kTask}, {.task = {7, kTierTaskBit | 8}, .code = StoreCode::kTransferFail, .in_doubt = 9}};
    const auto received = decode_copies_end(encode_copies_end({.client = kClient, .items = items, .window_bytes = 64 << 20}));
    ASSERT_TRUE(received);
    EXPECT_EQ(received->request.client, kClient);
    EXPECT_EQ(received->request.window_bytes, 64u << 20);
    ASSERT_EQ(received->request.items.size(), 2u);
    EXPECT_EQ(received->request.items[0].task, kTask);
    EXPECT_FALSE(is_tier_task(received->request.items[0].task));
    EXPECT_TRUE(is_tier_task(received->request.items[1].task));
    EXPECT_EQ(received->request.items[1].code, StoreCode::kTransferFail);
    EXPECT_EQ(received->request.items[1].in_doubt, 9u);
}

TEST(StoreMessages, ReplicasThatAreGoneComeBack) {
    const std::vector<GoneReplica> items{{.tenant = "t", .key = "k", .generation = 1}, {.tenant = {}, .key = "other", .generation = 2}};
    const auto& body = keep(encode_replicas_gone({.client = kClient, .segment = kSegment, .items = items}));
    const auto received = decode_replicas_gone(body);
    ASSERT_TRUE(received);
    EXPECT_EQ(received->request.client, kClient);
    EXPECT_EQ(received->request.segment, kSegment);
    ASSERT_EQ(received->request.items.size(), 2u);
    EXPECT_EQ(received->request.items[0].tenant, "t");
    EXPECT_EQ(received->request.items[1].key, "other");
    EXPECT_EQ(received->request.items[1].generation, 2u);
}

TEST(StoreMessages, StagedPartsComeBackWithTheirHashes) {
    const std::vector<StageItem> items{{.tenant = "t", .key = "k", .generation = 1, .offset = 2, .length = 3}, {.tenant = {}, .key = "l"}};
    const auto& asked = keep(encode_stage_request({.segment = kSegment, .items = items}));
    const auto request = decode_stage_request(asked);
    ASSERT_TRUE(request);
    EXPECT_EQ(request->request.segment, kSegment);
    ASSERT_EQ(request->request.items.size(), 2u);
    EXPECT_EQ(request->request.items[0].tenant, "t");
    EXPECT_EQ(request->request.items[0].offset, 2u);
    EXPECT_EQ(request->request.items[0].length, 3u);
    EXPECT_EQ(request->request.items[1].key, "l");

    StageReply reply{.parts = {{.lease = 1, .address = 0x1000, .length = 70'000, .first_hash = 1, .hash_count = 2},
                               {.code = StoreCode::kObjectNotFound},
                               {.lease = 2, .address = 0x2000, .length = 5, .first_hash = 0, .hash_count = 1}},
                     .hashes = {33, 11, 22},
                     .lease_time = 5s,
                     .engine = {77}};
    const auto answer = decode_stage_reply(encode_stage_reply(reply));
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->parts.size(), 3u);
    EXPECT_THAT(answer->hashes, ElementsAre(11, 22, 33));
    EXPECT_EQ(answer->parts[0].first_hash, 0u);
    EXPECT_EQ(answer->parts[1].code, StoreCode::kObjectNotFound);
    EXPECT_EQ(answer->parts[2].first_hash, 2u);
    EXPECT_EQ(answer->parts[2].address, 0x2000u);
    EXPECT_EQ(answer->lease_time, 5s);
    EXPECT_EQ(answer->engine, Incarnation{77});

    const auto released = decode_release_request(encode_release_request({.leases = {1, 2}}));
    ASSERT_TRUE(released);
    EXPECT_THAT(released->leases, ElementsAre(1, 2));
}

TEST(StoreMessages, DurationsAreBoundedSoThatNoSumOverflows) {
    const auto reply = decode_exist_reply(keep(encode_exist_reply({.results = {}, .soft_lease = Duration::max()})));
    ASSERT_TRUE(reply);
    EXPECT_GT(reply->soft_lease, 24h);
    EXPECT_LT(Clock::now() + 4 * reply->soft_lease, Time::max());
}

}  // namespace
}  // namespace mooncake::store
