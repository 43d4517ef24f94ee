// SPDX-License-Identifier: Apache-2.0
#include "store/node/node.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/incarnation.h"
#include "base/log.h"
#include "base/thread.h"
#include "store/protocol/tiers.h"

namespace mooncake::store {

namespace {

constexpr int kSharersMax = 64;  // of one directory

}  // namespace

Node::Node(PoolAccess& pool, NodeConfig config) : pool_(pool), config_(config), copies_(pool, config.checksum) {}

void Node::stop() {
    gate_.close();
    copies_.stop();
    if (disk_) disk_->stop();
    std::jthread thread;
    {
        Lock lock(leaving_mutex_);
        thread = std::move(leaving_thread_);
    }
}

void Node::close() {
    if (fork_generation() != born_) return;
    stop();
    if (disk_) disk_->close();
}

MountedSegments Node::open_disk(const DiskConfig& config, const std::string& protocol) {
    const auto pass = enter();
    if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus};
    if (disk_) return {.code = StoreCode::kSegmentAlreadyExists};
    auto disk = NodeDisk::open(pool_, config, protocol);
    // Processes of one host are often given the same directory.
    for (int number = 1; !disk && disk.error().code() == Code::kBusy && !config.path.empty() && number <= kSharersMax; ++number) {
        DiskConfig own = config;
        own.path = format_text("{}/node-{}", config.path, number);
        if (::mkdir(own.path.c_str(), 0700) != 0 && errno != EEXIST) break;
        disk = NodeDisk::open(pool_, own, protocol);
        if (disk) MC_LOG_INFO("{} is used by another process; this one uses {}", config.path, own.path);
    }
    if (!disk) {
        const Code code = disk.error().code();
        const bool wrong = code == Code::kInvalidArgument || code == Code::kBusy || code == Code::kCorrupt;
        MC_LOG_ERROR("{}: {}", wrong ? "no values on disk" : "the disk cannot be used, values stay in memory", disk.error().to_string());
        return {.code = wrong ? StoreCode::kInvalidParams : StoreCode::kOk};
    }
    disk_ = std::move(*disk);
    const SegmentSpec& spec = disk_->spec();
    holdings_.add_disk(disk_->holdings());
    holdings_.add_segment(spec);
    pool_.local.add({.spec = spec, .base = nullptr, .size = 0, .memory = nullptr, .disk = disk_});
    return {.code = StoreCode::kOk, .segments = {spec.id}, .bytes = spec.size};
}

void Node::copy_ordered(const CopyOrder& order) {
    if (!is_tier_task(order.task)) return copies_.add(order);
    if (disk_) disk_->copy_ordered(order);
}

void Node::master_lost() {
    copies_.master_lost();
    if (disk_) disk_->master_lost();
}

void Node::master_found(uint64_t epoch) {
    if (disk_) disk_->master_found(epoch);
}

MountedSegments Node::mount(Result<std::shared_ptr<LentMemory>> memory, std::string_view protocol) {
    MountedSegments mounted;
    if (!memory) {
        MC_LOG_ERROR("no memory for a segment: {}", memory.error().to_string());
        mounted.code = memory.error().code() == Code::kInvalidArgument ? StoreCode::kInvalidParams : StoreCode::kInternalError;
        return mounted;
    }
    return mount(lend({.high = random_u64(), .low = random_u64()}, std::move(*memory), protocol));
}

/// Known here before anybody can be told of it.
SegmentSpec Node::lend(const SegmentId& id, std::shared_ptr<LentMemory> memory, std::string_view protocol) {
    std::byte* const base = memory->base();
    const bool of_file = memory->of_file();
    const SegmentSpec spec{.id = id,
                           .name = pool_.name,
                           .base = reinterpret_cast<uint64_t>(base),
                           .size = memory->size(),
                           .endpoint = pool_.engine->segment_name(),
                           .protocol = std::string(protocol),
                           .incarnation = pool_.engine->incarnation()};
    pool_.local.add({.spec = spec, .base = base, .size = spec.size, .memory = std::move(memory), .of_file = of_file});
    return spec;
}

MountedSegments Node::mount(const SegmentSpec& spec) {
    MountedSegments mounted;
    const auto said = pool_.membership().mount(spec, pool_.rpc_deadline());
    mounted.code = said ? *said : pool_.code_of(said.error());
    if (mounted.code != StoreCode::kOk) {
        MC_LOG_ERROR("a segment of {} bytes is not mounted: {}", spec.size,
                     said ? std::string(store_code_name(*said)) : said.error().to_string());
        pool_.local.remove(spec.id);
        return mounted;
    }
    mounted.segments.push_back(spec.id);
    mounted.bytes = spec.size;
    return mounted;
}

