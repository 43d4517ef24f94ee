// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "base/thread_annotations.h"
#include "net/address.h"
#include "rpc/channel.h"
#include "rpc/io_loop.h"
#include "rpc/rpc.h"

namespace mooncake::rpc {

namespace {

constexpr Duration kTimeoutMax = std::chrono::hours(24);

Unexpected in_child() { return fail(Code::kUnavailable, "the rpc client belongs to the parent process"); }

/// Everything a client owns; left alone in a forked child, where its threads do not exist. Thread-safe.
class Core {
public:
    explicit Core(ClientOptions options) : options_(std::move(options)) {
        options_.connect_timeout = std::min(options_.connect_timeout, kTimeoutMax);
        options_.idle_timeout = std::min(options_.idle_timeout, kTimeoutMax);
        WriteLock lock(mutex_);
        (void)start_loops();  // what cannot be had now is tried again by the calls that need it
    }

    /// The channel to an address. `retired`: the one we got before, which cannot be used any more.
    Result<std::shared_ptr<Channel>> channel(const std::string& address, const std::shared_ptr<Channel>& retired = nullptr) {
        if (retired == nullptr) {
            ReadLock lock(mutex_);
            const auto found = by_address_.find(address);
            if (found != by_address_.end()) return found->second;
        }
        MC_ASSIGN_OR_RETURN(net::HostPort target, net::HostPort::parse(address));
        if (target.port == 0) return fail(Code::kInvalidArgument, "rpc to {}: an address needs a port", address);
        WriteLock lock(mutex_);
        if (stopped_) return fail(Code::kCancelled, "rpc to {}: call: client stopped", address);
        MC_RETURN_IF_ERROR(start_loops());
        if (const auto found = by_address_.find(address); found != by_address_.end()) {
            if (found->second != retired) return found->second;
            by_number_.erase(retired->number());
            by_address_.erase(found);
        }
        do {
            next_number_ = (next_number_ + 1) & CallTable::kNumberMax;
        } while (by_number_.contains(next_number_));
        auto made = std::make_shared<Channel>(Channel::Setup{.loop = loops_[next_number_ % loops_.size()],
                                                             .options = options_,
                                                             .number = next_number_,
                                                             .address = address,
                                                             .target = std::move(target),
                                                             .retire = [this](Channel& channel) { remove(channel); }});
        // In both or in neither: stop() shuts down those with a number, callers find those with an address.
        const auto numbered = by_number_.emplace(next_number_, made).first;
        try {
            by_address_.emplace(address, made);
        } catch (...) {
            by_number_.erase(numbered);
            throw;
        }
        return made;
    }

    std::shared_ptr<Channel> existing(const std::string& address) {
        ReadLock lock(mutex_);
        const auto found = by_address_.find(address);
        return found == by_address_.end() ? nullptr : found->second;
    }

    std::shared_ptr<Channel> existing(uint64_t number) {
        ReadLock lock(mutex_);
        const auto found = by_number_.find(number);
        return found == by_number_.end() ? nullptr : found->second;
    }

    /// Callbacks run on a loop, unless there is none any more.
    void fail_soon(const Callback& callback, const Error& error) {
        std::shared_ptr<IoLoop> loop;
        {
            ReadLock lock(mutex_);
            if (!loops_.empty()) loop = loops_[0];
        }
        if (!loop || !loop->post([callback, error] { callback(Unexpected(error)); })) callback(Unexpected(error));
    }

    /// Needs no memory.
    void stop() {
        Lock stopping(stop_mutex_);  // whoever comes second waits, too
        // Whoever is still in a call holds what it needs; the rest, with its descriptors, goes.
        decltype(by_address_) by_address;
        decltype(by_number_) by_number;
        decltype(loops_) loops;
        {
            WriteLock lock(mutex_);
            stopped_ = true;
            by_address.swap(by_address_);
            by_number.swap(by_number_);
            loops.swap(loops_);
        }
        for (const auto& loop : loops) {
            loop->stop([&] {
                for (const auto& [number, channel] : by_number)
                    if (channel->loop() == loop.get()) channel->shut_down();
            });
        }
    }

private:
    /// All of them, or at least one. A call of every new peer comes by: short of threads or descriptors, each tries again.
    Result<> start_loops() MC_REQUIRES(mutex_) {
        while (loops_.size() < static_cast<size_t>(std::max(options_.threads, 1))) {
            auto loop = IoLoop::start(format_text("mc-rpc-call-{}", loops_.size()));
            if (loop) loops_.push_back(std::move(*loop));
            else if (loops_.empty()) return Unexpected(std::move(loop).error());
            else break;
        }
        return {};
    }
    void remove(Channel& channel) {
        WriteLock lock(mutex_);
        const auto found = by_address_.find(channel.address());
        if (found != by_address_.end() && found->second.get() == &channel) by_address_.erase(found);
        by_number_.erase(channel.number());
    }

