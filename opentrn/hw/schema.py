"""What must, and what may, stand in a hardware file: every fact, its dimension and its meaning.

A dimension is one of `base.units` ("byte", "byte/s", "Hz", "s", "cycle", "flop/s", "W", "$/h") or

    count   a whole number above zero          ratio   a plain number above zero
    number  a whole number, zero allowed       flag    0 or 1
    text    words                              shape   sizes such as "4 x 4"

Files are read by `load.py`, which refuses whatever is not in these tables.
"""

from __future__ import annotations

from typing import NamedTuple

GRADES = ("stated", "fitted", "derived", "assumed")
"""How sure a number is, surest first."""

BASES = ("on-demand", "capacity-block", "spot", "ri-3yr")
"""What a price can mean: list price, reserved block of days, spare capacity, three years bought."""

TOPOLOGIES = ("ring", "line", "torus", "switched")
"""How the chips of one fabric are joined."""

PLAIN = {"count", "number", "ratio", "flag", "text", "shape"}
"""Dimensions that are not quantities with a unit."""


class Need(NamedTuple):
    """One fact a file of a kind has: what it is measured in, and what it means."""

    dimension: str
    meaning: str
    required: bool = True


def _table(kind: dict[str, dict[str, tuple]]) -> dict[str, Need]:
    return {
        f"{section}.{name}": Need(*row)
        for section, rows in kind.items()
        for name, row in rows.items()
    }


