"""openxla/stablehlo's cases for its interpreter (`stablehlo/tests/interpret`), run here.

    python -m tests.graph.stablehlo_cases FOLDER

prints how many pass, and for each of the others why.  The folder is a checkout's; nothing of it is
in this repository.  Each case is a function that computes something from constants and compares it;
ops of the `check` dialect are rewritten as custom calls of the same meaning.
"""

import collections
import re
import sys
from pathlib import Path

from opentrn.base import TrnError
from opentrn.graph import Graph, evaluate, from_stablehlo
from tests.graph.stablehlo_vectors import passes

SPLIT = re.compile(r"^// -----.*$", re.M)
NAME = re.compile(r"func\.func (?:public |private )?@(\w+)\(\)")
TOLERANCE = r"(?: *(?:, |\{)tolerance = ([\d.e+-]+)(?: : f64)?\}?)?"
CONST = re.compile(r"check\.expect_(almost_eq|eq)_const (%[\w#]+),\s+(dense<(?:[^<>]|<[^<>]*>)*>)"
                   rf"\s*:\s+(tensor<\S*>){TOLERANCE}[ ]*$", re.M)
PAIR = re.compile(rf"check\.expect_(almost_eq|eq) (%[\w#]+), (%[\w#]+){TOLERANCE} "
                  r": (tensor<.*>)[ ]*$", re.M)
CLOSE = re.compile(r"check\.expect_close (%[\w#]+), (%[\w#]+), max_ulp_difference = 3 "
                   r": (tensor<\S*>), tensor<\S*>[ ]*$", re.M)
KINDS = {"check.eq": "check.expect_eq", "check.almost_eq": "check.expect_almost_eq",
         "check.close": "check.expect_close"}
ALMOST = 1e-4  # of check.expect_almost_eq where it names none


def rewritten(text):
    """The text with its checks as custom calls."""
    number = iter(range(10**6))

    def with_constant(found):
        kind, value, wanted, type_, tolerance = found.groups()
        name = f"%expected_{next(number)}"
        return (f"{name} = stablehlo.constant {wanted} : {type_}\n"
                + compared(kind, value, name, type_, tolerance))

    def with_two(found):
        kind, value, wanted, tolerance, type_ = found.groups()
        return compared(kind, value, wanted, type_, tolerance)

    def close(found):
        return compared("close", *found.groups())
    return CLOSE.sub(close, PAIR.sub(with_two, CONST.sub(with_constant, text)))


def compared(kind, value, wanted, type_, tolerance=""):
    """A check as a custom call."""
    how = f', backend_config = "{tolerance}"' if tolerance else ""
    return (f"stablehlo.custom_call @check.{kind}({value}, {wanted}) "
            f"{{has_side_effect = true{how}}} : ({type_}, {type_}) -> ()")


def cases(folder):
    """(file and function, text, function) of each case; several may have one name."""
    for path in sorted(Path(folder).rglob("*.mlir")):
        for part in SPLIT.split(path.read_text()):
            for name in NAME.findall(part):
                yield f"{path.relative_to(folder)}:{name}", part, name


def outcome(text, function):
    """"" for a case that passes, else what is wrong."""
    found = []

    def compare(call):
        found.append((call.attr("call_target_name"), call.attr("backend_config", ""), call.args))
        return ()
    table = dict.fromkeys(KINDS, compare)
    try:
        graph = from_stablehlo(rewritten(text), function=function, custom_calls=table)
        values = [v for _, _, both in found for v in both]
        arrays = evaluate(Graph(graph.inputs, values))
    except TrnError as error:
        return f"{error.code}: {error.what.splitlines()[0]}"
    for i, (name, tolerance, _) in enumerate(found):
        got, want = arrays[2 * i], arrays[2 * i + 1]
        if not passes(KINDS[name], got, want, float(tolerance or ALMOST)):
            return f"fails {name}: {got.reshape(-1)[:4]} for {want.reshape(-1)[:4]}"
    return "" if found else "it checks nothing this program knows"


def main(folder):
    """Print the counts, and each case that does not pass."""
    wrong = [(name, what) for name, text, function in cases(folder)
             if (what := outcome(text, function))]
    total = sum(1 for _ in cases(folder))
    reasons = collections.Counter(what.partition(":")[0] for _, what in wrong)
    lines = [f"{name}: {what}" for name, what in wrong]
    lines += [f"{total - len(wrong)} of {total} pass; {dict(reasons)}", ""]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1])
