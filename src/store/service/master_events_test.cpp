// SPDX-License-Identifier: Apache-2.0
// Event streams over real connections: order, acknowledgements, readers that sleep, masters that are killed or stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "rpc/testing/other_process.h"
#include "store/service/master_server.h"
#include "store/service/testing/served_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;
using rpc::testing::OtherProcess;
using ::testing::ElementsAre;

constexpr ClientId kNode{1, 1}, kReader{3, 3};

std::vector<std::string> names(std::string_view prefix, int count) {
    std::vector<std::string> list;
    for (int i = 0; i < count; ++i) list.push_back(format_text("{} {}", prefix, i));
    return list;
}

class MasterEvents : public ::testing::Test {
protected:
    MasterEvents() { server_->start(); }
    std::string address() const { return format_text("127.0.0.1:{}", server_->port()); }

    std::unique_ptr<MasterServer> server_ = MasterServer::create({.core = {.client_ttl = 1h}, .threads = 2}).value();
    Caller caller_{address()};
};

/// What a node would know after these updates: generation -> checksum of the values.
std::map<uint64_t, uint64_t> values_of(const std::vector<EventUpdate>& updates) {
    std::map<uint64_t, uint64_t> values;
    for (const EventUpdate& update : updates) {
        if (update.reset) values.clear();
        for (const RangeFilled& range : update.filled) values[range.generation] = range.checksum;
        for (const RangeDropped& range : update.dropped) values.erase(range.generation);
    }
    return values;
}

TEST_F(MasterEvents, AnUnknownClientIsToldSoBeforeAnyUpdate) {
    Following following(address(), kNode);
    ASSERT_TRUE(following.wait_end());
    EXPECT_EQ(following.end()->code(), Code::kNotFound);
    EXPECT_TRUE(following.updates().empty());
}

TEST_F(MasterEvents, ANodeKnowsWhatItsWritersWereTold) {
    caller_.join(kNode, 1);
    caller_.put(kNode, names("before", 3000));
    Following following(address(), kNode);
    caller_.put(kNode, names("while", 100));
    caller_.remove(names("before", 50), true);
    ASSERT_TRUE(following.wait_complete());
    caller_.put_start(kNode, {"last"});
    ASSERT_TRUE(eventually([&] {
        const auto updates = following.updates();
        return !updates.empty() && !updates.back().planned.empty() && updates.back().planned.back().key == "last";
    }));
    const auto updates = following.updates();
    EXPECT_EQ(values_of(updates).size(), 3000u + 100 - 50);
    uint64_t sequence = updates[0].sequence;  // of what nobody followed there is a number, too
    for (const EventUpdate& update : updates) EXPECT_EQ(update.sequence, sequence++);
}

TEST_F(MasterEvents, AForcedRemovalIsAnsweredAfterTheReadersKnow) {
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following following(address(), kReader);
    ASSERT_TRUE(following.wait_complete());
    for (int round = 0; round < 20; ++round) {
        caller_.put(kNode, {"k"});
        caller_.get({"k"});
        following.take();
        EXPECT_THAT(caller_.remove({"k"}, true).codes, ElementsAre(StoreCode::kOk));
        // The answer came, so the reader had acknowledged: no waiting here.
        const auto updates = following.take();
        ASSERT_FALSE(updates.empty());
        EXPECT_EQ(updates.back().changed.at(0).key, "k");
    }
}

TEST_F(MasterEvents, AnUpsertOfALeasedValueIsAnsweredAfterTheReadersKnow) {
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following following(address(), kReader);
    ASSERT_TRUE(following.wait_complete());
    caller_.put(kNode, {"k"});
    caller_.get({"k"});
    caller_.put_start(kNode, {"k"}, /*replace=*/true);
    following.take();
    EXPECT_THAT(caller_.put_end(kNode, {"k"}, 2).codes, ElementsAre(StoreCode::kOk));
    const auto updates = following.take();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_EQ(updates[0].changed.at(0).key, "k");
    EXPECT_EQ(caller_.get({"k"}).items[0].checksum, 2u);
}

TEST_F(MasterEvents, AReaderThatNeverAcknowledgesOnlyDelaysForAMoment) {
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following sleeping(address(), kReader, /*acknowledges=*/false);
    ASSERT_TRUE(eventually([&] { return !sleeping.updates().empty(); }));
    const auto keys = names("k", 50);
    caller_.put(kNode, keys);
    caller_.get(keys);
    for (const auto& key : keys) EXPECT_THAT(caller_.remove({key}, true).codes, ElementsAre(StoreCode::kOk));
    EXPECT_EQ(server_->followers(), 1u);
}

