// SPDX-License-Identifier: Apache-2.0
#include "store/tier/testing/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mooncake::store {

class SimFile final : public DiskFile {
public:
    SimFile(std::shared_ptr<SimStore> store, SimStore::NodePtr node, std::string name, uint64_t life)
        : store_(std::move(store)), node_(std::move(node)), name_(std::move(name)), life_(life) {}

    void submit(DiskOp& op) override { store_->submit(node_, name_, op, life_); }
    uint64_t size() const override {
        const Lock lock(store_->mutex_);
        return node_->now.size();
    }
    Result<> truncate(uint64_t bytes) override {
        const Lock lock(store_->mutex_);
        const auto fault = store_->begin({SimStore::Action::kTruncate, name_, bytes, 0}, life_);
        if (fault.error != 0) return fail_errno(disk_code(fault.error), fault.error, "truncate");
        node_->now.resize(bytes);
        return {};
    }

private:
    const std::shared_ptr<SimStore> store_;
    const SimStore::NodePtr node_;
    const std::string name_;
    const uint64_t life_;
};

class SimMount final : public Disk {
public:
    SimMount(std::shared_ptr<SimStore> store, uint64_t life) : store_(std::move(store)), life_(life) {}
    ~SimMount() override {
        const Lock lock(store_->mutex_);
        if (locked_ && store_->locked_by_ == life_) store_->locked_by_ = 0;
    }

    Result<std::unique_ptr<DiskFile>> create(const std::string& name, uint64_t bytes) override {
        const Lock lock(store_->mutex_);
        const auto fault = store_->begin({SimStore::Action::kCreate, name, 0, static_cast<uint32_t>(bytes)}, life_);
        if (fault.error != 0) return fail_errno(disk_code(fault.error), fault.error, "create");
        if (store_->names_.contains(name)) return fail_errno(Code::kUnavailable, EEXIST, "create");
        auto node = std::make_shared<SimStore::Node>();
        node->now.resize(bytes);
        store_->names_[name] = node;
        return std::make_unique<SimFile>(store_, std::move(node), name, life_);
    }
    Result<std::unique_ptr<DiskFile>> open(const std::string& name) override {
        const Lock lock(store_->mutex_);
        const auto found = store_->names_.find(name);
        if (found == store_->names_.end()) return fail_errno(Code::kNotFound, ENOENT, "open");
        return std::make_unique<SimFile>(store_, found->second, name, life_);
    }
    Result<> remove(const std::string& name) override {
        const Lock lock(store_->mutex_);
        const auto fault = store_->begin({SimStore::Action::kRemove, name, 0, 0}, life_);
        if (fault.error != 0) return fail_errno(disk_code(fault.error), fault.error, "remove");
        if (store_->names_.erase(name) == 0) return fail_errno(Code::kNotFound, ENOENT, "remove");
        return {};
    }
    Result<> sync_names() override {
        const Lock lock(store_->mutex_);
        const auto fault = store_->begin({SimStore::Action::kSyncNames, "", 0, 0}, life_);
        if (fault.error != 0) return fail_errno(disk_code(fault.error), fault.error, "sync names");
        store_->synced_names_ = store_->names_;
        return {};
    }
    Result<std::vector<DiskEntry>> list() override {
        const Lock lock(store_->mutex_);
        std::vector<DiskEntry> entries;
        for (const auto& [name, node] : store_->names_) entries.push_back({name, node->now.size()});
        return entries;
    }
    Result<> lock() override {
        const Lock lock(store_->mutex_);
        if (store_->locked_by_ == store_->life_) return fail(Code::kBusy, "used by another");
        store_->locked_by_ = life_;
        locked_ = true;
        return {};
    }
    std::string_view kind() const override { return "simulated"; }

private:
    const std::shared_ptr<SimStore> store_;
    const uint64_t life_;
    bool locked_ = false;
};

std::unique_ptr<Disk> SimStore::mount() {
    const Lock lock(mutex_);
    return std::make_unique<SimMount>(shared_from_this(), life_);
}

void SimStore::set_plan(Plan plan) {
    const Lock lock(mutex_);
    plan_ = std::move(plan);
}

SimStore::Fault SimStore::begin(const Event& event, uint64_t life) {
    if (life != life_ || changes_ >= off_at_) return {.error = EIO};
    if (event.action != Action::kRead) ++changes_;
    return plan_ ? plan_(event) : Fault{};
}

