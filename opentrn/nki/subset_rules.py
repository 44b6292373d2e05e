"""The rules of NKI's Python: what each forbids, where that is documented, and what to write.

Sources, named in each rule: "guide", the NKI language guide of SDK 2.32; "notes", the NKI release
notes; "front end", the published source of the compiler's front end (github.com/leanprover/KLR,
2026-03-25: `interop/klr/gather.c` says which statements and expressions it takes in,
`KLR/NKI/Simplify.lean` which of those it keeps, `KLR/Trace/Python.lean` which builtins it has).
"""

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from opentrn.base import declare


class Rule(NamedTuple):
    """One limit: its sentence, what to write instead, and where the limit is documented."""

    rule: str
    fix: str
    source: str

    def text(self) -> tuple[str, str]:
        """The sentence with its source, and the fix."""
        return f"{self.rule} [{self.source}]", self.fix


_GATHER = "front end, gather.c: stmt"
_EXPR = "front end, gather.c: expr"
_SIMPLE = "front end, Simplify.lean"

RULES: dict[str, Rule] = {
    "try": Rule(
        "kernels have no try statement", "test with if before, or assert", _GATHER
    ),
    "raise": Rule("kernels do not raise", "use assert for what must hold", _GATHER),
    "with": Rule(
        "the only with block is `with nl.no_reorder():`, without arguments and without a name",
        "open and close what the block stood for by calls",
        "front end, Simplify.lean: withBlock; Trace/NKI.lean",
    ),
    "generator": Rule("functions return, they do not yield", "return a list or tuple", _EXPR),
    "lambda": Rule("there are no lambda expressions", "define a function in the module", _EXPR),
    "comprehension": Rule(
        "there are no comprehensions and no generator expressions",
        "start with [] (or a dict) and append in a for loop",
        _EXPR,
    ),
    "walrus": Rule("`:=` is not an expression of NKI", "assign in a statement before", _EXPR),
    "set": Rule(
        "containers are tuples, lists, dictionaries with string keys, and simple classes",
        "use a list or tuple",
        "guide, NKI Values; front end, gather.c: expr",
    ),
    "global": Rule(
        "kernels cannot assign to names of an outer scope (they are pure functions)",
        "pass the value as an argument, or a dictionary that holds it",
        "guide, Kernel Caching; front end, gather.c: stmt",
    ),
    "import": Rule("kernels do not import", "import at the top of the file", _GATHER),
    "nested": Rule(
        "functions and classes are defined outside functions; only the body of nl.fori_loop and "
        "nl.while_loop may stand inside",
        "move the definition to the module",
        "front end, gather.c: stmt; NKI 0.6 stubs, fori_loop",
    ),
    "del": Rule("there is no del statement", "leave it out: a tile ends at its last use", _GATHER),
    "match": Rule("there is no match statement", "use if and elif", _GATHER),
    "type": Rule("there is no type statement", "define the alias in the module", _GATHER),
    "async": Rule("kernels are synchronous", "leave out async and await", _GATHER),
    "loop_else": Rule("for and while have no else", "set a flag before break", _SIMPLE + ": stmt"),
    "loop_target": Rule(
        "a for loop binds one name",
        "index inside the loop: `for i in range(len(xs))`, then `a, b = xs[i]`",
        _SIMPLE + ": forLoop",
    ),
    "is": Rule(
        "`is` and `is not` are taken as == and != with a warning, except with None",
        "use == and !=",
        "notes 0.3.0, Breaking Changes; front end, Simplify.lean: cmpOp",
    ),
    "in": Rule(
        "`in` stands alone, not inside a chain of comparisons", "split the chain with and",
        _SIMPLE + ": cmpOp",
    ),
    "matmul": Rule("there is no @ operator", "call nisa.nc_matmul", _SIMPLE + ": binOp"),
    "star": Rule(
        "arguments and elements are not unpacked with * or **",
        "write them out",
        _SIMPLE + ": starred, keywords",
    ),
    "varargs": Rule(
        "functions have no *args (and **kwargs must be empty)",
        "name every parameter; pass a tuple for a variable number",
        _SIMPLE + ": params",
    ),
    "keyword_only": Rule(
        "functions have no parameters that are keywords only",
        "drop the `*`, and move parameters with defaults to the end",
        "NKI 0.3 update guide, language restrictions",
    ),
    "dict_key": Rule(
        "dictionary keys are strings", "use string literals, or a list", "guide, NKI Values"
    ),
    "format": Rule(
        "f-strings take no format specifiers (`{x:.2f}`)", "leave the specifier out", _EXPR
    ),
    "number": Rule(
        "numbers are 32-bit integers and 32-bit floats", "use values that fit", "guide, NKI Values"
    ),
    "builtin": Rule(
        "the compiler has: abs bool dict divmod float int isinstance len list max min print range "
        "slice str tuple type",
        "write the loop out",
        "front end, Trace/Python.lean",
    ),
    "library": Rule(
        "of libraries the compiler has math.{ceil floor gcd log2 log10 pow sqrt pi e inf nan}",
        "compute the value outside the kernel and pass it, or bind it to a name in the module",
        "front end, Trace/Python.lean, Trace/NKI.lean: shouldKeep",
    ),
    "decorator": Rule(
        "decorators are nki.jit, dataclass and staticmethod",
        "call the function directly",
        _SIMPLE + ": decorator",
    ),
    "class": Rule(
        "classes of kernels inherit from NKIObject (or Enum, NamedTuple) and nothing else, and "
        "hold fields and methods only",
        "derive from nl.NKIObject; keep other classes outside the kernel",
        "guide, Class Support; front end, gather.c: class",
    ),
    "list_argument": Rule(
        "kernel arguments are not lists", "pass a tuple", "notes 0.3.0, Breaking Changes"
    ),
}

