// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_node.h"

namespace mooncake::store::simulation {

SimNode::SimNode(World& world, SimMaster& master, std::vector<std::unique_ptr<SimNode>>& nodes, uint64_t number, uint64_t size,
                 uint64_t disk_size, bool warm)
    : world_(world), master_(master), nodes_(nodes), number_(number), size_(size), disk_size_(disk_size), warm_(warm) {
    start();
    beat();
}

void SimNode::start() {
    endpoint.up = true;
    id_ = {2, number_ * 1'000'000 + endpoint.life};
    spec_ = {.id = {3, number_ * 1'000'000'000 + endpoint.life * 1'000'000},
             .name = format_text("node{}:1", number_),
             .base = number_ << 32,
             .size = size_};
    memory_.assign(size_ / kUnit, 0);
    memory_born_ = endpoint.life;
    begin_process();
    if (warm_) begin_journal();
}

void SimNode::begin_process() {
    if (warm_) spec_.incarnation = {number_ * 1'000 + endpoint.life + 1};
    disk_spec_ = {.id = {4, number_ * 1'000'000 + disks_}, .name = spec_.name, .size = disk_size_, .kind = SegmentKind::kDisk};
    disk_plans_.clear();
    disk_told_.clear();
    gone_.clear();
    disk_streaming_ = telling_ = false;
    journal_.reset();
    restarted_ = exact_ = false;
    standing_ = {};
    catalogue_ = std::make_unique<Catalogue>();
    catalogue_->add_segment(spec_);
    view_ = whole_view_ = whole_update_ = last_update_ = 0;
    ever_lent_ = false;
    renewing_ = false;
    answered_ = world_.now();
    report_.reset();
    works_.clear();
}

void SimNode::crash() {
    world_.note("{} crashes", spec_.name);
    endpoint.up = false;
    ++endpoint.life;
    spec_.id = disk_spec_.id = {};  // nobody finds the dead one
    if (stream_) stream_->close();
    stream_.reset();
    world_.after(world_.between(100ms, 6000ms), [this] { start(); });
}

bool SimNode::mounted() const {
    if (!endpoint.up || view_ != master_.view()) return false;
    const auto open = [&](const SegmentId& segment) {
        const SegmentNumber number = master_.state().segments().find(segment);
        return number != 0 && !master_.state().segments()[number].reporting;
    };
    return open(spec_.id) && (!has_disk() || open(disk_spec_.id));
}

// ---- liveness

/// Twice a second: says that it lives, or does what it takes to be known.
void SimNode::beat() {
    world_.after(world_.between(400ms, 600ms), [this] {
        beat();
        const Time sent = world_.now();
        if (endpoint.up && sent - answered_ >= master_.state().options().client_ttl) stop_works();
        if (!endpoint.up || !master_.endpoint.up) return;
        world_.send(endpoint, master_.endpoint, [this, sent, id = id_] {
            const HeartbeatReply reply = master_.run([&](Transaction& t) { return heartbeat(t, id, world_.now()); });
            world_.send(master_.endpoint, endpoint, [this, sent, reply, view = master_.view()] {
                answered_ = std::max(answered_, sent);
                heartbeat_answered(reply, view);
            });
        });
    });
}

void SimNode::heartbeat_answered(const HeartbeatReply& reply, uint64_t view) {
    if (view != master_.view()) return;  // an answer of an earlier master
    if (reply.status == HeartbeatStatus::kNeedRemount || view_ != view) {
        if (report_ && report_->view == view) return;  // under way
        // What became of its memory while it was gone nobody knows any more.
        if (restarted_ && standing_.following && standing_.followed_epoch != view) return crash();
        // What became of the segment is not known any more, so its memory is not lent again.
        if (renewing_) return crash();
        if (drained()) join(view);
    } else if (renewing_) {
        if (world_.now() - mounting_ > World::kLatest) unmount();  // both go over one connection: it does not overtake the mount
    } else if (stream_) {
        if (last_update_ != 0) acknowledge(last_update_);
        tell_gone();
    } else {
        catalogue_->stream_ended(/*orderly=*/false);  // it lives, so it went on without telling us
        follow();
    }
}

// ---- reporting

/// Whether the last events of an earlier master have been heard, or so much time has passed since the last one that no more will come.
bool SimNode::drained() {
    view_ = 0;
    stop_works();
    if (stream_ != draining_) {
        draining_ = stream_;
        heard_ = world_.now();
    }
    return !stream_ || world_.now() - heard_ >= kStreamSilence;
}

/// Nothing is planned here between the end of one master and the last part of the report to the next.
void SimNode::join(uint64_t view) {
    if (stream_) {
        stream_->close();
        stream_ended(stream_, false);
    }
    report_ = std::make_shared<Report>();
    report_->view = view;
    introduce(report_);
}

/// Hears what it has missed of the same master.
void SimNode::introduce(const std::shared_ptr<Report>& report) {
    if (report_ != report || report->introduced) return;
    if (++report->tries > 5 || report->view != master_.view()) {
        report_.reset();
        return;
    }
    const uint64_t heard = whole_view_ == report->view ? whole_update_ : 0;
    const uint64_t remembered = !restarted_ ? 0 : (standing_.followed_epoch == report->view ? standing_.last_update : 0) + 1;
    world_.send(endpoint, master_.endpoint, [this, report, heard, remembered, id = id_, life = spec_.incarnation] {
        if (report->view != master_.view()) return;
        const UnheardEvents::Missed missed = master_.introduced(id, heard, life, remembered);
        world_.send(master_.endpoint, endpoint, [this, report, missed] {
            if (report_ != report || std::exchange(report->introduced, true)) return;
            if (missed.lost) world_.violated("more was missed than could be kept");
            catalogue_->begin_missed();
            if (journal_) journal_->missed(/*begins=*/true);
            for (const rpc::Bytes& body : missed.updates) {
                const auto update = decode_event_update(body);
                MC_CHECK(update);
                catalogue_->apply(*update, world_.now());
                if (journal_) journal_->heard(*update, world_.now());
                hear_of_disk(*update);
                whole_view_ = report->view;
                whole_update_ = update->sequence;
            }
            catalogue_->end_missed();
            if (journal_) journal_->missed(/*begins=*/false);
            report->tries = 0;
            begin_report(report);
        });
    });
    world_.after(500ms, [this, report, life = endpoint.life] {
        if (life == endpoint.life) introduce(report);
    });
}

void SimNode::begin_report(const std::shared_ptr<Report>& report) {
    const size_t entries_max = 1 + world_.random.below(60);
    catalogue_->report(entries_max, world_.now(), [&](const HeldSegment& held) {
        Part part{.writes = {held.writes.begin(), held.writes.end()},
                  .quarantined = {held.quarantined.begin(), held.quarantined.end()},
                  .exact = held.exact || (exact_ && whole_view_ == report->view),
                  .more = held.more};
        for (const HeldObject& object : held.objects)
            part.objects.push_back({std::string(object.tenant), std::string(object.key), std::string(object.group), object});
        report->parts.push_back(std::move(part));
        return true;
    });
    add_disk_parts(*report, entries_max);
    world_.note("{} reports {} objects in {} parts, {}exact", spec_.name, catalogue_->objects(), report->parts.size(),
                report->parts[0].exact ? "" : "not ");
    report->parts[0].fresh = !std::exchange(ever_lent_, true);
    note_following(report->view);
    // The new master may plan and drop from the last part on, before a stream of it has said so.
    if (!report->parts[0].fresh) catalogue_->stream_ended(/*orderly=*/false);
    send_part(report);
}

void SimNode::send_part(const std::shared_ptr<Report>& report) {
    if (report_ != report) return;
    if (++report->tries > 5 || report->view != master_.view()) {
        report_.reset();
        return;
    }
    const size_t next = report->next;
    world_.send(endpoint, master_.endpoint, [this, report, next, id = id_, spec = report->parts[next].disk ? disk_spec_ : spec_] {
        if (report->view != master_.view()) return;
        const bool ok = master_.run_membership([&](Transaction& t) { return remount_with(t, id, spec, report->parts[next]); });
        world_.send(master_.endpoint, endpoint, [this, ok, report, next] {
            if (!ok || report_ != report || report->next != next) return;
            report->tries = 0;
            if (++report->next < report->parts.size()) return send_part(report);
            report_.reset();
            if (report->view == master_.view()) joined(report->view);
        });
    });
    world_.after(500ms, [this, report, next, life = endpoint.life] {
        if (life == endpoint.life && report->next == next) send_part(report);
    });
}

bool SimNode::remount_with(Transaction& t, const ClientId& id, const SegmentSpec& spec, const Part& part) {
    if (part.fresh) {
        remount(t, {.client = id, .segments = {}, .life = spec.incarnation}, world_.now());
        return mount_segment(t, {.client = id, .segment = spec}, world_.now()) == StoreCode::kOk;
    }
    std::vector<HeldObject> objects;
    for (const Part::Object& object : part.objects) {
        objects.push_back(object.held);
        objects.back().tenant = object.tenant;
        objects.back().key = object.key;
        objects.back().group = object.group;
        if (!part.exact && !part.disk) master_.doubt(object.held.generation);
    }
    const HeldSegment held{.segment = spec,
                           .objects = objects,
                           .writes = part.writes,
                           .quarantined = part.quarantined,
                           .exact = part.exact,
                           .more = part.more};
    const RemountReply reply = remount(t, {.client = id, .segments = {&held, 1}, .life = spec_.incarnation}, world_.now());
    world_.note("master: of {}, {} adopted, {} outdated, {} refused", spec.name, reply.segments[0].adopted, reply.segments[0].stale,
                reply.segments[0].refused);
    if (reply.segments[0].refused != 0 && part.exact && !master_.missed_words(id))
        world_.violated(format_text("refused {} entries of {}", reply.segments[0].refused, spec.name));
    return reply.segments[0].code == StoreCode::kOk;
}

void SimNode::joined(uint64_t view) {
    view_ = view;
    if (stream_) stream_->close();
    follow();
}

// ---- the event stream

void SimNode::follow() {
    struct Weak {
        std::weak_ptr<SimEventStream> stream;
        bool begun = false, whole = false;
        uint64_t view = 0;
    };
    auto self = std::make_shared<Weak>();
    self->view = view_;
    last_update_ = 0;
    exact_ = false;
    note_following(view_);
    stream_ = std::make_shared<SimEventStream>(
        world_, endpoint,
        SimEventStream::Receiver{.on_update =
                                     [this, self](const EventUpdate& update) {
                                         self->begun = true;
                                         heard_ = world_.now();
                                         catalogue_->apply(update, world_.now());
                                         hear_of_disk(update);
                                         self->whole |= update.complete;
                                         if (self->whole) {
                                             whole_view_ = self->view;
                                             whole_update_ = update.sequence;
                                         }
                                         last_update_ = update.sequence;
                                         if (journal_) {
                                             standing_.hear(update);
                                             restarted_ &= !update.complete;
                                             journal_->heard(update, world_.now());
                                         }
                                         for (const CopyOrder& order : update.orders) take_order(order);
                                         if (update.acknowledge) acknowledge(update.sequence);
                                     },
                                 .on_end = [this, self](bool orderly) { stream_ended(self->stream.lock(), orderly); }});
    self->stream = stream_;
    auto asked = std::make_shared<bool>(false);
    world_.send(endpoint, master_.endpoint, [this, asked, stream = stream_, id = id_] {
        if (!std::exchange(*asked, true)) master_.follow(id, stream);
    });
    world_.after(1500ms, [this, self, stream = stream_] {  // the call was lost
        if (self->begun || stream_ != stream) return;
        stream->close();
        stream_ended(stream, false);
    });
}

/// Over a connection: late, perhaps, but not lost while both live.
void SimNode::acknowledge(uint64_t sequence) {
    const Duration cut = std::max<Duration>(endpoint.cut_until - world_.now(), 0s);
    world_.after(cut + world_.between(1ms, 40ms), [this, sequence, id = id_, life = endpoint.life, view = master_.view()] {
        if (life != endpoint.life || view != master_.view() || !master_.endpoint.up) return;
        if (endpoint.cut_until > world_.now()) acknowledge(sequence);
        else master_.acknowledge(id, sequence);
    });
}

void SimNode::stream_ended(const std::shared_ptr<SimEventStream>& stream, bool orderly) {
    if (stream_ != stream) return;
    catalogue_->stream_ended(orderly);
    if (journal_) {
        standing_.end(orderly);
        journal_->stream_ended(orderly, world_.now());
    }
    stream_.reset();
}

// ---- copies

void SimNode::stop_works() {
    for (auto& [task, work] : works_) work->stopped = true;
    works_.clear();
}

void SimNode::take_order(const CopyOrder& order) {
    if (view_ != master_.view() || works_.contains(order.task)) return;            // of a lost master; told once more
    if (world_.now() - answered_ >= master_.state().options().client_ttl) return;  // of one that has given us up meanwhile
    if (is_tier_task(order.task)) return take_tier_order(order);
    auto work = std::make_shared<Work>();
    work->order = order;
    for (const ReplicaLocation& target : order.targets) {
        if (!master_.state().segments().exists(target.segment)) continue;
        for (const auto& node : nodes_)
            if (node->spec().id == master_.state().segments()[target.segment].spec.id)
                work->targets.push_back({node.get(), node->endpoint.life, target.offset});
    }
    world_.note("{} copies {} of generation {} from {}+{}, {} bytes", spec_.name, order.key, order.generation, order.source.segment,
                order.source.offset, order.length);
    works_[order.task] = work;
    if (work->targets.size() != order.targets.size()) return end_work(work, StoreCode::kTransferFail);
    copy_chunk(work, 0, 0);
    world_.after(6s, [this, work] {  // its deadline
        if (work->stopped) return;
        if (work->targets[work->writing].node->endpoint.cut_until > world_.now()) leave_in_doubt(work);
        else end_work(work, StoreCode::kTransferFail);
    });
}

void SimNode::leave_in_doubt(const std::shared_ptr<Work>& work) {
    const Work::Target& target = work->targets[work->writing];
    work->in_doubt = {work->order.targets[work->writing].segment};
    end_work(work, StoreCode::kTransferFail);
    // What it was sent it takes when it is back, and then it can be fenced.
    world_.after(target.node->endpoint.cut_until - world_.now() + world_.between(1ms, 10s),
                 [this, work, life = endpoint.life, view = view_] {
                     const Work::Target& to = work->targets[work->writing];
                     if (life != endpoint.life || view != view_ || view != master_.view()) return;
                     if (to.node->endpoint.life == to.node_life && to.node->endpoint.up)
                         to.node->land(to.offset + work->from, work->to - work->from, work->order.generation);
                     work->in_doubt.clear();
                     report_end(work, StoreCode::kTransferFail);
                 });
}

void SimNode::copy_chunk(const std::shared_ptr<Work>& work, size_t i, uint64_t at) {
    const Duration delay = world_.chance(0.1) ? world_.between(100ms, 1500ms) : world_.between(1ms, 30ms);
    work->writing = i;
    work->from = at;
    work->to = std::min(at + std::max<uint64_t>(work->order.length / 2 / kUnit * kUnit, kUnit), work->order.length);
    world_.after(delay, [this, work, i, at, life = endpoint.life] {
        const Work::Target& to = work->targets[i];
        if (work->stopped) return;
        if (to.node->endpoint.life != to.node_life || !to.node->endpoint.up) {
            if (to.node->same_memory(to.node_life) && world_.chance(0.5))
                to.node->land(to.offset + at, work->to - at, work->order.generation);
            return;
        }
        if (endpoint.cut_until > world_.now() || to.node->endpoint.cut_until > world_.now()) {
            if (life == endpoint.life) copy_chunk(work, i, at);
            return;
        }
        const CopyOrder& order = work->order;
        const uint64_t end = work->to;
        work->corrupt |= !read(order.source.offset + at, end - at, order.generation) && !master_.doubtful(order.generation);
        to.node->land(to.offset + at, end - at, order.generation);
        if (life != endpoint.life) return;  // died: what was on its way has landed
        if (end < order.length) copy_chunk(work, i, end);
        else if (i + 1 < work->targets.size()) copy_chunk(work, i + 1, 0);
        else end_work(work, StoreCode::kOk);
    });
}

void SimNode::end_work(const std::shared_ptr<Work>& work, StoreCode code) {
    work->stopped = true;
    copies += code == StoreCode::kOk;
    report_end(work, code);
}

void SimNode::report_end(const std::shared_ptr<Work>& work, StoreCode code) {
    for (int i = 0; i < 3; ++i)  // answers are not waited for: what is lost is asked for again when its time is over
        world_.after(i * 200ms, [this, work, code, in_doubt = work->in_doubt, id = id_, life = endpoint.life, view = view_] {
            if (life != endpoint.life || view != view_) return;
            world_.send(endpoint, master_.endpoint, [this, work, code, in_doubt, id, view] {
                if (view != master_.view()) return;
                const TaskNumber task = master_.state().tasks().find(work->order.task);
                if (code == StoreCode::kOk && work->corrupt && task != 0 && master_.state().tasks()[task].copy != 0)
                    world_.violated(format_text("a copy of generation {} had other bytes as its source", work->order.generation));
                master_.end_copy({.client = id, .task = work->order.task, .code = code, .message = {}, .in_doubt = in_doubt});
            });
        });
}

// ---- another segment in the same memory

void SimNode::renew_segment() {
    if (view_ != master_.view() || report_ || renewing_) return;
    world_.note("{} mounts its memory anew", spec_.name);
    renewing_ = true;
    unmount();
}

void SimNode::unmount() {
    unmounting_ = spec_.id;
    world_.send(endpoint, master_.endpoint, [this, id = id_, old = spec_.id, view = view_] {
        if (view != master_.view()) return;
        master_.run([&](Transaction& t) { return unmount_segment(t, {.client = id, .segment = old}, world_.now()); });
        world_.send(master_.endpoint, endpoint, [this, old, view] {
            if (old != spec_.id || view != view_ || view != master_.view()) return;
            renewing_ = true;  // also where the answer to the mount was quicker than that to an impatient unmount
            catalogue_->remove_segment(old);
            spec_.id.low += 1'000;
            catalogue_->add_segment(spec_);
            mount();
        });
    });
}

void SimNode::mount() {
    mounting_ = world_.now();
    world_.send(endpoint, master_.endpoint, [this, id = id_, spec = spec_, view = view_] {
        if (view != master_.view()) return;
        const StoreCode code = master_.run_membership(
            [&](Transaction& t) { return mount_segment(t, {.client = id, .segment = spec}, world_.now()); });
        world_.send(master_.endpoint, endpoint, [this, code, spec, view] {
            // Where we have become impatient meanwhile, it may be unmounted again by now.
            if (code == StoreCode::kOk && spec.id == spec_.id && view == view_ && unmounting_ != spec.id) renewing_ = false;
        });
    });
}

}  // namespace mooncake::store::simulation
