// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/completion.h"
#include "base/gate.h"
#include "transport/transport.h"

namespace mooncake::fabric {

/// What ended while a rail or a peer was locked: told to the completions when no lock is held any more, because their owners may then do
/// anything, also submit the next. Whoever made it calls fire(), or lets it go, outside all locks. Not thread-safe.
class Endings {
public:
    Endings() = default;
    ~Endings() { fire(); }
    Endings(const Endings&) = delete;
    Endings& operator=(const Endings&) = delete;

    void succeed(Completion& completion, uint64_t bytes) {
        if (!entries_.empty() && entries_.back().completion == &completion && !entries_.back().error) {
            entries_.back().bytes += bytes;
            ++entries_.back().operations;
            return;
        }
        entries_.push_back({.completion = &completion, .bytes = bytes, .operations = 1, .error = std::nullopt});
    }
    /// To be looked at before anybody is told.
    void show(Copier& copier, const std::byte* local, uint64_t length) { unseen_.push_back({&copier, local, length}); }
    void fail(Completion& completion, Error error) {
        entries_.push_back({.completion = &completion, .bytes = 0, .operations = 1, .error = std::move(error)});
    }
    /// Keeps the owner of the gate from going away before fire().
    void hold(Gate& gate) {
        if (!passes_.empty() && last_gate_ == &gate) return;
        last_gate_ = &gate;
        passes_.push_back(gate.enter());
    }
    bool empty() const noexcept { return entries_.empty(); }

    void fire() {
        for (const Unseen& bytes : unseen_) bytes.show();
        unseen_.clear();
        for (Entry& entry : entries_) {
            if (entry.error) entry.completion->fail(std::move(*entry.error), entry.operations);
            else entry.completion->succeed(entry.bytes, entry.operations);
        }
        entries_.clear();
        passes_.clear();
    }

private:
    struct Entry {
        Completion* completion = nullptr;
        uint64_t bytes = 0;
        uint32_t operations = 0;
        std::optional<Error> error;
    };

    std::vector<Entry> entries_;
    std::vector<Unseen> unseen_;
    std::vector<Gate::Pass> passes_;
    Gate* last_gate_ = nullptr;
};

}  // namespace mooncake::fabric
