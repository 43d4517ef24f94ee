// SPDX-License-Identifier: Apache-2.0
// A node whose memory outlives its process, with the real journal.
#include "tests/simulation/sim_node.h"

namespace mooncake::store::simulation {

void SimNode::begin_journal() {
    file_ = {};
    journal_ = std::make_unique<WarmJournal>(
        WarmJournal::Setup{.file = file_, .catalogue = *catalogue_, .header = {.salt = 1, .client = id_, .segment = spec_.id}},
        Remembered{}, 0);
    MC_CHECK(journal_->start_anew(world_.now()));
}

void SimNode::note_following(uint64_t view) {
    if (!journal_) return;
    if (standing_.followed_epoch != view) standing_.last_update = 0;
    standing_.followed_epoch = view;
    standing_.whole_epoch = whole_view_;
    standing_.whole_update = whole_update_;
    standing_.following = true;
    standing_.whole = false;
    journal_->stands(standing_);
}

void SimNode::restart() {
    world_.note("{} is killed, and its memory stays", spec_.name);
    endpoint.up = false;
    ++endpoint.life;
    ++restarts;
    const SegmentId segment = std::exchange(spec_.id, {});  // nobody finds the dead one
    disk_spec_.id = {};
    journal_.reset();
    if (stream_) stream_->close();
    stream_.reset();
    world_.after(world_.chance(0.3) ? world_.between(1ms, 100ms) : world_.between(100ms, 12s), [this, segment] { come_back(segment); });
}

void SimNode::come_back(const SegmentId& segment) {
    const bool lent = ever_lent_;
    const ClientId id = id_;
    endpoint.up = true;
    spec_.id = segment;
    spec_.base = (number_ << 32) + (restarts % 8) * (size_ << 4);  // somewhere else
    begin_process();
    id_ = id;
    ever_lent_ = lent;
    const auto header = warm::parse_header(file_.bytes);
    MC_CHECK(header && header->segment == segment && header->client == id);
    WarmReplay replay = replay_journal(file_.bytes, *header, catalogue_.get(), world_.now());
    MC_CHECK(replay.whole);
    standing_ = replay.remembered.standing;
    whole_view_ = standing_.whole_epoch;
    whole_update_ = standing_.whole_update;
    restarted_ = true;
    exact_ = replay.exact;
    brought_back += catalogue_->objects();
    world_.note("{} comes back with {} values in its memory", spec_.name, catalogue_->objects());
    journal_ = std::make_unique<WarmJournal>(WarmJournal::Setup{.file = file_, .catalogue = *catalogue_, .header = *header},
                                             std::move(replay.remembered), replay.bytes);
}

}  // namespace mooncake::store::simulation
