# SPDX-License-Identifier: Apache-2.0
"""The rules of size and shape, as functions of (path, text) that return what is wrong as a list of texts.

Paths are relative to the project's root and use "/". `check_tree` applies every rule to every source file.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FILE_LINES_MAX = 599
FUNCTION_LINES_MAX = 69
FOLDERS = ("src", "include", "apps", "python", "bench", "tests", "examples")

# Lowest first; layers of one rank may not use each other. What is not listed may be used by nobody below the faces.
RANKS = (
    ("base",),
    ("metrics",),
    ("net", "device", "topology"),
    ("rpc", "coordination", "transport"),
    ("engine", "kvplan", "store/allocation", "store/protocol"),
    ("kvflow", "store/tier", "store/member", "store/master", "conductor"),
    ("store/node", "store/client", "store/service"),
    ("store/process", "store/admin"),
    ("store/bridge",),
    ("capi", "store_capi", "nvlink_allocator", "apps", "python", "include"),
)
RANK_OF = {layer: rank for rank, layers in enumerate(RANKS) for layer in layers}

CPP_SUFFIXES = (".h", ".cpp", ".c")
HEAVY_INCLUDE = re.compile(r"#\s*include\s*<(boost|spdlog|nlohmann|flatbuffers|prometheus|gflags|hiredis|re2|yaml-cpp|liburing)\b")
ONLY_FOR_CPP = "Include only in .cpp files"  # what a header says that needs one of those; other headers may not include it
VENDOR_CONDITION = re.compile(r"#\s*(?:if|ifdef|ifndef|elif)\b.*\b(?:USE|WITH|ENABLE|HAVE|SUPPORT)_\w+|#\s*(?:if|ifdef|ifndef|elif)\b.*\b__(?:CUDA|HIP|MUSA|CANN)\w*")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
TRANSPORT_LIST = "src/engine/transports.cpp"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def is_test(path: str) -> bool:
    return path.startswith("tests/") or path.startswith("python/tests/") or "/testing/" in path or re.search(r"_test\.\w+$", path) is not None


def blank_out(text: str) -> str:
    """C++ without comments and literals; every character else, and every line break, stays where it is."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


# ---- where functions are


def _kind_of_scope(head: str) -> str:
    """What a brace opens at namespace or class level, told by the text in front of it."""
    head = re.sub(r"^(?:\s*(?:public|private|protected)\s*:)+", "", head).strip()
    head = re.sub(r"^template\s*<.*?>\s*(?=class|struct|union|enum)", "", head, flags=re.DOTALL)
    if re.match(r"(?:inline\s+)?namespace\b|extern\s*$", head):
        return "scope"
    if re.match(r"(?:typedef\s+)?(?:class|struct|union|enum)\b", head) and not re.search(r"\)\s*(?:const|noexcept|override)*\s*$", head):
        return "scope"
    without_comparisons = re.sub(r"operator\s*\S+?\s*\(", "operator(", head)
    if "(" in head and not re.search(r"(?<![=!<>])=(?!=)", without_comparisons.split("(", 1)[0]):
        return "function"
    return "other"


def _opens_initialiser(head: str) -> bool:
    """True for the brace of `x_{1}` in `Type(...) : x_{1}, y_(2) {`, and for one inside the parameter list."""
    if head.count("(") > head.count(")"):
        return True
    return re.search(r"\)[^:;{}]*(?<!:):(?!:)", head) is not None and re.search(r"[\w>]\s*$", head) is not None


def _matching(code: str, at: int) -> int:
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] == "{") - (code[i] == "}")
        if depth == 0:
            return i
    return len(code) - 1


