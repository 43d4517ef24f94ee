# SPDX-License-Identifier: Apache-2.0
"""The names, signatures, defaults and types of mooncake.store that callers rely on; no master is needed."""

import ast
import gc
import inspect
import weakref
from pathlib import Path

import pytest

import mooncake
from helpers import run_python
from mooncake import store as module
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, SoftPinAction

C = "config"
METHODS = {
    "setup_dummy": ["mem_pool_size", "local_buffer_size", "server_address"],
    "init_all": ["protocol", "device_name", "mount_segment_size"],
    "close": [], "health_check": [], "get_hostname": [], "get_metrics": [],
    "put": ["key", "value", C], "put_batch": ["keys", "values", C], "put_parts": ["key", "parts", C],
    "upsert": ["key", "value", C], "upsert_batch": ["keys", "values", C], "upsert_parts": ["key", "parts", C],
    "get": ["key"], "get_batch": ["keys"], "get_buffer": ["key"], "batch_get_buffer": ["keys"],
    "is_exist": ["key"], "batch_is_exist": ["keys"], "get_size": ["key"],
    "remove": ["key", "force"], "batch_remove": ["keys", "force"], "remove_by_regex": ["regex_pattern", "force"], "remove_all": ["force"],
    "register_buffer": ["buffer_ptr", "size"], "unregister_buffer": ["buffer_ptr"], "alloc_from_mem_pool": ["size"], "are_buffers_mapped": ["buffer_ptrs"],
    "put_from": ["key", "buffer_ptr", "size", C], "get_into": ["key", "buffer_ptr", "size"],
    "batch_put_from": ["keys", "buffer_ptrs", "sizes", C], "batch_get_into": ["keys", "buffer_ptrs", "sizes"],
    "batch_put_from_multi_buffers": ["keys", "all_buffer_ptrs", "all_sizes", C],
    "batch_get_into_multi_buffers": ["keys", "all_buffer_ptrs", "all_sizes", "prefer_alloc_in_same_node"],
    "upsert_from": ["key", "buffer_ptr", "size", C], "batch_upsert_from": ["keys", "buffer_ptrs", "sizes", C],
    "put_from_with_metadata": ["key", "buffer_ptr", "metadata_buffer_ptr", "size", "metadata_size", C],
    "get_into_ranges": ["buffer_ptrs", "all_keys", "all_dst_offsets", "all_src_offsets", "all_sizes"],
    "get_offload_rpc_read_count": [],
    "batch_get_session_start": ["keys"], "batch_get_session_end": ["keys"],
    "batch_get_into_multi_buffer_ranges": ["keys", "all_buffer_ptrs", "all_sizes", "all_src_offsets"],
    "batch_put_session_start": ["keys", "sizes", C],
    "batch_put_from_multi_buffer_ranges": ["keys", "all_buffer_ptrs", "all_sizes", "all_dst_offsets"],
    "batch_put_session_end": ["keys"], "batch_put_session_revoke": ["keys"],
    "mount_segment": ["path", "size", "offset", "protocol", "location"], "unmount_segment": ["segment_ids", "grace_period_seconds"],
    "allocate_and_mount_segment": ["size", "protocol", "location"],
    "unmount_and_free_segment": ["segment_ids", "grace_period_seconds"], "unmount_local_disk_segment": ["grace_period_seconds"],
    "get_replica_desc": ["key"], "batch_get_replica_desc": ["keys"], "batch_replica_clear": ["keys", "segment_name"],
    "create_copy_task": ["key", "targets"], "create_move_task": ["key", "source", "target"], "query_task": ["task_id"],
}
TP = ["tp_rank", "tp_size", "split_dim"]
TENSOR_METHODS = {
    "put_tensor": ["key", "tensor"], "batch_put_tensor": ["keys", "tensors_list"], "get_tensor": ["key"], "batch_get_tensor": ["keys"],
    "pub_tensor": ["key", "tensor", C], "batch_pub_tensor": ["keys", "tensors_list", C],
    "put_tensor_with_tp": ["key", "tensor", *TP], "batch_put_tensor_with_tp": ["base_keys", "tensors_list", *TP],
    "pub_tensor_with_tp": ["key", "tensor", C, *TP], "batch_pub_tensor_with_tp": ["base_keys", "tensors_list", C, *TP],
    "get_tensor_with_tp": ["key", *TP], "batch_get_tensor_with_tp": ["base_keys", "tp_rank", "tp_size"],
    "get_tensor_into": ["key", "buffer_ptr", "size"], "batch_get_tensor_into": ["keys", "buffer_ptrs", "sizes"],
    "get_tensor_with_tp_into": ["key", "buffer_ptr", "size", *TP],
    "batch_get_tensor_with_tp_into": ["base_keys", "buffer_ptrs", "sizes", "tp_rank", "tp_size"],
    "get_tensor_into_cuda": ["key", "tensor"], "batch_get_tensor_into_cuda": ["keys", "tensors_list"],
    "put_tensor_from": ["key", "buffer_ptr", "size"], "batch_put_tensor_from": ["keys", "buffer_ptrs", "sizes"],
    "put_tensor_with_tp_from": ["key", "buffer_ptr", "size", *TP], "batch_put_tensor_with_tp_from": ["base_keys", "buffer_ptrs", "sizes", *TP],
    "upsert_tensor": ["key", "tensor"], "batch_upsert_tensor": ["keys", "tensors_list"], "upsert_tensor_from": ["key", "buffer_ptr", "size"],
    "batch_upsert_tensor_from": ["keys", "buffer_ptrs", "sizes"], "upsert_pub_tensor": ["key", "tensor", C],
    "batch_upsert_pub_tensor": ["keys", "tensors_list", C], "save_tensor_to_safetensor": ["key", "file_name"],
    "load_tensor_from_safetensor": ["key", "file_name"],
    "get_tensor_with_parallelism": ["key", "target"], "batch_get_tensor_with_parallelism": ["keys", "targets"],
    "get_tensor_with_parallelism_into": ["key", "buffer_ptr", "size", "target"],
    "batch_get_tensor_with_parallelism_into": ["keys", "buffer_ptrs", "sizes", "targets"],
    **{f"{verb}_tensor_with_parallelism": ["key", "tensor", "parallelism", C, "writer_partition"] for verb in ("put", "upsert")},
    **{f"batch_{verb}_tensor_with_parallelism": ["keys", "tensors_list", "parallelisms", C, "writer_partitions"] for verb in ("put", "upsert")},
    **{f"{verb}_tensor_with_parallelism_from": ["key", "buffer_ptr", "size", "parallelism", C, "writer_partition"] for verb in ("put", "upsert")},
    **{f"batch_{verb}_tensor_with_parallelism_from": ["keys", "buffer_ptrs", "sizes", "parallelisms", C, "writer_partitions"]
       for verb in ("put", "upsert")},
}
SETUP = ["local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "rdma_devices", "master_server_addr",
         "engine", "enable_ssd_offload", "ssd_offload_path", "tenant_id", "enable_client_http_server", "client_http_port"]


