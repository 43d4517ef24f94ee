# SPDX-License-Identifier: Apache-2.0
"""The package as installed: what it carries, and that it stands alone."""

import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points, version
from pathlib import Path

import mooncake
import pytest

PACKAGE = Path(mooncake.__file__).parent
SYSTEM_LIBRARIES = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|atomic))\.so\.\d+$")


def run(*command: str | Path, **options) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=100, **options).stdout


def test_version_is_the_one_the_distribution_was_built_with():
    assert mooncake.__version__ == version("mooncake-transfer-engine")


def test_importing_the_package_loads_nothing_native():
    loaded = run(sys.executable, "-c", "import mooncake, sys; print([m for m in sys.modules if m.startswith('mooncake.')])")
    assert loaded.strip() == "['mooncake._version']"


def test_importing_the_modules_loads_nothing_slow():
    slow = "{'asyncio', 'logging', 'numpy', 'pathlib', 'subprocess', 'torch', 'urllib.parse'}"
    loaded = run(sys.executable, "-c", f"import sys; before = set(sys.modules); import mooncake.engine, mooncake.store; print({slow} & set(sys.modules) - before)")
    assert loaded.strip() == "set()"


def test_features_say_what_there_is_and_why_not():
    features = mooncake.features()
    assert {"self", "shm", "tcp", "fabric", "efa", "cuda", "intra_nvlink", "mnnvl", "nvlink_allocator"} <= set(features)
    assert all(isinstance(feature.usable, bool) and feature.reason for feature in features.values())
    assert features["tcp"] and features["nvlink_allocator"] and not features["cuda"]
    assert "libcuda.so.1" in features["cuda"].reason


def test_features_follow_the_environment():
    out = run(sys.executable, "-c", "import mooncake; f = mooncake.features(); print(bool(f['shm']), bool(f['tcp']), f['shm'].reason)",
              env={**os.environ, "MC_TRANSPORTS": "tcp"})
    assert out.startswith("False True MC_TRANSPORTS")


@pytest.mark.parametrize("name", ["engine", "store"])
def test_modules_serve_later_pythons_where_there_is_a_stable_abi(name):
    files = [file.name for file in PACKAGE.glob(f"{name}.*so")]
    assert files == ([f"{name}.abi3.so"] if sys.version_info >= (3, 12) else [f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"])


def native_files() -> list[Path]:
    return [*PACKAGE.glob("*.so"), *(PACKAGE / "lib").iterdir(), *(PACKAGE / "bin").iterdir()]


@pytest.mark.parametrize("path", native_files(), ids=lambda path: path.name)
def test_needs_only_the_system_and_what_the_package_carries(path):
    dynamic = run("readelf", "-d", path)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    carried = {file.name for file in (PACKAGE / "lib").iterdir()}
    assert needed
    for name in needed:
        assert SYSTEM_LIBRARIES.match(name) or name in carried, name
    for folder in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
        assert folder in ("$ORIGIN", "$ORIGIN/lib", "$ORIGIN/../lib")


@pytest.mark.parametrize("library, entry", [("libtransfer_engine.so", "createTransferEngine"), ("libmooncake_store.so", "mooncake_store_create")])
def test_the_library_shows_our_own_names_only(library, entry):
    names = [line.split(maxsplit=2)[2] for line in run("nm", "-D", "-C", "--defined-only", PACKAGE / "lib" / library).splitlines()]
    foreign = [name for name in names if not re.match(r"(typeinfo (name )?for |vtable for )?mooncake::|[a-z]\w*$", name)]
    assert entry in names
    assert foreign == []


def test_carries_the_licenses_of_what_is_inside():
    assert (PACKAGE / "licenses/libprometheus-cpp-core1.0.txt").is_file()


def test_the_programs_that_it_promises_can_be_found():
    names = {script.name for script in entry_points(group="console_scripts") if script.value.startswith("mooncake.")}
    assert {"mc_store_rest_server", "mooncake_client", "mooncake_http_metadata_server", "mooncake_master", "transfer_engine_bench",
            "transfer_engine_topology_dump"} <= names


C_PROGRAM = """
#include <transfer_engine_c.h>
#include <mooncake/transfer_engine_c.h>
#include <stdio.h>
int main(void) {
    char name[64];
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    if (!engine) return 1;
    if (getLocalIpAndPort(engine, name, sizeof name) != 0) return 2;
    printf("%s\\n", name);
    destroyTransferEngine(engine);
    return 0;
}
"""


@pytest.mark.parametrize("name", ["mooncake_master", "mooncake_client", "transfer_engine_bench"])
def test_programs_can_be_called_beside_the_modules(name):
    assert run(PACKAGE / name, "--version") == run(PACKAGE / "bin" / name, "--version")


@pytest.mark.parametrize("module, program", [("cli", "mooncake_master"), ("cli_client", "mooncake_client"), ("cli_bench", "transfer_engine_bench"),
                                             ("transfer_engine_topology_dump", "transfer_engine_topology_dump")])
def test_launchers_have_a_main(module, program):
    assert run(sys.executable, "-m", f"mooncake.{module}", "--version") == run(PACKAGE / "bin" / program, "--version")


def test_a_c_program_builds_and_runs_against_the_package(tmp_path):
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(C_PROGRAM)
    library = mooncake.get_library_dir()
    run("cc", "-std=c99", "-Wall", "-Werror", source, f"-I{mooncake.get_include()}", f"-L{library}", f"-Wl,-rpath,{library}",
        "-ltransfer_engine", "-o", program)
    assert re.match(r"127\.0\.0\.1:\d+\n$", run(program))
