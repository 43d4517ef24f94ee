// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

class Log : public testing::Test {
protected:
    void SetUp() override { configure_log({}); }
    void TearDown() override { configure_log({}); }
};

size_t lines_in(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

TEST_F(Log, WritesOneLineWithThePlaceholdersFilled) {
    CaptureStderr();
    MC_LOG_WARNING("segment {} mounted, {} bytes", "a", 7);
    const std::string text = GetCapturedStderr();
    EXPECT_NE(text.find("W mooncake: segment a mounted, 7 bytes\n"), std::string::npos) << text;
    EXPECT_EQ(lines_in(text), 1u);
}

TEST_F(Log, LeavesOutWhatIsBelowTheLevelAndDoesNotEvenFormatIt) {
    configure_log({.level = LogLevel::kWarning});
    CaptureStderr();
    int formatted = 0;
    const auto expensive = [&formatted] { return ++formatted; };
    MC_LOG_INFO("quiet {}", expensive());
    MC_LOG_ERROR("loud {}", expensive());
    const std::string text = GetCapturedStderr();
    EXPECT_EQ(text.find("quiet"), std::string::npos);
    EXPECT_NE(text.find("loud 1"), std::string::npos);
    EXPECT_EQ(formatted, 1);
}

TEST_F(Log, OffWritesNothing) {
    configure_log({.level = LogLevel::kOff});
    CaptureStderr();
    MC_LOG_ERROR("nothing");
    EXPECT_EQ(GetCapturedStderr(), "");
}

TEST_F(Log, WritesToAFileWhenGivenADirectory) {
    std::string directory = std::filesystem::temp_directory_path() / "mooncake_log_XXXXXX";
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
    configure_log({.directory = directory});
    CaptureStderr();
    MC_LOG_INFO("into the file");
    EXPECT_EQ(GetCapturedStderr(), "");
    configure_log({});
    std::ifstream file(format_text("{}/mooncake.{}.log", directory, ::getpid()));
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_NE(text.find("into the file"), std::string::npos);
    std::filesystem::remove_all(directory);
}

TEST_F(Log, FallsBackToStderrWhenTheDirectoryCannotBeUsed) {
    CaptureStderr();
    configure_log({.directory = "/proc/no/such/place"});
    MC_LOG_INFO("still here");
    const std::string text = GetCapturedStderr();
    EXPECT_NE(text.find("cannot log to"), std::string::npos);
    EXPECT_NE(text.find("still here"), std::string::npos);
}

TEST_F(Log, LinesOfManyThreadsStayWhole) {
    CaptureStderr();
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t)
            threads.emplace_back([] {
                for (int i = 0; i < 50; ++i) MC_LOG_INFO("begin middle end");
            });
    }
    const std::string text = GetCapturedStderr();
    EXPECT_EQ(lines_in(text), 200u);
    size_t whole = 0;
    for (size_t at = text.find("begin middle end\n"); at != std::string::npos; at = text.find("begin middle end\n", at + 1)) ++whole;
    EXPECT_EQ(whole, 200u);
}

TEST(LogLevel, IsReadInAnyCaseAndKeepsTheDefaultOtherwise) {
    EXPECT_EQ(parse_log_level("trace", LogLevel::kOff), LogLevel::kTrace);
    EXPECT_EQ(parse_log_level("Info", LogLevel::kOff), LogLevel::kInfo);
    EXPECT_EQ(parse_log_level("WARNING", LogLevel::kOff), LogLevel::kWarning);
    EXPECT_EQ(parse_log_level("error", LogLevel::kInfo), LogLevel::kError);
    for (const std::string_view text : {"", "loud", "infos", "inf"}) EXPECT_EQ(parse_log_level(text, LogLevel::kError), LogLevel::kError);
}

TEST(LogLimit, LetsOneThroughPerInterval) {
    LogLimit limit(1h);
    EXPECT_TRUE(limit.allow());
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(limit.allow());
}

TEST(LogLimit, LetsTheNextThroughWhenTheIntervalIsOver) {
    LogLimit limit(1ms);
    EXPECT_TRUE(limit.allow());
    const Deadline hang = Deadline::after(60s);
    while (!limit.allow()) ASSERT_FALSE(hang.passed());
}

TEST(LogLimit, LetsExactlyOneOfManyThreadsThrough) {
    LogLimit limit(1h);
    std::atomic<int> allowed{0};
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 8; ++t) threads.emplace_back([&] { allowed += limit.allow(); });
    }
    EXPECT_EQ(allowed, 1);
}

TEST_F(Log, EveryRepeatsOnePlaceButNotAnother) {
    CaptureStderr();
    for (int i = 0; i < 10; ++i) {
        MC_LOG_WARNING_EVERY(1h, "first place");
        MC_LOG_WARNING_EVERY(1h, "second place");
    }
    EXPECT_EQ(lines_in(GetCapturedStderr()), 2u);
}

}  // namespace
}  // namespace mooncake