def parameters(method) -> list[str]:
    if inspect.isfunction(method):
        return list(inspect.signature(method).parameters)[1:]
    inside = method.__doc__.splitlines()[0].split("(", 1)[1].rsplit(")", 1)[0]
    return [part.split(":")[0].strip() for part in inside.split(", ")[1:] if ":" in part and not part.startswith("'")]


@pytest.mark.parametrize("name", [*METHODS, *TENSOR_METHODS])
def test_method_has_its_keyword_arguments_in_order(name):
    assert parameters(getattr(MooncakeDistributedStore, name)) == {**METHODS, **TENSOR_METHODS}[name]
    assert getattr(MooncakeDistributedStore, name).__doc__


def test_no_method_is_missing_here_or_there():
    public = {name for name in dir(MooncakeDistributedStore) if not name.startswith("_")}
    assert public == {*METHODS, *TENSOR_METHODS, "setup"}


def test_setup_shows_its_parameters_and_names_an_unknown_one():
    assert list(inspect.signature(MooncakeDistributedStore.setup).parameters)[1:14] == SETUP
    assert "enable_ssd_offload" in MooncakeDistributedStore.setup.__doc__
    with pytest.raises(TypeError, match="some_new_option"):
        MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1", some_new_option=1)


@pytest.mark.parametrize("arguments, named", [((), "local_hostname"), (("h",), "metadata_server"), (("h", "m", 0, 0, "tcp", ""), "master_server_addr"),
                                              (("h", "m", "16MB", 0, "tcp", "", "x"), "global_segment_size"), ((1, "m", 0, 0, "tcp", "", "x"), "local_hostname")])
