// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/common/flags_client.h"
#include "apps/common/stop_signals.h"
#include "base/log.h"
#include "base/options.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/version.h"
#include "net/address.h"
#include "store/bridge/server/bridge_server.h"
#include "store/node/warm_memory.h"
#include "store/process/offload_options.h"
#include "store/process/store_client.h"

namespace {

using namespace mooncake;
using namespace mooncake::store;

constexpr Duration kCloseTimeout = 4s;  // users expect the end within 5 s, whatever the master does

Result<StoreConfig> config_of(const ClientFlags& flags, const Environment& environment) {
    StoreConfig config;
    config.local_hostname = flags.host;
    if (flags.host.empty() || flags.host == "0.0.0.0" || flags.host == "::") {
        const auto found = net::first_public_address(flags.host == "::");
        config.local_hostname = found ? *found : std::string("127.0.0.1");
    }
    config.metadata_server = flags.metadata_server;
    auto segment = parse_size(flags.global_segment_size);
    if (!segment) return Unexpected(std::move(segment).error().with_context("--global_segment_size"));
    auto buffer = parse_size(flags.local_buffer_size);
    if (!buffer) return Unexpected(std::move(buffer).error().with_context("--local_buffer_size"));
    config.segment_bytes = *segment;
    config.buffer_bytes = *buffer;
    config.protocol = flags.protocol;
    config.devices = split_list(flags.device_names);
    config.master = flags.master_server_address;
    config.tenant = flags.tenant_id;
    config.http_server = flags.enable_http_server;
    config.http_port = static_cast<uint16_t>(flags.http_port);
    config.options = load_store_options(environment);
    if (!flags.warm_dir.empty()) config.options.warm_dir = flags.warm_dir;
    if (!flags.warm_stop.empty()) {
        const auto keep = parse_warm_stop(flags.warm_stop);
        if (!keep) return fail(Code::kInvalidArgument, "--warm_stop '{}': remove or keep is expected", flags.warm_stop);
        config.options.warm_keep = *keep;
    }
    if (flags.enable_offload) {
        MC_ASSIGN_OR_RETURN(config.disk, load_disk_config(environment, flags.offload_path));
    }
    if (!flags.bind_address.empty()) config.options.engine.bind_address = flags.bind_address;
    return config;
}

using Bridge = std::unique_ptr<bridge::BridgeServer>;

/// Null: nobody asked for it.
Result<Bridge> serve_thin_clients(StoreClient& client, const ClientFlags& flags, const StoreOptions& options) {
    if (flags.port == 0) return Bridge();
    auto server = bridge::BridgeServer::start(client, {.port = static_cast<uint16_t>(flags.port),
                                                       .threads = std::max(16, static_cast<int>(flags.threads)),
                                                       .guest = {.memory_max = options.shared_bytes_max}});
    if (server || flags.port_given) return server;
    MC_LOG_WARNING("no thin clients are served on port {}: {}", flags.port, server.error().to_string());
    return Bridge();
}

/// Closes in order, or gives up after a while: the kernel takes back what we hold, and the master notices.
void end_within(StoreClient& client, const Bridge& bridge, Duration timeout) {
    Mutex mutex;
    std::condition_variable_any changed;
    bool done = false;
    const auto close = [&] {
        if (bridge) bridge->hang_up();
        client.close();
        if (bridge) bridge->stop();
    };
    const auto closing = try_start_thread("close", [&] {
        close();
        Lock lock(mutex);
        done = true;
        changed.notify_all();
    });
    if (!closing) return close();  // as long as it takes
    const Deadline deadline = Deadline::after(timeout);
    {
        Lock lock(mutex);
        while (!done && !deadline.passed()) changed.wait_until(mutex, deadline.at());
        if (done) return;
    }
    MC_LOG_WARNING("cannot leave the pool in order; ending all the same");
    ::_exit(0);
}

int clean_up(const std::string& directory) {
    const auto cleaned = WarmMemory::clean(directory);
    if (!cleaned) {
        std::fprintf(stderr, "mooncake_client: %s\n", cleaned.error().message().c_str());
        return 1;
    }
    std::printf("%llu bytes of %s are free again\n", static_cast<unsigned long long>(cleaned->bytes), directory.c_str());
    return 0;
}

int complain(std::string_view text) {
    std::fprintf(stderr, "mooncake_client: %s\n", std::string(text).c_str());
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    StopSignals signals;
    const auto flags = parse_client_flags(std::vector<std::string>(argv + 1, argv + argc));
    if (!flags) return complain(flags.error().message());
    if (flags->log.help) return std::fputs(client_help().c_str(), stdout) < 0 ? 1 : 0;
    if (flags->log.version) return std::printf("mooncake_client %s\n", std::string(version()).c_str()) < 0 ? 1 : 0;
    const Environment environment = process_environment();
    configure_program_log(flags->log, load_options(environment).log, "mooncake_client");
    for (const std::string& warning : flags->warnings) MC_LOG_WARNING("{}", warning);

    if (!flags->warm_clean.empty()) return clean_up(flags->warm_clean);
    const auto config = config_of(*flags, environment);
    if (!config) return complain(config.error().message());
    signals.end_at_once();  // joining may take long, and then nothing is lost
    auto client = StoreClient::create(*config);
    signals.hold();
    if (!client) {
        const bool direct = config->metadata_server == "P2PHANDSHAKE";
        const std::string hint = direct ? ""
                                        : format_text(", with the metadata server {} (--metadata_server P2PHANDSHAKE needs none)",
                                                      config->metadata_server);
        return complain(format_text("cannot join the pool of {}: {} ({}){}", config->master, store_code_name(client.error()),
                                    static_cast<int>(client.error()), hint));
    }
    const auto bridge = serve_thin_clients(**client, *flags, config->options);
    if (!bridge) return complain(format_text("thin clients cannot be served on port {}: {}", flags->port, bridge.error().to_string()));
    std::printf("Client %s lends %llu bytes to the pool of %s\n", (*client)->name().c_str(),
                static_cast<unsigned long long>(config->segment_bytes), config->master.c_str());
    std::fflush(stdout);
    const int signal_number = signals.wait();
    MC_LOG_INFO("ending on signal {}", signal_number);
    end_within(**client, *bridge, kCloseTimeout);
    client->reset();
    return 0;
}
