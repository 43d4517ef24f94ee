// SPDX-License-Identifier: Apache-2.0
// One role of the store as a process of its own, for tests that stop and kill it. Ends when its standard input does.
//     store_role master PORT CLIENT_TTL_MS LEASE_MS   prints "PORT EPOCH"
//     store_role node MASTER SEGMENT_ID BYTES         prints "ready", and "lost" and "found EPOCH" as its master comes and goes
//     store_role tiers PORT CLIENT_TTL_MS LEASE_MS MODE   the same with disks; MODE: letters of e (eager), v (before eviction), f (force), p (promotion)
//     store_role client MASTER BYTES [PATH [NAME [DISK [BYTES]]]] lends memory for real, by TCP alone if PATH is tcp, and a directory; prints its name (host:port)
//     store_role warm MASTER BYTES DIRECTORY STOP [DISK]  the same with memory in that directory, which outlives it; STOP: keep or remove; prints its name, or
//                                                     "failed CODE"
//     store_role writer MASTER KEY BYTES [tcp]        writes the first half of a value, prints "half"; when it is continued after a stop,
//                                                     writes the rest and prints "ended CODE"
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "store/member/membership.h"
#include "store/node/catalogue.h"
#include "store/process/store_client.h"
#include "store/service/master_server.h"

