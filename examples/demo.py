"""The main job, start to finish: a kernel and a real model on a simulated Trainium2.

    python examples/demo.py            (or: make demo)

(a) two NKI kernels, checked against NumPy, with device time, engine use and what bounds them;
(b) the MiniLM-L6 sentence encoder with its real weights on real text, compiled for trn2, executed
    instruction by instruction in float32 and bfloat16, compared with eager PyTorch, and priced.

Both leave in out/demo a page to open in a browser, a Perfetto trace (open it at ui.perfetto.dev)
and a summary JSON.
"""

import codecs
import contextlib
import io
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

import opentrn
from opentrn import cost, dropin, nki, profiler

OUT = Path("out/demo")
TARGET, INSTANCE = "trn2", "trn2.3xlarge"
BATCH = 4
console = Console(highlight=False)


def heading(text: str) -> None:
    """A line that says what comes next."""
    console.print(f"\n[bold]{text}[/bold]\n")


def show(name: str, found) -> None:
    """Print what a timeline says, and leave it where people can open it."""
    made = profiler.profile(found, name)
    print(f"\n{made.summary}\n")
    OUT.mkdir(parents=True, exist_ok=True)
    profiler.save_page([made], OUT / f"{name}.html")
    profiler.save_perfetto(made.trace, OUT / f"{name}.perfetto.json")
    profiler.save_summary(made.summary, OUT / f"{name}.summary.json")
    console.print(f"wrote {OUT / name}.html, .perfetto.json and .summary.json")


# ------------------------------------------------------------------------------------ (a) kernels


def kernels() -> None:
    """Run examples/matmul_attention.py's kernels and say where their time goes."""
    heading(f"(a) NKI kernels on {TARGET}: a tiled bfloat16 product and softmax attention")
    with dropin.install(TARGET):
        import matmul_attention as example
    product, heads = example.inputs()
    wanted = {
        "matmul": product[0].astype(np.float64).T @ product[1].astype(np.float64),
        "attention": example.reference_attention(*heads),
    }
    for name, kernel, args in (
        ("matmul", example.matmul, product),
        ("attention", example.attention, heads),
    ):
        start = time.perf_counter()
        run = nki.run(kernel, *args)
        took = time.perf_counter() - start
        error = example.relative_error(run.outputs, wanted[name])
        console.print(
            f"{name}: {len(run.program)} instructions in {took:.2f} s, off NumPy by "
            f"{error:.1e} of the largest value (one bfloat16 step is 3.9e-3)"
        )
        if error > 2**-7:
            sys.exit(f"{name} differs from NumPy")
        show(name, run.timeline())


# -------------------------------------------------------------------------------------- (b) model


def sentences() -> list[str]:
    """Real text that ships with Python: the aphorisms of `import this`."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    lines = codecs.decode(this.s, "rot13").splitlines()
    return [line for line in lines if line][: 4 * BATCH]


def encoder() -> None:
    """Compile the sentence encoder, run it on real text, compare, time and price it."""
    heading(f"(b) MiniLM-L6, real weights, real text, compiled for {TARGET}")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("loading PyTorch and the weights", total=None)
        import sentence_encoder
        import torch

        torch.set_num_threads(1)
        model = sentence_encoder.load()
        text = sentences()
        ids, mask = sentence_encoder.tokenize(text)
        progress.update(task, description="eager PyTorch")
        with torch.no_grad():
            eager = model(ids, mask).numpy()
        progress.update(task, description="importing the graph")
        from opentrn.graph import from_torch

        graph = from_torch(model, (ids[:BATCH], mask[:BATCH]))
    console.print(
        f"{len(text)} sentences (the Zen of Python) of up to {ids.shape[1]} tokens; the graph has "
        f"{len(graph)} values and {graph.flops / 1e9:.1f} GFLOP for a batch of {BATCH}"
    )
    for dtype, least in (("float32", 0.99999), ("bfloat16", 0.999)):
        loaded, found = embed(graph, ids, mask, dtype)
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(eager, axis=1)
        cosine = (found * eager).sum(1) / lengths
        console.print(f"{dtype}: cosine with eager PyTorch at least {cosine.min():.7f} (> {least})")
        if cosine.min() <= least:
            sys.exit(f"the {dtype} embeddings differ from eager PyTorch")
    nearest(text, found)
    report(loaded)


def embed(graph, ids, mask, dtype: str):
    """Embeddings of all sentences by a compiled executable, batch by batch."""
    from opentrn import compiler

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"compiling for {TARGET}, {dtype}", total=None)
        executable = compiler.compile(graph, target=TARGET, dtype=dtype)
        OUT.mkdir(parents=True, exist_ok=True)
        path = executable.save(OUT / f"encoder-{dtype}.trn")
        loaded = opentrn.load(path)
        progress.update(task, description=f"running {dtype}", total=len(ids), completed=0)
        parts = []
        for first in range(0, len(ids), BATCH):
            batch = slice(first, first + BATCH)
            parts.append(np.asarray(loaded(ids[batch].numpy(), mask[batch].numpy())))
            progress.update(task, completed=first + BATCH)
    console.print(
        f"{path}: {len(executable.program):,} instructions, "
        f"{executable.meta['kernels_traced']} kernels traced for "
        f"{executable.meta['kernel_calls']} calls"
    )
    return loaded, np.concatenate(parts)


def nearest(text: list[str], embeddings: np.ndarray) -> None:
    """What the embeddings are for: the two sentences that mean most alike."""
    alike = embeddings @ embeddings.T - 2 * np.eye(len(text))
    a, b = np.unravel_index(np.argmax(alike), alike.shape)
    console.print(f"closest in meaning ({alike[a, b]:.2f}): “{text[a]}” “{text[b]}”")


def report(loaded) -> None:
    """Latency, engine use, memory and price of the bfloat16 executable."""
    found = loaded.time()
    show("encoder", found)
    latency = found.total_ns * 1e-9
    console.print(f"latency of a batch of {BATCH}: {latency * 1e3:.2f} ms on one core")
    print(f"\n{loaded.memory}\n")
    price = cost.best_price(INSTANCE)
    bill = cost.dollars_per_million(
        latency, BATCH, INSTANCE, cores_used=1, basis=price, item="sentences"
    )
    print(bill)


def main() -> None:
    """Both parts, and how long they took."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    start = time.perf_counter()
    kernels()
    encoder()
    console.print(f"\nthe demo took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
