// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/target.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>

#include "base/log.h"

namespace mooncake::shm {

namespace {

uint64_t address_of(const void* pointer) noexcept { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

/// One peer. Its members belong to the loop's thread, except those the target's mutex guards.
class Target::Connection final : public Loop::Handler {
public:
    Connection(Target& target, net::Socket socket, pid_t pid) : target_(target), socket_(std::move(socket)), pid_(pid) {}

    int fd() const noexcept { return socket_.fd(); }

    std::shared_ptr<const ClaimsPage> claims;  // null: has not said hello. Guarded by the target's mutex
    std::set<uint64_t> handed_out;             // memories it may have mapped. Guarded by the target's mutex
    std::set<uint64_t> lent;                   // those of devices, until it has closed them. Guarded by the target's mutex
    net::Socket process;                       // a pidfd, once it was lent some. Guarded by the target's mutex

    pid_t pid() const noexcept { return pid_; }

private:
    void on_ready() override;
    void on_exception() noexcept override { shun(); }
    bool handle(const Received& received);
    bool shun() noexcept;

    Target& target_;
    const net::Socket socket_;
    const pid_t pid_;
    bool shunned_ = false;  // it broke the rules: nothing more is said, but its claims count until it has closed its end
};

/// A region in the table: one entry, or one for each allocation of a device that it lies in.
class Target::Entry final : public Registration {
public:
    /// Not in the table yet: what cannot be made is never in it.
    Entry(Target& target, bool device) : target_(target), device_(device) {}
    ~Entry() override {
        if (!withdrawn_) withdraw();
        drop();
        for (const Part& part : parts_) target_.table_->release(part.number);
    }
    void reserve(size_t parts) { parts_.reserve(parts); }
    /// After reserve(): needs no memory.
    void published(const Part& part) noexcept {
        parts_.push_back(part);
        withdrawn_ = false;
    }

    Result<> revoke(Deadline deadline) override {
        withdraw();
        MC_RETURN_IF_ERROR(target_.fence(parts_, deadline));
        if (!device_) return {};
        // Who frees memory of a device while others have it open has no memory and nobody knows what they have.
        drop();
        for (const Part& part : parts_)
            if (part.memory != 0) MC_RETURN_IF_ERROR(target_.wait_closed(part.memory, deadline));
        return {};
    }

private:
    void withdraw() {
        if (withdrawn_.exchange(true)) return;
        for (const Part& part : parts_) target_.table_->withdraw(part.number);
    }
    void drop() {
        if (!dropped_.exchange(true)) target_.drop_memories(parts_);
    }

    Target& target_;
    std::vector<Part> parts_;  // constant once all are published
    const bool device_;
    std::atomic<bool> withdrawn_{true}, dropped_{false};
};

Target::Target(Incarnation incarnation, Loop& loop, Devices& devices)
    : incarnation_(incarnation), loop_(loop), devices_(devices), alarm_(std::make_unique<Alarm>(loop, [this] { look_at_lent(); })) {}

Result<std::unique_ptr<Target>> Target::create(Incarnation incarnation, Loop& loop, Devices& devices) {
    std::unique_ptr<Target> target(new Target(incarnation, loop, devices));
    MC_ASSIGN_OR_RETURN(target->table_, RegionTable::create(incarnation));
    MC_ASSIGN_OR_RETURN(target->listener_, listen_local(target->socket_name_));
    target->spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    MC_RETURN_IF_ERROR(loop.watch(target->listener_.fd(), *target));
    return target;
}

Target::~Target() {
    stop_listening();
    std::vector<int> open;
    {
        Lock lock(mutex_);
        for (const auto& [fd, connection] : connections_) open.push_back(fd);
    }
    for (const int fd : open) loop_.unwatch(fd);
    alarm_.reset();
}

void Target::stop_listening() {
    Lock lock(stop_mutex_);
    if (!listener_) return;
    loop_.unwatch(listener_.fd());
    listener_.reset();
}

Result<> Target::stop(Deadline deadline) {
    {
        Lock lock(mutex_);
        stopped_ = true;  // whoever is welcome has shown its claims page by now
    }
    stop_listening();
    table_->close();
    auto quiet = fence_all(deadline);
    // They forget what they have mapped. Who still copies is waited for, if asked again, until it has closed its end, too.
    {
        Lock lock(mutex_);
        for (const auto& [fd, connection] : connections_) ::shutdown(fd, SHUT_WR);
    }
    MC_RETURN_IF_ERROR(quiet);
    return wait_closed(std::nullopt, deadline);
}

void Target::let_go() {
    spare_.reset();
    alarm_.reset();
    table_->close_file();
    decltype(connections_) gone;
    Lock lock(mutex_);
    gone.swap(connections_);
    strangers_.clear();
}

// ---- connections

net::Socket Target::accept_one() {
    net::Socket socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket || (errno != EMFILE && errno != ENFILE)) return socket;
    // Left in the queue it would keep us awake, so it is let in just to be closed.
    MC_LOG_WARNING_EVERY(60s, "out of file descriptors: same-host peers are turned away");
    spare_.reset();
    net::Socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)).reset();
    spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return {};
}

