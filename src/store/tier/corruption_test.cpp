// SPDX-License-Identifier: Apache-2.0
// Flipped bits cost the record they are in.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "store/tier/log_file.h"
#include "store/tier/log_tier.h"
#include "store/tier/record.h"
#include "store/tier/testing/sim_disk.h"
#include "store/tier/testing/tier_calls.h"

namespace mooncake::store {
namespace {

using namespace tier_calls;

constexpr int kKeys = 5;
constexpr size_t kLengths[kKeys] = {100, 5000, 40'000, 70'000, 200'000};

LogTierOptions some_options() {
    LogTierOptions options;
    options.capacity_bytes = 1 << 30;
    options.file_bytes = 4 << 20;
    options.scan_threads = 1;
    options.small_buffers = options.large_buffers = 4;
    return options;
}

std::string key_of(int i) { return "key" + std::to_string(i); }
Bytes bytes_of(int i) { return make_bytes(static_cast<uint64_t>(i), kLengths[i]); }

/// A file with some values; `sealed`: closed in order, so that it has a directory.
std::shared_ptr<SimStore> make_disk(bool sealed) {
    auto disk = std::make_shared<SimStore>();
    auto tier = make_log_tier(disk->mount(), some_options());
    EXPECT_TRUE(tier->recover());
    for (int i = 0; i < kKeys; ++i) EXPECT_EQ(put(*tier, key_of(i), 1, bytes_of(i)), Code::kOk);
    if (!sealed) {  // as after a kill: what was synced is all there
        const auto name = disk->names().front();
        const auto contents = disk->contents(name);
        tier = nullptr;
        disk->set_contents(name, contents);
        return disk;
    }
    return disk;
}

struct Found {
    std::map<int, Code> codes;
    int good = 0;
};

Found read_all(const std::shared_ptr<SimStore>& disk) {
    Found found;
    auto tier = make_log_tier(disk->mount(), some_options());
    const auto recovered = tier->recover();
    EXPECT_TRUE(recovered);
    for (int i = 0; i < kKeys; ++i) {
        const Got got = get(*tier, key_of(i), kLengths[i]);
        if (got.code == Code::kOk) {
            EXPECT_TRUE(got.bytes == bytes_of(i)) << i;
            ++found.good;
        }
        found.codes[i] = got.code;
    }
    return found;
}

/// Where each record of the file begins, by its key.
std::map<std::string, std::pair<uint64_t, log::RecordHeader>> records_of(const std::vector<std::byte>& file,
                                                                         std::vector<std::byte>& texts) {
    std::map<std::string, std::pair<uint64_t, log::RecordHeader>> records;
    texts = file;
    const auto header = log::parse_file_header(std::span(file).first(kBlockBytes));
    EXPECT_TRUE(header);
    for (uint32_t block = log::kFirstRecordBlock; block < file.size() / kBlockBytes;) {
        log::RecordHeader record;
        if (log::parse_record(std::span(texts).subspan(block * kBlockBytes), {header->salt, block}, record) != log::Parsed::kRecord) break;
        if (record.kind == log::RecordKind::kValue) records[std::string(record.key)] = {block * kBlockBytes, record};
        block += record.blocks;
    }
    return records;
}

class Corruption : public testing::TestWithParam<bool> {};

TEST_P(Corruption, OfAnyClassOfByteCostsThatRecordOnly) {
    const auto pristine = make_disk(GetParam());
    const std::string name = pristine->names().front();
    const auto file = pristine->contents(name);
    std::vector<std::byte> texts;
    const auto records = records_of(file, texts);
    ASSERT_EQ(records.size(), static_cast<size_t>(kKeys));
    for (int i = 0; i < kKeys; ++i) {
        const auto& [begin, header] = records.at(key_of(i));
        const uint64_t payload = begin + header.payload_at;
        const uint64_t places[] = {begin,                            // magic
                                   begin + 9,                        // hash
                                   begin + 20,                       // sizes
                                   begin + 40,                       // generation
                                   begin + log::kFixedHeaderBytes,   // tenant
                                   begin + header.header_bytes - 1,  // key
                                   payload,                          // value
                                   payload + header.length / 2,
                                   payload + header.length - 1,
                                   payload + header.payload_bytes() - 1};  // table
        for (const uint64_t place : places) {
            SCOPED_TRACE("key " + std::to_string(i) + ", byte " + std::to_string(place - begin));
            auto damaged = file;
            damaged[place] ^= std::byte{0x10};
            const auto disk = std::make_shared<SimStore>();
            disk->set_contents(name, damaged);
            const Found found = read_all(disk);
            EXPECT_GE(found.good, kKeys - 1);
            for (int other = 0; other < kKeys; ++other) EXPECT_TRUE(other == i || found.codes.at(other) == Code::kOk) << other;
        }
    }
}

TEST_P(Corruption, OfEveryBlockCostsAtMostOneRecord) {
    const auto pristine = make_disk(GetParam());
    const std::string name = pristine->names().front();
    const auto file = pristine->contents(name);
    for (uint64_t block = 0; block < file.size() / kBlockBytes; ++block) {
        if (block > 100 && block + 8 < file.size() / kBlockBytes) continue;  // the middle of the last value, and what is not written yet
        SCOPED_TRACE("block " + std::to_string(block));
        for (const bool zero : {false, true}) {
            auto damaged = file;
            for (uint64_t at = block * kBlockBytes; at < (block + 1) * kBlockBytes; ++at) damaged[at] = zero ? std::byte{0} : ~damaged[at];
            const auto disk = std::make_shared<SimStore>();
            disk->set_contents(name, damaged);
            EXPECT_GE(read_all(disk).good, kKeys - 1);
        }
    }
}

TEST_P(Corruption, ACutFileCostsWhatIsCutOff) {
    const auto pristine = make_disk(GetParam());
    const std::string name = pristine->names().front();
    const auto file = pristine->contents(name);
    std::vector<std::byte> texts;
    const auto records = records_of(file, texts);
    for (int i = 0; i < kKeys; ++i) {
        auto damaged = file;
        damaged.resize(records.at(key_of(i)).first + 10);
        const auto disk = std::make_shared<SimStore>();
        disk->set_contents(name, damaged);
        EXPECT_EQ(read_all(disk).good, i);
    }
}

INSTANTIATE_TEST_SUITE_P(Files, Corruption, testing::Bool(), [](const auto& file) { return file.param ? "sealed" : "unsealed"; });

TEST(Corruption, AValueThatContainsAFileOfATierIsNotTakenForOne) {
    const auto inner = make_disk(true);
    const auto file = inner->contents(inner->names().front());
    const auto disk = std::make_shared<SimStore>();
    {
        auto tier = make_log_tier(disk->mount(), some_options());
        ASSERT_TRUE(tier->recover());
        ASSERT_EQ(put(*tier, "image", 1, file), Code::kOk);
    }
    // The header of the record goes, and the directory, so that the walk looks into the value.
    const std::string name = disk->names().front();
    auto contents = disk->contents(name);
    for (uint64_t at = log::kFirstRecordBlock * kBlockBytes; at < (log::kFirstRecordBlock + 1) * kBlockBytes; ++at)
        contents[at] = std::byte{0xff};
    contents.resize(contents.size() - kBlockBytes);
    disk->set_contents(name, contents);
    auto tier = make_log_tier(disk->mount(), some_options());
    ASSERT_TRUE(tier->recover());
    EXPECT_TRUE(list(*tier).empty());
}

TEST(Corruption, FilesOfLaterVersionsAreLeftAlone) {
    const auto disk = std::make_shared<SimStore>();
    std::vector<std::byte> later(4 * kBlockBytes);
    log::encode_file_header({.version = 9, .readable_from = 9, .number = 7}, std::span(later).first(kBlockBytes));
    log::encode_file_header({.version = 9, .readable_from = 9, .number = 7}, std::span(later).subspan(kBlockBytes, kBlockBytes));
    disk->set_contents(log::file_name(7), later);
    auto tier = make_log_tier(disk->mount(), some_options());
    const auto found = tier->recover();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->left_alone, 1u);
    EXPECT_EQ(put(*tier, "k", 1, make_bytes(1, 100)), Code::kOk);
    tier = nullptr;
    EXPECT_TRUE(disk->contents(log::file_name(7)) == later);
    EXPECT_EQ(disk->names().back(), log::file_name(8));  // numbers go on behind it
}

}  // namespace
}  // namespace mooncake::store
