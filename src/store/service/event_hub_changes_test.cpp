// SPDX-License-Identifier: Apache-2.0
// Who is told that values have changed, and what it costs where many follow or do not listen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "store/service/event_hub.h"
#include "store/service/testing/stream_listener.h"

namespace mooncake::store {
namespace {

using store::testing::Told;

using ::testing::ElementsAre;

constexpr ClientId kNode{1, 1}, kReader{3, 3}, kIdle{4, 4};
constexpr Incarnation kReading{33}, kSleeping{44};

class EventHubChanges : public ::testing::Test {
protected:
    EventHubChanges() {
        master_.run([](Transaction& transaction, Time now) {
            remount(transaction, {.client = kNode, .segments = {}}, now);
            const SegmentSpec segment{.id = {9, 1}, .name = "host:1", .base = 1 << 20, .size = 1 << 24, .endpoint = {}, .protocol = {}};
            return mount_segment(transaction, {.client = kNode, .segment = segment}, now);
        });
    }
    /// A member without memory, that has heard its first report.
    void follow(const ClientId& client, Told& told) {
        master_.run([&](Transaction& transaction, Time now) {
            remount(transaction, {.client = client, .segments = {}}, now);
            hub_.follow(transaction.state(), transaction.state().clients().find(client), told.responder());
            return true;
        });
        master_.look([&](const MasterState& state, Time now) {
            hub_.report(state, client, now);
            return true;
        });
        hub_.flush();
        hub_.acknowledge(client, told.take().back().sequence);
    }
    void ask(Incarnation process, std::string_view key) {
        master_.run([&](Transaction& transaction, Time now) {
            hub_.asked(transaction.state(), process, now);
            return get_replicas(transaction, {.tenant = {}, .keys = {&key, 1}, .unreachable = {}}, now);
        });
    }
    /// A value that this process has read goes; tells the number of the change.
    uint64_t change(std::string_view key, Incarnation reader = kReading) {
        const PutItem item{.key = key, .length = 100, .group = {}};
        const PutEndItem end{.key = key};
        master_.run([&](Transaction& transaction, Time now) {
            put_start(transaction, {.client = kNode, .tenant = {}, .config = {}, .items = {&item, 1}}, now);
            return put_end(transaction, {.client = kNode, .tenant = {}, .items = {&end, 1}}, now);
        });
        ask(reader, key);
        const auto removed = master_.run([&](Transaction& transaction, Time now) {
            return remove(transaction, {.tenant = {}, .keys = {&key, 1}, .force = true}, now);
        });
        EXPECT_EQ(removed.codes[0], StoreCode::kOk);
        return hub_.position().changes;
    }
    bool answered(uint64_t change, Told& caller) {
        hub_.answer_when_told({.change = change}, caller.responder(), {}, Clock::now());
        return caller.over();
    }

    static bool hears_of_changes(Told& told) {
        const auto updates = told.take();
        return std::any_of(updates.begin(), updates.end(),
                           [](const EventUpdate& update) { return update.all_changed || !update.changed.empty(); });
    }

