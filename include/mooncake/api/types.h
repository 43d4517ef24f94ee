// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "status.h"

// The plain data of the C++ interface. All of it is values.
namespace mooncake::api {

using SegmentID = uint64_t;
using SegmentHandle = SegmentID;
using BatchID = uint64_t;

inline constexpr SegmentID LOCAL_SEGMENT_ID = 0;  // our own
inline constexpr SegmentID INVALID_SEGMENT_ID = std::numeric_limits<SegmentID>::max();
inline constexpr BatchID INVALID_BATCH_ID = std::numeric_limits<BatchID>::max();

/// One contiguous piece to move: one task of a batch. The memory it names must stay valid until the task is finished.
struct TransferRequest {
    enum OpCode { READ, WRITE };  // READ: from the peer's memory to ours
    static constexpr uint64_t kNoTaskGroup = 0;

    OpCode opcode = READ;
    void* source = nullptr;  // our side, whatever the direction
    SegmentID target_id = 0;
    uint64_t target_offset = 0;  // an address in the peer's memory
    size_t length = 0;           // 0 moves nothing and completes
    // Accepted for the sake of existing callers; the engine decides these things itself.
    int advise_retry_cnt = 0;
    int transport_hint = 0;
    uint64_t task_group_id = kNoTaskGroup;
};

enum TransferStatusEnum { WAITING, PENDING, INVALID, CANCELED, COMPLETED, TIMEOUT, FAILED };

struct TransferStatus {
    TransferStatusEnum s = WAITING;
    size_t transferred_bytes = 0;
};

struct BufferEntry {
    void* addr = nullptr;
    size_t length = 0;
};

struct NicLoadStats {
    std::string device_name;
    uint64_t inflight_bytes = 0;
    double ewma_bandwidth_bps = 0;
};

/// The NICs for memory at one location: the near ones, and all the others to fall back on.
struct TopologyEntry {
    std::string name;  // the location: "cpu:0", "cuda:1"
    std::vector<std::string> preferred_hca;
    std::vector<std::string> avail_hca;
};

/// What lies where in this machine, as of the call that returned it.
struct Topology {
    std::map<std::string, TopologyEntry> matrix;  // by location
    std::vector<std::string> hca_list;            // every NIC
    std::string json;                             // {"cpu:0": [["mlx5_0"], ["mlx5_1"]], ...}

    bool empty() const { return matrix.empty(); }
    const std::map<std::string, TopologyEntry>& getMatrix() const { return matrix; }
    const std::vector<std::string>& getHcaList() const { return hca_list; }
    const std::string& toString() const { return json; }
};

/// A message to a peer's program.
struct NotifyDesc {
    std::string name;
    std::string notify_msg;
};

enum class PeerLiveness : uint8_t { Alive = 0, Unreachable = 1 };

struct AutoDiscoverConfig {
    bool enabled = false;
    std::string protocol;  // preferred between hosts; empty: the best there is
};

/// What a peer says about itself.
struct BufferDesc {
    std::string name;  // its location: "cpu:0", or "*"
    uint64_t addr = 0;
    uint64_t length = 0;
};
struct SegmentDesc {
    std::string name;
    std::vector<BufferDesc> buffers;
};

/// Fragments of one stretch of local memory and one of remote memory, moved together. Fragment i moves `lengths[i]` bytes
/// between `local_buffer + local_offsets[i]` and `remote_base_offset + remote_offsets[i]`. The three lists are equally long
/// and read only during submitScatter(); every fragment must lie inside [0, local_capacity) and [0, remote_size).
struct ScatterTransferRange {
    TransferRequest::OpCode opcode = TransferRequest::READ;
    std::string remote_segment;
    uint64_t remote_base_offset = 0;  // an address in the peer's memory
    uint64_t remote_size = 0;
    void* local_buffer = nullptr;
    size_t local_capacity = 0;
    std::span<const uint64_t> local_offsets;
    std::span<const uint64_t> remote_offsets;
    std::span<const uint64_t> lengths;
    /// Optional. Called once per fragment, with its number in the lists, on a thread that waits for the operation.
    std::function<void(size_t fragment, const Status& status)> on_fragment;
};

}  // namespace mooncake::api
