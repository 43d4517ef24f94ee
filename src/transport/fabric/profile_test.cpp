// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mooncake::fabric {
namespace {

using ::testing::ElementsAre;

EngineOptions asking_for(std::string protocol, std::vector<std::string> transports = {}) {
    EngineOptions options;
    options.protocol = std::move(protocol);
    options.transports = std::move(transports);
    return options;
}

std::string chosen(const EngineOptions& options) {
    const auto profile = choose_profile(options);
    return profile ? std::string((*profile)->name) : std::string(code_name(profile.error().code()));
}

std::vector<std::string> providers(std::string_view profile, uint32_t library, const FabricOptions& options = {}) {
    std::vector<std::string> names;
    const auto queries = queries_for(*find_profile(profile), library, options, false);
    if (!queries) return {std::string(code_name(queries.error().code()))};
    for (const auto& attempt : queries->tries) names.push_back(attempt.front().provider);
    return names;
}

TEST(FabricProfile, IsChosenByTheProtocol) {
    EXPECT_EQ(chosen(asking_for("efa")), "efa");
    EXPECT_EQ(chosen(asking_for("rdma")), "verbs");
    EXPECT_EQ(chosen(asking_for("cxi")), "cxi");
    for (const ProviderProfile& profile : all_profiles()) {
        const std::string protocol = format_text("fabric:{}", profile.name);
        EXPECT_EQ(chosen(asking_for(protocol)), profile.name);
        EXPECT_TRUE(is_fabric_protocol(protocol));
    }
    EXPECT_FALSE(is_fabric_protocol("tcp"));
    EXPECT_FALSE(is_fabric_protocol(""));
}

TEST(FabricProfile, IsNotChosenUnlessAskedFor) {
    EXPECT_EQ(chosen(asking_for("tcp")), code_name(Code::kNotSupported));
    EXPECT_EQ(chosen(asking_for("")), code_name(Code::kNotSupported));
    EXPECT_EQ(chosen(asking_for("fabric:carrier-pigeon")), code_name(Code::kInvalidArgument));
    EXPECT_EQ(chosen(asking_for("fabric:")), code_name(Code::kInvalidArgument));
}

TEST(FabricProfile, MayBeAskedForByTheListOfTransports) {
    EXPECT_EQ(chosen(asking_for("tcp", {"fabric"})), "tcp");
    EXPECT_EQ(chosen(asking_for("", {"self", "fabric"})), "tcp");
    EXPECT_EQ(chosen(asking_for("efa", {"fabric"})), "efa");
    EXPECT_EQ(chosen(asking_for("", {"tcp"})), code_name(Code::kNotSupported));
}

TEST(FabricProfile, KnowsTheTcpProviderByTheNameOfItsTime) {
    EXPECT_THAT(providers("tcp", library_version(1, 17)), ElementsAre("net", "tcp;ofi_rxm"));
    EXPECT_THAT(providers("tcp", library_version(1, 18)), ElementsAre("tcp", "tcp;ofi_rxm"));
    EXPECT_THAT(providers("tcp", library_version(2, 6)), ElementsAre("tcp", "tcp;ofi_rxm"));
}

TEST(FabricProfile, SaysWhenTheLibraryIsTooOld) {
    EXPECT_THAT(providers("efa-direct", library_version(2, 0)), ElementsAre(code_name(Code::kNotSupported)));
    EXPECT_THAT(providers("efa-direct", library_version(2, 1)), ElementsAre("efa"));
}

TEST(FabricProfile, AsksForDeliveryWhereWritesNeedIt) {
    const auto asks = [](std::string_view profile, uint32_t library) {
        return queries_for(*find_profile(profile), library, {}, false)->tries.front().front().delivery_complete;
    };
    EXPECT_TRUE(asks("tcp", library_version(1, 17)));
    EXPECT_TRUE(asks("efa", library_version(1, 18)));
    EXPECT_TRUE(asks("cxi", library_version(2, 0)));
    EXPECT_FALSE(asks("shm", library_version(1, 17)));
    EXPECT_TRUE(asks("shm", library_version(1, 18)));
    EXPECT_FALSE(asks("verbs", library_version(2, 6)));
}

TEST(FabricProfile, TurnsOptionsIntoQueries) {
    FabricOptions options;
    options.provider = "sockets";
    options.nodes = {"127.0.0.2", "127.0.0.3"};
    options.mr_style = "basic";
    const auto queries = queries_for(*find_profile("tcp"), library_version(1, 17), options, true);
    ASSERT_TRUE(queries);
    ASSERT_EQ(queries->tries.size(), 1u);
    ASSERT_EQ(queries->tries[0].size(), 2u);
    EXPECT_EQ(queries->tries[0][0].node, "127.0.0.2");
    EXPECT_EQ(queries->tries[0][1].node, "127.0.0.3");
    EXPECT_EQ(queries->tries[0][1].provider, "sockets");
    EXPECT_EQ(queries->tries[0][1].style, MrStyle::kBasic);
    EXPECT_TRUE(queries->tries[0][1].device_memory);
    options.mr_style = "sideways";
    EXPECT_EQ(queries_for(*find_profile("tcp"), library_version(1, 17), options, false).error().code(), Code::kInvalidArgument);
}

TEST(FabricProfile, LetsOptionsOverrideIt) {
    const ProviderProfile& tcp = *find_profile("tcp");
    EXPECT_EQ(tuned(tcp, {}).stripe_bytes, tcp.stripe_bytes);
    EXPECT_EQ(tuned(tcp, {}).stall_timeout, tcp.stall_timeout);
    FabricOptions options;
    options.stripe_bytes = 64 << 10;
    options.stall_timeout = 200ms;
    options.connect_timeout = 1s;
    options.page_budget = 77;
    options.registration_bytes_max = 1 << 30;
    const ProviderProfile own = tuned(tcp, options);
    EXPECT_EQ(own.stripe_bytes, 64u << 10);
    EXPECT_EQ(own.stall_timeout, 200ms);
    EXPECT_EQ(own.connect_timeout, 1s);
    EXPECT_EQ(own.page_budget, 77u);
    EXPECT_EQ(own.registration_bytes_max, 1u << 30);
    EXPECT_EQ(own.fence, Fence::kNeeded);
}

}  // namespace
}  // namespace mooncake::fabric
