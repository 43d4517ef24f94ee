// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_impl.h"

#include <mutex>
#include <system_error>

#include "base/log.h"
#include "topology/memory_location.h"
#include "topology/topology.h"

namespace mooncake {

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config) {
    static std::once_flag log_once;
    std::call_once(log_once, [&] { configure_log(config.options.log); });
    try {
        MC_ASSIGN_OR_RETURN(auto parts, EngineParts::create(std::move(config)));
        return std::make_unique<EngineImpl>(std::move(parts));
    } catch (const std::system_error& refused) {  // how the standard library says that there is no thread to be had
        return fail_errno(Code::kNoSpace, refused.code().value(), "the system gives us no thread");
    }
}

EngineImpl::~EngineImpl() {
    if (forked()) {
        // The threads and connections are the parent's. Whatever we did here could only hang or hurt: let it all leak.
        (void)parts_.release();
        return;
    }
    // What it lacked the first time may be there the next; some of it was given back meanwhile.
    constexpr int kTries = 3;
    for (int i = 0; i < kTries && !parts_->closed(); ++i) (void)close();
    // Threads that still run use all of it, and peers the memory.
    if (!parts_->closed()) (void)parts_.release();
}

Result<> EngineImpl::close() {
    if (forked()) return {};
    return parts_->close();
}

Result<Gate::Pass> EngineImpl::enter() const {
    if (forked()) return fail(Code::kUnavailable, "the engine belongs to the parent process");
    Gate::Pass pass = parts_->gate.enter();
    if (!pass) return fail(Code::kUnavailable, "the engine is closed");
    return pass;
}

Result<> EngineImpl::refuse_return(Error refused) {
    if (!forked()) MC_RETURN_IF_ERROR(parts_->fence());
    return Unexpected(std::move(refused));
}

std::string EngineImpl::topology_json() const {
    const EngineOptions& options = parts_->config.options;
    auto found = discover_topology({.nic_allow = options.device_allow, .nic_deny = options.device_deny, .file = options.topology_file});
    return found ? to_json(*found) : "{}";
}

Result<> check_notification(const Notification& notification) {
    const size_t bytes = notification.name.size() + notification.message.size();
    if (bytes > kNotificationBytesMax)
        return fail(Code::kInvalidArgument, "a notification of {} bytes; at most {} are allowed", bytes, kNotificationBytesMax);
    return {};
}

// ---- memory

Result<> EngineImpl::add_region(MemoryRegion region) {
    const auto start = reinterpret_cast<uint64_t>(region.address);
    if (region.address == nullptr || region.length == 0) return fail(Code::kInvalidArgument, "memory without address or length");
    if (start + region.length < start)
        return fail(Code::kInvalidArgument, "[{}, +{}) wraps around", static_cast<void*>(region.address), region.length);
    MC_ASSIGN_OR_RETURN(const MemoryInfo memory, parts_->config.memory->describe(region.address, region.length));
    region.kind = memory.kind;
    region.device = memory.device;
    region.writable = region.writable && memory.writable;
    // Fresh memory of ours has no pages yet, so there is nothing to detect.
    if (region.location == "*" && region.shared_fd < 0 && region.kind == MemoryKind::kHost)
        region.location = detect_location(region.address, region.length);
    if (region.location == "*" && region.kind != MemoryKind::kHost)
        region.location = format_text("{}:{}", to_string(region.kind), region.device);
    MC_RETURN_IF_ERROR(parts_->registry->add(region));
    if (parts_->publisher) parts_->publisher->changed();
    return {};
}

Result<> EngineImpl::register_memory(void* address, uint64_t length, std::string_view location, bool remote_accessible, Access most) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    return add_region({.address = static_cast<std::byte*>(address),
                       .length = length,
                       .location = std::string(location),
                       .remote_accessible = remote_accessible,
                       .writable = most == Access::kWrite});
}

Result<> EngineImpl::register_memory_batch(std::span<const Permission> ranges, std::string_view location) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    const auto address_of = [&](size_t i) { return reinterpret_cast<std::byte*>(ranges[i].range.address); };
    for (size_t i = 0; i < ranges.size(); ++i) {
        auto added = add_region({.address = address_of(i),
                                 .length = ranges[i].range.length,
                                 .location = std::string(location),
                                 .writable = ranges[i].most == Access::kWrite});
        if (added) continue;
        for (size_t undo = i; undo-- > 0;)
            (void)parts_->registry->remove(address_of(undo), Deadline::after(parts_->config.options.transfer_timeout));
        return Unexpected(std::move(added).error().with_context(format_text("entry {}", i)));
    }
    return {};
}

