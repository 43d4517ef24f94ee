// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/fork.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "store/node/warm_journal.h"

namespace mooncake::store {

/// A directory with the memory of a node and its journal, which outlive the process. Nobody else may use it meanwhile. Not thread-safe, but for what the journal calls.
class WarmMemory final : private JournalFile {
public:
    /// Finds what an earlier life left there for a segment of so many bytes, or makes it. kInvalidArgument: no directory of ours on a tmpfs. kBusy: another process
    /// uses it. kNoSpace: the file system has no room.
    static Result<std::unique_ptr<WarmMemory>> open(const std::string& directory, uint64_t segment_bytes);
    ~WarmMemory() override;
    WarmMemory(const WarmMemory&) = delete;
    WarmMemory& operator=(const WarmMemory&) = delete;

    const ClientId& client() const noexcept { return header_.client; }
    const SegmentId& segment() const noexcept { return header_.segment; }
    /// An earlier life left it.
    bool found() const noexcept { return found_; }
    /// How that one stood with its masters. Reads the journal for it, once.
    const Standing& standing();
    /// It is of no use: begins anew, as another client with other memory.
    Result<> forget();

    Result<SharedMemory> map() const;
    /// Tells the catalogue, which has the segment already, what lies there, and begins to write down what follows. Once. Nothing: it was not found, but made.
    Result<std::optional<FormerLife>> restore(Catalogue& catalogue, Time now);
    /// After restore().
    WarmJournal& journal() noexcept { return *journal_; }
    /// Removes the files; what is mapped lives until it is not. Idempotent.
    void remove() noexcept;

    struct Cleaned {
        uint64_t bytes = 0;
    };
    /// What a node that is gone has left there. kBusy: it is not; kNotFound: there is no such directory.
    static Result<Cleaned> clean(const std::string& directory);

private:
    WarmMemory(std::string path, UniqueFd folder) : path_(std::move(path)), folder_(std::move(folder)) { close_in_child(folder_.get()); }

    Result<> find(uint64_t segment_bytes);
    Result<> make(uint64_t segment_bytes);
    Result<UniqueFd> open_file(const char* name, int flags) const;

    Result<> append(std::span<const std::byte> bytes) override;
    Result<> begin_anew() override;
    Result<> commit() override;
    void discard() noexcept override { remove(); }

    const std::string path_;  // for people
    const UniqueFd folder_;   // locked
    warm::Header header_;
    UniqueFd segment_, old_journal_;  // as found
    Mapping journal_bytes_;
    bool found_ = false;
    bool standing_read_ = false;
    Standing standing_;
    UniqueFd file_;     // that is appended to
    uint64_t end_ = 0;  // of it
    std::unique_ptr<WarmJournal> journal_;
};

}  // namespace mooncake::store
