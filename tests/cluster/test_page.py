"""Pages of simulated runs: every part and every latency where the numbers say, no network."""

import re
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from opentrn.cluster import (
    Job,
    Pace,
    Service,
    World,
    serve,
    serving_page,
    train,
    training_page,
)
from opentrn.workloads import Batcher, Traffic


def pictures(text):
    return [xml.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.S)]


def test_parts_of_a_run_are_as_wide_as_their_seconds():
    job = Job(machines=60, step_s=10.0, every_s=600.0)
    worlds = [World.of("trn2.48xlarge", 62, seed=seed) for seed in (1, 2)]
    runs = [train(world, job, seconds=60 * 86400)[0] for world in worlds]
    text = training_page(runs, "a <b> run", ["rates"])
    assert "<b>" not in text
    assert not re.search(r"<script|<link|\bsrc=|https?://|@import|url\(", text)
    bars, curve = pictures(text)
    wide = [float(rect.get("width")) for rect in bars.findall("rect")]
    seconds = [part for run in runs for part in run.parts.values() if part > 0]
    assert np.allclose(np.array(wide) / sum(wide), np.array(seconds) / sum(seconds), atol=1e-3)
    assert len(curve.findall("circle")) == 9 + 2  # intervals in closed form, and the two runs
    assert len(pictures(runs[0]._repr_html_())) == 2


def test_latencies_are_drawn_at_their_quantiles():
    service = Service(Batcher(1, bucket=1), lambda tokens: 0.5, lambda batch: Pace(0.01, 0.0))
    served = serve(service, Traffic.random(0.5, 1000, prompt=10, answer=51, seed=1))
    text = serving_page(served, "t")
    (picture,) = pictures(text)
    assert served._repr_html_().count("<circle") == 3 * 10
    dots = [float(c.get("cx")) for c in picture.findall("circle")]
    assert len(dots) == 3 * 10  # down to one in a thousand
    first = [float(np.quantile(served.ttft, 1 - share)) for share in (1.0, 0.5, 0.01)]
    whole = float(np.quantile(served.latency, 0.0))
    # Logarithmic: equal ratios are equal distances.
    scale = (dots[20] - dots[0]) / np.log(whole / first[0])
    assert dots[1] - dots[0] == pytest.approx(scale * np.log(first[1] / first[0]), abs=0.3)
    assert dots[6] - dots[0] == pytest.approx(scale * np.log(first[2] / first[0]), abs=0.3)