Result<> EngineImpl::unregister_memory(void* address) {
    auto pass = enter();
    if (!pass) return refuse_return(std::move(pass).error());
    MC_RETURN_IF_ERROR(
        parts_->registry->remove(static_cast<std::byte*>(address), Deadline::after(parts_->config.options.transfer_timeout)));
    if (parts_->publisher) parts_->publisher->changed();
    return {};
}

Result<> EngineImpl::unregister_memory_batch(std::span<void* const> addresses) {
    Result<> first;
    for (void* const address : addresses) {
        auto removed = unregister_memory(address);
        if (!removed && first) first = std::move(removed);
    }
    return first;
}

Result<void*> EngineImpl::allocate_memory(uint64_t length, std::string_view location) {
    MC_ASSIGN_OR_RETURN(auto memory, allocate_shared_memory(length));
    return adopt_memory(std::move(memory), location);
}

Result<void*> EngineImpl::adopt_memory(SharedMemory memory, std::string_view location) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    void* const address = memory.address();
    // Made first: it is neither given back while it is registered, nor kept where it is not.
    EngineParts::Allocations made;
    SharedMemory& held = made.emplace(address, std::move(memory)).first->second;
    MC_RETURN_IF_ERROR(
        add_region({.address = held.address(), .length = held.length(), .location = std::string(location), .shared_fd = held.fd()}));
    Lock lock(parts_->memory_mutex);
    parts_->allocations->merge(made);
    return address;
}

Result<> EngineImpl::free_memory(void* address) {
    auto pass = enter();
    if (!pass) return refuse_return(std::move(pass).error());
    EngineParts::Allocations::node_type taken;
    {
        Lock lock(parts_->memory_mutex);
        taken = parts_->allocations->extract(address);
    }
    if (!taken) return fail(Code::kNotRegistered, "{} was not allocated here", address);
    // All of it, however often it was registered: from now on the addresses may be anybody's.
    const AddressRange all{.address = reinterpret_cast<uint64_t>(address), .length = taken.mapped().length()};
    auto removed = parts_->registry->remove_within(all, Deadline::after(parts_->config.options.transfer_timeout));
    if (!removed) {
        Lock lock(parts_->memory_mutex);
        parts_->allocations->insert(std::move(taken));
        return removed;
    }
    if (parts_->publisher) parts_->publisher->changed();
    return {};
}

std::vector<BufferRecord> EngineImpl::buffers() const {
    const auto pass = enter();
    if (!pass) return {};
    return parts_->registry->buffers(SIZE_MAX);
}

// ---- segments

Result<SegmentId> EngineImpl::open_segment(const std::string& name, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(name));
    MC_RETURN_IF_ERROR(session->open(deadline));
    return parts_->sessions->id_of(session);
}

Result<> EngineImpl::connect_to(const std::string& name, Incarnation life, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(name));
    MC_RETURN_IF_ERROR(session->meet(life, deadline));
    return {};
}

Result<SegmentId> EngineImpl::connect_segment(const std::string& name, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(name));
    MC_RETURN_IF_ERROR(session->link(deadline));
    return parts_->sessions->id_of(session);
}

Result<> EngineImpl::warm_up(const std::string& name, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(name));
    auto link = session->open(deadline);
    auto warm = link ? (*link)->peer->warm_up(deadline) : Result<>(Unexpected(std::move(link).error()));
    if (!warm && parts_->router->warms_up()) return warm;
    return {};
}

Result<> EngineImpl::refresh_segment(const std::string& name, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    if (name.empty()) {
        parts_->sessions->for_each([](const auto& session) { session->refresh(); });
        return {};
    }
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(name));
    session->refresh();
    MC_RETURN_IF_ERROR(session->open(deadline));
    return {};
}

Result<> EngineImpl::reconnect(const std::string& name, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(name));
    session->refresh();
    MC_RETURN_IF_ERROR(session->link(deadline));
    return {};
}

Result<std::string> EngineImpl::segment_name_of(SegmentId segment) const {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(segment));
    return session->name();
}

Result<SegmentDescriptor> EngineImpl::describe(const std::string& name, uint32_t buffers_max, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(auto found, parts_->locator->fetch(name, buffers_max, deadline));
    const auto section = parts_->sessions->section();
    if (buffers_max > 0)
        if (Session* const session = parts_->sessions->find(name)) session->asked(found.descriptor.incarnation);
    return std::move(found.descriptor);
}

