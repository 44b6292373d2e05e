"""StableHLO programs become graphs: values against NumPy and SciPy, lines, refusals, bad input."""

import io
import math
import random
import signal

import numpy as np
import pytest

from opentrn.base import FileFormatError, NotBuiltError, TrnError, UnsupportedError, UsageError
from opentrn.graph import evaluate, from_stablehlo, read, write

pytest.importorskip("jaxlib", reason="StableHLO is read through jaxlib (the extra `jax`)")


def program(body, takes="", gives="", more=""):
    """A module whose `main` has these arguments, results and lines."""
    arrow = f" -> ({gives})" if gives else ""
    return f"module {{\n func.func public @main({takes}){arrow} {{\n{body}\n }}\n{more}}}"


def run(text, *arrays, **options):
    """The outputs; the graph goes through its text form on the way."""
    graph = from_stablehlo(text, **options)
    return evaluate(read(write(graph)), [np.asarray(a) for a in arrays])


def ops(text):
    return from_stablehlo(text).histogram()


LINE = 'loc("model.py":7:3)'
ADD = program(f"  %0 = stablehlo.add %a, %a : tensor<3xf32> {LINE}\n  return %0 : tensor<3xf32>",
              "%a: tensor<3xf32>", "tensor<3xf32>")
X = np.float32([1, -2, 3.5])

# ------------------------------------------------------------------------------- forms of programs


def modules():
    from opentrn.graph.importers.stablehlo_mlir import context, parse

    module = parse(ADD)
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    generic = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    with context():
        from jaxlib.mlir.dialects import stablehlo
        portable = stablehlo.serialize_portable_artifact(parse(ADD), "1.0.0")
    return {"text": ADD, "bytes": ADD.encode(), "generic": generic, "module": module,
            "bytecode": bytecode.getvalue(), "portable": portable}


@pytest.mark.parametrize("form", ["text", "bytes", "generic", "module", "bytecode", "portable"])
def test_every_form_gives_one_graph(form):
    graph = from_stablehlo(modules()[form])
    assert graph.outputs == from_stablehlo(ADD).outputs
    assert evaluate(graph, [X])[0].tolist() == [2, -4, 7]
    assert [v.attrs.label for v in graph.inputs] == ["arg0"]


def test_lines_of_the_program_are_kept():
    where = from_stablehlo(ADD).outputs[0].where
    assert (where.file, where.line) == ("model.py", 7)
    chain = ADD.replace(LINE, 'loc(callsite("f"("/lib/site-packages/flax/nn.py":3:1) at '
                              '"model"("mine.py":12:5)))')
    where = from_stablehlo(chain).outputs[0].where
    assert (where.file, where.line) == ("mine.py", 12)


def test_a_function_can_be_named():
    text = ADD.replace("@main", "@other")
    assert from_stablehlo(text, function="other").name == "other"
    assert from_stablehlo(text).name == "other"  # the only one
    with pytest.raises(UsageError, match="no function nowhere"):
        from_stablehlo(text, function="nowhere")


def test_functions_are_put_in_place():
    text = program("""  %0 = func.call @twice(%a) : (tensor<3xf32>) -> tensor<3xf32>
      %1 = func.call @twice(%0) : (tensor<3xf32>) -> tensor<3xf32>
      return %1 : tensor<3xf32>""", "%a: tensor<3xf32>", "tensor<3xf32>", """
      func.func private @twice(%x: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %x, %x : tensor<3xf32>
        return %0 : tensor<3xf32> }""")
    assert run(text, X)[0].tolist() == (4 * X).tolist()
    endless = text.replace("stablehlo.add %x, %x :", "func.call @twice(%x) : (tensor<3xf32>) ->")
    with pytest.raises(UnsupportedError, match="twice calls itself"):
        from_stablehlo(endless)


# --------------------------------------------------------------------------------------- constants

