// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_peer.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/error_copy.h"
#include "base/log.h"
#include "transport/copy_device.h"

namespace mooncake::shm {

// ---- connecting

namespace {

Error refusal(const Message& answer) {
    switch (static_cast<Refusal>(answer.value)) {
        case Refusal::kOtherVersion:
            return error(Code::kRefused, "the peer speaks version {} of the shared-memory protocol, we speak {}", answer.version, kVersion);
        case Refusal::kOtherIncarnation: return Error(Code::kStale, "another incarnation answered");
        case Refusal::kFull: return Error(Code::kRefused, "the peer has too many same-host connections");
        case Refusal::kStopped: return Error(Code::kUnavailable, "the peer is closed");
    }
    return Error(Code::kRefused, "the peer refused the shared-memory connection");
}

/// Reads a word of the peer whose value it told us: that shows that we may, and that the process number means the same to both.
Result<> probe(pid_t pid, const Message& welcome) {
    uint64_t word = 0;
    const CrossPiece piece{.local = reinterpret_cast<std::byte*>(&word), .remote = welcome.address, .length = sizeof word};
    const CrossResult result = cross_copy(pid, Direction::kRead, std::span(&piece, 1));
    if (result.fault == CrossResult::Fault::kSystem)
        return fail_errno(Code::kRefused, result.error,
                          "the system does not let us access the memory of process {} (ptrace scope, container or user)", pid);
    if (result.fault != CrossResult::Fault::kNone || word != welcome.value)
        return fail(Code::kRefused, "process {} is not the peer: it lives in another process namespace", pid);
    return {};
}

}  // namespace

Result<ShmPeer::Link> ShmPeer::shake_hands(net::Socket socket, Incarnation own, Incarnation expected, const net::Patience& patience) {
    Link link{.socket = std::move(socket)};
    MC_ASSIGN_OR_RETURN(const Credentials who, credentials_of(link.socket.fd()));
    if (who.uid != ::geteuid()) return fail(Code::kRefused, "the peer runs as user {}, we as {}", who.uid, ::geteuid());
    if (who.pid <= 0) return fail(Code::kRefused, "the peer lives in a process namespace that we cannot see");
    link.pid = who.pid;

    MC_RETURN_IF_ERROR(send_message(link.socket.fd(), {.kind = MessageKind::kHello, .incarnation = own.value, .expected = expected.value}));
    if (!net::wait_ready(link.socket.fd(), POLLIN, patience)) return fail(Code::kUnavailable, "process {} does not answer", link.pid);
    MC_ASSIGN_OR_RETURN(const Received received, receive_message(link.socket.fd()));
    const Message& answer = received.message;
    if (answer.kind == MessageKind::kRefusal) return Unexpected(refusal(answer));
    if (answer.kind != MessageKind::kWelcome || answer.version != kVersion || !received.files[0] || !received.files[1])
        return fail(Code::kRefused, "process {} answers in a way we do not understand", link.pid);
    if (answer.incarnation != expected.value) return fail(Code::kStale, "another incarnation answered");

    MC_ASSIGN_OR_RETURN(link.table, RemoteTable::open(received.files[0], expected));
    MC_ASSIGN_OR_RETURN(link.claims, received.files[1].map(true, sizeof(Claims)));
    ::madvise(link.claims.address(), link.claims.length(), MADV_DONTFORK);
    link.takes_ranges = (answer.expected & kTakesRanges) != 0;
    link.process = net::Socket(static_cast<int>(::syscall(SYS_pidfd_open, link.pid, 0)));
    MC_RETURN_IF_ERROR(probe(link.pid, answer));
    return link;
}

Result<std::unique_ptr<Peer>> ShmPeer::connect(const std::string& socket_name, Incarnation own, Incarnation expected, const Means& means,
                                               Deadline deadline) {
    const net::Patience patience(deadline, means.closing);
    MC_ASSIGN_OR_RETURN(net::Socket socket, connect_local(socket_name, patience));
    MC_ASSIGN_OR_RETURN(Link link, shake_hands(std::move(socket), own, expected, patience));
    std::unique_ptr<ShmPeer> peer(new ShmPeer(std::move(link), means));
    // The connection outlived the look at the process, so that was the right process.
    if (!peer->alive()) return Unexpected(peer->lost(0));
    MC_RETURN_IF_ERROR(means.loop.watch(peer->link_.socket.fd(), *peer));
    // A stray child of the peer may hold the connection open after its death: then this tells us.
    if (peer->link_.process) MC_RETURN_IF_ERROR(means.loop.watch(peer->link_.process.fd(), *peer));
    return peer;
}

ShmPeer::ShmPeer(Link link, const Means& means) : CopyPeer(means.pool), link_(std::move(link)), means_(means), closed_(link_.takes_ranges) {
    Lock lock(refresh_mutex_);
    rebuild();
}

ShmPeer::~ShmPeer() {
    stop();
    unwatch();
    {
        Lock lock(refresh_mutex_);
        memories_.clear();
        view_.clear();
    }
    try {
        closed_.tell(link_.socket.fd(), kTellTime);
        // Also of what we were lent and never heard of.
        (void)send_message(link_.socket.fd(), {.kind = MessageKind::kMemoryClosed, .value = 0});
    } catch (const std::bad_alloc&) {  // it is told by the end of our connection
    }
}

void ShmPeer::unwatch() {
    means_.loop.unwatch(link_.socket.fd());
    if (link_.process) means_.loop.unwatch(link_.process.fd());
}

// ---- the peer's life

bool ShmPeer::alive(int look_ms) const noexcept {
    // The kernel closes the other end when the process ends or becomes another program, before its number can be used again.
    pollfd end{.fd = link_.socket.fd(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&end, 1, look_ms) <= 0;
}

bool ShmPeer::process_ended() const noexcept {
    pollfd process{.fd = link_.process.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&process, 1, 0) > 0;
}

Error ShmPeer::lost(int system_errno) {
    const bool gone = system_errno == 0 || system_errno == ESRCH;
    Error reason = gone ? error(Code::kUnavailable, "process {} is gone or has closed its engine", link_.pid)
                        : Error(system_errno == EPERM ? Code::kRefused : Code::kUnavailable,
                                format_text("cannot access the memory of process {} any more", link_.pid), system_errno);
    mark_broken(reason);
    return reason;
}

void ShmPeer::on_exception() noexcept {
    mark_broken(out_of_memory());
    unwatch();
}

void ShmPeer::on_ready() {
    for (;;) {
        auto received = receive_message(link_.socket.fd());
        if (!received && received.error().code() == Code::kBusy && !process_ended()) return;
        if (!received) {
            lost(0);
            unwatch();
            drop_memories();
            return;
        }
        if (received->message.kind == MessageKind::kMemory) take_memory(*received);
        if (received->message.kind == MessageKind::kMemoryGone) {
            {
                Lock lock(refresh_mutex_);
                rebuild();
            }
            drop_old_views();
        }
    }
}

// ---- the peer's regions

void ShmPeer::rebuild() {
    auto fresh = std::make_unique<const RegionView>(link_.table, memories_);
    ask_for_memories();
    view_.replace(std::move(fresh));
    unseen_answers_ = false;
    closed_.tell(link_.socket.fd(), 0ms);
}

void ShmPeer::drop_old_views() {
    // A copy is short. One that was held up keeps its view, until the next change or the end of the peer. The owner of a device's memory waits for
    // us to close it, so then we are patient.
    constexpr Duration kPatience = 100ms;
    constexpr int kLooks = 20;
    for (int look = 0; look < kLooks; ++look) {
        copying().quiesce(Deadline::after(kPatience));
        Lock lock(refresh_mutex_);
        if (view_.clean() || !opened_some_) break;
    }
    closed_.tell(link_.socket.fd(), kTellTime);
}

const RegionView& ShmPeer::refresh(const RegionView& old, const CopyChunk& chunk, std::span<const size_t> slices) {
    // A region goes a moment before the table counts that as a change.
    const bool gone = std::any_of(slices.begin(), slices.end(), [&](size_t i) {
        return old.outdated(link_.table, {chunk.slices[i].remote, chunk.slices[i].length});
    });
    if (!gone && link_.table.changes() == old.changes()) return old;
    Lock lock(refresh_mutex_);
    // Another thread may have been faster.
    if (const RegionView& current = view_.get(); &current != &old && current.changes() == link_.table.changes()) return current;
    rebuild();
    return view_.get();
}

std::shared_ptr<const ReachedMemory> ShmPeer::reach(const Received& received) {
    const Message& message = received.message;
    if (received.ticket && message.address < kMemoryKinds) return reach_device(message, *received.ticket, received.files[0]);
    auto mapping = received.files[0] ? received.files[0].map(true, 1) : Result<Mapping>(Mapping());
    if (!mapping || !*mapping) return nullptr;
    ::madvise(mapping->address(), mapping->length(), MADV_DONTFORK);
    const auto shared = std::make_shared<const Mapping>(std::move(*mapping));
    pages_.add(shared);
    return std::make_shared<const MappedMemory>(shared, means_.devices);
}

MemoryKind ShmPeer::remote_kind(Direction, const Slice& slice) const noexcept {
    const auto section = copying().enter();
    const RegionView& view = view_.get();
    const RegionView::Region* const region = view.has_devices() ? view.at(slice.remote) : nullptr;
    return region == nullptr ? MemoryKind::kHost : region->kind;
}

void ShmPeer::drop_memories() {
    {
        Lock lock(refresh_mutex_);
        memories_.clear();
        view_.replace(std::make_unique<const RegionView>());
    }
    drop_old_views();
}

// ---- copying

bool ShmPeer::keep_waiting(SlotWait& wait) {
    constexpr uint32_t kLooks = 64;  // for one at the clock
    wait.pause();
    if (++wait.looks % kLooks != 0) return true;
    if (!usable()) return false;
    const Time now = Clock::now();
    if (wait.looks == kLooks) wait.began = now;
    // While there are some, each copy under way has a slot of this to itself, ours too.
    if (wait.looks == kLooks || copying().open_now().size() >= Claims::kSlots) wait.crowded = now;
    if (now - wait.crowded < kSlotTime && now - wait.began < kCrowdTime) return true;
    mark_broken(error(Code::kUnavailable, "process {} spoilt the page that it shares with us", link_.pid));
    return false;
}

/// One Section of the claims page: finds the slices' regions, copies what is mapped at once, collects the rest for the kernel and for devices.
class ShmPeer::Pass {
public:
    Pass(ShmPeer& peer, const CopyChunk& chunk, const RegionView& view, CopyFailures& failures)
        : peer_(peer), chunk_(chunk), view_(view), failures_(failures),
          section_(peer.claims(), [&peer, wait = SlotWait()]() mutable { return peer.keep_waiting(wait); }),
          by_device_(peer.means_.devices, failures) {}

    /// False: the peer is broken, and nothing can be added.
    bool open() const noexcept { return section_.open(); }
    /// False: not in live regions, as far as the view knows.
    bool add(size_t index);
    /// Copies what was collected.
    void flush();

private:
    /// Between a device and memory that is not mapped here.
    struct Bounced {
        size_t slice;
        MemoryKind kind;
        CrossPiece piece;
    };

    /// Of the peer's memory of a device; counted when it has been copied.
    struct Counted {
        size_t slice;
        const DeviceBytes* counter;
        uint64_t length;
    };

    void add_of_device(size_t index, const CrossPiece& piece, std::byte* mapped);
    /// The peer's memory is a device's.
    void add_to_device(size_t index, const CrossPiece& piece, MemoryKind kind, std::byte* mapped);
    void add_unregistered(size_t index, const CrossPiece& piece, MemoryKind kind, std::byte* mapped);
    void copy_by_device(const DeviceCopies::Owner& owner, MemoryKind kind, std::byte* device, std::byte* host, uint64_t length,
                        bool to_device);
    /// Of a piece whose local memory is a device's.
    DeviceCopies::Owner owner_of(size_t index, const std::byte* local) const noexcept {
        return {.slice = index, .copier = chunk_.slices[index].copier, .local = local, .ordered = chunk_.slices[index].ordered};
    }
    /// Of one whose local memory is the host's, where the transfer itself shows what passes.
    DeviceCopies::Owner without_copier(size_t index) const noexcept { return {.slice = index, .ordered = chunk_.slices[index].ordered}; }
    void collect(size_t index, const CrossPiece& piece);
    void flush_kernel();
    void flush_bounced();
    void bounce(std::span<const Bounced> pieces, std::byte* buffer);
    bool failed(size_t slice) const noexcept;
    void fail_from(size_t piece, const Error& error);
    CopyTurns::Turn take_turn() noexcept;

    ShmPeer& peer_;
    const CopyChunk& chunk_;
    const RegionView& view_;
    CopyFailures& failures_;
    Claims::Section section_;
    DeviceCopies by_device_;
    std::vector<Bounced> bounced_;
    std::vector<Counted> counted_;
    size_t hint_ = 0;
    size_t count_ = 0;
    std::array<CrossPiece, kCrossPiecesMax> pieces_;  // only the first count_ are set
    std::array<uint32_t, kCrossPiecesMax> slice_of_;
};

bool ShmPeer::Pass::add(size_t index) {
    const Slice& slice = chunk_.slices[index];
    // Also a part needs its whole slice to be allowed, so that of a slice that is refused nothing at all is copied.
    const Access access = chunk_.direction == Direction::kRead ? Access::kRead : Access::kWrite;
    const RegionView::Region* region = view_.find(peer_.link_.table, section_, {slice.remote, slice.length}, access, hint_);
    if (region == nullptr) return false;
    // Many small slices mostly are of this kind.
    if (region->mapped == nullptr && local_kind(slice) == MemoryKind::kHost && !chunk_.part() &&
        slice.length <= region->end() - slice.remote) {
        collect(index, {.local = slice.local, .remote = slice.remote, .length = slice.length});
        return true;
    }
    const bool direct = may_touch_local(chunk_.direction, slice), device = local_kind(slice) != MemoryKind::kHost;
    uint64_t at = slice.remote + chunk_.offset;
    const uint64_t end = chunk_.part() ? at + chunk_.length : at + slice.length;
    while (at < end) {
        while (region->end() <= at) ++region;
        const uint64_t length = std::min(end, region->end()) - at;
        std::byte* const local = slice.local + (at - slice.remote);
        std::byte* const mapped = region->mapped == nullptr ? nullptr : region->mapped + (at - region->address);
        if (region->device()) {
            counted_.push_back({.slice = index, .counter = region->copied, .length = length});
            add_to_device(index, {.local = local, .remote = at, .length = length}, region->kind, mapped);
        } else if (device) {
            add_of_device(index, {.local = local, .remote = at, .length = length}, mapped);
        } else if (!direct || mapped == nullptr) {
            collect(index, {.local = local, .remote = at, .length = length});
        } else if (chunk_.direction == Direction::kRead) {
            slice.copy(local, mapped, length);
        } else {
            slice.copy(mapped, local, length);
        }
        at += length;
    }
    return true;
}

void ShmPeer::Pass::add_of_device(size_t index, const CrossPiece& piece, std::byte* mapped) {
    const MemoryRegion& region = *chunk_.slices[index].region;
    if (chunk_.direction == Direction::kRead && !region.writable) {
        failures_.emplace_back(
            index, error(Code::kNotRegistered, "local memory at {} is registered for reading only", static_cast<void*>(piece.local)));
    } else if (mapped != nullptr) {
        copy_by_device(owner_of(index, piece.local), region.kind, piece.local, mapped, piece.length, chunk_.direction == Direction::kRead);
    } else {
        for (uint64_t at = 0; at < piece.length; at += BounceBuffers::kBytes)
            bounced_.push_back({.slice = index,
                                .kind = region.kind,
                                .piece = {.local = piece.local + at,
                                          .remote = piece.remote + at,
                                          .length = std::min(piece.length - at, BounceBuffers::kBytes)}});
    }
}

void ShmPeer::Pass::add_to_device(size_t index, const CrossPiece& piece, MemoryKind kind, std::byte* mapped) {
    const Slice& slice = chunk_.slices[index];
    if (slice.region == nullptr) return add_unregistered(index, piece, kind, mapped);
    const MemoryKind local = slice.region->kind;
    const bool read = chunk_.direction == Direction::kRead;
    if (read && !slice.region->writable)
        failures_.emplace_back(
            index, error(Code::kNotRegistered, "local memory at {} is registered for reading only", static_cast<void*>(piece.local)));
    else if (peer_.means_.devices.between(local, kind) == nullptr)
        failures_.emplace_back(
            index, error(Code::kNotSupported, "nothing here copies between {} and {} memory", to_string(local), to_string(kind)));
    else if (read) by_device_.add(without_copier(index), local, kind, {.to = piece.local, .from = mapped, .length = piece.length});
    else by_device_.add(without_copier(index), kind, local, {.to = mapped, .from = piece.local, .length = piece.length});
}

/// Local memory that may not be there: only the kernel may touch it.
void ShmPeer::Pass::add_unregistered(size_t index, const CrossPiece& piece, MemoryKind kind, std::byte* mapped) {
    const BounceBuffers::Buffer buffer = peer_.means_.bounces.take();
    const bool read = chunk_.direction == Direction::kRead;
    for (uint64_t at = 0; at < piece.length && !failed(index); at += BounceBuffers::kBytes) {
        const uint64_t length = std::min(piece.length - at, BounceBuffers::kBytes);
        const auto by_device = [&] {
            copy_by_device(without_copier(index), kind, mapped + at, buffer.data(), length, !read);
            by_device_.flush();
        };
        if (read) by_device();
        if (failed(index)) return;
        const CrossPiece one{.local = buffer.data(), .remote = reinterpret_cast<uint64_t>(piece.local + at), .length = length};
        const CrossResult result = cross_copy(::getpid(), read ? Direction::kWrite : Direction::kRead, std::span(&one, 1));
        if (result.fault != CrossResult::Fault::kNone) {
            failures_.emplace_back(index,
                                   error(Code::kNotRegistered, "local memory at {} is not mapped", static_cast<void*>(piece.local + at)));
            return;
        }
        if (!read) by_device();
    }
}

void ShmPeer::Pass::copy_by_device(const DeviceCopies::Owner& owner, MemoryKind kind, std::byte* device, std::byte* host, uint64_t length,
                                   bool to_device) {
    if (to_device) by_device_.add(owner, kind, MemoryKind::kHost, {.to = device, .from = host, .length = length});
    else by_device_.add(owner, MemoryKind::kHost, kind, {.to = host, .from = device, .length = length});
}

bool ShmPeer::Pass::failed(size_t slice) const noexcept {
    return std::any_of(failures_.begin(), failures_.end(), [slice](const auto& failure) { return failure.first == slice; });
}

void ShmPeer::Pass::bounce(std::span<const Bounced> pieces, std::byte* buffer) {
    const auto for_each = [&](const auto& use) {
        std::byte* at = buffer;
        for (const Bounced& one : pieces) {
            if (!failed(one.slice)) use(one, at);
            at += one.piece.length;
        }
    };
    const auto by_device = [&] {
        for_each([this](const Bounced& one, std::byte* at) {
            copy_by_device(owner_of(one.slice, one.piece.local), one.kind, one.piece.local, at, one.piece.length,
                           chunk_.direction == Direction::kRead);
        });
        by_device_.flush();
    };
    const auto by_kernel = [&] {
        for_each([this](const Bounced& one, std::byte* at) {
            collect(one.slice, {.local = at, .remote = one.piece.remote, .length = one.piece.length});
        });
        flush_kernel();
    };
    // What one of them failed to bring, the other does not pass on.
    if (chunk_.direction == Direction::kRead) {
        by_kernel();
        by_device();
    } else {
        by_device();
        by_kernel();
    }
}

void ShmPeer::Pass::flush_bounced() {
    if (bounced_.empty()) return;
    const BounceBuffers::Buffer buffer = peer_.means_.bounces.take();
    for (std::span<const Bounced> rest(bounced_); !rest.empty();) {
        size_t count = 0;
        for (uint64_t bytes = 0; count < rest.size() && rest[count].piece.length <= BounceBuffers::kBytes - bytes;)
            bytes += rest[count++].piece.length;
        bounce(rest.first(count), buffer.data());
        rest = rest.subspan(count);
    }
    bounced_.clear();
}

void ShmPeer::Pass::flush() {
    flush_kernel();
    by_device_.flush();
    flush_bounced();
    for (const Counted& one : counted_)
        if (failures_.empty() || !failed(one.slice)) one.counter->add(chunk_.direction, one.length);
    counted_.clear();
}

void ShmPeer::Pass::collect(size_t index, const CrossPiece& piece) {
    if (count_ == kCrossPiecesMax) flush_kernel();
    pieces_[count_] = piece;
    slice_of_[count_++] = static_cast<uint32_t>(index);
}

CopyTurns::Turn ShmPeer::Pass::take_turn() noexcept {
    uint64_t lowest = UINT64_MAX, end = 0, bytes = 0;  // in the peer's memory
    for (const CrossPiece& piece : std::span(pieces_).first(count_)) {
        lowest = std::min(lowest, piece.remote);
        end = std::max(end, piece.remote + piece.length);
        bytes += piece.length;
    }
    return peer_.turns_.take(lowest, end - lowest, bytes);
}

void ShmPeer::Pass::fail_from(size_t piece, const Error& error) {
    for (; piece < count_; ++piece) failures_.emplace_back(slice_of_[piece], error);
    count_ = 0;
}

void ShmPeer::Pass::flush_kernel() {
    using Fault = CrossResult::Fault;
    // A process number can pass to another process once its owner is gone. Before a write we look whether it is still there. What a
    // read brought counts only if it is there afterwards, which leaves no gap.
    const bool read = chunk_.direction == Direction::kRead;
    if (count_ == 0) return;
    const CopyTurns::Turn turn = take_turn();
    if (!read && !peer_.alive()) return fail_from(0, peer_.lost(0));
    size_t done = 0;
    while (done < count_) {
        const CrossResult result = cross_copy(peer_.link_.pid, chunk_.direction, std::span(pieces_).subspan(done, count_ - done));
        done += result.piece;
        if (result.fault == Fault::kNone) break;
        if (result.fault == Fault::kSystem) return fail_from(read ? 0 : done, peer_.lost(result.error));
        const CrossPiece& bad = pieces_[done];
        failures_.emplace_back(
            slice_of_[done],
            error(Code::kNotRegistered, "{} memory at {:#x}+{} is not mapped there", result.fault == Fault::kLocal ? "local" : "the peer's",
                  result.fault == Fault::kLocal ? reinterpret_cast<uint64_t>(bad.local) : bad.remote, bad.length));
        const uint32_t failed = slice_of_[done];
        while (done < count_ && slice_of_[done] == failed) ++done;
    }
    if (read && !peer_.alive()) return fail_from(0, peer_.lost(0));
    count_ = 0;
}

void ShmPeer::copy(const CopyChunk& chunk, CopyFailures& failures) {
    const RegionView* view = &view_.get();  // until the end of the copy, as those that come after it
    std::vector<size_t> refused_ones;
    {
        Pass pass(*this, chunk, *view, failures);
        if (!pass.open()) return fail_all(chunk, broken_reason(), failures);
        for (size_t i = 0; i < chunk.slices.size(); ++i)
            if (!pass.add(i)) refused_ones.push_back(i);
        pass.flush();
    }
    // The table may have changed since we looked, and may change again: of two regions that overlap for a moment a view has one, and that may be
    // the one which goes.
    if (refused_ones.empty()) return;
    for (Deadline end = Deadline::after(kLookTime); !refused_ones.empty();) {
        if (await_devices(chunk, refused_ones)) end = Deadline::after(kLookTime);
        const RegionView* const current = &view_.get();
        const RegionView* const fresh = end.passed() ? view : current != view ? current : &refresh(*view, chunk, refused_ones);
        if (fresh == view) {
            for (const size_t i : refused_ones) failures.emplace_back(i, refused(*view, chunk.slices[i]));
            return;
        }
        view = fresh;
        Pass pass(*this, chunk, *view, failures);
        if (!pass.open()) return fail_all(chunk, broken_reason(), failures);
        std::erase_if(refused_ones, [&pass](size_t i) { return pass.add(i); });
        pass.flush();
    }
}

}  // namespace mooncake::shm
