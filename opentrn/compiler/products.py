"""Products in the one form kernels take: x [..., M, K] · y [..., K, N], convolutions included."""

from math import prod

from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no


def _plain(product: Value) -> bool:
    """Whether a dot_general is already [..., M, K] · [..., K, N] or [..., K] · [K, N]."""
    x, y = product.args
    d = product.attrs
    if x.rank >= 2 and y.rank == 2 and not d.lhs_batch:
        return d.lhs_contracting == (x.rank - 1,) and d.rhs_contracting in ((0,), (1,))
    lead = tuple(range(y.rank - 2))
    contracting = (d.lhs_contracting, d.rhs_contracting) == ((x.rank - 1,), (y.rank - 2,))
    return x.rank == y.rank >= 2 and contracting and d.lhs_batch == d.rhs_batch == lead


class PlainProduct(Rule):
    """dot_general over any axes → views, one product [..., M, K] · [..., K, N], a view"""

    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, y: Pattern) -> Pattern:
        return p.dot_general(x, y, bind="product")

    def when(product: Value) -> bool | no:
        return not _plain(product) or no("the axes are in the kernels' order already")

    def make(g: Builder, x: Value, y: Value, product: Value) -> Value:
        d = product.attrs
        left, right = d.free(x.type, y.type)
        batch, rows, inner, columns = d.sizes(x.type, y.type)
        a = g.transpose(x, d.lhs_batch + left + d.lhs_contracting)
        b = g.transpose(y, d.rhs_batch + d.rhs_contracting + right)
        lead = () if batch == 1 else (batch,)
        made = g.dot_general(
            g.reshape(a, (*lead, rows, inner)),
            g.reshape(b, (*lead, inner, columns)),
            lhs_contracting=len(lead) + 1,
            rhs_contracting=len(lead),
            lhs_batch=tuple(range(len(lead))),
            rhs_batch=tuple(range(len(lead))),
            dtype=d.dtype,
        )
        return g.reshape(made, product.shape)

    def sample(g: Builder) -> tuple[Value, ...]:
        x, y = g.input("x", (2, 3, 4, 5)), g.input("y", (4, 2, 6, 5))
        v, w = g.input("v", (7,)), g.input("w", (7,))
        return (
            g.dot_general(x, y, lhs_contracting=(3, 2), rhs_contracting=(3, 0),
                          lhs_batch=(0,), rhs_batch=(1,)),
            g.dot_general(x, y, lhs_contracting=(3,), rhs_contracting=(3,),
                          lhs_batch=(2, 0), rhs_batch=(0, 1)),
            g.dot_general(v, w, lhs_contracting=0, rhs_contracting=0),
            g.dot_general(v, g.input("m", (7, 2)), lhs_contracting=0, rhs_contracting=0),
        )  # fmt: skip

    def refuse(g: Builder) -> tuple[Value, ...]:
        x = g.input("x", (2, 3, 4))
        return (
            g.matmul(x, g.input("y", (2, 4, 5))),
            g.matmul(x, g.input("w", (4, 5))),
        )


def _moved(g: Builder, conv: Value) -> tuple[Value, Value]:
    """Image as N spatial… C and kernel as spatial… C/groups O."""
    image, kernel = conv.args
    a = conv.attrs
    batch, feature, *spatial = a.lhs_axes
    outputs, inputs, *taps = a.rhs_axes
    return (
        g.transpose(image, (batch, *spatial, feature)),
        g.transpose(kernel, (*taps, inputs, outputs)),
    )


def _back(g: Builder, made: Value, conv: Value) -> Value:
    """N spatial… O in the order of axes the convolution has."""
    order = (0, made.rank - 1, *range(1, made.rank - 1))
    places = conv.attrs.out_axes
    return g.transpose(made, tuple(order[places.index(axis)] for axis in range(made.rank)))


def _without_gaps(conv: Value) -> bool:
    """Whether windows lie side by side: strides as long as the kernel, nothing padded."""
    a, kernel = conv.attrs, conv.args[1]
    taps = tuple(kernel.shape[axis] for axis in a.rhs_axes[2:])
    ones = (1,) * len(taps)
    plain = a.groups == 1 and a.lhs_dilation == a.rhs_dilation == ones
    return plain and a.strides == taps and not any(any(p) for p in a.padding)


