// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "failures.h"

namespace mooncake::python {

using nb::literals::operator""_a;

namespace {

using Text = const std::string&;
using Any = nb::handle;
using Hint = nb::str;  // accepted for compatibility: the engine picks the best path by itself

// The three lists, as they appear in the signatures Python shows.
#define MC_BLOCKS \
    "target_hostname: str, buffers: Sequence[int | Buffer], peer_buffer_addresses: Sequence[int], lengths: Sequence[int] | None"
#define MC_BLOCK "target_hostname: str, buffer: int | Buffer, peer_buffer_address: int, length: int | None"

template <Direction direction>
void bind_one_way(EngineClass& engine, const char* name, const nb::sig& signature, const char* doc) {
    engine.def(
        name,
        [name](TransferEngine& self, Text target, Any buffer, Any peer, Any length, Hint, Any after) {
            return self.transfer_one(name, target, buffer, peer, length, direction, nullptr, after);
        },
        "target_hostname"_a, "buffer"_a, "peer_buffer_address"_a, "length"_a = nb::none(), "transport_hint"_a = "", nb::kw_only(),
        "after"_a = nb::none(), signature, doc);
}

template <Direction direction>
void bind_batch_one_way(EngineClass& engine, const char* name, const nb::sig& signature, const char* doc) {
    engine.def(
        name,
        [name](TransferEngine& self, Text target, Any buffers, Any peers, Any lengths, Hint, Any after) {
            return self.transfer_batch(name, target, buffers, peers, lengths, direction, nullptr, after);
        },
        "target_hostname"_a, "buffers"_a, "peer_buffer_addresses"_a, "lengths"_a = nb::none(), "transport_hint"_a = "", nb::kw_only(),
        "after"_a = nb::none(), signature, doc);
}

template <Direction direction>
void bind_on_stream(EngineClass& engine, const char* name, const nb::sig& signature, const char* doc) {
    engine.def(
        name,
        [name](TransferEngine& self, Text target, Any buffer, Any peer, Any length, Any stream, Hint) {
            self.one_on_stream(name, target, buffer, peer, length, direction, stream);
        },
        "target_hostname"_a, "buffer"_a, "peer_buffer_address"_a, "length"_a.none(), "stream_ptr"_a = 0, "transport_hint"_a = "", signature,
        doc);
}

template <Direction direction>
void bind_batch_on_stream(EngineClass& engine, const char* name, const nb::sig& signature, const char* doc) {
    engine.def(
        name,
        [name](TransferEngine& self, Text target, Any buffers, Any peers, Any lengths, Any stream, Hint) {
            self.batch_on_stream(name, target, buffers, peers, lengths, direction, stream);
        },
        "target_hostname"_a, "buffers"_a, "peer_buffer_addresses"_a, "lengths"_a.none(), "stream_ptr"_a = 0, "transport_hint"_a = "",
        signature, doc);
}

template <Direction direction>
void bind_submit_one_way(EngineClass& engine, const char* name, const nb::sig& signature, const char* doc) {
    engine.def(
        name,
        [name](TransferEngine& self, Text target, Any buffers, Any peers, Any lengths, Hint, Any after) {
            return self.submit_batch(name, target, buffers, peers, lengths, direction, Connect::kFirst, after);
        },
        "target_hostname"_a, "buffers"_a, "peer_buffer_addresses"_a, "lengths"_a = nb::none(), "transport_hint"_a = "", nb::kw_only(),
        "after"_a = nb::none(), signature, doc);
}

}  // namespace

void bind_sync_transfers(EngineClass& engine) {
    bind_one_way<Direction::kWrite>(
        engine, "transfer_sync_write",
        nb::sig("def transfer_sync_write(self, " MC_BLOCK " = None, transport_hint: str = '', *, after: object = None) -> int"),
        "Sends `length` bytes at `buffer` to the peer's address and waits until they are there. Returns 0, or -1 on failure.");
    bind_one_way<Direction::kRead>(
        engine, "transfer_sync_read",
        nb::sig("def transfer_sync_read(self, " MC_BLOCK " = None, transport_hint: str = '', *, after: object = None) -> int"),
        "Fetches `length` bytes at the peer's address into `buffer` and waits. Returns 0, or -1 on failure.");
    bind_batch_one_way<Direction::kWrite>(
        engine, "batch_transfer_sync_write",
        nb::sig("def batch_transfer_sync_write(self, " MC_BLOCKS " = None, transport_hint: str = '', *, after: object = None) -> int"),
        "Sends many blocks to one peer and waits for all. The lists must be equally long; int64 and uint64 arrays are read without a\n"
        "Python object per entry. Returns 0, or -1 on failure: then no byte moves any more.");
    bind_batch_one_way<Direction::kRead>(
        engine, "batch_transfer_sync_read",
        nb::sig("def batch_transfer_sync_read(self, " MC_BLOCKS " = None, transport_hint: str = '', *, after: object = None) -> int"),
        "Fetches many blocks from one peer and waits for all. As batch_transfer_sync_write(), the local addresses first.");
    engine
        .def(
            "transfer_sync",
            [](TransferEngine& self, Text target, Any buffer, Any peer, Any length, Any opcode, const Notification* notify, Hint,
               Any after) {
                return self.transfer_one("transfer_sync", target, buffer, peer, length, direction_from(opcode), notify, after);
            },
            "target_hostname"_a, "buffer"_a, "peer_buffer_address"_a, "length"_a.none(), "opcode"_a, "notify"_a = nb::none(),
            "transport_hint"_a = "", nb::kw_only(), "after"_a = nb::none(),
            nb::sig("def transfer_sync(self, " MC_BLOCK ", opcode: TransferOpcode | int, notify: TransferNotify | None = None, "
                    "transport_hint: str = '', *, after: object = None) -> int"),
            "transfer_sync_write() or transfer_sync_read() by opcode; `notify` reaches the peer's get_notifies() after the data.")
        .def(
            "batch_transfer_sync",
            [](TransferEngine& self, Text target, Any buffers, Any peers, Any lengths, Any opcode, const Notification* notify, Hint,
               Any after) {
                return self.transfer_batch("batch_transfer_sync", target, buffers, peers, lengths, direction_from(opcode), notify, after);
            },
            "target_hostname"_a, "buffers"_a, "peer_buffer_addresses"_a, "lengths"_a.none(), "opcode"_a, "notify"_a = nb::none(),
            "transport_hint"_a = "", nb::kw_only(), "after"_a = nb::none(),
            nb::sig("def batch_transfer_sync(self, " MC_BLOCKS ", opcode: TransferOpcode | int, notify: TransferNotify | None = None, "
                    "transport_hint: str = '', *, after: object = None) -> int"),
            "batch_transfer_sync_write() or batch_transfer_sync_read() by opcode; `notify` reaches the peer's get_notifies() after the "
            "data.")
        .def("prepare", &TransferEngine::prepare, "target_hostname"_a, "buffers"_a, "peer_buffer_addresses"_a, "lengths"_a = nb::none(),
             nb::sig("def prepare(self, " MC_BLOCKS " = None) -> PreparedTransfer"),
             "Reads, checks and resolves the lists once, for transfers that are repeated. ValueError for lists of different lengths,\n"
             "RuntimeError when the peer cannot be reached.");
}

static void bind_submits(EngineClass& engine) {
    bind_submit_one_way<Direction::kWrite>(
        engine, "batch_transfer_async_write",
        nb::sig("def batch_transfer_async_write(self, " MC_BLOCKS " = None, transport_hint: str = '', *, after: object = None) -> int"),
        "Starts sending many blocks. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure.");
    bind_submit_one_way<Direction::kRead>(
        engine, "batch_transfer_async_read",
        nb::sig("def batch_transfer_async_read(self, " MC_BLOCKS " = None, transport_hint: str = '', *, after: object = None) -> int"),
        "Starts fetching many blocks. Returns a batch id for get_batch_transfer_status() or transfer_check_status(), or 0 on failure.");
    engine
        .def(
            "batch_transfer_async",
            [](TransferEngine& self, Text target, Any buffers, Any peers, Any lengths, Any opcode, Hint, Any after) {
                return self.submit_batch("batch_transfer_async", target, buffers, peers, lengths, direction_from(opcode), Connect::kFirst,
                                         after);
            },
            "target_hostname"_a, "buffers"_a, "peer_buffer_addresses"_a, "lengths"_a.none(), "opcode"_a, "transport_hint"_a = "",
            nb::kw_only(), "after"_a = nb::none(),
            nb::sig("def batch_transfer_async(self, " MC_BLOCKS
                    ", opcode: TransferOpcode | int, transport_hint: str = '', *, after: object = None) -> int"),
            "batch_transfer_async_write() or batch_transfer_async_read() by opcode.")
        .def(
            "transfer_submit_write",
            [](TransferEngine& self, Text target, Any buffer, Any peer, Any length, Hint, Any after) {
                return self.submit_one("transfer_submit_write", target, buffer, peer, length, Direction::kWrite, after);
            },
            "target_hostname"_a, "buffer"_a, "peer_buffer_address"_a, "length"_a = nb::none(), "transport_hint"_a = "", nb::kw_only(),
            "after"_a = nb::none(),
            nb::sig("def transfer_submit_write(self, " MC_BLOCK " = None, transport_hint: str = '', *, after: object = None) -> int"),
            "Starts sending one block. Returns a batch id, or 0 on failure.");
}

void bind_async_transfers(EngineClass& engine) {
    bind_submits(engine);
    engine
        .def("get_batch_transfer_status", &TransferEngine::get_batch_transfer_status, "batch_ids"_a,
             nb::sig("def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int"),
             "Waits until all the batches are over and frees them. Returns 0 if all succeeded, else -1.")
        .def("transfer_check_status", &TransferEngine::transfer_check_status, "batch_id"_a,
             nb::sig("def transfer_check_status(self, batch_id: int) -> int"),
             "Without waiting: 1 done, 0 running, -1 failed or unknown, -2 timed out. 1 and -1 free the batch; -2 does not.")
        .def("cancel", &TransferEngine::cancel, "batch_id"_a, nb::sig("def cancel(self, batch_id: int) -> int"),
             "Stops a batch: once it returned, no byte of it moves any more. The id still wants get_batch_transfer_status() or\n"
             "transfer_check_status(). Returns 0, or -1 for an unknown id.")
        .def("_watch", &TransferEngine::watch, "port"_a, "batch_id"_a, "token"_a)
        .def("_is_connected", &TransferEngine::is_connected, "target_hostname"_a)
        .def(
            "_submit",
            [](TransferEngine& self, Text target, Any buffers, Any peers, Any lengths, Any opcode, Any after) {
                return self.submit_batch("transfer_async", target, buffers, peers, lengths, direction_from(opcode), Connect::kMeanwhile,
                                         after);
            },
            "target_hostname"_a, "buffers"_a, "peer_buffer_addresses"_a, "lengths"_a.none(), "opcode"_a, "after"_a = nb::none())
        .def("_begin_cancel", &TransferEngine::begin_cancel, "batch_id"_a)
        .def("_discard", &TransferEngine::discard, "batch_id"_a);
}

void bind_stream_transfers(EngineClass& engine) {
    bind_on_stream<Direction::kWrite>(
        engine, "transfer_write_on_cuda",
        nb::sig("def transfer_write_on_cuda(self, " MC_BLOCK ", stream_ptr: object = 0, transport_hint: str = '') -> None"),
        "Puts a write on a CUDA stream: it begins when all is over that is on the stream now, and what is put there afterwards waits for\n"
        "its end. Returns at once. RuntimeError if the peer cannot be reached, if a graph is being captured on the stream, or without "
        "CUDA.\n"
        "A transfer that fails later ends the process with code 1, or, with MC_CUDA_ON_STREAM_FAILURE=continue, is raised by the next of\n"
        "these calls.");
    bind_on_stream<Direction::kRead>(
        engine, "transfer_read_on_cuda",
        nb::sig("def transfer_read_on_cuda(self, " MC_BLOCK ", stream_ptr: object = 0, transport_hint: str = '') -> None"),
        "As transfer_write_on_cuda(), from the peer to `buffer`.");
    bind_batch_on_stream<Direction::kWrite>(
        engine, "batch_transfer_write_on_cuda",
        nb::sig("def batch_transfer_write_on_cuda(self, " MC_BLOCKS ", stream_ptr: object = 0, transport_hint: str = '') -> None"),
        "As transfer_write_on_cuda(), with many blocks. RuntimeError for lists of different lengths.");
    bind_batch_on_stream<Direction::kRead>(
        engine, "batch_transfer_read_on_cuda",
        nb::sig("def batch_transfer_read_on_cuda(self, " MC_BLOCKS ", stream_ptr: object = 0, transport_hint: str = '') -> None"),
        "As transfer_read_on_cuda(), with many blocks. RuntimeError for lists of different lengths.");
}

void bind_peers(EngineClass& engine) {
    engine
        .def("get_first_buffer_address", &TransferEngine::get_first_buffer_address, "segment_name"_a,
             "The address of the first memory a peer (or this engine) registered; 0 if there is none or it cannot be reached.")
        .def("send_probe", &TransferEngine::send_probe, "peer_server_name"_a,
             "0 if the peer is alive; -200 if nobody knows it, another negative number if it cannot be reached, -1 before initialize().")
        .def("warmup_efa_segment", &TransferEngine::warmup_segment, "segment_name"_a,
             "Connects to a peer ahead of the first transfer, where that helps. Returns 0, also when there is nothing to do; a negative "
             "number "
             "when the fabric cannot reach it.")
        .def("get_notifies", &TransferEngine::get_notifies,
             "All messages that arrived since the last call. RuntimeError before initialize().");
}

}  // namespace mooncake::python