CONSTANTS = [
    ("tensor<3xf32>", "[1.5, -2.0, 0x7FC00000]", np.float32([1.5, -2, np.nan])),
    ("tensor<2xf64>", "[0.1, 1.0e300]", np.float64([0.1, 1e300])),
    ("tensor<2xf16>", "[0.5, 65504.0]", np.float16([0.5, 65504])),
    ("tensor<3xbf16>", "[1.0, 3.140630e+00, 0xFF80]", np.float32([1, 3.140625, -np.inf])),
    ("tensor<2xbf16>", '"0x803F0040"', np.float32([1, 2])),
    ("tensor<2xf8E4M3FN>", "[1.5, -448.0]", np.float32([1.5, -448])),
    ("tensor<2xf8E5M2>", "[0.25, 0x7C]", np.float32([0.25, np.inf])),
    ("tensor<2xi1>", "[true, false]", np.array([True, False])),
    ("tensor<2xi8>", "[-128, 127]", np.int8([-128, 127])),
    ("tensor<2xui8>", "[200, 255]", np.uint8([200, 255])),
    ("tensor<2xui64>", "[0, 18446744073709551615]", np.uint64([0, 2**64 - 1])),
    ("tensor<2xi4>", "[-8, 7]", np.int8([-8, 7])),
    ("tensor<2xui4>", "[0, 15]", np.uint8([0, 15])),
    ("tensor<2xcomplex<f32>>", "[(1.0, -2.0), (0.5, 3.0)]", np.complex64([1 - 2j, 0.5 + 3j])),
    ("tensor<1xcomplex<f64>>", "[(1.0e-300, 2.0)]", np.complex128([1e-300 + 2j])),
    ("tensor<2x2xf32>", "7.0", np.full((2, 2), 7, np.float32)),
    ("tensor<3xui16>", "65535", np.full(3, 65535, np.uint16)),
    ("tensor<3xi1>", "true", np.full(3, True)),
    ("tensor<3x7xi1>", '"0x05801F"',  # as bits, lowest first
     np.array([[1, 0, 1, 0, 0, 0, 0], [0] * 7, [0, 1, 1, 1, 1, 1, 1]], bool)),
    ("tensor<5xi1>", '"0x16"', np.array([0, 1, 1, 0, 1], bool)),
    ("tensor<5xi1>", '"0x0001010001"', np.array([0, 1, 1, 0, 1], bool)),  # as bytes
    ("tensor<2xcomplex<f32>>", "(1.0, 2.0)", np.full(2, 1 + 2j, np.complex64)),
    ("tensor<0xf32>", "[]", np.zeros(0, np.float32)),
    ("tensor<i32>", "5", np.int32(5)),
]


@pytest.mark.parametrize(("kind", "text", "want"), CONSTANTS)
def test_constants(kind, text, want):
    body = f"  %0 = stablehlo.constant dense<{text}> : {kind}\n  return %0 : {kind}"
    got = run(program(body, "", kind))[0]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.astype(want.dtype), want)


def test_one_number_everywhere_is_not_written_out():
    kind = "tensor<100000x100000xf32>"
    text = program(f"  %0 = stablehlo.constant dense<1.0> : {kind}\n  return %0 : {kind}", "", kind)
    assert ops(text) == {"broadcast_in_dim": 1, "constant": 1}


# ------------------------------------------------------------------------------- regions and forms


def reduction(op, init, kind="f32", axes="[1]"):
    return program(f"""  %c = stablehlo.constant dense<{init}> : tensor<{kind}>
      %0 = stablehlo.reduce(%a init: %c) applies stablehlo.{op} across dimensions = {axes}
        : (tensor<2x3x{kind}>, tensor<{kind}>) -> tensor<2x{kind}>
      return %0 : tensor<2x{kind}>""", f"%a: tensor<2x3x{kind}>", f"tensor<2x{kind}>")


Y = np.float32([[1, 5, 2], [-3, 4, 0.5]])