namespace mooncake::store {
namespace {

void say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

void wait_for_the_end() {
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {}
}

class Listener final : public MembershipListener {
public:
    void keys_changed(const std::vector<KeyChanged>&) override {}
    void all_keys_changed() override {}
    void master_lost() override { say("lost"); }
    void master_found(uint64_t epoch) override { say(format_text("found {}", epoch)); }
    void copy_ordered(const CopyOrder&) override {}
};

int be_master(char** arguments, const std::string& mode = {}) {
    MasterServerOptions options;
    const auto with = [&](char letter) { return mode.find(letter) != std::string::npos; };
    options.core.offload = with('e') || with('v');
    options.core.offload_on_evict = with('v');
    options.core.offload_force_evict = with('f');
    options.core.promote = with('p');
    options.port = static_cast<uint16_t>(std::atoi(arguments[0]));
    options.core.client_ttl = std::chrono::milliseconds(std::atoi(arguments[1]));
    options.core.lease_ttl = std::chrono::milliseconds(std::atoi(arguments[2]));
    if (mode.empty() && arguments[3] != nullptr) options.stream.unsent_timeout = std::chrono::milliseconds(std::atoi(arguments[3]));
    auto server = MasterServer::create(options);
    if (!server) {
        say(server.error().to_string());
        return 1;
    }
    (*server)->start();
    say(format_text("{} {}", (*server)->port(), (*server)->epoch()));
    wait_for_the_end();
    (*server)->stop();
    return 0;
}

int be_node(char** arguments) {
    const auto master = connect_master({.address = arguments[0], .incarnation = Incarnation::random()});
    Listener listener;
    Catalogue catalogue;
    const uint64_t id = std::strtoull(arguments[1], nullptr, 10);
    const auto membership = Membership::create(*master, {random_u64(), random_u64()}, listener, catalogue, {});
    if (auto started = membership->start(Deadline::after(20s)); !started) return 1;
    const SegmentSpec segment{.id = {id, id},
                              .name = format_text("node-{}:1", id),
                              .base = 0x10000,
                              .size = std::strtoull(arguments[2], nullptr, 10),
                              .endpoint = "none",
                              .protocol = "tcp"};
    const auto mounted = membership->mount(segment, Deadline::after(20s));
    if (!mounted || *mounted != StoreCode::kOk) return 2;
    say("ready");
    wait_for_the_end();
    membership->stop();
    return 0;
}

int be_client(char** arguments) {
    StoreConfig config{.local_hostname = "127.0.0.1", .segment_bytes = std::strtoull(arguments[1], nullptr, 10), .buffer_bytes = 0};
    config.master = arguments[0];
    if (arguments[2] != nullptr && std::string(arguments[2]) == "tcp") config.options.engine.transports = {"tcp"};
    if (arguments[2] != nullptr && arguments[3] != nullptr) config.local_hostname = arguments[3];
    if (arguments[2] != nullptr && arguments[3] != nullptr && arguments[4] != nullptr) {
        config.disk.path = arguments[4];
        config.disk.capacity_bytes = arguments[5] != nullptr ? std::strtoull(arguments[5], nullptr, 10) : 1 << 30;
    }
    auto client = StoreClient::create(std::move(config));
    if (!client) return 1;
    say((*client)->name());
    wait_for_the_end();
    (*client)->close();
    return 0;
}

int be_warm(char** arguments) {
    StoreConfig config{.local_hostname = "127.0.0.1", .segment_bytes = std::strtoull(arguments[1], nullptr, 10), .buffer_bytes = 0};
    config.master = arguments[0];
    config.options.warm_dir = arguments[2];
    config.options.warm_keep = std::string(arguments[3]) == "keep";
    if (arguments[4] != nullptr) {
        config.disk.path = arguments[4];
        config.disk.capacity_bytes = 1 << 30;
    }
    auto client = StoreClient::create(std::move(config));
    if (!client) {
        say(format_text("failed {}", static_cast<int>(client.error())));
        return 1;
    }
    say((*client)->name());
    wait_for_the_end();
    (*client)->close();
    return 0;
}

int be_writer(char** arguments) {
    sigset_t continued;
    ::sigemptyset(&continued);
    ::sigaddset(&continued, SIGCONT);
    ::pthread_sigmask(SIG_BLOCK, &continued, nullptr);  // before there are other threads
    StoreConfig config{.local_hostname = "127.0.0.1", .segment_bytes = 0, .buffer_bytes = 0};
    config.master = arguments[0];
    if (arguments[3] != nullptr && std::string(arguments[3]) == "tcp") config.options.engine.transports = {"tcp"};
    auto client = StoreClient::create(std::move(config));
    if (!client) return 1;
    const std::string_view key = arguments[1];
    std::vector<std::byte> value(std::strtoull(arguments[2], nullptr, 10), std::byte{0x5a});
    const uint64_t half = value.size() / 2;
    const StoreClient::Reservation place{.key = key, .length = value.size(), .group = {}};
    if ((*client)->open_writes({&place, 1}, {}).at(0) != StoreCode::kOk) return 2;
    const PartToWrite first{.key = key, .offset = 0, .from = {value.data(), half}};
    const PartToWrite second{.key = key, .offset = half, .from = {value.data() + half, value.size() - half}};
    if ((*client)->write_open({&first, 1}).at(0) < 0) return 3;
    say("half");
    int number = 0;
    ::sigwait(&continued, &number);
    (*client)->write_open({&second, 1});
    say(format_text("ended {}", static_cast<int>((*client)->close_writes({&key, 1}, false).at(0))));
    wait_for_the_end();
    return 0;
}

}  // namespace
}  // namespace mooncake::store

int main(int count, char** arguments) {
    mooncake::configure_log({.level = mooncake::LogLevel::kError});
    const std::string role = count > 1 ? arguments[1] : "";
    if (role == "master" && (count == 5 || count == 6)) return mooncake::store::be_master(arguments + 2);
    if (role == "tiers" && count == 6) return mooncake::store::be_master(arguments + 2, arguments[5]);
    if (role == "node" && count == 5) return mooncake::store::be_node(arguments + 2);
    if (role == "client" && count >= 4) return mooncake::store::be_client(arguments + 2);
    if (role == "warm" && count >= 6) return mooncake::store::be_warm(arguments + 2);
    if (role == "writer" && count >= 5) return mooncake::store::be_writer(arguments + 2);
    return 64;
}
