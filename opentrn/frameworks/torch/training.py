"""A whole training step as one program: forward, backward and optimizer, traced once.

    step = train_step(model, optimizer, lambda model, x, y: F.cross_entropy(model(x), y))
    for x, y in batches:
        loss = step(x, y)

Parameters and the optimizer's state stay the user's tensors: each step writes them, so schedulers,
checkpoints and evaluation in between work as ever.
"""

import warnings
from collections.abc import Callable
from typing import Any

from opentrn.base import UsageError, declare
from opentrn.frameworks.torch.backend import decompositions
from opentrn.frameworks.torch.optimizers import Rule, rule_of
from opentrn.frameworks.torch.piece import Piece
from opentrn.frameworks.torch.report import HISTORY, Capture
from opentrn.frameworks.torch.settings import Settings
from opentrn.frameworks.torch.shapes import is_shape_only
from opentrn.graph import Graph, from_fx

LOSS = declare(
    "frameworks.loss",
    "The loss of a training step is not one number, or depends on no parameter.",
    rule="loss(model, *batch) returns a tensor without axes, computed from trainable parameters",
    fix="reduce it with .mean() or .sum(); check requires_grad of the parameters",
)


class TrainStep:
    """One optimizer step as a function of a batch; call it to take the step, it returns the loss.

    `pieces` holds the program for each set of batch shapes.  `model.train()` or `.eval()` counts
    as it was when a program was traced.
    """

    def __init__(self, model: Any, optimizer: Any, loss: Callable, settings: Settings) -> None:
        self.model, self.optimizer, self.loss, self.settings = model, optimizer, loss, settings
        self.rule: Rule = rule_of(optimizer)
        self.pieces: dict[tuple, Piece] = {}
        self.steps = 0
        places = {id(p): name for name, p in model.named_parameters()}
        self.trained = [
            (places[id(p)], p, n)
            for n, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if id(p) in places and p.requires_grad
        ]
        chosen = {name for name, _, _ in self.trained}
        self.fixed = [(n, p) for n, p in model.named_parameters() if n not in chosen]
        self.buffers = list(model.named_buffers())
        self.name = f"train{len(HISTORY.captures)}"
        if not self.trained:
            raise UsageError("the optimizer holds no trainable parameter of the model", code=LOSS)
        HISTORY.captures.append(Capture(self.name, f"a training step of {type(model).__name__}"))

    def __call__(self, *batch: Any) -> Any:
        """Take one step on a batch; the loss before the step, as a tensor.

        Raises UnsupportedError `graph.unsupported_op` and `compiler.no_kernel`, UsageError
        `frameworks.loss`.
        """
        import torch

        self.steps += 1
        parts = self._parts(batch)
        flat, shape = torch.utils._pytree.tree_flatten(parts)
        key = (*((tuple(t.shape), t.dtype) for t in flat), self.model.training)
        if key not in self.pieces:
            traced = self._traced(parts)
            self.pieces[key] = Piece(traced, self.name, self.settings, shown=len(batch))
        loss, *found = self.pieces[key](*flat)
        if not is_shape_only(loss):
            with torch.no_grad():
                self._store(found, parts)
        self.optimizer._opt_called = True  # what schedulers ask before they step
        return loss

    def graph(self, *batch: Any) -> Graph:
        """The step on batches of these shapes as a graph, which `compiler.outline` times even where
        no device holds it; nothing is compiled, and no step taken.

        Raises UnsupportedError `graph.unsupported_op`, UsageError `frameworks.loss`.
        """
        return from_fx(self._traced(self._parts(batch)), {}, self.name).graph

    @property
    def device_seconds(self) -> float:
        """Simulated time of one step on the device, for the batch shapes traced last.

        Raises UsageError `frameworks.loss` before the first step."""
        if not self.pieces:
            raise UsageError("no step has been taken yet", code=LOSS)
        (program,) = list(self.pieces.values())[-1].programs.values()
        return program.record.device_seconds

    def _parts(self, batch: tuple) -> dict[str, list]:
        """Everything the step reads, by kind, as flat lists of tensors."""
        import torch

        numbers = [
            torch.tensor(number, dtype=torch.float32)
            for group in self.optimizer.param_groups
            for number in self.rule.numbers(group, self._count(group))
        ]
        state = [self._state(p, name) for _, p, n in self.trained for name in self._names(n)]
        return {
            "params": [p.detach() for _, p, _ in self.trained],
            "state": state,
            "fixed": [p.detach() for _, p in self.fixed],
            "buffers": [b.detach() for _, b in self.buffers],
            "numbers": numbers,
            "batch": list(batch),
        }

    def _names(self, group: int) -> tuple[str, ...]:
        return self.rule.state(self.optimizer.param_groups[group])

    def _count(self, group: dict) -> int:
        """Which step of the optimizer this is, from 1."""
        held = [self.optimizer.state[p] for p in group["params"] if p in self.optimizer.state]
        return 1 + max([int(s["step"]) for s in held if "step" in s], default=0)

    def _state(self, p: Any, name: str) -> Any:
        """A state tensor of the optimizer's own; zeros before the first step."""
        import torch

        held = self.optimizer.state[p]
        if held.get(name) is None:
            held[name] = torch.zeros_like(p)
            if name == "exp_avg":
                held.setdefault("step", torch.tensor(0.0))
        return held[name]

    def _store(self, found: list[Any], parts: dict[str, list]) -> None:
        """Write new parameters, state and buffers where the old ones are."""
        import torch

        names = ("params", "state", "buffers")
        old = [tensor for name in names for tensor in parts[name]]
        for tensor, new in zip(old, found, strict=True):
            tensor.copy_(new)
        for _, p, n in self.trained:
            if "exp_avg" in self._names(n):
                held = self.optimizer.state[p]
                held["step"] = torch.as_tensor(float(held.get("step", 0)) + 1)

    # ----------------------------------------------------------------------------------- tracing

    def _traced(self, parts: dict[str, list]) -> Any:
        """The step as an fx module of ATen ops, its inputs flat in the order of `parts`."""
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        flat, spec = torch.utils._pytree.tree_flatten(parts)

        def step(*given: Any) -> list[Any]:
            return self._step(torch.utils._pytree.tree_unflatten(list(given), spec))

        with warnings.catch_warnings(), torch.fx.traceback.preserve_node_meta():
            warnings.simplefilter("ignore")  # torch's own, about its own insides
            # Gradients cannot be taken inside `functionalize`, which removes writes in place:
            # so first the one, then the other.
            norms = torch._decomp.get_decompositions([torch.ops.aten.native_batch_norm])
            first = make_fx(
                step, decomposition_table=norms, tracing_mode="fake", record_stack_traces=True
            )(*flat)
            run = torch.fx.Interpreter(first).run
            pure = torch.func.functionalize(lambda *g: run(*g), remove="mutations")
            second = make_fx(pure, decomposition_table=decompositions(), tracing_mode="fake")(*flat)
        second.graph.eliminate_dead_code()
        _place_gradients(second.graph)
        return second

    def _step(self, parts: dict[str, list]) -> list[Any]:
        """Loss, new parameters, new state and buffers of one step."""
        import torch

        held = [p.detach().requires_grad_() for p in parts["params"]]
        buffers = [b.clone() for b in parts["buffers"]]
        names = [name for name, _, _ in self.trained]
        named = dict(zip(names, held, strict=True))
        named |= dict(zip([n for n, _ in self.fixed], parts["fixed"], strict=True))
        named |= dict(zip([n for n, _ in self.buffers], buffers, strict=True))
        whole = _whole(self.model, self.loss)
        with torch.enable_grad():
            given = {f"model.{name}": tensor for name, tensor in named.items()}
            loss = torch.func.functional_call(whole, given, tuple(parts["batch"]))
            if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.requires_grad:
                raise UsageError("the loss is not one number that can be minimised", code=LOSS)
            grads = torch.autograd.grad(loss, held, allow_unused=True)
        found, state = self._updated(parts, [
            torch.zeros_like(p) if g is None else g for p, g in zip(held, grads, strict=True)
        ])
        return [loss.detach(), *found, *state, *buffers]

    def _updated(self, parts: dict[str, list], grads: list[Any]) -> tuple[list, list]:
        """New parameters and new state."""
        groups = self.optimizer.param_groups
        every, numbers = iter(parts["numbers"]), []
        for group in groups:
            numbers.append([next(every) for _ in self.rule.numbers(group, 1)])
        state, found, kept = iter(parts["state"]), [], []
        for p, grad, (_, _, n) in zip(parts["params"], grads, self.trained, strict=True):
            held = [next(state) for _ in self._names(n)]
            new, *rest = self.rule.update(groups[n], numbers[n], p, grad, *held)
            found.append(new.to(p.dtype))
            kept += [r.to(h.dtype) for r, h in zip(rest, held, strict=True)]
        return found, kept


