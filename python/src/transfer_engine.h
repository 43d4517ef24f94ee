// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arguments.h"
#include "completion_port.h"
#include "engine/engine.h"
#include "engine/managed_buffers.h"
#include "interpreter.h"

namespace mooncake::python {

/// What get_engine() hands out: shares the engine with other modules of this package, which may keep it longer than the
/// TransferEngine it came from.
struct InnerEngine {
    EngineRef engine;
};

class PreparedCalls;

/// The Python class TransferEngine. Every method is entered and left with the interpreter lock, which guards the fields, and
/// gives it up wherever it may block. The engine, once there, stays until the object goes: calls need no reference of their own.
///
/// Answers: 0 or a negative number, or 0 for "none" where an id or an address is asked for; RuntimeError where neither fits;
/// TypeError and ValueError for arguments that make no sense.
class TransferEngine {
public:
    TransferEngine();
    ~TransferEngine();
    TransferEngine(const TransferEngine&) = delete;
    TransferEngine& operator=(const TransferEngine&) = delete;

    // ---- life
    using Text = std::string;
    int initialize(const Text& local_hostname, const Text& metadata_server, const Text& protocol, const std::optional<Text>& device_name);
    int initialize_ext(const Text& local_hostname, const Text& metadata_server, const Text& protocol,
                       const std::optional<Text>& device_name, const Text& metadata_type);
    /// RuntimeError if another process may still access our memory; everything else is done then.
    void close();

    // ---- identity
    int get_rpc_port();
    InnerEngine get_engine();
    uintptr_t get_engine_ptr();
    Text get_local_topology(const std::optional<Text>& device_name);
    Text get_metrics();

    // ---- memory
    int register_memory(nb::handle buffer, nb::handle capacity, const Text& location);
    int unregister_memory(nb::handle buffer);
    int batch_register_memory(nb::handle buffers, nb::handle capacities, const Text& location);
    int batch_unregister_memory(nb::handle buffers);
    uint64_t allocate_managed_buffer(nb::handle length);
    int free_managed_buffer(nb::handle address, nb::handle length);
    int write_bytes_to_buffer(nb::handle address, nb::handle source, nb::handle length);
    nb::bytes read_bytes_from_buffer(nb::handle address, nb::handle length);

    // ---- transfers; `call` names the method in messages
    int transfer_one(const char* call, const Text& target, nb::handle buffer, nb::handle peer_address, nb::handle length,
                     Direction direction, const Notification* notify, nb::handle after);
    int transfer_batch(const char* call, const Text& target, nb::handle buffers, nb::handle peer_addresses, nb::handle lengths,
                       Direction direction, const Notification* notify, nb::handle after);
    BatchId submit_one(const char* call, const Text& target, nb::handle buffer, nb::handle peer_address, nb::handle length,
                       Direction direction, nb::handle after);
    BatchId submit_batch(const char* call, const Text& target, nb::handle buffers, nb::handle peer_addresses, nb::handle lengths,
                         Direction direction, Connect connect, nb::handle after);
    void one_on_stream(const char* call, const Text& target, nb::handle buffer, nb::handle peer_address, nb::handle length,
                       Direction direction, nb::handle stream);
    void batch_on_stream(const char* call, const Text& target, nb::handle buffers, nb::handle peer_addresses, nb::handle lengths,
                         Direction direction, nb::handle stream);
    int get_batch_transfer_status(nb::handle batch_ids);
    int transfer_check_status(nb::handle batch_id);
    int cancel(nb::handle batch_id);
    std::unique_ptr<PreparedCalls> prepare(const Text& target, nb::handle buffers, nb::handle peer_addresses, nb::handle lengths);

    // ---- peers
    uint64_t get_first_buffer_address(const Text& segment_name);
    int send_probe(const Text& peer_server_name);
    int warmup_segment(const Text& segment_name);
    std::vector<Notification> get_notifies();

    // ---- what mooncake._asyncio is made of
    bool watch(CompletionPort& port, BatchId batch, uint64_t token);
    bool is_connected(const Text& target);
    /// As cancel() without waiting: the port hears of the end.
    void begin_cancel(BatchId batch);
    /// Waits for a batch whose outcome nobody will be told, and frees it.
    void discard(BatchId batch);

private:
    enum class State : uint8_t { kNew, kStarting, kReady, kClosed };

    /// The engine, or null with the reason recorded.
    Engine* use(const char* call);
    /// As use(), with RuntimeError instead of null.
    Engine& require(const char* call);
    Error why_not() const;
    /// Before the object goes: false if the memory of registered objects may still be touched.
    bool give_objects_back();
    void keep_objects_for_ever();
    int start(const char* call, EngineConfig config);
    int run(const char* call, const Text& target, Direction direction, const BlockList& list, const Notification* notify, nb::handle after);
    BatchId submit(const char* call, const Text& target, Direction direction, BlockList& list, Connect connect, nb::handle after);
    void put_on_stream(const char* call, const Text& target, Direction direction, BlockList& list, nb::handle stream);

    const Duration transfer_timeout_;  // as the environment said when the object was made
    State state_ = State::kNew;
    EngineRef engine_;                                                          // empty before kReady; closed in kClosed
    std::unique_ptr<ManagedBuffers> managed_;                                   // thread-safe by itself
    std::unordered_map<uint64_t, std::vector<BufferView>> registered_objects_;  // by address
    std::unordered_map<BatchId, std::vector<BufferView>> batch_objects_;
    std::vector<BatchId> on_stream_;  // those of batch_objects_ that free themselves
};

/// The Python class PreparedTransfer: a PreparedTransfer with what must outlive it.
class PreparedCalls {
public:
    PreparedCalls(EngineRef engine, std::unique_ptr<PreparedTransfer> prepared, std::vector<BufferView> objects);
    ~PreparedCalls();

    int run(Direction direction, nb::handle after);
    BatchId submit(Direction direction, nb::handle after);

private:
    bool usable(const char* call) const;
    void require_writable(Direction direction) const;
    /// Forgets the batches that are over.
    void prune();

    std::vector<BufferView> objects_;
    std::vector<BatchId> submitted_;  // batches that may still need objects_; empty if there are none
    EngineRef engine_;
    std::unique_ptr<PreparedTransfer> prepared_;
};

}  // namespace mooncake::python
