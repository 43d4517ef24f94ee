// SPDX-License-Identifier: Apache-2.0
#include "rpc/io_loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>

#include <thread>
#include <utility>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "rpc/look_ahead.h"

namespace mooncake::rpc {

namespace asio = boost::asio;

namespace {

constexpr size_t kScratchBytes = 64 << 10;

}  // namespace

/// Room for one handler of Asio's, so that handing it over needs no memory. Has to live for as long as that.
class Room {
public:
    void* take(size_t bytes) {
        if (bytes > sizeof bytes_ || std::exchange(taken_, true)) throw std::bad_alloc();
        return bytes_;
    }
    void give_back() noexcept { taken_ = false; }

private:
    alignas(std::max_align_t) std::byte bytes_[256];
    bool taken_ = false;
};

template <typename T>
struct RoomAllocator {
    using value_type = T;

    explicit RoomAllocator(Room& given) noexcept : room(&given) {}
    template <typename U>
    RoomAllocator(const RoomAllocator<U>& other) noexcept : room(other.room) {}  // NOLINT(google-explicit-constructor): as allocators are
    T* allocate(size_t count) { return static_cast<T*>(room->take(count * sizeof(T))); }
    void deallocate(T*, size_t) noexcept { room->give_back(); }
    friend bool operator==(const RoomAllocator&, const RoomAllocator&) = default;

    Room* room;
};

struct IoLoop::Impl {
    asio::io_context context{1};
    // Asio makes its epoll set with the first object that needs it, and throws where no descriptor is left: better here, in start(), than on the
    // loop's thread.
    asio::steady_timer first_user{context};
    asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
    std::unique_ptr<std::byte[]> scratch{new std::byte[kScratchBytes]};
    std::thread::id thread_id;
    Time awake_until{};  // only the thread, as what follows
    LookAhead look_ahead;
    Mutex post_mutex;
    bool stopped MC_GUARDED_BY(post_mutex) = false;
    Mutex stop_mutex;
    Room last_room;  // for the last task
    std::jthread thread MC_GUARDED_BY(stop_mutex);

    /// The last task, which is its owner's until the thread is joined.
    struct Last {
        using allocator_type = RoomAllocator<void>;
        allocator_type get_allocator() const noexcept { return room; }
        void operator()() const { (*task)(); }
        const Task* task;
        allocator_type room;
    };

    void run() {
        while (context.run_one() > 0)
            while (awake_until != Time()) look();
    }
    /// Until something came, or it is time to sleep.
    void look() {
        const Time until = std::exchange(awake_until, Time());
        if (!look_ahead.pays()) return;
        while (Clock::now() < until) {
            if (context.poll_one() > 0) return look_ahead.found();
            std::this_thread::yield();
        }
        look_ahead.in_vain();
    }
};

IoLoop::IoLoop() : impl_(std::make_unique<Impl>()) {}

IoLoop::~IoLoop() {
    stop([] {});
}

Result<std::shared_ptr<IoLoop>> IoLoop::start(const std::string& thread_name) {
    try {
        std::shared_ptr<IoLoop> loop(new IoLoop());
        Impl& impl = *loop->impl_;
        Lock lock(impl.stop_mutex);
        MC_ASSIGN_OR_RETURN(impl.thread, try_start_thread(thread_name, [&impl] { impl.run(); }));
        impl.thread_id = impl.thread.get_id();
        return loop;
    } catch (const boost::system::system_error& failure) {  // is not a std::system_error
        return fail_errno(Code::kUnavailable, failure.code().value(), "cannot make an epoll set");
    }
}

bool IoLoop::post(Task task) {
    Lock lock(impl_->post_mutex);
    if (impl_->stopped) return false;
    asio::post(impl_->context, std::move(task));
    return true;
}

bool IoLoop::on_loop() const noexcept { return std::this_thread::get_id() == impl_->thread_id; }

void IoLoop::stop(const Task& last) {
    Lock stop_lock(impl_->stop_mutex);
    if (!impl_->thread.joinable()) return;
    {
        Lock lock(impl_->post_mutex);
        impl_->stopped = true;
        asio::post(impl_->context, Impl::Last{&last, RoomAllocator<void>(impl_->last_room)});
    }
    impl_->work.reset();
    impl_->thread.join();
}

void IoLoop::stay_awake(Duration time) noexcept { impl_->awake_until = Clock::now() + time; }

std::span<std::byte> IoLoop::scratch() noexcept { return {impl_->scratch.get(), kScratchBytes}; }

// ---- Watch

struct IoLoop::Watch::State {
    asio::posix::stream_descriptor descriptor;
};

IoLoop::Watch::Watch(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<IoLoop::Watch>> IoLoop::Watch::open(IoLoop& loop, int fd) {
    auto state = std::make_unique<State>(State{asio::posix::stream_descriptor(loop.impl_->context)});
    boost::system::error_code status;
    state->descriptor.assign(fd, status);
    if (status) return fail_errno(Code::kUnavailable, status.value(), "cannot watch a descriptor");
    return std::unique_ptr<Watch>(new Watch(std::move(state)));
}

IoLoop::Watch::~Watch() {
    if (state_->descriptor.is_open()) state_->descriptor.release();
}

void IoLoop::Watch::wait_readable(std::shared_ptr<IoHandler> handler) {
    state_->descriptor.async_wait(asio::posix::descriptor_base::wait_read,
                                  [handler = std::move(handler)](boost::system::error_code status) {
                                      if (!status) handler->on_readable();
                                  });
}

void IoLoop::Watch::wait_writable(std::shared_ptr<IoHandler> handler) {
    state_->descriptor.async_wait(asio::posix::descriptor_base::wait_write,
                                  [handler = std::move(handler)](boost::system::error_code status) {
                                      if (!status) handler->on_writable();
                                  });
}

// ---- Timer

struct IoLoop::Timer::State {
    asio::steady_timer timer;
    uint64_t turn = 0;  // a wait that already expired can no longer be cancelled: its turn tells it that it is outdated
};

IoLoop::Timer::Timer(IoLoop& loop) : state_(std::make_shared<State>(State{asio::steady_timer(loop.impl_->context)})) {}

IoLoop::Timer::~Timer() { cancel(); }

void IoLoop::Timer::set(Time at, Task task) {
    const uint64_t turn = ++state_->turn;
    state_->timer.expires_at(at);
    state_->timer.async_wait([state = state_, turn, task = std::move(task)](boost::system::error_code status) {
        if (!status && state->turn == turn) task();
    });
}

void IoLoop::Timer::cancel() {
    ++state_->turn;
    state_->timer.cancel();
}

}  // namespace mooncake::rpc
