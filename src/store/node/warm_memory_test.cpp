// SPDX-License-Identifier: Apache-2.0
#include "store/node/warm_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace mooncake::store {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kEpoch = 5;

class WarmFiles : public ::testing::Test {
protected:
    WarmFiles() {
        char name[] = "/dev/shm/mc_warm_test_XXXXXX";
        MC_CHECK(::mkdtemp(name) != nullptr);
        path_ = name;
    }
    ~WarmFiles() override { std::filesystem::remove_all(path_); }

    /// One life of a node: with a value, if it is not there yet.
    struct Life {
        std::unique_ptr<WarmMemory> warm;
        std::unique_ptr<Catalogue> catalogue = std::make_unique<Catalogue>();
        SharedMemory memory;
        std::optional<FormerLife> former;
    };
    Life live(uint64_t bytes = kBytes) {
        auto opened = WarmMemory::open(path_, bytes);
        if (!opened) {
            ADD_FAILURE() << opened.error().to_string();
            return {};
        }
        Life life;
        life.warm = std::move(*opened);
        life.memory = *life.warm->map();
        life.catalogue->add_segment({.id = life.warm->segment(), .name = "n:1", .base = 4096, .size = kBytes});
        life.former = *life.warm->restore(*life.catalogue, Clock::now());
        return life;
    }
    void put(Life& life, uint64_t generation) {
        std::memset(life.memory.address() + generation * 4096, static_cast<int>(generation), 4096);
        EventUpdate update{.sequence = ++sequence_};
        update.planned = {{.segment = life.warm->segment(),
                           .offset = generation * 4096,
                           .length = 4096,
                           .generation = generation,
                           .tenant = "default",
                           .key = "k" + std::to_string(generation),
                           .group = {}}};
        update.filled = {{life.warm->segment(), generation, generation}};
        life.catalogue->apply(update, Clock::now());
        life.warm->journal().heard(update, Clock::now());
    }
    size_t files() const {
        return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
    }
    void expect_cold(const char* why) {
        const Life life = live();
        EXPECT_FALSE(life.warm->found()) << why;
        EXPECT_EQ(life.catalogue->objects(), 0u) << why;
    }

    std::string path_;
    uint64_t sequence_ = 0;
};

TEST_F(WarmFiles, BytesAndWhatTheyAreOutliveTheOneWhoHadThem) {
    ClientId client;
    SegmentId segment;
    {
        Life life = live();
        EXPECT_FALSE(life.warm->found());
        client = life.warm->client();
        segment = life.warm->segment();
        for (uint64_t i = 1; i <= 9; ++i) put(life, i);
    }
    for (int lives = 0; lives < 3; ++lives) {
        const Life life = live();
        ASSERT_TRUE(life.warm->found());
        ASSERT_TRUE(life.former);
        EXPECT_EQ(life.warm->client(), client);
        EXPECT_EQ(life.warm->segment(), segment);
        EXPECT_EQ(life.catalogue->objects(), 9u);
        EXPECT_EQ(life.former->standing.last_update, sequence_);
        for (uint64_t i = 1; i <= 9; ++i) EXPECT_EQ(std::to_integer<uint64_t>(life.memory.address()[i * 4096 + 4095]), i);
    }
}

TEST_F(WarmFiles, ATornEndIsCutOffAndWritingGoesOn) {
    {
        Life life = live();
        put(life, 1);
        put(life, 2);
    }
    std::filesystem::resize_file(path_ + "/journal", std::filesystem::file_size(path_ + "/journal") - 5);
    {
        Life life = live();
        EXPECT_EQ(life.catalogue->objects(), 1u);
        put(life, 3);
    }
    EXPECT_EQ(live().catalogue->objects(), 2u);
}

TEST_F(WarmFiles, NobodyElseUsesItMeanwhile) {
    const Life life = live();
    const auto second = WarmMemory::open(path_, kBytes);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kBusy);
    EXPECT_NE(second.error().message().find("used by another process"), std::string::npos) << second.error().message();
    EXPECT_FALSE(WarmMemory::clean(path_));
}

