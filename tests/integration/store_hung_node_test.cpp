// SPDX-License-Identifier: Apache-2.0
// Writers in a pool one of whose nodes hangs: it costs each of them two failures at most, and newcomers nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "metrics/metrics.h"
#include "tests/integration/failing_pool.h"

namespace mooncake::store {

namespace {

class HungNode : public FailingPool {
protected:
    static constexpr uint64_t kLength = 100'000;

    void SetUp() override {
        start_master();
        for (std::string& name : names_) nodes_.push_back(lender(name));
    }
    const std::string& hung() const { return names_[1]; }
    void hang() { nodes_[1]->stop(); }
    void go_on() { nodes_[1]->go_on(); }

    /// Whether a value that should rather go to the hung node went there. Tried until it does, such values fill the pool: those that are
    /// asked for afterwards must be `kept`.
    bool planned_there(StoreClient& client, const std::string& key, bool kept = false) {
        EXPECT_EQ(put(client, key, value_, {.hard_pin = kept, .preferred_segments = {hung()}}), StoreCode::kOk) << key;
        const std::string_view name = key;
        const ValueInfo info = client.find({&name, 1}).at(0);
        return std::any_of(info.replicas.begin(), info.replicas.end(), [&](const ReplicaInfo& one) { return one.segment_name == hung(); });
    }
    /// Puts of one kind until told to stop.
    struct Writer {
        uint32_t replicas = 1;
        int batch = 1;
        std::string prefix;
        std::unique_ptr<StoreClient> client{};
        int puts = 0;
        std::jthread thread{};
    };
    void write_on(Writer& writer, const std::atomic<bool>& done) {
        const Piece piece{value_.data(), value_.size()};
        while (!done) {
            std::vector<std::string> keys;
            std::vector<ValueToWrite> values;
            for (int i = 0; i < writer.batch; ++i) keys.push_back(format_text("{}.{}.{}", writer.prefix, writer.puts, i));
            for (const std::string& key : keys) values.push_back({.key = key, .pieces = {&piece, 1}, .group = {}});
            for (const StoreCode code : writer.client->write(values, {.replica_num = writer.replicas}, false))
                EXPECT_EQ(code, StoreCode::kOk) << writer.prefix << ' ' << writer.puts;
            ++writer.puts;
        }
    }

    std::array<std::string, 3> names_;
    std::vector<std::unique_ptr<RoleProcess>> nodes_;
    std::vector<std::byte> value_ = pattern(kLength, 1);
};
INSTANTIATE_TEST_SUITE_P(By, HungNode, ::testing::Values("shm", "tcp"), [](const auto& path) { return std::string(path.param); });

TEST_P(HungNode, CostsEachWriterTwoFailuresAtMostAndNoPut) {
    std::array<Writer, 4> writers{{{.replicas = 1, .batch = 1, .prefix = "one"},
                                   {.replicas = 2, .batch = 1, .prefix = "two"},
                                   {.replicas = 1, .batch = 16, .prefix = "many"},
                                   {.replicas = 2, .batch = 16, .prefix = "many twice"}}};
    std::atomic<bool> done{false};
    for (Writer& writer : writers) {
        writer.client = client();
        ASSERT_EQ(put(*writer.client, writer.prefix, value_, {.replica_num = 3}), StoreCode::kOk);  // from now on it is connected
    }
    for (Writer& writer : writers) writer.thread = std::jthread([this, &writer, &done] { write_on(writer, done); });
    hang();
    // The time in which they would be tempted again and again.
    const auto another = client();
    int puts = 0;
    for (const Deadline window = Deadline::after(6s); !window.passed(); ++puts)
        EXPECT_EQ(put(*another, format_text("another{}", puts), value_), StoreCode::kOk) << puts;
    done = true;
    for (Writer& writer : writers) {
        writer.thread.join();
        EXPECT_LE(failures(*writer.client), 2) << writer.prefix << ": of " << writer.puts << " puts";
    }
    go_on();
    EXPECT_TRUE(eventually([&, n = 0]() mutable { return planned_there(*writers[0].client, format_text("back{}", n++)); }));
    for (const Writer& writer : writers) {  // bytes are compared
        const std::string last = format_text("{}.{}.{}", writer.prefix, writer.puts - 1, writer.batch - 1);
        const int64_t got = get(*writers[0].client, last, value_);
        EXPECT_TRUE(got == static_cast<int64_t>(kLength) || got == kMiss) << last << ' ' << got;  // it may have been evicted
    }
}

TEST_P(HungNode, IsKeptFromNewcomersWithoutTheirFindingOut) {
    const auto before = client();
    ASSERT_TRUE(planned_there(*before, "before", true));
    hang();
    EXPECT_TRUE(eventually([&, n = 0]() mutable { return !planned_there(*before, format_text("during{}", n++)); }));
    const auto newcomer = client();
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(planned_there(*newcomer, format_text("new{}", i), true)) << i;
    go_on();
    EXPECT_TRUE(eventually([&, n = 0]() mutable { return planned_there(*newcomer, format_text("again{}", n++)); }));
    EXPECT_EQ(get(*newcomer, "before", value_), static_cast<int64_t>(kLength));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*before, format_text("new{}", i), value_), static_cast<int64_t>(kLength)) << i;
}

