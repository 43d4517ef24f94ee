// SPDX-License-Identifier: Apache-2.0
#include "base/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace mooncake {
namespace {

using Variables = std::map<std::string, std::string>;

struct Loaded {
    EngineOptions options;
    std::string warnings;
};

Loaded load(const Variables& variables) {
    testing::internal::CaptureStderr();
    auto options = load_options([&variables](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
    });
    return {std::move(options), testing::internal::GetCapturedStderr()};
}

TEST(Options, AnEmptyEnvironmentGivesTheDefaultsSilently) {
    const auto [options, warnings] = load({});
    EXPECT_EQ(warnings, "");
    EXPECT_EQ(options.transfer_timeout, Duration(30s));
    EXPECT_EQ(options.port_min, 15000);
    EXPECT_EQ(options.port_max, 17000);
    EXPECT_EQ(options.tcp_lanes, 4);
    EXPECT_TRUE(options.cache_descriptors);
    EXPECT_TRUE(options.transports.empty());
    EXPECT_EQ(options.log.level, LogLevel::kInfo);
}

TEST(Options, ReadsEveryVariable) {
    const auto [options, warnings] = load({
        {"MC_TRANSFER_TIMEOUT", "60"},
        {"MOONCAKE_PROTOCOL", "tcp"},
        {"MC_TRANSPORTS", "shm, tcp"},
        {"MC_FORCE_HCA", "1"},
        {"MC_TE_FILTERS", "mlx5_0,mlx5_1"},
        {"MC_TE_FILTERS_EXCLUDE", "mlx5_2"},
        {"MC_CUSTOM_TOPO_JSON", "/t.json"},
        {"MC_METADATA_CLUSTER_ID", "blue"},
        {"MC_TCP_BIND_ADDRESS", "10.1.2.3"},
        {"MC_BIND_ADDRESS", "10.1.2.4"},
        {"MC_LEGACY_RPC_PORT_BINDING", "true"},
        {"MC_MIN_RPC_PORT", "20000"},
        {"MC_MAX_RPC_PORT", "20010"},
        {"MC_HANDSHAKE_PORT", "13001"},
        {"MC_USE_IPV6", "yes"},
        {"MC_HANDSHAKE_LISTEN_BACKLOG", "7"},
        {"MC_HANDSHAKE_CONNECT_TIMEOUT", "9"},
        {"MC_HANDSHAKE_MAX_LENGTH", "2097152"},
        {"MC_DISABLE_METACACHE", "1"},
        {"MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", "11"},
        {"MC_REDIS_USERNAME", "u"},
        {"MC_REDIS_PASSWORD", "p"},
        {"MC_REDIS_DB_INDEX", "3"},
        {"MC_TCP_LANES_PER_PEER", "8"},
        {"MC_TCP_IO_THREADS", "2"},
        {"MC_TCP_CHECKSUM", "on"},
        {"MC_TE_METRIC", "1"},
        {"MC_TE_METRIC_INTERVAL_SECONDS", "6"},
        {"MC_LOG_LEVEL", "ERROR"},
        {"MC_LOG_DIR", "/logs"},
    });
    EXPECT_EQ(warnings, "");
    EXPECT_EQ(options.transfer_timeout, Duration(60s));
    EXPECT_EQ(options.protocol, "tcp");
    EXPECT_EQ(options.transports, (std::vector<std::string>{"shm", "tcp"}));
    EXPECT_TRUE(options.require_network_device);
    EXPECT_EQ(options.device_allow, (std::vector<std::string>{"mlx5_0", "mlx5_1"}));
    EXPECT_EQ(options.device_deny, (std::vector<std::string>{"mlx5_2"}));
    EXPECT_EQ(options.topology_file, "/t.json");
    EXPECT_EQ(options.cluster_id, "blue");
    EXPECT_EQ(options.advertised_address, "10.1.2.3");
    EXPECT_EQ(options.bind_address, "10.1.2.4");
    EXPECT_TRUE(options.legacy_port_binding);
    EXPECT_EQ(options.port_min, 20000);
    EXPECT_EQ(options.port_max, 20010);
    EXPECT_EQ(options.handshake_port, 13001);
    EXPECT_TRUE(options.ipv6);
    EXPECT_EQ(options.listen_backlog, 7);
    EXPECT_EQ(options.connect_timeout, Duration(9s));
    EXPECT_EQ(options.message_bytes_max, 2u << 20);
    EXPECT_FALSE(options.cache_descriptors);
    EXPECT_EQ(options.refresh_interval, Duration(11s));
    EXPECT_EQ(options.redis_username, "u");
    EXPECT_EQ(options.redis_password, "p");
    EXPECT_EQ(options.redis_database, 3);
    EXPECT_EQ(options.tcp_lanes, 8);
    EXPECT_EQ(options.tcp_io_threads, 2);
    EXPECT_TRUE(options.tcp_checksum);
    EXPECT_TRUE(options.metrics_log);
    EXPECT_EQ(options.metrics_interval, Duration(6s));
    EXPECT_EQ(options.log.level, LogLevel::kError);
    EXPECT_EQ(options.log.directory, "/logs");
}

TEST(Options, WhatConcernsGpusIsReadApart) {
    const auto with = [](std::optional<std::string> value) {
        return load_cuda_options([&](const char* name) { return std::string_view(name) == "MC_CUDA_CALLER_SYNC" ? value : std::nullopt; });
    };
    EXPECT_TRUE(with(std::nullopt).caller_sync);
    EXPECT_TRUE(with("1").caller_sync);
    EXPECT_FALSE(with("0").caller_sync);
}

TEST(Options, ABadNumberIsReportedByNameAndLeavesTheDefault) {
    for (const char* bad : {"x", "12x", " 12", "1.5", "0x10", "-1", "+3", "99999999999999999999", "17"}) {
        const auto [options, warnings] = load({{"MC_TCP_LANES_PER_PEER", bad}});
        EXPECT_EQ(options.tcp_lanes, 4) << bad;
        EXPECT_NE(warnings.find("MC_TCP_LANES_PER_PEER"), std::string::npos) << bad;
    }
}

TEST(Options, AnEmptyNumberIsAsIfNotSet) {
    const auto [options, warnings] = load({{"MC_TCP_LANES_PER_PEER", ""}});
    EXPECT_EQ(options.tcp_lanes, 4);
    EXPECT_EQ(warnings, "");
}

TEST(Options, AnUnknownLogLevelIsReported) {
    const auto [options, warnings] = load({{"MC_LOG_LEVEL", "loud"}});
    EXPECT_EQ(options.log.level, LogLevel::kInfo);
    EXPECT_NE(warnings.find("MC_LOG_LEVEL"), std::string::npos);
}

TEST(Options, TheTransferTimeoutIsAtLeastFiveSeconds) {
    EXPECT_EQ(load({{"MC_TRANSFER_TIMEOUT", "0"}}).options.transfer_timeout, Duration(5s));
    EXPECT_EQ(load({{"MC_TRANSFER_TIMEOUT", "5"}}).options.transfer_timeout, Duration(5s));
    EXPECT_EQ(load({{"MC_TRANSFER_TIMEOUT", "-1"}}).options.transfer_timeout, Duration(30s));
}

TEST(Options, PortRangesThatCannotWorkFallBackToTheDefault) {
    const std::pair<const char*, const char*> bad[] = {
        {"20000", "19999"}, {"80", "1000"},     {"1023", "20000"},  {"40000", "40010"},
        {"30000", "33000"}, {"60999", "62000"}, {"20000", "62000"},
    };
    for (const auto& [low, high] : bad) {
        const auto [options, warnings] = load({{"MC_MIN_RPC_PORT", low}, {"MC_MAX_RPC_PORT", high}});
        EXPECT_EQ(options.port_min, 15000) << low;
        EXPECT_EQ(options.port_max, 17000) << low;
        EXPECT_NE(warnings.find("port range"), std::string::npos) << low;
    }
    EXPECT_EQ(load({{"MC_MIN_RPC_PORT", "61000"}, {"MC_MAX_RPC_PORT", "65535"}}).options.port_min, 61000);
}

TEST(Options, TheMisspelledPortNamesWorkAndTheRightOnesWin) {
    const auto misspelled = load({{"MC_MIN_PRC_PORT", "20000"}, {"MC_MAX_PRC_PORT", "20005"}}).options;
    EXPECT_EQ(misspelled.port_min, 20000);
    EXPECT_EQ(misspelled.port_max, 20005);
    EXPECT_EQ(load({{"MC_MIN_PRC_PORT", "16000"}, {"MC_MIN_RPC_PORT", "16001"}}).options.port_min, 16001);
}

TEST(Options, ForceTcpOverridesTheListOfTransports) {
    EXPECT_EQ(load({{"MC_FORCE_TCP", "1"}, {"MC_TRANSPORTS", "shm"}}).options.transports, (std::vector<std::string>{"tcp"}));
    EXPECT_EQ(load({{"MC_FORCE_TCP", "0"}, {"MC_TRANSPORTS", "shm"}}).options.transports, (std::vector<std::string>{"shm"}));
}

TEST(Options, TheOlderNameForLanesWorks) { EXPECT_EQ(load({{"MC_TCP_MAX_CONNECTIONS_PER_PEER", "2"}}).options.tcp_lanes, 2); }

TEST(Options, ReadsWhatTheFabricIsTold) {
    const auto [options, warnings] = load({
        {"MOONCAKE_PROTOCOL", "fabric:tcp"},
        {"MC_FABRIC_PROVIDER", "sockets"},
        {"MC_FABRIC_NODES", "127.0.0.2, 127.0.0.3"},
        {"MC_FABRIC_LIBRARY", "/opt/libfabric.so"},
        {"MC_FABRIC_MR_STYLE", "basic"},
        {"MC_FABRIC_STRIPE", "65536"},
        {"MC_FABRIC_RUN", "8"},
        {"MC_FABRIC_SPIN_US", "0"},
        {"MC_FABRIC_STALL_MS", "250"},
        {"MC_FABRIC_CONNECT_MS", "1500"},
        {"MC_FABRIC_ATTEMPTS", "5"},
        {"MC_FABRIC_PAGE_BUDGET", "1000"},
        {"MC_FABRIC_FALLBACK", "0"},
        {"MC_MAX_WR", "77"},
        {"MC_EFA_CQ_THREADS", "0"},
        {"MC_EFA_NIC_SELECTION", "local"},
        {"MC_MAX_CONCURRENT_REG_MR", "3"},
        {"MC_MAX_MR_SIZE", "1099511627776"},
        {"MC_MS_AUTO_DISC", "0"},
        {"MC_MS_FILTERS", "rdmap0,rdmap1"},
    });
    EXPECT_EQ(warnings, "");
    const FabricOptions& fabric = options.fabric;
    EXPECT_EQ(options.protocol, "fabric:tcp");
    EXPECT_EQ(fabric.provider, "sockets");
    EXPECT_EQ(fabric.nodes, (std::vector<std::string>{"127.0.0.2", "127.0.0.3"}));
    EXPECT_EQ(fabric.library, "/opt/libfabric.so");
    EXPECT_EQ(fabric.mr_style, "basic");
    EXPECT_EQ(fabric.stripe_bytes, 65536u);
    EXPECT_EQ(fabric.run, 8);
    EXPECT_EQ(fabric.spin, Duration(0s));
    EXPECT_EQ(fabric.stall_timeout, Duration(250ms));
    EXPECT_EQ(fabric.connect_timeout, Duration(1500ms));
    EXPECT_EQ(fabric.attempts, 5);
    EXPECT_EQ(fabric.page_budget, 1000u);
    EXPECT_FALSE(fabric.fallback);
    EXPECT_EQ(fabric.operations_max, 77u);
    EXPECT_EQ(fabric.poll_threads, 0);
    EXPECT_TRUE(fabric.near_nics_only);
    EXPECT_EQ(fabric.registrations_parallel, 3);
    EXPECT_EQ(fabric.registration_bytes_max, uint64_t{1} << 40);
    EXPECT_FALSE(options.discover_topology);
    EXPECT_EQ(options.device_allow, (std::vector<std::string>{"rdmap0", "rdmap1"}));
}

TEST(Options, ReportsWordsTheFabricDoesNotKnow) {
    const auto [options,
                warnings] = load({{"MC_FABRIC_MR_STYLE", "sideways"}, {"MC_EFA_NIC_SELECTION", "some"}, {"MC_FABRIC_STRIPE", "1"}});
    EXPECT_NE(warnings.find("MC_FABRIC_MR_STYLE='sideways'"), std::string::npos);
    EXPECT_NE(warnings.find("auto, offset, basic"), std::string::npos);
    EXPECT_NE(warnings.find("MC_EFA_NIC_SELECTION='some'"), std::string::npos);
    EXPECT_NE(warnings.find("MC_FABRIC_STRIPE='1'"), std::string::npos);
    EXPECT_EQ(options.fabric.mr_style, "");
    EXPECT_FALSE(options.fabric.near_nics_only);
    EXPECT_EQ(options.fabric.stripe_bytes, 0u);
}

TEST(Options, TheNameOfTheEngineWinsForFilters) {
    const auto options = load({{"MC_MS_FILTERS", "a"}, {"MC_TE_FILTERS", "b"}}).options;
    EXPECT_EQ(options.device_allow, (std::vector<std::string>{"b"}));
    EXPECT_TRUE(options.discover_topology);
}

TEST(Options, ReadTheProcessEnvironment) {
    ::setenv("MC_METADATA_CLUSTER_ID", "from the process", 1);
    EXPECT_EQ(load_options().cluster_id, "from the process");
    ::unsetenv("MC_METADATA_CLUSTER_ID");
    EXPECT_EQ(process_environment()("MC_METADATA_CLUSTER_ID"), std::nullopt);
}

TEST(ParseFlag, TakesTheUsualWordsForOff) {
    for (const std::string_view off : {"", "0", "false", "FALSE", "no", "No", "off", "OFF"}) EXPECT_FALSE(parse_flag(off)) << off;
    for (const std::string_view on : {"1", "true", "yes", "on", "2", "00", "offf", "x"}) EXPECT_TRUE(parse_flag(on)) << on;
}

TEST(SplitList, TrimsAndDropsEmptyParts) {
    EXPECT_EQ(split_list("a, b,c"), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(split_list(" , ,a b ,"), (std::vector<std::string>{"a b"}));
    EXPECT_EQ(split_list("x;y", ';'), (std::vector<std::string>{"x", "y"}));
    EXPECT_TRUE(split_list("").empty());
    EXPECT_TRUE(split_list(",,,").empty());
}

}  // namespace
}  // namespace mooncake