def cpp_functions(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of every function with a body."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()), blank_out(text), flags=re.MULTILINE)
    start, i = 0, 0
    while i < len(code):
        if code[i] in ";}":
            start = i + 1
        elif code[i] == "{":
            head = code[start:i]
            if _opens_initialiser(head):
                i = _matching(code, i)
            elif _kind_of_scope(head) == "scope":
                start = i + 1
            else:
                end = _matching(code, i)
                if _kind_of_scope(head) == "function":
                    first = start + len(head) - len(head.lstrip())
                    yield line_of(code, first), line_of(code, end)
                start, i = end + 1, end
        i += 1


def python_functions(text: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno or node.lineno


# ---- the rules


def file_length(path: str, text: str) -> list[str]:
    lines = len(text.splitlines())
    return [f"{path}: {lines} lines, at most {FILE_LINES_MAX}"] if lines > FILE_LINES_MAX else []


def function_length(path: str, text: str) -> list[str]:
    find = python_functions if path.endswith(".py") else cpp_functions
    return [f"{path}:{first}: a function of {last - first + 1} lines, at most {FUNCTION_LINES_MAX}"
            for first, last in find(text) if last - first + 1 > FUNCTION_LINES_MAX]


def layer_of(path: str) -> str | None:
    """The layer a file (by its path) or an include (by what it names below src/) belongs to."""
    parts = path.removeprefix("src/").split("/")
    if parts[0] == "mooncake":
        return "include"
    for depth in (2, 1):
        if "/".join(parts[:depth]) in RANK_OF:
            return "/".join(parts[:depth])
    return None


def layers(path: str, text: str) -> list[str]:
    if is_test(path) or path.startswith("bench/"):
        return []
    own, wrong = layer_of(path), []
    for match in INCLUDE.finditer(text):
        name = match.group(1)
        target = layer_of(name)
        if target is None or target == own:
            continue
        if own is None or RANK_OF[own] <= RANK_OF[target] and not (RANK_OF[own] == len(RANKS) - 1 and target == "include"):
            wrong.append(f"{path}:{line_of(text, match.start())}: {own or 'no layer'} may not use {target} ({name})")
    return wrong


def transports_apart(path: str, text: str) -> list[str]:
    """One transport's folder may not use another's."""
    own = re.match(r"src/transport/(\w+)/", path)
    if own is None or is_test(path):
        return []
    return [f"{path}: transport {own.group(1)} may not use {name}" for name in INCLUDE.findall(text)
            if (other := re.match(r"transport/(\w+)/", name)) and other.group(1) != own.group(1)]


def transports_unnamed(path: str, text: str) -> list[str]:
    """Of a transport others know its capabilities; only its folder and the list of transports know its name."""
    if not path.startswith("src/") or is_test(path) or re.match(r"src/transport/\w+/", path):
        return []
    code = re.sub(r"//[^\n]*", "", text)
    listed = path == TRANSPORT_LIST
    wrong = [] if listed else [f"{path}: only {TRANSPORT_LIST} may use {name}" for name in INCLUDE.findall(code) if re.match(r"transport/\w+/", name)
                               and not name.startswith("transport/testing/")]
    if listed:
        code = re.sub(r'\.name = "\w+"', "", code)
    # "tcp" is also what the protocol of a call is by default.
    return wrong + [f"{path}:{line_of(code, found.start())}: {found.group()}: ask for capabilities, not for a transport's name"
                    for found in re.finditer(r'"(?:self|shm|fabric)"|[!=]= "tcp"', code)]


def public_headers(path: str, text: str) -> list[str]:
    """What we install names nothing but the standard library and itself."""
    if not path.startswith("include/"):
        return []
    return [f"{path}: an installed header may not include {name}" for name in INCLUDE.findall(text)
            if layer_of(name) not in (None, "include")] + [
            f"{path}: an installed header may not include <{name}>" for name in re.findall(r"#\s*include\s*<([^>]+/[^>]+)>", text)]


def header_form(path: str, text: str) -> list[str]:
    wrong = []
    first = text.splitlines()[0] if text else ""
    marks = ("// SPDX-License-Identifier: Apache-2.0", "# SPDX-License-Identifier: Apache-2.0", "/* SPDX-License-Identifier: Apache-2.0 */")
    if first not in marks and not (first.startswith("#!") and text.splitlines()[1:2] == [marks[1]]):
        wrong.append(f"{path}: the first line must be the SPDX line")
    # The C headers are installed in two places, which only a guard sees as one.
    once = "#ifndef" if path.endswith("_c.h") else "#pragma once"
    if path.endswith(".h") and once not in text:
        wrong.append(f"{path}: {once} is missing")
    if path.endswith(".h") and ONLY_FOR_CPP not in text and (heavy := HEAVY_INCLUDE.search(text)):
        wrong.append(f"{path}:{line_of(text, heavy.start())}: <{heavy.group(1)}> belongs into .cpp files")
    return wrong


def banned(path: str, text: str) -> list[str]:
    """What our C++ does not use."""
    code = blank_out(text)
    rules = [(r"(?:\.|->)\s*detach\s*\(\s*\)", "threads are joined, never detached"),
             (r"(?<!asm )\bvolatile\b", "volatile is no synchronisation")]
    if path != "src/base/options.cpp":
        rules.append((r"\b(?:secure_)?getenv\s*\(", "the environment is read in src/base/options.cpp only"))
    if path.startswith("src/") and not is_test(path):
        rules.append((r"\b(?:sleep_for|sleep_until|usleep|nanosleep)\s*\(", "a sleep is no synchronisation"))
    if path != "src/base/pages.cpp" and not is_test(path):
        rules.append((r"\bMADV_POPULATE_\w+", "pages are made to exist by src/base/pages.h"))
    if not re.match(r"src/device/|src/transport/\w+/", path):
        rules.append((VENDOR_CONDITION.pattern, "vendor conditions belong into src/device and the transports' folders"))
    return [f"{path}:{line_of(code, found.start())}: {why}" for pattern, why in rules if (found := re.search(pattern, code))]


def unfinished(path: str, text: str) -> list[str]:
    return [f"{path}:{line_of(text, found.start())}: {found.group()}" for found in UNFINISHED.finditer(text)]


CPP_RULES = (file_length, function_length, layers, transports_apart, transports_unnamed, public_headers, header_form, banned, unfinished)
PYTHON_RULES = (file_length, function_length, header_form, unfinished)


def rules_for(path: str) -> tuple:
    if path.endswith(CPP_SUFFIXES):
        return CPP_RULES
    return PYTHON_RULES if path.endswith(".py") else ()


def source_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for folder in FOLDERS for path in (root / folder).rglob("*")
                  if path.is_file() and rules_for(path.name))


def heavy_headers(texts: dict[str, str]) -> list[str]:
    """No header may bring in one that is meant for .cpp files only, unless it is one itself."""
    heavy = {path.removeprefix("src/") for path, text in texts.items() if path.endswith(".h") and ONLY_FOR_CPP in text}
    return [f"{path}: {name} is for .cpp files only" for path, text in texts.items()
            if path.endswith(".h") and path.removeprefix("src/") not in heavy
            for name in INCLUDE.findall(text) if name in heavy]


def thread_table(texts: dict[str, str], page: str) -> list[str]:
    """The names of our threads are those in the table of docs/architecture.md; a number at their end is an N there."""
    used = {}
    for path, text in texts.items():
        if path.startswith(("src/", "apps/")) and not is_test(path):
            started = re.findall(r'(?:start_thread|repeat)\(\s*(?:format_text\()?"([\w-]+(?:\{\})?)"', text)
            for name in re.findall(r'"(mc-[a-z-]+(?:\{\})?)"', text) + started:
                used[name.replace("{}", "N")] = path
    table = page.rsplit("## 5. Threads", maxsplit=1)[-1].split("\n## ", maxsplit=1)[0]
    names = re.findall(r"^\| [^|]* \| ([^|]*) \|", table, re.MULTILINE)
    known = {name for cell in names for name in re.findall(r"`([a-z][a-z-]*N?)`", cell)}
    return [f"{path}: thread {name} is not in the table of docs/architecture.md" for name, path in sorted(used.items()) if name not in known] + [
        f"docs/architecture.md: there is no thread {name}" for name in sorted(known - used.keys())]


def check_tree(root: Path) -> list[str]:
    texts = {path: (root / path).read_text() for path in source_files(root)}
    wrong = heavy_headers(texts) + thread_table(texts, (root / "docs/architecture.md").read_text())
    for path, text in texts.items():
        for rule in rules_for(path):
            wrong += rule(path, text)
    return wrong
