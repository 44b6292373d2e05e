"""One definition, nothing silent: every instruction, op and error code is whole."""

import importlib
import pkgutil

import pytest

from tests.house import rules

GRADES = ("stated", "fitted", "derived", "assumed")


def room_exists(room):
    return (rules.PACKAGE / room / "__init__.py").exists()


def missing_of_instruction(kind):
    """What an instruction class lacks: meaning in words, meaning in code, cost with its source."""
    missing = [] if (kind.__doc__ or "").strip() else ["docstring"]
    missing += [] if callable(getattr(kind, "run", None)) else ["run"]
    missing += [] if callable(getattr(kind, "rules", None)) else ["rules"]
    law = getattr(kind, "cycles", None) or getattr(kind, "transfer", None)
    if law is None:
        return [*missing, "cycles or transfer"]
    if getattr(law, "grade", None) not in GRADES:
        missing.append("grade of its cost")
    if not str(getattr(law, "source", "")).strip():
        missing.append("source of its cost")
    return missing


def missing_of_op(kind, base):
    """What a graph op lacks: meaning in words, shape rule, meaning in code, flops, bytes."""
    missing = [] if (kind.__doc__ or "").strip() else ["docstring"]
    for name in ("result", "evaluate", "flops", "traffic"):
        own = getattr(kind, name, None)
        if own is None or own is getattr(base, name, None):
            missing.append(name)
    return missing


def test_every_instruction_is_whole():
    isa = importlib.import_module("opentrn.isa")
    assert len(isa.INSTRUCTIONS) > 20
    missing = {n: missing_of_instruction(kind) for n, kind in isa.INSTRUCTIONS.items()}
    assert {n: m for n, m in missing.items() if m} == {}


def test_every_graph_op_is_whole():
    define = importlib.import_module("opentrn.graph.ops.define")
    importlib.import_module("opentrn.graph")
    assert len(define.OPS) > 40
    missing = {n: missing_of_op(kind, define.Op) for n, kind in define.OPS.items()}
    assert {n: m for n, m in missing.items() if m} == {}


def test_half_made_instructions_and_ops_are_found():
    class Law:
        grade, source = "guessed", " "

    class Bare:
        pass

    class Priced:
        """Formula."""

        cycles = Law
        run = rules = print

    class Op:
        def flops(self):
            raise NotImplementedError

    class Free(Op):
        """An op without a cost of its own."""

        result = evaluate = traffic = print

    assert missing_of_instruction(Bare) == ["docstring", "run", "rules", "cycles or transfer"]
    assert missing_of_instruction(Priced) == ["grade of its cost", "source of its cost"]
    assert missing_of_op(Free, Op) == ["flops"]


# ------------------------------------------------------------------------------------------ codes


def import_everything():
    """Import every module of every room that is laid: that is when codes are declared."""
    for room in rules.MAY_IMPORT:
        if room_exists(room):
            package = importlib.import_module(f"opentrn.{room}")
            for found in pkgutil.walk_packages(package.__path__, f"opentrn.{room}."):
                importlib.import_module(found.name)


def unexplained(used, declared, explain):
    """Codes in use that nothing explains, with the place of use."""
    return {
        code: place for code, place in used.items() if code not in declared and not explain(code)
    }


def test_every_error_code_can_be_explained():
    from opentrn import base

    import_everything()
    files = rules.package_files()
    declared = rules.codes_declared(files) | set(base.codes())
    assert len(declared) > 10
    explain = importlib.import_module("opentrn.isa").explain
    assert unexplained(rules.codes_used(files), declared, explain) == {}


def test_every_part_an_instruction_complains_of_can_be_explained():
    isa = importlib.import_module("opentrn.isa")
    used = rules.parts_used(rules.package_files())
    assert len(used) > 3
    named = {p for kind in isa.INSTRUCTIONS.values() for p in [*kind.dims, *kind.parameters]}
    common = {p for p in used if isa.explain(f"nc_matmul.{p}")}
    assert {p: place for p, place in used.items() if p not in named | common} == {}


def test_every_neuron_code_we_print_can_be_looked_up():
    from opentrn import base

    import_everything()
    told = {base.explanation(code).neuron for code in base.codes()}
    used = rules.neuron_codes_used(rules.package_files())
    assert used
    assert {code: place for code, place in used.items() if code not in told} == {}


def test_neuron_codes_are_found(sample):
    text = "declare('a.b', 'm', neuron='NRT_1')\ni.bad(K, 'w', neuron='NCC_2')\nf(neuron='')\n"
    root = sample({"isa/a.py": text})
    used = rules.neuron_codes_used([root / "isa" / "a.py"], root)
    assert used == {"NRT_1": "isa/a.py:1", "NCC_2": "isa/a.py:2"}


def test_parts_are_found(sample):
    text = "def f(i):\n    i.bad(K, 'w', 'r', 'f', 'odd')\n    i.bad(K, 'w', 'r', 'f', name)\n"
    root = sample({"isa/a.py": text})
    assert rules.parts_used([root / "isa" / "a.py"], root) == {"odd": "isa/a.py:2"}


def test_unexplained_codes_are_found(sample):
    text = (
        "declare('sim.known', 'meaning')\nbase.declare('sim.other', 'meaning')\n"
        "def f():\n    raise ShapeError('x', code='sim.known')\n"
        "def g():\n    raise ShapeError('x', code='sim.silent')\n"
        "def h():\n    raise ShapeError('x', code='memset.value')\n"
        "sys.exit(code='word')\n"
    )
    root = sample({"sim/a.py": text})
    files = [root / "sim" / "a.py"]
    assert rules.codes_declared(files) == {"sim.known", "sim.other"}
    used = rules.codes_used(files, root)
    found = unexplained(used, rules.codes_declared(files), {"memset.value": "explained"}.get)
    assert found == {"sim.silent": "sim/a.py:6"}


# ----------------------------------------------------------------------------------- public names


def missing_names(module):
    """Names of a module's `__all__` that it does not have."""
    return [name for name in module.__all__ if not hasattr(module, name)]


@pytest.mark.parametrize("room", ["", *(r for r in rules.MAY_IMPORT if room_exists(r))])
def test_public_names_are_there(room):
    module = importlib.import_module(f"opentrn.{room}".rstrip("."))
    assert module.__all__
    assert missing_names(module) == []


def test_absent_public_names_are_found():
    class Room:
        __all__ = ("here", "gone")
        here = 1

    assert missing_names(Room) == ["gone"]


def test_what_is_not_public_is_not_there():
    import opentrn

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = opentrn.nothing
    assert opentrn.base is importlib.import_module("opentrn.base")
