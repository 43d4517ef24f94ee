// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/quiescence.h"

namespace mooncake {

/// A value that many threads read without any lock or count, and that is replaced as a whole now and then. Readers are inside a Section of
/// the Quiescence given, and keep what they read until it ends. Who replaces it may be inside one, too. A lock of the owner's keeps the calls of
/// replace() and clean() apart.
template <typename T>
class Snapshot {
public:
    Snapshot(Quiescence& readers, std::unique_ptr<const T> first) : readers_(readers), current_(first.release()) {}
    /// Nobody reads any more.
    ~Snapshot() { delete current_.load(std::memory_order_relaxed); }
    Snapshot(const Snapshot&) = delete;
    Snapshot& operator=(const Snapshot&) = delete;

    /// Inside a Section.
    const T& get() const noexcept { return *current_.load(std::memory_order_seq_cst); }

    /// What it replaces is freed by a later call, when nobody reads it any more. Where there is no memory it throws, and nothing is replaced.
    void replace(std::unique_ptr<const T> next) {
        make_room();
        std::unique_ptr<const T> old(current_.exchange(next.release(), std::memory_order_seq_cst));
        readers_.open_now(room_);
        replaced_.push_back({.value = std::move(old), .read_by = std::move(room_)});
    }
    /// The next replace() does not throw. For who changes something else along with it.
    void make_room() {
        clean();
        replaced_.reserve(replaced_.size() + 1);
        room_.reserve(Quiescence::kSlots);
    }
    /// Frees what was replaced, if nobody reads it any more. False: somebody still reads some of it.
    bool clean() {
        std::erase_if(replaced_, [this](const Replaced& one) { return readers_.over(one.read_by); });
        return replaced_.empty();
    }

    /// Frees everything. Nobody reads any more, nor will.
    void clear() noexcept {
        delete current_.exchange(nullptr, std::memory_order_relaxed);
        replaced_.clear();
    }

private:
    struct Replaced {
        std::unique_ptr<const T> value;
        Quiescence::Open read_by;
    };

    Quiescence& readers_;
    std::atomic<const T*> current_;  // seq_cst, as Quiescence asks
    std::vector<Replaced> replaced_;
    Quiescence::Open room_;  // for the next one
};

}  // namespace mooncake