void Target::accept_all() {
    while (net::Socket socket = accept_one()) {
        const auto who = credentials_of(socket.fd());
        if (who && who->uid == ::geteuid()) add_stranger(std::move(socket), who->pid);
    }
}

void Target::add_stranger(net::Socket socket, pid_t pid) {
    const int fd = socket.fd();
    auto connection = std::make_unique<Connection>(*this, std::move(socket), pid);
    Connection& watched = *connection;
    std::unique_ptr<Connection> displaced;
    hear_strangers();
    {
        Lock lock(mutex_);
        if (strangers_.size() >= kStrangersMax) {
            const auto oldest = connections_.find(strangers_.front());
            displaced = std::move(oldest->second);
            connections_.erase(oldest);
            strangers_.erase(strangers_.begin());
        }
        strangers_.reserve(strangers_.size() + 1);
        connections_[fd] = std::move(connection);
        strangers_.push_back(fd);
    }
    if (displaced) loop_.unwatch(displaced->fd());
    if (!loop_.watch(fd, watched)) return forget(watched);
    watched.tell();  // mostly its hello is there already
}

void Target::hear_strangers() {
    std::vector<Connection*> all;
    {
        Lock lock(mutex_);
        if (strangers_.size() < kStrangersMax) return;
        for (const int fd : strangers_) all.push_back(connections_.at(fd).get());
    }
    // Who has said hello is none any more, and need not make room. They come and go on this thread only.
    for (Connection* const one : all) one->tell();
}

void Target::on_ready() { accept_all(); }

void Target::forget(Connection& connection) {
    loop_.unwatch(connection.fd());
    std::unique_ptr<Connection> gone;
    {
        Lock lock(mutex_);
        const auto found = connections_.find(connection.fd());
        gone = std::move(found->second);
        connections_.erase(found);
        std::erase(strangers_, gone->fd());
        if (!gone->lent.empty()) dying_.push_back({.process = std::move(gone->process), .memories = std::move(gone->lent)});
        closed_.notify_all();
    }
    // The other end is closed, so no thread of the peer is inside a Section any more, whatever the page says.
    if (gone->claims) gone->claims->claims().abandon();
}

void Target::Connection::on_ready() {
    for (;;) {
        auto received = receive_message(fd());
        if (!received && received.error().code() == Code::kBusy) return;
        if (!received && received.error().code() == Code::kUnavailable) {
            target_.forget(*this);
            return;
        }
        if (shunned_ || (received && handle(*received))) continue;
        if (!shun()) return;
    }
}

