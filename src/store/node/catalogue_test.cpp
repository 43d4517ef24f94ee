// SPDX-License-Identifier: Apache-2.0
#include "store/node/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace mooncake::store {

namespace {

constexpr SegmentId kSegment{1, 1}, kOther{2, 2};
constexpr ClientId kWriter{7, 7};
constexpr Time kStart{std::chrono::hours(1)};

SegmentSpec spec(SegmentId id) { return {.id = id, .name = "host:1", .base = 0x1000, .size = 1 << 30, .endpoint = "e", .protocol = "tcp"}; }

RangePlanned planned(uint64_t generation, uint64_t offset, std::string key, SegmentId segment = kSegment) {
    return {.segment = segment,
            .offset = offset,
            .length = 100,
            .generation = generation,
            .tenant = "default",
            .key = std::move(key),
            .group = "",
            .writer = kWriter};
}
RangeFilled filled(uint64_t generation, SegmentId segment = kSegment) {
    return {.segment = segment, .generation = generation, .checksum = generation * 10};
}

/// A report, owned.
struct Seen {
    struct Object {
        std::string tenant, key, group;
        uint64_t offset = 0, length = 0, generation = 0, checksum = 0;
        ObjectDataType data_type = ObjectDataType::kUnknown;
        bool hard_pin = false;
        Duration soft_pin_left{0};
        ClientId writer;
        auto operator<=>(const Object&) const = default;
    };
    std::set<Object> objects;
    std::set<std::pair<uint64_t, uint64_t>> writes;                  // offset, length
    std::set<std::tuple<uint64_t, uint64_t, Duration>> quarantined;  // offset, length, left
    bool exact = false;
    size_t parts = 0, last_parts = 0, largest = 0;

    std::vector<std::string> keys() const {
        std::vector<std::string> keys;
        for (const Object& object : objects) keys.push_back(object.key);
        return keys;
    }
};
std::map<SegmentId, Seen> reported(const Catalogue& catalogue, Time now, size_t entries_max = 1000) {
    std::map<SegmentId, Seen> all;
    catalogue.report(entries_max, now, [&](const HeldSegment& part) {
        Seen& seen = all[part.segment.id];
        EXPECT_EQ(seen.last_parts, 0U) << "a part after the last one";
        for (const HeldObject& object : part.objects)
            seen.objects.insert({std::string(object.tenant), std::string(object.key), std::string(object.group), object.offset,
                                 object.length, object.generation, object.checksum, object.data_type, object.hard_pin, object.soft_pin_left,
                                 object.writer});
        for (const HeldWrite& write : part.writes) seen.writes.insert({write.offset, write.length});
        for (const HeldQuarantine& quarantine : part.quarantined)
            seen.quarantined.insert({quarantine.offset, quarantine.length, quarantine.left});
        seen.exact = part.exact;
        ++seen.parts;
        seen.last_parts += part.more ? 0 : 1;
        seen.largest = std::max(seen.largest, part.objects.size() + part.writes.size() + part.quarantined.size());
        return true;
    });
    return all;
}

class CatalogueTest : public testing::Test {
protected:
    CatalogueTest() { catalogue_.add_segment(spec(kSegment)); }
    void begin() { catalogue_.apply({.sequence = 1, .reset = true, .complete = true}, kStart); }
    Seen report(Time now = kStart) { return reported(catalogue_, now)[kSegment]; }

    Catalogue catalogue_;
};

}  // namespace

TEST_F(CatalogueTest, ReportsValuesUnfinishedWritesAndQuarantines) {
    begin();
    RangePlanned value = planned(1, 0, "a");
    value.group = "g";
    value.hard_pin = true;
    value.data_type = ObjectDataType::kTensor;
    catalogue_.apply({.planned = {value, planned(2, 128, "b"), planned(3, 256, "c")}, .filled = {filled(1), filled(3)}}, kStart);
    catalogue_.apply({.dropped = {{.segment = kSegment, .generation = 3, .quarantine = 10s}}}, kStart);
    const Seen seen = report(kStart + 4s);
    const Seen::Object expected{"default", "a", "g", 0, 100, 1, 10, ObjectDataType::kTensor, true, 0s, kWriter};
    EXPECT_THAT(seen.objects, testing::ElementsAre(expected));
    EXPECT_THAT(seen.writes, testing::ElementsAre(std::pair(128, 100)));
    EXPECT_THAT(seen.quarantined, testing::ElementsAre(std::tuple(256, 100, Duration(6s))));
    EXPECT_TRUE(seen.exact);
    EXPECT_EQ(catalogue_.objects(), 1U);
}

