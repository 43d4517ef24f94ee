// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_master.h"

#include <algorithm>

namespace mooncake::store::simulation {

// the event streams ---------------------------------------------------------------------------------------------------------------

void SimMaster::start_hub() {
    hub_ = std::make_unique<EventHub>(EventHubOptions{.report_ranges = 1 + world_.random.below(30),
                                                      .report_window = 1 + static_cast<int>(world_.random.below(3)),
                                                      .clock = [this] { return world_.now(); }});
}

void SimMaster::follow(const ClientId& client, const std::shared_ptr<SimEventStream>& stream) {
    const bool known = run([&](Transaction& t) {
        const ClientNumber number = state_->clients().find(client);
        if (!state_->clients().alive(number) || !state_->clients()[number].attached) return false;
        hub_->follow(*state_, number, std::make_unique<SimStreamEnd>(stream));
        streams_[client] = stream;
        if (!state_->clients()[number].follows) t.apply(ClientFollows{.client = client, .follows = true, .now = world_.now()});
        return true;
    });
    if (known) report(client);
    else stream->fail();
}

void SimMaster::acknowledge(const ClientId& client, uint64_t sequence) {
    hub_->acknowledge(client, sequence);
    report(client);
    hub_->flush();
}

void SimMaster::report(const ClientId& client) {
    while (hub_->wants_report(client)) {
        hub_->report(*state_, client, world_.now());
        hub_->flush();
    }
}

void SimMaster::note_lost(Transaction& transaction) {
    for (const ClientId& client : hub_->take_lost(*state_))
        transaction.apply(ClientFollows{.client = client, .follows = false, .now = world_.now()});
}

void SimMaster::end_copy(const TaskEnd& end) {
    EventHub::Caused caused;
    run([&](Transaction& t) {
        const EventHub::Position before = hub_->position();
        tell_of_copies(*hub_, t.state(), end, caused);
        caused.add(before, hub_->position());
        return true;
    });
    const auto finish = [this, end, life = endpoint.life] {
        if (!endpoint.up || life != endpoint.life) return;
        run([&](Transaction& t) {
            note_lost(t);
            return end_task(t, end, world_.now());
        });
    };
    if (hub_->told(caused)) return finish();
    for (const EventHub::Caused::Relied& one : caused.doubted) told_early_.insert(one.client);
    expire_by(hub_->call_when_told(
        caused, [this, finish] { world_.after(1ms, finish); }, world_.now()));
}

void SimMaster::end_copies(const ClientId& client, const std::vector<CopyEnd>& ends, uint64_t window_bytes) {
    EventHub::Caused caused;
    run([&](Transaction& t) {
        const EventHub::Position before = hub_->position();
        tell_of_copies(*hub_, t.state(), CopiesEnd{.client = client, .items = ends}, caused);
        caused.add(before, hub_->position());
        return true;
    });
    const auto finish = [this, client, ends, window_bytes, life = endpoint.life] {
        if (!endpoint.up || life != endpoint.life) return;
        run([&](Transaction& t) {
            note_lost(t);
            store::end_copies(t, {.client = client, .items = ends, .window_bytes = window_bytes}, world_.now());
            return order_tier_copies(t, t.state().clients().find(client), world_.now(), 16);
        });
    };
    if (hub_->told(caused)) return finish();
    for (const EventHub::Caused::Relied& one : caused.doubted) told_early_.insert(one.client);
    expire_by(hub_->call_when_told(
        caused, [this, finish] { world_.after(1ms, finish); }, world_.now()));
}

/// Called before it happens. Its node was given up, perhaps, and then it comes back.
void SimMaster::segment_removed(const MasterState& state, SegmentNumber segment) {
    hub_->segment_removed(state, segment);
    if (&state != state_.get()) return;               // a log is replayed: that was long ago
    if (state.segments()[segment].reporting) return;  // it has yet to tell this life what it holds
    for (const auto& [key, generation] : acknowledged_) {
        const ObjectId id = find(key);
        if (id == 0 || state.objects()[id].generation != generation) continue;
        if (state.objects()[id].write != 0) continue;  // may have a successor
        if (was_removed(key, generation)) continue;    // that was refused
        const ReplicaList& replicas = state.objects()[id].replicas;
        if (replicas.size() == 1 && replicas[0].segment == segment) away_.push_back({key, generation, state.segments()[segment].spec.id});
    }
}

void SimMaster::expire_by(Time at) {
    if (at == Time::max()) return;
    world_.after(std::max<Duration>(at - world_.now(), 1ms), [this, life = endpoint.life] {
        if (endpoint.up && life == endpoint.life) expire_by(hub_->expire(world_.now()));
    });
}

void SimMaster::cut_off_somebody() {
    if (streams_.empty()) return;
    std::next(streams_.begin(), static_cast<std::ptrdiff_t>(world_.random.below(streams_.size())))->second->choke();
}

void SimMaster::lose_stream_of(const ClientId& client) {
    if (const auto found = streams_.find(client); found != streams_.end()) found->second->tear();
}

SimEventStream* SimMaster::stream_of(SegmentNumber segment) const {
    const auto found = streams_.find(state_->clients()[state_->segments()[segment].client].id);
    return found == streams_.end() ? nullptr : found->second.get();
}

// its lives ---------------------------------------------------------------------------------------------------------------

void SimMaster::crash_cold() {
    world_.note("the master loses everything");
    expect_return();
    end_life();
    log_.clear();
    options_.first_generation = std::max(options_.first_generation, state_->next_generation()) + 1'000'000;
    state_ = std::make_unique<MasterState>(options_, this);
    rebuilding_ = true;
    missed_words_.clear();
    dropped_.clear();
    removed_.clear();
    removed_matching_.clear();
    all_removed_ = 0;
    newest_.clear();
    admit_tenant();
}

void SimMaster::admit_tenant() {
    if (!options_.tenants) return;
    world_.after(world_.between(0ms, 6s), [this, life = options_.first_generation] {
        if (life != options_.first_generation) return;
        if (!endpoint.up) return admit_tenant();
        run([this](Transaction& t) {
            t.apply(QuotaSet{.tenant = std::string(tenant()), .bytes = 1 << 30});
            return true;
        });
    });
}

bool SimMaster::was_removed(const std::string& key, uint64_t generation) const {
    const auto found = ended_.find(generation);
    const uint64_t ended = found == ended_.end() ? 0 : found->second;
    const auto removed = removed_.find(key);
    if (ended < all_removed_ || (removed != removed_.end() && ended < removed->second)) return true;
    return std::any_of(removed_matching_.begin(), removed_matching_.end(),
                       [&](const auto& one) { return ended < one.second && one.first(key); });
}

void SimMaster::crash_warm() {
    world_.note("the master restarts from its log");
    check_replay();
    for (const auto& [client, stream] : streams_)
        if (stream->unsent_bytes() != 0 || hub_->holds_back()) missed_words_.insert(client);
    missed_words_.insert(told_early_.begin(), told_early_.end());  // these know of replicas that the log does not
    end_life();
    auto replayed = std::make_unique<MasterState>(options_, this);
    for (const Change& change : log_) replayed->apply(change);
    state_ = std::move(replayed);
    // Whatever happens to their memory before they are back belongs to what they have missed.
    for (const SegmentNumber segment : state_->segments().numbers())
        (void)hub_->missed(state_->clients()[state_->segments()[segment].client].id, 0);
    run([this](Transaction& t) {
        t.apply(Restarted{.now = world_.now()});
        return true;
    });
}

void SimMaster::check_replay() {
    MasterState replayed(options_);
    for (const Change& change : log_) replayed.apply(change);
    if (dump_state(replayed) != dump_state(*state_)) world_.violated("replaying the changes gives another state");
}

/// What a client was told must come back with its node, if that will hear everything the kernels have and then the end. One that was cut off
/// and gave up does not hear it.
void SimMaster::expect_return() {
    expected_.clear();
    const bool host_lost = world_.chance(0.3);
    for (auto& [client, stream] : streams_) {
        if (host_lost && world_.chance(0.7)) stream->lose();
        else stream->kill();
    }
    for (const auto& [key, generation] : acknowledged_) {
        const ObjectId id = find(key);
        if (id != 0 && state_->objects()[id].generation > generation) expect_one_of_two(key, generation, state_->objects()[id]);
        if (id == 0 || state_->objects()[id].generation != generation) continue;
        const ReplicaList& replicas = state_->objects()[id].replicas;
        for (size_t i = 0; i < replicas.size(); ++i)
            if (const SimEventStream* stream = stream_of(replicas[i].segment); stream != nullptr && stream->complete())
                expected_.push_back({key, generation, state_->segments()[replicas[i].segment].spec.id});
    }
}

void SimMaster::note_replaced(const MasterState& state, SegmentNumber segment, uint64_t generation) {
    const auto key = written_.find(generation);
    const ObjectId id = key == written_.end() ? 0 : find(key->second);
    if (id == 0 || state.objects()[id].generation != generation || state.objects()[id].write == 0) return;
    Replaced& replaced = replaced_[generation];
    const uint64_t successor = state.write(state.objects()[id].write).generation;
    if (std::exchange(replaced.successor, successor) != successor) replaced.segments.clear();
    replaced.segments.push_back(segment);
}

/// A value that was acknowledged is being replaced, and nobody was told that it was: whichever the nodes know of comes back.
void SimMaster::expect_one_of_two(const std::string& key, uint64_t generation, const Object& object) {
    const auto replaced = replaced_.find(generation);
    if (replaced == replaced_.end() || replaced->second.successor != object.generation) return;
    const auto hears_all = [&](SegmentNumber segment) {
        const SimEventStream* stream = state_->segments().exists(segment) ? stream_of(segment) : nullptr;
        return stream != nullptr && stream->complete();
    };
    std::vector<SegmentId> successors;
    for (size_t i = 0; i < object.replicas.size(); ++i) {
        if (!hears_all(object.replicas[i].segment)) return;
        successors.push_back(state_->segments()[object.replicas[i].segment].spec.id);
    }
    for (const SegmentNumber segment : replaced->second.segments)
        if (hears_all(segment)) expected_.push_back({key, generation, state_->segments()[segment].spec.id, object.generation, successors});
}

void SimMaster::end_life() {
    away_.clear();
    replaced_.clear();
    told_early_.clear();
    for (auto& [client, stream] : streams_) stream->kill();
    streams_.clear();
    start_hub();  // answers that wait are never given
    endpoint.up = false;
    ++endpoint.life;
}

void SimMaster::check_recovered(const std::function<bool(const SegmentId&)>& survived) {
    rebuilding_ = false;
    for (const Expected& one : expected_)
        if (!holds(one.key, one.generation) && !dropped_.contains(one.generation) && !dropped_.contains(one.successor) &&
            !lost_on_disks_.contains(one.generation) && !lost_on_disks_.contains(one.successor) && survived(one.segment) &&
            std::all_of(one.successors_segments.begin(), one.successors_segments.end(), survived))
            world_.violated(format_text("{} of generation {} did not come back with its node", one.key, one.generation));
    expected_.clear();
    std::erase_if(acknowledged_, [&](const auto& entry) { return !holds(entry.first, entry.second); });
}

void SimMaster::after_step(size_t before) {
    for (size_t i = before; world_.loud && i < log_.size(); ++i) note_change(log_[i]);
    if (const Result<> agreed = check_state(*state_); !agreed) world_.violated(agreed.error().to_string());
    bool excused = rebuilding_;
    for (size_t i = before; i < log_.size(); ++i) check_change(log_[i]);
    for (size_t i = before; i < log_.size(); ++i)
        excused |= std::holds_alternative<ObjectsRemoved>(log_[i]) || std::holds_alternative<SegmentRemoved>(log_[i]) ||
                   std::holds_alternative<DiskReplicasGone>(log_[i]);
    std::erase_if(acknowledged_, [&](const auto& entry) {
        if (holds(entry.first, entry.second)) return false;
        if (!excused) world_.violated(format_text("{} of generation {} vanished", entry.first, entry.second));
        return !rebuilding_;
    });
}

/// What no change may do.
void SimMaster::check_change(const Change& change) {
    if (const auto* write = std::get_if<WriteStarted>(&change)) {
        check_placement(*write);
        const std::string key(write->object != 0 && state_->objects().exists(write->object) ? state_->objects()[write->object].key()
                                                                                            : write->key.get());
        std::erase_if(away_, [&](const Expected& one) { return one.key == key; });  // may have a successor
        written_[write->generation] = key;
    }
    if (const auto* opened = std::get_if<SegmentOpened>(&change)) check_returned(opened->segment);
    if (const auto* left = std::get_if<TombstoneLeft>(&change)) removed(left->key);
    if (const auto* released = std::get_if<MemoryReleased>(&change)) check_released(*released);
    const auto* adopted = std::get_if<ValueAdopted>(&change);
    if (adopted == nullptr) return;
    if (was_removed(adopted->key, adopted->generation))
        world_.violated(format_text("{} of generation {} was removed and came back", adopted->key, adopted->generation));
    uint64_t& newest = newest_[adopted->key];
    if (adopted->generation < newest)
        world_.violated(format_text("{} of generation {} was replaced and came back", adopted->key, adopted->generation));
    newest = std::max(newest, adopted->generation);
    expect_no_more([&](const Expected& one) { return one.key == adopted->key && one.generation < adopted->generation; });
}

/// Memory is given up only for what is on a disk.
void SimMaster::check_released(const MemoryReleased& released) {
    for (const ObjectId id : released.objects) {
        if (!state_->objects().exists(id)) continue;
        const Object& object = state_->objects()[id];
        for (size_t i = 0; i < object.replicas.size(); ++i) {
            const Segment& segment = state_->segments()[object.replicas[i].segment];
            if (segment.is_disk() && !disk_has(segment.spec.id, object.generation) && !lost_on_disks_.contains(object.generation))
                world_.violated(format_text("generation {} left memory and is not on its disk", object.generation));
        }
    }
}

/// A node that was given up is back: so is what it held, unless it went otherwise.
void SimMaster::check_returned(SegmentNumber segment) {
    if (!state_->segments().exists(segment)) return;
    const SegmentId id = state_->segments()[segment].spec.id;
    for (const Expected& one : away_)
        if (one.segment == id && !holds(one.key, one.generation) && !dropped_.contains(one.generation) &&
            !lost_on_disks_.contains(one.generation))
            world_.violated(format_text("{} of generation {} did not come back with its node", one.key, one.generation));
    std::erase_if(away_, [&](const Expected& one) { return one.segment == id; });
}

/// A suspect gets a value only where nothing else has room, and never as a second replica.
void SimMaster::check_placement(const WriteStarted& write) {
    const SegmentTable& segments = state_->segments();
    const auto suspect = [&](SegmentNumber number) {
        return segments.exists(number) && (segments[number].stream_down || segments[number].suspect_until > world_.now());
    };
    for (size_t i = 0; i < write.replicas.size(); ++i) {
        if (segments.exists(write.replicas[i].segment) && segments.is_disk(write.replicas[i].segment))
            world_.violated(format_text("generation {} was put on a disk", write.generation));
        if (!suspect(write.replicas[i].segment)) continue;
        const auto view = segments.view().segments;
        const bool room = std::any_of(view.begin(), view.end(), [&](const SegmentView& one) {
            return !one.suspect && segments[one.segment].allocator.find(state_->rounded(write.length)).has_value();
        });
        if (i > 0 || (room && !writer_limited)) world_.violated(format_text("generation {} went to a suspect", write.generation));
    }
}

void SimMaster::note_change(const Change& change) const {
    if (const auto* one = std::get_if<WriteStarted>(&change))
        for (const ReplicaLocation& replica : one->replicas)
            world_.note("master: write of generation {} of {} starts at {}+{}", one->generation, one->client.low, replica.segment,
                        replica.offset);
    if (const auto* one = std::get_if<WriteCommitted>(&change)) world_.note("master: write {} ends", one->write);
    if (const auto* one = std::get_if<WriteDropped>(&change)) world_.note("master: write {} is dropped", one->write);
    if (const auto* one = std::get_if<ValueAdopted>(&change))
        world_.note("master: adopts {} of generation {} at {}+{}", one->key, one->generation, one->segment, one->offset);
    if (const auto* one = std::get_if<RangeReserved>(&change))
        world_.note("master: reserves {}+{} {}", one->segment, one->offset, one->length);
    if (const auto* one = std::get_if<RangeBusy>(&change)) world_.note("master: {}+{} {} is busy", one->segment, one->offset, one->length);
    if (const auto* one = std::get_if<SegmentMounted>(&change)) world_.note("master: mounts {}", one->segment.name);
    if (const auto* one = std::get_if<SegmentOpened>(&change)) world_.note("master: opens {}", one->segment);
    if (const auto* one = std::get_if<SegmentRemoved>(&change)) world_.note("master: removes segment {}", one->segment);
    if (const auto* one = std::get_if<ObjectsRemoved>(&change)) world_.note("master: removes {} objects", one->objects.size());
    if (const auto* one = std::get_if<TombstoneLeft>(&change)) world_.note("master: leaves a tombstone of {}", one->key);
    if (const auto* one = std::get_if<MemoryReleased>(&change)) world_.note("master: {} values leave memory", one->objects.size());
    if (const auto* one = std::get_if<DiskReplicasGone>(&change))
        world_.note("master: {} values are gone from disk {}", one->objects.size(), one->segment);
    if (const auto* one = std::get_if<TierCopyStarted>(&change))
        world_.note("master: orders object {} from {} to {}", one->object, one->source, one->target.segment);
    if (std::holds_alternative<TombstoneOfAll>(change)) world_.note("master: leaves a tombstone of all");
    if (const auto* one = std::get_if<WriterQuiet>(&change)) world_.note("master: {} is quiet", one->client.low);
    if (const auto* one = std::get_if<ClientGone>(&change)) world_.note("master: client {} ended", one->client.low);
}

}  // namespace mooncake::store::simulation