/// False: it is destroyed.
bool Target::Connection::shun() noexcept {
    // Its half of the connection stays open: as long as it may be copying we must be able to wait for it.
    shunned_ = true;
    ::shutdown(fd(), SHUT_WR);
    if (claims != nullptr) return true;
    target_.forget(*this);
    return false;
}

bool Target::Connection::handle(const Received& received) {
    const Message& message = received.message;
    if (claims == nullptr) return message.kind == MessageKind::kHello && target_.welcome(fd(), pid_, message) != nullptr;
    if (message.kind == MessageKind::kMemoryClosed) {
        target_.note_closed(*this, message.value, message.address);
        return true;
    }
    if (message.kind != MessageKind::kWantMemory) return false;
    target_.hand_out(*this, message.value);
    return true;
}

std::shared_ptr<const Target::ClaimsPage> Target::welcome(int fd, pid_t pid, const Message& hello) {
    Message answer{.kind = MessageKind::kRefusal, .incarnation = incarnation_.value};
    const auto refuse = [&](Refusal why) {
        answer.value = static_cast<uint64_t>(why);
        (void)send_message(fd, answer);
        return nullptr;
    };
    if (hello.version != kVersion) return refuse(Refusal::kOtherVersion);
    if (hello.expected != incarnation_.value) return refuse(Refusal::kOtherIncarnation);
    auto file = MemoryFile::create("mooncake-claims", sizeof(Claims));
    auto page = file ? file->map(true, sizeof(Claims)) : Result<Mapping>(Unexpected(file.error()));
    if (!page) return refuse(Refusal::kFull);
    ::madvise(page->address(), page->length(), MADV_DONTFORK);
    new (page->address()) Claims;
    auto claims = std::make_shared<const ClaimsPage>(ClaimsPage{.page = std::move(*page), .pid = pid});
    {
        // Before the peer can use them: whoever fences from now on looks at them.
        Lock lock(mutex_);
        if (stopped_) return refuse(Refusal::kStopped);
        if (connections_.size() > kConnectionsMax) return refuse(Refusal::kFull);
        connections_.at(fd)->claims = claims;
        std::erase(strangers_, fd);
    }
    answer.kind = MessageKind::kWelcome;
    answer.expected = kTakesRanges;
    answer.address = address_of(&probe_word_);
    answer.value = probe_word_;
    const int files[] = {table_->fd(), file->fd()};
    const auto sent = send_message(fd, answer, files);
    if (sent) return claims;
    if (sent.error().code() != Code::kUnavailable)
        MC_LOG_WARNING_EVERY(60s, "cannot welcome process {}: {}", pid, sent.error().to_string());
    return nullptr;
}

void Target::hand_out(Connection& connection, uint64_t memory) {
    Message answer{.kind = MessageKind::kMemory, .incarnation = incarnation_.value, .value = memory};
    MemoryInfo info;
    MemoryTicket ticket{};
    {
        Lock lock(mutex_);
        const auto found = memories_.find(memory);
        if (found == memories_.end() || found->second.kind == MemoryKind::kHost) {
            const int file = found == memories_.end() ? -1 : found->second.file.fd();
            if (file >= 0) connection.handed_out.insert(memory);
            if (!send_message(connection.fd(), answer, std::span(&file, file >= 0 ? 1 : 0))) ::shutdown(connection.fd(), SHUT_WR);
            return;
        }
        info = found->second.info;
        ticket = found->second.ticket;
    }
    // The device may be slow to answer, and nobody else has to wait for it.
    const auto file = devices_.of(info.kind)->file_of(info, ticket);
    if (!file && file.error().code() == Code::kNotRegistered) lose(memory);
    if (!file) MC_LOG_WARNING_EVERY(60s, "process {} is not lent memory: {}", connection.pid(), file.error().message());
    Lock lock(mutex_);
    const auto found = memories_.find(memory);
    Result<> sent;
    if (found == memories_.end() || found->second.lost) {
        sent = send_message(connection.fd(), answer);
    } else {
        connection.handed_out.insert(memory);
        connection.lent.insert(memory);
        if (!connection.process) connection.process = net::Socket(static_cast<int>(::syscall(SYS_pidfd_open, connection.pid(), 0)));
        answer.address = static_cast<uint64_t>(info.kind);
        const int fd = file ? file->fd() : -1;  // without it, it is of no use in another process; in ours nobody needs it
        sent = send_ticket(connection.fd(), answer, ticket, std::span(&fd, fd >= 0 ? 1 : 0));
        if (!looking_) looking_ = alarm_->set(kLookTime).has_value();
    }
    if (!sent) ::shutdown(connection.fd(), SHUT_WR);
}