Result<std::optional<FormerLife>> Node::open_warm(std::unique_ptr<WarmMemory> warm, const std::string& protocol) {
    const Time began = Clock::now();
    MC_ASSIGN_OR_RETURN(SharedMemory mapped, warm->map());
    MC_ASSIGN_OR_RETURN(auto memory, LentMemory::adopt(pool_.engine, std::move(mapped), config_.pages));
    warm_ = std::move(warm);
    warm_spec_ = lend(warm_->segment(), std::move(memory), protocol);
    catalogue_.add_segment(warm_spec_);
    MC_ASSIGN_OR_RETURN(auto restarted, warm_->restore(catalogue_, began));
    holdings_.write_to(warm_->journal(), warm_spec_.id);
    if (restarted)
        MC_LOG_INFO("an earlier process left {} values in {} bytes of memory; read in {} ms", catalogue_.objects(), warm_spec_.size,
                    (Clock::now() - began) / 1ms);
    return restarted;
}

MountedSegments Node::mount_warm() {
    const auto pass = enter();
    if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus};
    return mount(warm_spec_);  // known already, perhaps, by a report
}

MountedSegments Node::mount_file(const FileToMount& file) {
    const auto pass = enter();
    if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus};
    if (file.path.find('\0') != std::string::npos) return {.code = StoreCode::kInvalidParams};  // the system would open another one
    return mount(LentMemory::map_file(pool_.engine, file.path, file.offset, file.size, file.location), file.protocol);
}

MountedSegments Node::mount_memory(uint64_t bytes, std::string_view protocol, std::string_view location) {
    const auto pass = enter();
    if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus};
    if (bytes == 0) return {.code = StoreCode::kInvalidParams};
    return mount(LentMemory::allocate(pool_.engine, bytes, std::string(location), config_.pages), protocol);
}

StoreCode Node::unmount(std::span<const SegmentId> segments, Duration grace) {
    const auto pass = enter();
    if (!pass) return StoreCode::kUnavailableInCurrentStatus;
    for (const SegmentId& id : segments)
        if (!pool_.local.find(id)) return StoreCode::kSegmentNotFound;
    StoreCode first = StoreCode::kOk;
    for (const SegmentId& id : segments) {
        const auto said = pool_.membership().unmount(id, grace, pool_.rpc_deadline());
        const StoreCode code = said ? *said : pool_.code_of(said.error());
        // A master that does not know it any more has taken it out of the pool: as good as asked for.
        if (code != StoreCode::kOk && code != StoreCode::kSegmentNotFound) {
            if (first == StoreCode::kOk) first = code;
            continue;
        }
        if (grace > Duration::zero()) leave_later(id, grace);
        else pool_.local.remove(id);  // freed when the last copy of ours has ended, behind the engine's fence
    }
    return first;
}

void Node::leave_later(const SegmentId& segment, Duration grace) {
    Lock lock(leaving_mutex_);
    leaving_.push_back({.at = Clock::now() + grace, .segment = segment});
    if (!leaving_thread_.joinable()) {
        auto started = try_start_thread("mc-store-leave", [this](const std::stop_token& stop) { give_back_in_time(stop); });
        if (started) leaving_thread_ = std::move(*started);
        else MC_LOG_WARNING_EVERY(10s, "memory of a segment stays until another leaves: {}", started.error().to_string());
    }
    leaving_changed_.notify_all();
}

std::vector<Node::Leaving> Node::wait_for_leaving(const std::stop_token& stop) {
    std::vector<Leaving> over;
    std::unique_lock lock(leaving_mutex_);
    while (over.empty() && !stop.stop_requested()) {
        const Time now = Clock::now();
        Time next = Time::max();
        for (const Leaving& one : leaving_) {
            if (one.at <= now) over.push_back(one);
            else next = std::min(next, one.at);
        }
        std::erase_if(leaving_, [now](const Leaving& one) { return one.at <= now; });
        if (!over.empty()) break;
        const size_t known = leaving_.size();
        const auto more = [&]() MC_NO_THREAD_ANALYSIS { return leaving_.size() != known; };
        if (next == Time::max()) leaving_changed_.wait(lock, stop, more);
        else leaving_changed_.wait_until(lock, stop, next, more);
    }
    return over;
}

void Node::give_back_in_time(const std::stop_token& stop) {
    // Giving back waits for the engine's fence, so it is not done under the lock.
    while (!stop.stop_requested())
        for (const Leaving& one : wait_for_leaving(stop)) pool_.local.remove(one.segment);
}

}  // namespace mooncake::store
