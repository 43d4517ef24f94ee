// SPDX-License-Identifier: Apache-2.0
#include "store/bridge/server/bridge_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/border.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/local_socket.h"

namespace mooncake::store::bridge {

namespace {

Result<> watch(int poll, int fd, uint64_t number, uint32_t events) {
    epoll_event event{.events = events, .data = {.u64 = number}};
    if (::epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0) return fail_errno(Code::kUnavailable, errno, "epoll");
    return {};
}

/// Our own user and root may use our memory.
bool is_allowed(int fd) {
    const auto who = net::credentials_of(fd);
    if (who && (who->uid == ::geteuid() || who->uid == 0)) return true;
    MC_LOG_WARNING_EVERY(1s, "a client of user {} is refused", who ? static_cast<int64_t>(who->uid) : -1);
    return false;
}

}  // namespace

Result<std::unique_ptr<BridgeServer>> BridgeServer::start(StoreClient& node, BridgeOptions options) {
    MC_ASSIGN_OR_RETURN(net::Socket listener, net::listen_local(socket_name(options.port)));
    net::Socket poll(::epoll_create1(EPOLL_CLOEXEC));
    if (!poll) return fail_errno(Code::kUnavailable, errno, "epoll");
    MC_ASSIGN_OR_RETURN(std::unique_ptr<net::Interrupt> end, net::Interrupt::create());
    MC_RETURN_IF_ERROR(watch(poll.fd(), end->fd(), kEnd, EPOLLIN));
    MC_RETURN_IF_ERROR(watch(poll.fd(), listener.fd(), kListener, EPOLLIN | EPOLLONESHOT));
    auto server = std::make_unique<BridgeServer>(node, options, std::move(listener), std::move(poll), std::move(end));
    {
        Lock lock(server->mutex_);
        MC_RETURN_IF_ERROR(server->start_thread());
    }
    return server;
}

BridgeServer::BridgeServer(StoreClient& node, BridgeOptions options, net::Socket listener, net::Socket poll,
                           std::unique_ptr<net::Interrupt> end)
    : node_(node), options_(options), boot_{random_u64(), random_u64() | 1}, listener_(std::move(listener)), poll_(std::move(poll)),
      end_(std::move(end)) {}

BridgeServer::~BridgeServer() { stop(); }

Result<> BridgeServer::start_thread() {
    MC_ASSIGN_OR_RETURN(std::jthread thread, try_start_thread("mc-bridge", [this] { run(); }));
    threads_.push_back(std::move(thread));
    ++waiting_;
    return {};
}

void BridgeServer::hang_up() {
    Lock lock(mutex_);
    open_ = false;
    listener_.reset();
    for (const auto& [number, guest] : guests_) ::shutdown(guest->fd(), SHUT_RDWR);
}

void BridgeServer::stop() {
    hang_up();
    end_->set();
    std::vector<std::jthread> threads;
    {
        Lock lock(mutex_);
        threads.swap(threads_);
    }
    threads.clear();
    Lock lock(mutex_);
    jobs_.clear();
    guests_.clear();
}

size_t BridgeServer::guests() const {
    Lock lock(mutex_);
    return guests_.size();
}

size_t BridgeServer::threads() const {
    Lock lock(mutex_);
    return threads_.size();
}

void BridgeServer::run() {
    const auto room = std::make_unique<PacketRoom>();
    while (!end_->is_set()) {
        epoll_event event{};
        if (::epoll_wait(poll_.fd(), &event, 1, -1) != 1) continue;  // a signal
        if (event.data.u64 == kEnd) continue;
        try {
            if (event.data.u64 == kListener) accept_all();
            else handle(event.data.u64, event.events, *room);
        } catch (...) {
            log_thrown("bridge");  // there is no memory: the client is asked for later
        }
    }
}

void BridgeServer::accept_all() {
    for (;;) {
        Lock lock(mutex_);
        if (!open_) return;
        listening_ = guests_.size() < kGuestsMax;
        if (!listening_) {
            MC_LOG_WARNING_EVERY(10s, "{} clients are served; others have to wait", guests_.size());
            return;
        }
        net::Socket socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (!socket) {
            const int why = errno;
            listening_ = why == EAGAIN;  // otherwise there are no descriptors left, until somebody leaves
            if (listening_) break;
            MC_LOG_WARNING_EVERY(10s, "no more clients can be served: errno {}", why);
            return;
        }
        if (!is_allowed(socket.fd())) continue;
        const uint64_t number = next_guest_++;
        const auto guest = std::make_shared<Guest>(node_, boot_, std::move(socket), options_.guest);
        if (watch(poll_.fd(), guest->fd(), number, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT)) guests_.emplace(number, guest);
    }
    epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kListener}};
    Lock lock(mutex_);
    if (open_) ::epoll_ctl(poll_.fd(), EPOLL_CTL_MOD, listener_.fd(), &event);
}

