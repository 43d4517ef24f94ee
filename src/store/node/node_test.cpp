// SPDX-License-Identifier: Apache-2.0
// A node in a process that has no client: this program does not even link one.
#include "store/node/node.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/incarnation.h"
#include "store/service/testing/local_master.h"

namespace mooncake::store::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

Deadline soon() { return Deadline::after(20s); }

std::shared_ptr<Engine> make_engine() {
    auto engine = Engine::create({.local_name = "127.0.0.1", .protocol = "tcp"});
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
    return engine ? std::shared_ptr<Engine>(std::move(*engine)) : nullptr;
}

bool eventually(const std::function<bool()>& condition) {
    for (const Deadline deadline = soon(); !condition(); std::this_thread::yield())
        if (deadline.passed()) return false;
    return true;
}

/// A process that lends memory, and nothing else.
struct LendingProcess {
    explicit LendingProcess(LocalMaster& master) : pool(setup(master)), node(pool, {.pages = {.early = false}}) {
        const auto joined = pool.join({&node}, node.catalogue(), {.heartbeat_interval = 20ms, .retry_interval = 5ms}, soon());
        EXPECT_TRUE(joined) << joined.error().to_string();
    }
    ~LendingProcess() { stop(); }
    static PoolAccess::Setup setup(LocalMaster& master) {
        auto engine = make_engine();
        std::string name = engine->segment_name();
        return {.engine = std::move(engine), .master = master.connect(), .name = std::move(name)};
    }
    void stop() {
        pool.begin_closing();
        node.stop();
        pool.leave();
    }
    PoolAccess pool;
    Node node;
};

/// Somebody elsewhere who writes into the pool, by the master's messages and bare transfers.
class Writer {
public:
    explicit Writer(LocalMaster& master) : master_(master.connect()) { EXPECT_TRUE(master_->remount({.client = id_}, soon())); }

    /// Under a key, `length` bytes that are all the same.
    void put(std::string_view key, uint64_t length, std::byte byte) {
        std::vector<std::byte> value(length, byte);
        const PutItem item{.key = key, .length = length};
        const auto started = master_->put_start({.client = id_, .request_id = ++request_, .tenant = "default", .items = {&item, 1}}, false,
                                                soon());
        ASSERT_TRUE(started);
        ASSERT_EQ(started->items.at(0).code, StoreCode::kOk);
        const auto segment = find(started->replicas.at(0).segment);
        const Block block{.local = value.data(), .remote = segment.base + started->replicas[0].offset, .length = length};
        const auto moved = engine_->transfer(segment.endpoint, Direction::kWrite, {&block, 1}, soon());
        ASSERT_TRUE(moved) << moved.error().to_string();
        const PutEndItem end{.key = key, .generation = started->items[0].generation};
        ASSERT_EQ(master_->put_end({.client = id_, .tenant = "default", .items = {&end, 1}}, soon())->codes.at(0), StoreCode::kOk);
    }
    StoreCode find_key(std::string_view key) {
        return master_->get_replicas({.tenant = "default", .keys = {&key, 1}}, soon())->items.at(0).code;
    }
    size_t segments() { return master_->segments(soon())->segments.size(); }

private:
    SegmentSpec find(uint32_t number) {
        const auto list = master_->segments(soon());
        for (const SegmentsReply::Entry& entry : list->segments)
            if (entry.number == number) return entry.segment;
        ADD_FAILURE() << "segment " << number;
        return {};
    }

    const ClientId id_{random_u64(), random_u64()};
    const std::unique_ptr<MasterApi> master_;
    const std::shared_ptr<Engine> engine_ = make_engine();
    uint64_t request_ = 0;
};

class NodeTest : public ::testing::Test {
protected:
    LocalMaster master_;
    LendingProcess process_{master_};
    Writer writer_{master_};
};

