// SPDX-License-Identifier: Apache-2.0
#include "store/tier/log_tier.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/timer_queue.h"
#include "store/tier/index.h"
#include "store/tier/log_worker.h"
#include "store/tier/reader.h"
#include "store/tier/recovery.h"
#include "store/tier/tidy.h"

namespace mooncake::store {

namespace {

using namespace log;

uint64_t file_bytes_for(const LogTierOptions& options) {
    constexpr uint64_t kLeast = 64 << 20, kMost = 4ull << 30, kOfCapacity = 256, kOfSmallCapacity = 16;
    uint64_t bytes = options.file_bytes;
    if (bytes == 0)
        bytes = std::clamp(options.capacity_bytes / kOfCapacity, std::min(kLeast, options.capacity_bytes / kOfSmallCapacity), kMost);
    return std::max(round_to_blocks(bytes), 16 * kBlockBytes);
}

LogTierOptions completed(LogTierOptions options) {
    options.file_bytes = file_bytes_for(options);
    return options;
}

class LogTier final : public StorageTier {
public:
    LogTier(std::unique_ptr<Disk> disk, const LogTierOptions& options)
        : options_(completed(options)), disk_(std::move(disk)), worker_(*disk_, files_, index_, options_),
          reader_(index_, clock_, {options.small_buffers, options.large_buffers, options.reads_max},
                  [this](std::string_view tenant, std::string_view key, uint64_t generation) { drop(tenant, key, generation); }),
          tidy_(files_, index_, reader_, options_, [this](Request request) { return post(std::move(request)); }) {}
    ~LogTier() override { close(); }

    Result<TierFound> recover() override;
    void write(std::span<TierWrite> objects, Deadline deadline, Completion& completion) override;
    void read(std::span<TierRead> objects, Deadline deadline, Completion& completion) override;
    void remove(std::span<TierRemove> objects, Completion& completion) override;
    std::optional<TierObject> find(uint64_t generation, std::string& texts) const override { return index_.find(generation, texts); }
    bool report(size_t objects_max, const std::function<bool(std::span<const TierObject>)>& part) const override;
    TierUsage usage() const override;
    void close() override;

private:
    template <typename Object>
    static void refuse(std::span<Object> objects, Completion& completion, const Error& why);
    static void refuse(Request& request, const Error& why);
    /// kOk: queued.
    Code enqueue(Request& request, bool bounded);
    bool post(Request request) { return enqueue(request, false) == Code::kOk; }
    void expire(uint64_t id);
    /// Removes a value that was found damaged.
    void drop(std::string_view tenant, std::string_view key, uint64_t generation);
    void run();

    const LogTierOptions options_;
    const std::unique_ptr<Disk> disk_;
    FileTable files_;
    Index index_;
    TimerQueue clock_{"mc-tier-clock"};
    LogWorker worker_;  // the log thread's, once that runs
    Reader reader_;
    Tidy tidy_;