def test_known_reductions_are_ops_of_their_own():
    for op, init, want in (("add", "0.0", Y.sum(1)), ("maximum", "0xFF800000", Y.max(1)),
                           ("minimum", "0x7F800000", Y.min(1)), ("multiply", "1.0", Y.prod(1))):
        text = reduction(op, init)
        assert ops(text) == {"input": 1, "reduce": 1}
        np.testing.assert_allclose(run(text, Y)[0], want, rtol=1e-6)
    assert run(reduction("maximum", "3.0"), Y)[0].tolist() == [5, 4]
    assert run(reduction("add", "10.0"), Y)[0].tolist() == (10 + Y.sum(1)).tolist()
    bits = np.int32([[1, 2, 4], [8, 8, 1]])
    assert run(reduction("or", "0", "i32"), bits)[0].tolist() == [7, 9]
    assert "reduce_with" in ops(reduction("or", "0", "i32"))
    flags = np.array([[True, False, True], [False, False, False]])
    assert run(reduction("or", "false", "i1"), flags)[0].tolist() == [True, False]


LOOP = """  %i = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%k = %i, %x = %a) : tensor<i32>, tensor<3xf32>
    cond {
      %n = stablehlo.constant dense<LIMIT> : tensor<i32>
      %c = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<STEP> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %y = stablehlo.multiply %x, %b : tensor<3xf32>
      stablehlo.return %next, %y : tensor<i32>, tensor<3xf32>
    }
    return %0#1 : tensor<3xf32>"""


@pytest.mark.parametrize(("limit", "step", "trips"), [(4, 1, 4), (5, 2, 3), (0, 1, 0)])
def test_loops_capture_and_count(limit, step, trips):
    body = LOOP.replace("LIMIT", str(limit)).replace("STEP", str(step))
    text = program(body, "%a: tensor<3xf32>, %b: tensor<3xf32>", "tensor<3xf32>")
    (loop,) = [v for v in from_stablehlo(text) if v.op == "while"]
    assert loop.attrs.trips == trips
    assert len(loop.args) == 3  # the counter, the array, and what the body reads besides
    assert run(text, X, np.float32([2, 3, 4]))[0].tolist() == (
        X * np.float32([2, 3, 4]) ** trips).tolist()


def test_loops_of_unknown_length_say_so():
    body = LOOP.replace("%n = stablehlo.constant dense<LIMIT> : tensor<i32>",
                        "%n = stablehlo.abs %n0 : tensor<i32>").replace("STEP", "1")
    text = program(body, "%a: tensor<3xf32>, %b: tensor<3xf32>, %n0: tensor<i32>",
                   "tensor<3xf32>")
    (loop,) = [v for v in from_stablehlo(text) if v.op == "while"]
    assert loop.attrs.trips == -1
    got = run(text, X, np.float32([2, 2, 2]), np.int32(-3))[0]
    assert got.tolist() == (8 * X).tolist()


def test_nested_regions_capture_through_each_other():
    text = program("""  %0 = "stablehlo.if"(%p) ({
        %1 = "stablehlo.if"(%q) ({
          %2 = stablehlo.add %a, %b : tensor<3xf32>
          stablehlo.return %2 : tensor<3xf32>
        }, {
          stablehlo.return %b : tensor<3xf32>
        }) : (tensor<i1>) -> tensor<3xf32>
        stablehlo.return %1 : tensor<3xf32>
      }, {
        stablehlo.return %a : tensor<3xf32>
      }) : (tensor<i1>) -> tensor<3xf32>
      return %0 : tensor<3xf32>""",
                   "%a: tensor<3xf32>, %b: tensor<3xf32>, %p: tensor<i1>, %q: tensor<i1>",
                   "tensor<3xf32>")
    b = np.float32([10, 20, 30])
    for p, q, want in ((True, True, X + b), (True, False, b), (False, True, X)):
        assert run(text, X, b, np.bool_(p), np.bool_(q))[0].tolist() == want.tolist()