TEST_F(NodeTest, LendsMemoryAndKnowsWhatLiesInItWithoutAClient) {
    const MountedSegments mounted = process_.node.mount_memory(4 * kMiB, "tcp", "");
    ASSERT_EQ(mounted.code, StoreCode::kOk);
    ASSERT_EQ(mounted.segments.size(), 1u);
    writer_.put("k", 1000, std::byte{7});
    EXPECT_TRUE(eventually([&] { return process_.node.catalogue().objects() == 1; }));
    const auto held = process_.pool.local.find(mounted.segments[0]);
    ASSERT_TRUE(held);
    EXPECT_EQ(std::memchr(held->base, 7, held->size), held->base);
}

TEST_F(NodeTest, TellsTheNextMasterWhatItHoldsWithoutAClient) {
    ASSERT_EQ(process_.node.mount_memory(4 * kMiB, "tcp", "").code, StoreCode::kOk);
    writer_.put("k", 1000, std::byte{7});
    ASSERT_TRUE(eventually([&] { return process_.node.catalogue().objects() == 1; }));
    master_.restart();
    EXPECT_TRUE(eventually([&] { return writer_.find_key("k") == StoreCode::kOk; }));
}

TEST_F(NodeTest, CopiesWhatTheMasterOrdersWithoutAClient) {
    LendingProcess other(master_);
    ASSERT_EQ(process_.node.mount_memory(kMiB, "tcp", "").code, StoreCode::kOk);
    writer_.put("k", 1000, std::byte{7});
    const MountedSegments target = other.node.mount_memory(kMiB, "tcp", "");
    ASSERT_EQ(target.code, StoreCode::kOk);
    CopyOrder order{.task = {1, 2}, .tenant = "default", .key = "k", .length = 1000};
    master_.act([&](Transaction& t, Time) {
        const MasterState& state = t.state();
        const Object& object = state.objects()[state.objects().find(state.tenant("default"), "k")];
        order.generation = object.generation;
        order.source = {object.replicas[0].segment, object.replicas[0].offset};
        for (const SegmentNumber number : state.segments().numbers())
            if (state.segments()[number].spec.id == target.segments[0]) order.targets.push_back({number, 4096});
    });
    ASSERT_EQ(order.targets.size(), 1u);
    master_.order_copy(process_.pool.id, order);
    ASSERT_TRUE(eventually([&] { return !master_.ended_tasks().empty(); }));
    EXPECT_EQ(master_.ended_tasks().at(0).code, StoreCode::kOk) << master_.ended_tasks().at(0).message;
    const auto held = other.pool.local.find(target.segments[0]);
    EXPECT_EQ(held->base[4096], std::byte{7});
    EXPECT_EQ(held->base[4096 + 999], std::byte{7});
}

TEST_F(NodeTest, TakesItsMemoryOutOfThePool) {
    const MountedSegments first = process_.node.mount_memory(kMiB, "tcp", ""), second = process_.node.mount_memory(kMiB, "tcp", "");
    ASSERT_EQ(first.code, StoreCode::kOk);
    ASSERT_EQ(second.code, StoreCode::kOk);
    EXPECT_EQ(writer_.segments(), 2u);
    EXPECT_EQ(process_.node.unmount(first.segments, Duration::zero()), StoreCode::kOk);
    EXPECT_EQ(process_.node.unmount(first.segments, Duration::zero()), StoreCode::kSegmentNotFound);
    EXPECT_EQ(writer_.segments(), 1u);
    process_.stop();
    EXPECT_EQ(writer_.segments(), 0u);
    EXPECT_FALSE(process_.pool.local.find(second.segments[0])) << "given back";
    EXPECT_EQ(process_.node.mount_memory(kMiB, "tcp", "").code, StoreCode::kUnavailableInCurrentStatus);
    EXPECT_EQ(process_.node.unmount(second.segments, Duration::zero()), StoreCode::kUnavailableInCurrentStatus);
}

}  // namespace
}  // namespace mooncake::store::testing
