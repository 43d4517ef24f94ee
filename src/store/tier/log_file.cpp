// SPDX-License-Identifier: Apache-2.0
#include "store/tier/log_file.h"

namespace mooncake::store::log {

void FileTable::add(std::shared_ptr<LogFile> file) {
    const uint32_t number = file->number;
    const Lock lock(mutex_);
    files_.emplace(number, std::move(file));
}

void FileTable::remove(uint32_t number) {
    std::shared_ptr<LogFile> last;  // closed without the lock
    const Lock lock(mutex_);
    if (const auto found = files_.find(number); found != files_.end()) {
        last = std::move(found->second);
        files_.erase(found);
    }
}

FileTable::Files FileTable::all() const {
    const Lock lock(mutex_);
    Files files;
    files.reserve(files_.size());
    for (const auto& [number, file] : files_) files.push_back(file);
    return files;
}

size_t FileTable::size() const {
    const Lock lock(mutex_);
    return files_.size();
}

uint64_t FileTable::bytes() const {
    const Lock lock(mutex_);
    uint64_t sum = 0;
    for (const auto& [number, file] : files_) sum += file->bytes.load(std::memory_order_relaxed);
    return sum;
}

void FileTable::add_unreadable(uint32_t number) {
    const Lock lock(mutex_);
    unreadable_.insert(number);
}

uint32_t FileTable::first_other(uint32_t low, uint32_t high, uint32_t own) const {
    const Lock lock(mutex_);
    if (const auto hidden = unreadable_.lower_bound(low); hidden != unreadable_.end() && *hidden <= high) return *hidden;
    auto found = files_.lower_bound(low);
    if (found != files_.end() && found->first == own) ++found;
    return found != files_.end() && found->first <= high ? found->first : 0;
}

bool FileTable::any_other(uint32_t low, uint32_t high, uint32_t own) const { return first_other(low, high, own) != 0; }

}  // namespace mooncake::store::log
