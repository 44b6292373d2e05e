"""Cells of LSTM and GRU as PyTorch calls them on devices that are not the CPU, in plain ops.

PyTorch's own code for a CPU takes such cells apart itself; for other devices it asks for one fused
op, which keeps in a workspace what the gradient needs.  Gates are in PyTorch's order: input,
forget, cell, output; for a GRU reset, update, new.  The gradients are those of these formulas
(torch.nn.LSTM and torch.nn.GRU, PyTorch documentation).
"""

from typing import Any


def _with_bias(gates: Any, bias: Any) -> Any:
    return gates if bias is None else gates + bias


def lstm(gates_in: Any, gates_hidden: Any, cx: Any, bias_in: Any = None,
         bias_hidden: Any = None) -> tuple[Any, Any, Any]:  # fmt: skip
    """The next hidden and cell state, each [batch, size], and the gates [batch, 4·size]."""
    import torch

    gates = _with_bias(gates_in, bias_in) + _with_bias(gates_hidden, bias_hidden)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any,
                  has_bias: bool) -> tuple[Any, Any, Any]:  # fmt: skip
    """Gradients of the gates, of the cell state before, and of either bias."""
    import torch

    i, f, g, o = workspace.chunk(4, 1)
    bent = cy.tanh()
    grad_hy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    cell = grad_hy * o * (1 - bent * bent)
    cell = cell if grad_cy is None else cell + grad_cy
    gates = [cell * g * i * (1 - i), cell * cx * f * (1 - f), cell * i * (1 - g * g),
             grad_hy * bent * o * (1 - o)]  # fmt: skip
    made = torch.cat(gates, 1)
    return made, cell * f, made.sum(0) if has_bias else None


def gru(gates_in: Any, gates_hidden: Any, hx: Any, bias_in: Any = None,
        bias_hidden: Any = None) -> tuple[Any, Any]:  # fmt: skip
    """The next hidden state [batch, size], and [batch, 5·size] for the gradient."""
    import torch

    reset_in, update_in, new_in = _with_bias(gates_in, bias_in).chunk(3, 1)
    reset, update, new = _with_bias(gates_hidden, bias_hidden).chunk(3, 1)
    r, z = (reset_in + reset).sigmoid(), (update_in + update).sigmoid()
    n = (new_in + r * new).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, new], 1)


def gru_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> tuple[Any, Any, Any, Any, Any]:
    """Gradients of the gates of input and hidden state, of that state, and of the two biases."""
    import torch

    r, z, n, hx, new = workspace.chunk(5, 1)
    update = grad_hy * (hx - n) * z * (1 - z)
    inner = grad_hy * (1 - z) * (1 - n * n)
    reset = inner * new * r * (1 - r)
    given = torch.cat([reset, update, inner], 1)
    hidden = torch.cat([reset, update, inner * r], 1)
    sums = (given.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return given, hidden, grad_hy * z, *sums


def decomposition() -> dict[Any, Any]:
    """The ops and what they are made of."""
    import torch

    aten = torch.ops.aten
    return {
        aten._thnn_fused_lstm_cell.default: lstm,
        aten._thnn_fused_lstm_cell_backward_impl.default: lstm_backward,
        aten._thnn_fused_gru_cell.default: gru,
        aten._thnn_fused_gru_cell_backward.default: gru_backward,
    }


__all__ = ["decomposition"]
