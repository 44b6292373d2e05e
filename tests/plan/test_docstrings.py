"""What a notebook shows of a function that returns a number: its unit, and where it comes from."""

import inspect
import re

import pytest

from opentrn import cluster, comm, cost, plan, workloads

NUMBERS = {
    workloads: ("parameters", "model_flops", "attention_flops", "decode_flops", "train_flops",
                "kv_bytes", "state_bytes", "activation_bytes"),
    comm: ("bandwidths", "bus_factor", "wire_seconds", "time", "tiered_seconds",
           "tiered_all_to_all", "tiered_send"),
    cost: ("step_time", "memory", "training_parts", "prefill_parts", "decode_parts",
           "collective_time", "dollars", "dollars_per_million", "roofline"),
    plan: ("plan", "plan_serving", "compare", "fits", "scaling"),
    cluster: ("train", "serve", "faults", "settings", "best_interval", "expected_goodput",
              "mean_time_between", "ring_share"),
}  # fmt: skip
UNITS = r"seconds?|bytes|flops|dollars|parameters|share of|hours|\$"


ALL = [f"{room.__name__}.{name}" for room, names in NUMBERS.items() for name in names]


@pytest.mark.parametrize("name", ALL)
def test_a_number_has_a_unit_and_a_source(name):
    room, _, function = name.removeprefix("opentrn.").partition(".")
    modules = {"workloads": workloads, "comm": comm, "cost": cost, "plan": plan, "cluster": cluster}
    text = inspect.getdoc(getattr(modules[room], function))
    assert re.search(UNITS, text, re.IGNORECASE), text
    assert re.search(r"Source:\s|arXiv|[Ee]quation \d", text), text