    mutable Mutex mutex_;
    std::condition_variable_any wake_;
    std::deque<Request> queue_ MC_GUARDED_BY(mutex_);
    size_t queued_ MC_GUARDED_BY(mutex_) = 0;  // values and removals
    uint64_t next_id_ MC_GUARDED_BY(mutex_) = 1;
    bool open_ MC_GUARDED_BY(mutex_) = false;
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    std::jthread log_thread_, tidy_thread_;
};

Result<TierFound> LogTier::recover() {
    {
        const Lock lock(mutex_);
        if (open_ || closed_) return fail(Code::kInvalidArgument, "a tier is recovered once");
    }
    MC_RETURN_IF_ERROR(disk_->lock());
    MC_RETURN_IF_ERROR(worker_.start());
    MC_RETURN_IF_ERROR(reader_.start());
    MC_RETURN_IF_ERROR(clock_.start());
    MC_ASSIGN_OR_RETURN(const TierFound found, recover_files(*disk_, files_, index_, worker_.appender(), options_.scan_threads));
    worker_.sweep();
    worker_.tidy_up();
    MC_ASSIGN_OR_RETURN(log_thread_, try_start_thread("mc-tier-log", [this] { run(); }));
    auto tidy = try_start_thread("mc-tier-tidy", [this](const std::stop_token& stop) { tidy_.run(stop); });
    if (tidy) tidy_thread_ = std::move(*tidy);
    const Lock lock(mutex_);
    open_ = true;
    return found;
}

template <typename Object>
void LogTier::refuse(std::span<Object> objects, Completion& completion, const Error& why) {
    // The last answer may be the end of the caller's objects.
    for (size_t i = 0, count = objects.size(); i < count; ++i) {
        objects[i].result = why.code();
        completion.fail(why);
    }
}

void LogTier::refuse(Request& request, const Error& why) {
    if (request.objects() == 0) return request.completion->fail(why);
    if (!request.writes.empty()) return refuse(request.writes, *request.completion, why);
    refuse(request.removes, *request.completion, why);
}

Code LogTier::enqueue(Request& request, bool bounded) {
    const Lock lock(mutex_);
    if (!open_ || closed_) return Code::kCancelled;
    if (bounded && queued_ + request.objects() > options_.queued_max) return Code::kBusy;
    request.id = next_id_++;
    if (!request.deadline.is_never()) request.timer = clock_.at(request.deadline.at(), [this, id = request.id] { expire(id); });
    queued_ += request.objects();
    queue_.push_back(std::move(request));
    wake_.notify_all();
    return Code::kOk;
}

void LogTier::write(std::span<TierWrite> objects, Deadline deadline, Completion& completion) {
    completion.add(static_cast<uint32_t>(objects.size()));
    if (objects.empty()) return;
    Request request{.writes = objects, .completion = &completion, .deadline = deadline};
    if (const Code code = enqueue(request, true); code != Code::kOk) refuse(objects, completion, error(code, "nothing can be written now"));
}

void LogTier::remove(std::span<TierRemove> objects, Completion& completion) {
    completion.add(static_cast<uint32_t>(objects.size()));
    if (objects.empty()) return;
    Request request{.removes = objects, .completion = &completion};
    if (const Code code = enqueue(request, true); code != Code::kOk) refuse(objects, completion, error(code, "nothing can be removed now"));
}

void LogTier::read(std::span<TierRead> objects, Deadline deadline, Completion& completion) { reader_.read(objects, deadline, completion); }

void LogTier::expire(uint64_t id) {
    Request late;
    {
        const Lock lock(mutex_);
        const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const Request& request) { return request.id == id; });
        if (found == queue_.end()) return;
        late = std::move(*found);
        queue_.erase(found);
        queued_ -= late.objects();
    }
    refuse(late, error(Code::kTimedOut, "the disk is too slow"));
}

void LogTier::drop(std::string_view tenant, std::string_view key, uint64_t generation) {
    auto own = std::make_unique<OwnRemoval>();
    own->tenant = tenant;
    own->key = key;
    own->remove = {.tenant = own->tenant, .key = own->key, .generation = generation};
    own->observer = options_.observer;
    own->completion.add(1);
    MC_LOG_WARNING_EVERY(10s, "the value of '{}' is damaged, and goes", key);
    Request request{.removes = std::span(&own->remove, 1), .completion = &own->completion};
    request.own = std::move(own);
    post(std::move(request));
}

void LogTier::run() {
    std::vector<Request> taken;
    while (true) {
        {
            std::unique_lock lock(mutex_);
            mutex_.is_held();
            wake_.wait_for(lock, 1s, [this] {
                mutex_.is_held();
                return closed_ || !queue_.empty();
            });
            if (closed_) break;
            // What is more than a group or so stays, so that it can still be refused when its time is over.
            constexpr size_t kTakenMax = 1024;
            for (size_t objects = 0; !queue_.empty() && objects < kTakenMax;) {
                objects += std::max<size_t>(queue_.front().objects(), 1);
                queued_ -= queue_.front().objects();
                taken.push_back(std::move(queue_.front()));
                queue_.pop_front();
            }
        }
        for (const Request& request : taken)
            if (request.timer != 0) clock_.cancel(request.timer);
        worker_.carry_out(taken);
        taken.clear();
    }
    worker_.finish();
}

