// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rail.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "transport/fabric/rail_thread.h"

namespace mooncake::fabric {

namespace {

constexpr size_t kPollEntries = 64;
constexpr size_t kPollMax = 512;            // in one step, so that others get the lock
constexpr Duration kTick = 10ms;            // how precisely stalls and the ends of endpoints are kept
constexpr Duration kIdle = 500ms;           // nothing under way
constexpr Duration kDriven = 1ms;           // how long the thread keeps away after a caller drove the rail
constexpr Duration kReopen = 100ms;         // between attempts to open an endpoint where that failed
constexpr Duration kOrphaned = 30s;         // before a flight that we ended ourselves is used again
constexpr Duration kUnsleepingBusy = 20us;  // between polls where there is no descriptor to sleep on: something is under way,
constexpr Duration kUnsleepingIdle = 1ms;   // and nothing is

}  // namespace

// ---- opening and closing

Result<std::unique_ptr<Rail>> Rail::open(FabricApi& api, const Offer& offer, const Settings& settings) {
    std::unique_ptr<Rail> rail(new Rail(offer, settings));
    Lock lock(rail->mutex_);
    MC_ASSIGN_OR_RETURN(rail->domain_,
                        api.open(offer, {.addresses_max = settings.profile.addresses_max, .sleep = settings.profile.sleeps}));
    MC_ASSIGN_OR_RETURN(auto initiating, rail->domain_->open_endpoint());
    rail->set_initiating(std::move(initiating));
    MC_RETURN_IF_ERROR(rail->open_serving());
    // Half of the completion queue is for what a closed endpoint may flush beside what goes on.
    uint32_t credits = std::max(1u, std::min(offer.tx_size, rail->domain_->completions_max() / 2));
    if (settings.operations_max != 0) credits = std::min(credits, settings.operations_max);
    rail->credits_max_ = credits;
    rail->wait_fd_ = rail->domain_->wait_fd();
    rail->finished_.resize(kPollEntries);
    return rail;
}

Rail::~Rail() {
    Lock lock(mutex_);
    MC_CHECK(aloft_ == 0 && clients_.empty());
    current_.endpoint.reset();
    retiring_.clear();
    serving_.reset();
    bounce_key_.reset();
    domain_.reset();
}

Result<> Rail::open_serving() {
    MC_ASSIGN_OR_RETURN(serving_, domain_->open_endpoint());
    Lock lock(state_mutex_);
    ++epoch_;
    name_ = serving_->name();
    return {};
}

void Rail::serve_nobody() {
    serving_.reset();
    Lock lock(state_mutex_);
    ++epoch_;
    name_.clear();
}

void Rail::stop_serving() {
    serves_ = false;
    serve_nobody();
    rest();
}

void Rail::open_initiating() {
    if (auto opened = domain_->open_endpoint()) set_initiating(std::move(*opened));
}

void Rail::rest() {
    if (!is_idle_for_good() || aloft_ > 0 || !current_.endpoint) return;
    const auto closed = std::move(current_.endpoint);  // when nobody waits for its name any more
    set_initiating(nullptr);
}

void Rail::set_initiating(std::unique_ptr<Endpoint> endpoint) {
    Lock lock(state_mutex_);
    initiating_epoch_.fetch_add(1, std::memory_order_acq_rel);
    initiating_name_ = endpoint ? endpoint->name() : std::vector<std::byte>();
    current_.endpoint = std::move(endpoint);
}

bool Rail::serve_again() { return serving_ || (serves_ && open_serving()); }

Result<> Rail::close_epoch(uint64_t epoch, const std::function<void()>& unbind) {
    if (state().epoch > epoch) return {};
    if (settings_.profile.fence == Fence::kNone) {
        // Nothing arrives at an endpoint here: whoever has the address copies by itself. Peers that look learn to ask for keys again.
        Lock inner(state_mutex_);
        ++epoch_;
        return {};
    }
    if (unbind) unbind();
    serving_.reset();
    if (settings_.metrics != nullptr) settings_.metrics->fences->add();
    auto opened = serves_ ? open_serving() : Result<>();
    if (!opened) MC_LOG_ERROR("{} does not serve until it has an endpoint again: {}", offer_.nic, opened.error().to_string());
    if (!serving_) serve_nobody();
    return {};
}

RailState Rail::state() const {
    Lock lock(state_mutex_);
    return {.rail = settings_.index, .epoch = epoch_, .name = name_};
}

RailRecord Rail::record() const {
    const RailState now = state();
    return {.nic = offer_.nic,
            .provider = offer_.provider,
            .protocol = offer_.protocol,
            .address_format = offer_.address_format,
            .name = now.name,
            .epoch = now.epoch,
            .virtual_addresses = offer_.virtual_addresses,
            .operation_bytes_max = offer_.operation_bytes_max,
            .speed_bits = offer_.speed_bits,
            .numa_node = settings_.numa_node};
}

RailRecord Rail::initiating_record() const {
    RailRecord made = record();
    Lock lock(state_mutex_);
    made.name = initiating_name_;
    made.epoch = initiating_epoch();
    return made;
}

// ---- who drives

void Rail::announce(RailClient& client) {
    Lock lock(announced_mutex_);
    if (std::find(announced_.begin(), announced_.end(), &client) == announced_.end()) announced_.push_back(&client);
    announced_any_.store(true, std::memory_order_seq_cst);
}

bool Rail::drive(Endings& endings) {
    bool any = false, soon = false;
    do {
        if (!mutex_.try_lock()) return any;
        any |= step(endings);
        soon = wanted_soon_;
        mutex_.unlock();
    } while (announced());
    // The rail's thread may be asleep, and knows nothing of it.
    if (soon) ring();
    return any;
}

void Rail::ring() noexcept {
    if (thread_ != nullptr) thread_->ring();
}

void Rail::end_driving(bool back_soon) noexcept {
    const Time until = back_soon ? Clock::now() + kDriven : Time{};
    driven_until_.store(until.time_since_epoch().count(), std::memory_order_relaxed);
    drivers_.fetch_sub(1, std::memory_order_acq_rel);
}

bool Rail::is_driven(Time now) const noexcept {
    return is_being_driven() || now.time_since_epoch().count() < driven_until_.load(std::memory_order_relaxed);
}

Rail::Sleep Rail::may_sleep() {
    if (!mutex_.try_lock()) return Sleep::kTaken;
    const bool may = domain_->may_sleep();
    mutex_.unlock();
    return may ? Sleep::kMay : Sleep::kNotNow;
}

void Rail::calm_wait_fd() {
    if (wait_fd_ < 0 || !mutex_.try_lock()) return;
    signalled_.store(false, std::memory_order_relaxed);
    domain_->calm_wait_fd();
    mutex_.unlock();
}

bool Rail::step(Endings& endings) {
    const Time now = settings_.time->now();
    wake_next_ = Time::max();
    // What was just submitted goes first: looking for completions takes a system call with some providers.
    const uint32_t at_first = aloft_;
    if (announced()) pull(endings);
    bool any = aloft_ != at_first;
    any |= poll(endings) > 0;
    if (any) signalled_.store(true, std::memory_order_relaxed);
    if (!retiring_.empty()) retire(now, endings);
    if (now - ticked_ >= kTick) tick(now, endings);
    const uint32_t before = aloft_;
    pull(endings);
    any |= aloft_ != before;
    if (settings_.metrics != nullptr) settings_.metrics->in_flight->set(aloft_);
    const bool busy = aloft_ > 0 || !retiring_.empty();
    wanted_soon_ = wake_next_ <= now + kTick;
    if (wait_fd_ < 0) wake_by(now + (busy ? kUnsleepingBusy : kUnsleepingIdle));
    wake_by(now + (busy ? kTick : kIdle));
    wake_at_.store(wake_next_.time_since_epoch().count(), std::memory_order_release);
    return any;
}

size_t Rail::poll(Endings& endings) {
    size_t total = 0;
    while (total < kPollMax) {
        const size_t count = domain_->poll(finished_);
        for (size_t i = 0; i < count; ++i) {
            const Finished& one = finished_[i];
            auto* const flight = static_cast<Flight*>(one.context);
            if (flight == nullptr) {
                if (settings_.metrics != nullptr) settings_.metrics->unattributed_errors->add();
                MC_LOG_WARNING_EVERY(10s, "{} reports error {} of no operation of ours", offer_.nic, one.error);
            } else if (flight->aloft) {
                finish(*flight, one, endings);
            }
        }
        total += count;
        // Errors come one by one, and others may follow.
        if (count == 0 || (count < kPollEntries && finished_[count - 1].error == 0)) break;
    }
    return total;
}

void Rail::finish(Flight& flight, const Finished& finished, Endings& endings) {
    FlightList::remove(flight);
    flight.aloft = false;
    --aloft_;
    aloft_bytes_ -= flight.piece.length;
    if (settings_.metrics != nullptr)
        settings_.metrics->finished(flight.piece.direction, flight.piece.length,
                                    trouble_of(settings_.profile, finished.error, finished.provider_error));
    flight.client->on_finished(*this, flight, finished, endings);
}

void Rail::pull(Endings& endings) {
    if (announced()) {
        Lock lock(announced_mutex_);
        for (RailClient* const client : announced_) {
            if (std::find(active_.begin(), active_.end(), client) == active_.end()) active_.push_back(client);
        }
        announced_.clear();
        announced_any_.store(false, std::memory_order_seq_cst);
    }
    if (active_.empty() || aloft_ >= credits_max_) return;
    std::erase_if(active_, [&](RailClient* client) { return !client->pull(*this, endings); });
    // The next round begins with another one.
    if (active_.size() > 1) std::rotate(active_.begin(), active_.begin() + 1, active_.end());
}

void Rail::tick(Time now, Endings& endings) {
    ticked_ = now;
    while (!orphans_.empty() && now - orphans_.front()->freed > kOrphaned) {
        orphans_.front()->orphan = false;
        free_.push_back(orphans_.front());
        orphans_.pop_front();
    }
    const bool unserved = !serving_ && serves_ && !offer_.endpoint_keys;
    const bool uninitiating = !current_.endpoint && !is_idle_for_good();
    if ((uninitiating || unserved) && now >= reopen_at_) {
        reopen_at_ = now + kReopen;
        if (unserved) (void)open_serving();
        if (uninitiating) open_initiating();
    }
    bool hopeless = false;
    for (RailClient* const client : clients_) hopeless |= client->on_tick(*this, now, endings);
    if (hopeless) recycle(settings_.profile.stall_timeout / 8);
}

// ---- operations

bool Rail::has_room(uint64_t bytes, const Share& share) const noexcept {
    if (aloft_ == 0) return true;
    if (aloft_ >= credits_max_ || share.operations >= kShareMax * (credits_max_ - aloft_)) return false;
    const uint64_t total = aloft_bytes_ + bytes, window = settings_.window_bytes;
    // Who has nothing yet gets a first piece even where others fill the window.
    if (share.operations == 0) return total <= 2 * window;
    const uint64_t own = share.bytes + bytes;
    return own <= settings_.run_bytes && total <= window && own <= kShareMax * (window - total);
}

Flight& Rail::take() {
    if (free_.empty()) {
        flights_.push_back(std::make_unique<Flight>());
        return *flights_.back();
    }
    Flight& flight = *free_.back();
    free_.pop_back();
    return flight;
}

void Rail::release(Flight& flight) {
    flight.client = nullptr;
    flight.route = nullptr;
    flight.piece = {};
    flight.hopeless = false;
    if (!flight.orphan) return free_.push_back(&flight);
    flight.freed = settings_.time->now();
    orphans_.push_back(&flight);
}

Result<bool> Rail::post(Flight& flight, Operation operation) {
    if (!current_.endpoint) return false;
    operation.context = &flight;
    auto posted = current_.endpoint->post(operation);
    if (!posted || !*posted) return posted;
    current_.flights.push(flight);
    flight.aloft = true;
    ++aloft_;
    aloft_bytes_ += flight.piece.length;
    return true;
}

void Rail::recycle(Duration drain) {
    bool hopeless = false;
    for (Flight* flight = current_.flights.first(); flight != nullptr; flight = current_.flights.after(flight))
        hopeless |= flight->hopeless;
    if (!hopeless) return;
    if (settings_.metrics != nullptr) settings_.metrics->recycles->add();
    current_.endpoint->retire();
    auto fresh = domain_->open_endpoint();
    if (!fresh) MC_LOG_ERROR("{} has no further endpoint: {}", offer_.nic, fresh.error().to_string());
    Initiating& old = retiring_.emplace_back();
    while (Flight* const flight = current_.flights.first()) {
        FlightList::remove(*flight);
        old.flights.push(*flight);
    }
    old.endpoint = std::move(current_.endpoint);
    set_initiating(fresh ? std::move(*fresh) : nullptr);
    old.close_at = settings_.time->now() + drain;
    wake_by(Time{});
}

void Rail::retire(Time now, Endings& endings) {
    for (auto old = retiring_.begin(); old != retiring_.end();) {
        bool healthy = false;
        for (Flight* flight = old->flights.first(); flight != nullptr; flight = old->flights.after(flight)) healthy |= !flight->hopeless;
        if (healthy && now < old->close_at) {
            ++old;
            continue;
        }
        close(*old, endings);
        old = retiring_.erase(old);
    }
}

void Rail::close(Initiating& old, Endings& endings) {
    old.endpoint.reset();
    // Most providers now report everything that was under way. Whatever they do not, we end; they might still come back to it.
    for (size_t read = 0; read <= domain_->completions_max();) {
        const size_t count = poll(endings);
        if (count == 0) break;
        read += count;
    }
    while (Flight* const flight = old.flights.first()) {
        flight->orphan = true;
        finish(*flight, {.context = flight, .error = ECANCELED}, endings);
    }
}

void Rail::attach(RailClient& client) {
    Lock lock(mutex_);
    if (is_idle_for_good() && !current_.endpoint) open_initiating();
    clients_.push_back(&client);
}

void Rail::detach(RailClient& client) {
    Lock lock(mutex_);
    {
        Lock inner(announced_mutex_);
        std::erase(announced_, &client);
    }
    std::erase(active_, &client);
    std::erase(clients_, &client);
    rest();
}

// ---- addresses and memory

Result<AddressHandle> Rail::insert_address(const std::vector<std::byte>& name) {
    if (const auto found = addresses_.find(name); found != addresses_.end()) {
        ++found->second.users;
        return found->second.handle;
    }
    if (is_full()) return fail(Code::kNoSpace, "{} has no room for further addresses", offer_.nic);
    MC_ASSIGN_OR_RETURN(const AddressHandle handle, domain_->insert_address(name));
    addresses_[name] = {.handle = handle, .users = 1};
    return handle;
}

void Rail::remove_address(AddressHandle address) {
    const auto found = std::find_if(addresses_.begin(), addresses_.end(),
                                    [&](const auto& entry) { return entry.second.handle == address; });
    if (found == addresses_.end() || --found->second.users > 0) return;
    domain_->remove_address(address);
    addresses_.erase(found);
}

Result<std::unique_ptr<MemoryKey>> Rail::register_memory(Domain::KeyRequest request) {
    Endpoint* const serving[] = {serving_.get()};
    if (serving_) request.serving = serving;
    return domain_->register_memory(request);
}

std::byte* Rail::take_bounce() {
    if (bounce_memory_.empty()) {
        bounce_memory_.resize(kBounces * kBounceBytes);
        if (offer_.local_keys) {
            auto key = domain_->register_memory(
                {.address = bounce_memory_.data(), .length = bounce_memory_.size(), .remote_access = false, .key = random_u64()});
            if (!key) {
                MC_LOG_ERROR("{} cannot register memory of our own: {}", offer_.nic, key.error().to_string());
                return nullptr;
            }
            bounce_key_ = std::move(*key);
        }
        for (size_t i = 0; i < kBounces; ++i) bounces_.push_back(bounce_memory_.data() + i * kBounceBytes);
    }
    if (bounces_.empty()) return nullptr;
    std::byte* const bounce = bounces_.back();
    bounces_.pop_back();
    return bounce;
}

}  // namespace mooncake::fabric
