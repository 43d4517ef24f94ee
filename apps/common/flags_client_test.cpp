// SPDX-License-Identifier: Apache-2.0
#include "apps/common/flags_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace mooncake::store {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result<ClientFlags> parse(const std::vector<std::string>& words) { return parse_client_flags(words); }

TEST(ClientFlags, HaveTheirDefaults) {
    ClientFlags flags;
    FlagSet set;
    add_client_flags(set, flags);
    const std::pair<const char*, const char*> documented[] = {
        {"host", "0.0.0.0"},
        {"bind_address", ""},
        {"port", "50052"},
        {"metadata_server", "http://127.0.0.1:8080/metadata"},
        {"master_server_address", "127.0.0.1:50051"},
        {"protocol", "tcp"},
        {"device_names", ""},
        {"global_segment_size", "4 GB"},
        {"local_buffer_size", "0"},
        {"threads", "1"},
        {"tenant_id", "default"},
        {"enable_offload", "false"},
        {"offload_path", ""},
        {"warm_dir", ""},
        {"warm_stop", ""},
        {"warm_clean", ""},
        {"start_offload_rpc_server", "true"},
        {"enable_http_server", "false"},
        {"http_port", "9300"},
        {"use_mmap_arena_allocator", "false"},
        {"mmap_arena_pool_size", "8 GB"},
    };
    for (const auto& [name, value] : documented) EXPECT_EQ(set.default_value(name), value) << name;
    EXPECT_THAT(parse({})->warnings, IsEmpty());
}

TEST(ClientFlags, AreTakenInAllForms) {
    const auto flags = parse(
        {"--host", "10.0.0.1", "-global_segment_size=16MB", "--enable_http_server", "--http_port=9", "--tenant_id", "t"});
    ASSERT_TRUE(flags) << flags.error().message();
    EXPECT_EQ(flags->host, "10.0.0.1");
    EXPECT_EQ(flags->global_segment_size, "16MB");
    EXPECT_TRUE(flags->enable_http_server);
    EXPECT_EQ(flags->http_port, 9);
    EXPECT_EQ(flags->tenant_id, "t");
}

TEST(ClientFlags, SayWhatIsWrongOrNotBuilt) {
    EXPECT_THAT(parse({"--hots=a"}).error().message(), HasSubstr("did you mean --host?"));
    EXPECT_THAT(parse({"--http_port=0"}).error().message(), HasSubstr("http_port"));
    EXPECT_TRUE(parse({"--port=1", "--threads=3"})->port_given);
    EXPECT_FALSE(parse({"--threads=3"})->port_given);
    EXPECT_THAT(parse({"--threads=0"}).error().message(), HasSubstr("threads"));
    EXPECT_THAT(parse({"--enable_offload", "--offload_path=/mnt/ssd", "--nostart_offload_rpc_server"})->warnings, IsEmpty());
    EXPECT_TRUE(parse({"--enable_offload"})->enable_offload);
    EXPECT_EQ(parse({"--offload_path", "/mnt/ssd"})->offload_path, "/mnt/ssd");
    EXPECT_FALSE(parse({"--enable_offload=perhaps"}));
    EXPECT_THAT(client_help(), AllOf(HasSubstr("--global_segment_size"), HasSubstr("default: 4 GB")));
}

TEST(ProgramLog, IsAFileThatALinkLeadsTo) {
    char path[] = "/tmp/mooncake-log-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    const std::filesystem::path folder = path;
    configure_program_log({.log_dir = folder.string()}, {}, "program");
    MC_LOG_INFO("a line of this test");
    configure_log({});
    const std::filesystem::path link = folder / "program.INFO";
    ASSERT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_THAT(std::filesystem::read_symlink(link).string(),
                testing::MatchesRegex(format_text("program\\.INFO\\.[0-9]+-[0-9]+\\.{}", ::getpid())));
    std::string line;
    std::getline(std::ifstream(link) >> std::ws, line);
    EXPECT_THAT(line, HasSubstr("a line of this test"));
    std::filesystem::remove_all(folder);
}

}  // namespace

}  // namespace mooncake::store
