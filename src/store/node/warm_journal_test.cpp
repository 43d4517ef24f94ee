// SPDX-License-Identifier: Apache-2.0
#include "store/node/warm_journal.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace mooncake::store {
namespace {

constexpr ClientId kSelf{1, 2};
constexpr SegmentId kSegment{3, 4}, kOther{5, 6};
constexpr uint64_t kEpoch = 77;

/// Files in memory.
class Files final : public JournalFile {
public:
    Result<> append(std::span<const std::byte> bytes) override {
        if (fails) return fail(Code::kNoSpace, "full");
        std::vector<std::byte>& to = anew_ ? next_ : current;
        to.insert(to.end(), bytes.begin(), bytes.end());
        return {};
    }
    Result<> begin_anew() override {
        anew_ = true;
        next_.clear();
        return {};
    }
    Result<> commit() override {
        current = std::move(next_);
        anew_ = false;
        ++rewritten;
        return {};
    }
    void discard() noexcept override {
        current.clear();
        discarded = true;
    }

    std::vector<std::byte> current;
    bool fails = false, discarded = false;
    int rewritten = 0;

private:
    std::vector<std::byte> next_;
    bool anew_ = false;
};

SegmentSpec spec(SegmentId id = kSegment) { return {.id = id, .name = "n:1", .base = 4096, .size = 1 << 30}; }

/// Everything that a catalogue would report.
std::string dump(const Catalogue& catalogue, Time now) {
    std::string text;
    catalogue.report(1'000'000, now, [&](const HeldSegment& part) {
        text += part.exact ? "exact\n" : "not exact\n";
        std::map<std::pair<uint64_t, uint64_t>, std::string> lines;
        for (const HeldObject& one : part.objects)
            lines[{one.offset, one.generation}] = format_text(
                "object {} {} {} {} {} {} {} {} {} {} {}\n", one.tenant, one.key, one.group, one.offset, one.length, one.generation,
                one.checksum, static_cast<int>(one.data_type), one.hard_pin, one.soft_pin_left.count(), one.writer.to_string());
        for (const HeldWrite& one : part.writes)
            lines[{one.offset, one.length}] += format_text("write {} {} {}\n", one.offset, one.length, one.writer.to_string());
        for (const HeldQuarantine& one : part.quarantined)
            lines[{one.offset, 0}] += format_text("quarantined {} {} {} {}\n", one.offset, one.length, one.left.count(),
                                                  one.writer.to_string());
        for (const auto& [at, line] : lines) text += line;
        return true;
    });
    return text;
}

RangePlanned planned(uint64_t generation, uint64_t offset, SegmentId segment = kSegment) {
    return {.segment = segment,
            .offset = offset,
            .length = 100 + generation,
            .generation = generation,
            .tenant = generation % 2 ? "default" : "other",
            .key = "key" + std::to_string(generation),
            .group = generation % 3 ? "" : "group",
            .data_type = ObjectDataType::kUnknown,
            .hard_pin = generation % 5 == 0,
            .soft_pin_left = generation % 7 == 0 ? Duration(1h) : Duration(0),
            .writer = {9, generation % 4}};
}

class Journal : public ::testing::Test {
protected:
    Journal() {
        catalogue_.add_segment(spec());
        catalogue_.add_segment(spec(kOther));
        EXPECT_TRUE(journal_.start_anew(now_));
    }
    void follow(uint64_t epoch = kEpoch) {
        standing_.followed_epoch = epoch;
        standing_.following = true;
        standing_.whole = false;
        standing_.last_update = 0;
        journal_.stands(standing_);
    }
    void hear(EventUpdate update) {
        update.sequence = ++sequence_;
        catalogue_.apply(update, now_);
        journal_.heard(update, now_);
        standing_.hear(update);
    }
    void begin() {
        follow();
        hear({.reset = true, .now = {kEpoch, 1}});
        hear({.complete = true, .now = {kEpoch, 2}});
    }
    void end(bool orderly) {
        catalogue_.stream_ended(orderly);
        journal_.stream_ended(orderly, now_);
        standing_.end(orderly);
    }
    struct Read {
        std::unique_ptr<Catalogue> catalogue;
        WarmReplay replay;
    };
    Read read(std::span<const std::byte> file) const {
        Read result{std::make_unique<Catalogue>(), {}};
        result.catalogue->add_segment(spec());
        const auto header = warm::parse_header(file);
        EXPECT_TRUE(header);
        if (header) result.replay = replay_journal(file, *header, result.catalogue.get(), now_);
        return result;
    }
    /// Of the segment that is written down, as one that was cut off would report it.
    std::string expected() const {
        Catalogue copy;
        copy.add_segment(spec());
        EventUpdate reset{.reset = true};
        copy.apply(reset, now_);
        catalogue_.save(kSegment, now_, [&](const EventView& part) { copy.apply(part, now_); });
        EventUpdate complete{.complete = true};
        copy.apply(complete, now_);
        return dump(copy, now_);
    }
    static std::string without_exactness(std::string text) { return text.substr(text.find('\n') + 1); }

