// SPDX-License-Identifier: Apache-2.0
#include "apps/common/master_program.h"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/options.h"
#include "base/thread.h"
#include "net/address.h"
#include "store/service/contain.h"

namespace mooncake::store {

namespace {

/// The IPv4 address of a network interface.
Result<std::string> interface_address(const std::string& name) {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return fail_errno(Code::kUnavailable, errno, "cannot list the network interfaces");
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || name != entry->ifa_name) continue;
        char text[INET_ADDRSTRLEN] = {};
        ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
        return std::string(text);
    }
    return fail(Code::kInvalidArgument, "--rpc_interface: there is no interface '{}' with an IPv4 address", name);
}

bool is_wildcard(std::string_view host) { return host.empty() || host == "0.0.0.0" || host == "::"; }

/// How others reach us, as far as we can know.
std::string public_host(const std::string& host) {
    if (!is_wildcard(host)) return host;
    auto found = net::first_public_address(false);
    return found ? *found : std::string("127.0.0.1");
}

/// All addresses of both families, where all of one family were asked for: "localhost" may mean either.
std::string bind_host(const std::string& host) { return is_wildcard(host) ? std::string() : host; }

}  // namespace

Result<std::unique_ptr<MasterProgram>> MasterProgram::start(const MasterFlags& flags) {
    raise_descriptor_limit();
    MasterFlags settled = flags;
    if (!flags.bind_address.empty()) {
        settled.rpc_address = settled.metrics_host = settled.http_metadata_server_host = flags.bind_address;
        settled.rpc_interface.clear();
    }
    std::unique_ptr<MasterProgram> program(new MasterProgram(settled));
    MC_RETURN_IF_ERROR(program->start_master());
    MC_RETURN_IF_ERROR(program->start_metadata());
    MC_RETURN_IF_ERROR(program->start_admin());
    MC_RETURN_IF_ERROR(program->start_cleaner());
    program->master_->start();
    return program;
}

MasterProgram::~MasterProgram() {
    for (std::jthread* thread : {&reporting_, &cleaning_}) {
        thread->request_stop();
        if (thread->joinable()) thread->join();
    }
    if (admin_server_) admin_server_->stop();
    if (metadata_server_) metadata_server_->stop();
    if (master_) master_->stop();
}

Result<> MasterProgram::start_master() {
    std::string host = flags_.rpc_address;
    if (!flags_.rpc_interface.empty()) {
        MC_ASSIGN_OR_RETURN(host, interface_address(flags_.rpc_interface));
    }
    auto master = MasterServer::create({.core = master_options(flags_),
                                        .host = bind_host(host),
                                        .port = master_port(flags_),
                                        .threads = master_threads(flags_, std::thread::hardware_concurrency())});
    if (!master) return Unexpected(std::move(master).error().with_context(format_text("RPC on port {}", master_port(flags_))));
    master_ = std::move(*master);
    const std::string address = net::join_host_port(public_host(host), master_->port());
    admin_.emplace(master_->master(), master_->metrics(),
                   AdminOptions{.address = address,
                                .quota_file = flags_.tenant_quota_connector_uri,
                                .changed = [this] { master_->touch(); },
                                .settle = [this] { master_->settle(); }});
    if (!flags_.enable_multi_tenants) return {};
    if (auto loaded = admin_->load_quota_file(); !loaded)
        return Unexpected(std::move(loaded).error().with_context("--tenant_quota_connector_uri"));
    return {};
}

Result<> MasterProgram::start_admin() {
    const auto port = static_cast<uint16_t>(flags_.metrics_port);
    auto server = net::HttpServer::create({.host = bind_host(flags_.metrics_host), .port = port, .threads = 2});
    if (!server) return Unexpected(std::move(server).error().with_context(format_text("--metrics_port {}", port)));
    admin_server_ = std::move(*server);
    admin_->attach(*admin_server_);
    admin_server_->start();
    MC_LOG_INFO("administration, metrics and dashboard on http://{}/",
                net::join_host_port(public_host(flags_.metrics_host), admin_server_->port()));
    if (flags_.enable_metric_reporting)
        reporting_ = repeat("report", 10s, [this] {
            std::string line = admin_->summary();
            MC_LOG_INFO("{}", line.substr(0, line.find('\n')));
        });
    return {};
}

Result<> MasterProgram::start_metadata() {
    if (!flags_.enable_http_metadata_server) return {};
    const auto port = static_cast<uint16_t>(flags_.http_metadata_server_port);
    auto server = net::HttpServer::create({.host = bind_host(flags_.http_metadata_server_host), .port = port, .threads = 2});
    if (!server) return Unexpected(std::move(server).error().with_context(format_text("--http_metadata_server_port {}", port)));
    metadata_server_ = std::move(*server);
    metadata_.attach(*metadata_server_);
    metadata_server_->start();
    MC_LOG_INFO("metadata server on http://{}/metadata",
                net::join_host_port(public_host(flags_.http_metadata_server_host), metadata_server_->port()));
    return {};
}

Result<> MasterProgram::start_cleaner() {
    if (!flags_.enable_metadata_cleanup_on_timeout) return {};
    if (!metadata_server_) {
        if (flags_.metadata_server.empty()) return {};
        MC_ASSIGN_OR_RETURN(directory_, open_directory(flags_.metadata_server, load_options()));
    }
    cleaner_.emplace(master_->master(), flags_.metadata_cluster_id, flags_.client_ttl,
                     [this](const std::string& key) { return remove_metadata(key); });
    cleaning_ = repeat("cleaner", 1s, [this] { cleaner_->run_once(Clock::now()); });
    return {};
}

Result<> MasterProgram::remove_metadata(const std::string& key) {
    if (directory_) return directory_->remove(key, Deadline::after(2s));
    (void)metadata_.handle({.method = "DELETE", .path = "/metadata", .parameters = {{"key", key}}, .content_type = {}, .body = {}});
    return {};
}

std::jthread MasterProgram::repeat(const std::string& name, Duration interval, std::function<void()> body) {
    return start_thread(name, [this, name, interval, body = std::move(body)](const std::stop_token& stop) {
        while (true) {
            {
                std::unique_lock lock(mutex_);
                woken_.wait_for(lock, stop, interval, [] { return false; });
            }
            if (stop.stop_requested()) return;
            contain(name, body);
        }
    });
}

}  // namespace mooncake::store