for _name, _rule in RULES.items():
    declare(
        f"nki.python_{_name}",
        "The kernel's Python runs here and would not compile for the chip.",
        *_rule.text(),
    )

# breakpoint() is a debugging aid, taken out before compiling; the others the compiler has.
BUILTINS = frozenset(
    ("abs", "bool", "dict", "divmod", "float", "int", "isinstance", "len", "list", "max", "min")
    + ("print", "range", "slice", "str", "tuple", "type", "breakpoint")
)
MATH = frozenset(("ceil", "floor", "gcd", "log2", "log10", "pow", "sqrt"))
DECORATORS = frozenset(("jit", "dataclass", "staticmethod"))
BASES = frozenset(("NKIObject", "Enum", "NamedTuple"))
_LARGEST = 2**32

Problems = Iterator[tuple[str, str]]


def _always(rule: str, what: str) -> Callable[[ast.AST], Problems]:
    return lambda node: iter([(rule, what)])


def _with(node: ast.With) -> Problems:
    item = node.items[0]
    text = ast.unparse(item.context_expr)
    known = text.removesuffix("()").rpartition(".")[2] == "no_reorder" and text.endswith("()")
    if len(node.items) != 1 or not known or item.optional_vars:
        yield "with", f"`with {ast.unparse(item)}`"


def _for(node: ast.For) -> Problems:
    if node.orelse:
        yield "loop_else", "for has an else"
    if not isinstance(node.target, ast.Name):
        yield "loop_target", f"the loop binds `{ast.unparse(node.target)}`"


def _while(node: ast.While) -> Problems:
    if node.orelse:
        yield "loop_else", "while has an else"


def _outer(node: ast.Global | ast.Nonlocal) -> Problems:
    kind = type(node).__name__.lower()
    yield "global", f"`{kind} {', '.join(node.names)}`"


def _compare(node: ast.Compare) -> Problems:
    for op, right in zip(node.ops, node.comparators, strict=True):
        none = isinstance(right, ast.Constant) and right.value is None
        if isinstance(op, ast.Is | ast.IsNot) and not (none and len(node.ops) == 1):
            yield "is", f"`{ast.unparse(node)}`"
        if isinstance(op, ast.In | ast.NotIn) and len(node.ops) > 1:
            yield "in", f"`{ast.unparse(node)}`"


def _binary(node: ast.BinOp) -> Problems:
    if isinstance(node.op, ast.MatMult):
        yield "matmul", f"`{ast.unparse(node)}`"


def _call(node: ast.Call) -> Problems:
    for one in node.keywords:
        if one.arg is None:
            yield "star", f"`**{ast.unparse(one.value)}` in a call"


