# SPDX-License-Identifier: Apache-2.0
"""The package as installed: what it carries and where it says it is."""

import subprocess
import sys

import mooncake


def test_version_is_the_one_the_distribution_was_built_with():
    from importlib.metadata import version

    assert mooncake.__version__ == version("mooncake-transfer-engine")


def test_importing_the_package_loads_nothing_native():
    loaded = subprocess.run(
        [sys.executable, "-c", "import mooncake, sys; print([m for m in sys.modules if m.startswith('mooncake.')])"],
        capture_output=True, text=True, check=True, timeout=60,
    )
    assert loaded.stdout.strip() == "['mooncake._version']"