/// Over shared memory what lies there can be read all the same.
class UnreadableNode : public HungNode {};
INSTANTIATE_TEST_SUITE_P(By, UnreadableNode, ::testing::Values("tcp"), [](const auto& path) { return std::string(path.param); });

TEST_P(UnreadableNode, IsNotSaidToHaveTheValueThatSomebodyPuts) {
    const auto before = client();
    auto other = pattern(kLength, 2);
    for (const char* key : {"known", "new"}) ASSERT_TRUE(planned_there(*before, key, true));
    hang();
    ASSERT_LT(get(*before, "known", value_), 0) << "by now its master misses it, too";
    ASSERT_EQ(put(*before, "known", other), StoreCode::kOk);
    EXPECT_EQ(get(*before, "known", other), static_cast<int64_t>(kLength));
    const auto newcomer = client();
    ASSERT_EQ(put(*newcomer, "new", other), StoreCode::kOk);
    EXPECT_EQ(get(*newcomer, "new", other), static_cast<int64_t>(kLength));
    go_on();
    EXPECT_TRUE(eventually([&, n = 0]() mutable { return planned_there(*newcomer, format_text("again{}", n++)); }));
    for (const char* key : {"known", "new"}) EXPECT_EQ(get(*client(), key, other), static_cast<int64_t>(kLength)) << "not the old one";
}

/// How often this client asked the master where values lie.
uint64_t questions(StoreClient& client) {
    const std::string text = client.metrics().to_prometheus_text(), name = "rpc_count{rpc_name=\"get_replica_list\"}";
    const size_t line = text.find(name);
    EXPECT_NE(line, std::string::npos);
    return std::stoull(text.substr(text.find(' ', line)));
}

TEST_P(HungNode, AReadOfWhatLiesOnHungNodesComesToAnEndHoweverShortItsLeaseIs) {
    const auto reader = client(), other = client();
    auto value = pattern(kMiB, 2);
    ASSERT_EQ(put(*other, "k", value, {.replica_num = 2, .preferred_segments = {names_[1], names_[2]}}), StoreCode::kOk);
    ASSERT_EQ(get(*reader, "k", value), static_cast<int64_t>(value.size()));
    // More than a sixteenth of the pool is leased: further leases last for 50 ms, which is less than a replica that lags is waited for.
    for (int i = 0; i < 24; ++i) {
        const std::string key = format_text("leased{}", i);
        ASSERT_EQ(put(*other, key, value, {.hard_pin = true, .preferred_segments = {names_[0]}}), StoreCode::kOk);
        ASSERT_EQ(get(*other, key, value), static_cast<int64_t>(value.size()));
    }
    const uint64_t before = questions(*reader);
    nodes_[1]->stop();
    nodes_[2]->stop();
    const int64_t got = get(*reader, "k", value);
    const uint64_t asked = questions(*reader) - before;
    nodes_[1]->go_on();
    nodes_[2]->go_on();
    if (GetParam() == std::string("shm")) EXPECT_EQ(got, static_cast<int64_t>(value.size())) << "it needs nobody there";
    else EXPECT_TRUE(got == kFailed || got == kMiss) << got;
    EXPECT_LE(asked, 8u) << "each replica is tried once, and once more after the master was asked";
    EXPECT_TRUE(eventually([&] { return get(*reader, "k", value) == static_cast<int64_t>(value.size()); }));
}

}  // namespace

}  // namespace mooncake::store