    ClientOptions options_;
    Mutex stop_mutex_;  // held while it stops
    SharedMutex mutex_;
    std::vector<std::shared_ptr<IoLoop>> loops_ MC_GUARDED_BY(mutex_);
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    uint64_t next_number_ MC_GUARDED_BY(mutex_) = 0;
    std::unordered_map<std::string, std::shared_ptr<Channel>> by_address_ MC_GUARDED_BY(mutex_);
    std::unordered_map<uint64_t, std::shared_ptr<Channel>> by_number_ MC_GUARDED_BY(mutex_);
};

class ClientImpl final : public Client {
public:
    explicit ClientImpl(ClientOptions options) : core_(std::make_unique<Core>(std::move(options))) {}
    ~ClientImpl() override {
        if (forked()) (void)core_.release();
        else stop();
    }

    using Client::call;
    Result<Bytes> call(const std::string& address, Method method, std::span<const std::byte> body, Deadline deadline,
                       const std::function<void()>& meanwhile) override {
        if (forked()) return in_child();
        std::shared_ptr<Channel> channel;
        for (;;) {
            MC_ASSIGN_OR_RETURN(channel, core_->channel(address, channel));
            if (auto result = channel->call(method, body, deadline, meanwhile)) return std::move(*result);
        }
    }

    uint64_t call_async(const std::string& address, Method method, Bytes body, Deadline deadline, Callback callback) override {
        if (forked()) {
            callback(in_child());
            return 0;
        }
        std::shared_ptr<Channel> channel;
        for (;;) {
            auto found = core_->channel(address, channel);
            if (!found) {
                core_->fail_soon(callback, found.error());
                return 0;
            }
            channel = std::move(*found);
            if (const auto id = channel->call_async(method, body, deadline, callback)) return *id;
        }
    }

    uint64_t call_stream(const std::string& address, Method method, Bytes body, PartCallback on_part, Callback on_end) override {
        if (forked()) {
            on_end(in_child());
            return 0;
        }
        std::shared_ptr<Channel> channel;
        for (;;) {
            auto found = core_->channel(address, channel);
            if (!found) {
                core_->fail_soon(on_end, found.error());
                return 0;
            }
            channel = std::move(*found);
            if (const auto id = channel->call_stream(method, body, on_part, on_end)) return *id;
        }
    }

    void cancel(uint64_t call) override {
        if (forked()) return;
        if (const auto channel = core_->existing(CallTable::number_of(call))) channel->cancel(call);
    }

    void linger(const std::string& address, Duration time) override {
        if (forked()) return;
        if (const auto channel = core_->existing(address)) channel->linger(time);
    }

    Result<PeerInfo> peer(const std::string& address) override {
        if (forked()) return in_child();
        if (const auto channel = core_->existing(address)) return channel->peer();
        return fail(Code::kNotFound, "rpc to {}: not connected", address);
    }

    void stop() override {
        if (!forked()) core_->stop();
    }

private:
    bool forked() const noexcept { return fork_generation_ != fork_generation(); }

    const uint32_t fork_generation_ = fork_generation();
    std::unique_ptr<Core> core_;
};

}  // namespace

bool peer_closed(const Error& error) noexcept {
    const int status = error.system_errno();
    return error.code() == Code::kUnavailable && (status == 0 || status == EPIPE);
}

std::unique_ptr<Client> Client::create(ClientOptions options) { return std::make_unique<ClientImpl>(std::move(options)); }

}  // namespace mooncake::rpc