def _dict(node: ast.Dict) -> Problems:
    for key in node.keys:
        if key is None:
            yield "star", "`**` in a dictionary"
        elif not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            yield "dict_key", f"the key `{ast.unparse(key)}`"


def _format(node: ast.FormattedValue) -> Problems:
    if node.format_spec is not None:
        yield "format", "a format specifier in an f-string"


def _constant(node: ast.Constant) -> Problems:
    value = node.value
    if isinstance(value, complex | bytes):
        yield "number", f"the literal {value!r}"
    elif isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        yield "number", f"the integer {value}"


_COMPREHENSIONS = {
    ast.ListComp: "a list comprehension",
    ast.SetComp: "a set comprehension",
    ast.DictComp: "a dictionary comprehension",
    ast.GeneratorExp: "a generator expression",
}

STATEMENTS: dict[type, Callable[[ast.AST], Problems]] = {
    ast.Try: _always("try", "a try statement"),
    ast.TryStar: _always("try", "a try statement"),
    ast.Raise: _always("raise", "a raise statement"),
    ast.With: _with,
    ast.AsyncWith: _always("async", "async with"),
    ast.AsyncFor: _always("async", "async for"),
    ast.AsyncFunctionDef: _always("async", "an async function"),
    ast.For: _for,
    ast.While: _while,
    ast.Global: _outer,
    ast.Nonlocal: _outer,
    ast.Import: _always("import", "an import inside a function"),
    ast.ImportFrom: _always("import", "an import inside a function"),
    ast.Delete: _always("del", "a del statement"),
    ast.Match: _always("match", "a match statement"),
}
"""Statements the compiler refuses, or takes in one form only -> what is wrong with a node."""

EXPRESSIONS: dict[type, Callable[[ast.AST], Problems]] = {
    ast.Lambda: _always("lambda", "a lambda expression"),
    ast.NamedExpr: _always("walrus", "an assignment expression"),
    ast.Yield: _always("generator", "yield"),
    ast.YieldFrom: _always("generator", "yield from"),
    ast.Await: _always("async", "await"),
    ast.Set: _always("set", "a set"),
    ast.Starred: _always("star", "an unpacking with *"),
    ast.Compare: _compare,
    ast.BinOp: _binary,
    ast.Call: _call,
    ast.Dict: _dict,
    ast.FormattedValue: _format,
    ast.Constant: _constant,
    **{kind: _always("comprehension", name) for kind, name in _COMPREHENSIONS.items()},
}
"""Expressions the compiler refuses, or takes in one form only -> what is wrong with a node."""


def parameter_problems(node: ast.FunctionDef) -> Iterator[tuple[str, ast.AST, str]]:
    """(rule, node, what) of parameters the compiler has no place for."""
    for one, star in ((node.args.vararg, "*"), (node.args.kwarg, "**")):
        if one is not None:
            yield "varargs", one, f"`{node.name}` takes {star}{one.arg}"
    if node.args.kwonlyargs and node.args.vararg is None:
        first = node.args.kwonlyargs[0]
        yield "keyword_only", first, f"`{node.name}` has `{first.arg}` after a `*`"


def class_problems(node: ast.ClassDef) -> Iterator[tuple[str, ast.AST, str]]:
    """(rule, node, what) of a class that the compiler would not take in."""
    bases = [getattr(b, "attr", getattr(b, "id", ast.unparse(b))) for b in node.bases]
    if not bases or not set(bases) <= BASES:
        yield "class", node, f"the class `{node.name}` derives from {', '.join(bases) or 'nothing'}"
    if node.keywords:
        yield "class", node, f"the class `{node.name}` has class keywords"
    for one in node.decorator_list:
        target = one.func if isinstance(one, ast.Call) else one
        if getattr(target, "attr", getattr(target, "id", "")) not in DECORATORS:
            yield "decorator", node, f"the decorator `{ast.unparse(target)}`"
    for one in node.body:
        text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        known = isinstance(one, ast.Pass | ast.Assign | ast.AnnAssign | ast.FunctionDef)
        if not (text or known):
            yield "class", one, f"the class `{node.name}` holds a {type(one).__name__} statement"


__all__ = [
    "BUILTINS",
    "DECORATORS",
    "EXPRESSIONS",
    "MATH",
    "RULES",
    "STATEMENTS",
    "Rule",
    "class_problems",
    "parameter_problems",
]