TEST_F(CatalogueTest, AnEmptySegmentIsReportedInOnePart) {
    EXPECT_EQ(report().parts, 1U);
    EXPECT_EQ(report().last_parts, 1U);
}

TEST_F(CatalogueTest, AQuarantineEndsByItself) {
    begin();
    catalogue_.apply({.planned = {planned(1, 0, "a")}, .dropped = {{.segment = kSegment, .generation = 1, .quarantine = 2s}}}, kStart);
    EXPECT_EQ(report(kStart + 1999ms).quarantined.size(), 1U);
    EXPECT_EQ(report(kStart + 2s).quarantined.size(), 0U);
}

TEST_F(CatalogueTest, WhatWasNeverFilledIsInQuarantineForFearOfItsWriter) {
    begin();
    RangePlanned lost = planned(1, 0, "a"), read = planned(2, 128, "b");
    lost.writer = read.writer = kWriter;
    catalogue_.apply({.planned = {lost, read}, .filled = {filled(2)}}, kStart);
    catalogue_.apply(
        {.dropped = {{.segment = kSegment, .generation = 1, .quarantine = 9s}, {.segment = kSegment, .generation = 2, .quarantine = 9s}}},
        kStart);
    std::map<uint64_t, ClientId> writers;
    catalogue_.report(1000, kStart, [&](const HeldSegment& part) {
        for (const HeldQuarantine& quarantine : part.quarantined) writers[quarantine.offset] = quarantine.writer;
        return true;
    });
    EXPECT_THAT(writers, testing::ElementsAre(std::pair(0, kWriter), std::pair(128, ClientId{})));
}

TEST_F(CatalogueTest, AWriteInARangeThatSeemsToBeInQuarantineIsTheTruth) {
    begin();
    catalogue_.apply(
        {.planned = {planned(1, 0, "a"), planned(2, 128, "b")},
         .dropped = {{.segment = kSegment, .generation = 1, .quarantine = 2s}, {.segment = kSegment, .generation = 2, .quarantine = 2s}}},
        kStart);
    catalogue_.apply({.planned = {planned(3, 64, "c")}, .filled = {filled(3)}}, kStart + 1s);  // from 64 to 164: over both
    EXPECT_THAT(report(kStart + 1s).quarantined, testing::IsEmpty());
    EXPECT_THAT(report(kStart + 1s).keys(), testing::ElementsAre("c"));
}

TEST_F(CatalogueTest, RangesThatAreOnlyInQuarantineAreToldWithoutAKey) {
    begin();
    // Ranges without a name in this life of the master all have generation 0, and a value may have the generation of what is in quarantine.
    catalogue_.apply({.planned = {planned(5, 512, "alive"), planned(0, 0, ""), planned(0, 128, ""), planned(5, 256, "")},
                      .filled = {filled(5)},
                      .dropped = {{.segment = kSegment, .generation = 0, .quarantine = 3s},
                                  {.segment = kSegment, .generation = 0, .quarantine = 4s},
                                  {.segment = kSegment, .generation = 5, .quarantine = 5s}}},
                     kStart);
    const Seen seen = report();
    EXPECT_THAT(seen.keys(), testing::ElementsAre("alive"));
    EXPECT_THAT(seen.quarantined, testing::ElementsAre(std::tuple(0, 100, Duration(3s)), std::tuple(128, 100, Duration(4s)),
                                                       std::tuple(256, 100, Duration(5s))));
}

TEST_F(CatalogueTest, SoftPinsRunDown) {
    begin();
    RangePlanned value = planned(1, 0, "a");
    value.soft_pin_left = 10s;
    catalogue_.apply({.planned = {value}, .filled = {filled(1)}}, kStart);
    EXPECT_EQ(report(kStart + 3s).objects.begin()->soft_pin_left, 7s);
    EXPECT_EQ(report(kStart + 30s).objects.begin()->soft_pin_left, 0s);
}

