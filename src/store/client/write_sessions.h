// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_annotations.h"
#include "store/client/client_core.h"
#include "store/client/partial_chunks.h"
#include "store/client/values.h"
#include "store/client/writer.h"

namespace mooncake::store {

/// Which bytes [0, length) of a value have been written. Not thread-safe.
class Coverage {
public:
    void add(uint64_t from, uint64_t to);
    bool covers(uint64_t length) const;

private:
    std::map<uint64_t, uint64_t> ranges_;  // start -> end; apart from each other
};

/// Parts of a value that are being written. Not thread-safe.
class PartsUnderWay {
public:
    /// False: one of them has some of these bytes.
    bool add(uint64_t from, uint64_t to);
    void remove(uint64_t from, uint64_t to);

private:
    std::map<uint64_t, uint64_t> parts_;  // start -> end; none is empty
};

/// Values that are written in parts, at places reserved before. A value becomes readable only if every byte of it was written.
/// Thread-safe.
class WriteSessions {
public:
    explicit WriteSessions(ClientCore& core) : core_(core) {}

    std::vector<StoreCode> open(std::span<const Reservation> values, const WriteConfig& config);
    std::vector<int64_t> write(std::span<const PartToWrite> parts);
    std::vector<StoreCode> close(std::span<const std::string_view> keys, bool revoke);
    /// All that are open.
    void revoke_all();

private:
    struct Session {
        std::string key;
        uint64_t epoch = 0, generation = 0, request_id = 0, length = 0;
        uint64_t turn = 0;  // of the right to write: in another one its range may be somebody else's
        BootTime until{};   // as StartedWrites::until
        std::vector<ReplicaLocation> replicas;
        // Guarded by the owner's mutex.
        Coverage coverage;
        PartsUnderWay under_way;
        std::vector<uint64_t> hashes;  // one per chunk; 0: written in pieces, so not known yet
        uint32_t parts_in_flight = 0;
        bool sealed = false, failed = false;
        std::vector<SegmentHandle> in_doubt;  // as WriteEnd::in_doubt
    };
    using Handle = std::shared_ptr<Session>;
    struct Closing {
        Handle session;
        size_t place = 0;  // in the caller's keys
        StoreCode code = StoreCode::kOk;
        uint64_t checksum = 0;
    };

    /// Begins a part: null if there is no such session, or it is closing, or some of these bytes are being written: which of two parts would come out on
    /// top, in which replica, nobody could say, and the value would have no hash.
    Handle begin(const PartToWrite& part);
    /// kOk: the session may still write.
    static StoreCode check(const Session& session, const WriteFence::Pass& right);
    /// Those that were started become sessions, unless their master is lost already.
    void adopt(const StartedWrites& started, std::span<const PutItem> items, uint64_t request_id, std::span<StoreCode> codes);
    void finish(Session& session, const PartToWrite& part, bool written, std::span<const SegmentHandle> in_doubt, const SeenPiece* seen);
    /// Seals the session and waits for its parts.
    Handle seal(std::string_view key);
    /// Hashes, from what lies in the segments, the chunks that were written in pieces.
    void complete_hashes(std::span<Closing> closing);
    void write_tables(std::span<Closing> closing);

    ClientCore& core_;
    Mutex mutex_;
    std::condition_variable_any quiet_;
    std::map<std::string, Handle, std::less<>> open_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
