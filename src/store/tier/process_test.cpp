// SPDX-License-Identifier: Apache-2.0
// Real files: a process that is killed, a file system that is full or read only, files that somebody deletes.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "base/unique_fd.h"
#include "store/tier/log_tier.h"
#include "store/tier/testing/tier_calls.h"

namespace mooncake::store {
namespace {

using namespace tier_calls;
namespace fs = std::filesystem;

std::string make_folder() {
    char folder[] = "/tmp/mc_tier_XXXXXX";
    EXPECT_NE(::mkdtemp(folder), nullptr);
    return folder;
}

std::unique_ptr<StorageTier> make_tier(const std::string& folder, uint64_t capacity = 256 << 20) {
    auto disk = open_disk({.path = folder});
    EXPECT_TRUE(disk) << disk.error().to_string();
    LogTierOptions options;
    options.capacity_bytes = capacity;
    options.file_bytes = 2 << 20;
    options.small_buffers = 16;
    options.large_buffers = 4;
    auto tier = make_log_tier(std::move(*disk), options);
    const auto found = tier->recover();
    EXPECT_TRUE(found) << found.error().to_string();
    return tier;
}

Bytes value_of(uint64_t key, uint64_t generation) {
    return make_bytes(key * 1'000'003 + generation, 1000 + (key * 7919 + generation * 104'729) % 120'000);
}

class Folder {
public:
    ~Folder() { fs::remove_all(path); }
    const std::string path = make_folder();
};

// a process that is killed -------------------------------------------------------------------------------------------------

constexpr uint64_t kKeys = 50;

/// Writes and removes without end, and says on stdout what it begins ("?") and what was answered ("+", "-"), with key and generation.
TEST(KilledTier, DISABLED_Child) {
    const auto instructions = testing::internal::GetArgvs();
    std::ifstream file(instructions.back());
    std::string folder;
    uint64_t seed = 0, generation = 0;
    file >> folder >> seed >> generation;
    auto tier = make_tier(folder);
    std::mt19937_64 random(seed);
    const auto say = [](char what, uint64_t key, uint64_t g) {
        const std::string line = std::string("\n@ ") + what + " " + std::to_string(key) + " " + std::to_string(g) + "\n";
        if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::exit(0);
    };
    while (true) {
        const uint64_t key = random() % kKeys;
        const std::string name = "k" + std::to_string(key);
        ++generation;
        if (random() % 4 == 0) {
            say('!', key, generation);
            if (remove(*tier, name, generation) == Code::kOk) say('-', key, generation);
        } else {
            say('?', key, generation);
            if (put(*tier, name, generation, value_of(key, generation)) == Code::kOk) say('+', key, generation);
        }
    }
}

struct Known {
    uint64_t answered = 0;  // generation of the last value or removal that was
    bool removed = true;
    uint64_t begun = 0;  // after that one
    bool begun_removal = false;
};

/// Follows what a child says until it has answered so often, then kills it.
void run_child(const std::string& folder, uint64_t seed, uint64_t& generation, int answers_max, std::map<uint64_t, Known>& known) {
    const std::string instructions = folder + "/instructions";
    std::ofstream(instructions) << folder << " " << seed << " " << generation << "\n";
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDOUT_FILENO);
        ::close(ends[0]);
        ::close(ends[1]);
        ::execl("/proc/self/exe", "tier", "--gtest_also_run_disabled_tests", "--gtest_filter=KilledTier.DISABLED_Child",
                instructions.c_str(), nullptr);
        ::_exit(1);
    }
    ::close(ends[1]);
    FILE* lines = ::fdopen(ends[0], "r");
    char line[256];
    int answers = 0;
    bool killed = false;
    // What it has said before it died is read to the end.
    while (std::fgets(line, sizeof line, lines) != nullptr) {
        char what = 0;
        unsigned long long key = 0, g = 0;
        if (std::sscanf(line, "@ %c %llu %llu", &what, &key, &g) != 3) continue;
        generation = std::max<uint64_t>(generation, g);
        Known& state = known[key];
        if (what == '?' || what == '!') {
            state.begun = g;
            state.begun_removal = what == '!';
        } else {
            state = {g, what == '-', 0, false};
            ++answers;
        }
        if (answers >= answers_max && !std::exchange(killed, true)) ::kill(child, SIGKILL);
    }
    std::fclose(lines);
    ::waitpid(child, nullptr, 0);
    EXPECT_GE(answers, answers_max);
}

TEST(KilledTier, KeepsWhatItAnswered) {
    const Folder folder;
    std::map<uint64_t, Known> known;
    uint64_t generation = 0;
    std::mt19937_64 random(11);
    for (uint64_t round = 0; round < 12 && !testing::Test::HasFailure(); ++round) {
        run_child(folder.path, round, generation, 20 + static_cast<int>(random() % 120), known);
        const auto tier = make_tier(folder.path);
        const auto listed = list(*tier);
        for (auto& [key, state] : known) {
            SCOPED_TRACE("round " + std::to_string(round) + ", key " + std::to_string(key));
            const std::string name = "k" + std::to_string(key);
            const auto found = listed.find("default/" + name);
            if (found == listed.end()) {
                EXPECT_TRUE(state.removed || (state.begun != 0 && state.begun_removal));
                state = {state.begun != 0 ? state.begun : state.answered, true, 0, false};
                continue;
            }
            const uint64_t is = found->second.generation;
            EXPECT_TRUE((!state.removed && is == state.answered) || (is == state.begun && !state.begun_removal)) << is;
            const Got got = get(*tier, name, found->second.length);
            EXPECT_EQ(got.code, Code::kOk);
            EXPECT_TRUE(got.bytes == value_of(key, is));
            state = {is, false, 0, false};
        }
    }
}

TEST(ForkedTier, DoesNothingInTheChild) {
    const Folder folder;
    auto tier = make_tier(folder.path);
    ASSERT_EQ(put(*tier, "k", 1, make_bytes(1, 1000)), Code::kOk);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool quiet = put(*tier, "l", 1, make_bytes(1, 1000)) == Code::kCancelled && get(*tier, "k", 1000).code == Code::kCancelled;
        tier = nullptr;
        ::_exit(quiet ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(get(*tier, "k", 1000).bytes == make_bytes(1, 1000));
    EXPECT_EQ(put(*tier, "l", 1, make_bytes(2, 1000)), Code::kOk);
}

// file systems -------------------------------------------------------------------------------------------------------------

/// A small one of its own; empty where mounting is not permitted.
class SmallFileSystem {
public:
    SmallFileSystem() : mounted_(::mount("tmpfs", folder.path.c_str(), "tmpfs", 0, "size=16m") == 0) {}
    ~SmallFileSystem() {
        if (mounted_) ::umount2(folder.path.c_str(), MNT_DETACH);
    }
    explicit operator bool() const { return mounted_; }
    bool make_read_only() const { return ::mount("tmpfs", folder.path.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0; }

    const Folder folder;

private:
    const bool mounted_;
};

TEST(FullFileSystem, MakesRoomOrRefuses) {
    const SmallFileSystem small;
    if (!small) GTEST_SKIP() << "mounting is not permitted";
    auto tier = make_tier(small.folder.path, 1ull << 30);  // thinks that it may use far more
    for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(put(*tier, "k" + std::to_string(i), i + 1, make_bytes(i, 400'000)), Code::kOk) << i;
    EXPECT_GT(tier->usage().evicted, 0u);
    EXPECT_TRUE(get(*tier, "k99", 400'000).bytes == make_bytes(99, 400'000));
    EXPECT_EQ(put(*tier, "huge", 200, make_bytes(1, 20 << 20)), Code::kNoSpace);
    EXPECT_EQ(put(*tier, "small", 201, make_bytes(1, 1000)), Code::kOk);
    tier = nullptr;
    tier = make_tier(small.folder.path, 1ull << 30);
    for (const auto& [key, listed] : list(*tier)) EXPECT_EQ(get(*tier, key.substr(8), listed.length).code, Code::kOk);
}

TEST(ReadOnlyFileSystem, IsReadAndNotWritten) {
    const SmallFileSystem small;
    if (!small) GTEST_SKIP() << "mounting is not permitted";
    auto tier = make_tier(small.folder.path, 8 << 20);
    for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(put(*tier, "k" + std::to_string(i), i + 1, make_bytes(i, 100'000)), Code::kOk);
    tier = nullptr;
    ASSERT_TRUE(small.make_read_only());
    tier = make_tier(small.folder.path, 8 << 20);
    for (uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(get(*tier, "k" + std::to_string(i), 100'000).bytes == make_bytes(i, 100'000));
    EXPECT_EQ(put(*tier, "new", 100, make_bytes(1, 1000)), Code::kUnavailable);
    EXPECT_EQ(remove(*tier, "k3", 100), Code::kUnavailable);
    EXPECT_EQ(get(*tier, "k3", 100'000).code, Code::kNotFound);
    EXPECT_EQ(get(*tier, "k4", 100'000).code, Code::kOk);
}

TEST(DeletedFiles, CostTheirValuesAtTheNextStart) {
    const Folder folder;
    auto tier = make_tier(folder.path);
    for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(put(*tier, "k" + std::to_string(i), i + 1, make_bytes(i, 500'000)), Code::kOk);
    for (const auto& entry : fs::directory_iterator(folder.path)) fs::remove(entry.path());
    for (uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(get(*tier, "k" + std::to_string(i), 500'000).bytes == make_bytes(i, 500'000));
    EXPECT_EQ(put(*tier, "new", 100, make_bytes(1, 3'000'000)), Code::kOk);
    tier = nullptr;
    tier = make_tier(folder.path);
    EXPECT_EQ(get(*tier, "k0", 500'000).code, Code::kNotFound);
    EXPECT_EQ(get(*tier, "new", 3'000'000).code, Code::kOk);
}

TEST(CutFiles, CostWhatIsCutOff) {
    const Folder folder;
    auto tier = make_tier(folder.path);
    for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(put(*tier, "k" + std::to_string(i), i + 1, make_bytes(i, 100'000)), Code::kOk);
    for (const auto& entry : fs::directory_iterator(folder.path))
        if (entry.path().extension() == ".log") fs::resize_file(entry.path(), 300'000);
    int good = 0;
    for (uint64_t i = 0; i < 10; ++i) {
        const Got got = get(*tier, "k" + std::to_string(i), 100'000);
        good += got.code == Code::kOk ? 1 : 0;
        EXPECT_TRUE(got.code == Code::kCorrupt || (got.code == Code::kOk && got.bytes == make_bytes(i, 100'000))) << code_name(got.code);
    }
    EXPECT_EQ(good, 2);
}

TEST(OpenDisk, RefusesWhatIsNoDirectory) {
    const Folder folder;
    fs::create_directory(folder.path + "/real");
    fs::create_directory_symlink(folder.path + "/real", folder.path + "/link");
    std::ofstream(folder.path + "/file") << "x";
    for (const std::string& path : {std::string(), std::string("relative"), folder.path + "/none", folder.path + "/link",
                                    folder.path + "/file", folder.path + "/real/../real", folder.path + "/.."}) {
        const auto disk = open_disk({.path = path});
        ASSERT_FALSE(disk) << path;
        EXPECT_EQ(disk.error().code(), Code::kInvalidArgument) << path;
    }
    EXPECT_TRUE(open_disk({.path = folder.path + "/real"}));
}

}  // namespace
}  // namespace mooncake::store