def test_setup_by_position_needs_seven_arguments_of_the_right_type(arguments, named):
    with pytest.raises(TypeError, match=named):
        MooncakeDistributedStore().setup(*arguments)


GOOD = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE"}


@pytest.mark.parametrize("config", [
    {}, {"local_hostname": "127.0.0.1"}, {"metadata_server": "P2PHANDSHAKE"}, {**GOOD, "local_hostname": ""},
    {**GOOD, "global_segment_size": "50%"}, {**GOOD, "global_segment_size": 100}, {**GOOD, "local_buffer_size": "512"},
    {**GOOD, "local_buffer_size": 2 << 40}, {**GOOD, "local_buffer_size": -1}, {**GOOD, "client_http_port": "x"},
    {**GOOD, "client_http_port": 70000}, {**GOOD, "enable_client_http_server": "perhaps"}, {**GOOD, "global_segment_size": "1e30"},
    {**GOOD, "global_segment_size": 1 << 64}, {**GOOD, "local_hostname": b"127.0.0.1"}, {**GOOD, "metadata_server": b"P2PHANDSHAKE"},
    {**GOOD, "protocol": 5}])
def test_setup_refuses_a_configuration_that_makes_no_sense(config):
    assert MooncakeDistributedStore().setup(config) == -600
    assert MooncakeDistributedStore().setup(config=config) == -600


