"""Emission: kernel calls and views become one program over placed HBM buffers.

A kernel is traced once for each signature; every further call is linked from that recording, so
repeated layers cost a copy of their instructions and nothing more.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from opentrn.base import DtypeError, TrnError, declare, dtype
from opentrn.compiler.choose import Repeat, Use
from opentrn.compiler.foreign import emit_foreign
from opentrn.compiler.loops import emit_loop
from opentrn.compiler.narrow import device_dtype
from opentrn.compiler.pieces import Cut, cut_of, options_of, piece_of, views_in
from opentrn.compiler.search import cut_options, laid
from opentrn.compiler.views import view_of
from opentrn.graph import Graph, Value
from opentrn.isa import Buffer, Builder, Call, Program, View
from opentrn.isa import view_of as whole
from opentrn.nki import Recording, kernels, record

declare(
    "compiler.layout",
    "A layout op could be neither a view nor a copy.",
    rule="reshapes, transposes, slices and broadcasts are views of memory, or copies",
    fix="report this program",
)
declare(
    "compiler.narrow",
    "A 64-bit constant does not fit the 32 bits the chip has.",
    rule="64-bit integers are stored as 32-bit ones on the chip",
    fix="use smaller numbers, or compute this part on the host",
)

# Kernels with several results, of which each is a value of the graph.
SEVERAL = (kernels.attention_backward, kernels.elementwise_together)
# Kernels that go along memory, whatever the order of dimensions.
ALONG_MEMORY = (kernels.elementwise, kernels.elementwise_together, kernels.concatenate)


class Emitter:
    """Builds the program of one graph.

    `views` maps each emitted value to the HBM view that holds it; `calls` lists every kernel call
    in order, those of copies that a layout made necessary included; `starts` where each begins.
    """

    def __init__(self, graph: Graph, uses: dict[Value, Use], chip, tick: Callable | None = None):
        self.graph, self.uses, self.chip, self.tick = graph, uses, chip, tick
        self.builder = Builder(graph.name, chip.name)
        self.views: dict[Value, View] = {}
        self.dense: dict[Value, View] = {}
        self.parts: dict[Value, list[View]] = {}
        self.recordings: dict[tuple, Recording] = {}
        self.made: dict[tuple, list[View]] = {}
        self.late: dict[Value, list[Use]] = {}
        for use in uses.values():
            if isinstance(use, Use) and use.after is not None and use.result is not None:
                self.late.setdefault(use.after, []).append(use)
        self.cuts = 0  # kernels that are quicker cut another way than by default
        self.calls: list[Use] = []
        self.starts: list[int] = []
        self.labels: dict[Value, str] = {v: name for name, v in graph.constants.items()}

    @property
    def linked(self) -> int:
        """How many kernel calls the program has."""
        return len(self.calls)

    @property
    def traced(self) -> int:
        """How many kernels were traced."""
        return len(self.recordings)

    def run(self) -> Program:
        """Emit every value in order, then the outputs."""
        for value in self.graph.inputs:
            self._input(value)
        self.emit_values()
        for value, name in zip(self.graph.outputs, self.graph.output_names, strict=True):
            self._output(value, name)
        return self.builder.program()

    def emit_values(self) -> None:
        """Emit every value that has no view yet, in order."""
        for value in self.graph:
            if self.tick is not None:
                self.tick()
            if value not in self.views and value not in self.parts:
                self._emit(value)

    def inside(self, part: tuple[Graph, dict], given: list[View]) -> "Emitter":
        """An emitter of a region's graph into the same program, its inputs these views."""
        graph, uses = part
        inner = Emitter(graph, uses, self.chip, self.tick)
        inner.builder, inner.recordings = self.builder, self.recordings
        inner.views.update(zip(graph.inputs, given, strict=True))
        for value in graph:
            if value.op == "constant":
                inner.emit_constant(value)
        return inner

    # ------------------------------------------------------------ values

    def _input(self, value: Value) -> None:
        kind = device_dtype(value.dtype)
        shape = value.shape or (1,)
        buffer = self.builder.buffer("hbm", shape, kind, name=value.attrs.label, kind="input")
        self.builder.inputs.append(buffer)
        self.views[value] = whole(buffer)

    def _emit(self, value: Value) -> None:
        if value.op == "constant":
            self.emit_constant(value)
            return
        if value.op == "get_tuple_element":
            self.views[value] = self.parts[value.args[0]][value.attrs.index]
            return
        if isinstance(self.uses.get(value), Repeat):
            self.parts[value] = emit_loop(self, self.uses[value])
            return
        if value.op == "foreign":
            self.parts[value] = emit_foreign(self, self.uses[value])
            return
        if value not in self.uses:
            view = view_of(value, self.views[value.args[0]])
            if view is None:
                view = self._copied_view(value)
            self.views[value] = view
            return
        use = self.uses[value]
        # Nothing reads a result of a call before the last of them.
        for each in [use] if use.after is None else self.late.get(value, ()):
            self.views[each.value] = _of_rank(self._in_memory_order(each), each.value)

    def _in_memory_order(self, use: Use) -> View:
        """One kernel call; element-wise work and concatenations go along memory, whatever the order
        of dimensions, and leave their result in the order of their first whole operand."""
        order = self._order_of(use)
        results = [each.value for each in self.late.get(use.after, [use])]
        if order is None or any(one in self.graph.outputs for one in results):
            return self.call(use)
        turned = tuple(self.views[a].permute(order) for a in use.args[0])
        if use.kernel is kernels.concatenate:
            changed = replace(use, args=(turned, order.index(use.args[1])))
        else:
            shape = tuple(use.value.shape[n] for n in order)
            changed = replace(use, args=(turned,), options={**use.options, "shape": shape})
        return self.call(changed).permute(tuple(order.index(n) for n in range(len(order))))

    def _order_of(self, use: Use) -> tuple[int, ...] | None:
        """The order of dimensions in which memory holds the first whole operand, when that is
        another than its own and keeps the last dimension."""
        rank = use.value.rank
        if use.kernel not in ALONG_MEMORY or rank < 3:
            return None
        for argument in use.args[0]:
            steps = self.views[argument].steps
            if all(step or n == 1 for step, n in steps):
                order = tuple(sorted(range(rank), key=lambda n: -steps[n][0]))
                return order if order[-1] == rank - 1 and order != tuple(range(rank)) else None
        return None

    def emit_constant(self, value: Value) -> None:
        """A buffer that holds the constant from the beginning."""
        array = _on_device(value)
        kind = device_dtype(value.dtype)
        buffer = self.builder.buffer(
            "hbm", array.shape, kind, name=self.labels.get(value, ""), kind="constant"
        )
        self.builder.constants[buffer] = array
        self.views[value] = whole(buffer)

    def _copied_view(self, value: Value) -> View:
        """A layout op over memory that does not allow it: copy the operand densely first."""
        operand = value.args[0]
        dense = self.call(Use(operand, kernels.copy, (operand,), {}, "made dense"))
        view = view_of(value, dense)
        if view is None:
            raise DtypeError(f"{value!r} has no layout", code="compiler.layout", at=value.where)
        return view

    def _row_by_row(self, value: Value) -> View:
        """The value's view, or that of a copy when its last dimension is scattered in memory."""
        view = self.views[value]
        if view.steps[-1][0] == 1 or view.steps[-1][1] == 1:
            return view
        if value not in self.dense:
            self.dense[value] = self.call(Use(value, kernels.copy, (value,), {}, "made dense"))
        return self.dense[value]

    def _output(self, value: Value, name: str) -> None:
        """Outputs are whole buffers of their own, never inputs, constants or parts."""
        view = self.views[value]
        shared = view.buffer.kind in ("input", "constant") or view.buffer in self.builder.outputs
        like = (view.buffer.shape, view.buffer.dtype) == (value.shape or (1,), view.dtype)
        if shared or not view.whole or not like:
            view = self.call(Use(value, kernels.copy, (value,), {}, "an output of its own"))
        buffer = view.buffer
        if not buffer.name:
            buffer.name = name
        buffer.kind = "output"
        self.builder.outputs.append(buffer)

    # ------------------------------------------------------------ kernels

    def call(self, use: Use) -> View:
        """The view of a kernel's result; the call is linked with the first value it makes."""
        key = (use.kernel, use.args, _frozen(use.options))
        if key in self.made:
            return self.made[key][use.result]
        actual: list[View] = []
        reads = (use.reads(n, self.chip) for n in range(len(use.args)))
        args = tuple([self._argument(a, actual, *r) for a, r in zip(use.args, reads, strict=True)])
        cut = cut_of(use, args)
        if cut is not None:
            views = self._in_pieces(use, args, cut)
        else:
            recording = self.recorded(use, args)
            call = self.link_call(use, recording, actual)
            views = [call.view(result) for result in recording.results]
        if use.kernel in SEVERAL:
            self.made[key] = views
        return views[use.result]

    def _in_pieces(self, use: Use, args: tuple, cut: Cut) -> list[View]:
        """One kernel call for each piece of the results, all of them linked from one recording."""
        results = [whole(self.builder.buffer("hbm", cut.shape, kind)) for kind in cut.dtypes]
        part = replace(use, options=options_of(use, cut))
        first: list[View] = []
        for start in range(0, cut.shape[cut.axis], cut.length):
            targets = [r.slice(cut.axis, start, start + cut.length) for r in results]
            out = tuple(targets) if use.kernel in SEVERAL else targets[0]
            given = (*piece_of(use, args, cut, start), out)
            views = views_in(given)
            if not first:
                recording, first = self.recorded(part, given), views
            further = [v.offset - own.offset for v, own in zip(views, first, strict=True)]
            self.link_call(part, recording, views, further)
        return results

    def recorded(self, use: Use, args: tuple) -> Recording:
        """The kernel's program for arguments like these, traced the first time."""
        key = (use.kernel, laid(args), _frozen(use.options))
        recording = self.recordings.get(key)
        if recording is None:
            given = args[: len(use.args)]
            named = {"out": args[-1]} if len(args) > len(given) else {}
            try:
                recording = record(use.kernel, self.chip, *given, **use.options, **named)
            except TrnError as error:
                callee = getattr(use.value.attrs, "callee", None)
                if callee is None or callee.kernel is None:  # the model's line, not our kernel's
                    error.at = use.value.where or error.at
                raise
            cut = cut_options(use, given, named, recording, self.chip)
            if cut:
                recording = record(use.kernel, self.chip, *given, **use.options, **named, **cut)
                self.cuts += 1
            self.recordings[key] = recording
        return recording

    def link_call(
        self, use: Use, recording: Recording, actual: list[View], further: Sequence[int] = ()
    ) -> Call:
        """Link a recording, its parameters these views, each so many elements further on."""
        bound: dict[Buffer, Buffer] = {
            parameter: view.buffer
            for parameter, view in zip(recording.parameters, actual, strict=True)
        }
        moved = dict(zip(recording.parameters, further, strict=False))
        self.starts.append(len(self.builder.body))
        call = self.link(use, recording, bound, moved)
        self.calls.append(use)
        return call

    def link(
        self, use: Use, recording: Recording, bound: dict[Buffer, Buffer], moved: dict[Buffer, int]
    ) -> Call:
        """Append a kernel's instructions, its parameters `bound` to tensors of the program and
        `moved` on in them."""
        call = Call(self.builder, recording.program, bound, moved)
        # The line of the model, not of the library's kernel; a kernel of the user's has its own.
        call.where = None if use.value.op == "foreign" else use.value.where
        call.run()
        return call

    def _argument(
        self, argument: Any, actual: list[View], dense: bool = False, turned: bool = False
    ) -> Any:
        if isinstance(argument, View):
            actual.append(argument)
            return argument
        if isinstance(argument, Value):
            view = self.views[argument]
            if dense and not (turned and kernels.lies_turned(view.steps)):
                view = self._row_by_row(argument)
            actual.append(view)
            return view
        if isinstance(argument, tuple) and any(isinstance(a, Value | View) for a in argument):
            return tuple([self._argument(a, actual) for a in argument])
        return argument


def _of_rank(view: View, value: Value) -> View:
    """A result without the dimension a kernel has for one index that is none of the value's."""
    return view.squeeze_dim(0) if view.ndim > max(1, value.rank) else view


def _frozen(options: dict[str, Any]) -> tuple:
    return tuple(sorted((k, v) for k, v in options.items()))


def _on_device(value: Value) -> np.ndarray:
    """A constant's numbers as the chip stores them; DtypeError when an integer does not fit."""
    array = value.attrs.data.numbers()
    kind = device_dtype(value.dtype)
    if value.dtype.kind in ("int", "uint") and kind.itemsize < dtype(value.dtype).itemsize:
        low, high = int(array.min(initial=0)), int(array.max(initial=0))
        if low < kind.min or high > kind.max:
            raise DtypeError(
                f"a constant of {value.dtype} holds {low if low < kind.min else high}",
                code="compiler.narrow",
                at=value.where,
            )
    if array.dtype != kind.storage:
        array = array.astype(kind.storage)
    return np.ascontiguousarray(array).reshape(value.shape or (1,))
