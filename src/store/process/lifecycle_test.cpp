// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <thread>

#include "metrics/metrics.h"
#include "store/process/testing/pool.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store::testing {
namespace {

class Lifecycle : public ClientTest {};

TEST_F(Lifecycle, FindsAPortByItselfAndBindsIt) {
    const auto a = client(), b = client();
    EXPECT_NE(a->name(), b->name());
    EXPECT_EQ(a->name().rfind("127.0.0.1:", 0), 0u);
    const int port = std::stoi(a->name().substr(10));
    EXPECT_GE(port, 12300);
    EXPECT_LE(port, 14300);
    EXPECT_EQ(a->engine()->segment_name(), a->name());
    EXPECT_NE(a->id(), b->id());
    EXPECT_TRUE(a->master_reachable());
}

TEST_F(Lifecycle, TakesTheGivenPortOrFails) {
    auto first = client();
    const std::string name = first->name();
    const Change same = [&](StoreConfig& config) { config.local_hostname = name; };
    EXPECT_EQ(try_client(same).error(), StoreCode::kInvalidParams);
    first->close();
    first.reset();
    const auto again = try_client(same);
    ASSERT_TRUE(again);
    EXPECT_EQ((*again)->name(), name);
}

TEST_F(Lifecycle, GivesUpWhenNoPortIsFree) {
    const auto first = client();
    const auto port = static_cast<uint16_t>(std::stoi(first->name().substr(10)));
    const auto none = try_client([&](StoreConfig& config) {
        config.options.port_min = config.options.port_max = port;
        config.options.setup_tries = 3;
    });
    EXPECT_EQ(none.error(), StoreCode::kInternalError);
}

TEST_F(Lifecycle, UsesAGivenEngineAndLeavesItOpen) {
    auto engine = Engine::create({.local_name = "127.0.0.1"});
    ASSERT_TRUE(engine);
    const std::shared_ptr<Engine> shared = std::move(*engine);
    const auto other = requester();
    auto value = pattern(100'000, 1);
    {
        const auto node = client([&](StoreConfig& config) { config.engine = shared; });
        EXPECT_EQ(node->name(), shared->segment_name());
        ASSERT_EQ(put(*other, "k", value), StoreCode::kOk);
        EXPECT_TRUE(holds(*node, "k", value));
        node->close();
    }
    EXPECT_TRUE(shared->probe(shared->segment_name(), Deadline::after(5s)));
    const auto named = client([&](StoreConfig& config) {
        config.engine = shared;
        config.local_hostname = "127.0.0.1:1";
    });
    EXPECT_EQ(named->name(), "127.0.0.1:1");
    ASSERT_EQ(put(*other, "l", value), StoreCode::kOk);
    const std::string_view key = "l";
    const ReplicaInfo replica = other->find({&key, 1}).at(0).replicas.at(0);
    EXPECT_EQ(replica.segment_name, "127.0.0.1:1");
    EXPECT_EQ(replica.endpoint, shared->segment_name());
    EXPECT_TRUE(holds(*other, "l", value));
}

TEST_F(Lifecycle, RefusesArgumentsThatMakeNoSense) {
    const std::vector<Change> bad = {
        [](StoreConfig& config) { config.local_hostname.clear(); },
        [](StoreConfig& config) { config.local_hostname = "127.0.0.1:99999"; },
        [](StoreConfig& config) { config.segment_bytes = 1023; },
        [](StoreConfig& config) { config.buffer_bytes = 5; },
        [](StoreConfig& config) { config.buffer_bytes = uint64_t{2} << 40; },
        [](StoreConfig& config) { config.master = "nowhere"; },
        [](StoreConfig& config) { config.tenant = std::string(1025, 't'); },
        [](StoreConfig& config) { config.http_server = true, config.http_port = 0; },
    };
    for (size_t i = 0; i < bad.size(); ++i) EXPECT_EQ(try_client(bad[i]).error(), StoreCode::kInvalidParams) << i;
}

TEST_F(Lifecycle, NeedsAMaster) {
    master().lose_calls("ping", 1'000'000);
    EXPECT_EQ(try_client().error(), StoreCode::kRpcFail);
}

TEST_F(Lifecycle, AnswersNothingAfterItsEnd) {
    const auto node = client();
    auto value = pattern(100, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    node->close();
    node->close();
    constexpr auto kClosed = StoreCode::kUnavailableInCurrentStatus;
    EXPECT_EQ(put(*node, "l", value), kClosed);
    EXPECT_EQ(get(*node, "k", value), static_cast<int64_t>(kClosed));
    EXPECT_EQ(part(*node, "k", 0, value), static_cast<int64_t>(kClosed));
    EXPECT_EQ(exists(*node, "k"), static_cast<int32_t>(kClosed));
    EXPECT_EQ(remove(*node, "k"), kClosed);
    const std::string_view key = "k";
    EXPECT_EQ(node->find({&key, 1}).at(0).code, kClosed);
    EXPECT_EQ(node->remove_all(false), static_cast<int64_t>(kClosed));
    EXPECT_EQ(node->remove_by_regex("x", false), static_cast<int64_t>(kClosed));
    EXPECT_EQ(node->replica_clear({&key, 1}, "").at(0), kClosed);
    EXPECT_EQ(node->open_reads({&key, 1}).at(0), kClosed);
    EXPECT_FALSE(node->close_reads({&key, 1}));
    EXPECT_EQ(node->close_writes({&key, 1}, false).at(0), kClosed);
    EXPECT_EQ(node->register_buffer(value.data(), value.size()), kClosed);
    EXPECT_FALSE(node->stage(10));
    EXPECT_EQ(node->mount_memory(kMiB, "tcp", "").code, kClosed);
    EXPECT_EQ(node->create_task({}).code, kClosed);
    EXPECT_FALSE(node->master_reachable());
}

TEST_F(Lifecycle, TakesItsSegmentsOutOfThePool) {
    const auto other = requester();
    auto value = pattern(5000, 1);
    {
        const auto node = client();
        ASSERT_EQ(put(*other, "k", value), StoreCode::kOk);
    }
    EXPECT_EQ(put(*other, "l", value), StoreCode::kNoAvailableHandle);
    std::vector<std::byte> into(5000);
    const int64_t got = get(*other, "k", into);
    EXPECT_TRUE(got == static_cast<int64_t>(StoreCode::kObjectNotFound)) << got;
    const auto back = client();
    EXPECT_EQ(get(*other, "k", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_EQ(put(*other, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", value));
}

TEST_F(Lifecycle, ClosesWithCallsInFlight) {
    const auto node = client();
    for (int round = 0; round < 5; ++round) {
        auto other = requester();
        std::atomic<bool> closed{false};
        std::vector<std::jthread> threads;
        std::atomic<int> running{0};
        for (int t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                auto value = pattern(200'000, static_cast<uint64_t>(t));
                ++running;
                for (int i = 0;; ++i) {
                    const std::string key = std::to_string(t) + "." + std::to_string(i % 10);
                    const bool late = closed;
                    const StoreCode code = upsert(*other, key, value);
                    if (code == StoreCode::kUnavailableInCurrentStatus) break;
                    std::vector<std::byte> into(200'000);
                    const int64_t got = get(*other, key, into);
                    EXPECT_TRUE(got < 0 || into == value);
                    EXPECT_FALSE(late && code == StoreCode::kOk && got > 0) << "after close()";
                }
            });
        ASSERT_TRUE(eventually([&] { return running == 4; }));
        other->close();
        closed = true;
        threads.clear();
    }
}

TEST_F(Lifecycle, ClosesWhileTheMasterIsSilent) {
    const auto node = client();
    auto other = requester();
    auto value = pattern(1000, 1);
    const Time started = Clock::now();
    master().set_silent(true);
    auto writing = std::async(std::launch::async, [&] { return put(*other, "k", value); });
    auto closing = std::async(std::launch::async, [&] { other->close(); });
    EXPECT_EQ(writing.get(), StoreCode::kUnavailableInCurrentStatus);
    EXPECT_EQ(closing.wait_for(10s), std::future_status::ready);
    master().set_silent(false);
    closing.get();
    EXPECT_LT(Clock::now() - started, 10s);
}

TEST_F(Lifecycle, HandsOutItsStagingBuffer) {
    const auto node = client();
    {
        StagingBuffer a = node->stage(kMiB / 2), b = node->stage(kMiB / 2);
        ASSERT_TRUE(a);
        ASSERT_TRUE(b);
        EXPECT_EQ(a.size(), kMiB / 2);
        std::memset(a.data(), 1, a.size());
        std::memset(b.data(), 2, b.size());
        EXPECT_FALSE(node->stage(1));
        StagingBuffer moved = std::move(a);
        EXPECT_FALSE(a);
        a = std::move(moved);
        EXPECT_TRUE(a);
        const auto range = node->registered_range(a.data() + 5);
        ASSERT_TRUE(range);
        EXPECT_EQ(range->length, kMiB);
    }
    EXPECT_TRUE(node->stage(kMiB));
    EXPECT_FALSE(node->stage(0));
    EXPECT_FALSE(node->stage(UINT64_MAX));
    const auto without = client([](StoreConfig& config) { config.buffer_bytes = 0; });
    EXPECT_FALSE(without->stage(1));
}

TEST_F(Lifecycle, RemembersRegisteredBuffers) {
    const auto node = client();
    std::vector<std::byte> memory(10'000);
    EXPECT_EQ(node->register_buffer(nullptr, 10), StoreCode::kInvalidParams);
    EXPECT_EQ(node->register_buffer(memory.data(), 0), StoreCode::kInvalidParams);
    EXPECT_EQ(node->register_buffer(memory.data(), memory.size()), StoreCode::kOk);
    const auto range = node->registered_range(memory.data() + 9999);
    ASSERT_TRUE(range);
    EXPECT_EQ(range->data, memory.data());
    EXPECT_EQ(range->length, 10'000u);
    EXPECT_FALSE(node->registered_range(memory.data() + 10'000));
    EXPECT_FALSE(node->registered_range(memory.data() - 1));
    EXPECT_EQ(node->unregister_buffer(memory.data() + 1), StoreCode::kInvalidParams);
    EXPECT_EQ(node->unregister_buffer(memory.data()), StoreCode::kOk);
    EXPECT_EQ(node->unregister_buffer(memory.data()), StoreCode::kInvalidParams);
    EXPECT_FALSE(node->registered_range(memory.data()));
}

TEST_F(Lifecycle, CountsWhatItDoes) {
    const auto node = client();
    auto value = pattern(1000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", value));
    const std::string text = node->metrics().to_prometheus_text();
    EXPECT_NE(text.find("mooncake_transfer_read_bytes 1000"), std::string::npos) << text;
    EXPECT_NE(text.find("mooncake_transfer_write_bytes 1000"), std::string::npos);
    EXPECT_NE(text.find("mooncake_client_rpc_count{rpc_name=\"put_start\"} 1"), std::string::npos);
    EXPECT_NE(text.find("mooncake_transfer_put_latency"), std::string::npos);
}

class Segments : public ClientTest {};

TEST_F(Segments, OfAllocatedMemoryComeAndGo) {
    const auto node = requester(), other = requester();
    auto value = pattern(5000, 1);
    EXPECT_EQ(put(*other, "k", value), StoreCode::kNoAvailableHandle);
    const MountedSegments mounted = node->mount_memory(4 * kMiB, "tcp", "");
    ASSERT_EQ(mounted.code, StoreCode::kOk);
    ASSERT_EQ(mounted.segments.size(), 1u);
    EXPECT_EQ(mounted.bytes, 4 * kMiB);
    EXPECT_EQ(put(*other, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", value));
    EXPECT_TRUE(holds(*node, "k", value));
    EXPECT_EQ(node->unmount(mounted.segments, Duration::zero()), StoreCode::kOk);
    EXPECT_EQ(node->unmount(mounted.segments, Duration::zero()), StoreCode::kSegmentNotFound);
    std::vector<std::byte> into(5000);
    EXPECT_EQ(get(*other, "k", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_EQ(get(*node, "k", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_EQ(node->mount_memory(0, "tcp", "").code, StoreCode::kInvalidParams);
}

TEST_F(Segments, StayReadableForTheirGrace) {
    const auto node = requester(), other = requester();
    const MountedSegments mounted = node->mount_memory(4 * kMiB, "tcp", "");
    ASSERT_EQ(mounted.code, StoreCode::kOk);
    auto value = pattern(5000, 1);
    ASSERT_EQ(put(*other, "k", value), StoreCode::kOk);
    ASSERT_EQ(node->unmount(mounted.segments, 200ms), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", value));
    EXPECT_TRUE(holds(*node, "k", value));
    EXPECT_EQ(put(*other, "l", value), StoreCode::kNoAvailableHandle);
    std::vector<std::byte> into(5000);
    EXPECT_TRUE(eventually([&] {
        master().run_jobs();
        const int64_t got = get(*other, "k", into);
        EXPECT_TRUE(got == 5000 || got == static_cast<int64_t>(StoreCode::kObjectNotFound) ||
                    got == static_cast<int64_t>(StoreCode::kTransferFail))
            << got;
        return got == static_cast<int64_t>(StoreCode::kObjectNotFound);
    }));
}

TEST_F(Segments, OfFilesAreMappedAndLent) {
    const std::string path = ::testing::TempDir() + "mooncake_segment_" + std::to_string(::getpid());
    { std::ofstream(path).write(std::string(1 << 20, 'x').data(), 1 << 20); }
    const auto node = requester(), other = requester();
    const auto mount = [&](uint64_t size, uint64_t offset) {
        return node->mount_file({.path = path, .size = size, .offset = offset}).code;
    };
    EXPECT_EQ(mount(1 << 20, 1), StoreCode::kInvalidParams);
    EXPECT_EQ(mount((1 << 20) + 1, 0), StoreCode::kInvalidParams);
    EXPECT_EQ(mount(1 << 20, 4096), StoreCode::kInvalidParams);
    EXPECT_EQ(mount(4096, UINT64_MAX - 4095), StoreCode::kInvalidParams);
    EXPECT_EQ(mount(0, 0), StoreCode::kInvalidParams);
    EXPECT_EQ(node->mount_file({.path = path + ".no", .size = 4096}).code, StoreCode::kInvalidParams);
    const MountedSegments mounted = node->mount_file({.path = path, .size = (1 << 20) - 4096, .offset = 4096});
    ASSERT_EQ(mounted.code, StoreCode::kOk);
    auto value = pattern(100'000, 1);
    EXPECT_EQ(put(*other, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", value));
    EXPECT_TRUE(holds(*node, "k", value));
    EXPECT_EQ(node->unmount(mounted.segments, Duration::zero()), StoreCode::kOk);
    ::unlink(path.c_str());
}

TEST_F(Segments, DoNotShareBytesOfAFile) {
    const std::string path = ::testing::TempDir() + "mooncake_shared_segment_" + std::to_string(::getpid()), link = path + ".link";
    { std::ofstream(path).write(std::string(1 << 20, 'x').data(), 1 << 20); }
    ASSERT_EQ(::link(path.c_str(), link.c_str()), 0);
    const auto node = requester(), other = requester();
    const auto mount = [](StoreClient& client, const std::string& file, uint64_t size, uint64_t offset) {
        return client.mount_file({.path = file, .size = size, .offset = offset});
    };
    const MountedSegments first = mount(*node, path, 512 << 10, 0);
    ASSERT_EQ(first.code, StoreCode::kOk);
    EXPECT_EQ(mount(*node, path, 512 << 10, 0).code, StoreCode::kInvalidParams);
    EXPECT_EQ(mount(*node, path, 512 << 10, 256 << 10).code, StoreCode::kInvalidParams);
    EXPECT_EQ(mount(*other, link, 4096, 4096).code, StoreCode::kInvalidParams) << "by whatever name, and whoever asks";
    EXPECT_EQ(mount(*other, link, 512 << 10, 512 << 10).code, StoreCode::kOk);
    EXPECT_EQ(node->unmount(first.segments, Duration::zero()), StoreCode::kOk);
    EXPECT_EQ(mount(*node, path, 256 << 10, 0).code, StoreCode::kOk) << "it was given back";
    ::unlink(path.c_str());
    ::unlink(link.c_str());
}

class Copies : public ClientTest {};

TEST_F(Copies, AreMadeByTheOwnerOfTheSource) {
    const auto a = client(), b = client(), writer = requester();
    auto value = pattern(200'000, 1);
    ASSERT_EQ(put(*writer, "k", value, {.preferred_segments = {a->name()}}), StoreCode::kOk);
    const std::string_view key = "k";
    const ReplicaInfo from = writer->find({&key, 1}).at(0).replicas.at(0);
    ASSERT_EQ(from.segment_name, a->name());
    CopyOrder order{.task = {1, 2}, .tenant = "default", .key = "k", .length = value.size()};
    uint64_t target_base = 0;
    master().act([&](Transaction& t, Time) {
        const MasterState& state = t.state();
        const Object& object = state.objects()[state.objects().find(state.tenant("default"), "k")];
        order.generation = object.generation;
        order.checksum = object.checksum;
        order.source = {object.replicas[0].segment, object.replicas[0].offset};
        for (const SegmentNumber number : state.segments().numbers()) {
            if (state.segments()[number].spec.name != b->name()) continue;
            order.targets.push_back({number, 4096});
            target_base = state.segments()[number].spec.base;
        }
    });
    master().order_copy(a->id(), order);
    ASSERT_TRUE(eventually([&] { return !master().ended_tasks().empty(); }));
    EXPECT_EQ(master().ended_tasks().at(0).code, StoreCode::kOk) << master().ended_tasks().at(0).message;
    EXPECT_EQ(master().ended_tasks().at(0).task, (TaskId{1, 2}));
    const auto* const stored = reinterpret_cast<const std::byte*>(from.address);
    EXPECT_EQ(0, std::memcmp(reinterpret_cast<const void*>(target_base + 4096), stored, stored_bytes(value.size())));

    damage(*writer, "k", 5);
    order.task = {1, 3};
    master().order_copy(a->id(), order);
    ASSERT_TRUE(eventually([&] { return master().ended_tasks().size() == 2; }));
    EXPECT_EQ(master().ended_tasks().at(1).code, StoreCode::kChecksumMismatch);
    order.task = {1, 4};
    master().order_copy(b->id(), order);  // not its own
    ASSERT_TRUE(eventually([&] { return master().ended_tasks().size() == 3; }));
    EXPECT_EQ(master().ended_tasks().at(2).code, StoreCode::kReplicaNotInLocalMemory);
}

}  // namespace
}  // namespace mooncake::store::testing
