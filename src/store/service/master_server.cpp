// SPDX-License-Identifier: Apache-2.0
#include "store/service/master_server.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "base/incarnation.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/version.h"
#include "rpc/rpc.h"
#include "store/service/job_runner.h"
#include "store/service/master_calls.h"

namespace mooncake::store {

namespace {

constexpr int kThreadsMax = 16;
constexpr size_t kConnectionsMax = 16384;
constexpr size_t kLongCallsMax = 64;        // waiting
constexpr size_t kReportsMax = 4096;        // waiting; a node has one at a time
constexpr size_t kReserveBytes = 32 << 20;  // more than one change, with the events about it, ever takes
constexpr Duration kSettleMax = 10s;        // a guard: the jobs answer who waits for too long

MasterOptions with_identity(MasterOptions options) {
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    if (options.first_generation <= 1)
        options.first_generation = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count());
    if (options.hash_seed == 0) options.hash_seed = random_u64();
    return options;
}

/// An answer that nobody sends: it wakes who waits for it.
class Waiter final : public rpc::Responder {
public:
    ~Waiter() override {
        if (!told_) answered.set_value();
    }
    void reply(rpc::Bytes) override { tell(); }
    void fail(const Error&) override { tell(); }
    bool part(rpc::Bytes, Haste) override { return false; }
    bool abandoned() const noexcept override { return false; }
    Deadline deadline() const noexcept override { return Deadline::after(kSettleMax); }
    const rpc::PeerInfo& peer() const noexcept override { return peer_; }

    std::promise<void> answered;

private:
    void tell() {
        if (!std::exchange(told_, true)) answered.set_value();
    }

    bool told_ = false;
    const rpc::PeerInfo peer_{};
};

class MasterServerImpl final : public MasterServer {
public:
    MasterServerImpl(const MasterServerOptions& options, uint64_t epoch, std::unique_ptr<rpc::Server> server)
        : epoch_(epoch), hub_(options.stream), master_(options.core, &hub_, &hub_), jobs_(master_, hub_, metrics_),
          calls_({master_, hub_, jobs_, metrics_, worker_, adopter_}, epoch), server_(std::move(server)) {
        calls_.attach(*server_);
    }
    ~MasterServerImpl() override { stop(); }
    Result<> prepare() { return worker_.start(); }

    void start() override {
        jobs_.start();
        server_->start();
        MC_LOG_INFO("master serves on port {}, life {:x}", server_->port(), epoch_);
    }
    void stop() override {
        hub_.end_soon();
        // No event stream may end, as its client would think in order, while writers are still told of new ranges.
        calls_.stop();
        worker_.stop();
        adopter_.stop();
        // An answer means that what it is about outlives us. Who does not read is waited for as always, and then cut off by the jobs; those who
        // wait for it are told that we end.
        if (!std::exchange(stopped_, true)) settle();
        jobs_.stop();
        hub_.answer_all();
        server_->stop();
        hub_.answer_all();  // those who came meanwhile are not connected any more
    }
    uint16_t port() const noexcept override { return server_->port(); }
    uint64_t epoch() const noexcept override { return epoch_; }
    LockedMaster& master() noexcept override { return master_; }
    void touch() override { jobs_.touch(); }
    void settle() override {
        touch();
        EventHub::Caused caused;
        caused.add({}, hub_.position());  // all there has been
        if (caused.nothing()) return;
        auto waiter = std::make_unique<Waiter>();
        const std::future<void> answered = waiter->answered.get_future();
        jobs_.wake_by(hub_.answer_when_told(caused, std::move(waiter), {}, Clock::now()));
        answered.wait_for(kSettleMax);
    }
    MasterMetrics& metrics() noexcept override { return metrics_; }
    size_t followers() const override { return hub_.followers(); }

private:
    const uint64_t epoch_;
    MasterMetrics metrics_;
    EventHub hub_;
    LockedMaster master_;
    JobRunner jobs_;
    ThreadPool worker_{{.name = "mc-master-long", .threads_max = 1, .tasks_max = kLongCallsMax}};
    // Reports of nodes, while there are patterns to hold against them.
    ThreadPool adopter_{{.name = "mc-master-adopt", .threads_max = 4, .tasks_max = kReportsMax}};
    MasterCalls calls_;
    std::unique_ptr<rpc::Server> server_;  // the first to go: its handlers use all of the above
    bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<MasterServer>> MasterServer::create(const MasterServerOptions& options) {
    MemoryReserve::keep(kReserveBytes);
    const int cores = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
    const Incarnation epoch = Incarnation::random();
    MC_ASSIGN_OR_RETURN(auto server,
                        rpc::Server::create({.host = options.host,
                                             .port = options.port,
                                             .threads = options.threads > 0 ? options.threads : std::min(cores, kThreadsMax),
                                             .message_bytes_max = options.message_bytes_max,
                                             .stream_bytes_max = options.stream_bytes_max,
                                             .connections_max = kConnectionsMax,
                                             .hello = {.incarnation = epoch, .software = format_text("mooncake master {}", version())}}));
    MasterServerOptions named = options;
    named.core = with_identity(named.core);
    named.stream.life = named.core.first_generation;
    auto master = std::make_unique<MasterServerImpl>(named, epoch.value, std::move(server));
    MC_RETURN_IF_ERROR(master->prepare());
    return master;
}

}  // namespace mooncake::store
