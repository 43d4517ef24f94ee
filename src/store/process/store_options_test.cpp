// SPDX-License-Identifier: Apache-2.0
#include "store/process/store_options.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace mooncake::store {
namespace {

StoreOptions with(const std::map<std::string, std::string>& variables) {
    return load_store_options([&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
}

TEST(StoreOptions, AreTheDefaultsInAnEmptyEnvironment) {
    const StoreOptions options = with({});
    EXPECT_EQ(options.setup_tries, 20);
    EXPECT_EQ(options.port_min, 12300);
    EXPECT_EQ(options.port_max, 14300);
    EXPECT_FALSE(options.huge_pages);
    EXPECT_TRUE(options.early_pages);
    EXPECT_TRUE(options.checksum);
    EXPECT_EQ(options.rpc_timeout, 30s);
}

TEST(StoreOptions, SayWhereMemoryOutlivesTheProcess) {
    EXPECT_EQ(with({}).warm_dir, "");
    EXPECT_FALSE(with({}).warm_keep);
    const StoreOptions options = with({{"MC_STORE_WARM_DIR", "/dev/shm/a"}, {"MC_STORE_WARM_STOP", "keep"}});
    EXPECT_EQ(options.warm_dir, "/dev/shm/a");
    EXPECT_TRUE(options.warm_keep);
    EXPECT_FALSE(with({{"MC_STORE_WARM_STOP", "remove"}}).warm_keep);
    EXPECT_FALSE(with({{"MC_STORE_WARM_STOP", "yes"}}).warm_keep) << "neither";
    EXPECT_FALSE(parse_warm_stop(""));
}

TEST(StoreOptions, ComeFromTheEnvironment) {
    const StoreOptions options = with({{"MC_STORE_CLIENT_SETUP_RETRIES", "3"},
                                       {"MC_STORE_CLIENT_MIN_PORT", "61000"},
                                       {"MC_STORE_CLIENT_MAX_PORT", "62000"},
                                       {"MC_STORE_USE_HUGEPAGE", "0"},
                                       {"MC_STORE_HUGEPAGE_SIZE", "1GB"},
                                       {"MC_STORE_EARLY_PAGES", "0"},
                                       {"MOONCAKE_STORE_CHECKSUM", "0"},
                                       {"MC_STORE_CLIENT_METRIC", "false"},
                                       {"MC_STORE_CLIENT_METRIC_INTERVAL", "7"},
                                       {"MC_STORE_CLUSTER_ID", "c"},
                                       {"MC_RPC_TIMEOUT_MS", "1500"},
                                       {"MC_RPC_CONNECT_TIMEOUT_MS", "-1"},
                                       {"MC_FORCE_TCP", "1"}});
    EXPECT_EQ(options.setup_tries, 3);
    EXPECT_EQ(options.port_min, 61000);
    EXPECT_EQ(options.port_max, 62000);
    EXPECT_TRUE(options.huge_pages);  // set, to whatever
    EXPECT_EQ(options.huge_page_bytes, uint64_t{1} << 30);
    EXPECT_FALSE(options.early_pages);
    EXPECT_FALSE(options.checksum);
    EXPECT_FALSE(options.metrics);
    EXPECT_EQ(options.metrics_interval, 7s);
    EXPECT_EQ(options.cluster_id, "c");
    EXPECT_EQ(options.rpc_timeout, 1500ms);
    EXPECT_GE(options.rpc_connect_timeout, 1h);  // no limit
    EXPECT_EQ(options.engine.transports, std::vector<std::string>{"tcp"});
}

TEST(StoreOptions, ThatMakeNoSenseAreIgnored) {
    const std::map<std::string, std::string> reserved = {{"MC_STORE_CLIENT_MIN_PORT", "32000"}, {"MC_STORE_CLIENT_MAX_PORT", "33000"}};
    EXPECT_EQ(with(reserved).port_min, 12300);
    const std::map<std::string, std::string> swapped = {{"MC_STORE_CLIENT_MIN_PORT", "14000"}, {"MC_STORE_CLIENT_MAX_PORT", "13000"}};
    EXPECT_EQ(with(swapped).port_max, 14300);
    const StoreOptions options = with({{"MC_STORE_CLIENT_SETUP_RETRIES", "many"},
                                       {"MC_STORE_HUGEPAGE_SIZE", "3MB"},
                                       {"MC_RPC_TIMEOUT_MS", "1e3"},
                                       {"MC_STORE_CLIENT_METRIC_INTERVAL", "-5"}});
    EXPECT_EQ(options.setup_tries, 20);
    EXPECT_EQ(options.huge_page_bytes, uint64_t{2} << 20);
    EXPECT_EQ(options.rpc_timeout, 30s);
    EXPECT_EQ(options.metrics_interval, 0s);
}

TEST(ParseSize, TakesNumbersWithAndWithoutUnits) {
    const std::map<std::string, uint64_t> good = {{"0", 0},
                                                  {"4096", 4096},
                                                  {"16MB", 16 << 20},
                                                  {"16 MB", 16 << 20},
                                                  {" 1gb ", 1 << 30},
                                                  {"2GiB", uint64_t{2} << 30},
                                                  {"3k", 3 << 10},
                                                  {"1TB", uint64_t{1} << 40},
                                                  {"7b", 7},
                                                  {"1.5GB", uint64_t{3} << 29},
                                                  {"18446744073709551615", UINT64_MAX}};
    for (const auto& [text, bytes] : good) {
        const auto parsed = parse_size(text);
        ASSERT_TRUE(parsed) << text;
        EXPECT_EQ(*parsed, bytes) << text;
    }
}

TEST(ParseSize, RefusesEverythingElse) {
    for (const char* const text : {"", " ", "MB", "50%", "-1", "+1", "1 2", "1MBB", "1xb", "0x10", "1e9", "18446744073709551616",
                                   "18446744073709551615k", "1..5", ".", "1.5.GB", "999999999999999999999.0TB", "\xff", "1\xc2\xa0MB"})
        EXPECT_FALSE(parse_size(text)) << text;
    EXPECT_FALSE(parse_size(std::string_view("1\0MB", 4)));
}

}  // namespace
}  // namespace mooncake::store