int64_t SimStore::apply(Node& node, const DiskOp& op, uint32_t length) {
    if (op.kind == DiskOp::Kind::kSync) {
        node.synced = node.now;
        return 0;
    }
    if (op.kind == DiskOp::Kind::kWrite) {
        if (node.now.size() < op.offset + length) node.now.resize(op.offset + length);
        std::memcpy(node.now.data() + op.offset, op.memory, length);
        return length;
    }
    if (op.offset >= node.now.size()) return 0;
    length = static_cast<uint32_t>(std::min<uint64_t>(length, node.now.size() - op.offset));
    std::memcpy(op.memory, node.now.data() + op.offset, length);
    return length;
}

void SimStore::submit(const NodePtr& node, const std::string& name, DiskOp& op, uint64_t life) {
    const bool aligned = reinterpret_cast<uintptr_t>(op.memory) % kBlockBytes == 0 && op.length % kBlockBytes == 0 &&
                         op.offset % kBlockBytes == 0;
    MC_CHECK(aligned);
    constexpr Action kActions[] = {Action::kRead, Action::kWrite, Action::kSync};
    {
        const Lock lock(mutex_);
        const Fault fault = begin({kActions[static_cast<size_t>(op.kind)], name, op.offset, op.length}, life);
        if (fault.hold) {
            held_.emplace_back(node, &op);
            return;
        }
        op.result = fault.error != 0 ? -fault.error
                                     : apply(*node, op, fault.short_to != 0 ? std::min(fault.short_to, op.length) : op.length);
    }
    op.hook->on_done(op);
}

void SimStore::release_held() {
    std::vector<std::pair<NodePtr, DiskOp*>> held;
    {
        const Lock lock(mutex_);
        held.swap(held_);
        for (auto& [node, op] : held) op->result = apply(*node, *op, op->length);
    }
    for (auto& [node, op] : held) op->hook->on_done(*op);
}

size_t SimStore::held() const {
    const Lock lock(mutex_);
    return held_.size();
}

void SimStore::power_off_after(uint64_t changes) {
    const Lock lock(mutex_);
    off_at_ = changes_ + changes;
}

bool SimStore::is_off() const {
    const Lock lock(mutex_);
    return changes_ >= off_at_;
}

uint64_t SimStore::changes() const {
    const Lock lock(mutex_);
    return changes_;
}

void SimStore::crash(uint64_t seed) {
    const Lock lock(mutex_);
    std::mt19937_64 random(seed);
    Names after;
    for (const auto& [name, node] : synced_names_)
        if (names_.contains(name) || random() % 2 == 0) after[name] = node;
    for (const auto& [name, node] : names_)
        if (!synced_names_.contains(name) && random() % 2 == 0) after[name] = node;
    constexpr uint64_t kSector = 512;
    for (auto& [name, node] : after) {
        if (random() % 2 == 0) node->now.resize(node->synced.size());  // its length was not synced either
        node->synced.resize(node->now.size());
        for (uint64_t at = 0; at < node->now.size(); at += kBlockBytes) {
            const uint64_t end = std::min<uint64_t>(at + kBlockBytes, node->now.size());
            const uint64_t choice = random() % 3;  // new, old, torn
            for (uint64_t sector = at; sector < end; sector += kSector) {
                if (choice == 0 || (choice == 2 && random() % 2 == 0)) continue;
                std::memcpy(node->now.data() + sector, node->synced.data() + sector, std::min(kSector, end - sector));
            }
        }
        node->synced = node->now;
    }
    names_ = after;
    synced_names_ = after;
    ++life_;
    off_at_ = UINT64_MAX;
    plan_ = nullptr;
    locked_by_ = 0;
}

std::vector<std::string> SimStore::names() const {
    const Lock lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, node] : names_) names.push_back(name);
    return names;
}

std::vector<std::byte> SimStore::contents(const std::string& name) const {
    const Lock lock(mutex_);
    return names_.at(name)->now;
}

void SimStore::set_contents(const std::string& name, std::vector<std::byte> bytes) {
    const Lock lock(mutex_);
    NodePtr& node = names_[name];
    if (node == nullptr) node = std::make_shared<Node>();
    node->now = node->synced = std::move(bytes);
    synced_names_ = names_;
}

}  // namespace mooncake::store
