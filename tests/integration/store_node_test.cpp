// SPDX-License-Identifier: Apache-2.0
// Masters and nodes that are killed, stopped and come back, as processes. No data moves here: what counts is what the master knows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>

#include "base/thread_annotations.h"
#include "store/member/membership.h"
#include "store/member/segment_directory.h"
#include "store/node/catalogue.h"
#include "tests/integration/store_role.h"

namespace mooncake::store {

namespace {

using ::testing::ElementsAre;

constexpr uint64_t kLength = 1000, kBatch = 1000;
Deadline soon() { return Deadline::after(60s); }

class Listener final : public MembershipListener {
public:
    void keys_changed(const std::vector<KeyChanged>&) override {}
    void all_keys_changed() override {}
    void master_lost() override { note("lost"); }
    void master_found(uint64_t) override { note("found"); }
    void copy_ordered(const CopyOrder&) override {}

    /// Whether so many things have been told, within the patience of a test.
    bool wait_for(size_t count) MC_NO_THREAD_ANALYSIS {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, 60s, [&]() MC_NO_THREAD_ANALYSIS { return heard_.size() >= count; });
    }
    /// Until something is told, but not for long.
    void wait_a_little() MC_NO_THREAD_ANALYSIS {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, 5ms);
    }
    std::vector<std::string> heard() {
        Lock lock(mutex_);
        return heard_;
    }

private:
    void note(std::string what) {
        Lock lock(mutex_);
        heard_.push_back(std::move(what));
        changed_.notify_all();
    }
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::vector<std::string> heard_ MC_GUARDED_BY(mutex_);
};

/// A member of the pool in this process; its memory is only a number.
struct Node {
    Node(const std::string& address, uint64_t number, uint64_t bytes)
        : id{random_u64(), random_u64()}, master(connect_master({.address = address, .incarnation = Incarnation::random()})),
          membership(Membership::create(*master, id, listener, catalogue, {})), directory(*master, id) {
        const auto started = membership->start(soon());
        EXPECT_TRUE(started) << started.error().to_string();
        if (bytes == 0) return;
        const SegmentSpec segment{.id = {number, number},
                                  .name = format_text("node-{}:1", number),
                                  .base = 0x10000,
                                  .size = bytes,
                                  .endpoint = "none",
                                  .protocol = "tcp"};
        EXPECT_EQ(membership->mount(segment, soon()).value_or(StoreCode::kInternalError), StoreCode::kOk);
    }

    const ClientId id;
    Listener listener;
    Catalogue catalogue;
    std::unique_ptr<MasterApi> master;
    std::unique_ptr<Membership> membership;
    SegmentDirectory directory;
};

/// Where a value is: a segment's id, whatever its number, and an offset.
struct Place {
    SegmentId segment;
    uint64_t offset = 0, generation = 0, checksum = 0;
    auto operator<=>(const Place&) const = default;
};
using Places = std::map<std::string, Place>;

/// Writes (in name only) and looks for values through one node.
class Ledger {
public:
    explicit Ledger(Node& node) : node_(node) {}

    /// How many got a place.
    size_t put(const std::string& prefix, size_t count) {
        size_t stored = 0;
        for (size_t first = 0; first < count; first += kBatch) stored += put_batch(prefix, first, std::min(count, first + kBatch));
        return stored;
    }
    /// Of the keys asked for, those that are there.
    Places find(const std::string& prefix, size_t count) {
        Places found;
        for (size_t first = 0; first < count; first += kBatch) find_batch(prefix, first, std::min(count, first + kBatch), found);
        return found;
    }
    bool remove(const std::string& key) {
        const std::string_view name = key;
        const auto reply = node_.master->remove({.tenant = "default", .keys = {&name, 1}, .force = true}, soon());
        return reply && reply->codes[0] == StoreCode::kOk;
    }
    void start_write(const std::string& key) {
        const PutItem item{.key = key, .length = kLength};
        const auto begun = node_.master->put_start({.client = node_.id, .request_id = ++request_, .tenant = "default", .items = {&item, 1}},
                                                   false, soon());
        EXPECT_TRUE(begun && begun->items[0].code == StoreCode::kOk);
    }

private:
    static std::vector<std::string> names(const std::string& prefix, size_t first, size_t last) {
        std::vector<std::string> keys;
        for (size_t i = first; i < last; ++i) keys.push_back(format_text("{}/{}", prefix, i));
        return keys;
    }
    size_t put_batch(const std::string& prefix, size_t first, size_t last) {
        const std::vector<std::string> keys = names(prefix, first, last);
        std::vector<PutItem> items;
        for (const std::string& key : keys) items.push_back({.key = key, .length = kLength});
        const auto begun = node_.master->put_start({.client = node_.id, .request_id = ++request_, .tenant = "default", .items = items},
                                                   false, soon());
        if (!begun) return 0;
        std::vector<PutEndItem> ends;
        for (size_t i = 0; i < keys.size(); ++i)
            if (begun->items[i].code == StoreCode::kOk)
                ends.push_back({.key = keys[i], .generation = begun->items[i].generation, .checksum = first + i + 1});
        const auto ended = node_.master->put_end({.client = node_.id, .tenant = "default", .items = ends}, soon());
        return ended ? static_cast<size_t>(std::count(ended->codes.begin(), ended->codes.end(), StoreCode::kOk)) : 0;
    }
    void find_batch(const std::string& prefix, size_t first, size_t last, Places& found) {
        const std::vector<std::string> keys = names(prefix, first, last);
        const std::vector<std::string_view> views(keys.begin(), keys.end());
        const auto reply = node_.master->get_replicas({.tenant = "default", .keys = views}, soon());
        if (!reply) return;
        for (size_t i = 0; i < keys.size(); ++i) {
            const GetItem& item = reply->items[i];
            if (item.code != StoreCode::kOk) continue;
            const ReplicaLocation& replica = reply->replicas[item.first_replica];
            const auto segment = node_.directory.find(reply->epoch, replica.segment, soon());
            if (segment) found[keys[i]] = {(*segment)->spec.id, replica.offset, item.generation, item.checksum};
        }
    }
    Node& node_;
    uint64_t request_ = 0;
};

