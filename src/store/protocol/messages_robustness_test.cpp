// SPDX-License-Identifier: Apache-2.0
// Bytes that nobody sane sent, and messages of the version after this one.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "store/protocol/message_parts.h"
#include "store/protocol/messages.h"
#include "store/protocol/testing/next_version.h"

namespace mooncake::store {
namespace {

using Body = std::vector<std::byte>;
using testing::added_field;
using testing::finish_as_next_version;

/// True when the decoder accepted the bytes.
using Decoder = std::function<bool(std::span<const std::byte>)>;
struct Kind {
    std::string name;
    Body valid;
    Decoder decode;
};

template <typename Decode>
Kind kind(std::string name, Body valid, Decode decode) {
    return {std::move(name), std::move(valid), [decode](std::span<const std::byte> body) { return decode(body).has_value(); }};
}

std::vector<Kind> all_kinds() {
    static const std::vector<std::string_view> keys{"alpha", "beta", "gamma"};
    static const std::vector<PutItem> items{{.key = "alpha", .length = 1, .group = "g"}, {.key = "beta", .length = 2, .group = {}}};
    static const std::vector<PutEndItem> ends{{.key = "alpha", .generation = 1, .checksum = 2}};
    static const std::vector<HeldObject> objects{{.tenant = "t", .key = "k", .group = "g"}};
    static const std::vector<HeldWrite> writes(1);
    static const std::vector<HeldQuarantine> quarantined(1);
    static const std::vector<HeldSegment> held{{.segment = {}, .objects = objects, .writes = writes, .quarantined = quarantined}};
    static const std::vector<SegmentId> ids{{1, 2}};
    static const std::vector<CopyEnd> copy_ends(2);
    static const std::vector<GoneReplica> gone{{.tenant = "t", .key = "k"}};
    static const std::vector<StageItem> parts{{.tenant = "t", .key = "k"}};
    WriteConfig config{.preferred_segments = {"x", "y"}, .writer_host = "h"};
    GetReply get{.items = {{.first_replica = 0, .replica_count = 1}}, .replicas = {{1, 2}}};
    PutStartReply start{.items = {{.first_replica = 0, .replica_count = 1}}, .replicas = {{1, 2}}};
    EventUpdate update{
        .sequence = 1, .filled = {{}}, .dropped = {{}}, .changed = {{"t", "k"}}, .orders = {{.key = "k", .targets = {{1, 2}}}}};
    update.planned.push_back({.tenant = "t", .key = "k", .group = "g"});
    return {
        kind("keys request", encode_keys_request({.tenant = "t", .keys = keys, .unreachable = {}}), decode_keys_request),
        kind("exist reply", encode_exist_reply({.results = {1, 0}}), decode_exist_reply),
        kind("get reply", encode_get_reply(get), decode_get_reply),
        kind("put start request", encode_put_start_request({.config = config, .items = items}, true), decode_put_start_request),
        kind("put start reply", encode_put_start_reply(start), decode_put_start_reply),
        kind("put end request", encode_put_end_request({.tenant = {}, .items = ends}), decode_put_end_request),
        kind("put revoke request", encode_put_revoke_request({.tenant = {}, .items = ends}), decode_put_revoke_request),
        kind("codes reply", encode_codes_reply({.codes = {StoreCode::kOk}}), decode_codes_reply),
        kind("remove request", encode_remove_request({.tenant = {}, .keys = keys}), decode_remove_request),
        kind("remove matching request", encode_remove_matching_request("t", "p", true), decode_remove_matching_request),
        kind("remove matching reply", encode_remove_matching_reply(5), decode_remove_matching_reply),
        kind("replica clear request", encode_replica_clear_request({.tenant = {}, .keys = keys, .segment_name = "s"}),
             decode_replica_clear_request),
        kind("mount request", encode_mount_request({}), decode_mount_request),
        kind("remount request", encode_remount_request({.segments = held}), decode_remount_request),
        kind("remount reply", encode_remount_reply({.segments = {{}}}), decode_remount_reply),
        kind("unmount request", encode_unmount_request({}), decode_unmount_request),
        kind("client request", encode_client_request({}), decode_client_request),
        kind("heartbeat reply", encode_heartbeat_reply({}), decode_heartbeat_reply),
        kind("failure report", encode_failure_report({.segments = ids}), decode_failure_report),
        kind("segments reply", encode_segments_reply({.segments = {{}}}), decode_segments_reply),
        kind("code reply", encode_code_reply(StoreCode::kInternalError), decode_code_reply),
        kind("task request", encode_task_request({.targets = {"t"}}), decode_task_request),
        kind("task reply", encode_task_reply({}), decode_task_reply),
        kind("task query", encode_task_query({}), decode_task_query),
        kind("task info", encode_task_info({.message = "m"}), decode_task_info),
        kind("task end", encode_task_end({.message = "m"}), decode_task_end),
        kind("event update", encode_event_update(update), decode_event_update),
        kind("acknowledgement", encode_acknowledgement({}), decode_acknowledgement),
        kind("ends of copies", encode_copies_end({.items = copy_ends}), decode_copies_end),
        kind("replicas gone", encode_replicas_gone({.items = gone}), decode_replicas_gone),
        kind("stage request", encode_stage_request({.items = parts}), decode_stage_request),
        kind("stage reply", encode_stage_reply({.parts = {{.hash_count = 1}}, .hashes = {1}}), decode_stage_reply),
        kind("release request", encode_release_request({.leases = {1}}), decode_release_request),
    };
}

TEST(StoreMessagesRobustness, WhatWasEncodedIsAccepted) {
    for (const Kind& kind : all_kinds()) EXPECT_TRUE(kind.decode(kind.valid)) << kind.name;
}

TEST(StoreMessagesRobustness, NoTruncatedMessageIsReadBeyondItsEnd) {
    for (const Kind& kind : all_kinds()) {
        for (size_t size = 0; size < kind.valid.size(); ++size) {
            // On the heap with no room behind it, so that a sanitizer sees the first byte too many.
            const Body cut(kind.valid.begin(), kind.valid.begin() + static_cast<ptrdiff_t>(size));
            (void)kind.decode(cut);
        }
        EXPECT_FALSE(kind.decode({})) << kind.name;
        EXPECT_FALSE(kind.decode(std::span(kind.valid).first(4))) << kind.name;
    }
}

TEST(StoreMessagesRobustness, NoFlippedByteBreaksADecoder) {
    std::mt19937 random(1);
    for (const Kind& kind : all_kinds()) {
        for (int round = 0; round < 2000; ++round) {
            Body body = kind.valid;
            for (int flips = static_cast<int>(random() % 4); flips >= 0; --flips) body[random() % body.size()] = std::byte(random() % 256);
            (void)kind.decode(body);
        }
    }
}

TEST(StoreMessagesRobustness, RandomBytesAreRefusedByMost) {
    std::mt19937 random(2);
    size_t accepted = 0;
    for (const Kind& kind : all_kinds()) {
        for (int round = 0; round < 200; ++round) {
            Body body(8 + random() % 200);
            for (std::byte& byte : body) byte = std::byte(random() % 256);
            accepted += kind.decode(body) ? 1 : 0;
        }
    }
    EXPECT_LT(accepted, 33u * 200 / 10);
}

TEST(StoreMessagesRobustness, TextsThatDoNotFitTheirItemsAreRefused) {
    for (const uint32_t claimed : {0u, 4u, 6u, UINT32_MAX}) {
        parts::Builder builder;
        const auto lengths = builder->CreateVector(std::vector<uint32_t>{claimed});
        const auto texts = builder->CreateVector(std::vector<uint8_t>(5, 'x'));
        const Body body = builder.finish(wire::CreateKeysRequest(*builder, 0, lengths, texts));
        const auto decoded = decode_keys_request(body);
        ASSERT_FALSE(decoded) << claimed;
        EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
    }
}

TEST(StoreMessagesRobustness, ReplicasThatDoNotFitTheirItemsAreRefused) {
    parts::Builder builder;
    const std::vector<wire::GetItem> items{wire::GetItem(1, 2, 3, 0, 7, 0)};
    const auto list = builder->CreateVectorOfStructs(items);
    const Body body = builder.finish(wire::CreateGetReply(*builder, list));
    EXPECT_EQ(decode_get_reply(body).error().code(), Code::kCorrupt);
}

TEST(StoreMessagesRobustness, TooManyKeysAreRefusedBeforeTheyCostMemory) {
    const std::vector<std::string_view> keys(kKeysMax + 1);
    EXPECT_EQ(decode_keys_request(encode_keys_request({.tenant = {}, .keys = keys, .unreachable = {}})).error().code(), Code::kCorrupt);
}

TEST(StoreMessagesRobustness, NamesBeyondTheirLimitAreRefused) {
    const std::string name(kNameBytesMax + 1, 'n');
    EXPECT_FALSE(decode_keys_request(encode_keys_request({.tenant = name, .keys = {}, .unreachable = {}})));
    EXPECT_FALSE(decode_mount_request(encode_mount_request({.segment = {.name = name}})));
    EXPECT_FALSE(decode_remove_matching_request(encode_remove_matching_request("", std::string(kPatternBytesMax + 1, '.'), false)));
}

TEST(StoreMessagesRobustness, AnActionWeDoNotKnowIsRefusedAndAnAnswerWeDoNotKnowIsNoYes) {
    {
        parts::Builder builder;
        const auto config = wire::CreateWriteConfig(*builder, 1, 200);
        EXPECT_FALSE(decode_put_start_request(builder.finish(wire::CreatePutStartRequest(*builder, nullptr, 0, 0, config))));
    }
    parts::Builder builder;
    const auto answer = decode_heartbeat_reply(builder.finish(wire::CreatePingReply(*builder, 9, 1)));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, HeartbeatStatus::kNeedRemount);
}

// ---- the next version

/// What the next version reads where this one wrote nothing.
template <typename Table>
void expect_next_version_sees_defaults(const Body& body, size_t fields) {
    const auto message = VerifiedMessage<Table>::parse(body, "message");
    ASSERT_TRUE(message);
    const auto& table = reinterpret_cast<const flatbuffers::Table&>(**message);
    EXPECT_EQ(table.GetField<uint64_t>(added_field(fields, 0), 7), 7u);
    EXPECT_EQ(table.GetPointer<const flatbuffers::String*>(added_field(fields, 1)), nullptr);
}

TEST(StoreMessagesVersions, ARequestOfTheNextVersionIsUnderstood) {
    parts::Builder builder;
    const auto lengths = builder->CreateVector(std::vector<uint32_t>{3});
    const auto texts = builder->CreateVector(std::vector<uint8_t>{'k', 'e', 'y'});
    const auto text = builder->CreateString("from the future");
    wire::KeysRequestBuilder table(*builder);
    table.add_key_bytes(lengths);
    table.add_texts(texts);
    const Body body = builder.finish(finish_as_next_version(table, 4, text));
    const auto received = decode_keys_request(body);
    ASSERT_TRUE(received);
    ASSERT_EQ(received->keys.size(), 1u);
    EXPECT_EQ(received->keys[0], "key");
}

TEST(StoreMessagesVersions, AReplyAndAnEventStreamOfTheNextVersionAreUnderstood) {
    {
        parts::Builder builder;
        const auto items = builder->CreateVectorOfStructs(std::vector<wire::GetItem>{wire::GetItem(1, 2, 3, 0, 0, 0)});
        const auto text = builder->CreateString("from the future");
        wire::GetReplyBuilder table(*builder);
        table.add_items(items);
        table.add_epoch(5);
        const auto reply = decode_get_reply(builder.finish(finish_as_next_version(table, 4, text)));
        ASSERT_TRUE(reply);
        EXPECT_EQ(reply->epoch, 5u);
        EXPECT_EQ(reply->items.size(), 1u);
    }
    parts::Builder builder;
    const auto text = builder->CreateString("from the future");
    wire::FeedUpdateBuilder table(*builder);
    table.add_sequence(6);
    table.add_all_changed(true);
    const auto update = decode_event_update(builder.finish(finish_as_next_version(table, 14, text)));
    ASSERT_TRUE(update);
    EXPECT_EQ(update->sequence, 6u);
    EXPECT_TRUE(update->all_changed);
}

TEST(StoreMessagesVersions, TheNextVersionUnderstandsOurs) {
    const std::vector<std::string_view> keys{"key"};
    expect_next_version_sees_defaults<wire::KeysRequest>(encode_keys_request({.tenant = "t", .keys = keys, .unreachable = {}}), 4);
    expect_next_version_sees_defaults<wire::PutStartRequest>(encode_put_start_request({.items = {}}, false), 8);
    expect_next_version_sees_defaults<wire::PutEndRequest>(encode_put_revoke_request({.items = {}}), 6);
    expect_next_version_sees_defaults<wire::GetReply>(encode_get_reply({}), 4);
    expect_next_version_sees_defaults<wire::FeedUpdate>(encode_event_update({.sequence = 1}), 14);
}

TEST(StoreMessagesVersions, AMessageWithoutAnyOfItsFieldsMeansDefaults) {
    parts::Builder builder;
    const auto nothing = builder->EndTable(builder->StartTable());
    const Body body = builder.finish(flatbuffers::Offset<flatbuffers::Table>(nothing));
    const auto keys = decode_keys_request(body);
    ASSERT_TRUE(keys);
    EXPECT_TRUE(keys->keys.empty());
    const auto start = decode_put_start_request(body);
    ASSERT_TRUE(start);
    EXPECT_EQ(start->request.config.replica_num, 1u);
    EXPECT_FALSE(start->request.client);
    EXPECT_TRUE(decode_get_reply(body));
    EXPECT_TRUE(decode_event_update(body));
    EXPECT_TRUE(decode_remount_request(body));
    EXPECT_FALSE(decode_mount_request(body)) << "nothing can be done without a segment";
}

}  // namespace
}  // namespace mooncake::store
