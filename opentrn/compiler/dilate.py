"""Numbers between the elements: interior padding and dilated images, spelled out as layout."""

from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no


class InteriorPad(Rule):
    """pad between elements → each element with its gap as a row, rows laid one after the other"""

    def find(p: PatternBuilder, x: Pattern, value: Pattern) -> Pattern:
        return p.pad(x, value, bind="grown")

    def when(x: Value, grown: Value) -> bool | no:
        if not any(grown.attrs.interior):
            return no("nothing is put between the elements")
        return x.size > 0 or no("it is empty")

    def make(g: Builder, x: Value, value: Value, grown: Value) -> Value:
        a = grown.attrs
        shape, split, high, wide = [], [], [], []
        for n, gap in zip(x.shape, a.interior, strict=True):
            split += [n, 1] if gap else [n]
            high += [0, gap] if gap else [0]
            shape.append(n * (gap + 1))
            wide.append(n * (gap + 1) - gap)
        rows = g.reshape(x, split)
        zeros = (0,) * len(split)
        filled = g.pad(rows, value, low=zeros, high=high, interior=zeros)
        line = g.slice(g.reshape(filled, shape), (0,) * x.rank, wide, (1,) * x.rank)
        if not any(a.low) and not any(a.high):
            return line
        return g.pad(line, value, low=a.low, high=a.high, interior=(0,) * x.rank)

    def _grown(g: Builder, interior: tuple[int, int]) -> Value:
        x = g.input("x", (4, 5))
        return g.pad(x, g.full((), 2.0), low=(1, 0), high=(0, -2), interior=interior)

    def sample(g: Builder) -> tuple[Value, ...]:
        plain = g.pad(g.input("x", (4, 5)), g.full((), 0.0), (0, 0), (0, 0), (2, 1))
        return InteriorPad._grown(g, (0, 1)), plain

    def refuse(g: Builder) -> Value:
        return InteriorPad._grown(g, (0, 0))


class DilatedImage(Rule):
    """convolution of a dilated image → of the image with zeros between its elements"""

    def find(p: PatternBuilder, image: Pattern, kernel: Pattern) -> Pattern:
        return p.convolution(image, kernel, bind="conv")

    def when(conv: Value) -> bool | no:
        return any(d != 1 for d in conv.attrs.lhs_dilation) or no("the image is not dilated")

    def make(g: Builder, image: Value, kernel: Value, conv: Value) -> Value:
        a = conv.attrs
        gaps = [0] * image.rank
        for axis, d in zip(a.lhs_axes[2:], a.lhs_dilation, strict=True):
            gaps[axis] = d - 1
        zeros = (0,) * image.rank
        spread = g.pad(image, g.full((), 0, image.dtype), low=zeros, high=zeros, interior=gaps)
        return g.convolution(
            spread, kernel, strides=a.strides, padding=a.padding, rhs_dilation=a.rhs_dilation,
            groups=a.groups, lhs_axes=a.lhs_axes, rhs_axes=a.rhs_axes, out_axes=a.out_axes,
        )  # fmt: skip

    def _conv(g: Builder, dilation: tuple[int, int]) -> Value:
        image, kernel = g.input("image", (2, 4, 5, 6)), g.input("kernel", (3, 4, 2, 3))
        return g.convolution(
            image, kernel, strides=(1, 1), padding=((1, 0), (2, 1)), lhs_dilation=dilation
        )

    def sample(g: Builder) -> tuple[Value, ...]:
        return DilatedImage._conv(g, (2, 1)), DilatedImage._conv(g, (2, 3))

    def refuse(g: Builder) -> Value:
        return DilatedImage._conv(g, (1, 1))


DILATION = (InteriorPad, DilatedImage)

__all__ = ["DILATION"]
