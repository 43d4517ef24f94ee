# SPDX-License-Identifier: Apache-2.0
"""The names, signatures and types that callers rely on."""

import inspect

import pytest

from mooncake import engine as module
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

METHODS = {
    "initialize": ["local_hostname", "metadata_server", "protocol", "device_name"],
    "initialize_ext": ["local_hostname", "metadata_server", "protocol", "device_name", "metadata_type"],
    "get_rpc_port": [],
    "get_engine": [],
    "get_engine_ptr": [],
    "get_local_topology": ["device_name"],
    "register_memory": ["buffer_addr", "capacity", "location"],
    "unregister_memory": ["buffer_addr"],
    "batch_register_memory": ["buffer_addresses", "capacities", "location"],
    "batch_unregister_memory": ["buffer_addresses"],
    "transfer_sync_write": ["target_hostname", "buffer", "peer_buffer_address", "length", "transport_hint", "after"],
    "transfer_sync_read": ["target_hostname", "buffer", "peer_buffer_address", "length", "transport_hint", "after"],
    "transfer_sync": ["target_hostname", "buffer", "peer_buffer_address", "length", "opcode", "notify", "transport_hint", "after"],
    "batch_transfer_sync_write": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "transport_hint", "after"],
    "batch_transfer_sync_read": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "transport_hint", "after"],
    "batch_transfer_sync": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "opcode", "notify", "transport_hint", "after"],
    "batch_transfer_async_write": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "transport_hint", "after"],
    "batch_transfer_async_read": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "transport_hint", "after"],
    "batch_transfer_async": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "opcode", "transport_hint", "after"],
    "get_batch_transfer_status": ["batch_ids"],
    "transfer_submit_write": ["target_hostname", "buffer", "peer_buffer_address", "length", "transport_hint", "after"],
    "transfer_check_status": ["batch_id"],
    "transfer_write_on_cuda": ["target_hostname", "buffer", "peer_buffer_address", "length", "stream_ptr", "transport_hint"],
    "transfer_read_on_cuda": ["target_hostname", "buffer", "peer_buffer_address", "length", "stream_ptr", "transport_hint"],
    "batch_transfer_write_on_cuda": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "stream_ptr", "transport_hint"],
    "batch_transfer_read_on_cuda": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "stream_ptr", "transport_hint"],
    "allocate_managed_buffer": ["length"],
    "free_managed_buffer": ["buffer_addr", "length"],
    "write_bytes_to_buffer": ["dest_address", "src", "length"],
    "read_bytes_from_buffer": ["source_address", "length"],
    "get_first_buffer_address": ["segment_name"],
    "get_notifies": [],
    "send_probe": ["peer_server_name"],
    "warmup_efa_segment": ["segment_name"],
    # ours in addition
    "close": [],
    "cancel": ["batch_id"],
    "prepare": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths"],
    "transfer_async": ["target_hostname", "buffers", "peer_buffer_addresses", "lengths", "opcode", "after"],
    "get_metrics": [],
    "last_error": [],
}


@pytest.mark.parametrize("name", METHODS)
def test_docstring_shows_the_keyword_arguments_in_order(name):
    method = getattr(TransferEngine, name)
    signature = f"{name}{inspect.signature(method)}" if inspect.isfunction(method) else method.__doc__.splitlines()[0]
    places = [signature.index(f"{keyword}: ") for keyword in METHODS[name]]
    assert places == sorted(places)
    assert signature.startswith(f"{name}(self")
    assert method.__doc__


def test_no_method_is_missing_here_or_there():
    public = {name for name in dir(TransferEngine) if not name.startswith("_")}
    assert public == set(METHODS) | {"TransferOpcode"}


def test_opcode_is_an_arithmetic_enum_with_exported_values():
    assert (int(TransferOpcode.Read), int(TransferOpcode.Write)) == (0, 1)
    assert TransferOpcode.Read + 1 == TransferOpcode.Write
    assert module.Read is TransferOpcode.Read and module.Write is TransferOpcode.Write
    assert TransferEngine.TransferOpcode is TransferOpcode
    assert TransferOpcode.READ is TransferOpcode.Read and TransferOpcode.WRITE is TransferOpcode.Write
    assert module.READ is TransferOpcode.Read and module.WRITE is TransferOpcode.Write
    assert TransferOpcode(1) is TransferOpcode.Write


def test_notification_has_both_constructors_and_writable_fields():
    empty = TransferNotify()
    assert (empty.name, empty.msg) == ("", "")
    empty.name, empty.msg = "a", "ü"
    assert (empty.name, empty.msg) == ("a", "ü")
    assert TransferNotify("n", "m").msg == TransferNotify(name="n", msg="m").msg == "m"
    with pytest.raises(TypeError):
        TransferNotify("n", 1)


@pytest.mark.parametrize("flag, value", [("CUDA", True), ("EFA", False), ("HIP", False), ("MNNVL", False), ("MUSA", False), ("INTRA_NVLINK", True)])
def test_feature_flags_are_always_there(flag, value):
    assert getattr(module, f"SUPPORT_{flag}") is value


def test_unknown_keyword_is_named_in_the_type_error():
    with pytest.raises(TypeError, match="wrong_keyword"):
        TransferEngine().register_memory(buffer_addr=1, capacity=1, wrong_keyword=1)


def test_missing_argument_is_a_type_error():
    with pytest.raises(TypeError, match="device_name"):
        TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp")


def test_engine_may_be_subclassed_and_weakly_referenced():
    import weakref

    class Mine(TransferEngine):
        pass

    mine = Mine()
    assert weakref.ref(mine)() is mine