CHIP = _table({
    "chip": {
        "name": ("text", "as AWS calls the chip"),
        "generation": ("count", "N of NKI's genN; its cores are NeuronCore-vN"),
        "cores": ("count", "physical NeuronCores"),
        "logical_cores": ("count", "physical cores in one logical core, by default"),
        "cc_cores": ("count", "cores that run collectives"),
        "hbm": ("byte", "device memory"),
        "hbm_stacks": ("count", "HBM stacks"),
        "hbm_bandwidth": ("byte/s", "of all stacks together"),
        "peak_bf16": ("flop/s", "dense bfloat16, float16 and tfloat32"),
        "peak_fp8": ("flop/s", "dense float8 without MX scales"),
        "peak_mx": ("flop/s", "dense MXFP8 and MXFP4", False),
        "peak_fp32": ("flop/s", "dense float32"),
        "peak_sparse": ("flop/s", "with structured sparsity", False),
        "sbuf": ("byte", "SBUF of all cores"),
        "dma_engines": ("count", "DMA engines of all cores"),
        "dma_bandwidth": ("byte/s", "of all DMA engines, as advertised"),
        "neuronlink_bandwidth": ("byte/s", "to other chips, both directions, as advertised"),
        "tdp": ("W", "thermal design power", False),
    },
    "core": {
        "partitions": ("count", "rows of SBUF and PSUM (pmax)"),
        "sbuf_partition": ("byte", "SBUF bytes in one partition"),
        "sbuf_usable": ("byte", "of these, what a program may use"),
        "sbuf_alignment": ("byte", "least alignment of an SBUF address"),
        "psum_partition": ("byte", "PSUM bytes in one partition"),
        "psum_banks": ("count", "banks in one partition"),
        "psum_bank": ("byte", "bytes of one bank in one partition"),
        "psum_alignment": ("byte", "least alignment of a PSUM address"),
        "quadrant": ("count", "partitions of one start-partition group"),
        "registers": ("count", "registers of each engine"),
        "semaphores": ("count", "semaphores of one core"),
        "peak_bf16": ("flop/s", "TensorE, dense bfloat16, float16, tfloat32"),
        "peak_fp8": ("flop/s", "TensorE, dense float8 without MX scales"),
        "peak_mx": ("flop/s", "TensorE, dense MXFP8 and MXFP4", False),
        "peak_fp32": ("flop/s", "TensorE, dense float32"),
        "peak_sparse": ("flop/s", "TensorE, structured sparsity", False),
    },
    "tensor": {
        "clock": ("Hz", "one moving column a cycle"),
        "rows": ("count", "rows of the PE array (contraction)"),
        "columns": ("count", "columns of the PE array"),
        "stationary_free": ("count", "most columns of a stationary tile"),
        "moving_free": ("count", "most columns of a moving tile, float32 result"),
        "moving_free_16bit": ("count", "most columns of a moving tile, 16-bit result"),
        "row_tile": ("count", "smallest tile the array can be cut into"),
        "min_cycles": ("cycle", "least issue interval of a matmul"),
        "load_ratio": ("ratio", "stationary columns loaded a cycle"),
        "fp32_passes": ("count", "a float32 matmul costs this many bfloat16 ones"),
        "double_row": ("flag", "two float8 rows a cycle"),
        "mx": ("flag", "MX matmul exists"),
        "warmup": ("s", "window in which the current limiter measures the array's work"),
        "warm_share": ("ratio", "least work in a window, for full speed in the next"),
        "cold_rate": ("ratio", "share of the clock after a window with less"),
        "latency": ("s", "from the last column's issue to a readable result"),
    },
    "vector": {
        "clock": ("Hz", "engine clock"),
        "lanes": ("count", "partitions side by side"),
        "wide_16bit": ("count", "most 16-bit elements a lane and cycle"),
        "wide_32bit": ("count", "most 32-bit elements a lane and cycle"),
        "wide_8bit": ("count", "most 8-bit elements a lane and cycle"),
        "min_cycles": ("cycle", "least issue interval"),
        "static_cycles": ("cycle", "access overhead of an instruction that waits"),
        "issue": ("cycle", "added to an instruction's stream before the next can begin"),
        "pointer": ("cycle", "reading an operand with one number for each partition"),
        "latency": ("s", "from the last element's issue to a readable result"),
        "free_sbuf": ("count", "most elements of a partition, in SBUF"),
        "free_psum": ("count", "most elements of a partition, in PSUM"),
        "bn_stats_free": ("count", "most elements of one bn_stats"),
    },
    "scalar": {
        "clock": ("Hz", "engine clock"),
        "lanes": ("count", "partitions side by side"),
        "wide_16bit": ("count", "most 16-bit elements a lane and cycle"),
        "min_cycles": ("cycle", "least issue interval"),
        "static_cycles": ("cycle", "access overhead of an instruction that waits"),
        "accumulator_cycles": ("cycle", "reading the reduce accumulator"),
        "issue": ("cycle", "added to an instruction's stream before the next can begin"),
        "pointer": ("cycle", "reading an operand with one number for each partition"),
        "function_issue": ("cycle", "`issue` of table functions such as exp, bias tile included"),
        "latency": ("s", "from the last element's issue to a readable result"),
        "function_latency": ("s", "the same for table functions such as exp, bias tile included"),
        "table_load": ("s", "loading another function table"),
        "copies": ("flag", "tensor_copy may run on ScalarE"),
    },
    "gpsimd": {
        "clock": ("Hz", "engine clock"),
        "lanes": ("count", "partitions side by side"),
        "processors": ("count", "processors of the engine"),
        "min_cycles": ("cycle", "least issue interval"),
        "start_cycles": ("cycle", "fixed part of an instruction"),
        "latency": ("s", "from the last element's issue to a readable result"),
    },
    "sync": {"clock": ("Hz", "engine clock")},
    "dma": {
        "engines": ("count", "DMA engines of one core"),
        "queues": ("count", "queues on each engine"),
        "partitions": ("count", "partitions one engine serves"),
        "engine_rate": ("byte/s", "achievable by one engine"),
        "engine_peak": ("byte/s", "theoretical, one engine"),
        "start": ("s", "wait satisfied -> first byte (issue included)"),
        "stagger": ("s", "each further engine of a transfer begins so much later"),
        "finish": ("s", "last byte -> semaphore written"),
        "hwdge": ("flag", "hardware descriptor generation exists"),
        "hwdge_issue": ("s", "issuing engine busy, hardware descriptors"),
        "swdge_start": ("s", "`start` with descriptors made by GpSimd"),
        "swdge_fetch": ("s", "software descriptors: a load from HBM begins so much later"),
        "swdge_issue": ("s", "GpSimd busy, software descriptors"),
        "static_issue": ("s", "issuing engine busy, descriptors made beforehand"),
        "descriptor": ("s", "fixed cost of one descriptor on its engine"),
        "descriptor_bytes": ("byte", "most bytes of one descriptor"),
        "packet_bytes": ("byte", "queues take turns after this many bytes"),
        "packet_descriptors": ("count", "most descriptors in one packet"),
        "efficient_bytes": ("byte", "least run recommended"),
        "saturating_bytes": ("byte", "run that reaches the full rate"),
        "transpose_rate": ("ratio", "share of the rate, transposing from HBM"),
        "transpose_sbuf_rate": ("ratio", "share of the rate, transposing from SBUF"),
        "accumulate_rate": ("ratio", "share of the rate, adding to the target"),
        "priorities": ("count", "classes of service", False),
    },
    "semaphore": {
        "wait": ("s", "set on one engine -> seen on another"),
        "dma_increment": ("count", "added by one finished dma_copy"),
    },
    "launch": {
        "graph": ("s", "host call of one loaded graph"),
        "library": ("s", "first run of a loaded graph: GpSimd loads its libraries"),
        "begin": ("s", "device run's start -> a kernel's first instruction"),
        "end": ("s", "a kernel's last result -> device run's end"),
        "loop": ("s", "one iteration of a loop on the device"),
    },
    "memory": {
        "microcode": ("byte", "HBM taken by each core's microcode"),
        "scratchpad_page": ("byte", "granule of a core's scratchpad"),
        "contiguous_page": ("byte", "granule of a contiguous scratchpad"),
        "instruction": ("byte", "one instruction in an executable"),
        "instruction_limit": ("count", "most instructions of one executable"),
    },
})  # fmt: skip
"""Facts of a chip and of one of its cores."""

