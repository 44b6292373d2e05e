"""The house rules as functions: each reads source files and returns its findings, one line each."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "opentrn"

FLOORS = (
    ("base", "hw", "workloads"),
    ("comm", "isa", "sim"),
    ("nki", "graph", "compiler"),
    ("cost", "runtime", "profiler"),
    ("plan", "cluster"),
    ("frameworks", "dropin", "jobs"),
    ("commands",),  # what cli.py does not hold itself
)
_BELOW_THE_DOORS = tuple(room for floor in FLOORS[:-2] for room in floor)

MAY_IMPORT = {
    "base": (),
    "hw": ("base",),
    "workloads": ("base",),
    "comm": ("base", "hw"),
    "isa": ("base", "hw", "comm"),
    "sim": ("base", "hw", "isa", "comm"),
    "nki": ("base", "hw", "isa", "comm", "sim"),
    "graph": ("base",),
    "compiler": ("base", "hw", "isa", "comm", "sim", "nki", "graph"),
    "cost": ("base", "hw", "workloads", "isa", "comm", "graph"),
    "runtime": ("base", "hw", "isa", "comm", "sim"),
    "profiler": ("base", "hw", "isa", "cost"),
    "plan": ("base", "hw", "workloads", "comm", "graph", "cost"),
    "cluster": ("base", "hw", "workloads", "comm", "cost", "plan"),
    "frameworks": _BELOW_THE_DOORS,
    "dropin": _BELOW_THE_DOORS,
    "jobs": _BELOW_THE_DOORS,
    "commands": (*_BELOW_THE_DOORS, "frameworks", "dropin", "jobs"),
}
ROOF = ("__init__.py", "__main__.py", "cli.py", "pytest_plugin.py")
# `functions` is the second half of `numerics`: the element-wise functions, in float32; `blas` its
# way to the one operation of BLAS that NumPy does not offer. `files` writes what users name.
BASE_FILES = {
    "units", "dtypes", "numerics", "functions", "blas", "errors", "clock", "trace", "files",
}  # fmt: skip

CORE_PACKAGES = {"click", "ml_dtypes", "numpy", "rich", "safetensors", "threadpoolctl"}
# "google" is protobuf, which comes with onnx.
HEAVY_PACKAGES = {
    "google", "jax", "jaxlib", "keras", "numba", "onnx", "pyarrow", "ray", "tensorflow", "torch",
    "transformers",
}  # fmt: skip
# The compiled twin of a plain module; nothing imports it unless its package is installed.
NUMBA_TWINS = (
    "sim/accesses_fast.py", "sim/letters_fast.py", "sim/place_fast.py", "sim/regions_fast.py",
    "sim/timing_fast.py",
    "sim/waits_fast.py", "isa/scan_fast.py",
)  # fmt: skip
DRAWERS = {"utils", "util", "common", "core", "helpers", "helper", "manager", "managers", "misc"}
MAY_READ_ENVIRONMENT = (
    "cli.py", "commands/environment.py", "nki/target.py", "dropin/environment.py",
)  # fmt: skip

FILE_LINES = 600
FUNCTION_LINES = 60

MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(work|tmp|farm|root|home)/[A-Za-z0-9_.]+")
REGISTRY_HOST = re.compile(r"https?://[^ ]*(/simple\b|registry\.|packages\.|pythonhosted)")
CODE = re.compile(r"[a-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)+")
EXCUSED_TODO = re.compile(r"TODO\(#\d+\)")


def tracked(root: Path = ROOT) -> list[Path]:
    """Files under version control; without git (an unpacked archive), all that are not made."""
    command = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z", "--cached"]
    if (root / ".git").exists():
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sorted(p for n in names.split("\0") if n and (p := root / n).is_file())
    made = {".venv", "__pycache__", "build", "dist", "out", ".pytest_cache", ".ruff_cache"}
    files = (p for p in root.rglob("*") if p.is_file())
    return sorted(p for p in files if not made & set(p.relative_to(root).parts))


def python_files(root: Path = ROOT) -> list[Path]:
    """Tracked Python files of the package and the yard."""
    return [p for p in tracked(root) if p.suffix == ".py"]


def package_files(package: Path = PACKAGE) -> list[Path]:
    """Python files of the package."""
    return sorted(p for p in package.rglob("*.py") if "__pycache__" not in p.parts)


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


# ---------------------------------------------------------------------------------------- imports


def staircase(table: dict[str, tuple[str, ...]]) -> list[str]:
    """Rooms in an order in which each imports only rooms before it; ValueError if there is none."""
    order: list[str] = []
    while len(order) < len(table):
        free = [r for r, may in table.items() if r not in order and set(may) <= set(order)]
        if not free:
            raise ValueError(f"rooms form a circle: {sorted(set(table) - set(order))}")
        order += free
    return order


def imports(tree: ast.Module) -> Iterator[tuple[int, str, str | None, bool]]:
    """Each import as (line, module, name taken from it or None, whether at module level)."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        top = id(node) not in inside
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None, top
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, module, alias.name, top


