# SPDX-License-Identifier: Apache-2.0
"""Numbers and truth values from what people write. Imports little: every program that uses a store comes by here."""

from __future__ import annotations

from typing import Any

_UNITS = {"": 0, "b": 0, "k": 1, "kb": 1, "m": 2, "mb": 2, "g": 3, "gb": 3, "t": 4, "tb": 4}
_SIZE = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*"
_TRUE = frozenset(("true", "1", "yes", "on", "enable"))
_FALSE = frozenset(("false", "0", "no", "off", "disable", ""))


def parse_size(value: Any) -> int:
    """Bytes, from a number or a text such as "16MB", "1.5 gb" or "1e9". ValueError for other texts, TypeError for other objects."""
    if isinstance(value, float) or hasattr(value, "__index__"):
        return int(value)
    if not isinstance(value, str):
        raise TypeError(f"a size is a number or a text, not {type(value).__name__}")
    import re

    found = re.fullmatch(_SIZE, value, re.IGNORECASE)
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError(f"not a size: {value!r}")
    number, factor = found[1], 1024 ** _UNITS[found[2].lower()]
    return int(number) * factor if re.fullmatch(r"[+-]?\d+", number) else int(float(number) * factor)


def parse_bool(value: Any) -> bool:
    """A truth value, from one, a number, None or a word. ValueError for other words."""
    if value is None:
        return False
    if isinstance(value, (bool, int, float)):
        return bool(value)
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"not a truth value: {value!r}")