Result<> EngineImpl::probe(const std::string& name, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    if (parts_->locator->is_own(name)) return {};
    MC_ASSIGN_OR_RETURN(const auto address, parts_->locator->address(name, deadline));
    MC_RETURN_IF_ERROR(parts_->client->call(address.to_string(), rpc::Method::kProbe, {}, deadline));
    return {};
}

bool EngineImpl::connected(const std::string& name) {
    const auto pass = enter();
    if (!pass) return false;
    const auto session = parts_->sessions->get(name);
    return session && (*session)->connected();
}

// ---- transfers

namespace {

/// What a thread keeps from one transfer to the next.
struct CallerThread {
    SessionTable::Last session;
    MemoryRegistry::Last region;
    std::vector<Slice> slices;              // serves all its transfers; an unusually large one is given back
    Deadline deadline = Deadline::never();  // that it was given last for a transfer, and has not used yet
    Time deadline_set{};

    /// When the transfer with this deadline began, for the metrics: mostly the deadline was set a moment ago, and to read the clock again would take
    /// as long as much else in a short transfer.
    Time began(Deadline of_transfer) noexcept {
        const bool just_set = !of_transfer.is_never() && of_transfer.at() == std::exchange(deadline, Deadline::never()).at();
        return just_set ? deadline_set : Clock::now();
    }
};

CallerThread& this_thread() {
    static thread_local CallerThread mine;
    return mine;
}

}  // namespace

Deadline EngineImpl::transfer_deadline(uint64_t bytes) const noexcept {
    const Duration time = parts_->config.options.transfer_timeout + std::chrono::nanoseconds(bytes);
    const Time now = Clock::now();
    if (time >= Time::max() - now) return Deadline::never();
    CallerThread& mine = this_thread();
    mine.deadline_set = now;
    return mine.deadline = Deadline(now + time);
}

Result<uint64_t> EngineImpl::transfer(const std::string& target, Direction direction, std::span<const Block> blocks, Deadline deadline,
                                      const Notification* notification, Incarnation life, const WorkPoint& after) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_RETURN_IF_ERROR(check_blocks(blocks));
    if (notification != nullptr) MC_RETURN_IF_ERROR(check_notification(*notification));
    if (after) [[unlikely]]
        MC_RETURN_IF_ERROR(wait_for_work(parts_->core, *parts_->config.memory, after, deadline));
    const auto section = parts_->sessions->section();
    CallerThread& mine = this_thread();
    Session* session = parts_->sessions->find(target, mine.session);
    std::shared_ptr<Session> made;
    if (session == nullptr) {
        MC_ASSIGN_OR_RETURN(made, parts_->sessions->get(target));
        session = made.get();
    }
    constexpr size_t kKeep = 4096;
    Completion completion;
    std::vector<Slice>& slices = mine.slices;
    slices.clear();
    if (!blocks.empty()) parts_->registry->resolve(blocks, &completion, slices, mine.region);
    bool ordered = static_cast<bool>(after);
    if (!ordered && parts_->registry->has_device_memory()) [[unlikely]] {
        MC_ASSIGN_OR_RETURN(ordered, wait_for_unnamed_work(parts_->core, direction, slices, deadline));
    }
    if (ordered) [[unlikely]]
        mark_ordered(slices);
    const Time began = mine.began(deadline);
    CallerLife* const caller = life ? nullptr : made ? made->caller().get() : &mine.session.as_caller();
    auto moved = life ? transfer_to(*session, life, direction, slices, completion, deadline, began)
                      : transfer_for_caller(*session, *caller, life, direction, slices, completion, deadline, began);
    const bool any = !slices.empty();
    if (slices.capacity() > kKeep) std::vector<Slice>().swap(slices);
    if (moved && notification != nullptr) {
        auto sent = parts_->notify(*session, *notification, any || caller == nullptr ? life : Incarnation(), deadline);
        if (sent) return moved;
        if (caller != nullptr) caller->dealt(life, &sent.error());
        return Unexpected(std::move(sent).error().with_context("the bytes are there, the notification is not"));
    }
    return moved;
}

Result<uint64_t> EngineImpl::transfer_for_caller(Session& session, CallerLife& caller, Incarnation& life, Direction direction,
                                                 std::span<const Slice> slices, Completion& completion, Deadline deadline, Time began) {
    life = session.life_of(caller);
    auto moved = run_transfer(parts_->core, session, life, direction, slices, completion, deadline, began);
    caller.dealt(life, moved ? nullptr : &moved.error());
    return moved;
}

