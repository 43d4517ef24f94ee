# SPDX-License-Identifier: Apache-2.0
"""`mooncake proxy`, by the name and with the flags that other launchers know:

    python -m mooncake.vllm_v1_proxy_server --port 8000 --prefiller-host A B --prefiller-port 8100 8100 --decoder-host C --decoder-port 8200

Flags that are not known here are those of `mooncake proxy`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .cli import program


def instances(hosts: Sequence[str], ports: Sequence[int], what: str) -> str:
    """host:port for each pair; one host serves for all ports."""
    if len(hosts) == 1:
        hosts = [hosts[0]] * len(ports)
    if len(hosts) != len(ports):
        raise SystemExit(f"{len(hosts)} {what} hosts, but {len(ports)} ports")
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in zip(hosts, ports))


def command(arguments: Sequence[str]) -> list[str]:
    """What becomes of them."""
    parser = argparse.ArgumentParser(prog="python -m mooncake.vllm_v1_proxy_server", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    for side, port in (("prefiller", 8100), ("decoder", 8200)):
        parser.add_argument(f"--{side}-hosts", f"--{side}-host", nargs="+", default=["localhost"])
        parser.add_argument(f"--{side}-ports", f"--{side}-port", type=int, nargs="+", default=[port])
    known, rest = parser.parse_known_args(arguments)
    dialect = [] if any(flag.lstrip("-").split("=")[0] == "dialect" for flag in rest) else ["--dialect=vllm-pull"]
    return [
        "proxy", f"--host={known.host}", f"--port={known.port}", f"--prefill={instances(known.prefiller_hosts, known.prefiller_ports, 'prefiller')}",
        f"--decode={instances(known.decoder_hosts, known.decoder_ports, 'decoder')}", *dialect, *rest,
    ]


def main() -> None:
    os.execv(program("mooncake"), ["mooncake", *command(sys.argv[1:])])


if __name__ == "__main__":
    main()