def test_setup_with_an_empty_host_is_refused():
    assert MooncakeDistributedStore().setup("", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1") == -600


def test_misspelled_keyword_is_a_type_error_that_names_it():
    with pytest.raises(TypeError, match="valeu"):
        MooncakeDistributedStore().put(key="k", valeu=b"v")


@pytest.mark.parametrize("call", [
    lambda s: s.put(1, b"v"), lambda s: s.put("k", 1), lambda s: s.put("k", "text"), lambda s: s.put_batch("k", [b"v"]),
    lambda s: s.put_batch(["k"], [1]), lambda s: s.batch_is_exist("key"), lambda s: s.batch_is_exist([1]), lambda s: s.batch_is_exist(5),
    lambda s: s.get_into("k", "p", 1), lambda s: s.get_into("k", -1, 1), lambda s: s.put_from("k", 1, 2**64),
    lambda s: s.batch_put_from(["k"], ["p"], [1]), lambda s: s.batch_put_from_multi_buffers(["k"], [1], [[1]]),
    lambda s: s.query_task((1, 2, 3)), lambda s: s.put("k", b"v", 1), lambda s: s.register_buffer(None, 1)])
def test_arguments_of_the_wrong_type_are_type_errors(call):
    with pytest.raises(TypeError):
        call(MooncakeDistributedStore())


def test_parts_that_are_no_rows_of_bytes_are_refused():
    import numpy as np

    for part in (np.zeros((2, 2), np.uint8), np.zeros(2, np.float32), np.zeros(8, np.uint8)[::2]):
        with pytest.raises(RuntimeError):
            MooncakeDistributedStore().put_parts("k", b"ok", part)
    for part in (5, "text", None, [b"x"], ReplicateConfig()):
        with pytest.raises(TypeError):
            MooncakeDistributedStore().put_parts("k", b"ok", part)


# ---- other names


def test_enums_have_their_values_and_are_exported():
    assert [member.name for member in module.ObjectDataType] == [
        "UNKNOWN", "KVCACHE", "TENSOR", "WEIGHT", "SAMPLE", "ACTIVATION", "GRADIENT", "OPTIMIZER_STATE", "METADATA", "GENERAL"]
    assert [int(member) for member in module.ObjectDataType] == list(range(10))
    assert [(member.name, int(member)) for member in SoftPinAction] == [("PRESERVE", 0), ("ENABLE", 1), ("DISABLE", 2)]
    assert [member.name for member in module.ReplicaStatus] == ["UNDEFINED", "INITIALIZED", "PROCESSING", "COMPLETE", "REMOVED", "FAILED"]
    assert [member.name for member in module.TaskType] == ["REPLICA_COPY", "REPLICA_MOVE"]
    assert {member.name: member.value for member in module.TaskStatus} == {"PENDING": 0, "PROCESSING": 1, "FAILED": 2, "SUCCESS": 3}
    assert module.KVCACHE is module.ObjectDataType.KVCACHE and module.COMPLETE is module.ReplicaStatus.COMPLETE
    assert module.REPLICA_MOVE is module.TaskType.REPLICA_MOVE and module.SUCCESS is module.TaskStatus.SUCCESS
    assert not hasattr(module, "ENABLE")


def test_aliases_are_the_same_objects():
    assert module.RegisteredBufferPool is module.BufferPool is mooncake.BufferPool is mooncake.RegisteredBufferPool
    assert module.RegisteredBufferLease is module.BufferLease and module.RegisteredBufferLeaseView is module.BufferLeaseView


def test_replicate_config_has_its_defaults():
    config = ReplicateConfig()
    assert (config.replica_num, config.nof_replica_num, config.dfs_replica_num) == (1, 0, 0)
    assert config.soft_pin_action == SoftPinAction.PRESERVE and config.soft_pin_ttl_ms is None
    assert (config.with_hard_pin, config.with_soft_pin, config.prefer_alloc_in_same_node) == (False, False, False)
    assert (config.preferred_segments, config.preferred_segment, config.preferred_nof_segments) == ([], "", [])
    assert config.data_type == module.UNKNOWN and config.group_ids is None
    assert hasattr(ReplicateConfig, "group_ids")


def test_replicate_config_keeps_what_it_is_told_and_shows_it():
    config = ReplicateConfig()
    config.replica_num, config.soft_pin_ttl_ms, config.group_ids, config.preferred_segments = 3, 12345, ["g", ""], ["a:1", "b:2"]
    config.soft_pin_action = SoftPinAction.ENABLE
    assert (config.group_ids, config.preferred_segments, config.with_soft_pin) == (["g", ""], ["a:1", "b:2"], True)
    assert "3" in str(config) and "12345" in str(config) and "b:2" in str(config)
    config.soft_pin_ttl_ms = config.group_ids = None
    config.with_soft_pin = False
    assert (config.soft_pin_ttl_ms, config.group_ids, config.soft_pin_action) == (None, None, SoftPinAction.PRESERVE)


@pytest.mark.parametrize("value", [-1, 2**64, "1", 1.5])
def test_soft_pin_ttl_of_the_wrong_kind_is_a_type_error(value):
    with pytest.raises(TypeError):
        ReplicateConfig().soft_pin_ttl_ms = value


def test_descriptor_can_be_made_and_shown():
    descriptor = module.Descriptor()
    descriptor.size, descriptor.buffer_address, descriptor.transport_endpoint = 5, 4096, "h:1"
    assert "5" in repr(descriptor) and "h:1" in repr(descriptor)


# ---- before setup and after close

UNSET = {
    "put": (("k", b"v"), -600), "put_batch": ((["k"], [b"v"]), -600), "put_parts": (("k", b"v"), -600), "upsert": (("k", b"v"), -600),
    "upsert_batch": ((["k"], [b"v"]), -600), "upsert_parts": (("k", b"v"), -600), "get": (("k",), b""), "get_batch": ((["k", "l"],), [b""]),
    "get_buffer": (("k",), None), "batch_get_buffer": ((["k", "l"],), [None, None]), "is_exist": (("k",), -600),
    "batch_is_exist": ((["k", "l"],), [-600, -600]), "get_size": (("k",), -600), "remove": (("k",), -600),
    "batch_remove": ((["k", "l"],), [-600, -600]), "remove_by_regex": ((".",), -600), "remove_all": ((), -600),
    "register_buffer": ((4096, 1), -600), "unregister_buffer": ((4096,), -600), "alloc_from_mem_pool": ((1,), 0),
    "are_buffers_mapped": (([4096, 8192],), [0, 0]),
    "put_from": (("k", 4096, 1), -600), "upsert_from": (("k", 4096, 1), -600), "get_into": (("k", 4096, 1), -600),
    "batch_put_from": ((["k"], [4096], [1]), [-600]), "batch_upsert_from": ((["k"], [4096], [1]), [-600]),
    "batch_get_into": ((["k"], [4096], [1]), [-600]), "batch_put_from_multi_buffers": ((["k"], [[4096]], [[1]]), []),
    "batch_get_into_multi_buffers": ((["k"], [[4096]], [[1]]), [-600]), "put_from_with_metadata": (("k", 4096, 4096, 1, 1), -600),
    "get_into_ranges": (([4096], [["k"]], [[[0, 1]]], [[[0, 1]]], [[[1, 1]]]), [[[-600, -600]]]), "get_offload_rpc_read_count": ((), 0),
    "batch_get_session_start": ((["k"],), []), "batch_get_session_end": ((["k"],), -1),
    "batch_get_into_multi_buffer_ranges": ((["k"], [[4096]], [[1]], [[0]]), []), "batch_put_session_start": ((["k"], [1]), []),
    "batch_put_from_multi_buffer_ranges": ((["k"], [[4096]], [[1]], [[0]]), []), "batch_put_session_end": ((["k"],), []),
    "batch_put_session_revoke": ((["k"],), []), "mount_segment": (("/f", 4096), {"ret": -1, "segment_ids": []}),
    "unmount_segment": ((["1-2"],), -1), "allocate_and_mount_segment": ((4096,), {"ret": -1, "segment_ids": [], "allocated_size": 0}),
    "unmount_and_free_segment": ((["1-2"],), -1), "unmount_local_disk_segment": ((), -1), "get_replica_desc": (("k",), []),
    "batch_get_replica_desc": ((["k"],), {}), "batch_replica_clear": ((["k"],), []), "create_copy_task": (("k", ["t"]), ((0, 0), -600)),
    "create_move_task": (("k", "s", "t"), ((0, 0), -600)), "query_task": (((1, 2),), (None, -600)), "health_check": ((), 1),
    "close": ((), 0), "get_hostname": ((), ""), "get_metrics": ((), ""), "setup_dummy": ((1, 1, "127.0.0.1:1"), -1),
    "_get_pyclient_capsule": ((), None),
}


def test_every_call_is_known_here():
    assert set(METHODS) - {"init_all"} == set(UNSET) - {"_get_pyclient_capsule"}


@pytest.mark.parametrize("name", UNSET)
def test_call_before_setup_gives_its_code(name):
    arguments, answer = UNSET[name]
    assert getattr(MooncakeDistributedStore(), name)(*arguments) == answer


def test_pool_of_a_store_that_is_not_set_up_is_refused():
    with pytest.raises(RuntimeError, match="local buffer"):
        module.BufferPool(MooncakeDistributedStore())


def test_store_may_be_subclassed_weakly_referenced_and_dropped():
    class Mine(MooncakeDistributedStore):
        pass

    mine = Mine()
    mine.note = "an attribute"
    reference = weakref.ref(mine)
    del mine
    gc.collect()
    assert reference() is None


# ---- memory of the host


def test_host_memory_is_given_and_taken_back():
    import ctypes

    allocator = module.MooncakeHostMemAllocator()
    address = allocator.alloc(100_000)
    ctypes.memset(address, 7, 100_000)
    assert ctypes.string_at(address + 99_999, 1) == b"\7"
    assert allocator.free(address) == 0
    assert allocator.free(address) == -1 and allocator.free(12345) == -1


@pytest.mark.parametrize("size", [0, 1 << 62])
def test_host_memory_that_cannot_be_had_is_a_runtime_error(size):
    with pytest.raises(RuntimeError):
        module.MooncakeHostMemAllocator().alloc(size)


def test_plugin_functions_allocate_and_free():
    import ctypes

    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(module.get_alloc_func_addr())
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(module.get_free_func_addr())
    address = allocate(8192)
    ctypes.memset(address, 1, 8192)
    free(address)
    free(address)  # not there any more: nothing happens
    assert not allocate(0)


def test_binding_to_a_node_works_or_only_logs():
    run_python("from mooncake.store import bind_to_numa_node\nbind_to_numa_node(0)\nbind_to_numa_node(9999)\nbind_to_numa_node(-1)")


def test_importing_the_store_does_not_import_torch():
    assert run_python("import mooncake.store, sys; print('torch' in sys.modules, 'numpy' in sys.modules)").stdout.split() == ["False", "False"]


def test_stub_knows_every_name_of_the_module():
    tree = ast.parse((Path(mooncake.__file__).parent / "store.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    described = {item.name for item in classes["MooncakeDistributedStore"].body if isinstance(item, ast.FunctionDef)}
    native = {name for name, value in vars(MooncakeDistributedStore).items() if callable(value) and not name.startswith("__")}
    assert {name for name in described if not name.startswith("__")} == native
    known = set(classes) | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    known |= {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    known |= {name.asname or name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {name for name in vars(module) if not name.startswith("__")} <= known