// ---- regions

uint64_t Target::hold_memory(const MemoryRegion& region) {
    struct stat status {};
    if (region.shared_fd < 0 || !MemoryFile::keeps_length(region.shared_fd) || ::fstat(region.shared_fd, &status) != 0) return 0;
    const FileId id(status.st_dev, status.st_ino);
    Lock lock(mutex_);
    if (const auto found = memory_of_file_.find(id); found != memory_of_file_.end()) {
        ++memories_[found->second].regions;
        return found->second;
    }
    MemoryFile file(::fcntl(region.shared_fd, F_DUPFD_CLOEXEC, 0));
    if (!file) return 0;
    const uint64_t number = next_memory_++;
    memory_of_file_[id] = number;
    memories_[number] = {.file = std::move(file), .id = id, .regions = 1};
    return number;
}

uint64_t Target::hold_allocation(Device& device, const MemoryInfo& info) {
    const AllocationId id(info.base, info.allocation);
    {
        Lock lock(mutex_);
        if (const auto found = memory_of_allocation_.find(id); found != memory_of_allocation_.end()) {
            ++memories_[found->second].regions;
            return found->second;
        }
    }
    lose_replaced(info);
    const auto ticket = device.share(info);
    if (!ticket) {
        MC_LOG_WARNING_EVERY(60s, "other processes of this host do not reach {} memory at {:#x}: {}", to_string(info.kind), info.base,
                             ticket.error().message());
        return 0;
    }
    Lock lock(mutex_);
    const uint64_t number = next_memory_++;
    // Another thread may have been faster: then there are two, each for its own regions.
    memory_of_allocation_[id] = number;
    memories_[number] = {.regions = 1, .kind = info.kind, .ticket = *ticket, .info = info};
    return number;
}

std::vector<Target::Piece> Target::hold_allocations(const MemoryRegion& region) {
    const uint64_t begin = address_of(region.address), end = begin + region.length;
    const Piece whole{.address = begin, .length = region.length};
    Device* const device = devices_.of(region.kind);
    if (device == nullptr || !device->shares()) return {whole};
    const auto all = device->allocations(region.address, region.length);
    if (!all || all->empty()) return {whole};
    std::vector<Piece> pieces;
    for (const MemoryInfo& info : *all) {
        const uint64_t from = std::max(begin, info.base), to = std::min(end, info.base + info.length);
        const uint64_t memory = hold_allocation(*device, info);
        // What nobody reaches need not be told apart.
        if (memory == 0 && !pieces.empty() && pieces.back().memory == 0) pieces.back().length += to - from;
        else pieces.push_back({.address = from, .length = to - from, .memory = memory, .offset = memory == 0 ? 0 : from - info.base});
    }
    return pieces;
}

void Target::tell_gone(std::span<const uint64_t> numbers) {
    for (const auto& [fd, connection] : connections_) {
        Message notice{.kind = MessageKind::kMemoryGone, .incarnation = incarnation_.value};
        for (const uint64_t number : numbers)
            if (connection->handed_out.erase(number) != 0) notice.value = number;
        // So that the peers unmap it and the system gets it back. Who does not even read this is not worth keeping.
        if (notice.value != 0 && !send_message(fd, notice)) ::shutdown(fd, SHUT_WR);
    }
}

