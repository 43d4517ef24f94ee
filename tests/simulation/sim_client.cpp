// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_client.h"

#include <algorithm>

namespace mooncake::store::simulation {

SimClient::SimClient(World& world, SimMaster& master, std::vector<std::unique_ptr<SimNode>>& nodes, uint64_t number, uint64_t keys)
    : world_(world), master_(master), nodes_(nodes), number_(number), keys_(keys) {
    start();
    act();
    beat();
}

void SimClient::start() {
    endpoint.up = true;
    id_ = {1, number_ * 1'000'000 + endpoint.life};
    answered_ = world_.now();
    view_ = 0;
    writing_.clear();
}

void SimClient::crash() {
    endpoint.up = false;
    ++endpoint.life;
    writing_.clear();
    world_.after(world_.between(10ms, 5000ms), [this] { start(); });
}

void SimClient::leave() {
    for (const auto& put : writing_) put->stopped = true;
    world_.send(endpoint, master_.endpoint,
                [this, id = id_] { master_.run_membership([&](Transaction& t) { return goodbye(t, id, world_.now()); }); });
    endpoint.up = false;
    ++endpoint.life;
    world_.after(world_.between(10ms, 1000ms), [this] { start(); });
}

template <typename Reply>
std::function<void(std::optional<Reply>)> SimClient::expect(std::function<void(std::optional<Reply>)> done) {
    auto open = std::make_shared<bool>(true);
    const auto finish = [this, open, life = endpoint.life, done](std::optional<Reply> reply) {
        if (!*open || life != endpoint.life) return;
        *open = false;
        done(std::move(reply));
    };
    world_.after(kCallTimeout, [finish] { finish(std::nullopt); });
    return finish;
}

template <typename Reply>
void SimClient::call(std::function<Reply(Transaction&)> op, std::function<void(std::optional<Reply>)> done) {
    world_.send(endpoint, master_.endpoint, [this, op, finish = expect<Reply>(done)] {
        const Reply reply = master_.run(op);
        world_.send(master_.endpoint, endpoint, [finish, reply] { finish(reply); });
    });
}

template <typename Reply>
void SimClient::call_and_tell(const std::string& key, std::function<Reply(Transaction&)> op, std::function<void(std::optional<Reply>)> done,
                              std::function<void(const Reply&)> leaves) {
    world_.send(endpoint, master_.endpoint, [this, key, op, leaves, finish = expect<Reply>(done)] {
        master_.run_and_tell(key, op, [this, leaves, finish](const Reply& reply) {
            leaves(reply);
            world_.send(master_.endpoint, endpoint, [finish, reply] { finish(reply); });
        });
    });
}

std::vector<SimClient::Copy> SimClient::resolve(const std::vector<ReplicaLocation>& where) const {
    std::vector<Copy> copies;
    for (const ReplicaLocation& location : where) {
        Copy copy{.segment = master_.state().segments()[location.segment].spec.id, .offset = location.offset};
        for (const auto& node : nodes_)
            if (node->spec().id == copy.segment || node->disk_spec().id == copy.segment)
                copy.node = node.get(), copy.node_life = node->endpoint.life, copy.disk = node->disk_spec().id == copy.segment;
        copies.push_back(copy);
    }
    return copies;
}

void SimClient::act() {
    world_.after(world_.between(5ms, 120ms), [this] {
        act();
        if (!endpoint.up || stopped_) return;
        const uint64_t dice = world_.random.below(100);
        if (dice < 40) begin_put(false);
        else if (dice < 48) begin_put(true);
        else if (dice < 78) begin_get();
        else if (dice < 92) begin_probe();
        else if (dice < 97) begin_remove();
        else begin_task();
    });
}

void SimClient::stop_writes() {
    for (const auto& put : writing_) put->stopped = true;
    writing_.clear();
}

void SimClient::beat() {
    world_.after(world_.between(700ms, 1000ms), [this] {
        beat();
        if (!endpoint.up) return;
        const Time sent = world_.now();
        // Silence for as long as the master waits: it may think us dead, so nothing of ours may land from now on.
        if (sent - answered_ >= master_.state().options().client_ttl) stop_writes();
        using Answer = std::pair<HeartbeatReply, uint64_t>;
        call<Answer>([this, id = id_](Transaction& t) { return Answer(heartbeat(t, id, world_.now()), master_.view()); },
                     [this, sent](std::optional<Answer> answer) {
                         if (!answer) return;
                         answered_ = sent;
                         if (answer->first.status == HeartbeatStatus::kNeedRemount || answer->second != view_) join(answer->second);
                     });
    });
}

void SimClient::join(uint64_t view) {
    stop_writes();
    view_ = 0;
    call<bool>(
        [this, view, id = id_](Transaction& t) {
            if (view != master_.view()) return false;
            remount(t, {.client = id, .segments = {}}, world_.now());
            return true;
        },
        [this, view](std::optional<bool> known) {
            if (known && *known) view_ = view;
        });
}

// put ---------------------------------------------------------------------------------------------------------------------

void SimClient::begin_put(bool upsert) {
    auto put = std::make_shared<Put>();
    put->key = some_key();
    if (put->key.size() == 2) put->group = format_text("g{}", (put->key[1] - '0') / 2);  // k0 and k1, k2 and k3, ...
    const uint64_t dice = world_.random.below(100);                                      // of very different lengths: holes are needed
    put->length = 1 + world_.random.below(dice < 30 ? 200 : dice < 85 ? 3'000 : dice < 97 ? 16'000 : 40'000);
    put->upsert = upsert;
    put->request_id = ++requests_;
    put->sent = world_.now();
    send_start(put);
}

void SimClient::send_start(const std::shared_ptr<Put>& put) {
    ++put->tries;
    const uint32_t replicas = world_.chance(0.3) ? 2 : 1;
    const bool pin = world_.chance(0.1);
    std::vector<SegmentNumber> unreachable;
    if (world_.chance(0.05)) unreachable.push_back(static_cast<SegmentNumber>(1 + world_.random.below(8)));
    call_and_tell<Started>(
        put->key,
        [this, put, replicas, pin, unreachable, id = id_](Transaction& t) {
            std::vector<PutItem> items{{.key = put->key, .length = put->length, .group = put->group}};
            PutStartRequest request{.client = id,
                                    .request_id = put->request_id,
                                    .tenant = master_.tenant(),
                                    .config = {.replica_num = replicas},
                                    .items = items};
            if (pin) request.config.soft_pin = SoftPinAction::kEnable, request.config.soft_pin_ttl = 3s;
            request.unreachable = unreachable;
            master_.writer_limited = !unreachable.empty();
            const PutStartReply reply = put->upsert ? upsert_start(t, request, world_.now()) : put_start(t, request, world_.now());
            Started started{
                .item = reply.items[0], .retry_after = reply.retry_after, .copies = resolve(reply.replicas), .view = master_.view()};
            if (reply.items[0].code == StoreCode::kObjectAlreadyExists) started.there = check_there(put->key, unreachable);
            return started;
        },
        [this, put](std::optional<Started> reply) { started(put, std::move(reply)); },
        [this, put](const Started& reply) {
            // Who is told that it is there may rely on it as its writer does.
            if (reply.there != 0 && master_.holds(put->key, reply.there)) master_.acknowledged(put->key, reply.there);
        });
}

/// A put was told that the value is there: then somebody must be thought to have it. Returns its generation.
uint64_t SimClient::check_there(const std::string& key, const std::vector<SegmentNumber>& unreachable) {
    const SegmentTable& segments = master_.state().segments();
    const Object& object = master_.state().objects()[master_.find(key)];
    const ReplicaList& replicas = object.replicas;
    for (size_t i = 0; i < replicas.size(); ++i) {
        const Segment& segment = segments[replicas[i].segment];
        const bool lost = segment.stream_down || segment.suspect_until > world_.now() || segment.heard_until <= world_.now();
        if (!lost && std::find(unreachable.begin(), unreachable.end(), replicas[i].segment) == unreachable.end()) return object.generation;
    }
    world_.violated(format_text("{} was said to be there, but nobody has it", key));
    return 0;
}

void SimClient::started(const std::shared_ptr<Put>& put, std::optional<Started> reply) {
    if (!reply) {
        if (put->tries < 3) send_start(put);
        else give_up(put);
        return;
    }
    if (reply->item.code != StoreCode::kOk) {
        refused += reply->item.code == StoreCode::kNoAvailableHandle;
        if (reply->item.code == StoreCode::kReplicaIsNotReady && put->tries < 3)  // by another: it ends, or not
            world_.after(world_.between(1ms, 300ms), [this, put, life = endpoint.life] {
                if (life == endpoint.life && endpoint.up && !stopped_) send_start(put);
            });
        if (reply->item.code == StoreCode::kNoAvailableHandle && reply->retry_after > Duration::zero() && put->tries == 1)
            world_.after(reply->retry_after, [this, put, life = endpoint.life] {
                if (life == endpoint.life && endpoint.up && !stopped_) send_start(put);
            });
        return;
    }
    put->generation = reply->item.generation;
    put->copies = std::move(reply->copies);
    if (reply->view != view_) return give_up(put);  // of a master that we have not met: others' writes of ours may still run
    put->copies_left = put->copies.size();
    writing_.push_back(put);
    world_.after(kWriteTimeout, [this, put, life = endpoint.life] {  // the deadline: stop, then say so
        if (life == endpoint.life && put->copies_left != 0 && !put->stopped && !put->abandoned) give_up(put);
    });
    for (size_t i = 0; i < put->copies.size(); ++i) land_chunk(put, i, 0);
}

/// A slow writer, now and then; one-sided, so that nobody checks anything when the bytes arrive.
void SimClient::land_chunk(const std::shared_ptr<Put>& put, size_t i, uint64_t at) {
    const Duration delay = world_.chance(0.1) ? world_.between(100ms, 2500ms) : world_.between(1ms, 30ms);
    world_.after(delay, [this, put, i, at, life = endpoint.life] {
        const Copy& target = put->copies[i];
        const bool gone = target.node == nullptr || !target.node->endpoint.up || target.node->endpoint.life != target.node_life;
        if (gone && life == endpoint.life) report(target.segment);
        if (put->stopped) return;
        // It may have mapped the memory, and was in the middle of it.
        if (gone && target.node != nullptr && target.node->same_memory(target.node_life) && world_.chance(0.5))
            target.node->land(target.offset + at, std::min(std::max<uint64_t>(put->length / 3 / 64 * 64, 64), put->length - at),
                              put->generation);
        if (gone) return;
        if (put->abandoned && world_.now() >= put->sent + master_.state().options().put_release_timeout) return;
        if (endpoint.cut_until > world_.now() || target.node->endpoint.cut_until > world_.now()) {
            if (life == endpoint.life) land_chunk(put, i, at);  // tries again
            return;
        }
        const uint64_t chunk = std::max<uint64_t>(put->length / 3 / 64 * 64, 64);
        const uint64_t end = std::min(at + chunk, put->length);
        target.node->land(target.offset + at, end - at, put->generation);
        if (life != endpoint.life) return;  // the writer died: what was on its way has landed
        if (end < put->length) land_chunk(put, i, end);
        else copy_written(put);
    });
}

void SimClient::copy_written(const std::shared_ptr<Put>& put) {
    if (--put->copies_left != 0) return;
    std::erase(writing_, put);
    if (put->abandoned) return;
    put->tries = 0;
    send_end(put);
}

void SimClient::send_end(const std::shared_ptr<Put>& put) {
    ++put->tries;
    call_and_tell<StoreCode>(
        put->key,
        [this, put, id = id_](Transaction& t) {
            const PutEndItem item{.key = put->key, .generation = put->generation, .checksum = put->generation};
            return put_end(t, {.client = id, .tenant = master_.tenant(), .items = {&item, 1}}, world_.now()).codes[0];
        },
        [this, put](std::optional<StoreCode> code) {
            if (!code && put->tries < 4) send_end(put);
            if (code == StoreCode::kOk) ++puts;
        },
        [this, put](const StoreCode& code) {
            // From here on the value must be there.
            if (code == StoreCode::kOk && master_.holds(put->key, put->generation)) master_.acknowledged(put->key, put->generation);
        });
}

void SimClient::give_up(const std::shared_ptr<Put>& put) {
    // At a node that cannot be asked nobody knows what becomes of the last bytes.
    put->abandoned = put->copies_left != 0 && world_.chance(0.5);
    put->stopped = !put->abandoned;
    if (put->stopped) std::erase(writing_, put);
    call<StoreCode>(
        [this, put, id = id_](Transaction& t) {
            const PutEndItem item{.key = put->key, .generation = put->generation};
            std::vector<SegmentNumber> in_doubt;
            for (const Copy& copy : put->copies)
                if (put->abandoned) in_doubt.push_back(t.state().segments().find(copy.segment));
            return put_revoke(
                       t,
                       {.client = id, .request_id = put->request_id, .tenant = master_.tenant(), .items = {&item, 1}, .in_doubt = in_doubt},
                       world_.now())
                .codes[0];
        },
        [](std::optional<StoreCode>) {});
}

void SimClient::report(const SegmentId& segment) {
    call<StoreCode>(
        [this, segment, id = id_](Transaction& t) {
            return report_failures(t, {.client = id, .segments = {&segment, 1}}, world_.now());
        },
        [](std::optional<StoreCode>) {});
}

// get, exist, remove ------------------------------------------------------------------------------------------------------

void SimClient::begin_get() {
    auto get = std::make_shared<Get>();
    get->key = some_key();
    get->sent = world_.now();
    get->slow = world_.chance(0.3);
    get->chunks = 1 + world_.random.below(5);
    call<Get>(
        [this, get](Transaction& t) {
            const std::string_view key = get->key;
            const GetReply reply = get_replicas(t, {.tenant = master_.tenant(), .keys = {&key, 1}}, world_.now());
            Get answer = *get;
            answer.item = reply.items[0];
            answer.lease = reply.lease;
            answer.copies = resolve(reply.replicas);
            return answer;
        },
        [this](std::optional<Get> answer) {
            if (!answer || answer->item.code != StoreCode::kOk) return;
            const Copy chosen = answer->copies[world_.random.below(answer->copies.size())];
            answer->copies = {chosen};
            if (chosen.node != nullptr) read_chunk(std::make_shared<Get>(*std::move(answer)), 0);
        });
}

void SimClient::read_chunk(const std::shared_ptr<Get>& get, size_t chunk) {
    const Duration delay = get->slow ? world_.between(50ms, 900ms) : world_.between(1ms, 40ms);
    world_.after(delay, [this, get, chunk, life = endpoint.life] {
        const Copy& from = get->copies[0];
        if (life != endpoint.life || !from.node->endpoint.up || from.node->endpoint.life != from.node_life) return;
        if (from.node->endpoint.cut_until > world_.now() || endpoint.cut_until > world_.now()) return;
        if (world_.now() >= get->sent + get->lease) {
            ++late;
            return;  // not trusted any more
        }
        if (from.disk) {  // verified by its node: there or not, and never anything else
            ++(from.node->on_disk(get->item.generation) ? gets : missed);
            return;
        }
        const uint64_t size = (get->item.length + get->chunks - 1) / get->chunks;
        const uint64_t begin = std::min(chunk * size, get->item.length), end = std::min(begin + size, get->item.length);
        if (begin < end && !from.node->read(from.offset + begin, end - begin, get->item.generation)) {
            ++missed;
            if (master_.doubtful(get->item.generation)) return;
            world_.violated(
                format_text("a read of {} of generation {} under a valid lease met other bytes", get->key, get->item.generation));
        }
        if (chunk + 1 < get->chunks) read_chunk(get, chunk + 1);
        else ++gets;
    });
}

void SimClient::begin_probe() {
    std::vector<std::string> names;
    for (uint64_t i = 0, count = 1 + world_.random.below(10); i < count; ++i) names.push_back(some_key());
    call<ExistReply>(
        [this, names](Transaction& t) {
            const std::vector<std::string_view> keys(names.begin(), names.end());
            return exist(t, {.tenant = master_.tenant(), .keys = keys}, world_.now());
        },
        [](std::optional<ExistReply>) {});
}

void SimClient::begin_task() {
    const auto some_node = [this] { return nodes_[world_.random.below(nodes_.size())]->spec().name; };
    const std::string name = some_key(), source = some_node(), target = some_node();
    const bool move = world_.chance(0.5);
    call<TaskReply>(
        [this, name, source, target, move](Transaction& t) {
            return create_task(t,
                               {.type = move ? TaskType::kMove : TaskType::kCopy,
                                .tenant = master_.tenant(),
                                .key = name,
                                .source = move ? std::string_view(source) : std::string_view(),
                                .targets = {target}},
                               world_.now());
        },
        [](std::optional<TaskReply>) {});
}

/// Part by part, as the master does: others come in between, also between the look at some keys and their removal.
void SimClient::remove_on(const std::shared_ptr<Removal>& removal, uint64_t view) {
    world_.after(world_.between(0ms, 5ms), [this, removal, view] {
        if (view != master_.view() || !master_.endpoint.up || removal->done()) return;
        const auto keys = removal->choose(removal->look(master_.state()));
        world_.after(world_.between(0ms, 5ms), [this, removal, view, keys] {
            if (view != master_.view() || !master_.endpoint.up) return;
            master_.run([&](Transaction& t) {
                removal->remove(t, keys, world_.now());
                return true;
            });
            remove_on(removal, view);
        });
    });
}

void SimClient::begin_remove() {
    const std::string name = some_key();
    const bool force = world_.chance(0.5);
    if (world_.chance(0.04)) {
        Removal::Matches matches;
        if (world_.chance(0.5)) matches = [last = name.back()](std::string_view key) { return key.back() == last; };
        const bool of_all_tenants = world_.chance(0.3);
        call<uint64_t>(
            [this, force, matches, of_all_tenants](Transaction& t) {
                const auto tenant = of_all_tenants ? std::nullopt : std::optional(std::string(master_.tenant()));
                if (force) master_.removed_matching(matches);
                const auto removal = std::make_shared<Removal>(t, Removal::Wish{.tenant = tenant, .matches = matches, .force = force});
                removal->start(t, world_.now());
                remove_on(removal, master_.view());
                return uint64_t{0};
            },
            [](std::optional<uint64_t>) {});
        return;
    }
    call_and_tell<StoreCode>(
        name,
        [this, name, force](Transaction& t) {
            const std::string_view key = name;
            const StoreCode code = remove(t, {.tenant = master_.tenant(), .keys = {&key, 1}, .force = force}, world_.now()).codes[0];
            if (code == StoreCode::kOk || code == StoreCode::kObjectNotFound) master_.removed(name);
            return code;
        },
        [](std::optional<StoreCode>) {});
}

}  // namespace mooncake::store::simulation