TEST_F(CatalogueTest, PartsAreBoundedAndOnlyTheLastOneSaysSo) {
    begin();
    EventUpdate update;
    for (uint64_t i = 1; i <= 25; ++i) update.planned.push_back(planned(i, i * 128, format_text("k{}", i)));
    for (uint64_t i = 1; i <= 12; ++i) update.filled.push_back(filled(i));
    for (uint64_t i = 20; i <= 25; ++i) update.dropped.push_back({.segment = kSegment, .generation = i, .quarantine = 1s});
    catalogue_.apply(update, kStart);
    for (const size_t most : {1, 2, 5, 24, 25, 26}) {
        const Seen seen = reported(catalogue_, kStart, most)[kSegment];
        EXPECT_EQ(seen.objects.size(), 12U);
        EXPECT_EQ(seen.writes.size(), 7U);
        EXPECT_EQ(seen.quarantined.size(), 6U);
        EXPECT_LE(seen.largest, most);
        EXPECT_EQ(seen.parts, (25 + most - 1) / most);
        EXPECT_EQ(seen.last_parts, 1U);
    }
    size_t parts = 0;
    EXPECT_FALSE(catalogue_.report(1, kStart, [&](const HeldSegment&) { return ++parts < 3; }));
    EXPECT_EQ(parts, 3U);
}

