"""Results nest as the module nests them: each kind is kept, in memory and in files, or refused."""

import collections
import json
from dataclasses import dataclass

import pytest

from opentrn.base import FileFormatError, UsageError
from opentrn.base.errors import Where

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")

from opentrn.frameworks.torch.nesting import Nest  # noqa: E402

Point = collections.namedtuple("Point", "x y")


def doubled(x):
    """Torch's own value, exact for these numbers."""
    return x + x


X = torch.arange(6.0).reshape(2, 3)
KEPT = {
    "tensor": lambda x: doubled(x),
    "tuple of one": lambda x: (doubled(x),),
    "list": lambda x: [doubled(x), x],
    "dictionary": lambda x: {"b": doubled(x), "a": [x.sum(), ()]},
    "keys that are numbers": lambda x: {1: doubled(x)},
    "ordered": lambda x: collections.OrderedDict(z=x, a=doubled(x)),
    "None beside": lambda x: (None, doubled(x), {"cache": None}),
    "plain data beside": lambda x: {"y": doubled(x), "n": x.shape[1], "s": "sum", "t": True},
    "a size beside": lambda x: (doubled(x), x.shape),
    "the same twice": lambda x: (x, x),
}
IN_MEMORY = {
    "named tuple": lambda x: Point(doubled(x), x),
    "torch's named tuple": lambda x: x.max(1),
    "keys that are tuples": lambda x: {(1, 2): doubled(x)},
    "default dictionary": lambda x: collections.defaultdict(list, {"y": doubled(x)}),
}


def same(found, wanted):
    # A torch.Size becomes a tuple in torch's own pytree too.
    assert type(found) is (tuple if isinstance(wanted, torch.Size) else type(wanted))
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", KEPT)
def test_results_are_kept(name, tmp_path):
    traced = neuron.trace(KEPT[name], X)
    same(traced(X), KEPT[name](X))
    loaded = neuron.load(traced.save(tmp_path / "model.trn"))
    same(loaded(X), KEPT[name](X))


@pytest.mark.parametrize("name", IN_MEMORY)
def test_results_no_file_can_name_are_kept_until_saved(name, tmp_path):
    traced = neuron.trace(IN_MEMORY[name], X)
    same(traced(X), IN_MEMORY[name](X))
    with pytest.raises(UsageError, match="cannot be written") as caught:
        traced.save(tmp_path / "model.trn")
    assert caught.value.code == "frameworks.written_nest"
    assert not (tmp_path / "model.trn").exists()


@dataclass
class Plain:
    value: object


@pytest.mark.parametrize("result", [
    lambda x: Plain(doubled(x)), lambda x: (doubled(x), torch.float32),
    lambda x: {"shift": doubled(x), "how": len}, lambda x: [doubled(x), {1, 2}],
])  # fmt: skip
def test_results_that_are_no_data_are_refused(result):
    with pytest.raises(Exception, match=r"neither|returns|type|Unsupported") as caught:
        neuron.trace(result, X)
    assert "Bug" not in type(caught.value).__name__


def test_the_refusal_names_the_leaf():
    with pytest.raises(UsageError, match=r"returns a dtype at \['deep'\]\[1\]") as caught:
        Nest.of({"deep": (X, torch.float32)}, "returns")
    assert len(str(caught.value).splitlines()) <= 5


def test_modules_that_change_buffers_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises(UsageError, match=r"running_mean|num_batches") as caught:
        neuron.trace(model, X)
    assert caught.value.code == "frameworks.state"
    traced = neuron.trace(model.eval(), X)
    with torch.no_grad():
        torch.testing.assert_close(traced(X), model(X))


def shifted(x, more):
    return doubled(x) + more["by"] * more["times"]


def test_arguments_are_those_it_was_traced_with():
    more = {"by": torch.ones(3), "times": 2}
    traced = neuron.trace(shifted, (X, more))
    assert torch.equal(traced(X, more), 2 * X + 2)
    wrong = [
        ((X, {"times": 2, "by": torch.ones(3)}), "nest"),
        ((X,), "nest"),
        ((X, {**more, "times": 3}), r"\['times'\] is 3, not 2"),
        ((X, {**more, "times": True}), "True, not 2"),
        ((X, {**more, "by": 1.0}), r"\['by'\] is 1.0, not a tensor"),
        ((X, {**more, "times": X}), "a tensor, not 2"),
    ]
    for args, text in wrong:
        with pytest.raises(UsageError, match=text) as caught:
            traced(*args)
        assert caught.value.code == "frameworks.traced_argument"


def test_files_name_no_modules_to_import():
    good = Nest.of({"a": (X, None)}, "returns").json()
    same(Nest.read(json.loads(json.dumps(good))).filled([X]), {"a": (X, None)})
    names = {"fqn": "antigravity:x", "__enum__": True, "name": "X"}
    bad = [
        {"spec": ["collections.defaultdict", [names, ["a"]], [None]], "fixed": [["tensor", None]]},
        {"spec": ["somewhere.Class", None, [None]], "fixed": [["tensor", None]]},
        {"spec": ["builtins.dict", [["a"]], [None]], "fixed": [["tensor", None]]},
        {"spec": ["builtins.tuple", None, [None, None]], "fixed": [["tensor", None]]},
        {"spec": ["builtins.tuple"], "fixed": []},
        {"fixed": []},
        None,
    ]
    for data in bad:
        with pytest.raises(FileFormatError) as caught:
            Nest.read(data)
        assert caught.value.code == "frameworks.written_nest"


def test_executables_hold_no_folder_of_this_machine(tmp_path):
    import zipfile
    from pathlib import Path

    traced = neuron.trace(torch.nn.Linear(3, 4), X)
    with zipfile.ZipFile(traced.save(tmp_path / "model.trn")) as archive:
        text = b"".join(archive.read(name) for name in archive.namelist()).decode("latin-1")
    assert "opentrn/nki/kernels/matmul.py" in text
    for folder in (str(Path(neuron.__file__).parents[3]), str(Path(torch.__file__).parents[1]),
                   str(Path(__file__).parents[1])):  # fmt: skip
        assert folder not in text


def test_places_keep_their_text():
    found = Where(neuron.__file__, 1)
    assert found.portable == "opentrn/frameworks/torch/__init__.py"
    assert Where(found.portable, 1).text == found.text != ""
    assert Where("/nowhere/at/all/model.py", 3).portable == "model.py"
    assert Where("model.py", 3).portable == "model.py"