void Target::drop_memories(std::span<const Part> parts) {
    std::vector<uint64_t> gone;
    try {
        gone.reserve(parts.size());
    } catch (const std::bad_alloc&) {
        // They are told one by one.
    }
    Lock lock(mutex_);
    for (const Part& part : parts) {
        const auto found = memories_.find(part.memory);
        if (found == memories_.end()) continue;
        Memory& memory = found->second;
        memory.entries.erase(part.number);
        if (--memory.regions > 0) continue;
        if (memory.kind == MemoryKind::kHost) memory_of_file_.erase(memory.id);
        else if (const auto of = memory_of_allocation_.find(memory.allocation());
                 of != memory_of_allocation_.end() && of->second == part.memory)
            memory_of_allocation_.erase(of);
        memories_.erase(found);
        if (gone.size() < gone.capacity()) gone.push_back(part.memory);
        else tell_gone(std::span(&part.memory, 1));
    }
    if (!gone.empty()) tell_gone(gone);
}

Result<Target::Part> Target::publish(const MemoryRegion& region, const Piece& piece) {
    MC_ASSIGN_OR_RETURN(const uint32_t number, table_->publish({.address = piece.address,
                                                                .length = piece.length,
                                                                .memory = piece.memory,
                                                                .offset = piece.offset,
                                                                .writable = region.writable,
                                                                .kind = region.kind}));
    if (region.kind != MemoryKind::kHost && piece.memory != 0) {
        Lock lock(mutex_);
        Memory& memory = memories_[piece.memory];
        try {
            memory.entries.insert(number);
        } catch (...) {
            table_->withdraw(number);
            table_->release(number);
            throw;
        }
        if (memory.lost) table_->withdraw(number);
    }
    return Part{.number = number, .memory = piece.memory};
}

/// Memory that is held for entries which do not come about after all.
struct Target::Unpublished {
    ~Unpublished() {
        for (; first < pieces.size(); ++first) {
            const Part unused{.number = UINT32_MAX, .memory = pieces[first].memory};
            target.drop_memories(std::span(&unused, 1));
        }
    }
    Target& target;
    const std::vector<Piece>& pieces;
    size_t first = 0;
};

Result<std::unique_ptr<Registration>> Target::add(const MemoryRegion& region) {
    if (!region.remote_accessible) return nullptr;
    const bool device = region.kind != MemoryKind::kHost;
    std::vector<Piece> pieces;
    if (device) pieces = hold_allocations(region);
    else
        pieces.push_back({.address = address_of(region.address),
                          .length = region.length,
                          .memory = hold_memory(region),
                          .offset = region.shared_offset});
    Unpublished unpublished{*this, pieces};
    auto entry = std::make_unique<Entry>(*this, device);
    entry->reserve(pieces.size());
    while (unpublished.first < pieces.size()) {
        MC_ASSIGN_OR_RETURN(const Part part, publish(region, pieces[unpublished.first]));  // what is in the table goes with the entry
        entry->published(part);
        ++unpublished.first;
    }
    return entry;
}

// ---- memory of a device that goes while it is registered

void Target::lose(uint64_t number) {
    Lock lock(mutex_);
    const auto found = memories_.find(number);
    if (found == memories_.end() || found->second.lost) return;
    Memory& memory = found->second;
    memory.lost = true;
    for (const uint32_t entry : memory.entries) table_->withdraw(entry);
    if (const auto of = memory_of_allocation_.find(memory.allocation()); of != memory_of_allocation_.end() && of->second == number)
        memory_of_allocation_.erase(of);
    MC_LOG_ERROR("{} memory at {:#x} was freed while it was registered: other processes are refused it from now on", to_string(memory.kind),
                 memory.info.base);
    tell_gone(std::span(&number, 1));
}