BridgeServer::GuestRef BridgeServer::find(uint64_t number) const {
    Lock lock(mutex_);
    const auto found = guests_.find(number);
    return found != guests_.end() ? found->second : nullptr;
}

void BridgeServer::arm(uint64_t number, const Guest& guest, bool reading) {
    uint32_t events = EPOLLRDHUP | EPOLLONESHOT;
    if (reading) events |= EPOLLIN;
    if (guest.wants_to_send()) events |= EPOLLOUT;
    epoll_event event{.events = events, .data = {.u64 = number}};
    ::epoll_ctl(poll_.fd(), EPOLL_CTL_MOD, guest.fd(), &event);  // fails for one that has been ended
}

void BridgeServer::end(uint64_t number, bool waits) {
    GuestRef gone;
    bool left = false;
    {
        Lock lock(mutex_);
        const auto found = guests_.find(number);
        if (found == guests_.end()) return;
        gone = std::move(found->second);
        guests_.erase(found);
        ::shutdown(gone->fd(), SHUT_RDWR);
        ::epoll_ctl(poll_.fd(), EPOLL_CTL_DEL, gone->fd(), nullptr);
        std::erase_if(jobs_, [number](const Job& job) { return job.number == number; });
        if (!std::exchange(listening_, true) && open_) {
            epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kListener}};
            ::epoll_ctl(poll_.fd(), EPOLL_CTL_MOD, listener_.fd(), &event);
        }
        left = waits && another_waits();
    }
    gone.reset();  // everything of it goes here, or with the last of its calls; values that it was writing may take a question to the master
    if (left) look_for_jobs();
}

bool BridgeServer::another_waits() {
    const auto most = static_cast<size_t>(options_.threads) + 1;
    if (waiting_ < 2 && (end_->is_set() || threads_.size() >= most || !start_thread())) return false;
    --waiting_;
    return true;
}

bool BridgeServer::may_carry_out(Job& job) {
    Lock lock(mutex_);
    if (another_waits()) return true;
    if (threads_.size() == 1) return --waiting_, true;  // there are no others to be had
    // Somebody works, and will look for jobs. Until then nothing more is heard of this client but its end.
    if (!guests_.contains(job.number)) return false;
    job.frame.keep();
    arm(job.number, *job.guest, false);
    jobs_.push_back(std::move(job));
    return false;
}

void BridgeServer::look_for_jobs() {
    for (;;) {
        Job job;
        {
            Lock lock(mutex_);
            if (jobs_.empty() || end_->is_set()) {
                ++waiting_;
                return;
            }
            job = std::move(jobs_.front());
            jobs_.pop_front();
        }
        arm(job.number, *job.guest, true);
        carry_out(std::move(job));
    }
}

void BridgeServer::handle(uint64_t number, uint32_t events, PacketRoom& room) {
    GuestRef guest = find(number);
    if (guest == nullptr) return;
    const bool gone = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    if (gone || ((events & EPOLLOUT) != 0 && !guest->flush())) {
        guest.reset();
        return end(number, true);
    }
    if ((events & EPOLLIN) == 0) return arm(number, *guest, true);
    auto frame = receive_frame(guest->fd(), room);
    if (!frame && frame.error().code() == Code::kBusy) return arm(number, *guest, true);
    if (!frame) {
        if (frame.error().code() == Code::kCorrupt) MC_LOG_WARNING_EVERY(1s, "a client is sent away: {}", frame.error().to_string());
        guest.reset();
        return end(number, true);
    }
    Job job{number, std::move(guest), std::move(*frame)};
    if (!may_carry_out(job)) return;
    arm(job.number, *job.guest, true);
    carry_out(std::move(job));
    look_for_jobs();
}

void BridgeServer::carry_out(Job job) {
    bool sensible = false;
    try {
        sensible = job.guest->serve(std::move(job.frame));
    } catch (...) {
        log_thrown("bridge");  // there is no memory: it may try again
    }
    if (sensible && job.guest->wants_to_send()) arm(job.number, *job.guest, true);
    job.guest.reset();
    if (!sensible) end(job.number, false);
}

}  // namespace mooncake::store::bridge