def sorting(comparator, operands="%a", kinds="tensor<3xf32>", keys="f32"):
    names = operands.split(", ")
    pairs = ", ".join(f"%l{i}: tensor<{k}>, %r{i}: tensor<{k}>" for i, k in
                      enumerate([keys, "i32"][:len(names)]))
    return program(f"""  %i = stablehlo.iota dim = 0 : tensor<3xi32>
      %0:{len(names)} = "stablehlo.sort"({operands}) <{{dimension = 0 : i64}}> ({{
        ^bb0({pairs}):
        {comparator}
        stablehlo.return %c : tensor<i1>
      }}) : ({kinds}) -> ({kinds})
      return {", ".join(f"%0#{i}" for i in range(len(names)))} : {kinds}""",
                   "%a: tensor<3xf32>", kinds)


def test_sorts():
    rising = "%c = stablehlo.compare LT, %l0, %r0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>"
    assert ops(sorting(rising)) == {"input": 1, "sort": 1}
    assert run(sorting(rising), X)[0].tolist() == [-2, 1, 3.5]
    places = sorting(rising.replace("LT", "GT"), "%a, %i", "tensor<3xf32>, tensor<3xi32>")
    assert [v.tolist() for v in run(places, X)] == [[3.5, 1, -2], [2, 0, 1]]
    assert ops(places)["sort"] == 2
    odd = ("%x = stablehlo.abs %l0 : tensor<f32>\n %y = stablehlo.abs %r0 : tensor<f32>\n"
           "%c = stablehlo.compare GT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>")
    assert run(sorting(odd), X)[0].tolist() == [3.5, -2, 1]
    assert "sort_with" in ops(sorting(odd))


def test_jax_sorts_are_known_as_sorts():
    import jax
    for kind in ("float32", "int32", "bfloat16"):
        x = jax.ShapeDtypeStruct((5, 4), kind)
        for function in (lambda x: jax.lax.sort(x, dimension=0), jax.numpy.argsort):
            graph = from_stablehlo(jax.jit(function).lower(x).compiler_ir("stablehlo"))
            assert "sort_with" not in graph.histogram()


def test_running_totals():
    text = program("""  %c = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = "stablehlo.reduce_window"(%a, %c) <{padding = dense<[[PADS]]> : tensor<1x2xi64>,
        window_dimensions = array<i64: 3>}> ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %1 = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %1 : tensor<f32>
      }) : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>""", "%a: tensor<3xf32>", "tensor<3xf32>")
    forward, back = text.replace("PADS", "2, 0"), text.replace("PADS", "0, 2")
    assert "cumulative" in ops(forward)
    assert run(forward, X)[0].tolist() == np.cumsum(X).tolist()
    assert run(back, X)[0].tolist() == np.cumsum(X[::-1])[::-1].tolist()
    assert run(text.replace("PADS", "1, 1"), X)[0].tolist() == [-1, 2.5, 1.5]


def test_map_and_scalar_choices():
    text = program("""  %0 = "stablehlo.map"(%a) <{dimensions = array<i64: 0>}> ({
        ^bb0(%x: tensor<f32>):
        %k = stablehlo.constant dense<2.0> : tensor<f32>
        %y = stablehlo.multiply %x, %k : tensor<f32>
        stablehlo.return %y : tensor<f32>
      }) : (tensor<3xf32>) -> tensor<3xf32>
      %low = stablehlo.constant dense<-1.0> : tensor<f32>
      %high = stablehlo.constant dense<5.0> : tensor<f32>
      %1 = stablehlo.clamp %low, %0, %high : (tensor<f32>, tensor<3xf32>, tensor<f32>)
        -> tensor<3xf32>
      %p = stablehlo.constant dense<false> : tensor<i1>
      %2 = stablehlo.select %p, %a, %1 : tensor<i1>, tensor<3xf32>
      return %2 : tensor<3xf32>""", "%a: tensor<3xf32>", "tensor<3xf32>")
    assert run(text, X)[0].tolist() == [2, -1, 5]