TEST_F(CatalogueTest, PartsWithLongKeysStaySmall) {
    begin();
    EventUpdate update;
    for (uint64_t i = 1; i <= 100; ++i) {
        update.planned.push_back(planned(i, i * 128, std::string(50'000, 'k') + std::to_string(i)));
        update.filled.push_back(filled(i));
    }
    catalogue_.apply(update, kStart);
    const Seen seen = report();
    EXPECT_EQ(seen.objects.size(), 100U);
    EXPECT_GE(seen.parts, 10U);
}

TEST_F(CatalogueTest, ACompleteStreamReplacesWhatWasKnown) {
    begin();
    catalogue_.apply({.planned = {planned(1, 0, "a"), planned(2, 128, "b")}, .filled = {filled(1), filled(2)}}, kStart);
    catalogue_.stream_ended(true);
    catalogue_.apply({.reset = true, .planned = {planned(2, 128, "b")}}, kStart);
    catalogue_.apply({.planned = {planned(3, 0, "c")}, .filled = {filled(2), filled(3)}}, kStart);
    catalogue_.apply({.complete = true}, kStart);
    EXPECT_THAT(report().keys(), testing::UnorderedElementsAre("b", "c"));
    EXPECT_TRUE(report().exact);
}

TEST_F(CatalogueTest, AStreamThatBreaksBeforeItIsCompleteLosesNothing) {
    begin();
    catalogue_.apply(
        {.planned = {planned(1, 0, "a"), planned(2, 128, "b"), planned(4, 512, "d")}, .filled = {filled(1), filled(2), filled(4)}}, kStart);
    catalogue_.stream_ended(true);
    // "a" went while nobody listened; its range was given to "c". "d" is told again, but not yet that it is a value.
    catalogue_.apply({.reset = true, .planned = {planned(3, 64, "c"), planned(4, 512, "d")}, .filled = {filled(3)}}, kStart);
    catalogue_.stream_ended(true);
    EXPECT_THAT(report().keys(), testing::UnorderedElementsAre("c", "d"));  // "c" reaches into "b" too
    EXPECT_FALSE(report().exact);
}

TEST_F(CatalogueTest, AStreamMayBeginWithoutAnEndOfTheOneBefore) {
    catalogue_.apply({.reset = true, .planned = {planned(1, 0, "a")}, .filled = {filled(1)}}, kStart);
    catalogue_.apply({.reset = true, .planned = {planned(2, 128, "b")}, .filled = {filled(2)}}, kStart);
    catalogue_.apply({.reset = true, .planned = {planned(3, 256, "c")}, .filled = {filled(3)}}, kStart);
    EXPECT_EQ(report().keys().size(), 3U);
    catalogue_.apply({.complete = true}, kStart);
    EXPECT_THAT(report().keys(), testing::ElementsAre("c"));
}

TEST_F(CatalogueTest, WhatWasMissedIsTrueWhereItOverlapsWhatWasKnown) {
    // A write that an earlier master planned; the next one has dropped it and put a value there, of which no stream told us.
    begin();
    catalogue_.apply({.planned = {planned(200, 4096, "old")}}, kStart);
    catalogue_.stream_ended(/*orderly=*/false);
    catalogue_.begin_missed();
    catalogue_.apply({.planned = {planned(7, 4160, "new"), planned(8, 8192, "gone")}}, kStart);
    catalogue_.apply({.filled = {filled(7)}, .dropped = {{.segment = kSegment, .generation = 8}}}, kStart);
    catalogue_.end_missed();
    const Seen seen = report();
    EXPECT_THAT(seen.keys(), testing::ElementsAre("new"));
    EXPECT_THAT(seen.writes, testing::IsEmpty());
    EXPECT_FALSE(seen.exact);
}

TEST_F(CatalogueTest, WhatWasMissedLeavesTheRestAsItWas) {
    begin();
    catalogue_.apply({.planned = {planned(1, 0, "kept"), planned(2, 4096, "writing")}, .filled = {filled(1)}}, kStart);
    catalogue_.begin_missed();
    catalogue_.end_missed();
    catalogue_.begin_missed();
    catalogue_.apply({.filled = {filled(2)}}, kStart);
    catalogue_.end_missed();
    const Seen seen = report();
    EXPECT_THAT(seen.keys(), testing::ElementsAre("kept", "writing"));
    // A complete stream still replaces it all.
    catalogue_.apply({.reset = true, .complete = true, .planned = {planned(3, 0, "told")}, .filled = {filled(3)}}, kStart);
    EXPECT_THAT(report().keys(), testing::ElementsAre("told"));
}

TEST_F(CatalogueTest, IsExactOnlyAfterACompleteStreamThatEndedByItsOtherEnd) {
    EXPECT_TRUE(report().exact);  // a segment nobody ever wrote to
    catalogue_.apply({.reset = true}, kStart);
    EXPECT_FALSE(report().exact);
    catalogue_.apply({.complete = true}, kStart);
    catalogue_.stream_ended(true);
    EXPECT_TRUE(report().exact);
    catalogue_.stream_ended(true);  // one that never began
    EXPECT_TRUE(report().exact);
    catalogue_.stream_ended(false);
    EXPECT_FALSE(report().exact);
    begin();
    EXPECT_TRUE(report().exact);
}

TEST_F(CatalogueTest, SegmentsAreApart) {
    catalogue_.add_segment(spec(kOther));
    begin();
    catalogue_.apply({.planned = {planned(1, 0, "a"), planned(1, 64, "a", kOther)}, .filled = {filled(1), filled(1, kOther)}}, kStart);
    catalogue_.apply({.dropped = {{.segment = kOther, .generation = 1}}}, kStart);
    auto all = reported(catalogue_, kStart);
    EXPECT_EQ(all[kSegment].objects.size(), 1U);
    EXPECT_EQ(all[kOther].objects.size(), 0U);
    catalogue_.remove_segment(kSegment);
    EXPECT_EQ(reported(catalogue_, kStart).size(), 1U);
    EXPECT_EQ(catalogue_.objects(), 0U);
}

TEST_F(CatalogueTest, EventsAboutUnknownThingsAreIgnored) {
    begin();
    catalogue_.apply(
        {.planned = {planned(1, 0, "a", kOther)},
         .filled = {filled(9), filled(1, kOther)},
         .dropped = {{.segment = kSegment, .generation = 9, .quarantine = 5s}, {.segment = kOther, .generation = 1, .quarantine = 5s}}},
        kStart);
    EXPECT_TRUE(report().objects.empty());
    EXPECT_TRUE(report().quarantined.empty());
}

// ---- against a model

namespace {

/// The same, as simply as it can be said.
struct Model {
    struct Entry {
        RangePlanned event;
        uint64_t checksum = 0;
        bool filled = false;
        bool told = false;
    };
    std::map<uint64_t, Entry> entries;  // by generation
    std::vector<std::tuple<uint64_t, uint64_t, Time>> quarantined;
    bool streaming = false, exact = true;

    void settle() {
        std::vector<uint64_t> gone;
        for (const auto& [old_generation, old] : entries)
            for (const auto& [generation, entry] : entries)
                if (!old.told && entry.told && old.event.offset < entry.event.offset + entry.event.length &&
                    entry.event.offset < old.event.offset + old.event.length)
                    gone.push_back(old_generation);
        for (const uint64_t generation : gone) entries.erase(generation);
        for (auto& [generation, entry] : entries) entry.told = true;
        streaming = false;
    }
    void apply(const EventUpdate& update, Time now) {
        if (update.reset) {
            if (streaming) settle();
            for (auto& [generation, entry] : entries) entry.told = false;
            streaming = true;
            exact = false;
        }
        for (const RangePlanned& event : update.planned) {
            Entry& entry = entries[event.generation];
            entry.event = event;
            entry.told = true;
        }
        for (const RangeFilled& event : update.filled) {
            const auto found = entries.find(event.generation);
            if (found == entries.end()) continue;
            found->second.filled = true;
            found->second.checksum = event.checksum;
        }
        for (const RangeDropped& event : update.dropped) {
            const auto found = entries.find(event.generation);
            if (found == entries.end()) continue;
            quarantined.emplace_back(found->second.event.offset, found->second.event.length, now + event.quarantine);
            entries.erase(found);
        }
        if (!update.complete || !streaming) return;
        std::erase_if(entries, [](const auto& item) { return !item.second.told; });
        streaming = false;
        exact = true;
    }
    void stream_ended(bool orderly) {
        if (!orderly) exact = false;
        if (streaming) settle();
    }
    Seen report(Time now) const {
        Seen seen;
        seen.exact = exact;
        std::vector<std::pair<uint64_t, uint64_t>> used;
        for (const auto& [generation, entry] : entries) {
            const RangePlanned& event = entry.event;
            used.emplace_back(event.offset, event.offset + event.length);
            if (entry.filled)
                seen.objects.insert({event.tenant, event.key, event.group, event.offset, event.length, generation, entry.checksum,
                                     event.data_type, event.hard_pin, 0s, event.writer});
            else seen.writes.insert({event.offset, event.length});
        }
        for (const auto& [offset, length, until] : quarantined) {
            const bool over = std::any_of(used.begin(), used.end(), [offset = offset, end = offset + length](const auto& range) {
                return range.first < end && offset < range.second;
            });
            if (!over && until > now) seen.quarantined.insert({offset, length, until - now});
        }
        return seen;
    }
};

class RandomStream {
public:
    explicit RandomStream(uint64_t seed) : random_(seed) {}

    bool chance(unsigned percent) { return random_() % 100 < percent; }
    uint64_t below(uint64_t limit) { return random_() % limit; }

    EventUpdate next() {
        EventUpdate update{.sequence = ++sequence_, .reset = chance(4), .complete = chance(6)};
        for (uint64_t i = below(4); i > 0; --i) {
            const uint64_t slot = below(kSlots);
            const bool told_before = chance(20) && generation_ > 1;
            RangePlanned event = planned(told_before ? 1 + below(generation_) : ++generation_, slot * 128,
                                         format_text("key {}", below(50)));
            if (told_before && places_.contains(event.generation)) event.offset = places_[event.generation];
            places_[event.generation] = event.offset;
            event.tenant = chance(50) ? "default" : "other";
            event.group = chance(30) ? format_text("group {}", below(5)) : "";
            event.writer = {1, below(3)};
            event.hard_pin = chance(10);
            if (std::none_of(update.planned.begin(), update.planned.end(), [&](const auto& other) { return other.offset == event.offset; }))
                update.planned.push_back(std::move(event));
        }
        for (uint64_t i = below(4); i > 0; --i) update.filled.push_back(filled(1 + below(generation_ + 1)));
        for (uint64_t i = below(3); i > 0; --i)
            update.dropped.push_back(
                {.segment = kSegment, .generation = 1 + below(generation_ + 1), .quarantine = std::chrono::milliseconds(below(2000))});
        return update;
    }

private:
    static constexpr uint64_t kSlots = 200;
    std::mt19937_64 random_;
    uint64_t sequence_ = 0, generation_ = 0;
    std::map<uint64_t, uint64_t> places_;
};

}  // namespace

TEST(CatalogueModel, AgreesWithASimpleModelOverRandomFeeds) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        Catalogue catalogue;
        catalogue.add_segment(spec(kSegment));
        Model model;
        RandomStream stream(seed);
        Time now = kStart;
        for (int step = 0; step < 600; ++step) {
            now += std::chrono::milliseconds(stream.below(100));
            if (stream.chance(3)) {
                const bool orderly = stream.chance(50);
                catalogue.stream_ended(orderly);
                model.stream_ended(orderly);
            } else {
                const EventUpdate update = stream.next();
                catalogue.apply(update, now);
                model.apply(update, now);
            }
            if (step % 5 != 0) continue;
            const Seen is = reported(catalogue, now, 1 + stream.below(30))[kSegment], expected = model.report(now);
            ASSERT_EQ(is.objects, expected.objects) << "seed " << seed << " step " << step;
            ASSERT_EQ(is.writes, expected.writes) << "seed " << seed << " step " << step;
            ASSERT_EQ(is.quarantined, expected.quarantined) << "seed " << seed << " step " << step;
            ASSERT_EQ(is.exact, expected.exact) << "seed " << seed << " step " << step;
            ASSERT_EQ(catalogue.objects(), expected.objects.size());
        }
    }
}

TEST(CatalogueCost, ManyEntriesTakeLittleMemory) {
    constexpr uint64_t kCount = 200'000, kBatch = 1000;
    Catalogue catalogue;
    catalogue.add_segment(spec(kSegment));
    catalogue.apply({.reset = true, .complete = true}, kStart);
    std::vector<EventUpdate> updates;
    for (uint64_t first = 1; first <= kCount; first += kBatch) {
        EventUpdate& update = updates.emplace_back();
        for (uint64_t i = first; i < first + kBatch; ++i) {
            update.planned.push_back(planned(i, i * 128, format_text("model/layer/{:032x}", i)));
            update.planned.back().group = format_text("request {}", i / 100);
            update.filled.push_back(filled(i));
        }
    }
    const Time began = Clock::now();
    for (const EventUpdate& update : updates) catalogue.apply(update, kStart);
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    const size_t bytes = catalogue.memory_bytes();
    const Time reporting = Clock::now();
    size_t told = 0;
    catalogue.report(5000, kStart, [&](const HeldSegment& part) { return (told += part.objects.size()) <= kCount; });
    const double report_seconds = std::chrono::duration<double>(Clock::now() - reporting).count();
    EXPECT_EQ(told, kCount);
    RecordProperty("bytes_per_entry", static_cast<int>(bytes / kCount));
    RecordProperty("planned_and_filled_per_second", static_cast<int>(static_cast<double>(kCount) / seconds));
    GTEST_LOG_(INFO) << bytes / kCount << " bytes per entry with keys of 44, " << static_cast<double>(kCount) / seconds / 1e6
                     << " M planned+filled/s, report of all in " << report_seconds << " s";
    EXPECT_LT(bytes / kCount, 180U);
}

TEST_F(CatalogueTest, GivesMemoryBackWhenMostOfVeryManyValuesHaveGone) {
    constexpr uint64_t kValues = 250'000, kBatch = 10'000;
    uint64_t sequence = 0;
    for (uint64_t first = 1; first <= kValues; first += kBatch) {
        EventUpdate update{.sequence = ++sequence};
        for (uint64_t generation = first; generation < first + kBatch; ++generation) {
            update.planned.push_back(planned(generation, generation * 128, std::to_string(generation)));
            update.filled.push_back(filled(generation));
        }
        catalogue_.apply(update, kStart);
    }
    ASSERT_EQ(catalogue_.objects(), kValues);
    const uint64_t before = free_memory_returns();
    for (uint64_t first = 1; first <= kValues; first += kBatch) {
        EventUpdate update{.sequence = ++sequence};
        for (uint64_t generation = first; generation < first + kBatch; ++generation)
            update.dropped.push_back({.segment = kSegment, .generation = generation});
        catalogue_.apply(update, kStart);
    }
    EXPECT_EQ(catalogue_.objects(), 0U);
    EXPECT_GE(free_memory_returns(), before + 1);
    EXPECT_LE(free_memory_returns(), before + 2) << "not with every update";
}

}  // namespace mooncake::store
