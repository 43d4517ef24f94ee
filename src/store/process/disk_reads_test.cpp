// SPDX-License-Identifier: Apache-2.0
// Values that lie on a disk alone, read by the client of the same process and by one elsewhere. The masters are scripted.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "device/testing/fake_device.h"
#include "store/client/pool_client.h"
#include "store/node/testing/disk_node.h"

namespace mooncake::store::testing {
namespace {

using tier_calls::make_bytes;

/// A client of a process of its own, whose master knows the node's segments.
struct Requester {
    explicit Requester(DiskNode& node, Devices* memory = nullptr) : pool(setup(memory)), client(pool, {.buffer_bytes = 1 << 20}) {
        master->list = node.master->list;
        const auto joined = pool.join({&client}, nothing, {.heartbeat_interval = 20ms, .retry_interval = 5ms}, soon());
        EXPECT_TRUE(joined);
        EXPECT_EQ(client.start(), StoreCode::kOk);
    }
    ~Requester() { stop(); }
    PoolAccess::Setup setup(Devices* memory) {
        auto made = std::make_unique<TierMaster>();
        master = made.get();
        return {.engine = make_engine(memory), .master = std::move(made), .name = "127.0.0.9:2"};
    }
    void stop() {
        pool.begin_closing();
        client.close();
        pool.leave();
    }
    TierMaster* master = nullptr;
    Holdings nothing;
    PoolAccess pool;
    PoolClient client;
};

class DiskReads : public ::testing::TestWithParam<bool> {
protected:
    DiskReads() : DiskReads([](DiskConfig&) {}) {}
    explicit DiskReads(const std::function<void(DiskConfig&)>& change) : node_(std::make_shared<MemoryTier::Shelf>(), change) {
        if (GetParam()) {  // in the node's own process
            own_ = std::make_unique<PoolClient>(node_.pool, ClientConfig{.buffer_bytes = 1 << 20});
            EXPECT_EQ(own_->start(), StoreCode::kOk);
        } else {
            far_ = std::make_unique<Requester>(node_);
        }
    }
    ~DiskReads() override {
        if (!own_) return;
        node_.pool.begin_closing();
        own_->close();
    }
    PoolClient& client() { return own_ ? *own_ : far_->client; }
    TierMaster& master() { return own_ ? *node_.master : *far_->master; }

    std::vector<std::byte> put(const std::string& key, uint64_t generation, size_t length) {
        auto value = make_bytes(generation, length);
        EXPECT_EQ(tier_calls::put(node_.tier(), key, generation, value), Code::kOk);
        say(key, generation, value);
        return value;
    }
    void say(const std::string& key, uint64_t generation, const std::vector<std::byte>& value,
             std::vector<ReplicaLocation> where = {{2, 123}}) {
        master().set_where(key, {.item = {.length = value.size(), .checksum = checksum_of(value), .generation = generation},
                                 .replicas = std::move(where)});
    }
    int64_t get(const std::string& key, std::vector<std::byte>& into) {
        const Piece piece{into.data(), into.size()};
        const ValueToRead one{.key = key, .pieces = {&piece, 1}};
        return client().read({&one, 1}).at(0);
    }
    int64_t part(const std::string& key, uint64_t offset, std::vector<std::byte>& into) {
        const PartToRead one{.key = key, .offset = offset, .to = {into.data(), into.size()}};
        return client().read_parts({&one, 1}).at(0);
    }

