"""What the NKI compiler accepts of Python: a kernel and its helpers, read without running them.

A kernel runs here as ordinary Python, so everything Python has works; the compiler takes a
smaller language and refuses the rest.  `examine` reads the kernel's source and that of every
function and class it reaches, and reports each construct that would not compile, with the place
where the limit is documented.  `opentrn.nki.subset_rules` holds the rules.
"""

import ast
import builtins
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from opentrn.base import Where
from opentrn.nki.jit import Kernel
from opentrn.nki.newer import FIRST as NEWER
from opentrn.nki.subset_rules import (
    BUILTINS,
    DECORATORS,
    EXPRESSIONS,
    MATH,
    RULES,
    STATEMENTS,
    class_problems,
    parameter_problems,
)
from opentrn.nki.versions import before, current_version
from opentrn.sim import Finding

# Functions whose argument may be a function defined inside the kernel: the bodies of device loops.
LOOPS = ("fori_loop", "while_loop")
# What NKI 0.3 began to refuse (update guide, language restrictions).
SINCE_03 = ("is", "keyword_only", "list_argument")
_ABSENT = object()
_STDLIB = sysconfig.get_path("stdlib")
_PLATLIB = sysconfig.get_path("platlib")


def examine(kernel: Callable, arguments: Any = ()) -> list[Finding]:
    """Every construct in `kernel`, and in what it calls, that the NKI compiler would refuse.

    `arguments` are values the kernel is called with; their classes are read too.  Functions
    without Python source (and those of OpenTrn, NumPy and the standard library) are not followed.
    The findings are in the order of the source, those of the kernel's own file first.
    """
    if current_version() >= NEWER:
        return []  # the compiler of 0.7 runs the kernel's Python, and takes all of it
    reader = _Reader()
    first = kernel.func if isinstance(kernel, Kernel) else kernel
    reader.reach(first)
    for value in arguments:
        if isinstance(value, list):
            reader.note("list_argument", _line_of(first), "a list is among the arguments")
        reader.reach(type(value))
    while reader.waiting:
        reader.read(reader.waiting.pop(0))
    home = getattr(getattr(first, "__code__", None), "co_filename", "")
    return sorted(reader.findings, key=lambda f: (f.where.file != home, f.where.file, f.where.line))


def _line_of(func: Callable) -> Where:
    code = func.__code__
    return Where(code.co_filename, code.co_firstlineno, func.__name__)


class _Reader:
    """The sources still to read, and what has been found."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.findings: list[Finding] = []
        self._known: set[int] = set()
        self._kept: list[Any] = []
        self._noted: set[tuple] = set()

    def reach(self, thing: Any) -> None:
        """Remember a function or class that kernel code uses, when its source is the user's."""
        if isinstance(thing, Kernel):
            thing = thing.func
        thing = inspect.unwrap(thing) if hasattr(thing, "__wrapped__") else thing
        if not isinstance(thing, FunctionType | type) or id(thing) in self._known:
            return
        self._known.add(id(thing))
        self._kept.append(thing)
        if _is_users(thing):
            self.waiting.append(thing)

    def note(self, rule: str, where: Where, what: str) -> None:
        """Report a construct once for each line."""
        if rule in SINCE_03 and before("0.3"):
            return
        known = RULES[rule]
        code = f"nki.python_{rule}"
        if (code, where.file, where.line, what) not in self._noted:
            self._noted.add((code, where.file, where.line, what))
            self.findings.append(
                Finding(code, f"runs here, would not compile: {what}", where, *known.text())
            )

    def read(self, thing: Any) -> None:
        """Check one function, or a class with its methods."""
        source = _source(thing)
        if source is None:
            return
        tree, file, first = source
        if isinstance(tree, ast.ClassDef):
            scope = _Scope(self, file, first, thing.__name__, _class_names(thing))
            for rule, node, what in class_problems(tree):
                scope.note(rule, node, what)
            for node in tree.body:
                if isinstance(node, ast.FunctionDef):
                    _check_function(scope, node)
        else:
            _check_function(_Scope(self, file, first, thing.__name__, _names(thing)), tree)


def _is_users(thing: Any) -> bool:
    """Whether the source is a kernel author's: not Python's, not NumPy's, not ours."""
    # Functions of older NKI versions call themselves `nki`; where they are written tells.
    written = getattr(thing, "__globals__", {}).get("__name__")
    module = written or getattr(thing, "__module__", None) or ""
    top = module.partition(".")[0]
    if top == "opentrn":
        return module.startswith("opentrn.nki.kernels")
    return top not in ("numpy", "ml_dtypes", "torch", "jax") and not (
        top in sys.stdlib_module_names or top == "builtins"
    )


def _source(thing: Any) -> tuple[ast.AST, str, int] | None:
    """The definition's syntax tree, its file, and the line before its first; None without one."""
    try:
        lines, first = inspect.getsourcelines(thing)
        file = inspect.getsourcefile(thing) or ""
        body = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError):
        return None
    if body and isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return body[0], file, first - 1
    return None