TEST_F(WarmFiles, WhatCannotBeUsedIsGivenUp) {
    const auto leave_something = [this] {
        Life life = live();
        put(life, 1);
    };
    leave_something();
    {
        const Life life = live(2 * kBytes);
        EXPECT_FALSE(life.warm->found()) << "the segment shall have another size";
    }
    expect_cold("that one had another size, too");
    leave_something();
    std::filesystem::resize_file(path_ + "/journal", 3);
    expect_cold("no journal");
    leave_something();
    std::filesystem::resize_file(path_ + "/segment", kBytes / 2);
    expect_cold("the segment was cut");
    leave_something();
    std::filesystem::copy_file(path_ + "/segment", path_ + "/other");
    std::filesystem::rename(path_ + "/other", path_ + "/segment");
    expect_cold("another file");
    leave_something();
    {
        std::fstream journal(path_ + "/journal", std::ios::in | std::ios::out | std::ios::binary);
        std::array<std::byte, warm::kHeaderBytes> bytes{};
        journal.read(reinterpret_cast<char*>(bytes.data()), bytes.size());
        auto header = warm::parse_header(bytes);
        ASSERT_TRUE(header);
        header->boot ^= 1;
        warm::encode_header(*header, bytes);
        journal.seekp(0);
        journal.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    expect_cold("of another boot");
}

TEST_F(WarmFiles, ForgettingBeginsAsAnother) {
    Life life = live();
    put(life, 1);
    const ClientId client = life.warm->client();
    const SegmentId segment = life.warm->segment();
    life = {};
    auto warm = WarmMemory::open(path_, kBytes);
    ASSERT_TRUE(warm && (*warm)->found());
    const SharedMemory before = *(*warm)->map();
    ASSERT_TRUE((*warm)->forget());
    EXPECT_FALSE((*warm)->found());
    EXPECT_NE((*warm)->client(), client);
    EXPECT_NE((*warm)->segment(), segment);
    const SharedMemory after = *(*warm)->map();
    std::memset(before.address(), 7, 4096);
    EXPECT_EQ(after.address()[0], std::byte{0}) << "late writers of before reach other memory";
}

TEST_F(WarmFiles, NothingIsLeftWhenItIsRemoved) {
    Life life = live();
    put(life, 1);
    EXPECT_EQ(files(), 2u);
    life.warm->journal().discard();
    EXPECT_EQ(files(), 0u);
    put(life, 2);  // mapped still, and written down no more
    EXPECT_EQ(files(), 0u);
    life = {};
    expect_cold("removed");
}

TEST_F(WarmFiles, CleansUpAfterTheDead) {
    {
        Life life = live();
        put(life, 1);
    }
    const auto cleaned = WarmMemory::clean(path_);
    ASSERT_TRUE(cleaned);
    EXPECT_GE(cleaned->bytes, kBytes);
    EXPECT_EQ(files(), 0u);
    EXPECT_EQ(WarmMemory::clean(path_)->bytes, 0u);
    const auto missing = WarmMemory::clean(path_ + "/no");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

TEST_F(WarmFiles, RefusesDirectoriesThatWillNotDo) {
    const auto code = [](const std::string& path, uint64_t bytes = kBytes) {
        const auto opened = WarmMemory::open(path, bytes);
        return opened ? Code::kOk : opened.error().code();
    };
    EXPECT_EQ(code(""), Code::kInvalidArgument);
    EXPECT_EQ(code(path_ + "/no/where"), Code::kInvalidArgument);
    EXPECT_EQ(code("/proc"), Code::kInvalidArgument);
    char disk[] = "/var/tmp/mc_warm_test_XXXXXX";
    ASSERT_NE(::mkdtemp(disk), nullptr);
    struct stat status {};
    if (::stat("/dev/shm", &status) == 0) {
        struct stat other {};
        ASSERT_EQ(::stat(disk, &other), 0);
        if (other.st_dev != status.st_dev) {
            EXPECT_EQ(code(disk), Code::kInvalidArgument) << "not a tmpfs";
        }
    }
    std::filesystem::remove_all(disk);
    ASSERT_EQ(::chmod(path_.c_str(), 0777), 0);
    EXPECT_EQ(code(path_), Code::kInvalidArgument) << "others may write there";
    ASSERT_EQ(::chmod(path_.c_str(), 0700), 0);
    EXPECT_EQ(code(path_, uint64_t{1} << 50), Code::kNoSpace);
    EXPECT_EQ(files(), 0u);
    EXPECT_EQ(code(path_ + "/new"), Code::kOk) << "made where it is missing";
}

}  // namespace
}  // namespace mooncake::store
