// SPDX-License-Identifier: Apache-2.0
#include "store/tier/record.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mooncake::store::log {
namespace {

using Bytes = std::vector<std::byte>;

RecordHeader some_header() {
    RecordHeader header;
    header.length = 100'000;
    header.generation = 42;
    header.checksum = 7;
    header.data_type = ObjectDataType::kTensor;
    header.hard_pin = true;
    header.writer = {1, 2};
    header.soft_pin_end_ms = 99;
    header.synced_blocks = 5;
    header.tenant = "default";
    header.group = "a group";
    header.key = "a key";
    lay_out(header);
    return header;
}

Bytes encoded(const RecordHeader& header, Place place) {
    Bytes bytes(header.header_bytes);
    encode_record(header, place, bytes.data());
    return bytes;
}

TEST(Record, ComesBackAsItWas) {
    const RecordHeader header = some_header();
    const Bytes bytes = encoded(header, {11, 3});
    RecordHeader parsed;
    ASSERT_EQ(parse_record(bytes, {11, 3}, parsed), Parsed::kRecord);
    EXPECT_EQ(parsed.kind, RecordKind::kValue);
    EXPECT_EQ(parsed.length, header.length);
    EXPECT_EQ(parsed.generation, header.generation);
    EXPECT_EQ(parsed.checksum, header.checksum);
    EXPECT_EQ(parsed.data_type, header.data_type);
    EXPECT_TRUE(parsed.hard_pin);
    EXPECT_EQ(parsed.writer, header.writer);
    EXPECT_EQ(parsed.soft_pin_end_ms, header.soft_pin_end_ms);
    EXPECT_EQ(parsed.synced_blocks, header.synced_blocks);
    EXPECT_EQ(parsed.tenant, header.tenant);
    EXPECT_EQ(parsed.group, header.group);
    EXPECT_EQ(parsed.key, header.key);
    EXPECT_EQ(parsed.payload_at, kBlockBytes);  // a long value begins at a block
    EXPECT_EQ(parsed.bytes(), round_to_blocks(kBlockBytes + stored_bytes(header.length)));
}

TEST(Record, OfASmallValueWastesNoBlock) {
    RecordHeader header = some_header();
    header.length = 3000;
    lay_out(header);
    EXPECT_EQ(header.payload_at, header.header_bytes);
    EXPECT_EQ(header.blocks, 1u);
}

TEST(Record, BelongsToItsPlace) {
    const Bytes bytes = encoded(some_header(), {11, 3});
    RecordHeader parsed;
    EXPECT_EQ(parse_record(bytes, {11, 4}, parsed), Parsed::kNothing);
    EXPECT_EQ(parse_record(bytes, {12, 3}, parsed), Parsed::kNothing);
}

TEST(Record, IsNothingAfterAnyBitFlipped) {
    const Bytes bytes = encoded(some_header(), {11, 3});
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        Bytes damaged = bytes;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        RecordHeader parsed;
        EXPECT_NE(parse_record(damaged, {11, 3}, parsed), Parsed::kRecord) << "bit " << bit;
    }
}

TEST(Record, IsNothingWhenItIsCut) {
    const Bytes bytes = encoded(some_header(), {11, 3});
    for (size_t length = 0; length < bytes.size(); ++length) {
        RecordHeader parsed;
        const Parsed result = parse_record(std::span(bytes).first(length), {11, 3}, parsed);
        EXPECT_EQ(result, length < kFixedHeaderBytes ? Parsed::kNothing : Parsed::kMore) << length;
    }
}

TEST(Record, OfAKindToComeSaysHowLongItIs) {
    RecordHeader header = some_header();
    header.kind = static_cast<RecordKind>(77);
    const Bytes bytes = encoded(header, {11, 3});
    RecordHeader parsed;
    ASSERT_EQ(parse_record(bytes, {11, 3}, parsed), Parsed::kRecord);
    EXPECT_FALSE(parsed.known_kind());
    EXPECT_EQ(parsed.blocks, header.blocks);
}