bool LogTier::report(size_t objects_max, const std::function<bool(std::span<const TierObject>)>& part) const {
    std::vector<TierObject> objects;
    std::vector<char> texts;
    for (size_t number = 0; number < Index::kParts; ++number) {
        index_.collect(number, objects, texts);
        for (size_t at = 0; at < objects.size(); at += objects_max) {
            if (!part(std::span(objects).subspan(at, std::min(objects_max, objects.size() - at)))) return false;
        }
    }
    return true;
}

TierUsage LogTier::usage() const {
    TierUsage usage{.capacity_bytes = options_.capacity_bytes,
                    .objects = index_.values(),
                    .removals = index_.removals(),
                    .memory_bytes = index_.memory_bytes(),
                    .written_bytes = worker_.written_bytes,
                    .read_bytes = reader_.read_bytes,
                    .moved_bytes = worker_.moved_bytes,
                    .evicted = worker_.evicted,
                    .write_errors = worker_.errors,
                    .read_errors = reader_.errors,
                    .corrupt = reader_.corrupt,
                    .timed_out = reader_.timed_out,
                    .commits = worker_.commits};
    for (const auto& file : files_.all()) {
        ++usage.files;
        usage.used_bytes += file->bytes;
        usage.live_bytes += file->live_bytes;
    }
    return usage;
}

void LogTier::close() {
    std::deque<Request> waiting;
    {
        const Lock lock(mutex_);
        if (std::exchange(closed_, true)) return;
        waiting.swap(queue_);
        wake_.notify_all();
    }
    for (Request& request : waiting) {
        if (request.timer != 0) clock_.cancel(request.timer);
        refuse(request, error(Code::kCancelled, "closed"));
    }
    if (tidy_thread_.joinable()) {
        tidy_thread_.request_stop();
        tidy_thread_.join();
    }
    if (log_thread_.joinable()) log_thread_.join();
    reader_.close();
    clock_.stop();
}

/// What is left of a tier in a forked child: it has none of its threads, and does nothing. Not even its end: there is nobody to wait for.
class ForkAware final : public StorageTier {
public:
    explicit ForkAware(std::unique_ptr<StorageTier> tier) : tier_(std::move(tier)) {}
    ~ForkAware() override {
        if (forked()) (void)tier_.release();
    }

    Result<TierFound> recover() override {
        if (forked()) return fail(Code::kCancelled, "not in a forked child");
        return tier_->recover();
    }
    void write(std::span<TierWrite> objects, Deadline deadline, Completion& completion) override {
        if (!refused(objects, completion)) tier_->write(objects, deadline, completion);
    }
    void read(std::span<TierRead> objects, Deadline deadline, Completion& completion) override {
        if (!refused(objects, completion)) tier_->read(objects, deadline, completion);
    }
    void remove(std::span<TierRemove> objects, Completion& completion) override {
        if (!refused(objects, completion)) tier_->remove(objects, completion);
    }
    std::optional<TierObject> find(uint64_t generation, std::string& texts) const override {
        return forked() ? std::nullopt : tier_->find(generation, texts);
    }
    bool report(size_t objects_max, const std::function<bool(std::span<const TierObject>)>& part) const override {
        return !forked() && tier_->report(objects_max, part);
    }
    TierUsage usage() const override { return forked() ? TierUsage{} : tier_->usage(); }
    void close() override {
        if (!forked()) tier_->close();
    }

private:
    bool forked() const noexcept { return fork_generation() != born_; }
    template <typename Object>
    bool refused(std::span<Object> objects, Completion& completion) const {
        if (!forked()) return false;
        completion.add(static_cast<uint32_t>(objects.size()));
        for (size_t i = 0, count = objects.size(); i < count; ++i) {
            objects[i].result = Code::kCancelled;
            completion.fail(error(Code::kCancelled, "not in a forked child"));
        }
        return true;
    }

    const uint32_t born_ = fork_generation();
    std::unique_ptr<StorageTier> tier_;
};

}  // namespace

std::unique_ptr<StorageTier> make_log_tier(std::unique_ptr<Disk> disk, const LogTierOptions& options) {
    return std::make_unique<ForkAware>(std::make_unique<LogTier>(std::move(disk), options));
}

}  // namespace mooncake::store
