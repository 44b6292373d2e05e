"""Random and hostile kernels end in a value or a refusal: no crash, no hang, no wrong value.

Every kernel is made from a seed, which a failure names.  `SEEDS` bounds how many are tried.
"""

import re
import signal

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError
from opentrn.isa import INSTRUCTIONS
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

SEEDS = 60  # times 5 kernels
SECONDS = 60
# Python's own words about a call that does not fit a signature; they are clear.
CALL = re.compile(r"(missing|takes|got an unexpected|got multiple|positional argument)")


@pytest.fixture(autouse=True)
def no_hang():
    """A kernel that takes longer than SECONDS has failed."""

    def late(*_):
        raise AssertionError(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def ends(kernel, *arrays, target="trn2"):
    """The run of a kernel, or its refusal: five lines at the user's line, or Python's own words."""
    found = None
    with nki.use_target(target):
        try:
            return nki.run(kernel, *arrays)
        except (TrnError, TypeError) as error:
            found = error
    if isinstance(found, TrnError):
        assert all([found.code, found.rule, found.fix, found.at])
    else:
        assert CALL.search(str(found)), f"{type(found).__name__}: {found}"
    return found


class Draw:
    """Random choices of one seed, good and bad."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def one(self, options):
        return options[int(self.rng.integers(len(options)))]

    def number(self):
        return self.one(
            [0, 1, 2, -1, 3, 4, 16, 31, 64, 127, 128, 129, 512, 4096, 2**31, -(2**31), 2**40,
             2**63, 0.5, -1.5, float("nan"), float("inf"), True, None, "7", b"7", 1j, (), [],
             np.int64(4), np.float32(2), object()]
        )  # fmt: skip

    def size(self):
        return self.one([1, 2, 3, 4, 8, 32, 64, 128, 1, 2, 4, 8, self.number()])

    def shape(self):
        made = [self.size() for _ in range(int(self.rng.integers(0, 5)))]
        return self.one([tuple(made), tuple(made), made, self.number()])

    def dtype(self):
        return self.one(
            [nl.float32, nl.bfloat16, nl.float16, nl.int32, nl.uint32, nl.int8, nl.uint8,
             nl.float8_e4m3, nl.float8_e4m3fn, nl.float4_e2m1fn_x4, nl.bool_, np.float64, "int7",
             None, 3, object]
        )  # fmt: skip

    def buffer(self):
        return self.one([nl.sbuf, nl.psum, nl.sbuf, nl.private_hbm, nl.shared_hbm, "sbuf", 7, None])


def drawn_index(draw):
    def part():
        n = draw.number
        return draw.one(
            [slice(None), slice(0, 2), slice(n(), n(), n()), n(), ..., None, slice(None, None, -1)]
        )

    return draw.one([part(), (part(), part()), (part(),) * 5, slice(0, 1)])


def drawn_view(draw, tensor):
    """A method of the tensor, with arguments that may fit."""
    n, pairs = draw.number, [[draw.size(), draw.size()] for _ in range(2)]
    calls = [
        lambda: tensor[drawn_index(draw)],
        lambda: tensor.slice(n(), n(), n(), draw.one([1, -1, n()])),
        lambda: tensor.select(n(), n()),
        lambda: tensor.permute(draw.one([(0, 1), (1, 0), (0, 0), (0, 2, 1), n()])),
        lambda: tensor.broadcast(n(), n()),
        lambda: tensor.expand_dim(n()),
        lambda: tensor.squeeze_dim(n()),
        lambda: tensor.reshape_dim(n(), draw.shape()),
        lambda: tensor.flatten_dims(n(), n()),
        lambda: tensor.reshape(draw.shape()),
        lambda: tensor.rearrange(("a", "b"), draw.one([("b", "a"), ("a",), n()]), n()),
        lambda: tensor.ap(draw.one([pairs, [[-1, 4], [1, 4]], [[1, n()]], n()]), n()),
        lambda: tensor.ap(pairs, 0, scalar_offset=draw.one([tensor, n()])),
        lambda: tensor.vector_select(n(), draw.one([tensor, n()])),
        lambda: tensor.view(draw.dtype()),
        lambda: tensor.indirect(draw.one([tensor, n()]), n()),
    ]
    return draw.one(calls)()


def drawn_operand(draw, made):
    values = [draw.number(), draw.dtype(), nl.add, nl.exp, nisa.engine.vector, "add", np.ones(3)]
    return draw.one([*made, *made, *made, *values])


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("what", ["allocate", "view", "instruct", "compute", "loop"])
def test_hostile_kernels_end_in_a_refusal_or_a_value(seed, what):
    draw = Draw([seed, len(what), ord(what[0])])

    def kernel(x):
        made = [x, nl.load(x), nl.ndarray((16, 8), nl.float32, buffer=nl.psum)]
        made.append(nl.full((16, 1), 1, nl.int32))
        if what == "allocate":
            function = draw.one([nl.ndarray, nl.zeros, nl.ones, nl.rand])
            function(draw.shape(), draw.dtype(), draw.buffer())
        elif what == "view":
            tensor = draw.one(made)
            for _ in range(4):
                tensor = drawn_view(draw, tensor)
            nisa.dma_copy(nl.ndarray(tensor.shape, tensor.dtype), tensor)
        elif what == "instruct":
            name = draw.one([n for n, c in INSTRUCTIONS.items() if c.module == "nki.isa"])
            needed = [p for p in INSTRUCTIONS[name].parameters if p != "name"]
            count = draw.one([len(needed), len(needed), max(1, len(needed) - 3), 3])
            getattr(nisa, name)(*[drawn_operand(draw, made) for _ in range(count)])
        elif what == "compute":
            function = getattr(nl, draw.one(["add", "exp", "sum", "softmax", "where", "matmul",
                                             "transpose", "broadcast_to", "load", "store", "power",
                                             "gather_flattened", "dropout", "rms_norm", "ds",
                                             "program_id", "affine_range", "copy"]))  # fmt: skip
            function(*[drawn_operand(draw, made) for _ in range(draw.one([1, 2, 2, 3]))])
        else:
            reg = nisa.register_alloc(draw.one([0, 1, 3, draw.number()]))
            body = draw.one([lambda r: r, lambda r: None, lambda r: drawn_view(draw, made[1])])
            loop = draw.one(["fori", "while"])
            if loop == "fori":
                nl.fori_loop(draw.number(), draw.one([reg, 4, draw.number()]), body, draw.size())
            else:
                nl.while_loop(draw.one([reg, 0, draw.number()]), body)
        return x

    ends(kernel, np.ones((16, 8), np.float32), target=draw.one(["trn1", "trn2", "trn3"]))


def sliced(draw, dim, tensor, array):
    start, by = int(draw.rng.integers(array.shape[dim])), int(draw.one([1, 1, 2, 3]))
    index = (slice(None),) * dim + (slice(start, None, by),)
    return tensor.slice(dim, start, array.shape[dim], by), array[index]


def permuted(draw, dim, tensor, array):
    order = tuple(int(n) for n in draw.rng.permutation(array.ndim))
    return tensor.permute(order), array.transpose(order)


def split(draw, dim, tensor, array):
    size = array.shape[dim]
    if size % 2:
        return tensor, array
    parts = (*array.shape[:dim], 2, size // 2, *array.shape[dim + 1 :])
    return tensor.reshape_dim(dim, (2, -1)), array.reshape(parts)


def merged(draw, dim, tensor, array):
    if array.ndim < 3 or tensor.strides[-2] != tensor.strides[-1] * tensor.shape[-1]:
        return tensor, array
    flat = array.reshape(*array.shape[:-2], -1)
    return tensor.flatten_dims(array.ndim - 2, array.ndim - 1), flat


def expanded(draw, dim, tensor, array):
    return tensor.expand_dim(dim), np.expand_dims(array, dim)


def selected(draw, dim, tensor, array):
    if array.ndim == 1:
        return tensor, array
    place = int(draw.rng.integers(array.shape[dim]))
    return tensor.select(dim, place), np.take(array, place, dim)


STEPS = {
    "slice": sliced, "permute": permuted, "split": split, "merge": merged, "expand": expanded,
    "select": selected,
}  # fmt: skip


def turned(draw, step, tensor, array):
    """One step on both implementations."""
    return STEPS[step](draw, int(draw.rng.integers(array.ndim)), tensor, array)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_chains_of_views_give_the_values_numpy_gives(seed):
    """Two implementations of the views: strides here, copies of NumPy there."""
    draw = Draw([seed, 99])
    shape = tuple(int(draw.one([1, 2, 3, 4, 6])) for _ in range(4))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    steps = [draw.one([*STEPS]) for _ in range(5)]

    wanted = []

    def kernel(x):
        tensor, array = x, source
        for step in steps:
            tensor, array = turned(draw, step, tensor, array)
        wanted.append(array)
        out = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tensor)
        return out

    source = x
    run = ends(kernel, x)
    assert not isinstance(run, Exception), run
    np.testing.assert_array_equal(run.outputs, wanted[0])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs_of_the_vector_engine_give_the_values_of_float64(seed):
    draw = Draw([seed, 7])
    rows, columns = int(draw.rng.integers(1, 129)), int(draw.rng.integers(1, 65))
    a = draw.rng.integers(-8, 9, (rows, columns)).astype(np.float32)
    b = draw.rng.integers(1, 9, (rows, columns)).astype(np.float32)
    operators = {"add": np.add, "subtract": np.subtract, "maximum": np.maximum,
                 "minimum": np.minimum, "multiply": np.multiply}  # fmt: skip
    names = [draw.one([*operators]) for _ in range(4)]
    operands = [draw.one(["tile", 2.0, -1.0, 0.5]) for _ in names]

    def kernel(a, b):
        tile, other = nl.load(a), nl.load(b)
        for name, operand in zip(names, operands, strict=True):
            given = other if operand == "tile" else operand
            tile = getattr(nl, name)(tile, given)
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    wanted = a.astype(np.float64)
    for name, operand in zip(names, operands, strict=True):
        wanted = operators[name](wanted, b.astype(np.float64) if operand == "tile" else operand)
    run = ends(kernel, a, b, target=draw.one(["trn1", "trn2", "trn3"]))
    np.testing.assert_array_equal(run.outputs.astype(np.float64), wanted)  # all exact in float32


# ------------------------------------------------------------------- known dangers


def forever(x):
    nl.while_loop(nisa.register_alloc(1), lambda r: r)
    return x


def while_register(x):
    reg = nisa.register_alloc(1)
    while reg:
        pass
    return x


def counting(x):
    nl.fori_loop(0, 2**31 - 1, lambda i: None)
    return x


def itself(x):
    return itself(x)


DANGERS = {
    "sim.step_limit": (forever, while_register, counting),
    "nki.recursion": (itself,),
    "nki.hbm_capacity": (
        lambda x: nl.ndarray((2**40, 2**40), nl.float32, buffer=nl.shared_hbm),
        lambda x: nl.zeros((2**20, 2**20), nl.int8, buffer=nl.private_hbm),
    ),
    "sim.sbuf_capacity": (lambda x: nl.ndarray((128, 2**50), nl.float32),),
    "nki.host_memory": (lambda x: nl.shared_constant(np.broadcast_to(np.float32(0), (2**45, 8))),),
    "view.ap": (lambda x: nl.load(x).ap([[-8, 16], [1, 8]]),),
    "view.index": (lambda x: nl.load(x)[:, ::-1], lambda x: nl.load(x)["a"]),
    "nki.argument": (
        lambda x: nl.ndarray(None, nl.float32),
        lambda x: nl.ndarray("ab", nl.float32),
        lambda x: nl.ndarray((4, 4), nl.float32, name=object()),
        lambda x: nl.ndarray((4, 4), nl.float32, address=("a", 1)),
        lambda x: nl.store(x, np.ones((16, 8))),
        lambda x: nl.shared_identity_matrix("a"),
    ),
    "nki.axis": (lambda x: nl.sum(nl.load(x), "a"),),
    "nki.grid_axis": (lambda x: nl.program_id(7),),
    "memset.rules": (lambda x: nisa.memset(nl.load(x), "a"),),
    "nki.argument_dtype": (lambda x: nl.ndarray((4, 4), np.float64),),
}


@pytest.mark.parametrize("code", DANGERS)
def test_known_dangers_are_refused_with_their_code(code):
    for kernel in DANGERS[code]:
        found = ends(kernel, np.ones((16, 8), np.float32))
        assert isinstance(found, TrnError), found
        assert found.code == code
        assert found.at.file == __file__


def test_iterating_a_tensor_ends_with_its_first_dimension():
    seen = []

    def kernel(x):
        seen.extend([[row.shape for row in x], [row.shape for row in nl.load(x)]])
        return x

    ends(kernel, np.ones((16, 8), np.float32))
    assert seen == [[(8,)] * 16, [(1, 8)] * 16]


def test_views_of_views_of_views_stay_exact():
    def kernel(x):
        tile = nl.load(x)
        for _ in range(200):
            tile = tile.expand_dim(1).squeeze_dim(1)[:, 0:8].reshape((16, 8))
        nl.store(x, nl.add(tile, 1.0))
        return x

    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    np.testing.assert_array_equal(ends(kernel, x.copy()).outputs, x + 1)


def test_errors_of_the_kernels_own_lines_stay_what_they_are():
    def kernel(x):
        nl.load(x)
        return {}["missing"]

    with pytest.raises(KeyError) as caught:
        nki.run(kernel, np.ones((16, 8), np.float32))
    assert not isinstance(caught.value, TrnError)


def test_a_refusal_of_a_wrong_argument_is_also_the_error_python_raised():
    with pytest.raises(TypeError) as caught:
        nki.run(lambda x: nl.ndarray(None, nl.float32), np.ones((16, 8), np.float32))
    assert caught.value.what == "ndarray: TypeError: 'NoneType' object is not iterable"
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(IndexError) as caught:
        nki.run(lambda x: nl.program_id(7), np.ones((16, 8), np.float32))
    assert caught.value.what == "axis 7 of a launch grid with 1 axis"