def _sample(g: Builder, stride: int, **options) -> Value:
    image, kernel = g.input("image", (2, 4, 9, 6)), g.input("kernel", (6, 4, 2, 3))
    if "groups" in options:
        kernel = g.input("kernel", (6, 4 // options["groups"], 2, 3))
    strides = (2, 3) if not stride else (stride, stride)
    return g.convolution(
        image, kernel, strides=strides, padding=options.pop("padding", ((0, 0),) * 2), **options
    )


class PatchesToLinear(Rule):
    """convolution with windows side by side → patches as rows, one product with the kernel"""

    tolerance = 1e-5

    def find(p: PatternBuilder, image: Pattern, kernel: Pattern) -> Pattern:
        return p.convolution(image, kernel, bind="conv")

    def when(conv: Value) -> bool | no:
        if conv.dtype.kind not in ("float", "int", "uint"):
            return no("the numbers are neither floats nor integers")
        return _without_gaps(conv) or no("windows overlap, leave gaps, or are padded")

    def make(g: Builder, kernel: Value, conv: Value) -> Value:
        x, w = _moved(g, conv)
        steps = conv.attrs.strides
        places = tuple(n // s for n, s in zip(x.shape[1:-1], steps, strict=True))
        used = (x.shape[0], *(n * s for n, s in zip(places, steps, strict=True)), x.shape[-1])
        x = g.slice(x, (0,) * x.rank, used, (1,) * x.rank)
        pairs = [n for pair in zip(places, steps, strict=True) for n in pair]
        split = g.reshape(x, (x.shape[0], *pairs, x.shape[-1]))
        count = len(steps)
        # Channels stay outside the taps, as the image has them: the copy reads whole rows of taps.
        outer = tuple(range(1, 2 * count, 2))
        inner = (2 * count + 1, *range(2, 2 * count + 1, 2))
        rows = g.reshape(g.transpose(split, (0, *outer, *inner)), (x.shape[0], *places, -1))
        turned = g.transpose(w, (count, *range(count), count + 1))
        matrix = g.reshape(turned, (-1, w.shape[-1]))
        return _back(g, g.matmul(rows, matrix), conv)

    def sample(g: Builder) -> tuple[Value, ...]:
        image, kernel = g.input("image", (6, 9, 2, 4)), g.input("kernel", (2, 3, 4, 6))
        axes = {"lhs_axes": (2, 3, 0, 1), "rhs_axes": (3, 2, 0, 1), "out_axes": (0, 3, 1, 2)}
        padding = ((0, 0),) * 2
        return (
            _sample(g, 0),
            g.convolution(image, kernel, strides=(2, 3), padding=padding, **axes),
        )

    def refuse(g: Builder) -> tuple[Value, ...]:
        return (
            _sample(g, 1),
            _sample(g, 0, padding=((0, 0), (1, 1))),
            _sample(g, 0, groups=2),
        )


class WindowsToProduct(Rule):
    """any convolution → the taps of all windows side by side, one product for each group"""

    tolerance = 1e-5

    def find(p: PatternBuilder, image: Pattern, kernel: Pattern) -> Pattern:
        return p.convolution(image, kernel, bind="conv")

    def when(conv: Value) -> bool | no:
        if conv.dtype.kind not in ("float", "int", "uint"):
            return no("the numbers are neither floats nor integers")
        if any(d != 1 for d in conv.attrs.lhs_dilation):
            return no("the image is dilated (a transposed convolution)")
        return not _without_gaps(conv) or no("windows lie side by side: PatchesToLinear")

    def make(g: Builder, conv: Value) -> Value:
        x, w = _moved(g, conv)
        a, count = conv.attrs, w.rank - 2
        low, high = ((0, *(p[i] for p in a.padding), 0) for i in (0, 1))
        if any(low) or any(high):
            zero = g.full((), 0, x.dtype)
            x = g.pad(x, zero, low=low, high=high, interior=(0,) * x.rank)
        sizes = tuple(conv.shape[axis] for axis in a.out_axes[2:])
        parts = [
            _window(g, x, tap, sizes, a.strides, a.rhs_dilation) for tap in _taps(w.shape[:count])
        ]
        lead = (x.shape[0], *sizes)
        if a.groups == 1:
            rows = parts[0] if len(parts) == 1 else g.concatenate(*parts, dimension=count + 1)
            made = g.matmul(rows, g.reshape(w, (-1, w.shape[-1])))
            return _back(g, made, conv)
        each, outputs = w.shape[count], w.shape[-1] // a.groups
        split = [g.reshape(part, (prod(lead), a.groups, each)) for part in parts]
        rows = split[0] if len(split) == 1 else g.concatenate(*split, dimension=2)
        matrix = g.reshape(w, (len(parts) * each, a.groups, outputs))
        made = g.matmul(g.transpose(rows, (1, 0, 2)), g.transpose(matrix, (1, 0, 2)))
        made = g.reshape(g.transpose(made, (1, 0, 2)), (*lead, w.shape[-1]))
        return _back(g, made, conv)

    def sample(g: Builder) -> tuple[Value, ...]:
        return (
            _sample(g, 1),
            _sample(g, 2, padding=((1, 1), (2, 0)), rhs_dilation=(2, 1)),
            _sample(g, 1, groups=2),
            _sample(g, 0, padding=((0, 0), (1, 1))),
            WindowsToProduct._whole(g, "int32"),
            WindowsToProduct._whole(g, "int8"),
        )

    def _whole(g: Builder, kind: str) -> Value:
        image, kernel = g.input("i", (2, 4, 9, 6), kind), g.input("k", (6, 2, 2, 3), kind)
        padding = ((1, 1), (2, 0))
        return g.convolution(image, kernel, strides=(2, 1), padding=padding, groups=2)

    def refuse(g: Builder) -> tuple[Value, ...]:
        return _sample(g, 0), _sample(g, 1, lhs_dilation=(2, 2))


def _taps(sizes: tuple[int, ...]):
    """Every position of a kernel, row-major."""
    if not sizes:
        yield ()
        return
    for n in range(sizes[0]):
        for rest in _taps(sizes[1:]):
            yield (n, *rest)


def _window(g: Builder, x: Value, tap, sizes, strides, dilation) -> Value:
    """What one tap of the kernel sees: [N, places…, C] of the padded image."""
    starts = tuple(t * d for t, d in zip(tap, dilation, strict=True))
    limits = tuple(
        first + (n - 1) * step + 1 for first, n, step in zip(starts, sizes, strides, strict=True)
    )
    last = x.shape[-1]
    return g.slice(x, (0, *starts, 0), (x.shape[0], *limits, last), (1, *strides, 1))


class BiasBelowTranspose(Rule):
    """transpose(x) + a broadcast row → transpose(x + the row): a linear can take the bias"""

    def find(p: PatternBuilder, x: Pattern, b: Pattern) -> Pattern:
        return p.transpose(x, bind="turned") + p.broadcast_in_dim(b, bind="spread")

    def when(b: Value, turned: Value, spread: Value) -> bool | no:
        if b.rank != 1:
            return no("the addend is not a row")
        place = turned.attrs.permutation[spread.attrs.dimensions[0]]
        return place == turned.rank - 1 or no("the row does not lie along the last axis of x")

    def make(g: Builder, x: Value, b: Value, turned: Value) -> Value:
        total = x + g.broadcast(b, x.shape)
        return g.transpose(total, turned.attrs.permutation)

    def sample(g: Builder) -> Value:
        y = g.transpose(g.input("x", (2, 3, 5)), (0, 2, 1))
        return g.broadcast_in_dim(g.input("b", (5,)), y.shape, (1,)) + y

    def refuse(g: Builder) -> tuple[Value, ...]:
        y = g.transpose(g.input("x", (2, 3, 5)), (0, 2, 1))
        return (
            y + g.broadcast_in_dim(g.input("b", (3,)), y.shape, (2,)),
            y + g.broadcast_in_dim(g.input("c", (5, 3)), y.shape, (1, 2)),
        )


PRODUCTS = (PlainProduct, PatchesToLinear, WindowsToProduct, BiasBelowTranspose)

__all__ = ["PRODUCTS"]