TEST(FileHeader, ComesBackAsItWas) {
    Bytes block(kBlockBytes);
    encode_file_header({.number = 9, .salt = 8, .created_ms = 7}, block);
    const auto parsed = parse_file_header(block);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->number, 9u);
    EXPECT_EQ(parsed->salt, 8u);
    EXPECT_EQ(parsed->created_ms, 7u);
}

TEST(FileHeader, IsCorruptAfterAnyBitFlipped) {
    Bytes block(kBlockBytes);
    encode_file_header({.number = 9, .salt = 8, .created_ms = 7}, block);
    for (size_t bit = 0; bit < 48 * 8; ++bit) {
        Bytes damaged = block;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        EXPECT_FALSE(parse_file_header(damaged)) << bit;
    }
}

TEST(FileHeader, OfALaterVersionIsReadWhereItSaysSo) {
    Bytes block(kBlockBytes);
    encode_file_header({.version = kVersion + 1, .readable_from = kVersion, .number = 9}, block);
    EXPECT_TRUE(parse_file_header(block));
    encode_file_header({.version = kVersion + 1, .readable_from = kVersion + 1, .number = 9}, block);
    const auto parsed = parse_file_header(block);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code(), Code::kNotSupported);
}

TEST(FileName, IsReadAsItIsWritten) {
    EXPECT_EQ(file_name(42), "0000002a.log");
    EXPECT_EQ(parse_file_name("0000002a.log"), 42u);
    for (const char* wrong : {"", "lock", "2a.log", "0000002A.log", "0000002a.lox", "00000000.log", "000000-1.log", "0000002a.log "}) {
        EXPECT_EQ(parse_file_name(wrong), std::nullopt) << wrong;
    }
}

TEST(Removals, ComeBackAsTheyWere) {
    Bytes payload;
    append_removal(payload, {"t", "k1", 5});
    append_removal(payload, {"", "key two", 6});
    std::vector<std::string> seen;
    EXPECT_TRUE(for_each_removal(payload, [&](const Removal& removal) {
        seen.push_back(std::string(removal.tenant) + "/" + std::string(removal.key) + "/" + std::to_string(removal.generation));
    }));
    EXPECT_EQ(seen, (std::vector<std::string>{"t/k1/5", "/key two/6"}));
    EXPECT_FALSE(for_each_removal(std::span(payload).first(payload.size() - 1), [](const Removal&) {}));
}

TEST(Directory, RepeatsHeadersAndRemovals) {
    const RecordHeader value = some_header();
    Bytes removals;
    append_removal(removals, {"t", "k", 5});
    RecordHeader removal;
    removal.kind = RecordKind::kRemovals;
    removal.length = removals.size();
    removal.checksum = hash_bytes(removals);
    lay_out(removal);
    Bytes payload;
    append_to_directory(payload, 2, encoded(value, {11, 2}));
    append_to_directory(payload, 30, encoded(removal, {11, 30}), removals);
    std::vector<uint32_t> blocks;
    EXPECT_TRUE(for_each_in_directory(payload, 11, [&](uint32_t block, const RecordHeader& header, std::span<const std::byte> listed) {
        blocks.push_back(block);
        EXPECT_TRUE(header.kind != RecordKind::kRemovals || Bytes(listed.begin(), listed.end()) == removals);
    }));
    EXPECT_EQ(blocks, (std::vector<uint32_t>{2, 30}));
    EXPECT_FALSE(for_each_in_directory(payload, 12, [](uint32_t, const RecordHeader&, std::span<const std::byte>) {}));
}

TEST(Trailer, SaysWhereTheDirectoryIs) {
    Bytes block(kBlockBytes);
    encode_trailer(17, {11, 20}, block);
    EXPECT_EQ(parse_trailer(block, {11, 20}), 17u);
    EXPECT_EQ(parse_trailer(block, {11, 21}), std::nullopt);
    EXPECT_EQ(parse_trailer(Bytes(kBlockBytes), {11, 20}), std::nullopt);
}

}  // namespace
}  // namespace mooncake::store::log
