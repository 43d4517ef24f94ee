# SPDX-License-Identifier: Apache-2.0
"""What vLLM's configuration means to the connectors. Uses its objects, but imports nothing of it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from typing import Any

from .. import __version__, kvplan
from .handover import Settings

OLDEST_VLLM = (0, 11)


def check_version(version: str, unknown_methods: Sequence[str] = ()) -> None:
    """RuntimeError: this vLLM and this Mooncake do not go together; the text names both."""
    found = re.match(r"(\d+)\.(\d+)", version)
    ours = f"mooncake {__version__} works with vLLM {OLDEST_VLLM[0]}.{OLDEST_VLLM[1]} and later"
    if found is None or (int(found[1]), int(found[2])) < OLDEST_VLLM:
        if not version.startswith(("0.1.dev", "dev")):  # built from a checkout
            raise RuntimeError(f"vLLM {version} is too old: {ours}")
    if unknown_methods:
        raise RuntimeError(f"vLLM {version} asks its connectors for {', '.join(sorted(unknown_methods))}, which mooncake {__version__} does not know: {ours}")


def own_address(extra: Any) -> str:
    """Where others reach this host: as configured, or the address that leads to the outside."""
    given = extra("local_hostname", "") or os.environ.get("VLLM_HOST_IP", "")
    if given:
        return str(given)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # nothing is sent; the kernel says which address it would use
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def settings_from(config: Any) -> Settings:
    """ValueError: something that is not supported, by name."""
    transfer, parallel = config.kv_transfer_config, config.parallel_config
    extra = transfer.get_from_extra_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise ValueError(f"{name} {getattr(parallel, name)} is not supported by this connector")
    host = own_address(extra)
    port = extra("bootstrap_port", None) or os.environ.get("VLLM_MOONCAKE_BOOTSTRAP_PORT", 8998)
    return Settings(
        engine_id=str(transfer.engine_id), host=host, produces=bool(transfer.is_kv_producer), consumes=bool(transfer.is_kv_consumer),
        bootstrap_host=str(extra("bootstrap_host", "") or host), bootstrap_port=int(port), protocol=str(extra("mooncake_protocol", "rdma")),
        device=str(extra("device_name", "")), tp_size=int(parallel.tensor_parallel_size), pp_size=int(parallel.pipeline_parallel_size),
        dp_rank=int(getattr(parallel, "data_parallel_rank", 0) or 0), layerwise=bool(extra("layerwise", True)),
        attach_timeout=float(extra("attach_timeout", 60.0)),
        handover_timeout=float(extra("handover_timeout", os.environ.get("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", 300.0))))


def ranks_of(config: Any, settings: Settings) -> tuple[int, int]:
    """Tensor and pipeline rank of a worker."""
    rank = int(config.parallel_config.rank) % (settings.tp_size * settings.pp_size)
    return rank % settings.tp_size, rank // settings.tp_size


def axes_of(shape: Sequence[int], block_tokens: int, heads: int, given: str = "") -> tuple[str, ...]:
    """What the dimensions of a layer's cache are. vLLM's shapes are logical, whatever the strides: K and V first or second, or together.

    given: "part,block,token,head,channel" or the like, where it cannot be told. ValueError: it cannot.
    """
    if given:
        axes = tuple(given.split(","))
        if len(axes) != len(shape):
            raise ValueError(f"kv_axes {given} has {len(axes)} dimensions, the cache has {len(shape)}: {tuple(shape)}")
        return axes
    rest: dict[int, tuple[str, ...]] = {5: ("token", "head", "channel"), 4: ("token", "head", "channel"), 3: ("token", "channel")}
    if len(shape) not in rest:
        raise ValueError(f"a KV cache of the shape {tuple(shape)} is not known; kv_axes in the extra configuration names its dimensions")
    inner = rest[len(shape)]
    sizes = dict(zip(inner, shape[-len(inner) :]))
    if sizes["token"] != block_tokens or sizes.get("head", heads) != heads:
        raise ValueError(f"a KV cache of the shape {tuple(shape)} does not have blocks of {block_tokens} tokens and {heads} heads where they should be; "
                         "kv_axes in the extra configuration names its dimensions")
    if len(shape) != 5:
        return ("block", *inner)
    if shape[0] == 2 and shape[1] == 2:
        raise ValueError(f"a KV cache of the shape {tuple(shape)} may be read in two ways; kv_axes in the extra configuration names its dimensions")
    if 2 not in shape[:2]:
        raise ValueError(f"a KV cache of the shape {tuple(shape)} has no place for K and V; kv_axes in the extra configuration names its dimensions")
    return (("part", "block") if shape[0] == 2 else ("block", "part")) + inner


def regions_from(config: Any, settings: Settings, tp_rank: int, caches: dict[str, Any]) -> list[kvplan.Region]:
    """Of a worker's caches, layer by layer."""
    extra = config.kv_transfer_config.get_from_extra_config
    latent = bool(getattr(config.model_config, "use_mla", False))
    total = 1 if latent else int(config.model_config.get_total_num_kv_heads())
    first, count = (0, 1) if latent else kvplan.heads_of_rank(total, settings.tp_size, tp_rank)
    regions = []
    for name, cache in caches.items():
        axes = axes_of(cache.shape, int(config.cache_config.block_size), count, str(extra("kv_axes", "")))
        parts = ("k", "v") if "part" in axes else ("kv",)
        regions += kvplan.regions_of_tensor(cache, axes, layers=[name], parts=parts, first_head=first, total_heads=total)
    return regions


def namespace_from(config: Any, settings: Settings) -> str:
    """What decides about the bytes of a stored block, as scheduler and workers know it alike."""
    model, cache = config.model_config, config.cache_config
    revision = getattr(model, "revision", None) or "-"
    adapter = config.kv_transfer_config.get_from_extra_config("key_prefix", "") or "-"
    heads = 1 if getattr(model, "use_mla", False) else int(model.get_total_num_kv_heads())
    parts = (model.model, revision, getattr(cache, "cache_dtype", "auto"), model.dtype, heads, cache.block_size,
             getattr(cache, "prefix_caching_hash_algo", "-"), adapter)
    return "@".join(re.sub(r"[^\w.\-]", "_", str(part)) for part in parts)


def check_hash_seed(environment: Any = os.environ) -> None:
    """RuntimeError: hashes of blocks would differ between processes, and nothing would ever be found."""
    if not environment.get("PYTHONHASHSEED", "").isdigit():
        raise RuntimeError("PYTHONHASHSEED is not set: block hashes would differ between instances. Set it to the same number for all that share the store")
