"""Every constraint of a view method is refused with its kind, code, rule, fix and line."""

import pytest

from opentrn.base import TrnError, dtypes, explanation
from opentrn.isa.view import Buffer, View, of

F32, BF16, U8, I32 = dtypes.float32, dtypes.bfloat16, dtypes.uint8, dtypes.int32


def tensor(shape, dtype=F32, space="sbuf", **more) -> View:
    return of(Buffer(0, space, shape, dtype, **more))


class Window:
    """Looks like nl.ds(start, size)."""

    def __init__(self, start, size):
        self.start, self.size = start, size


class Reg:
    is_register = True


INDEX = tensor((1, 1), I32)
HBM = tensor((4, 6, 8), space="hbm")
TILE = tensor((128, 64))
CUBE = tensor((128, 4, 16))
GATHERED = HBM.vector_select(0, tensor((3, 1), I32))
PICKED = HBM[:, Window(INDEX, 2)]

REFUSALS = [
    ("index", "BoundsError", lambda: TILE[0:129, :]),
    ("index", "BoundsError", lambda: TILE[:, 64]),
    ("index", "BoundsError", lambda: TILE[:, -65]),
    ("index", "BoundsError", lambda: TILE[:, 8:8]),
    ("index", "BoundsError", lambda: TILE[0, 0, 0]),
    ("index", "BoundsError", lambda: CUBE[..., ..., 0]),
    ("index", "BoundsError", lambda: TILE[:, Window(60, 8)]),
    ("index", "BoundsError", lambda: TILE[:, Window(Reg(), 65)]),
    ("index", "UsageError", lambda: TILE[:, ::-1]),
    ("index", "UsageError", lambda: TILE[:, 1.5]),
    ("index", "UsageError", lambda: TILE["a", 0]),
    ("index", "UsageError", lambda: TILE[0 : Reg(), :]),
    ("index", "UsageError", lambda: TILE[Reg(), :]),
    ("index", "ShapeError", lambda: TILE[None]),
    ("index", "UsageError", lambda: HBM[Reg(), Reg()]),
    ("index", "UsageError", lambda: GATHERED[0:2]),
    ("index", "UsageError", lambda: GATHERED[0]),
    ("index", "UsageError", lambda: PICKED[:, 0]),
    ("index", "ShapeError", lambda: HBM[tensor((2, 1), I32)]),
    ("index", "SpaceError", lambda: HBM[tensor((1, 1), I32, "hbm")]),
    ("index", "DtypeError", lambda: HBM[tensor((1, 1), F32)]),
    ("slice", "BoundsError", lambda: TILE.slice(1, 0, 65)),
    ("slice", "BoundsError", lambda: TILE.slice(1, 4, 4)),
    ("slice", "BoundsError", lambda: TILE.slice(1, -1, 4)),
    ("slice", "BoundsError", lambda: TILE.slice(2, 0, 1)),
    ("slice", "UsageError", lambda: TILE.slice(1, 0, 4, 0)),
    ("slice", "UsageError", lambda: GATHERED.slice(0, 0, 1)),
    ("select", "BoundsError", lambda: TILE.select(1, 64)),
    ("select", "BoundsError", lambda: TILE.select(1, -1)),
    ("select", "UsageError", lambda: TILE.select(0, INDEX)),
    ("select", "UsageError", lambda: HBM.select(0, object())),
    ("slice", "UsageError", lambda: TILE.slice(1, 0, 64 / 2)),
    ("reshape", "UsageError", lambda: TILE.reshape((128, 64 / 2, 2))),
    ("broadcast", "UsageError", lambda: TILE[:, 0:1].broadcast(1, 2.0)),
    ("select", "UsageError", lambda: HBM.select(0, INDEX).select(0, INDEX)),
    ("select", "UsageError", lambda: GATHERED.select(0, 1)),
    ("vector_select", "UsageError", lambda: HBM.vector_select(1, tensor((3, 1), I32))),
    ("vector_select", "SpaceError", lambda: TILE.vector_select(0, tensor((3, 1), I32))),
    ("vector_select", "UsageError", lambda: GATHERED.vector_select(0, tensor((3, 1), I32))),
    ("vector_select", "ShapeError", lambda: HBM.vector_select(0, tensor((3, 2), I32))),
    ("vector_select", "UsageError", lambda: HBM.vector_select(0, Reg())),
    ("permute", "ShapeError", lambda: TILE.permute((1, 0))),
    ("permute", "ShapeError", lambda: CUBE.permute((0, 1, 1))),
    ("permute", "ShapeError", lambda: GATHERED.permute((1, 0, 2))),
    ("broadcast", "ShapeError", lambda: TILE.broadcast(1, 8)),
    ("broadcast", "ShapeError", lambda: TILE[0:1].broadcast(0, 128)),
    ("expand_dim", "ShapeError", lambda: TILE.expand_dim(0)),
    ("expand_dim", "ShapeError", lambda: GATHERED.expand_dim(0)),
    ("expand_dim", "BoundsError", lambda: TILE.expand_dim(3)),
    ("squeeze_dim", "ShapeError", lambda: TILE.squeeze_dim(1)),
    ("squeeze_dim", "ShapeError", lambda: TILE[0:1].squeeze_dim(0)),
    ("squeeze_dim", "ShapeError", lambda: HBM.vector_select(0, INDEX).squeeze_dim(0)),
    ("reshape_dim", "ShapeError", lambda: TILE.reshape_dim(1, (5, 13))),
    ("reshape_dim", "ShapeError", lambda: TILE.reshape_dim(1, (-1, -1))),
    ("reshape_dim", "ShapeError", lambda: TILE.reshape_dim(0, (2, 64))),
    ("reshape_dim", "ShapeError", lambda: GATHERED.reshape_dim(0, (3, 1))),
    ("flatten_dims", "ShapeError", lambda: CUBE.flatten_dims(0, 1)),
    ("flatten_dims", "ShapeError", lambda: CUBE[:, :, 0:8].flatten_dims(1, 2)),
    ("flatten_dims", "ShapeError", lambda: CUBE.permute((0, 2, 1)).flatten_dims(1, 2)),
    ("flatten_dims", "ShapeError", lambda: CUBE.flatten_dims(2, 1)),
    ("flatten_dims", "ShapeError", lambda: GATHERED.flatten_dims(0, 1)),
    ("reshape", "ShapeError", lambda: TILE.reshape((128, 63))),
    ("reshape", "ShapeError", lambda: TILE.reshape((128, -1))),
    ("reshape", "ShapeError", lambda: TILE.reshape((64, 128))),
    ("reshape", "ShapeError", lambda: GATHERED.reshape((9, 16))),
    ("reshape", "ShapeError", lambda: CUBE[:, :, 0:8].reshape((128, 32))),
    ("reshape", "UsageError", lambda: PICKED.reshape((8, 8))),
    ("rearrange", "UsageError", lambda: TILE.rearrange(("p", "p"), ("p", "p"))),
    ("rearrange", "UsageError", lambda: TILE.rearrange(("p", "f"), ("p", "g"))),
    ("rearrange", "UsageError", lambda: CUBE.rearrange(("p", "f"), ("p", "f"))),
    ("rearrange", "ShapeError", lambda: TILE.rearrange(("p", ("a", "b")), ("p", "b", "a"))),
    ("rearrange", "UsageError", lambda: TILE.rearrange(("p", "f"), ("p", "f"), {"x": 2})),
    ("ap", "ShapeError", lambda: tensor((16, 32)).ap([[64, 8], [1, 32]], 0)),
    ("ap", "ShapeError", lambda: TILE.ap([[0, 128], [1, 64]])),
    ("ap", "BoundsError", lambda: TILE.ap([[64, 129], [1, 64]])),
    ("ap", "BoundsError", lambda: TILE.ap([[64, 128], [1, 64]], offset=1)),
    ("ap", "BoundsError", lambda: TILE.ap([[64, 128], [-1, 64]])),
    ("ap", "BoundsError", lambda: HBM.ap([[1, 193]])),
    ("ap", "BoundsError", lambda: HBM.ap([[1, 4]], offset=-1)),
    ("ap", "UsageError", lambda: TILE.ap([])),
    ("ap", "UsageError", lambda: TILE.ap([[64, 0], [1, 64]])),
    ("ap", "UsageError", lambda: TILE.ap([64, 128])),
    ("ap", "UsageError", lambda: HBM.ap([[1, 4]], 0, INDEX, tensor((4, 1), I32))),
    ("ap", "BoundsError", lambda: HBM.ap([[1, 4]], 0, INDEX, indirect_dim=3)),
    ("ap", "BoundsError",
     lambda: HBM.ap([[1, 4]], vector_offset=tensor((4, 1), I32), indirect_dim=1)),
    ("ap", "ShapeError", lambda: HBM.ap([[1, 4]], vector_offset=tensor((3, 1), I32))),
    ("ap", "SpaceError", lambda: TILE.ap([[64, 4], [1, 4]], vector_offset=tensor((4, 1), I32))),
    ("ap", "UsageError", lambda: PICKED.ap([[1, 4]])),
    ("ap", "DtypeError", lambda: tensor((4, 3), U8).ap([[3, 4], [1, 1]], dtype=BF16)),
    ("view", "ShapeError", lambda: TILE[:, ::2].view(U8)),
    ("view", "ShapeError", lambda: tensor((4, 6), U8).view(F32)),
    ("view", "DtypeError", lambda: tensor((4, 16), U8)[:, 2:6].view(F32)),
    ("view", "UsageError", lambda: HBM.select(0, INDEX).view(U8)),
    ("indirect", "SpaceError", lambda: tensor((32, 8), space="hbm").indirect(INDEX)),
    ("indirect", "ShapeError", lambda: CUBE.indirect(tensor((128, 1), I32))),
    ("indirect", "ShapeError", lambda: TILE.indirect(tensor((64, 1), I32))),
    ("indirect", "BoundsError", lambda: TILE.indirect(tensor((128, 1), I32), 129)),
    ("indirect", "UsageError", lambda: TILE.indirect(Reg())),
    ("buffer", "ShapeError", lambda: Buffer(0, "sbuf", (128, 0), F32)),
    ("buffer", "SpaceError", lambda: Buffer(0, "dram", (128, 4), F32)),
]  # fmt: skip


@pytest.mark.parametrize(("part", "kind", "action"), REFUSALS)
def test_refusals_name_rule_fix_and_line(part, kind, action):
    with pytest.raises(TrnError) as caught:
        action()
    error = caught.value
    assert type(error).__name__ == kind
    assert error.code == f"view.{part}"
    assert explanation(error.code) is not None
    assert error.rule
    assert error.fix
    assert error.at.file == __file__