    static constexpr size_t kBehindMax = 4000;
    EventHub hub_{{.acknowledge_timeout = 1h, .unacknowledged_bytes_max = kBehindMax}};
    LockedMaster master_{MasterOptions{}, &hub_, &hub_};
};

TEST_F(EventHubChanges, AreToldToThoseOnlyWhoMayRememberSomething) {
    Told reader(kReading), idle(kSleeping);
    follow(kReader, reader);
    follow(kIdle, idle);
    const uint64_t number = change("k");
    EXPECT_FALSE(hears_of_changes(idle));
    const auto updates = reader.take();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_EQ(updates[0].changed.at(0).key, "k");
    Told caller, later;
    EXPECT_FALSE(answered(number, caller));
    hub_.acknowledge(kReader, updates[0].sequence);
    EXPECT_TRUE(caller.over()) << "nobody waits for the other";

    ask(kSleeping, "nothing");  // it is awake: from now on it is told, too
    const uint64_t second = change("k");
    const auto told = idle.take();
    ASSERT_EQ(told.size(), 1u);
    hub_.acknowledge(kReader, reader.take().at(0).sequence);
    EXPECT_FALSE(answered(second, later));
    hub_.acknowledge(kIdle, told[0].sequence);
    EXPECT_TRUE(later.over());
}

TEST_F(EventHubChanges, AreToldToEverybodyWhoDoesNotSayWhichProcessItIs) {
    Told unnamed;
    follow(kReader, unnamed);
    change("k", kSleeping);
    EXPECT_EQ(unnamed.take().size(), 1u);
}

TEST_F(EventHubChanges, ReachAllClientsOfAProcess) {
    Told one(kReading), two(kReading);
    follow(kReader, one);
    follow(kIdle, two);
    change("k");
    change("k");
    for (Told* told : {&one, &two}) {
        const auto updates = told->take();
        ASSERT_EQ(updates.size(), 2u);
        EXPECT_EQ(updates[1].sequence, updates[0].sequence + 1) << "each has numbers of its own";
    }
}

TEST_F(EventHubChanges, AreToldToAProcessThatAskedBeforeItFollowed) {
    Told reader(kReading);
    ask(kReading, "nothing");
    follow(kReader, reader);
    change("k", kSleeping);
    EXPECT_EQ(reader.take().size(), 1u);
}

TEST_F(EventHubChanges, OfManyBytesAreToldAsAll) {
    EventHub hub({.update_bytes_max = 1000});
    LockedMaster master{MasterOptions{}, &hub, nullptr};  // flushed by hand
    Told reader;
    master.run([&](Transaction& transaction, Time now) {
        remount(transaction, {.client = kReader, .segments = {}}, now);
        hub.follow(transaction.state(), transaction.state().clients().find(kReader), reader.responder());
        const SegmentSpec segment{.id = {9, 1}, .name = "host:1", .base = 1 << 20, .size = 1 << 24, .endpoint = {}, .protocol = {}};
        return mount_segment(transaction, {.client = kReader, .segment = segment}, now);
    });
    hub.flush();
    reader.take();
    for (int i = 0; i < 20; ++i) {
        const std::string name = format_text("{:0100}", i);
        const std::string_view key = name;
        const PutItem item{.key = key, .length = 100, .group = {}};
        const PutEndItem end{.key = key};
        master.run([&](Transaction& transaction, Time now) {
            put_start(transaction, {.client = kReader, .tenant = {}, .config = {}, .items = {&item, 1}}, now);
            put_end(transaction, {.client = kReader, .tenant = {}, .items = {&end, 1}}, now);
            get_replicas(transaction, {.tenant = {}, .keys = {&key, 1}, .unreachable = {}}, now);
            return remove(transaction, {.tenant = {}, .keys = {&key, 1}, .force = true}, now);
        });
    }
    hub.flush();
    const auto updates = reader.take();
    EXPECT_TRUE(std::any_of(updates.begin(), updates.end(), [](const EventUpdate& update) { return update.all_changed; }));
    for (const EventUpdate& update : updates) EXPECT_TRUE(update.changed.empty());
}

TEST_F(EventHubChanges, DoNotPileUpForOneWhoDoesNotAcknowledge) {
    Told reader(kReading);
    follow(kReader, reader);
    uint64_t last = 0;
    for (int i = 0; i < 200; ++i) last = change(format_text("key {}", i));
    const auto heard = reader.take();
    ASSERT_FALSE(heard.empty());
    EXPECT_LE(heard.size(), kBehindMax / 200) << "of 200";
    Told caller;
    EXPECT_FALSE(answered(last, caller));

    hub_.acknowledge(kReader, heard.back().sequence);
    EXPECT_FALSE(caller.over()) << "it has not heard of the last ones";
    hub_.flush();
    const auto caught_up = reader.take();
    ASSERT_EQ(caught_up.size(), 1u);
    EXPECT_TRUE(caught_up[0].all_changed);
    EXPECT_TRUE(caught_up[0].acknowledge);
    hub_.acknowledge(kReader, caught_up[0].sequence);
    EXPECT_TRUE(caller.over());

    change("another");
    const auto again = reader.take();
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].changed.at(0).key, "another");
}

TEST_F(EventHubChanges, AreAcknowledgedByOneWhoHearsNothingOfThemOnceItHasWhatItWasToldBefore) {
    Told reader(kReading), idle(kSleeping);
    follow(kReader, reader);
    follow(kIdle, idle);
    EXPECT_EQ(hub_.followers(), 2u);
    for (int i = 0; i < 3; ++i) change("k");
    EXPECT_FALSE(hears_of_changes(idle));
    hub_.acknowledge(kReader, reader.take().back().sequence);
    Told caller;
    EXPECT_TRUE(answered(hub_.position().changes, caller));
}

TEST_F(EventHubChanges, OthersKnowWhoIsBehindBeforeAnybodyIsAnsweredWithoutIt) {
    Told node(kSleeping), other(kReading), writer;
    follow(kNode, node);
    follow(kReader, other);
    node.hold_back();
    const PutItem item{.key = "k", .length = 100, .group = {}};
    EventHub::Caused caused;
    const EventHub::Position before = hub_.position();
    master_.run([&](Transaction& transaction, Time now) {
        return put_start(transaction, {.client = kNode, .tenant = {}, .config = {}, .items = {&item, 1}}, now);
    });
    caused.add(before, hub_.position());
    hub_.answer_when_told(caused, writer.responder(), {}, Clock::now());
    other.hold_back();
    const Time late = Clock::now() + 2s;
    hub_.expire(late);
    EXPECT_TRUE(node.broken_off());
    EXPECT_FALSE(writer.over()) << "a master that is killed now would leave nobody who knows";
    const auto updates = other.take();
    ASSERT_FALSE(updates.empty());
    ASSERT_EQ(updates.back().behind.size(), 1u);
    EXPECT_EQ(updates.back().behind[0].client, kNode);
    other.let_go();
    hub_.expire(late);
    EXPECT_TRUE(writer.reply());
}

}  // namespace
}  // namespace mooncake::store
