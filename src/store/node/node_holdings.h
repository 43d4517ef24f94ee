// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "store/member/holdings.h"
#include "store/node/catalogue.h"
#include "store/node/warm_journal.h"

namespace mooncake::store {

/// What a node holds, in memory and on its disk, if it has one: each is told everything, and knows its own segments. Thread-safe, but for add_disk().
class NodeHoldings final : public Holdings {
public:
    explicit NodeHoldings(Catalogue& memory) : memory_(memory) {}
    /// Before the pool is joined, and once; must outlive this.
    void add_disk(Holdings& disk) { disk_ = &disk; }
    /// The same. What it is told is written down.
    void write_to(WarmJournal& journal, const SegmentId& segment) {
        journal_ = &journal;
        written_ = segment;
    }

    bool add_segment(const SegmentSpec& segment) override {
        if (segment.kind == SegmentKind::kMemory) return memory_.add_segment(segment);
        return disk_ != nullptr && disk_->add_segment(segment);
    }
    void remove_segment(const SegmentId& segment) override {
        memory_.remove_segment(segment);
        if (disk_ != nullptr) disk_->remove_segment(segment);
        if (journal_ != nullptr && segment == written_) journal_->discard();
    }
    void apply(const EventView& update, Time now) override {
        memory_.apply(update, now);
        if (disk_ != nullptr) disk_->apply(update, now);
        if (journal_ != nullptr) journal_->heard(update, now);
    }
    void stream_ended(bool orderly) override {
        memory_.stream_ended(orderly);
        if (disk_ != nullptr) disk_->stream_ended(orderly);
        if (journal_ != nullptr) journal_->stream_ended(orderly, Clock::now());
    }
    void stands(const Standing& standing) override {
        if (journal_ != nullptr) journal_->stands(standing);
    }
    void begin_missed() override {
        memory_.begin_missed();
        if (journal_ != nullptr) journal_->missed(/*begins=*/true);
    }
    void end_missed() override {
        memory_.end_missed();
        if (journal_ != nullptr) journal_->missed(/*begins=*/false);
    }
    bool report(size_t entries_max, Time now, const std::function<bool(const HeldSegment&)>& part) const override {
        return memory_.report(entries_max, now, part) && (disk_ == nullptr || disk_->report(entries_max, now, part));
    }
    bool lends() const override { return memory_.lends() || (disk_ != nullptr && disk_->lends()); }

private:
    Catalogue& memory_;
    Holdings* disk_ = nullptr;
    WarmJournal* journal_ = nullptr;
    SegmentId written_;
};

}  // namespace mooncake::store
