"""Predicted training steps, prefills and decodes beside published ones; how fast plans are made.

python -m bench.fleet                      every row of bench/published/fleet, as tables
python -m bench.fleet --summary            one line for each table
python -m bench.fleet --json               all of it, for programs
python -m bench.fleet --calculon DIR       also run that checkout of Calculon, side by side
             --peer-python EXE             with this Python (it needs pandas)
python -m bench.fleet --update docs/accuracy.md     write the summary into that page
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from opentrn.cluster import Job, World, train
from opentrn.cost import Serving, Split, Training, memory, platform, step_time
from opentrn.plan import plan
from opentrn.workloads import model

HERE = Path(__file__).resolve().parent / "published" / "fleet"
BEGIN, END = "<!-- fleet -->", "<!-- end of fleet -->"
GIB = 2.0**30


@dataclass(frozen=True)
class Row:
    """One published number beside ours: seconds, or GiB for memory."""

    table: str
    id: str
    what: str
    machine: str
    published: float
    predicted: float
    grade: str
    use: str
    rests_on: dict[str, float]

    @property
    def error(self) -> float:
        """How far off, as a share of the published number."""
        return self.predicted / self.published - 1.0


def _runs(name: str) -> dict:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def _training(row: dict) -> tuple:
    job = {k: row[k] for k in ("batch", "sequence", "optimizer", "dtype", "attention") if k in row}
    split = dict(row["split"])
    split.setdefault("dp", _data_parallel(row))
    return step_time(row["model"], row["machine"], Split(**split), Training(**job))


def _data_parallel(row: dict) -> int:
    split = row["split"]
    return platform(row["machine"]).devices * row["count"] // split["tp"] // split.get("pp", 1)


def megatron() -> Iterator[Row]:
    """Iteration times of Megatron-LM on Selene."""
    for row in _runs("megatron")["run"]:
        step = _training(row)
        yield Row("megatron", row["id"], str(row["split"]["recompute"]), row["machine"],
                  row["seconds"], float(step.seconds), row["grade"], row["use"],
                  dict(step.seconds.shares))  # fmt: skip


def megatron_memory() -> Iterator[Row]:
    """States and activations of one device, as figure 1 of the same paper gives them."""
    data = _runs("megatron")
    splits = {row["model"]: row for row in data["run"] if row["split"]["recompute"] == "selective"}
    for row in data["memory"]:
        run = splits[row["model"]]
        job = Training(batch=run["batch"], sequence=2048, attention="scores")
        for level, sequence, key in (
            ("none", False, "activations_gib"),
            ("selective", True, "selective_gib"),
        ):
            split = Split(**run["split"] | {"recompute": level, "sequence": sequence})
            held = memory(model(row["model"]), platform("selene"), job, split)
            name = f"{row['model']} {level}"
            yield Row(
                "memory",
                name,
                "activations",
                "selene",
                row[key],  # fmt: skip
                float(held["activations"]) / GIB,
                "A",
                "checked",
                {"stated": 1},
            )


def training() -> Iterator[Row]:
    """Training throughput on trn1, as seconds for one sequence."""
    for row in _runs("training")["run"]:
        step = _training(row)
        yield Row("training", row["id"], row["model"], f"{row['count']} x {row['machine']}",
                  1.0 / row["sequences_per_s"], float(step.seconds) / row["batch"], row["grade"],
                  row["use"], dict(step.seconds.shares))  # fmt: skip


def serving(phase: str) -> Iterator[Row]:
    """Prefill or decode latency on trn1, inf2, trn2 and trn3."""
    for row in _runs("serving")["run"]:
        if row["phase"] != phase:
            continue
        job = Serving(batch=row["batch"], prompt=row["prompt"], answer=row["answer"],
                      weight_bytes=row["weight_bytes"])  # fmt: skip
        where = platform(row["machine"], row.get("lnc"))
        step = step_time(row["model"], where, Split(tp=row["tp"], zero=0), job, phase)
        what = f"{row['model']} tp {row['tp']} batch {row['batch']} in {row['prompt']}"
        yield Row(phase, row["id"], what, row["machine"], row["seconds"], float(step.seconds),
                  row["grade"], row["use"], dict(step.seconds.shares))  # fmt: skip


TABLES = {
    "megatron": megatron,
    "memory": megatron_memory,
    "training": training,
    "decode": lambda: serving("decode"),
    "prefill": lambda: serving("prefill"),
}


def summary(rows: list[Row]) -> dict[str, float]:
    """Rows, and mean, median and largest absolute error."""
    errors = [abs(row.error) for row in rows]
    return {"rows": len(rows), "mean": statistics.fmean(errors),
            "median": statistics.median(errors), "max": max(errors)}  # fmt: skip


def speed() -> dict[str, float]:
    """Seconds of searches, and of one estimate."""
    out = {}
    for name, request in {
        "gpt-3-175b on 3,072 A100": ("gpt-3-175b", "selene", 384, 3072, 2048, "scores"),
        "llama-3.1-405b on 4,096 trn2": ("llama-3.1-405b", "trn2.48xlarge", 256, 2048, 8192,
                                         "flash"),
    }.items():  # fmt: skip
        what, machine, count, batch, sequence, attention = request
        start = time.perf_counter()
        found = plan(what, machine, count, batch=batch, sequence=sequence, attention=attention)
        out[f"search {name}, s"] = time.perf_counter() - start
        out[f"search {name}, splits"] = found.searched["legal"]
    world = World.of("trn2.48xlarge", 32_000, seed=1)
    job = Job(machines=31_250, step_s=20.0, compute_s=15.0, communication_s=4.0,
              checkpoint_bytes=1.4e13, machine_bytes=7e11)  # fmt: skip
    start = time.perf_counter()
    run, _ = train(world, job, seconds=90 * 86400.0)
    out[f"simulate {run.world.chips:,} chips for 90 days, s"] = time.perf_counter() - start
    out["faults and slow machines in it"] = sum(run.faults.values())
    start = time.perf_counter()
    list(megatron())
    out["validation set, s"] = time.perf_counter() - start
    out["one estimate, s"] = out["validation set, s"] / 8
    return out


def calculon(folder: str, python: str, patience: float) -> dict[str, float]:
    """A checkout of Calculon on the same rows, run here: seconds, mean and largest error.

    Then its search of GPT-3 175B on 3,072 A100, ended after `patience` seconds, beside ours to its
    end; its space also has offloading and overlapping, and is larger.
    """
    command, env = [python, "bin/calculon"], os.environ | {"PYTHONPATH": "."}
    start = time.perf_counter()
    done = subprocess.run([*command, "llm-validation"], cwd=folder, env=env, check=True,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    found = {"Calculon, validation set, s": time.perf_counter() - start}
    told = done.stdout[done.stdout.index("End-to-end") :]
    for name, word in (("mean error", "Ave"), ("largest error", "Max")):
        found[f"Calculon, {name}"] = float(re.search(rf"{word},,([0-9.]+)%", told)[1]) / 100
    ours = summary(list(megatron()))
    found |= {"OpenTrn, mean error": ours["mean"], "OpenTrn, largest error": ours["max"]}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as here:
        search = subprocess.Popen(
            [*command, "llm-optimal-execution", "models/gpt3-175B.json", "3072", "3072", "float16",
             "systems/a100_80g.json", f"{here}/found.json", "-c", "1", "-n"],
            cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # it starts processes of its own, which must end with it
        )  # fmt: skip
        try:
            search.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(search.pid, signal.SIGTERM)
            search.wait()
    ended = "" if search.returncode == 0 else " (at least)"
    found[f"Calculon, search 175B on 3,072, s{ended}"] = time.perf_counter() - start
    start = time.perf_counter()
    plan("gpt-3-175b", "selene", 384, batch=3072, sequence=2048, attention="scores")
    found["OpenTrn, search 175B on 3,072, s"] = time.perf_counter() - start
    return found


def lines(found: dict[str, list[Row]]) -> Iterator[str]:
    """The summary as a Markdown table."""
    aims = {"megatron": "mean ≤ 5 %, max ≤ 10 %", "training": "median ≤ 20 %",
            "decode": "median ≤ 25 %", "prefill": "median ≤ 25 %"}  # fmt: skip
    yield "| rows | how many | median error | mean | largest | aim | of them checked | median |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, rows in found.items():
        s, unseen = summary(rows), [row for row in rows if row.use == "checked"]
        last = f"{len(unseen)} | {summary(unseen)['median']:.1%}" if unseen else "0 | -"
        yield (f"| {name} | {s['rows']:.0f} | {s['median']:.1%} | {s['mean']:.1%} | {s['max']:.1%} "
               f"| {aims.get(name, '')} | {last} |")  # fmt: skip


def update(page: Path, found: dict[str, list[Row]]) -> None:
    """Put the summary between the page's markers."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines(found)) + f"\n{END}{after}",
                    encoding="utf-8")  # fmt: skip


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calculon", metavar="DIR")
    parser.add_argument("--peer-python", metavar="EXE", default=sys.executable)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for its search")
    parser.add_argument("--update", metavar="PAGE", type=Path)
    asked = parser.parse_args()
    found = {name: list(make()) for name, make in TABLES.items()}
    if asked.update:
        update(asked.update, found)
        return
    times = speed()
    if asked.calculon:
        times |= calculon(asked.calculon, asked.peer_python, asked.patience)
    if asked.json:
        print(json.dumps({
            "rows": [asdict(row) | {"error": row.error} for rows in found.values() for row in rows],
            "summary": {name: summary(rows) for name, rows in found.items()}, "speed": times,
        }))  # fmt: skip
        return
    for rows in () if asked.summary else found.values():
        for row in rows:
            numbers = f"{row.published:10.4g} {row.predicted:10.4g} {row.error:+7.1%}"
            print(f"{row.table:9} {row.id:24} {row.what:48} {row.machine:22} {numbers} {row.grade}")
    print("\n".join(lines(found)))
    peer = _runs("megatron")["peer"]
    print(f"{peer['name']} on the Megatron rows: mean {peer['mean_error']:.2%}, largest "
          f"{peer['max_error']:.2%}")  # fmt: skip
    print("\n".join(f"{name:45} {value:,.4g}" for name, value in times.items()))


if __name__ == "__main__":
    main()