INSTANCE = _table({
    "instance": {
        "chip": ("text", "chip file"),
        "family": ("text", "instance family"),
        "chips": ("count", "chips of the whole instance or UltraServer"),
        "vcpus": ("count", "host virtual CPUs"),
        "host_memory": ("byte", "host memory"),
        "cpu": ("text", "host processor", False),
        "fabric": ("text", "fabric file; none with one chip", False),
        "servers": ("count", "host servers of an UltraServer", False),
        "server": ("text", "instance file of one such server", False),
        "numa_nodes": ("count", "host NUMA nodes", False),
    },
    "totals": {
        "hbm": ("byte", "device memory, as advertised", False),
        "hbm_bandwidth": ("byte/s", "device memory bandwidth, as advertised", False),
        "peak_bf16": ("flop/s", "dense 16-bit, as advertised", False),
        "peak_fp8": ("flop/s", "dense float8, as advertised", False),
        "peak_mx": ("flop/s", "dense MXFP8 and MXFP4, as advertised", False),
        "peak_fp32": ("flop/s", "dense float32, as advertised", False),
        "neuronlink": ("byte/s", "NeuronLink of each chip, as advertised", False),
    },
    "host": {
        "storage": ("byte", "local NVMe", False),
        "network": ("byte/s", "network of the whole instance"),
        "efa": ("number", "EFA interfaces", False),
        "ebs": ("byte/s", "EBS bandwidth", False),
    },
})  # fmt: skip
"""Facts of an instance or UltraServer."""

_LINK = {
    "links": ("count", "links of this kind on each chip"),
    "bandwidth": ("byte/s", "of one link, one direction"),
    "both": ("byte/s", "of one link, both directions"),
}

FABRIC = _table({
    "fabric": {
        "topology": ("text", "ring, line, torus or switched"),
        "shape": ("shape", "chips along each axis; switched: servers x chips"),
        "chips": ("count", "chips joined"),
        "chip": ("text", "chip file"),
        "bandwidth": ("byte/s", "of one chip, all links, both directions"),
        "hop": ("s", "latency of one step of a ring"),
        "order": ("text", "how chip ids lie on the shape", False),
    },
    "efa": {
        "bandwidth": ("byte/s", "network of all servers together", False),
        "interfaces": ("number", "EFA interfaces", False),
        "latency": ("s", "HBM to HBM of another server, at least", False),
        "per_chip": ("byte/s", "network share of one chip", False),
    },
})  # fmt: skip
"""Facts of a fabric, beside its link sections."""

LINK_SECTIONS = ("link_x", "link_y", "link_z", "link_server", "link_rack", "link_cross")
"""Kinds of links; a fabric has at least one: torus axes, or the levels of a switched fabric."""

LINK = {name: Need(*row) for name, row in _LINK.items()}
"""Facts of each link section."""


def needs(kind: str, sections) -> dict[str, Need]:
    """The facts a file of `kind` ("chip", "instance", "fabric") with these sections can have.

    All facts of a link section are needed once the section is there.
    """
    if kind == "chip":
        return CHIP
    if kind == "instance":
        return INSTANCE
    links = [section for section in LINK_SECTIONS if section in sections]
    rows = {f"{section}.{name}": need for section in links for name, need in LINK.items()}
    return FABRIC | rows