def _place_gradients(graph: Any) -> None:
    """Give each op of the backward the source line of the forward op it is the gradient of."""
    lines = {}
    for node in graph.nodes:
        number, line = node.meta.get("seq_nr"), node.meta.get("stack_trace")
        if line:
            lines.setdefault(number, line)
        elif number in lines:
            node.meta["stack_trace"] = lines[number]


def _whole(model: Any, loss: Callable) -> Any:
    """Model and loss as one module, so that the loss sees the parameters it is called with."""
    import torch

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *batch: Any) -> Any:
            return loss(self.model, *batch)

    return Whole()


def train_step(
    model: Any, optimizer: Any, loss: Callable, *, target: str = "", dtype: str = "keep",
    numerics: str = "",
) -> TrainStep:
    """A training step on the device: `loss(model, *batch)`, its gradients, the optimizer's update.

    `target`, `dtype` and `numerics` as in `Settings`; with "bfloat16" what lies between ops is
    rounded to it, parameters and state keep their dtype.  With numerics "none" steps are timed:
    the loss has no number, and nothing is changed.  Raises UnsupportedError `frameworks.optimizer`.
    """
    settings = Settings.of({"target": target, "dtype": dtype, "numerics": numerics,
                            "freeze": False})  # fmt: skip
    return TrainStep(model, optimizer, loss, settings)


__all__ = ["TrainStep", "train_step"]