    Time now_ = Clock::now();
    Catalogue catalogue_;
    Files files_;
    WarmJournal journal_{{.file = files_, .catalogue = catalogue_, .header = {.salt = 5, .client = kSelf, .segment = kSegment}}, {}, 0};
    Standing standing_;
    uint64_t sequence_ = 0;
};

TEST_F(Journal, HasNothingToTellAtFirst) {
    const Read found = read(files_.current);
    EXPECT_TRUE(found.replay.whole);
    EXPECT_EQ(found.catalogue->objects(), 0u);
    EXPECT_EQ(found.replay.remembered.standing, Standing{});
}

TEST_F(Journal, TellsWhatWasHeardOfItsOwnSegment) {
    begin();
    hear({.planned = {planned(10, 0), planned(11, 4096), planned(12, 8192, kOther)},
          .filled = {{kSegment, 10, 123}, {kOther, 12, 5}},
          .dropped = {}});
    hear({.planned = {planned(13, 16384)}, .filled = {{kSegment, 13, 7}}, .dropped = {{kSegment, 10, 10s}}});
    const Read found = read(files_.current);
    EXPECT_TRUE(found.replay.whole);
    EXPECT_EQ(found.catalogue->objects(), 1u) << "the write of 11 had not ended";
    EXPECT_EQ(without_exactness(dump(*found.catalogue, now_)), without_exactness(expected()));
    const Standing& stood = found.replay.remembered.standing;
    EXPECT_EQ(stood.last_update, sequence_);
    EXPECT_EQ(stood.whole_update, sequence_);
    EXPECT_EQ(stood.whole_epoch, kEpoch);
    EXPECT_EQ(stood.heard, (HistoryPoint{kEpoch, 2}));
    EXPECT_TRUE(stood.following);
    EXPECT_EQ(stood.missed_epoch, kEpoch) << "that master went on without it";
    EXPECT_TRUE(found.replay.exact) << "if that master tells the rest";
}

TEST_F(Journal, KnowsThatAMasterEndedBeforeItDid) {
    begin();
    hear({.planned = {planned(10, 0)}, .filled = {{kSegment, 10, 123}}, .dropped = {}});
    end(/*orderly=*/true);
    const Read found = read(files_.current);
    EXPECT_FALSE(found.replay.remembered.standing.following);
    EXPECT_EQ(found.replay.remembered.standing.missed_epoch, 0u) << "there was nothing to miss";
    EXPECT_EQ(dump(*found.catalogue, now_), expected());
    EXPECT_TRUE(dump(*found.catalogue, now_).starts_with("exact")) << "it heard everything";
}

TEST_F(Journal, IsNotExactInTheMiddleOfABeginning) {
    begin();
    hear({.planned = {planned(10, 0), planned(11, 4096)}, .filled = {{kSegment, 10, 1}, {kSegment, 11, 2}}, .dropped = {}});
    end(/*orderly=*/false);
    follow();
    hear({.reset = true, .planned = {planned(12, 4096)}, .filled = {{kSegment, 12, 3}}, .dropped = {}, .now = {kEpoch, 9}});
    const Read found = read(files_.current);
    EXPECT_FALSE(found.replay.exact);
    EXPECT_EQ(found.catalogue->objects(), 2u) << "of 11 the place was taken";
    EXPECT_TRUE(dump(*found.catalogue, now_).starts_with("not exact"));
    EXPECT_LT(found.replay.remembered.standing.whole_update, sequence_);
    EXPECT_EQ(found.replay.remembered.standing.last_update, sequence_) << "it may have said that it heard this";
}

TEST_F(Journal, WhatWasMissedTakesThePlaceOfWhatWasKnown) {
    begin();
    hear({.planned = {planned(10, 0), planned(11, 4096)}, .filled = {{kSegment, 10, 1}, {kSegment, 11, 2}}, .dropped = {}});
    end(/*orderly=*/false);
    catalogue_.begin_missed();
    journal_.missed(/*begins=*/true);
    hear({.planned = {planned(12, 4096)}, .filled = {{kSegment, 12, 3}}, .dropped = {}});
    EXPECT_EQ(read(files_.current).catalogue->objects(), 2u) << "also of one that was killed before it had heard all";
    catalogue_.end_missed();
    journal_.missed(/*begins=*/false);
    const Read found = read(files_.current);
    EXPECT_EQ(found.catalogue->objects(), 2u) << "of 11 the place was taken";
    EXPECT_EQ(without_exactness(dump(*found.catalogue, now_)), without_exactness(expected()));
    EXPECT_TRUE(found.replay.remembered.standing.following) << "that is no end of a master";
}

TEST_F(Journal, RemembersWhatOthersDidNotHear) {
    follow();
    hear({.reset = true, .behind = {{{7, 7}, {kEpoch, 3}}, {{8, 8}, {kEpoch, 4}}}, .now = {kEpoch, 1}});
    hear({.complete = true, .caught_up = {{7, 7}}, .now = {kEpoch, 2}});
    for (const bool rewritten : {false, true}) {
        if (rewritten) {
            EXPECT_TRUE(journal_.start_anew(now_));
        }
        const Read found = read(files_.current);
        EXPECT_TRUE(found.replay.remembered.behind.contains({8, 8})) << rewritten;
        EXPECT_FALSE(found.replay.remembered.behind.contains({7, 7})) << rewritten;
    }
}

TEST_F(Journal, IsWrittenAnewWhenItIsLong) {
    begin();
    for (uint64_t i = 1; i <= 60'000; ++i)
        hear({.planned = {planned(i, i % 16 * 4096)},
              .filled = {{kSegment, i, i}},
              .dropped = {{kSegment, i > 16 ? i - 16 : 0, Duration(0)}}});
    EXPECT_GT(files_.rewritten, 3);
    EXPECT_LT(files_.current.size(), 4u << 20);
    const Read found = read(files_.current);
    EXPECT_EQ(found.catalogue->objects(), 16u);
    EXPECT_EQ(without_exactness(dump(*found.catalogue, now_)), without_exactness(expected()));
    EXPECT_EQ(found.replay.remembered.standing.last_update, sequence_);
}

TEST_F(Journal, OfOneThatCannotBeWrittenNothingIsLeft) {
    begin();
    files_.fails = true;
    hear({.planned = {planned(1, 0)}, .filled = {}, .dropped = {}});
    EXPECT_TRUE(files_.discarded) << "else the next process would take what it says for all there is";
    EXPECT_TRUE(journal_.broken());
    files_.fails = false;
    hear({.filled = {{kSegment, 1, 1}}, .dropped = {}});
    EXPECT_TRUE(files_.current.empty());
}

/// Whatever is cut off or damaged, what comes out is what was there at the end of some record.
class DamagedJournal : public Journal {
protected:
    void fill(uint64_t seed, int updates) {
        std::mt19937_64 random(seed);
        std::map<uint64_t, bool> live;  // generation -> filled
        uint64_t generation = 0;
        note();
        begin();
        note();
        for (int i = 0; i < updates; ++i) {
            EventUpdate update;
            for (uint64_t n = random() % 4; n > 0; --n) {
                ++generation;
                update.planned.push_back(planned(generation, generation * 65'536));
                live[generation] = false;
                if (random() % 5 == 0) update.planned.back().key.clear();  // only in quarantine
            }
            for (auto& [number, filled] : live)
                if (!filled && random() % 2) {
                    update.filled.push_back({kSegment, number, number * 3});
                    filled = true;
                }
            for (auto at = live.begin(); at != live.end();)
                if (random() % 8 == 0) {
                    update.dropped.push_back({kSegment, at->first, random() % 2 ? Duration(0) : Duration(20s)});
                    at = live.erase(at);
                } else {
                    ++at;
                }
            hear(update);
            note();
        }
    }
    void note() { states_[files_.current.size()] = without_exactness(expected()); }  // time stands still

    std::map<size_t, std::string> states_;  // by the length of the file
};

TEST_F(DamagedJournal, SaysTheSameAsTheCatalogueAtEveryMoment) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        sequence_ = 0;
        std::mt19937_64 random(seed);
        uint64_t generation = seed * 1'000'000;
        begin();
        for (int i = 0; i < 60; ++i) {
            EventUpdate update;
            for (uint64_t n = random() % 4; n > 0; --n) {
                ++generation;
                update.planned.push_back(planned(generation, generation % 5'000 * 65'536));
            }
            for (uint64_t n = random() % 3; n > 0; --n) update.filled.push_back({kSegment, generation - random() % 5, n});
            for (uint64_t n = random() % 3; n > 0; --n) update.dropped.push_back({kSegment, generation - random() % 9, 5s});
            if (random() % 5 == 0 && !update.planned.empty()) update.planned[0].key.clear();
            now_ += std::chrono::milliseconds(random() % 900);
            hear(update);
            if (random() % 9 == 0) {
                ASSERT_TRUE(journal_.start_anew(now_));
            }
            if (random() % 15 == 0) {
                end(random() % 2 == 0);
                begin();
            }
            ASSERT_EQ(without_exactness(dump(*read(files_.current).catalogue, now_)), without_exactness(expected())) << seed << " " << i;
        }
    }
}

TEST_F(DamagedJournal, CutAnywhereCountsUpToTheLastWholeRecord) {
    fill(1, 30);
    const std::vector<std::byte> whole = files_.current;
    for (size_t length = warm::kHeaderBytes; length <= whole.size(); ++length) {
        const Read found = read(std::span(whole).first(length));
        ASSERT_LE(found.replay.bytes, length);
        ASSERT_EQ(found.replay.whole, found.replay.bytes == length);
        if (const auto state = states_.find(found.replay.bytes); state != states_.end()) {
            ASSERT_EQ(without_exactness(dump(*found.catalogue, now_)), state->second) << length;
        }
        if (!found.replay.whole && found.replay.remembered.standing.followed_epoch != 0) {
            ASSERT_TRUE(found.replay.remembered.standing.following) << "nobody knows what came";
        }
    }
}

TEST_F(DamagedJournal, FlippedAnywhereCountsUpToTheDamage) {
    fill(2, 12);
    end(/*orderly=*/true);
    const std::vector<std::byte> whole = files_.current;
    std::vector<std::byte> damaged = whole;
    for (size_t at = 0; at < whole.size(); ++at) {
        damaged[at] ^= std::byte{0x10};
        if (at < warm::kHeaderBytes) {
            ASSERT_FALSE(warm::parse_header(damaged)) << at;
        } else {
            const Read found = read(damaged);
            if (!found.replay.whole) {
                ASSERT_LE(found.replay.bytes, at);
                ASSERT_TRUE(found.replay.remembered.standing.followed_epoch == 0 || found.replay.remembered.standing.following) << at;
            } else {
                ASSERT_EQ(dump(*found.catalogue, now_), dump(*read(whole).catalogue, now_)) << at << ": only padding may change";
            }
        }
        damaged[at] = whole[at];
    }
}

TEST_F(DamagedJournal, RecordsOfAnotherFileOrPlaceAreNone) {
    fill(3, 5);
    std::vector<std::byte> doubled = files_.current;
    const size_t record = doubled.size() - warm::kHeaderBytes;
    doubled.insert(doubled.end(), files_.current.end() - static_cast<std::ptrdiff_t>(record), files_.current.end());
    EXPECT_EQ(read(doubled).replay.bytes, files_.current.size()) << "a record at another place";
}

TEST(WarmFormat, ReadsTheVersionBeforeAndNoneThatCannotBeRead) {
    std::array<std::byte, warm::kHeaderBytes> bytes{};
    const warm::Header header{.salt = 1, .client = {1, 2}, .segment = {3, 4}, .segment_bytes = 5, .segment_inode = 6, .boot = 7};
    warm::encode_header(header, bytes);
    const auto parsed = warm::parse_header(bytes);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, header);
    EXPECT_FALSE(warm::parse_header(std::span(bytes).first(bytes.size() - 1)));
    warm::Header later = header;
    later.version = warm::kVersion + 3;  // which this one can read, it says
    warm::encode_header(later, bytes);
    EXPECT_TRUE(warm::parse_header(bytes));
    later.readable_from = warm::kVersion + 1;
    warm::encode_header(later, bytes);
    const auto refused = warm::parse_header(bytes);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kNotSupported);
}

TEST(WarmFormat, StepsOverKindsItDoesNotKnow) {
    std::vector<std::byte> file(warm::kHeaderBytes);
    const std::array<std::byte, 3> payload{};
    warm::append_record(file, 9, file.size(), static_cast<warm::RecordKind>(99), payload);
    warm::append_record(file, 9, file.size(), warm::RecordKind::kEnd, payload);
    int known = 0;
    const uint64_t read = warm::for_each_record(file, 9, [&](warm::RecordKind kind, std::span<const std::byte> bytes) {
        EXPECT_EQ(bytes.size(), 3u);
        known += kind == warm::RecordKind::kEnd ? 1 : 0;
        return true;
    });
    EXPECT_EQ(read, file.size());
    EXPECT_EQ(known, 1);
}

}  // namespace
}  // namespace mooncake::store