def _names(func: FunctionType) -> Callable[[str], Any]:
    """How a function's free names resolve: closure, module, builtins."""
    cells = dict(zip(func.__code__.co_freevars, func.__closure__ or (), strict=True))

    def look(name: str) -> Any:
        if name in cells:
            try:
                return cells[name].cell_contents
            except ValueError:
                return _ABSENT
        return func.__globals__.get(name, getattr(builtins, name, _ABSENT))

    return look


def _class_names(cls: type) -> Callable[[str], Any]:
    module = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    for value in vars(cls).values():
        if isinstance(value, FunctionType):
            module = value.__globals__
            break
    return lambda name: module.get(name, getattr(builtins, name, _ABSENT))


class _Scope:
    """One function (or class) being read: where its lines are, what its names mean."""

    def __init__(self, reader: _Reader, file: str, before: int, name: str, look: Callable) -> None:
        self.reader, self.file, self.before = reader, file, before
        self.name, self.look = name, look
        self.locals: set[str] = set()

    def note(self, rule: str, node: ast.AST, what: str) -> None:
        """Report a construct at its line of the file."""
        self.reader.note(rule, Where(self.file, self.before + node.lineno, self.name), what)

    def resolve(self, node: ast.AST) -> Any:
        """What a name, or a chain of attributes of modules and classes, stands for."""
        if isinstance(node, ast.Name):
            return _ABSENT if node.id in self.locals else self.look(node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            if isinstance(base, ModuleType | type):
                return getattr(base, node.attr, _ABSENT)
        return _ABSENT


def _check_function(scope: _Scope, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Apply every rule to one definition (decorators, parameters, body)."""
    scope.locals = set(_assigned(node))
    if isinstance(node, ast.AsyncFunctionDef):
        scope.note("async", node, f"`{node.name}` is an async function")
    for one in node.decorator_list:
        _check_decorator(scope, one)
    for rule, where, what in parameter_problems(node):
        scope.note(rule, where, what)
    bodies = _loop_bodies(node)
    for statement in node.body:
        _check_tree(scope, statement, bodies)


def _assigned(node: ast.FunctionDef) -> Iterator[str]:
    """Names the function binds itself: parameters and everything it stores into."""
    every = node.args
    for one in [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]:
        if one is not None:
            yield one.arg
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef) and inner is not node:
            yield inner.name


def _loop_bodies(node: ast.FunctionDef) -> set[str]:
    """Names of inner functions that are the body of a device loop, which may stand inside."""
    found = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _last_name(call.func) in LOOPS:
            given = [*call.args, *[k.value for k in call.keywords]]
            found |= {one.id for one in given if isinstance(one, ast.Name)}
    return found


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _check_decorator(scope: _Scope, node: ast.expr) -> None:
    target = node.func if isinstance(node, ast.Call) else node
    name = _last_name(target)
    if name not in DECORATORS:
        scope.note("decorator", node, f"the decorator `{ast.unparse(target)}`")


def _check_tree(scope: _Scope, node: ast.AST, bodies: set[str]) -> None:
    """Apply the rules to a statement or expression and to everything inside it."""
    if isinstance(node, ast.FunctionDef):
        _check_inner(scope, node, bodies)
        return
    if isinstance(node, ast.ClassDef):
        scope.note("nested", node, f"the class `{node.name}` is defined inside a function")
        return
    check = STATEMENTS.get(type(node)) or EXPRESSIONS.get(type(node))
    for rule, what in check(node) if check else ():
        scope.note(rule, node, what)
    if isinstance(node, ast.Call):
        _check_call(scope, node)
    elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        _check_reference(scope, node)
    if isinstance(node, ast.AnnAssign):
        inside = [node.target, node.value]
    else:
        inside = ast.iter_child_nodes(node)
    for child in inside:
        if child is not None:
            _check_tree(scope, child, bodies)


def _check_inner(scope: _Scope, node: ast.FunctionDef, bodies: set[str]) -> None:
    """A function inside a function: only the body of a device loop may be one."""
    if node.name not in bodies:
        scope.note("nested", node, f"the function `{node.name}` is defined inside a function")
    for statement in node.body:
        _check_tree(scope, statement, bodies | _loop_bodies(node))


def _check_call(scope: _Scope, node: ast.Call) -> None:
    """Builtins and library functions the compiler knows; users' functions are read next."""
    made = scope.resolve(node.func)
    module = getattr(made, "__module__", None) or ""
    if module.partition(".")[0] == "numpy":
        scope.note("library", node, f"`{ast.unparse(node.func)}` of NumPy")
    elif module == "math" and made.__name__ not in MATH:
        scope.note("library", node, f"`{ast.unparse(node.func)}`")


def _check_reference(scope: _Scope, node: ast.Name | ast.Attribute) -> None:
    made = scope.resolve(node)
    if made is _ABSENT:
        return
    scope.reader.reach(made)
    module = getattr(made, "__module__", None)
    if module != "builtins" or not isinstance(made, BuiltinFunctionType | type):
        return
    if isinstance(node, ast.Name) and made.__name__ not in BUILTINS:
        is_error = isinstance(made, type) and issubclass(made, BaseException)
        if not is_error:  # those stand in `raise` and `except`, which are findings themselves
            scope.note("builtin", node, f"the builtin `{node.id}`")


__all__ = ["examine"]
