// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/route.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/error_copy.h"
#include "base/log.h"

namespace mooncake::ascend {

namespace {

std::atomic<uint64_t> next_id{1};

constexpr Duration kGrace = 50ms;  // for what is in flight, before its link is cut
constexpr Duration kPauseMin = 10ms, kPauseMax = 320ms;

bool usable_as(const RegionRecord& region, bool write) noexcept { return region.writable || !write; }

}  // namespace

Route::Route(RouteShared& shared, Station& station, Bounce& bounce, Target target,
             std::function<void(uint32_t, std::vector<Item>)> elsewhere)
    : shared_(shared), station_(station), bounce_(bounce), target_(std::move(target)), elsewhere_(std::move(elsewhere)),
      id_(next_id.fetch_add(1)), state_({.idle_release = shared.options.idle_release}) {}

Duration Route::time_for(uint64_t bytes) const { return shared_.options.transfer_timeout + (bytes >> 20) * 1ms; }

bool Route::usable() const {
    Lock lock(mutex_);
    return !ended_;
}

// ---- the link

Result<ResolveAnswer> Route::ask(const ResolveRequest& request, Duration timeout) {
    auto bytes = shared_.control.call(target_.descriptor, std::string(kTransport), encode(request), Deadline::after(timeout));
    if (bytes) return decode_answer(*bytes);
    // It had the transport when it was described: it is leaving.
    if (bytes.error().code() == Code::kNotSupported) return fail(Code::kUnavailable, "{}", bytes.error().message());
    return Unexpected(std::move(bytes).error());
}

Result<> Route::make_link(Duration timeout) {
    // What was registered before the question is reached by the link that comes after it.
    const uint64_t ours = shared_.memory.version();
    MC_ASSIGN_OR_RETURN(const ResolveAnswer answer, ask({}, std::min(timeout, shared_.options.connect_timeout)));
    const abi::Status status = station_.connect(target_.name, id_);
    if (status != abi::kSuccess) return Unexpected(station_.failure("Connect", status, target_.name));
    Lock lock(mutex_);
    their_version_ = answer.version;
    our_version_ = ours;
    regions_.clear();
    return {};
}

Result<> Route::connect(Deadline deadline) {
    {
        Lock lock(mutex_);
        if (ended_) return Unexpected(copy_error(*ended_));
        if (working_ || state_.next(Clock::now(), true) != RouteState::Step::kConnect) return {};
        working_ = true;
        state_.begin_connect();
    }
    auto made = make_link(deadline.left());
    Lock lock(mutex_);
    working_ = false;
    if (made) state_.connected(Clock::now());
    else state_.connect_failed(Clock::now());
    schedule();
    return made;
}

void Route::run_connect() {
    auto made = make_link(shared_.options.connect_timeout);
    Done done;
    {
        Lock lock(mutex_);
        if (made) state_.connected(Clock::now());
        else {
            state_.connect_failed(Clock::now());
            break_down(made.error(), done);
        }
        if (ended_) state_.leave();
        ++completing_;
    }
    complete(done);
    task_over();
}

void Route::run_disconnect() {
    (void)station_.disconnect(target_.name, id_);
    {
        Lock lock(mutex_);
        state_.disconnected();
        regions_.clear();
    }
    task_over();
}

void Route::sweep() {
    Lock lock(mutex_);
    schedule();
}

// ---- tasks

void Route::schedule() {
    if (working_) return;
    const bool wanted = !queue_.empty() && !ended_;
    switch (state_.next(Clock::now(), wanted)) {
        case RouteState::Step::kNothing: return;
        case RouteState::Step::kRefuse:  // those that come after a failure; the failure itself has ended the route
        case RouteState::Step::kConnect: state_.begin_connect(); return post(shared_.links, &Route::run_connect);
        case RouteState::Step::kDisconnect: state_.begin_disconnect(); return post(shared_.links, &Route::run_disconnect);
        case RouteState::Step::kRun: return post(shared_.workers, &Route::run_transfer);
    }
}

void Route::post(ThreadPool& pool, void (Route::*task)()) {
    working_ = true;
    // Without a thread nothing of it will ever run: the pools are started before, and stopped last.
    if (!pool.post([self = shared_from_this(), task] { ((*self).*task)(); }, id_)) working_ = false;
}

void Route::task_over() {
    Lock lock(mutex_);
    working_ = false;
    changed_.notify_all();
    schedule();
}

void Route::submit(std::vector<Item> items) {
    Done done;
    {
        Lock lock(mutex_);
        for (Item& item : items) {
            if (ended_) done.emplace_back(std::move(item), copy_error(*ended_));
            else queue_.push_back(std::move(item));
        }
        schedule();
        ++completing_;
    }
    complete(done);
}

// ---- what is known of the peer's memory

uint64_t Route::known(uint64_t address, uint64_t length, bool write) const {
    uint64_t at = address;
    const uint64_t end = address + length;
    auto region = regions_.upper_bound(at);
    if (region == regions_.begin()) return 0;
    for (--region; region != regions_.end() && region->first <= at && at < end; ++region) {
        if (region->second.end() <= at || !usable_as(region->second, write)) break;
        at = std::min(end, region->second.end());
    }
    return at - address;
}

void Route::run_resolve() {
    ResolveRequest request;
    {
        Lock lock(mutex_);
        for (const Item& item : queue_) {
            if (request.ranges.size() == kRangesMax) break;
            if (known(item.remote(), item.length, item.direction == Direction::kWrite) < item.length)
                request.ranges.push_back({item.remote(), item.length});
        }
    }
    const auto answer = ask(request, shared_.options.connect_timeout);
    Done done;
    std::map<uint32_t, std::vector<Item>> elsewhere;
    {
        Lock lock(mutex_);
        if (!answer) break_down(answer.error(), done);
        else if (state_.state() == RouteState::State::kReady) sort_out(request, *answer, done, elsewhere);
        moving_ = !elsewhere.empty();
        ++completing_;
    }
    complete(done);
    for (auto& [engine, items] : elsewhere) elsewhere_(engine, std::move(items));
    {
        Lock lock(mutex_);
        moving_ = false;
    }
    task_over();
}

/// What the peer said, for those that were asked after: used, or younger than the link, or at another engine, or nowhere.
void Route::sort_out(const ResolveRequest& asked, const ResolveAnswer& answer, Done& done,
                     std::map<uint32_t, std::vector<Item>>& elsewhere) {
    bool younger = false;
    for (const RegionRecord& region : answer.regions) {
        if (region.engine != target_.engine) continue;
        if (region.since > their_version_) younger = true;
        else regions_[region.address] = region;
    }
    std::set<std::pair<uint64_t, uint64_t>> ranges;
    for (const AddressRange& range : asked.ranges) ranges.emplace(range.address, range.length);
    // Where its first byte lies; at our own engine if it is there, too.
    const auto found = [&](const Item& item) {
        const RegionRecord* best = nullptr;
        for (const RegionRecord& region : answer.regions) {
            if (region.address > item.remote() || region.end() <= item.remote() || !usable_as(region, item.direction == Direction::kWrite))
                continue;
            if (best == nullptr || region.engine == target_.engine) best = &region;
        }
        return best;
    };
    std::deque<Item> left;
    for (Item& item : queue_) {
        const bool write = item.direction == Direction::kWrite;
        if (!ranges.contains({item.remote(), item.length}) || known(item.remote(), item.length, write) == item.length) {
            left.push_back(std::move(item));
            continue;
        }
        const RegionRecord* const region = found(item);
        if (region != nullptr && region->engine != target_.engine) elsewhere[region->engine].push_back(std::move(item));
        else if (region != nullptr && younger) left.push_back(std::move(item));  // the next link will show
        else {
            Error missing = error(Code::kNotRegistered, "[{:#x}, +{}) is not registered at {} for {}", item.remote(), item.length,
                                  target_.descriptor.name, write ? "writing" : "reading");
            done.emplace_back(std::move(item), std::move(missing));
        }
    }
    queue_ = std::move(left);
    if (younger) state_.leave();
}

// ---- transfers

Item Route::take(uint64_t length) {
    Item& front = queue_.front();
    if (length == front.length) {
        Item whole = std::move(front);
        queue_.pop_front();
        return whole;
    }
    if (front.whole == nullptr) front.whole = std::make_shared<Item::Whole>();
    ++front.whole->pieces;
    Item piece = front;
    piece.length = length;
    front.offset += length;
    front.length -= length;
    return piece;
}

/// As many parts as the bytes have regions. False: there would be too many.
bool Route::add_parts(Flight& flight, const Item& item, uint64_t length) {
    const size_t before = flight.parts.size();
    auto region = std::prev(regions_.upper_bound(item.remote()));
    for (uint64_t done = 0; done < length; ++region) {
        const uint64_t at = item.remote() + done, some = std::min(length - done, region->second.end() - at);
        if (flight.parts.size() == kPartsMax) {
            flight.parts.resize(before);
            return false;
        }
        flight.parts.push_back({reinterpret_cast<uintptr_t>(item.local()) + done, at, some});
        done += some;
    }
    return true;
}

std::shared_ptr<Route::Flight> Route::take_flight() {
    auto flight = std::make_shared<Flight>();
    const bool pooled = shared_.options.pooled();
    while (!queue_.empty() && flight->bytes < kBytesMax && !flight->bounced) {
        const Item& item = queue_.front();
        const MemoryRegion* const region = item.slice->region;
        const bool bounced = region == nullptr;
        if (!flight->items.empty()) {
            const MemoryRegion* const first = flight->items.front().slice->region;
            if (item.direction != flight->direction || bounced || (pooled && first->kind != region->kind)) break;
        }
        if (!bounced && our_version_ < shared_.memory.version() && shared_.memory.since(*region) > our_version_) {
            if (flight->items.empty()) state_.leave();  // the link was made before it was registered
            break;
        }
        const uint64_t length = std::min({item.length, kBytesMax - flight->bytes, bounced ? Bounce::kBytes : UINT64_MAX});
        if (known(item.remote(), length, item.direction == Direction::kWrite) < length) break;
        flight->direction = item.direction;
        if (!add_parts(*flight, item, length)) break;
        flight->bounced = bounced;
        flight->bytes += length;
        flight->items.push_back(take(length));
    }
    if (flight->items.empty()) return nullptr;
    flight->epoch = state_.start();
    flights_.push_back(flight);
    return flight;
}

void Route::run_transfer() {
    std::shared_ptr<Flight> flight;
    {
        Lock lock(mutex_);
        if (state_.state() == RouteState::State::kReady && !ended_ && !queue_.empty()) {
            if (shared_.poller != nullptr && shared_.poller->full()) {
                shared_.timers.at(Clock::now() + 1ms, [self = shared_from_this()] { self->task_over(); });
                return;
            }
            flight = take_flight();
            // The peer has to be asked, which is not for a worker.
            if (flight == nullptr && state_.state() == RouteState::State::kReady) return post(shared_.links, &Route::run_resolve);
        }
    }
    if (flight == nullptr) return task_over();
    if (shared_.poller != nullptr && !flight->bounced) return begin_request(flight);
    std::optional<Error> failure;
    const bool write = flight->direction == Direction::kWrite;
    const abi::Status status = flight->bounced ? transfer_bounced(*flight, failure)
                                               : station_.transfer(target_.name, write, flight->parts, time_for(flight->bytes));
    finish(flight, status, std::move(failure));
    rest(status);
}

/// Local memory that nobody registered: the kernel fills or empties a buffer, and says if it is not there.
abi::Status Route::transfer_bounced(Flight& flight, std::optional<Error>& failure) {
    Lock lock(bounce_.mutex);
    const Item& item = flight.items.front();
    const bool write = flight.direction == Direction::kWrite;
    const CrossPiece piece{.local = bounce_.memory, .remote = reinterpret_cast<uint64_t>(item.local()), .length = item.length};
    const auto copy = [&](Direction direction) {
        if (cross_copy(::getpid(), direction, std::span(&piece, 1)).fault == CrossResult::Fault::kNone) return true;
        failure = error(Code::kNotRegistered, "local memory at {} is not mapped", static_cast<void*>(item.local()));
        return false;
    };
    if (write && !copy(Direction::kRead)) return abi::kSuccess;
    abi::Descriptions parts = flight.parts;
    uint64_t at = 0;
    for (abi::TransferDescription& part : parts) {
        part.local = reinterpret_cast<uintptr_t>(bounce_.memory) + at;
        at += part.length;
    }
    const abi::Status status = station_.transfer(target_.name, write, parts, time_for(item.length));
    if (status == abi::kSuccess && !write) (void)copy(Direction::kWrite);
    return status;
}

void Route::begin_request(const std::shared_ptr<Flight>& flight) {
    XferEngine::Request request = nullptr;
    const bool write = flight->direction == Direction::kWrite;
    abi::Status status = station_.transfer_async(target_.name, write, flight->parts, request);
    if (status == abi::kNotConnected && station_.connects_by_itself())
        status = station_.transfer(target_.name, write, flight->parts, time_for(flight->bytes));  // which connects
    else if (status == abi::kSuccess) {
        const auto self = shared_from_this();
        shared_.poller->watch(
            {.station = &station_,
             .request = request,
             .deadline = Deadline::after(time_for(flight->bytes)),
             .abort =
                 [self] { (void)self->shared_.links.post([self] { (void)self->station_.disconnect(self->target_.name, self->id_); }); },
             .done =
                 [self, flight](abi::Status verdict) {
                     self->finish(flight, verdict);
                     self->sweep();
                 }});
        return task_over();  // the next may go on beside it
    }
    finish(flight, status);
    rest(status);
}

void Route::finish(const std::shared_ptr<Flight>& flight, abi::Status status, std::optional<Error> failure) {
    Done done;
    {
        Lock lock(mutex_);
        state_.finish(Clock::now());
        if (status == abi::kSuccess) {
            pause_ = 0s;
            for (Item& item : flight->items)
                done.emplace_back(std::move(item), failure ? std::optional(copy_error(*failure)) : std::nullopt);
            if (shared_.options.short_connection && queue_.empty()) state_.leave();
        } else judge(*flight, status, done);
        std::erase(flights_, flight);
        ++completing_;
        changed_.notify_all();
    }
    complete(done);
}

/// After a task: the library may have asked for a pause.
void Route::rest(abi::Status status) {
    if (status != abi::kResourceExhausted) return task_over();
    Duration pause;
    {
        Lock lock(mutex_);
        pause = pause_;
    }
    shared_.timers.at(Clock::now() + pause, [self = shared_from_this()] { self->task_over(); });
}

/// What becomes of items whose transfer failed: they wait again, or it was their last try.
void Route::judge(Flight& flight, abi::Status status, Done& done) {
    const Error failure = station_.failure(shared_.poller != nullptr ? "TransferAsync" : "TransferSync", status, target_.name);
    const bool full = status == abi::kResourceExhausted;
    if (full) {
        if (pause_ == 0s) full_since_ = Clock::now();
        pause_ = std::clamp(pause_ * 2, kPauseMin, kPauseMax);
    } else {
        state_.fail(flight.epoch);
        regions_.clear();
    }
    const bool last_pause = full && Clock::now() - full_since_ > shared_.options.transfer_timeout;
    bool hopeless = false;
    for (auto item = flight.items.rbegin(); item != flight.items.rend(); ++item) {
        if (!full) ++item->tries;
        const int tries_max = status == abi::kParamInvalid ? 2 : kTriesMax;
        const auto stopped = cancelling_.find(item->slice->completion);
        const bool cancelled = stopped != cancelling_.end();
        if (ended_ || cancelled || last_pause || item->tries >= tries_max) {
            hopeless |= !cancelled && !last_pause && status != abi::kParamInvalid;
            done.emplace_back(std::move(*item), copy_error(cancelled ? *stopped->second : ended_ ? *ended_ : failure));
        } else queue_.push_front(std::move(*item));
    }
    if (hopeless && !ended_) break_down(failure, done);
}

// ---- endings

void Route::drain_queue(const Error& error, Done& done) {
    for (Item& item : queue_) done.emplace_back(std::move(item), copy_error(error));
    queue_.clear();
}

void Route::break_down(const Error& error, Done& done) {
    if (!ended_) ended_ = copy_error(error);
    state_.leave();
    drain_queue(*ended_, done);
}

/// Tells those whose turn it is. Who filled the list, and is not waited for as a flight is, has counted itself in completing_.
void Route::complete(Done& done) {
    tell(done);
    Lock lock(mutex_);
    --completing_;
    changed_.notify_all();
}

void Route::tell(Done& done) {
    for (auto& [item, failure] : done) {
        const Slice& slice = *item.slice;
        if (item.whole != nullptr) {
            // All pieces are on one route, but asynchronous ones may end on several threads.
            static constinit Mutex wholes;
            Lock lock(wholes);
            if (failure && !item.whole->failure) item.whole->failure = std::move(failure);
            if (--item.whole->pieces > 0) continue;
            failure = std::move(item.whole->failure);
        }
        if (failure) slice.completion->fail(std::move(*failure));
        else slice.completion->succeed(slice.length);
    }
    done.clear();
}

bool Route::flying(const Completion* completion) const {
    if (completion == nullptr && (completing_ > 0 || moving_)) return true;
    return std::any_of(flights_.begin(), flights_.end(), [completion](const auto& flight) {
        return completion == nullptr || std::any_of(flight->items.begin(), flight->items.end(),
                                                    [completion](const Item& item) { return item.slice->completion == completion; });
    });
}

/// Until no flight is of this completion (null: until there is none). False: it had to be cut off, and the peer did not say that it is over.
bool Route::wait_for_flights(const Completion* completion) {
    const Deadline grace = Deadline::after(kGrace);
    {
        Lock lock(mutex_);
        while (flying(completion) && !grace.passed()) changed_.wait_until(mutex_, grace.at());
        if (!flying(completion)) return true;
        state_.leave();
    }
    const bool certain = station_.disconnect(target_.name, id_) == abi::kSuccess;
    Lock lock(mutex_);
    while (flying(completion)) changed_.wait(mutex_);
    return certain;
}

bool Route::cancel(const Completion& completion, const Error& reason) {
    Done done;
    {
        Lock lock(mutex_);
        while (moving_) changed_.wait(mutex_);  // some of it may be on its way to another route
        cancelling_.emplace(&completion, &reason);
        std::deque<Item> left;
        for (Item& item : queue_) {
            if (item.slice->completion == &completion) done.emplace_back(std::move(item), copy_error(reason));
            else left.push_back(std::move(item));
        }
        queue_ = std::move(left);
    }
    const bool certain = wait_for_flights(&completion);
    {
        Lock lock(mutex_);
        cancelling_.erase(&completion);
    }
    tell(done);
    return certain;
}

void Route::close(const Error& reason) {
    Done done;
    {
        Lock lock(mutex_);
        if (!ended_) ended_ = copy_error(reason);
        drain_queue(*ended_, done);
    }
    tell(done);
    (void)wait_for_flights(nullptr);
    Lock lock(mutex_);
    state_.leave();
    schedule();
}

}  // namespace mooncake::ascend