/// A follower that reads its first update and then no more, until it is woken.
class Stuck {
public:
    Stuck(const std::string& address, const ClientId& client) {
        rpc_->call_stream(
            address, rpc::Method::kStoreFollow, encode_client_request(client),
            [woken = wake_.get_future().share()](std::span<const std::byte>) { woken.wait(); },
            [this](Result<rpc::Bytes> end) { end_.set_value(std::move(end)); });
    }
    ~Stuck() {
        if (!awake_) wake();
        rpc_->stop();
    }
    void wake() {
        awake_ = true;
        wake_.set_value();
    }
    Error end() { return end_.get_future().get().error(); }

private:
    bool awake_ = false;
    std::promise<void> wake_;
    std::promise<Result<rpc::Bytes>> end_;
    const std::unique_ptr<rpc::Client> rpc_ = rpc::Client::create({});
};

/// Long keys, read and removed by force: each is announced to everybody.
void announce_much(Caller& caller, int round) {
    const std::string filler(60'000, 'x');
    std::vector<std::string> keys;
    for (int i = 0; i < 16; ++i) keys.push_back(format_text("{} {} {}", round, i, filler));
    caller.put(kNode, keys);
    caller.get(keys);
    caller.remove(keys, true);
}

TEST_F(MasterEvents, AReaderThatStopsReadingDelaysNobodyAndHasLittleWaitingForIt) {
    auto small = MasterServer::create({.core = {.client_ttl = 1h}, .threads = 2, .stream_bytes_max = 8 << 20}).value();
    small->start();
    Caller caller(format_text("127.0.0.1:{}", small->port()));
    caller.join(kNode, 1);
    caller.join(kReader, 0);
    Stuck stuck(caller.address(), kReader);
    ASSERT_TRUE(eventually([&] { return small->followers() == 1; }));
    for (int round = 0; round < 20; ++round) announce_much(caller, round);
    EXPECT_EQ(small->followers(), 1u) << "with more than 8 MiB it would have been cut off";
}

TEST_F(MasterEvents, ANodeThatStopsReadingIsCutOff) {
    auto small = MasterServer::create({.core = {.client_ttl = 1h}, .threads = 2, .stream_bytes_max = 8 << 20}).value();
    small->start();
    Caller caller(format_text("127.0.0.1:{}", small->port()));
    caller.join(kNode, 1);
    caller.join(kReader, 2);
    Stuck stuck(caller.address(), kReader);
    ASSERT_TRUE(eventually([&] { return small->followers() == 1; }));
    Following node(caller.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    for (int round = 0; round < 200 && small->followers() == 2; ++round) announce_much(caller, round);
    EXPECT_EQ(small->followers(), 1u) << "what it must hear of its memory cannot be left out";
    node.take();
    int puts = 0;
    EXPECT_TRUE(eventually([&] {
        caller.put(kNode, {format_text("after {}", puts++)});
        return !values_of(node.updates()).empty();
    }));
    stuck.wake();
    const Error end = stuck.end();
    EXPECT_EQ(end.code(), Code::kUnavailable);
    EXPECT_FALSE(rpc::peer_closed(end)) << "it must not take what it has got for everything: " << end.to_string();
}

TEST_F(MasterEvents, AMoveGivesUpItsSourceOnlyWhenTheTargetHasHeardOfItsEnd) {
    auto server =
        MasterServer::create({.core = {.client_ttl = 1h, .silent_after = 1h}, .stream = {.unsent_timeout = 1h}, .threads = 1}).value();
    server->start();
    Caller caller(format_text("127.0.0.1:{}", server->port()));
    caller.join(kNode, 1);
    caller.put(kNode, {"k"});
    caller.join(kReader, 2);
    Following source(caller.address(), kNode);
    ASSERT_TRUE(source.wait_complete());
    Following target(caller.address(), kReader, /*acknowledges=*/false);
    ASSERT_TRUE(target.wait_complete());
    target.acknowledge(target.updates().back().sequence);
    const TaskRequest move{.type = TaskType::kMove, .key = "k", .source = "host:1", .targets = {"host:2"}};
    const TaskReply task = decode_task_reply(caller.call(rpc::Method::kStoreCreateTask, encode_task_request(move)).value()).value();
    ASSERT_TRUE(eventually([&] {
        const auto updates = source.updates();
        return std::any_of(updates.begin(), updates.end(), [](const EventUpdate& update) { return !update.orders.empty(); });
    }));
    const auto holders = [&] {
        return server->master().look([](const MasterState& state, Time) {
            const Object& object = state.objects()[state.objects().find(state.tenant({}), "k")];
            std::vector<std::string> names;
            for (size_t i = 0; i < object.replicas.size(); ++i) names.push_back(state.segments()[object.replicas[i].segment].spec.name);
            return names;
        });
    };
    const auto writer = rpc::Client::create({});
    writer->call_async(caller.address(), rpc::Method::kStoreEndTask, encode_task_end({.client = kNode, .task = task.task}), soon(),
                       [](auto) {});
    const auto told_end = [&] {
        const auto updates = target.updates();
        return !updates.back().filled.empty() && updates.back().acknowledge;
    };
    ASSERT_TRUE(eventually(told_end)) << "the target is asked whether it has heard";
    ASSERT_TRUE(writer->call(caller.address(), rpc::Method::kStorePing, encode_client_request(kNode), soon()));
    EXPECT_THAT(holders(), ElementsAre("host:1")) << "a connection that breaks now would take along all that is known of the value";
    target.acknowledge(target.updates().back().sequence);
    EXPECT_TRUE(eventually([&] { return holders() == std::vector<std::string>{"host:2"}; }));
    writer->stop();
}

TEST_F(MasterEvents, AnEventStreamThatIsCancelledIsForgotten) {
    caller_.join(kNode, 1);
    Following following(address(), kNode);
    ASSERT_TRUE(following.wait_complete());
    following.cancel();
    ASSERT_TRUE(following.wait_end());
    ASSERT_TRUE(eventually([&] {
        caller_.put(kNode, {"k"});
        caller_.remove({"k"}, true);
        return server_->followers() == 0;
    }));
    Following again(address(), kNode);
    EXPECT_TRUE(again.wait_complete());
}

/// Puts one value after another until the master is gone; counts those whose end was answered.
std::jthread start_writer(const std::string& address, const std::string& prefix, std::atomic<size_t>& ended) {
    return std::jthread([&ended, address, prefix](const std::stop_token& stop) {
        const auto client = rpc::Client::create({});
        for (int i = 0; !stop.stop_requested(); ++i) {
            const std::string key = format_text("{} {}", prefix, i);
            const PutItem item{.key = key, .length = 100, .group = {}};
            const PutEndItem end{.key = key, .generation = 0, .checksum = 1};
            const auto start = encode_put_start_request({.client = kNode, .tenant = {}, .config = {}, .items = {&item, 1}}, false);
            if (!client->call(address, rpc::Method::kStorePutStart, start, soon())) return;
            const auto finish = encode_put_end_request({.client = kNode, .tenant = {}, .items = {&end, 1}});
            if (!client->call(address, rpc::Method::kStorePutEnd, finish, soon())) return;
            ended.fetch_add(1);
        }
    });
}

TEST(MasterEventsEnd, ANodeOfAStoppedMasterKnowsAtLeastWhatWritersWereTold) {
    for (int round = 0; round < 10; ++round) {
        auto server = MasterServer::create({.core = {.client_ttl = 1h}, .threads = 4}).value();
        server->start();
        Caller caller(format_text("127.0.0.1:{}", server->port()));
        caller.join(kNode, 1);
        Following following(caller.address(), kNode);  // connections are dealt out to the threads in turn
        ASSERT_TRUE(following.wait_complete());
        std::atomic<size_t> ended{0};
        std::vector<std::jthread> writers;
        for (int i = 0; i < 4; ++i) writers.push_back(start_writer(caller.address(), format_text("writer {}", i), ended));
        ASSERT_TRUE(eventually([&] { return ended.load() > 50; }));
        server->stop();
        for (auto& writer : writers) writer.join();
        ASSERT_TRUE(following.wait_end());
        EXPECT_TRUE(rpc::peer_closed(*following.end())) << following.end()->to_string();
        EXPECT_GE(values_of(following.updates()).size(), ended.load());
    }
}

TEST(MasterEventsEnd, AMasterThatIsStoppedWaitsUntilANodeHasTakenWhatItAnswersFor) {
    auto server = MasterServer::create({.core = {.client_ttl = 1h}, .stream = {.unsent_timeout = 60s}, .threads = 4}).value();
    server->start();
    Caller caller(format_text("127.0.0.1:{}", server->port()));
    caller.join(kNode, 1);
    Stuck node(caller.address(), kNode);
    ASSERT_TRUE(eventually([&] { return server->followers() == 1; }));
    const std::string filler(60'000, 'x');
    std::atomic<size_t> ended{0};
    auto writer = start_writer(caller.address(), filler, ended);  // until an answer waits for the node
    ASSERT_TRUE(eventually([&, last = size_t{0}, still = 0]() mutable {
        const size_t now = ended.load();
        still = now == last ? still + 1 : 0;
        last = now;
        return now > 0 && still > 200;
    }));
    std::jthread stopping([&] { server->stop(); });
    node.wake();
    stopping.join();
    writer.join();
    const Error end = node.end();
    EXPECT_TRUE(rpc::peer_closed(end)) << "it has heard everything: " << end.to_string();
}

TEST(MasterEventsEnd, AMasterThatIsStoppedAnswersForNothingThatANodeHasNotTaken) {
    auto server = MasterServer::create({.core = {.client_ttl = 1h}, .stream = {.unsent_timeout = 60s}, .threads = 4}).value();
    server->start();
    Caller caller(format_text("127.0.0.1:{}", server->port()));
    caller.join(kNode, 1);
    Stuck node(caller.address(), kNode);
    ASSERT_TRUE(eventually([&] { return server->followers() == 1; }));
    // One value after another, until an answer waits for the node; then the master ends.
    const auto client = rpc::Client::create({});
    const std::string filler(60'000, 'x');
    std::atomic<bool> stopping{false}, answered_in_the_end{false};
    std::atomic<int> calls{0};
    std::jthread writer([&] {
        for (int i = 0;; ++i) {
            const std::string key = format_text("{} {}", filler, i);
            const PutItem item{.key = key, .length = 100, .group = {}};
            const auto start = encode_put_start_request({.client = kNode, .tenant = {}, .config = {}, .items = {&item, 1}}, false);
            ++calls;
            const bool answered = static_cast<bool>(client->call(caller.address(), rpc::Method::kStorePutStart, start, soon()));
            if (answered && stopping) answered_in_the_end = true;
            if (!answered) return;
        }
    });
    ASSERT_TRUE(eventually([&, last = 0, still = 0]() mutable {
        const int now = calls.load();
        still = now == last ? still + 1 : 0;
        last = now;
        return now > 1 && still > 100;
    }));
    stopping = true;
    server->stop();
    writer.join();
    EXPECT_FALSE(answered_in_the_end);
}

constexpr Duration kProcessTtl = 2s;
constexpr const char *kPatientMaster = "MasterEventsPeer.*WithoutPings", *kMaster = "MasterEventsPeer.*WithPings";

[[noreturn]] void serve_in_this_process(Duration client_ttl) {
    auto server = MasterServer::create({.core = {.client_ttl = client_ttl}, .threads = 2}).value();
    server->start();
    OtherProcess::tell_port(server->port());
    for (;;) ::pause();
}
/// Not tests: what kMaster and kPatientMaster run.
TEST(MasterEventsPeer, DISABLED_ServesClientsWithPings) { serve_in_this_process(kProcessTtl); }
TEST(MasterEventsPeer, DISABLED_ServesClientsWithoutPings) { serve_in_this_process(1h); }

TEST(MasterProcessEvents, ANodeOfAKilledMasterKnowsAtLeastWhatWritersWereTold) {
    OtherProcess master(kPatientMaster);
    Caller caller(master.address());
    caller.join(kNode, 1);
    Following following(master.address(), kNode);
    ASSERT_TRUE(following.wait_complete());
    std::atomic<size_t> ended{0};
    std::jthread writer = start_writer(master.address(), "k", ended);
    ASSERT_TRUE(eventually([&] { return ended.load() > 200; }));
    master.kill();
    writer.join();
    ASSERT_TRUE(following.wait_end());
    EXPECT_TRUE(rpc::peer_closed(*following.end())) << following.end()->to_string();
    EXPECT_GE(values_of(following.updates()).size(), ended.load());
}

TEST(MasterProcessEvents, AMasterThatWasStoppedDoesNotHoldItAgainstItsClients) {
    OtherProcess master(kMaster);
    Caller caller(master.address());
    caller.join(kNode, 1);
    ASSERT_EQ(caller.heartbeat(kNode).status, HeartbeatStatus::kOk);
    ASSERT_TRUE(master.stop());
    std::this_thread::sleep_for(2 * kProcessTtl);  // twice the time after which a silent client is given up
    ASSERT_TRUE(master.go_on());
    // Its jobs run before long; nothing but our heartbeats keeps us known.
    for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(caller.segments().segments.size(), 1u);
        std::this_thread::sleep_for(10ms);
    }
    EXPECT_EQ(caller.heartbeat(kNode).status, HeartbeatStatus::kOk);
    EXPECT_TRUE(eventually([&] { return caller.segments().segments.empty(); })) << "a client that is silent all the same is given up";
}

}  // namespace
}  // namespace mooncake::store