/// Two allocations have no address in common, so whatever was known there is gone.
void Target::lose_replaced(const MemoryInfo& info) {
    std::vector<uint64_t> replaced;
    {
        Lock lock(mutex_);
        auto next = memory_of_allocation_.lower_bound({info.base, 0});
        if (next != memory_of_allocation_.begin()) --next;
        for (; next != memory_of_allocation_.end() && next->first.first < info.base + info.length; ++next) {
            const MemoryInfo& other = memories_[next->second].info;
            if (other.kind == info.kind && other.base + other.length > info.base && other.allocation != info.allocation)
                replaced.push_back(next->second);
        }
    }
    for (const uint64_t number : replaced) lose(number);
}

void Target::look_at_lent() {
    const Time began = Clock::now();
    std::map<uint64_t, MemoryInfo> lent;
    {
        Lock lock(mutex_);
        for (const auto& [fd, connection] : connections_)
            for (const uint64_t number : connection->lent)
                if (const auto found = memories_.find(number); found != memories_.end() && !found->second.lost)
                    lent.emplace(number, found->second.info);
        looking_ = !lent.empty();
        if (!looking_) return;
    }
    for (const auto& [number, info] : lent)
        if (!devices_.of(info.kind)->still_there(info)) lose(number);
    Lock lock(mutex_);
    looking_ = alarm_->set(std::max<Duration>(kLookTime, (Clock::now() - began) * kLookShare)).has_value();
}

bool Target::is_open(std::optional<uint64_t> memory) {
    const auto holds = [memory](const std::set<uint64_t>& some) { return memory ? some.contains(*memory) : !some.empty(); };
    std::erase_if(dying_, [](const Dying& one) {
        pollfd process{.fd = one.process.fd(), .events = POLLIN, .revents = 0};
        return !one.process || ::poll(&process, 1, 0) > 0;
    });
    if (memory && memories_.contains(*memory)) return false;  // others of our regions are in it: nobody closes it yet
    return std::any_of(connections_.begin(), connections_.end(), [&](const auto& one) { return holds(one.second->lent); }) ||
           std::any_of(dying_.begin(), dying_.end(), [&](const Dying& one) { return holds(one.memories); });
}

Result<> Target::wait_closed(std::optional<uint64_t> memory, Deadline deadline) {
    constexpr Duration kLook = 10ms;  // at processes that are ending
    Lock lock(mutex_);
    while (is_open(memory)) {
        if (deadline.passed()) return fail(Code::kBusy, "a process of this host still has memory of a device of ours open");
        closed_.wait_for(mutex_, std::min<Duration>(deadline.left(), kLook));
    }
    return {};
}

void Target::note_closed(Connection& connection, uint64_t memory, uint64_t more) {
    Lock lock(mutex_);
    std::set<uint64_t>& lent = connection.lent;
    if (memory == 0) lent.clear();  // it leaves, and lives on
    else lent.erase(lent.lower_bound(memory), lent.upper_bound(memory + std::min(more, UINT64_MAX - memory)));
    closed_.notify_all();
}

std::vector<std::shared_ptr<const Target::ClaimsPage>> Target::pages() {
    std::vector<std::shared_ptr<const ClaimsPage>> all;
    Lock lock(mutex_);
    for (const auto& [fd, connection] : connections_)
        if (connection->claims) all.push_back(connection->claims);
    return all;
}

Result<> Target::fence(std::span<const Part> parts, Deadline deadline) {
    for (const auto& one : pages())
        for (const Part& part : parts)
            if (!one->claims().wait_for(part.number, deadline)) return fail(Code::kBusy, "process {} still accesses our memory", one->pid);
    return {};
}

Result<> Target::fence_all(Deadline deadline) {
    for (const auto& one : pages())
        if (!one->claims().wait_for_all(deadline)) return fail(Code::kBusy, "process {} still accesses our memory", one->pid);
    return {};
}

}  // namespace mooncake::shm
