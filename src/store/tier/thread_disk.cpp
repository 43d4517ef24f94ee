// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/thread_pool.h"
#include "store/tier/posix_files.h"

namespace mooncake::store {

namespace {

/// pread and pwrite on a few threads. What waits is bounded by those above: every op belongs to a buffer of theirs.
class ThreadDisk final : public PosixDisk {
public:
    ThreadDisk(std::string path, UniqueFd folder, bool direct) : PosixDisk(std::move(path), std::move(folder), direct) {}

    Result<> start() { return pool_.start(); }
    std::string_view kind() const override { return "threads"; }
    void submit(DiskOp& op) override {
        const auto posted = pool_.post([&op] {
            op.result = carry_out(op);
            op.hook->on_done(op);
        });
        if (posted) return;
        op.result = -ECANCELED;  // no thread any more
        op.hook->on_done(op);
    }

private:
    static constexpr size_t kThreads = 16;
    ThreadPool pool_{{.name = "mc-disk", .threads_max = kThreads, .threads_few = kThreads}};
};

}  // namespace

Result<std::unique_ptr<Disk>> make_thread_disk(std::string path, UniqueFd folder, bool direct) {
    auto disk = std::make_unique<ThreadDisk>(std::move(path), std::move(folder), direct);
    MC_RETURN_IF_ERROR(disk->start());
    return disk;
}

}  // namespace mooncake::store
