// SPDX-License-Identifier: Apache-2.0
#include <liburing.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/fork.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "store/tier/posix_files.h"

namespace mooncake::store {

namespace {

constexpr unsigned kDepth = 256;
constexpr int kTriesMax = 100;

/// One ring and the thread that waits for its completions. Whoever submits does so under a lock; what the ring has no room for waits until something
/// came back. Thread-safe.
class Ring {
public:
    Ring() = default;
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;
    ~Ring() {
        if (!ready_) return;
        if (thread_.joinable()) {
            DiskOp stop{.hook = nullptr};
            submit(stop);
            thread_.join();
        }
        keep_in_child(ring_.ring_fd);
        io_uring_queue_exit(&ring_);
    }

    Result<> start(int number) {
        const int made = io_uring_queue_init(kDepth, &ring_, IORING_SETUP_CLAMP);
        if (made < 0) return fail_errno(Code::kNotSupported, -made, "no io_uring");
        ready_ = true;
        close_in_child(ring_.ring_fd);
        auto thread = try_start_thread(format_text("mc-ring-{}", number), [this] { run(); });
        if (!thread) return Unexpected(std::move(thread).error());
        thread_ = std::move(*thread);
        return {};
    }

    void submit(DiskOp& op) {
        int why = 0;
        {
            const Lock lock(mutex_);
            if (under_way_ >= kDepth || waiting_ != nullptr) return enqueue(op);
            why = hand_over(op);
        }
        if (why != 0) end(op, why);
    }

private:
    void enqueue(DiskOp& op) MC_REQUIRES(mutex_) {
        op.next = nullptr;
        (waiting_ == nullptr ? waiting_ : last_->next) = &op;
        last_ = &op;
    }

    /// 0, or what the kernel said: then it has not taken it.
    int hand_over(DiskOp& op) MC_REQUIRES(mutex_) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        MC_CHECK(entry != nullptr);  // each one is submitted at once
        if (op.hook == nullptr) {
            io_uring_prep_nop(entry);
        } else if (op.kind == DiskOp::Kind::kSync) {
            io_uring_prep_fsync(entry, op.fd, IORING_FSYNC_DATASYNC);
        } else if (op.kind == DiskOp::Kind::kRead) {
            io_uring_prep_read(entry, op.fd, op.memory, op.length, op.offset);
        } else {
            io_uring_prep_write(entry, op.fd, op.memory, op.length, op.offset);
        }
        io_uring_sqe_set_data(entry, op.hook == nullptr ? nullptr : &op);
        // Also what an earlier failure left behind must have been taken, or who knows which one was.
        int submitted = 0;
        for (int tries = 0; tries < kTriesMax && io_uring_sq_ready(&ring_) != 0; ++tries) {
            submitted = io_uring_submit(&ring_);
            if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) break;
        }
        if (io_uring_sq_ready(&ring_) == 0) {
            ++under_way_;
            return 0;
        }
        // It would go with the next one, after its owner has it back: it becomes one that does nothing.
        io_uring_prep_nop(entry);
        io_uring_sqe_set_data(entry, &nobody_);
        return submitted < 0 ? -submitted : EIO;
    }

    static void end(DiskOp& op, int why) {
        op.result = -why;
        op.hook->on_done(op);
    }

    void run() {
        while (true) {
            io_uring_cqe* seen = nullptr;
            const int waited = io_uring_wait_cqe(&ring_, &seen);
            if (waited == -EINTR || waited == -EAGAIN) continue;
            MC_CHECK(waited == 0);
            void* const data = io_uring_cqe_get_data(seen);
            const int result = seen->res;
            io_uring_cqe_seen(&ring_, seen);
            if (data == nullptr) return;
            if (data == &nobody_) continue;
            let_next_in();
            auto& op = *static_cast<DiskOp*>(data);
            op.result = result;
            op.hook->on_done(op);
        }
    }

    void let_next_in() {
        DiskOp* refused = nullptr;
        int why = 0;
        {
            const Lock lock(mutex_);
            --under_way_;
            while (waiting_ != nullptr && under_way_ < kDepth) {
                DiskOp& op = *std::exchange(waiting_, waiting_->next);
                if (const int error = hand_over(op); error != 0) {
                    why = error;
                    op.next = std::exchange(refused, &op);
                }
            }
        }
        while (refused != nullptr) end(*std::exchange(refused, refused->next), why);
    }

    Mutex mutex_;
    unsigned under_way_ MC_GUARDED_BY(mutex_) = 0;
    DiskOp* waiting_ MC_GUARDED_BY(mutex_) = nullptr;
    DiskOp* last_ MC_GUARDED_BY(mutex_) = nullptr;
    char nobody_ = 0;  // its address marks completions without an owner
    bool ready_ = false;
    io_uring ring_{};  // entries are added under mutex_, completions taken by thread_
    std::jthread thread_;
};

class RingDisk final : public PosixDisk {
public:
    RingDisk(std::string path, UniqueFd folder, bool direct) : PosixDisk(std::move(path), std::move(folder), direct) {}

    Result<> start() {
        int number = 0;
        for (Ring& ring : rings_) MC_RETURN_IF_ERROR(ring.start(number++));
        return {};
    }
    std::string_view kind() const override { return "io_uring"; }
    void submit(DiskOp& op) override { rings_[next_.fetch_add(1, std::memory_order_relaxed) % rings_.size()].submit(op); }

private:
    std::atomic<uint32_t> next_{0};
    std::array<Ring, 2> rings_;
};

}  // namespace

Result<std::unique_ptr<Disk>> make_ring_disk(std::string path, UniqueFd folder, bool direct) {
    auto disk = std::make_unique<RingDisk>(std::move(path), std::move(folder), direct);
    MC_RETURN_IF_ERROR(disk->start());
    return disk;
}

}  // namespace mooncake::store