def public_names(room: Path) -> set[str] | None:
    """The `__all__` of a room's `__init__.py`; None when it has none."""
    for node in parse(room / "__init__.py").body:
        if isinstance(node, ast.Assign) and any(_is_name(t, "__all__") for t in node.targets):
            strings = [n for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
            return {n.value for n in strings if isinstance(n.value, str)}
    return None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def import_findings(package: Path = PACKAGE) -> list[str]:
    """Imports that go up or right, reach behind a room's public list, or need another package."""
    found = []
    for path in package_files(package):
        inside = path.relative_to(package)
        if len(inside.parts) == 1:
            continue
        room = inside.parts[0]
        twin = inside.as_posix() in NUMBA_TWINS
        for line, module, name, top in imports(parse(path)):
            if twin and module == "numba":
                continue
            why = _refused_import(package, room, module, name, top)
            if why:
                found.append(f"opentrn/{inside.as_posix()}:{line}: {why}")
    return found


def _refused_import(
    package: Path, room: str, module: str, name: str | None, top: bool
) -> str | None:
    """Why a room may not make this import, or None."""
    if module.startswith("."):
        return "relative import"
    parts = module.split(".")
    if parts[0] != "opentrn":
        return _refused_package(parts[0], top)
    if len(parts) == 1:
        if name is None or name == "__version__":
            return None
        parts, name = ["opentrn", name], None
    if parts[1] == room:
        return None
    may = MAY_IMPORT.get(room, ())
    if parts[1] not in may:
        return f"{room} may not import {parts[1]} (it may import {', '.join(may) or 'nothing'})"
    return _behind_the_list(package / parts[1], parts, name)


def _refused_package(package: str, top: bool) -> str | None:
    if package in sys.stdlib_module_names or package in CORE_PACKAGES:
        return None
    if package not in HEAVY_PACKAGES:
        return f"{package} is not among the project's requirements"
    return f"{package} is heavy: import it inside the function that needs it" if top else None


def _behind_the_list(room: Path, parts: list[str], name: str | None) -> str | None:
    """Whether an import passes by the room's `__all__`."""
    wanted = parts[2] if len(parts) > 2 else name
    if wanted is None or not (room / "__init__.py").exists():
        return None
    public = public_names(room)
    if public is None:
        return f"{room.name} has no __all__"
    if wanted in public:
        return None
    return f"{wanted} is not a public name of {room.name}"


def room_findings(package: Path = PACKAGE) -> list[str]:
    """Rooms and roof files that the table does not know; rooms whose `__init__` is not a list."""
    found = []
    for path in package_files(package):
        inside = path.relative_to(package)
        if len(inside.parts) == 1:
            if path.name not in ROOF:
                found.append(f"opentrn/{inside}: a file on the roof that the house does not know")
        elif inside.parts[0] not in MAY_IMPORT:
            found.append(f"opentrn/{inside.as_posix()}: no such room in the table")
        elif len(inside.parts) == 2 and path.name == "__init__.py":
            found += _not_a_list(path, inside.as_posix())
    return sorted(set(found))


def _not_a_list(path: Path, shown: str) -> Iterator[str]:
    """Statements of a room's `__init__` other than docstring, imports, constants and laziness."""
    if public_names(path.parent) is None:
        yield f"opentrn/{shown}: no __all__"
    for node in parse(path).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
        if docstring or lazy or isinstance(node, ast.Import | ast.ImportFrom | ast.Assign):
            continue
        yield f"opentrn/{shown}:{node.lineno}: more than a public list"


# -------------------------------------------------------------------------------- sizes and names


def size_findings(files: list[Path], root: Path = ROOT) -> list[str]:
    """Files over 600 lines and functions over 60."""
    found = []
    for path in files:
        shown = path.relative_to(root).as_posix()
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            found.append(f"{shown}: {lines} lines, at most {FILE_LINES}")
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    where = f"{shown}:{node.lineno}: {node.name}"
                    found.append(f"{where} has {length} lines, at most {FUNCTION_LINES}")
    return found


def name_findings(files: list[Path], root: Path = ROOT) -> list[str]:
    """Files and folders named after nothing in particular."""
    found = []
    for path in files:
        parts = path.relative_to(root).with_suffix("").parts
        found += [f"{'/'.join(parts)}: nothing is called {p} here" for p in parts if p in DRAWERS]
    return found


def base_findings(package: Path = PACKAGE) -> list[str]:
    """Files of `base` other than its nine."""
    names = {p.stem for p in (package / "base").rglob("*.py")} - {"__init__"}
    return [f"opentrn/base/{name}.py: base has nine files" for name in sorted(names - BASE_FILES)]


# ------------------------------------------------------------------------------------ what is said


def text_findings(files: list[Path], root: Path = ROOT) -> list[str]:
    """Paths of one machine, registry hosts, and TODOs that name no issue."""
    found = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            where = f"{path.relative_to(root).as_posix()}:{number}"
            if MACHINE_PATH.search(line):
                found.append(f"{where}: path of a machine")
            if REGISTRY_HOST.search(line):
                found.append(f"{where}: host of a registry")
            if path.suffix == ".py" and re.search(r"#.*\bTODO\b", EXCUSED_TODO.sub("", line)):
                found.append(f"{where}: a TODO carries an issue number, as in TODO(#12)")
    return found


def environment_findings(package: Path = PACKAGE) -> list[str]:
    """Reads of environment variables outside the command line and `nki.target`."""
    found = []
    for path in package_files(package):
        inside = path.relative_to(package).as_posix()
        if inside in MAY_READ_ENVIRONMENT:
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                found.append(f"opentrn/{inside}:{node.lineno}: reads the environment")
    return found


def rounding_findings(package: Path = PACKAGE) -> list[str]:
    """Casts to a 16-bit or narrower float outside `base`: only `base.numerics` rounds."""
    found = []
    for path in package_files(package):
        inside = path.relative_to(package)
        if inside.parts[0] == "base":
            continue
        tree = parse(path)
        lines = [n for n, module, _, _ in imports(tree) if module.split(".")[0] == "ml_dtypes"]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _casts_to_half(node):
                lines.append(node.lineno)
        found += [f"opentrn/{inside.as_posix()}:{n}: rounds; base.numerics does" for n in lines]
    return found


def _casts_to_half(call: ast.Call) -> bool:
    """`x.astype(np.float16)` and `np.float16(x)`."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in ("float16", "half"):
        return _is_name(function.value, "np") or _is_name(function.value, "numpy")
    if isinstance(function, ast.Attribute) and function.attr == "astype" and call.args:
        return ast.unparse(call.args[0]).strip("'\"").removeprefix("np.") in ("float16", "half")
    return False


# ------------------------------------------------------------------------------------ error codes


def codes_used(files: list[Path], root: Path = ROOT) -> dict[str, str]:
    """Every literal `code="..."` of a call -> the place that uses it."""
    used = {}
    for path in files:
        for node in ast.walk(parse(path)):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                value = getattr(keyword.value, "value", None)
                if keyword.arg == "code" and isinstance(value, str) and CODE.fullmatch(value):
                    place = f"{path.relative_to(root).as_posix()}:{node.lineno}"
                    used.setdefault(value, place)
    return used


def codes_declared(files: list[Path]) -> set[str]:
    """Every literal first argument of `declare(...)`."""
    declared = set()
    for path in files:
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            if name == "declare" or _is_name(node.func, "declare"):
                first = node.args[0]
                declared |= {first.value} if isinstance(first, ast.Constant) else set()
    return declared


def neuron_codes_used(files: list[Path], root: Path = ROOT) -> dict[str, str]:
    """Every literal `neuron="..."` of a call -> the place that uses it."""
    used = {}
    for path in files:
        for node in ast.walk(parse(path)):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                value = getattr(keyword.value, "value", None)
                if keyword.arg == "neuron" and isinstance(value, str) and value:
                    used.setdefault(value, f"{path.relative_to(root).as_posix()}:{node.lineno}")
    return used


def parts_used(files: list[Path], root: Path = ROOT) -> dict[str, str]:
    """Every literal part of an instruction's `bad(kind, what, rule, fix, part)` -> its place."""
    used = {}
    for path in files:
        for node in ast.walk(parse(path)):
            bad = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "bad"
            if bad and len(node.args) == 5 and isinstance(node.args[4], ast.Constant):
                place = f"{path.relative_to(root).as_posix()}:{node.lineno}"
                used.setdefault(node.args[4].value, place)
    return used


# ----------------------------------------------------------------------------------- requirements


def project() -> dict:
    """pyproject.toml's [project] table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lock_findings(lock: str, requirements: list[str]) -> list[str]:
    """Lines of a lock that are not `name==version`, and requirements it does not satisfy."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found, pinned = [], {}
    for number, line in enumerate(lock.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)
        if match is None:
            found.append(f"line {number}: not of the form name==version: {line}")
        elif canonicalize_name(match[1]) in pinned:
            found.append(f"line {number}: {match[1]} is pinned twice")
        else:
            pinned[canonicalize_name(match[1])] = match[2]
    for text in requirements:
        wanted = Requirement(text)
        have = pinned.get(canonicalize_name(wanted.name))
        if have is None or have not in wanted.specifier:
            found.append(f"{text} is wanted, {have or 'nothing'} is pinned")
    return found
