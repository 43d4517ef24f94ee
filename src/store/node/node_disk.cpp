// SPDX-License-Identifier: Apache-2.0
#include "store/node/node_disk.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/incarnation.h"
#include "base/log.h"
#include "net/address.h"
#include "store/node/disk_identity.h"

namespace mooncake::store {

namespace {

constexpr uint64_t kCapacityMin = 16 << 20;
constexpr Duration kDescribePatience = 2s;

/// What may be used of the file system, counting what is used of it already.
Result<uint64_t> usable_bytes(const std::string& path, uint64_t used) {
    struct statvfs status {};
    if (::statvfs(path.c_str(), &status) != 0) return fail_errno(Code::kInvalidArgument, errno, "cannot examine {}", path);
    const uint64_t free = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
    return (free + used) / 10 * 9;
}

Result<uint64_t> capacity_of(const DiskConfig& config, Disk& disk) {
    if (config.capacity_bytes != 0) return config.capacity_bytes;
    uint64_t used = 0;
    MC_ASSIGN_OR_RETURN(const auto entries, disk.list());
    for (const DiskEntry& entry : entries) used += entry.bytes;
    return usable_bytes(config.path, used);
}

Result<std::unique_ptr<StorageTier>> make_tier(const DiskConfig& config, TierObserver& observer) {
    if (config.make_tier) return config.make_tier(observer);
    MC_ASSIGN_OR_RETURN(auto disk, open_disk({.path = config.path, .kind = config.kind}));
    MC_ASSIGN_OR_RETURN(const uint64_t capacity, capacity_of(config, *disk));
    if (capacity < kCapacityMin)
        return fail(Code::kInvalidArgument, "{} has room for {} bytes; at least {} are needed", config.path, capacity, kCapacityMin);
    return make_log_tier(std::move(disk), {.capacity_bytes = capacity,
                                           .high_watermark = config.high_watermark,
                                           .low_watermark = config.low_watermark,
                                           .eviction = config.eviction,
                                           .objects_max = config.objects_max,
                                           .observer = &observer});
}

StoreCode code_of(Code code) {
    switch (code) {
        case Code::kOk: return StoreCode::kOk;
        case Code::kNotFound: return StoreCode::kObjectNotFound;
        case Code::kInvalidArgument: return StoreCode::kInvalidParams;
        case Code::kCorrupt: return StoreCode::kChecksumMismatch;
        case Code::kBusy: return StoreCode::kNoAvailableHandle;
        case Code::kCancelled: return StoreCode::kUnavailableInCurrentStatus;
        default: return StoreCode::kInvalidRead;
    }
}

}  // namespace

NodeDisk::NodeDisk(PoolAccess& pool)
    : pool_(pool), metrics_(pool.metrics),
      teller_(pool, {.idle = [this] { show_usage(); }, .is_back = [this](uint64_t generation) { return is_back(generation); }}) {}

bool NodeDisk::is_back(uint64_t generation) const {
    std::string texts;
    return open_.load(std::memory_order_acquire) && tier_->find(generation, texts).has_value();
}

void NodeDisk::show_usage() {
    if (open_.load(std::memory_order_acquire)) metrics_.show(tier_->usage());
}

Result<std::shared_ptr<NodeDisk>> NodeDisk::open(PoolAccess& pool, const DiskConfig& config, const std::string& protocol) {
    std::shared_ptr<NodeDisk> disk(new NodeDisk(pool));
    MC_RETURN_IF_ERROR(disk->start(config, protocol));
    return disk;
}

Result<> NodeDisk::start(const DiskConfig& config, const std::string& protocol) {
    MC_ASSIGN_OR_RETURN(tier_, make_tier(config, *this));
    const auto recovered = tier_->recover();
    if (!recovered) return Unexpected(Error(recovered.error()).with_context(config.path));
    found_ = recovered->objects;
    open_.store(true, std::memory_order_release);
    if (config.path.empty()) {
        spec_.id = {.high = random_u64(), .low = random_u64() | 1};
    } else {
        auto id = disk_identity(config.path);
        if (!id && id.error().code() == Code::kCorrupt) return Unexpected(std::move(id).error().with_context(config.path));
        // A disk that cannot be written to may still be read; after a restart it is another one.
        if (!id) MC_LOG_WARNING("{}: {}", config.path, id.error().to_string());
        spec_.id = id ? *id : SegmentId{.high = random_u64(), .low = random_u64() | 1};
    }
    spec_.name = pool_.name;
    spec_.size = tier_->usage().capacity_bytes;
    spec_.endpoint = pool_.engine->segment_name();
    spec_.protocol = protocol;
    spec_.incarnation = pool_.engine->incarnation();
    spec_.kind = SegmentKind::kDisk;
    teller_.speak_for(spec_.id);
    MC_RETURN_IF_ERROR(serve(config));
    contents_ = std::make_unique<DiskContents>(*tier_, spec_, metrics_,
                                               [this](std::span<const TierObject> objects) { teller_.gone(objects); });
    orders_ = std::make_unique<TierOrders>(TierOrders::Setup{
        .pool = pool_, .tier = *tier_, .contents = *contents_, .teller = teller_, .metrics = metrics_, .reads = reads_, .disk = spec_.id});
    MC_LOG_INFO("the disk {} lends {} bytes and holds {} values; {} answers readers", config.path, spec_.size, found_, spec_.service);
    return {};
}

Result<> NodeDisk::serve(const DiskConfig& config) {
    MC_ASSIGN_OR_RETURN(
        service_, StageService::create({.engine = pool_.engine, .tier = *tier_, .metrics = metrics_, .reads = reads_, .segment = spec_.id},
                                       {.arena = {.bytes_max = config.staging_bytes}, .lease = config.staging_lease}));
    // Where the engine says that it listens: its name may be one that only a directory knows.
    const auto own = pool_.engine->describe(pool_.engine->segment_name(), 0, Deadline::after(kDescribePatience));
    const std::string host = own && !own->host.empty() ? own->host : pool_.host;
    spec_.service = net::join_host_port(host, service_->port());
    return {};
}

void NodeDisk::on_gone(std::span<const TierObject> objects) noexcept {
    metrics_.gone.add(objects.size());
    teller_.gone(objects);
}

void NodeDisk::master_lost() {
    orders_->master_lost();
    teller_.master_lost();
}

void NodeDisk::read(std::span<DiskRead> reads, Deadline deadline) {
    std::vector<TierRead> wanted;
    std::vector<std::string> texts(reads.size());
    wanted.reserve(reads.size());
    std::vector<size_t> which;
    for (size_t i = 0; i < reads.size(); ++i) {
        const auto object = tier_->find(reads[i].generation, texts[i]);
        reads[i].code = object && object->key == reads[i].key ? StoreCode::kOk : StoreCode::kObjectNotFound;
        if (reads[i].code != StoreCode::kOk) continue;
        wanted.push_back({.tenant = object->tenant,
                          .key = object->key,
                          .generation = reads[i].generation,
                          .offset = reads[i].offset,
                          .into = reads[i].into});
        which.push_back(i);
    }
    reads_.begin(wanted.size());
    Completion completion;
    tier_->read(wanted, deadline, completion);
    completion.wait(Deadline::never());
    reads_.end(wanted.size());
    metrics_.local_reads.add(wanted.size());
    for (size_t n = 0; n < wanted.size(); ++n) reads[which[n]].code = code_of(wanted[n].result);
}

void NodeDisk::stop() {
    if (service_) service_->stop();
    if (orders_) orders_->stop();
    teller_.stop();
}

void NodeDisk::close() {
    stop();
    if (contents_) contents_->stop();
    if (tier_) tier_->close();
    service_.reset();  // gives the staging memory back: the disk writes there no more
}

}  // namespace mooncake::store