Result<uint64_t> EngineImpl::transfer_to(Session& session, Incarnation life, Direction direction, std::span<const Slice> slices,
                                         Completion& completion, Deadline deadline, Time began) {
    auto moved = run_transfer(parts_->core, session, life, direction, slices, completion, deadline, began);
    // Our link may be to the life before this one, whose end we have not noticed.
    if (!moved && moved.error().code() == Code::kStale && session.meet(life, deadline))
        moved = run_transfer(parts_->core, session, life, direction, slices, completion, deadline, Clock::now());
    return moved;
}

Result<std::unique_ptr<PreparedTransfer>> EngineImpl::prepare(const std::string& target, std::span<const Block> blocks) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_RETURN_IF_ERROR(check_blocks(blocks));
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(target));
    return make_prepared(*parts_, session, {blocks.begin(), blocks.end()}, [this] { return enter(); });
}

// ---- batches

Result<BatchId> EngineImpl::allocate_batch(size_t capacity) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    return parts_->batches.add(std::make_shared<Batch>(parts_->core, capacity));
}

Result<> EngineImpl::submit(BatchId batch, std::span<const Request> requests, const Notification* notification) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    if (notification != nullptr) MC_RETURN_IF_ERROR(check_notification(*notification));
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    return found->submit(requests, notification, [this](uint64_t bytes) { return transfer_deadline(bytes); });
}

Result<BatchId> EngineImpl::submit(const std::string& target, Direction direction, std::span<const Block> blocks,
                                   const Notification* notification, Incarnation life, Connect connect, const WorkPoint& after) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    // Before anything else: what the caller, or another thread, puts on the stream meanwhile does not belong to it.
    Behind behind;
    if (after) {
        MC_ASSIGN_OR_RETURN(behind.work, parts_->config.memory->follow(after));
    }
    return submit_behind(target, direction, blocks, {.notification = notification, .life = life, .connect = connect}, std::move(behind));
}

Result<BatchId> EngineImpl::submit_behind(const std::string& target, Direction direction, std::span<const Block> blocks,
                                          const Manner& manner, Behind behind) {
    const auto& [notification, life, connect] = manner;
    if (notification != nullptr) MC_RETURN_IF_ERROR(check_notification(*notification));
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(target));
    uint64_t bytes = 0;
    for (const Block& block : blocks) bytes += block.length;
    const Deadline deadline = transfer_deadline(bytes);
    Addresses addresses = life ? Addresses{.life = life} : session->addresses();
    if (bytes > 0 && connect == Connect::kFirst) {
        auto link = life ? session->meet(life, deadline) : session->link_to(addresses.life, deadline);
        if (addresses.caller) addresses.caller->dealt(addresses.life, link ? nullptr : &link.error());
        if (!link) return Unexpected(std::move(link).error());
    }
    return parts_->submit_alone(session, std::move(addresses), direction, blocks, notification, deadline, std::move(behind));
}

Result<TransferStatus> EngineImpl::task_status(BatchId batch, size_t task) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    return found->task_status(task);
}

Result<TransferStatus> EngineImpl::batch_status(BatchId batch) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    return found->status();
}

Result<TransferStatus> EngineImpl::wait_batch(BatchId batch, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    found->wait(deadline);
    return found->status();
}

Result<bool> EngineImpl::await_batch(BatchId batch, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    return deadline.passed() ? !found->busy() : found->wait(deadline);
}

Result<> EngineImpl::cancel_batch(BatchId batch) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    found->cancel();
    return {};
}

Result<> EngineImpl::begin_cancel(BatchId batch) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    found->begin_cancel();
    return {};
}

Result<> EngineImpl::free_batch(BatchId batch) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    // A task shows as finished a moment before its batch does: who has seen all of them finish may free the batch.
    if (found->busy() && found->over()) found->wait();
    return parts_->batches.remove(batch);
}

Result<> EngineImpl::on_batch_done(BatchId batch, std::function<void()> callback) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_ASSIGN_OR_RETURN(const auto found, parts_->batches.get(batch));
    found->on_done(std::move(callback));
    return {};
}

// ---- notifications

Result<> EngineImpl::send_notification(const std::string& target, const Notification& notification, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(const auto pass, enter());
    MC_RETURN_IF_ERROR(check_notification(notification));
    MC_ASSIGN_OR_RETURN(const auto session, parts_->sessions->get(target));
    return parts_->notify(*session, notification, {}, deadline);
}

std::vector<Notification> EngineImpl::take_notifications() {
    const auto pass = enter();
    if (!pass) return {};
    return parts_->inbox.take();
}

}  // namespace mooncake
