// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "store/master/ops/segment_ops.h"
#include "store/process/testing/pool.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store::testing {
namespace {

class Faults : public ClientTest {
protected:
    /// Over a network a node that ends is gone at once; memory that is mapped stays until somebody notices.
    static void far(StoreConfig& config) { config.options.engine.transports = {"tcp"}; }
    /// Ends silently: the master believes that it lives.
    void kill(std::unique_ptr<StoreClient>& client) {
        master().lose_calls("goodbye", 1);
        client.reset();
    }
    /// How many segments the master keeps new values away from.
    size_t suspects() {
        size_t count = 0;
        master().act([&](Transaction& transaction, Time now) {
            transaction.advance(now);
            for (const SegmentView& view : transaction.state().segments().view().segments) count += view.suspect;
        });
        return count;
    }
};

TEST_F(Faults, DamagedBytesAreNeverGivenOut) {
    const auto node = client(), other = requester();
    for (const size_t length : {size_t{10}, size_t{65'536}, size_t{200'000}}) {
        const std::string key = std::to_string(length);
        auto value = pattern(length, length);
        ASSERT_EQ(put(*node, key, value), StoreCode::kOk);
        damage(*other, key, length - 1);
        std::vector<std::byte> into(length);
        EXPECT_EQ(get(*other, key, into), static_cast<int64_t>(StoreCode::kChecksumMismatch));
        EXPECT_EQ(get(*node, key, into), static_cast<int64_t>(StoreCode::kChecksumMismatch));
    }
}

TEST_F(Faults, ADamagedReplicaIsReplacedByAnother) {
    const auto a = client(), b = client(), reader = requester();
    auto value = pattern(200'000, 1);
    ASSERT_EQ(put(*reader, "k", value, {.replica_num = 2}), StoreCode::kOk);
    for (const size_t replica : {0, 1}) {
        damage(*reader, "k", 1000, replica);
        for (StoreClient* const one : {a.get(), b.get(), reader.get()}) EXPECT_TRUE(holds(*one, "k", value));
        damage(*reader, "k", 1000, replica);  // back again
    }
}

TEST_F(Faults, AClosedNodesReplicasAreReadElsewhere) {
    auto a = client(far), b = client(far);
    const auto reader = requester(far);
    std::vector<std::vector<std::byte>> values;
    for (uint64_t i = 0; i < 20; ++i) {
        values.push_back(pattern(50'000 + i, i));
        ASSERT_EQ(put(*reader, "k" + std::to_string(i), values.back(), {.replica_num = 2}), StoreCode::kOk);
        EXPECT_TRUE(holds(*reader, "k" + std::to_string(i), values.back()));
    }
    kill(a);  // we hold leases on what it had
    for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(holds(*reader, "k" + std::to_string(i), values[i]));
}

TEST_F(Faults, ADeadNodesValuesAreAMissAndItsNeighboursAreNot) {
    auto dead = client(far);
    const auto reader = requester(far);
    auto value = pattern(50'000, 1), other = pattern(50'000, 2);
    ASSERT_EQ(put(*reader, "lost", value), StoreCode::kOk);
    const auto living = client(far);
    ASSERT_EQ(put(*reader, "kept", other, {.preferred_segments = {living->name()}}), StoreCode::kOk);
    EXPECT_TRUE(holds(*reader, "lost", value));
    EXPECT_TRUE(holds(*reader, "kept", other));
    kill(dead);
    std::vector<std::byte> a(50'000), b(50'000);
    const Piece pa{a.data(), a.size()}, pb{b.data(), b.size()};
    const std::vector<ValueToRead> both = {{.key = "lost", .pieces = {&pa, 1}}, {.key = "kept", .pieces = {&pb, 1}}};
    EXPECT_EQ(reader->read(both), (std::vector<int64_t>{static_cast<int64_t>(StoreCode::kObjectNotFound), 50'000}));
    EXPECT_EQ(b, other);
    // A miss it stays, whether it is tried again or not.
    for (const Deadline later = Deadline::after(500ms); !later.passed();)
        ASSERT_EQ(get(*reader, "lost", a), static_cast<int64_t>(StoreCode::kObjectNotFound));
    // While it is remembered as failing it is not even tried, and to us it does not exist.
    EXPECT_EQ(exists(*reader, "kept"), 1);
    EXPECT_TRUE(eventually([&] { return exists(*reader, "lost") == 0; }));
}

TEST_F(Faults, APutWhoseNodeFailsIsStoredElsewhere) {
    const auto a = client(far);
    auto b = client(far);
    const auto writer = requester(far);
    auto value = pattern(50'000, 1);
    ASSERT_EQ(put(*writer, "warm", value, {.replica_num = 2}), StoreCode::kOk);
    kill(b);
    EXPECT_EQ(put(*writer, "k", value, {.replica_num = 2}), StoreCode::kOk);
    EXPECT_EQ(master().calls("put_revoke"), 0) << "its stream is gone, so nothing is planned there";
    for (int i = 0; i < 40; ++i) {
        ASSERT_EQ(put(*writer, "one" + std::to_string(i), value), StoreCode::kOk) << i;
        ASSERT_EQ(put(*writer, "two" + std::to_string(i), value, {.replica_num = 2}), StoreCode::kOk) << i;
    }
    EXPECT_TRUE(eventually([&] { return suspects() == 1; })) << "the master keeps everybody else away, too";
    EXPECT_TRUE(holds(*a, "k", value));
    EXPECT_TRUE(holds(*a, "two39", value));
}

TEST_F(Faults, APutThatNoNodeTakesIsRefusedAndItsKeyIsFree) {
    auto only = client(far);
    const auto writer = requester(far);
    auto value = pattern(50'000, 1);
    ASSERT_EQ(put(*writer, "warm", value), StoreCode::kOk);
    kill(only);
    EXPECT_EQ(put(*writer, "k", value), StoreCode::kTransferFail);
    const auto other = client(far);
    EXPECT_TRUE(eventually([&] { return put(*writer, "k", value) == StoreCode::kOk; }));
    EXPECT_TRUE(holds(*other, "k", value));
}

TEST_F(Faults, APutOfAKeyBeingWrittenIsAnsweredWhenThatHasEnded) {
    const auto node = client(), a = requester(), b = requester();
    auto first = pattern(10'000, 1), second = pattern(12'000, 2);
    for (const bool revoked : {false, true}) {
        const std::string key = revoked ? "revoked" : "written";
        const StoreClient::Reservation reserved{.key = key, .length = first.size(), .group = {}};
        ASSERT_EQ(a->open_writes({&reserved, 1}, {}).at(0), StoreCode::kOk);
        EXPECT_EQ(b->open_writes({&reserved, 1}, {}).at(0), StoreCode::kObjectAlreadyExists);
        const int asked = master().calls("put_start");
        std::atomic<bool> answered{false};
        std::jthread other([&] {
            EXPECT_EQ(put(*b, key, second), StoreCode::kOk);
            answered = true;
        });
        EXPECT_TRUE(eventually([&] { return master().calls("put_start") >= asked + 2; }));
        EXPECT_FALSE(answered);
        const PartToWrite part{.key = key, .offset = 0, .from = {first.data(), first.size()}};
        ASSERT_EQ(a->write_open({&part, 1}).at(0), static_cast<int64_t>(first.size()));
        const std::string_view name = key;
        EXPECT_EQ(a->close_writes({&name, 1}, revoked).at(0), StoreCode::kOk);
        other.join();
        EXPECT_TRUE(holds(*node, key, revoked ? second : first));
    }
}

TEST_F(Faults, APutOfAKeyThatIsBeingWrittenForLongIsNotAnsweredAsStored) {
    const auto node = client(), a = requester();
    auto value = pattern(10'000, 1);
    const StoreClient::Reservation reserved{.key = "k", .length = value.size(), .group = {}};
    ASSERT_EQ(a->open_writes({&reserved, 1}, {}).at(0), StoreCode::kOk);
    EXPECT_EQ(put(*node, "k", value), StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(exists(*node, "k"), 0);
}

TEST_F(Faults, APutWhoseStartWasNotAnsweredKeepsNoKey) {
    const auto node = client([](StoreConfig& config) { config.options.rpc_timeout = 200ms; });
    const auto other = requester();
    auto value = pattern(500, 1);
    master().lose_answers("put_start", 2);
    EXPECT_EQ(put(*node, "k", value), StoreCode::kRpcFail);
    EXPECT_EQ(put(*other, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", value));
}

TEST_F(Faults, APutWaitsUntilItsClientKnowsTheReturnedMaster) {
    // A node that is late by three of them does not vouch for what is free; the end of its event stream wakes it.
    membership_.heartbeat_interval = 10s;
    const auto node = client(), writer = requester();
    auto value = pattern(20'000, 1);
    for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(put(*writer, "before" + std::to_string(i), value), StoreCode::kOk);
        master().restart();
        const StoreCode code = put(*writer, "after" + std::to_string(i), value);
        ASSERT_EQ(code, StoreCode::kOk) << i;
    }
    EXPECT_TRUE(holds(*node, "after19", value));
}

TEST_F(Faults, AWriteThatWaitsForAMasterEndsWithItsClient) {
    const auto node = client();
    auto writer = requester();
    auto value = pattern(10'000, 1);
    const StoreClient::Reservation reserved{.key = "k", .length = value.size(), .group = {}};
    ASSERT_EQ(node->open_writes({&reserved, 1}, {}).at(0), StoreCode::kOk);
    const int asked = master().calls("put_start");
    StoreCode code = StoreCode::kOk;
    std::jthread waiting([&] { code = put(*writer, "k", value); });
    EXPECT_TRUE(eventually([&] { return master().calls("put_start") >= asked + 2; }));
    writer->close();
    waiting.join();
    EXPECT_NE(code, StoreCode::kOk);
}

TEST_F(Faults, LostMessagesAreSentAgain) {
    const auto node = client();
    auto value = pattern(50'000, 1);
    for (const char* const call : {"put_start", "put_end"}) {
        master().lose_answers(call, 1);
        ASSERT_EQ(put(*node, call, value), StoreCode::kOk) << call;
        EXPECT_TRUE(holds(*node, call, value));
        master().lose_calls(call, 1);
        ASSERT_EQ(put(*node, std::string(call) + "2", value), StoreCode::kOk) << call;
    }
    const auto other = requester();
    master().lose_calls("get_replicas", 1);
    EXPECT_TRUE(holds(*other, "put_end", value));
    master().lose_answers("exist", 1);
    EXPECT_EQ(exists(*other, "put_start"), 1);
}

TEST_F(Faults, ALostMasterIsToldAsSuch) {
    const auto node = client();
    auto value = pattern(50'000, 1);
    master().lose_calls("put_start", 2);
    EXPECT_EQ(put(*node, "k", value), StoreCode::kRpcFail);
    master().lose_calls("get_replicas", 2);
    std::vector<std::byte> into(50'000);
    EXPECT_EQ(get(*node, "k", into), static_cast<int64_t>(StoreCode::kRpcFail));
    master().lose_calls("exist", 2);
    EXPECT_EQ(exists(*node, "k"), static_cast<int32_t>(StoreCode::kRpcFail));
    EXPECT_EQ(put(*node, "k", value), StoreCode::kOk);
}

TEST_F(Faults, ASilentMasterIsGivenUpInTime) {
    const auto node = client([](StoreConfig& config) { config.options.rpc_timeout = 50ms; });
    auto value = pattern(500, 1);
    master().set_silent(true);
    EXPECT_EQ(put(*node, "k", value), StoreCode::kRpcTimeout);
    master().set_silent(false);
    EXPECT_TRUE(eventually([&] { return put(*node, "k", value) == StoreCode::kOk; }));
    EXPECT_TRUE(holds(*node, "k", value));
}

TEST_F(Faults, ARestartedMasterLearnsWhatItsNodesHold) {
    const auto a = client(), b = client();
    const auto reader = requester();
    std::vector<std::vector<std::byte>> values;
    for (uint64_t i = 0; i < 50; ++i) {
        values.push_back(pattern(20'000 + i * 1000, i));
        ASSERT_EQ(put(*reader, "k" + std::to_string(i), values.back()), StoreCode::kOk);
        EXPECT_TRUE(holds(*reader, "k" + std::to_string(i), values.back()));
    }
    master().restart();
    for (size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(eventually([&] { return static_cast<bool>(holds(*reader, "k" + std::to_string(i), values[i])); })) << i;
    auto fresh = pattern(30'000, 99);
    EXPECT_TRUE(eventually([&] { return put(*reader, "fresh", fresh) == StoreCode::kOk; }));
    EXPECT_TRUE(holds(*a, "fresh", fresh));
    for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(holds(*b, "k" + std::to_string(i), values[i])) << i;
}

TEST_F(Faults, AWriteWhoseNodeIsGivenUpBeforeItsEndIsStoredElsewhere) {
    const auto node = client(), other = client(), writer = requester();
    auto value = pattern(20'000, 1);
    std::atomic<bool> once{true};
    master().before("put_end", [&] {
        if (!once.exchange(false)) return;
        master().act([&](Transaction& transaction, Time now) {
            end_client(transaction, transaction.state().clients().find(node->id()), ClientEnd::kSilent, now);
        });
    });
    EXPECT_EQ(put(*writer, "k", value, {.preferred_segments = {node->name()}}), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", value));
}

TEST_F(Faults, AWriteThatItsMasterDidNotSurviveIsWrittenAgain) {
    const auto node = client(), writer = requester();
    auto value = pattern(20'000, 1);
    std::atomic<bool> once{true};
    master().before("put_end", [&] {
        if (!once.exchange(false)) return;
        master().restart();
        const uint64_t epoch = master().epoch();
        // Until everybody follows the new one.
        eventually([&] { return node->master_reachable() && master().calls("remount") >= 4 && master().epoch() == epoch; });
    });
    EXPECT_EQ(put(*writer, "k", value), StoreCode::kOk);
    EXPECT_EQ(master().calls("put_end"), 2);
    EXPECT_TRUE(holds(*node, "k", value));
}

TEST_F(Faults, TwoWritersOfOneKeyLeaveOneWholeValue) {
    const auto node = client(), a = requester(), b = requester();
    auto first = pattern(150'000, 1), second = pattern(140'000, 2);
    for (int round = 0; round < 20; ++round) {
        const std::string key = "k" + std::to_string(round);
        const bool replace = round % 2 == 0;
        StoreCode from_b = StoreCode::kOk;
        std::jthread other([&] { from_b = put(*b, key, second, {}, replace); });
        const StoreCode from_a = put(*a, key, first, {}, replace);
        other.join();
        EXPECT_TRUE(from_a == StoreCode::kOk || from_b == StoreCode::kOk);
        if (exists(*node, key) != 1) continue;  // each may have pre-empted the other
        std::vector<std::byte> into(150'000);
        const int64_t got = get(*node, key, into);
        ASSERT_TRUE(got == 150'000 || got == 140'000) << got;
        EXPECT_EQ(0, std::memcmp(into.data(), got == 150'000 ? first.data() : second.data(), static_cast<size_t>(got)));
    }
}

TEST_F(Faults, ThreadsOfOneClientReplaceAValueOneAfterTheOther) {
    const auto node = client(), writer = requester();
    constexpr int kThreads = 16, kRounds = 10;
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < kThreads; ++t)
            threads.emplace_back([&, t] {
                auto value = pattern(1000 + static_cast<size_t>(t), static_cast<uint64_t>(t));
                for (int round = 0; round < kRounds; ++round) EXPECT_EQ(put(*writer, "k", value, {}, true), StoreCode::kOk);
            });
    }
    EXPECT_EQ(exists(*node, "k"), 1);
}

TEST_F(Faults, APutThatIsReplacedBeforeItWasThereHasSucceeded) {
    const auto node = client(), a = requester(), b = requester();
    auto first = pattern(5000, 1), second = pattern(6000, 2);
    std::atomic<bool> once{true};
    master().before("put_end", [&] {
        if (!once.exchange(false)) return;
        EXPECT_EQ(put(*b, "k", second, {}, true), StoreCode::kOk);
    });
    EXPECT_EQ(put(*a, "k", first), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", second));
}

TEST_F(Faults, ManyThreadsOfBatchesGetTheirOwnValues) {
    const auto a = client([](StoreConfig& config) { config.segment_bytes = 64 * kMiB; });
    const auto b = client([](StoreConfig& config) { config.segment_bytes = 64 * kMiB; });
    const auto c = requester();
    StoreClient* const clients[] = {a.get(), b.get(), c.get()};
    constexpr int kThreads = 64, kRounds = 5, kBatch = 8;
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            StoreClient& mine = *clients[t % 3];
            StoreClient& another = *clients[(t + 1) % 3];
            for (int round = 0; round < kRounds; ++round) {
                std::vector<std::vector<std::byte>> values, into;
                std::vector<std::string> keys;
                for (int i = 0; i < kBatch; ++i) {
                    values.push_back(
                        pattern(1 + static_cast<size_t>(i) * 3000,
                                static_cast<uint64_t>(t) * 1000 + static_cast<uint64_t>(round) * 10 + static_cast<uint64_t>(i)));
                    into.emplace_back(values.back().size());
                    keys.push_back(format_text("{}.{}.{}", t, round, i));
                }
                std::vector<Piece> from, to;
                std::vector<ValueToWrite> writes;
                std::vector<ValueToRead> reads;
                std::vector<std::string_view> names(keys.begin(), keys.end());
                for (int i = 0; i < kBatch; ++i) {
                    from.push_back({values[i].data(), values[i].size()});
                    to.push_back({into[i].data(), into[i].size()});
                }
                for (int i = 0; i < kBatch; ++i) {
                    writes.push_back({.key = keys[i], .pieces = {&from[i], 1}});
                    reads.push_back({.key = keys[i], .pieces = {&to[i], 1}});
                }
                for (const StoreCode code : mine.write(writes, {.replica_num = 1 + static_cast<uint32_t>(t % 2)}, false))
                    EXPECT_EQ(code, StoreCode::kOk);
                for (const int32_t there : another.exist(names)) EXPECT_EQ(there, 1);
                const auto got = another.read(reads);
                for (int i = 0; i < kBatch; ++i) {
                    EXPECT_EQ(got[i], static_cast<int64_t>(values[i].size()));
                    EXPECT_EQ(into[i], values[i]);
                }
                for (const StoreCode code : another.remove(names, true)) EXPECT_EQ(code, StoreCode::kOk);
                for (const int32_t there : mine.exist(names)) EXPECT_EQ(there, 0);
            }
        });
}

}  // namespace
}  // namespace mooncake::store::testing
