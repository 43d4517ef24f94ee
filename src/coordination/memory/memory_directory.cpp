// SPDX-License-Identifier: Apache-2.0
#include "coordination/memory/memory_directory.h"

#include <map>

#include "base/thread_annotations.h"

namespace mooncake {

namespace {

struct Entries {
    Mutex mutex;
    std::map<std::string, std::string> values MC_GUARDED_BY(mutex);
};

/// Never destroyed: engines in static objects may still use it while the process ends.
Entries& entries_of(const std::string& name) {
    static Mutex& mutex = *new Mutex;
    static auto& all = *new std::map<std::string, Entries>;
    Lock lock(mutex);
    return all[name];
}

class MemoryDirectory final : public Directory {
public:
    explicit MemoryDirectory(Entries& entries) : entries_(entries) {}

    Result<std::string> get(const std::string& key, Deadline) override {
        Lock lock(entries_.mutex);
        const auto found = entries_.values.find(key);
        if (found == entries_.values.end()) return fail(Code::kNotFound, "no key '{}' in the directory in memory", key);
        return found->second;
    }
    Result<> put(const std::string& key, const std::string& value, Deadline) override {
        Lock lock(entries_.mutex);
        entries_.values[key] = value;
        return {};
    }
    Result<> remove(const std::string& key, Deadline) override {
        Lock lock(entries_.mutex);
        entries_.values.erase(key);
        return {};
    }

private:
    Entries& entries_;
};

}  // namespace

std::unique_ptr<Directory> make_memory_directory(const std::string& name) { return std::make_unique<MemoryDirectory>(entries_of(name)); }

}  // namespace mooncake