/// Whether no two values lie on the same bytes.
bool disjoint(const Places& a, const Places& b) {
    std::vector<std::pair<SegmentId, uint64_t>> places;
    for (const Places* all : {&a, &b})
        for (const auto& [key, place] : *all) places.emplace_back(place.segment, place.offset);
    std::sort(places.begin(), places.end());
    for (size_t i = 1; i < places.size(); ++i)
        if (places[i].first == places[i - 1].first && places[i].second < places[i - 1].second + kLength) return false;
    return true;
}

double seconds_since(Time began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

}  // namespace

TEST(StoreNode, AMasterThatWasKilledIsTheSameAgainByItsNodes) {
    constexpr size_t kKeys = 100'000;
    MasterProcess master;
    Node one(master.address(), 1, 128 << 20), two(master.address(), 2, 128 << 20), reader(master.address(), 3, 0);
    Ledger ledger(reader);
    const Time began = Clock::now();
    ASSERT_EQ(ledger.put("k", kKeys), kKeys);
    const Places before = ledger.find("k", kKeys);
    const double before_s = seconds_since(began);
    ASSERT_EQ(before.size(), kKeys);
    ASSERT_TRUE(ledger.remove("k/17"));
    ledger.start_write("unfinished");
    // What the writer was told is with the kernel, and soon with the nodes.
    for (const Deadline patience = Deadline::after(20s); one.catalogue.objects() + two.catalogue.objects() != kKeys - 1;) {
        ASSERT_FALSE(patience.passed());
        std::this_thread::yield();
    }

    master.kill();
    master.start();
    const Time back = Clock::now();
    for (Node* node : {&one, &two, &reader}) ASSERT_TRUE(node->listener.wait_for(3));
    const double rejoined_s = seconds_since(back);
    Places after = ledger.find("k", kKeys);
    const double readable_s = seconds_since(back);
    GTEST_LOG_(INFO) << "members again after " << rejoined_s << " s, " << after.size() << " keys found after " << readable_s << " s";
    EXPECT_LT(readable_s, std::max(3.0, 3 * before_s));  // a third of a second on a machine with nothing else to do
    Places expected = before;
    expected.erase("k/17");
    EXPECT_EQ(after.size(), expected.size());
    EXPECT_TRUE(after == expected) << "places, generations and checksums are what they were";
    EXPECT_EQ(one.membership->epoch(), master.epoch());

    // The reports were exact: there is room at once, and it is not where something lies.
    EXPECT_EQ(ledger.put("new", 20'000), 20'000U);
    const Places added = ledger.find("new", 20'000);
    EXPECT_EQ(added.size(), 20'000U);
    EXPECT_TRUE(disjoint(after, added));
    EXPECT_EQ(one.catalogue.objects() + two.catalogue.objects(), kKeys - 1 + 20'000);
}

TEST(StoreNode, AMasterThatIsKilledAgainAndAgainLosesNothing) {
    constexpr size_t kKeys = 5'000;
    MasterProcess master;
    Node one(master.address(), 1, 64 << 20), two(master.address(), 2, 64 << 20);
    Ledger ledger(one);
    size_t stored = ledger.put("k0", kKeys);
    ASSERT_EQ(stored, kKeys);
    for (int life = 1; life <= 4; ++life) {
        master.kill();
        master.start();
        for (Node* node : {&one, &two}) ASSERT_TRUE(node->listener.wait_for(static_cast<size_t>(1 + 2 * life)));
        for (int i = 0; i < life; ++i) EXPECT_EQ(ledger.find(format_text("k{}", i), kKeys).size(), kKeys) << "life " << life;
        EXPECT_EQ(ledger.put(format_text("k{}", life), kKeys), kKeys) << "life " << life;
    }
}

TEST(StoreNode, EveryValueThatWasAcknowledgedSurvivesAMasterKilledUnderLoad) {
    constexpr int kLives = 6, kWriters = 2;
    constexpr size_t kEach = 100, kPerLife = 5'000, kMost = 350'000;  // then the pool is nearly full
    MasterProcess master(10s, 60s);  // space that had to be in quarantine would not come back within the test
    Node one(master.address(), 1, 256 << 20), two(master.address(), 2, 256 << 20);
    std::atomic<bool> done{false};
    std::atomic<size_t> acknowledged{0};
    std::vector<std::vector<std::string>> stored(kWriters);
    std::vector<std::jthread> writers;
    for (size_t w = 0; w < kWriters; ++w)
        writers.emplace_back([&, w] {
            Node& node = w % 2 == 0 ? one : two;
            Ledger ledger(node);
            for (int i = 0; !done; ++i) {
                const std::string prefix = format_text("w{}/{}", w, i);
                if (acknowledged < kMost && ledger.put(prefix, kEach) == kEach) {
                    stored[w].push_back(prefix);
                    acknowledged += kEach;
                } else {
                    node.listener.wait_a_little();
                }
            }
        });
    for (int life = 1; life <= kLives; ++life) {
        // The next one dies somewhere in the middle of it.
        const size_t enough = acknowledged + kPerLife + static_cast<size_t>(life) * 317;
        for (const Deadline patience = soon(); acknowledged < std::min(enough, kMost);) {
            ASSERT_FALSE(patience.passed()) << "life " << life << ": no puts any more";
            one.listener.wait_a_little();
        }
        master.kill();
        master.start();
        for (Node* node : {&one, &two}) ASSERT_TRUE(node->listener.wait_for(static_cast<size_t>(1 + 2 * life)));
    }
    done = true;
    writers.clear();
    Ledger ledger(one);
    Places all;
    for (const auto& prefixes : stored)
        for (const std::string& prefix : prefixes) {
            const Places found = ledger.find(prefix, kEach);
            EXPECT_EQ(found.size(), kEach) << prefix;
            all.insert(found.begin(), found.end());
        }
    GTEST_LOG_(INFO) << all.size() << " values written during " << kLives << " deaths";
    EXPECT_EQ(all.size(), acknowledged);
    EXPECT_TRUE(disjoint(all, {}));
}

TEST(StoreNode, AMasterThatWasStoppedHasGivenUpNobody) {
    MasterProcess master(2s);
    Node node(master.address(), 1, 16 << 20);
    Ledger ledger(node);
    ASSERT_EQ(ledger.put("k", 1000), 1000U);
    const Places before = ledger.find("k", 1000);
    master.process().stop();
    ASSERT_TRUE(node.listener.wait_for(2));  // "lost": it must assume that it was given up
    // Longer than a client lives without heartbeats, as the wall clock has it.
    EXPECT_EQ(master.process().line(3s), "");
    EXPECT_EQ(node.membership->epoch(), 0U);
    const auto refused = node.membership->mount({.id = {9, 9}, .name = "n", .size = 1 << 20}, soon());
    EXPECT_FALSE(refused) << "nobody would answer";
    master.process().go_on();
    const Time back = Clock::now();
    ASSERT_TRUE(node.listener.wait_for(3));
    EXPECT_LT(seconds_since(back), 15 * kSlowness);
    EXPECT_THAT(node.listener.heard(), ElementsAre("found", "lost", "found"));
    EXPECT_EQ(node.membership->epoch(), master.epoch());
    EXPECT_TRUE(ledger.find("k", 1000) == before);
    EXPECT_EQ(ledger.put("more", 1000), 1000U);
    // The last events are with the kernel when the writer is answered; our thread may not have read them yet.
    for (const Deadline patience = soon(); node.catalogue.objects() < 2000 && !patience.passed();) node.listener.wait_a_little();
    EXPECT_EQ(node.catalogue.objects(), 2000U) << "the same stream goes on";
}

TEST(StoreNode, AMasterThatHungAndWasReplacedIsFoundByItsNodes) {
    MasterProcess master(2s);
    Node node(master.address(), 1, 16 << 20);
    Ledger ledger(node);
    ASSERT_EQ(ledger.put("k", 1000), 1000U);
    const Places before = ledger.find("k", 1000);
    master.process().stop();
    ASSERT_TRUE(node.listener.wait_for(2));  // "lost", with a connection that is still open
    master.kill();
    master.start();
    ASSERT_TRUE(node.listener.wait_for(3));
    EXPECT_EQ(node.membership->epoch(), master.epoch());
    EXPECT_TRUE(ledger.find("k", 1000) == before);
}

TEST(StoreNode, FiftyMembersFindBackAtOnce) {
    constexpr size_t kMembers = 50, kKeys = 10'000;
    MasterProcess master(30s);
    std::vector<std::unique_ptr<Node>> nodes;
    for (size_t i = 0; i < kMembers; ++i) nodes.push_back(std::make_unique<Node>(master.address(), i + 1, 1 << 20));
    Ledger ledger(*nodes[0]);
    ASSERT_EQ(ledger.put("k", kKeys), kKeys);
    const Places before = ledger.find("k", kKeys);
    master.kill();
    master.start();
    const Time back = Clock::now();
    for (const auto& node : nodes) ASSERT_TRUE(node->listener.wait_for(3));
    GTEST_LOG_(INFO) << kMembers << " members again after " << seconds_since(back) << " s";
    EXPECT_TRUE(ledger.find("k", kKeys) == before);
}

TEST(StoreNode, ANodeThatWasStoppedBringsItsValuesBack) {
    MasterProcess master(1s);
    RoleProcess node({"node", master.address(), "7", std::to_string(16 << 20)});
    ASSERT_EQ(node.line(), format_text("found {}", master.epoch()));
    ASSERT_EQ(node.line(), "ready");
    Node reader(master.address(), 3, 0);
    Ledger ledger(reader);
    ASSERT_EQ(ledger.put("k", 1000), 1000U);
    const Places before = ledger.find("k", 1000);
    node.stop();
    for (const Deadline patience = soon(); !ledger.find("k", 1).empty() && !patience.passed();) reader.directory.forget_all();
    EXPECT_TRUE(ledger.find("k", 1000).empty()) << "the master gives up who does not ping";
    node.go_on();
    ASSERT_EQ(node.line(), "lost");
    ASSERT_EQ(node.line(), format_text("found {}", master.epoch()));
    EXPECT_TRUE(ledger.find("k", 1000) == before);
}

TEST(StoreNode, ANodeThatWasKilledIsAMissAndItsSuccessorStartsEmpty) {
    MasterProcess master(1s);
    Node reader(master.address(), 3, 0);
    Ledger ledger(reader);
    {
        RoleProcess node({"node", master.address(), "7", std::to_string(16 << 20)});
        ASSERT_EQ(node.line(), format_text("found {}", master.epoch()));
        ASSERT_EQ(node.line(), "ready");
        ASSERT_EQ(ledger.put("k", 100), 100U);
    }
    for (const Deadline patience = soon(); !ledger.find("k", 100).empty();) ASSERT_FALSE(patience.passed());
    RoleProcess again({"node", master.address(), "7", std::to_string(16 << 20)});
    ASSERT_EQ(again.line(), format_text("found {}", master.epoch()));
    ASSERT_EQ(again.line(), "ready");
    EXPECT_TRUE(ledger.find("k", 100).empty());
    EXPECT_EQ(ledger.put("k", 100), 100U);
}

TEST(StoreNode, LeavingTakesNoLongerThanASecondThoughTheMasterHangs) {
    MasterProcess master;
    Node node(master.address(), 1, 16 << 20);
    master.process().stop();
    const Time began = Clock::now();
    node.membership->stop();
    const double took_s = seconds_since(began);
    GTEST_LOG_(INFO) << "left after " << took_s << " s";
    EXPECT_LT(took_s, 10 * kSlowness);  // one second, and what a busy machine adds
    master.process().go_on();
}

TEST(StoreNode, WhoLeavesTakesItsMemoryAlongAtOnce) {
    MasterProcess master;
    Node node(master.address(), 1, 16 << 20), reader(master.address(), 3, 0);
    Ledger ledger(reader);
    ASSERT_EQ(ledger.put("k", 100), 100U);
    node.membership->stop();
    EXPECT_TRUE(ledger.find("k", 100).empty());
    EXPECT_EQ(reader.master->segments(soon())->segments.size(), 0U);
}

}  // namespace mooncake::store
