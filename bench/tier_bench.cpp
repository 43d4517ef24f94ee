// SPDX-License-Identifier: Apache-2.0
// The SSD tier against a plain loop over a file of the same device: the same block size, the same number of blocks under way, O_DIRECT, in turns in one run. The
// loop has no checksums, no index and no copies.
//   tier_bench FOLDER [REPEATS] [MIB]
//   tier_bench FOLDER restart [VALUES]: how long a tier with so many small values takes to start
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/completion.h"
#include "base/unique_fd.h"
#include "store/tier/arena.h"
#include "store/tier/log_tier.h"
#include "store/tier/posix_files.h"
#include "store/tier/transfer.h"

using namespace mooncake;
using namespace mooncake::store;

namespace {

struct Shape {
    const char* name;
    uint64_t block;
    size_t depth;
};
constexpr Shape kShapes[] = {
    {"4 KiB x64", 4 << 10, 64}, {"64 KiB x32", 64 << 10, 32}, {"1 MiB x16", 1 << 20, 16}, {"4 MiB x8", 4 << 20, 8}};

double seconds_since(Time begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Done final : TransferHook {
    void on_transferred(Transfer&, int error) noexcept override {
        if (error != 0) std::abort();
        completion.succeed(0);
    }
    Transfer transfer;
    Completion completion;
};

/// A file that is read and written by `depth` ops at a time, through the same kind of disk as the tier's.
class PlainLoop {
public:
    PlainLoop(const std::string& folder, uint64_t bytes) : disk_(*open_disk({.path = folder})), bytes_(bytes) { make_file(); }
    ~PlainLoop() {
        file_ = nullptr;
        (void)disk_->remove("plain");
    }
    /// Bytes per second.
    double run(DiskOp::Kind kind, const Shape& shape, const std::vector<uint64_t>& order) {
        const Pages pages = *Pages::create(shape.block * shape.depth);
        std::vector<Done> slots(shape.depth);
        const Time begin = Clock::now();
        if (kind == DiskOp::Kind::kWrite) make_file();  // a log writes to fresh files, too
        for (size_t i = 0; i < order.size(); ++i) {
            Done& slot = slots[i % shape.depth];
            slot.completion.wait(Deadline::never());
            slot.completion.reset();
            slot.completion.add(1);
            slot.transfer.start(*file_, kind, order[i] * shape.block, pages.data() + (i % shape.depth) * shape.block, shape.block, slot);
        }
        for (Done& slot : slots) slot.completion.wait(Deadline::never());
        if (kind == DiskOp::Kind::kWrite && !sync_and_wait(*file_)) std::abort();
        return static_cast<double>(order.size() * shape.block) / seconds_since(begin);
    }

private:
    void make_file() {
        file_ = nullptr;
        (void)disk_->remove("plain");
        file_ = std::move(*disk_->create("plain", bytes_));
    }

    std::unique_ptr<Disk> disk_;
    std::unique_ptr<DiskFile> file_;
    const uint64_t bytes_;
};

class TierLoop {
public:
    TierLoop(const std::string& folder, uint64_t bytes) {
        LogTierOptions options;
        options.capacity_bytes = 6 * bytes;
        options.file_bytes = std::max<uint64_t>(bytes / 4, 64 << 20);
        tier_ = make_log_tier(*open_disk({.path = folder}), options);
        if (!tier_->recover()) std::abort();
    }
    void name_keys(size_t count) {
        keys_.clear();
        for (size_t i = 0; i < count; ++i) keys_.push_back("a key of some length, number " + std::to_string(i));
    }
    double write(const Shape& shape, const std::byte* values) {
        ++generation_;
        const Time begin = Clock::now();
        const size_t batch = shape.depth;
        std::vector<TierWrite> writes(keys_.size());
        Completion completion;
        for (size_t i = 0; i < keys_.size(); ++i) {
            writes[i].object = {.tenant = "default", .key = keys_[i], .length = shape.block, .generation = generation_};
            writes[i].value = {values + (i % batch) * shape.block, shape.block};
        }
        for (size_t i = 0; i < keys_.size(); i += batch) {
            tier_->write(std::span(writes).subspan(i, std::min(batch, keys_.size() - i)), Deadline::never(), completion);
        }
        completion.wait(Deadline::never());
        if (completion.failed()) std::fprintf(stderr, "write: %s\n", completion.result().error().to_string().c_str());
        return static_cast<double>(keys_.size() * shape.block) / seconds_since(begin);
    }
    double read(const Shape& shape, const std::vector<uint64_t>& order, bool direct) {
        const Pages pages = *Pages::create(shape.block * shape.depth);
        std::vector<TierRead> reads(shape.depth);
        std::vector<Completion> slots(shape.depth);
        const Time begin = Clock::now();
        for (size_t i = 0; i < order.size(); ++i) {
            const size_t slot = i % shape.depth;
            slots[slot].wait(Deadline::never());
            slots[slot].reset();
            reads[slot] = {.tenant = "default",
                           .key = keys_[order[i]],
                           .into = pages.bytes().subspan(slot * shape.block, shape.block),
                           .direct = direct};
            tier_->read(std::span(&reads[slot], 1), Deadline::after(30s), slots[slot]);
        }
        for (Completion& slot : slots) slot.wait(Deadline::never());
        return static_cast<double>(order.size() * shape.block) / seconds_since(begin);
    }
    StorageTier& tier() { return *tier_; }

private:
    std::unique_ptr<StorageTier> tier_;
    std::vector<std::string> keys_;
    uint64_t generation_ = 0;
};

void compare(const std::string& folder, const Shape& shape, size_t repeats, uint64_t bytes) {
    bytes = std::min<uint64_t>(bytes, shape.block * 65536);
    std::vector<uint64_t> order(bytes / shape.block);
    std::iota(order.begin(), order.end(), 0);
    std::vector<uint64_t> shuffled = order;
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(1));
    Pages values = *Pages::create(shape.block * shape.depth);
    std::mt19937_64 random(2);
    for (uint64_t at = 0; at < values.size(); at += 8) *reinterpret_cast<uint64_t*>(values.data() + at) = random();
    PlainLoop plain(folder, bytes);
    TierLoop tier(folder, bytes);
    tier.name_keys(order.size());
    struct Row {
        const char* name;
        std::vector<double> ours, limit, ratio;
    } rows[] = {{"write", {}, {}, {}}, {"read", {}, {}, {}}, {"read direct", {}, {}, {}}};
    for (size_t repeat = 0; repeat < repeats; ++repeat) {
        const auto add = [](Row& row, double ours, double limit) {
            row.ours.push_back(ours / 1e9);
            row.limit.push_back(limit / 1e9);
            row.ratio.push_back(ours / limit);
        };
        add(rows[0], tier.write(shape, values.data()), plain.run(DiskOp::Kind::kWrite, shape, order));
        add(rows[1], tier.read(shape, shuffled, false), plain.run(DiskOp::Kind::kRead, shape, shuffled));
        add(rows[2], tier.read(shape, shuffled, true), plain.run(DiskOp::Kind::kRead, shape, shuffled));
    }
    for (const Row& row : rows) {
        std::printf("%-12s %-12s ours %6.2f GB/s  plain loop %6.2f GB/s  ratio %.2f\n", row.name, shape.name, median(row.ours),
                    median(row.limit), median(row.ratio));
    }
    const TierUsage usage = tier.tier().usage();
    std::printf("%-12s %-12s %llu values in %llu bytes of memory each\n", "index", shape.name,
                static_cast<unsigned long long>(usage.objects),
                static_cast<unsigned long long>(usage.memory_bytes / std::max<uint64_t>(usage.objects, 1)));
    std::fflush(stdout);
}

void measure_restart(const std::string& folder, size_t count) {
    constexpr size_t kBatch = 8192;
    LogTierOptions options;
    options.capacity_bytes = 2 * count * (kBlockBytes + 256) + (1ull << 30);
    options.objects_max = 2 * count;
    auto tier = make_log_tier(*open_disk({.path = folder}), options);
    if (!tier->recover()) std::abort();
    const std::vector<std::byte> value(100, std::byte{7});
    for (size_t done = 0; done < count; done += kBatch) {
        std::vector<std::string> keys;
        std::vector<TierWrite> writes(std::min(kBatch, count - done));
        for (size_t i = 0; i < writes.size(); ++i) keys.push_back("a key of some length, number " + std::to_string(done + i));
        for (size_t i = 0; i < writes.size(); ++i) {
            writes[i].object = {.tenant = "default", .key = keys[i], .length = value.size(), .generation = 1};
            writes[i].value = value;
        }
        Completion completion;
        tier->write(writes, Deadline::never(), completion);
        completion.wait(Deadline::never());
        if (completion.failed()) std::abort();
    }
    tier = nullptr;
    tier = make_log_tier(*open_disk({.path = folder}), options);
    const Time begin = Clock::now();
    const auto found = tier->recover();
    const double seconds = seconds_since(begin);
    const TierUsage usage = tier->usage();
    std::printf("restart      %llu values in %llu files: %.2f s; %llu bytes of memory each\n",
                static_cast<unsigned long long>(found->objects), static_cast<unsigned long long>(found->files), seconds,
                static_cast<unsigned long long>(usage.memory_bytes / std::max<uint64_t>(usage.objects, 1)));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "tier_bench FOLDER [REPEATS] [MIB]\n");
        return 2;
    }
    if (argc > 2 && std::string(argv[2]) == "restart") {
        std::string folder = std::string(argv[1]) + "/tier_bench_XXXXXX";
        if (::mkdtemp(folder.data()) == nullptr) return 1;
        measure_restart(folder, argc > 3 ? static_cast<size_t>(std::atoll(argv[3])) : 1'000'000);
        return std::system(("rm -rf '" + folder + "'").c_str()) == 0 ? 0 : 1;
    }
    const size_t repeats = argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 5;
    const uint64_t bytes = (argc > 3 ? static_cast<uint64_t>(std::atoi(argv[3])) : 512) << 20;
    for (const Shape& shape : kShapes) {
        std::string folder = std::string(argv[1]) + "/tier_bench_XXXXXX";
        if (::mkdtemp(folder.data()) == nullptr) return 1;
        compare(folder, shape, repeats, bytes);
        if (std::system(("rm -rf '" + folder + "'").c_str()) != 0) return 1;
    }
    return 0;
}