    DiskNode node_;
    std::unique_ptr<PoolClient> own_;
    std::unique_ptr<Requester> far_;
};

TEST_P(DiskReads, GivesWholeValuesOfAllSizes) {
    uint64_t generation = 10;
    for (const size_t length : {size_t{1}, size_t{4096}, size_t{65'536}, size_t{65'537}, size_t{1'000'000}, size_t{20'000'000}}) {
        const auto value = put("k" + std::to_string(length), ++generation, length);
        std::vector<std::byte> into(length + 1, std::byte{0xee});
        ASSERT_EQ(get("k" + std::to_string(length), into), static_cast<int64_t>(length));
        EXPECT_EQ(std::memcmp(into.data(), value.data(), length), 0) << length;
        EXPECT_EQ(into[length], std::byte{0xee});
    }
}

TEST_P(DiskReads, GivesPartsOfValues) {
    const auto value = put("k", 5, 300'000);
    for (const auto& [offset, length] :
         {std::pair<size_t, size_t>{0, 1}, {65'535, 2}, {100, 200'000}, {299'999, 1}, {0, 300'000}, {65'536, 65'536}, {7, 0}}) {
        std::vector<std::byte> into(length);
        ASSERT_EQ(part("k", offset, into), static_cast<int64_t>(length)) << offset;
        EXPECT_TRUE(std::equal(into.begin(), into.end(), value.begin() + static_cast<ptrdiff_t>(offset))) << offset;
    }
    std::vector<std::byte> into(2);
    EXPECT_EQ(part("k", 299'999, into), static_cast<int64_t>(StoreCode::kInvalidParams));
    // Many scattered ones at once, out of order.
    std::vector<std::vector<std::byte>> pieces;
    std::vector<PartToRead> parts;
    for (size_t i = 0; i < 40; ++i) pieces.emplace_back(100 + i);
    for (size_t i = 0; i < 40; ++i) parts.push_back({.key = "k", .offset = (39 - i) * 7000, .to = {pieces[i].data(), pieces[i].size()}});
    const auto results = client().read_parts(parts);
    for (size_t i = 0; i < 40; ++i) {
        ASSERT_EQ(results[i], static_cast<int64_t>(pieces[i].size()));
        EXPECT_EQ(std::memcmp(pieces[i].data(), value.data() + parts[i].offset, pieces[i].size()), 0) << i;
    }
}

TEST_P(DiskReads, FillsManyBuffersOfOneValue) {
    const auto value = put("k", 5, 1'000'000);
    std::vector<std::vector<std::byte>> buffers;
    std::vector<Piece> pieces;
    for (size_t at = 0, n = 0; at < value.size(); ++n) {
        buffers.emplace_back(std::min<size_t>(n == 3 ? 400'000 : 3000 + n * 100, value.size() - at));
        at += buffers.back().size();
    }
    for (auto& buffer : buffers) pieces.push_back({buffer.data(), buffer.size()});
    const ValueToRead one{.key = "k", .pieces = pieces};
    ASSERT_EQ(client().read({&one, 1}).at(0), 1'000'000);
    std::vector<std::byte> got;
    for (const auto& buffer : buffers) got.insert(got.end(), buffer.begin(), buffer.end());
    EXPECT_EQ(got, value);
}

TEST_P(DiskReads, ABatchGivesHitsAndMisses) {
    std::vector<std::vector<std::byte>> values, into;
    std::vector<std::string> keys;
    for (uint64_t i = 0; i < 50; ++i) {
        keys.push_back("k" + std::to_string(i));
        values.push_back(put(keys.back(), i + 1, 10'000 + i));
        into.emplace_back(values.back().size());
    }
    ASSERT_EQ(tier_calls::remove(node_.tier(), "k7", 8), Code::kOk);
    std::vector<Piece> pieces;
    for (auto& one : into) pieces.push_back({one.data(), one.size()});
    std::vector<ValueToRead> wanted;
    for (size_t i = 0; i < keys.size(); ++i) wanted.push_back({.key = keys[i], .pieces = {&pieces[i], 1}});
    const auto results = client().read(wanted);
    for (size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(results[i], i == 7 ? static_cast<int64_t>(StoreCode::kObjectNotFound) : static_cast<int64_t>(values[i].size()));
        if (i != 7) {
            EXPECT_EQ(into[i], values[i]);
        }
    }
}

TEST_P(DiskReads, SessionsReadFromDisksToo) {
    const auto value = put("k", 5, 200'000);
    const std::string_view key = "k";
    ASSERT_EQ(client().sessions().open_reads({&key, 1}).at(0), StoreCode::kOk);
    std::vector<std::byte> into(70'000);
    const PartToRead one{.key = "k", .offset = 65'000, .to = {into.data(), into.size()}};
    ASSERT_EQ(client().sessions().read_open({&one, 1}).at(0), 70'000);
    EXPECT_EQ(std::memcmp(into.data(), value.data() + 65'000, into.size()), 0);
    EXPECT_TRUE(client().sessions().close_reads({&key, 1}));
}

TEST_P(DiskReads, WhatIsNotTheValueIsNeverGiven) {
    const auto value = put("k", 5, 200'000);
    const auto other = make_bytes(99, 200'000);
    say("k", 5, other);  // the master expects something else
    std::vector<std::byte> into(200'000);
    const int64_t got = get("k", into);
    // Its own process knows by the generation that it is the value.
    if (!own_) {
        EXPECT_EQ(got, static_cast<int64_t>(StoreCode::kChecksumMismatch));
    }
    say("j", 6, value);  // a generation that is not there
    EXPECT_EQ(get("j", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
}

TEST_P(DiskReads, MemoryIsTriedFirstAndADiskWhereMemoryFails) {
    const auto value = put("k", 5, 100'000);
    std::memcpy(node_.held->base + 4096, value.data(), value.size());
    std::vector<uint64_t> table;
    const std::span<const std::byte> piece(value);
    hash_value({&piece, 1}, table);
    std::memcpy(node_.held->base + 4096 + value.size(), table.data(), table.size() * sizeof(uint64_t));
    say("k", 5, value, {{2, 0}, {1, 4096}});
    auto& metrics = own_ ? node_.pool.metrics.registry : far_->pool.metrics.registry;
    auto& from_memory = metrics.counter("mooncake_client_reads_total", "Values read, by where they lay.", {{"tier", "memory"}});
    std::vector<std::byte> into(value.size());
    ASSERT_EQ(get("k", into), 100'000);
    EXPECT_EQ(from_memory.value(), 1u);
    node_.held->base[4096 + 5] ^= std::byte{1};
    std::fill(into.begin(), into.end(), std::byte{0});
    ASSERT_EQ(get("k", into), 100'000);
    EXPECT_EQ(into, value);
}

INSTANTIATE_TEST_SUITE_P(Readers, DiskReads, ::testing::Bool(),
                         [](const auto& one) { return one.param ? std::string("OwnProcess") : std::string("Elsewhere"); });

/// Memory that no CPU may touch: the device traps every such touch.
void read_into_a_device(bool own_process) {
    using mooncake::testing::FakeDevice;
    auto made = std::make_unique<FakeDevice>();
    FakeDevice& device = *made;
    std::vector<std::unique_ptr<Device>> all;
    all.push_back(std::move(made));
    Devices devices(std::move(all));
    DiskNode node(std::make_shared<MemoryTier::Shelf>(), {}, own_process ? &devices : nullptr);
    const std::unique_ptr<Requester> far = own_process ? nullptr : std::make_unique<Requester>(node, &devices);
    const std::unique_ptr<PoolClient> own = own_process ? std::make_unique<PoolClient>(node.pool, ClientConfig{}) : nullptr;
    PoolClient& client = own ? *own : far->client;
    TierMaster& master = own ? *node.master : *far->master;
    std::byte* const memory = device.allocate(4 << 20);
    ASSERT_EQ(client.register_buffer(memory, 4 << 20), StoreCode::kOk);
    const auto value = make_bytes(1, 1'000'000);
    ASSERT_EQ(tier_calls::put(node.tier(), "k", 5, value), Code::kOk);
    master.set_where("k", {.item = {.length = value.size(), .checksum = checksum_of(value), .generation = 5}, .replicas = {{2, 0}}});
    const Piece pieces[] = {{memory, 400'000}, {memory + (2 << 20), 600'000}};
    const ValueToRead one{.key = "k", .pieces = pieces};
    ASSERT_EQ(client.read({&one, 1}).at(0), 1'000'000);
    EXPECT_EQ(device.read(memory, 400'000), std::vector<std::byte>(value.begin(), value.begin() + 400'000));
    EXPECT_EQ(device.read(memory + (2 << 20), 600'000), std::vector<std::byte>(value.begin() + 400'000, value.end()));
    const PartToRead part{.key = "k", .offset = 70'001, .to = {memory, 300'000}};
    ASSERT_EQ(client.read_parts({&part, 1}).at(0), 300'000);
    EXPECT_EQ(device.read(memory, 300'000), std::vector<std::byte>(value.begin() + 70'001, value.begin() + 370'001));
    EXPECT_EQ(client.unregister_buffer(memory), StoreCode::kOk);
    if (!own) return;
    node.pool.begin_closing();
    own->close();
    node.stop();
}

TEST(DiskToDevice, OfTheSameProcess) { read_into_a_device(true); }
TEST(DiskToDevice, FromElsewhere) { read_into_a_device(false); }

TEST(FarDisk, ValuesLongerThanTheStagingMemoryComeInParts) {
    DiskNode node(std::make_shared<MemoryTier::Shelf>(), [](DiskConfig& config) { config.staging_bytes = 1 << 20; });
    Requester reader(node);
    const auto value = make_bytes(1, 10'000'000);
    ASSERT_EQ(tier_calls::put(node.tier(), "k", 5, value), Code::kOk);
    reader.master->set_where("k",
                             {.item = {.length = value.size(), .checksum = checksum_of(value), .generation = 5}, .replicas = {{2, 0}}});
    std::vector<std::byte> into(value.size());
    const Piece piece{into.data(), into.size()};
    const ValueToRead one{.key = "k", .pieces = {&piece, 1}};
    ASSERT_EQ(reader.client.read({&one, 1}).at(0), 10'000'000);
    EXPECT_EQ(into, value);
    EXPECT_TRUE(eventually([&] { return node.node.disk()->service().leases() == 0; })) << "all was given back";
}

TEST(FarDisk, ADeadOwnerIsAMissInTime) {
    auto node = std::make_unique<DiskNode>();
    Requester reader(*node);
    const auto value = make_bytes(1, 1000);
    ASSERT_EQ(tier_calls::put(node->tier(), "k", 5, value), Code::kOk);
    reader.master->set_where("k",
                             {.item = {.length = value.size(), .checksum = checksum_of(value), .generation = 5}, .replicas = {{2, 0}}});
    node.reset();
    std::vector<std::byte> into(value.size());
    const Piece piece{into.data(), into.size()};
    const ValueToRead one{.key = "k", .pieces = {&piece, 1}};
    const Time began = Clock::now();
    EXPECT_EQ(reader.client.read({&one, 1}).at(0), static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_LT(Clock::now() - began, 15s) << "against hangs";
}

TEST(FarDisk, AReaderThatClosesDoesNotWaitForASilentNode) {
    DiskNode node;
    // Takes connections, and says nothing.
    const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t length = sizeof address;
    ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(silent, 5), 0);
    ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &length), 0);
    node.master->list.segments[1].segment.service = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    Requester reader(node);
    reader.master->set_where("k", {.item = {.length = 20'000'000, .checksum = 1, .generation = 5}, .replicas = {{2, 0}}});
    std::atomic<int64_t> got{0};
    std::vector<std::byte> into(20'000'000);
    std::jthread thread([&] {
        const Piece piece{into.data(), into.size()};
        const ValueToRead one{.key = "k", .pieces = {&piece, 1}};
        got = reader.client.read({&one, 1}).at(0);
    });
    pollfd called{.fd = silent, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&called, 1, 20'000), 1) << "it asks";
    reader.stop();
    thread.join();
    EXPECT_EQ(got, static_cast<int64_t>(StoreCode::kUnavailableInCurrentStatus));
    ::close(silent);
}

}  // namespace
}  // namespace mooncake::store::testing
