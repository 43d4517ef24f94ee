// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <future>
#include <thread>

#include "base/incarnation.h"
#include "engine/engine.h"
#include "engine/messages.h"
#include "net/socket.h"
#include "rpc/rpc.h"
#include "transport/shm/channel.h"
#include "transport/tcp/handshake.h"

namespace mooncake {
namespace {

Deadline soon() { return Deadline::after(60s); }

std::unique_ptr<Engine> make_engine(const std::string& transport) {
    EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
    config.options.transports = {transport};
    config.options.connect_timeout = 300s;
    config.options.transfer_timeout = 300s;
    auto engine = Engine::create(std::move(config));
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
    return engine ? std::move(*engine) : nullptr;
}

/// A peer that says who it is and where, and then nothing: as one that is stopped between the two.
class SilentPeer {
public:
    explicit SilentPeer(const std::string& transport) {
        const Incarnation life = Incarnation::random();
        net::Listener tcp = net::listen_on("127.0.0.1", 0, 16).value();
        const std::string name = "mooncake-test-" + life.to_string();
        SegmentDescriptor descriptor{.name = "silent", .incarnation = life, .host = "127.0.0.1", .rpc_port = 1, .boot_id = boot_id()};
        if (transport == "tcp") {
            descriptor.endpoints["tcp"] = tcp::format_endpoint({.port = tcp.port});
            listener_ = std::move(tcp.socket);
        } else {
            descriptor.endpoints["shm"] = shm::encode_endpoint(name);
            listener_ = shm::listen_local(name).value();
        }
        server_ = rpc::Server::create({.host = "127.0.0.1", .hello = {.incarnation = life}}).value();
        server_->handle(rpc::Method::kDescribe, [answer = encode_descriptor(descriptor)](auto, std::unique_ptr<rpc::Responder> responder) {
            responder->reply(answer);
        });
        server_->start();
    }

    std::string name() const { return "127.0.0.1:" + std::to_string(server_->port()); }
    bool was_asked() const { return net::wait_ready(listener_.fd(), POLLIN, soon()); }

private:
    net::Socket listener_;
    std::unique_ptr<rpc::Server> server_;
};

class CloseTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Transports, CloseTest, ::testing::Values("tcp", "shm"), [](const auto& made) { return std::string(made.param); });

TEST_P(CloseTest, EndsAConnectThatNobodyAnswers) {
    const auto ours = make_engine(GetParam());
    ASSERT_TRUE(ours);
    SilentPeer peer(GetParam());
    std::vector<std::byte> local(64);
    const Block block{.local = local.data(), .remote = 4096, .length = local.size()};
    auto write = std::async(std::launch::async, [&] {
        return ours->transfer(peer.name(), Direction::kWrite, {&block, 1}, Deadline::after(300s));
    });
    auto submit = std::async(std::launch::async, [&] { return ours->submit(peer.name(), Direction::kWrite, {&block, 1}); });
    ASSERT_TRUE(peer.was_asked());
    const Time started = Clock::now();
    EXPECT_TRUE(ours->close());
    const auto written = write.get();
    const auto submitted = submit.get();
    EXPECT_LT(Clock::now() - started, 100s);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code(), Code::kUnavailable) << written.error().to_string();
    EXPECT_NE(written.error().message().find("the engine is closed"), std::string::npos) << written.error().to_string();
    EXPECT_FALSE(submitted);
}

struct Held {
    size_t descriptors = 0, threads = 0;
    friend bool operator<=>(const Held&, const Held&) = default;
};

/// Without the scratch memory of tcp, which belongs to the process: some for each thread that ever copied, up to a limit.
size_t count(const char* folder) {
    size_t entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::error_code gone;
        const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
        entries += !target.starts_with("/memfd:mooncake-tcp");
    }
    return entries;
}

Held held() { return {.descriptors = count("/proc/self/fd"), .threads = count("/proc/self/task")}; }

TEST_P(CloseTest, GivesBackDescriptorsAndThreads) {
    const auto theirs = make_engine(GetParam());
    std::vector<std::byte> local(8 << 20), far(8 << 20);
    ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    const Block block{.local = local.data(), .remote = reinterpret_cast<uint64_t>(far.data()), .length = local.size()};
    const auto use = [&](Engine& ours) {
        ASSERT_TRUE(ours.register_memory(local.data(), local.size()));
        ASSERT_TRUE(ours.transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()));
        const BatchId batch = ours.submit(theirs->segment_name(), Direction::kWrite, {&block, 1}).value();  // by threads of the transport
        EXPECT_EQ(ours.wait_batch(batch)->state, TransferState::kCompleted);
        const Block wrong{.local = local.data(), .remote = 4096, .length = 64};
        const BatchId failed = ours.submit(theirs->segment_name(), Direction::kWrite, {&wrong, 1}).value();  // and never freed
        EXPECT_EQ(ours.wait_batch(failed)->state, TransferState::kFailed);
    };
    use(*make_engine(GetParam()));  // some things are made once for the whole process, or by the peer when first needed
    const auto settles_at = [](const Held& most) {
        // The peer lets go of its end when it notices.
        for (const Deadline end = soon(); !end.passed();) {
            const Held now = held();
            if (now.descriptors <= most.descriptors && now.threads <= most.threads) return true;
            std::this_thread::yield();
        }
        return false;
    };
    const Held before = held();
    std::vector<std::unique_ptr<Engine>> closed;
    for (int i = 0; i < 3; ++i) {
        closed.push_back(make_engine(GetParam()));
        use(*closed.back());
        ASSERT_TRUE(closed.back()->close());
    }
    EXPECT_TRUE(settles_at(before)) << held().descriptors << " descriptors, " << held().threads << " threads; before " << before.descriptors
                                    << ", " << before.threads;
    Engine& one = *closed.front();
    EXPECT_EQ(one.transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()).error().code(), Code::kUnavailable);
    EXPECT_EQ(one.unregister_memory(local.data()).error().code(), Code::kUnavailable);
    EXPECT_EQ(one.describe(one.segment_name(), 1, soon()).error().code(), Code::kUnavailable);
    EXPECT_NE(one.rpc_port(), 0);
    EXPECT_FALSE(one.segment_name().empty());
    (void)one.maps_peers();
    EXPECT_TRUE(one.close());
}

TEST_P(CloseTest, PlansOutliveWhatTheyUsed) {
    const auto theirs = make_engine(GetParam());
    const auto ours = make_engine(GetParam());
    std::vector<std::byte> local(4096), far(4096);
    ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    ASSERT_TRUE(ours->register_memory(local.data(), local.size()));
    const Block block{.local = local.data(), .remote = reinterpret_cast<uint64_t>(far.data()), .length = local.size()};
    const auto plan = ours->prepare(theirs->segment_name(), {&block, 1}).value();
    ASSERT_TRUE(plan->run(Direction::kWrite));
    ASSERT_TRUE(ours->close());
    EXPECT_EQ(plan->run(Direction::kWrite).error().code(), Code::kUnavailable);
    EXPECT_EQ(plan->submit(Direction::kWrite).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace mooncake
