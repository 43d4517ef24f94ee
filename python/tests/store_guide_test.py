# SPDX-License-Identifier: Apache-2.0
"""The guide says what is true: its tour runs, and it names every call."""

import re
from pathlib import Path

from mooncake.store import MooncakeDistributedStore

PROJECT = Path(__file__).resolve().parents[2]
GUIDE = (PROJECT / "docs/guide/store.md").read_text()


def test_tour_runs(make_store, master):
    make_store()  # a second member, for the second replica
    (tour,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    tour = tour.replace("10.0.0.1", "127.0.0.1").replace("10.0.0.9:50051", master.address).replace("4 << 30, 512 << 20", "64 << 20, 16 << 20")
    exec(compile(tour, "docs/guide/store.md", "exec"), {})


def test_five_minutes_of_the_readme_run(master):
    for example in re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL):
        exec(compile(example.replace("127.0.0.1:50051", master.address), "README.md", "exec"), {})


def test_every_call_in_the_table_exists():
    calls = re.findall(r"`([a-z_]{4,})`", GUIDE.split("| what | calls |")[1].split("\n\n")[0])
    assert len(calls) > 40 and [name for name in calls if not hasattr(MooncakeDistributedStore, name) and name not in ("async_name", "name")] == []