# ------------------------------------------------------------------------------- ops with formulas


def test_batch_normalisation():
    rng = np.random.default_rng(0)
    x, given = (rng.normal(size=(4, 3, 5)) for _ in range(2))
    scale, offset = rng.normal(size=(2, 3))
    f, t = "tensor<3xf64>", "tensor<4x3x5xf64>"
    options = "{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}"
    text = program(f"""  %0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {options}
        : ({t}, {f}, {f}) -> ({t}, {f}, {f})
      %1 = "stablehlo.batch_norm_inference"(%x, %s, %o, %0#1, %0#2) {options}
        : ({t}, {f}, {f}, {f}, {f}) -> {t}
      %2:3 = "stablehlo.batch_norm_grad"(%x, %s, %0#1, %0#2, %g) {options}
        : ({t}, {f}, {f}, {f}, {t}) -> ({t}, {f}, {f})
      return %0#0, %0#1, %0#2, %1, %2#0, %2#1, %2#2 : {t}, {f}, {f}, {t}, {t}, {f}, {f}""",
                   f"%x: {t}, %s: {f}, %o: {f}, %g: {t}", f"{t}, {f}, {f}, {t}, {t}, {f}, {f}")
    normal, mean, variance, again, by_x, by_scale, by_offset = run(text, x, scale, offset, given)
    np.testing.assert_allclose(mean, x.mean((0, 2)))
    np.testing.assert_allclose(variance, x.var((0, 2)))

    def formula(x, scale, offset):
        mean = x.mean((0, 2), keepdims=True)
        off = (x - mean) / np.sqrt(x.var((0, 2), keepdims=True) + np.float32(1e-3))
        return off * scale[:, None] + offset[:, None]
    np.testing.assert_allclose(normal, formula(x, scale, offset), rtol=1e-12)
    np.testing.assert_allclose(again, normal)
    step = 1e-6  # gradients by central differences

    def slope(place, value):
        up, down = ([a.copy() for a in (x, scale, offset)] for _ in range(2))
        up[place][value] += step
        down[place][value] -= step
        return float((given * (formula(*up) - formula(*down))).sum() / (2 * step))
    np.testing.assert_allclose(by_x[1, 2, 3], slope(0, (1, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(by_scale, [slope(1, i) for i in range(3)], rtol=1e-6)
    np.testing.assert_allclose(by_offset, [slope(2, i) for i in range(3)], rtol=1e-6)


@pytest.mark.parametrize(("name", "function"), [
    ("erf_inv", "erfinv"), ("lgamma", "gammaln"), ("digamma", "digamma"), ("erfc", "erfc"),
    ("bessel_i1e", "i1e"), ("erf", "erf"),
])
def test_functions_of_chlo(name, function):
    special = pytest.importorskip("scipy.special", reason="SciPy has these functions")
    t = "tensor<5xf32>"
    text = program(f"  %0 = chlo.{name} %a : {t} -> {t}\n  return %0 : {t}", f"%a: {t}", t)
    x = np.float32([-0.9, -0.3, 0.01, 0.4, 0.95])
    want = getattr(special, function)(x.astype(np.float64))
    np.testing.assert_allclose(run(text, x)[0], want, rtol=3e-6, atol=1e-7)


def test_groups_of_the_batch_and_turned_windows():
    x = np.arange(24, dtype=np.float32).reshape(2, 2, 6)
    kernel = np.float32([[[1, 2, 4], [3, 1, 2]], [[0, 1, 1], [2, 0, 1]]])
    text = program("""  %0 = stablehlo.convolution(%x, %k)
        dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0],
        window = {reverse = [true]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64}
        : (tensor<2x2x6xf32>, tensor<2x2x3xf32>) -> tensor<1x2x4xf32>
      return %0 : tensor<1x2x4xf32>""", "%x: tensor<2x2x6xf32>, %k: tensor<2x2x3xf32>",
                   "tensor<1x2x4xf32>")
    want = np.zeros((1, 2, 4))
    for group in range(2):
        for place in range(4):
            window = x[group, :, place:place + 3]
            want[0, group, place] = (window * kernel[group, :, ::-1]).sum()
    assert run(text, x, kernel)[0].tolist() == want.tolist()


def test_products_of_mixed_types():
    text = program("""  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<2x3xi8>, tensor<3x2xf32>) -> tensor<2x2xf32>
      %1 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1]
        : (tensor<2x3xi8>, tensor<2x3xi8>) -> tensor<2x2xi32>
      return %0, %1 : tensor<2x2xf32>, tensor<2x2xi32>""",
                   "%a: tensor<2x3xi8>, %b: tensor<3x2xf32>", "tensor<2x2xf32>, tensor<2x2xi32>")
    a, b = np.int8([[100, 100, 3], [-5, 6, 7]]), np.float32([[1, 2], [3, 4], [5, 6]])
    mixed, whole = run(text, a, b)
    assert mixed.tolist() == (a.astype(np.float64) @ b).tolist()
    assert whole.tolist() == (a.astype(int) @ a.astype(int).T).tolist()


def test_sizes_given_by_constants():
    text = program("""  %n = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
      %0 = stablehlo.dynamic_broadcast_in_dim %a, %n, dims = [1]
        : (tensor<3xf32>, tensor<2xi32>) -> tensor<2x3xf32>
      %1 = stablehlo.get_dimension_size %0, dim = 0 : (tensor<2x3xf32>) -> tensor<i32>
      return %0, %1 : tensor<2x3xf32>, tensor<i32>""", "%a: tensor<3xf32>",
                   "tensor<2x3xf32>, tensor<i32>")
    wide, size = run(text, X)
    assert wide.tolist() == [X.tolist()] * 2
    assert size == 2


# ----------------------------------------------------------------------------------------- refusals


def test_all_unsupported_ops_are_named_at_once():
    text = program(f"""  "foo.bar"(%a) : (tensor<3xf32>) -> () {LINE}
      %0 = "foo.bar"(%a) : (tensor<3xf32>) -> tensor<3xf32>
      %1 = "stablehlo.infeed"(%t) <{{infeed_config = ""}}> : (!stablehlo.token)
        -> (!stablehlo.token)
      %2 = stablehlo.custom_call @mhlo.topc(%a) : (tensor<3xf32>) -> tensor<3xf32>
      return %2 : tensor<3xf32>""", "%a: tensor<3xf32>, %t: !stablehlo.token", "tensor<3xf32>")
    with pytest.raises(UnsupportedError) as error:
        from_stablehlo(text)
    what = str(error.value)
    assert error.value.code == "graph.unsupported_op"
    assert len(what.splitlines()) == 5
    assert "2 × foo.bar" in what
    assert "1 × stablehlo.infeed" in what
    assert "custom_call @mhlo.topc (there is custom_call @mhlo.topk)" in what
    assert error.value.at.line == 7


@pytest.mark.parametrize(("text", "code", "words"), [
    (program("  return %a : tensor<?xf32>", "%a: tensor<?xf32>", "tensor<?xf32>"),
     "graph.dynamic_shape", "varying shape"),
    (program("  return %a : tensor<3xf8E5M2FNUZ>", "%a: tensor<3xf8E5M2FNUZ>",
             "tensor<3xf8E5M2FNUZ>"), "graph.stablehlo_type", "no data type f8E5M2FNUZ"),
    (program("  return %a : tensor<3x!quant.uniform<i8:f32, 1.0>>",
             "%a: tensor<3x!quant.uniform<i8:f32, 1.0>>", "tensor<3x!quant.uniform<i8:f32, 1.0>>"),
     "graph.stablehlo_type", "quant"),
    (ADD.replace("module {", "module attributes {mhlo.num_replicas = 4 : i32} {"),
     "graph.stablehlo_sharded", "one of 4 devices"),
    ("module { func.func private @f() }", "graph.stablehlo_main", "functions"),
    ("module { func.func @main(%a: tensor<3xf32>) { return", "graph.stablehlo_text", "expected"),
    ("", "graph.stablehlo_main", "functions —"),
    (b"ML\xefR\x06", "graph.stablehlo_text", ""),
    (b"\xff\xfe", "graph.stablehlo_text", "decode"),
    ("(" * 100000, "graph.stablehlo_text", "nested"),
    (7, "graph.stablehlo_text", "int is not"),
])
def test_what_is_refused(text, code, words):
    with pytest.raises(TrnError) as error:
        from_stablehlo(text)
    assert error.value.code == code
    assert words in error.value.what


def test_bad_text_is_told_its_line():
    with pytest.raises(FileFormatError, match="line 3, column") as error:
        from_stablehlo(program("  %0 = stablehlo.ad %a, %a : tensor<3xf32>", "%a: tensor<3xf32>"))
    assert error.value.at.line == 3


def test_collectives_of_one_device_are_nothing():
    text = program("""  %0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<GROUPS>
        : tensor<1xNxi64>}> ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %1 = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %1 : tensor<f32>
      }) : (tensor<3xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>""", "%a: tensor<3xf32>", "tensor<3xf32>")
    one = text.replace("GROUPS", "[[0]]").replace("1xN", "1x1")
    assert run(one, X)[0].tolist() == X.tolist()
    with pytest.raises(NotBuiltError, match="over 2 devices"):
        from_stablehlo(text.replace("GROUPS", "[[0, 1]]").replace("1xN", "1x2"))


def test_custom_calls_by_a_table():
    text = program("""  %0 = stablehlo.custom_call @mine(%a) : (tensor<3xf32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>""", "%a: tensor<3xf32>", "tensor<3xf32>")
    got = run(text, X, custom_calls={"mine": lambda call: call.args[0] * 3.0})
    assert got[0].tolist() == (3 * X).tolist()


# --------------------------------------------------------------------------------------- bad input


def damaged(data, rng):
    """The bytes cut off, or with some changed, doubled or gone."""
    data = bytearray(data)
    if rng.random() < 0.2:
        return bytes(data[:rng.randrange(len(data))])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        end = at + rng.randrange(1, 12)
        kind = rng.randrange(3)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:end]
        else:
            data[at:at] = data[at:end]
    return bytes(data)


@pytest.mark.parametrize("form", ["text", "bytecode", "portable", "loop"])
def test_damaged_programs_are_refused_or_run(form):
    rng = random.Random(len(form))
    loop = program(LOOP.replace("LIMIT", "4").replace("STEP", "1"),
                   "%a: tensor<3xf32>, %b: tensor<3xf32>", "tensor<3xf32>")
    whole = loop if form == "loop" else modules()[form]
    whole = whole.encode() if isinstance(whole, str) else whole
    codes = []
    for _ in range(150):
        try:
            from_stablehlo(damaged(whole, rng))
        except TrnError as error:
            codes.append(error.code)
    assert len(codes) > 50
    assert {code.partition(".")[0] for code in codes} == {"graph"}


def test_a_parser_that_comes_to_no_end_is_ended(monkeypatch):
    from opentrn.graph.importers import stablehlo_guard

    guard = stablehlo_guard.Guard()
    assert guard.check(ADD.encode()) == ""
    monkeypatch.setattr(stablehlo_guard, "LEAST_SECONDS", 0.5)
    guard.process.send_signal(signal.SIGSTOP)
    assert guard.check(ADD.encode()) == "MLIR's parser came to no end on it in 1 s"
    monkeypatch.undo()
    assert guard.check(ADD.encode()) == ""
    guard.close()


def test_what_stops_the_parser_stops_only_another_process():
    from opentrn.graph.importers.stablehlo_guard import Guard

    guard = Guard()
    guard._running().kill()
    guard._running().wait()
    assert guard.check(ADD.encode()) == ""  # begun again
    process = guard.process
    process.kill()
    process.wait()
    process.poll = lambda: None  # as if it ended while it read
    assert "stopped on it (signal 9)" in guard.check(ADD.encode())
    assert guard.check(b"module {") != ""
    guard.close()
    assert math.isfinite(len(guard.check(ADD.encode())))
    guard.close()


TWO = """module { func.func @main(%a: tensor<5xf32>, %b: tensor<5xi32>, %at: tensor<3x1xi32>,
    %u: tensor<3xf32>, %v: tensor<3xi32>) -> (tensor<5xf32>, tensor<5xi32>) {
  %0:2 = "stablehlo.scatter"(%a, %b, %at, %u, %v) <{scatter_dimension_numbers =
    #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
    index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<i32>, %xu: tensor<f32>, %yu: tensor<i32>):
    %s = stablehlo.add %x, %xu : tensor<f32>
    %m = stablehlo.maximum %y, SECOND : tensor<i32>
    stablehlo.return %s, %m : tensor<f32>, tensor<i32>
  }) : (tensor<5xf32>, tensor<5xi32>, tensor<3x1xi32>, tensor<3xf32>, tensor<3xi32>)
    -> (tensor<5xf32>, tensor<5xi32>)
  return %0#0, %0#1 : tensor<5xf32>, tensor<5xi32> } }"""


def test_scatters_of_several_operands_are_several_scatters():
    from opentrn import compiler, runtime

    arrays = [np.float32([1, 2, 3, 4, 5]), np.int32([9, 8, 7, 6, 5]), np.int32([[1], [4], [1]]),
              np.float32([10, 20, 30]), np.int32([0, 6, 70])]
    graph = from_stablehlo(TWO.replace("SECOND", "%yu"))
    assert graph.histogram()["scatter"] == 2
    for found in (evaluate(graph, arrays), runtime.load(compiler.compile(graph))(*arrays)):
        assert found[0].tolist() == [1, 42, 3, 4, 25]
        assert found[1].tolist() == [9, 70, 7, 6, 6]
    # A region that mixes the operands stays one op.
    mixed = TWO.replace("SECOND", "%z").replace(
        "%m =", "%z = stablehlo.convert %x : (tensor<f32>) -> tensor<i32>\n    %m =")
    graph = from_stablehlo(mixed)
    assert graph.histogram()["scatter_with"] == 1
    assert evaluate(graph, arrays)[1].tolist() == [9, 12, 7, 6, 5]


SCAN = """func.func @main(%x: tensor<2x3xf32>, %c: tensor<2xf32>)
    -> (tensor<2x3xf32>, tensor<2xf32>) {
  %0:2 = chlo.scan(%x) inits(%c) dimension=1 attributes {is_reverse = REVERSE} {
  ^bb0(%a: tensor<2xf32>, %b: tensor<2xf32>):
    %1 = stablehlo.multiply %b, %a : tensor<2xf32>
    %2 = stablehlo.add %1, %a : tensor<2xf32>
    stablehlo.return %1, %2 : tensor<2xf32>, tensor<2xf32>
  } : (tensor<2x3xf32>, tensor<2xf32>) -> (tensor<2x3xf32>, tensor<2xf32>)
  return %0#0, %0#1 : tensor<2x3xf32>, tensor<2xf32> }"""


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_a_loop_along_an_axis(reverse):
    from opentrn import compiler, runtime

    x, carry = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([0.5, -1])
    graph = from_stablehlo(SCAN.replace("REVERSE", str(reverse).lower()))
    wanted, held = np.zeros_like(x), carry
    for n in (2, 1, 0) if reverse else (0, 1, 2):
        wanted[:, n] = held * x[:, n]
        held = wanted[:, n] + x[:, n]
    for found in (evaluate(graph, [x, carry]), runtime.load(compiler.compile(graph))(x, carry)):
        np.testing.assert_array_equal(found[0], wanted)
        np.testing.assert_array_equal(found[1], held)
