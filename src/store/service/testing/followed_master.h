// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "store/master/ops/task_ops.h"
#include "store/service/event_hub.h"
#include "store/service/testing/stream_listener.h"

namespace mooncake::store::testing {

inline constexpr ClientId kNode{1, 1}, kOther{2, 2}, kReader{3, 3};

/// A master whose event streams end in the test.
class EventHubTest : public ::testing::Test {
protected:
    static SegmentSpec segment(uint64_t number) {
        return {.id = {9, number},
                .name = format_text("host:{}", number),
                .base = number << 40,
                .size = 1 << 24,
                .endpoint = {},
                .protocol = {}};
    }
    /// A member with a segment (none: number 0).
    void join(const ClientId& client, uint64_t number) {
        master_.run([&](Transaction& transaction, Time now) {
            remount(transaction, {.client = client, .segments = {}}, now);
            return number == 0 ? StoreCode::kOk : mount_segment(transaction, {.client = client, .segment = segment(number)}, now);
        });
    }
    void follow(const ClientId& client, Told& told, bool report = true) {
        master_.run([&](Transaction& transaction, Time) {
            hub_.follow(transaction.state(), transaction.state().clients().find(client), told.responder());
            return true;
        });
        if (report) this->report(client);
    }
    void report(const ClientId& client) {
        while (hub_.wants_report(client)) {
            master_.look([&](const MasterState& state, Time now) {
                hub_.report(state, client, now);
                return true;
            });
            hub_.flush();
        }
    }
    PutStartItem start(std::string_view key, bool replace = false, uint32_t replicas = 1, uint64_t length = 100) {
        const PutItem item{.key = key, .length = length, .group = {}};
        const PutStartRequest request{.client = kNode, .tenant = {}, .config = {.replica_num = replicas}, .items = {&item, 1}};
        return master_
            .run([&](Transaction& transaction, Time now) {
                return replace ? upsert_start(transaction, request, now) : put_start(transaction, request, now);
            })
            .items[0];
    }
    void end(std::string_view key, uint64_t checksum = 7) {
        const PutEndItem item{.key = key, .generation = 0, .checksum = checksum};
        const auto reply = master_.run([&](Transaction& transaction, Time now) {
            return put_end(transaction, {.client = kNode, .tenant = {}, .items = {&item, 1}}, now);
        });
        ASSERT_EQ(reply.codes[0], StoreCode::kOk);
    }
    void put(std::string_view key) {
        ASSERT_EQ(start(key).code, StoreCode::kOk);
        end(key);
    }
    void read(std::string_view key) {
        master_.run([&](Transaction& transaction, Time now) {
            return get_replicas(transaction, {.tenant = {}, .keys = {&key, 1}, .unreachable = {}}, now);
        });
    }
    StoreCode remove_by_force(std::string_view key) {
        return master_
            .run([&](Transaction& transaction, Time now) {
                return remove(transaction, {.tenant = {}, .keys = {&key, 1}, .force = true}, now);
            })
            .codes[0];
    }
    TaskReply copy_to(uint64_t number, std::string_view key) {
        return master_.run([&](Transaction& transaction, Time now) {
            TaskReply reply = create_task(transaction, {.type = TaskType::kCopy, .key = key, .targets = {segment(number).name}}, now);
            dispatch_tasks(transaction, now);
            return reply;
        });
    }
    /// A put of this key to that node's segment begins; tells what followers must hear of it.
    EventHub::Caused start_on(uint64_t number, std::string_view key) {
        const PutItem item{.key = key, .length = 100, .group = {}};
        const PutStartRequest request{
            .client = kNode, .tenant = {}, .config = {.preferred_segments = {segment(number).name}}, .items = {&item, 1}};
        EventHub::Caused caused;
        master_.run([&](Transaction& transaction, Time now) {
            const EventHub::Position before = hub_.position();
            const PutStartReply reply = put_start(transaction, request, now);
            EXPECT_EQ(reply.items[0].code, StoreCode::kOk);
            caused.add(before, hub_.position());
            return true;
        });
        return caused;
    }
    /// A read value goes; tells the number of the change.
    uint64_t change(std::string_view key) {
        put(key);
        read(key);
        EXPECT_EQ(remove_by_force(key), StoreCode::kOk);
        return hub_.position().changes;
    }

    EventHub hub_{{.update_bytes_max = 4096, .changed_keys_max = 4, .report_ranges = 3, .report_window = 2}};
    LockedMaster master_{MasterOptions{}, &hub_, &hub_};
};

}  // namespace mooncake::store::testing
