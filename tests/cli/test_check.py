"""`opentrn check`: statuses, the JSON document, and the time the whole process takes."""

import json
import resource

import pytest

KERNELS = """
import nki
import nki.isa as nisa
import nki.language as nl

print("loaded")


@nki.jit
def good(a, n=2):
    print("kernel runs")
    tile = nl.load(a)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for _ in range(n):
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out, tile)
    return out


@nki.jit
def bad(a):
    acc = nl.ndarray((64, 1024), nl.float32, buffer=nl.psum)
    w = nl.zeros((128, 64), nl.bfloat16)
    x = nl.zeros((128, 1024), nl.bfloat16)
    nisa.nc_matmul(acc, w, x)
    out = nl.ndarray((64, 1024), nl.float32, buffer=nl.shared_hbm)
    nl.store(out, acc)
    return out


def odd(a):
    f = lambda q: q
    return f(good(a))
"""
ARG = ("--arg", "a=float32[128,512]")


@pytest.fixture
def kernels(script):
    return script(KERNELS, "kernels.py")


def test_clean_findings_refused_and_unchecked_have_their_statuses(opentrn, kernels):
    done = opentrn("check", f"{kernels}:good", *ARG)
    assert (done.status, done.err) == (0, "loaded\nkernel runs\n")
    assert done.out.startswith("good on trn2: clean")
    done = opentrn("check", f"{kernels}:bad", *ARG)
    assert done.status == 1
    assert "N = 1024, at most 512 on trn2" in done.out
    done = opentrn("check", f"{kernels}:good")
    assert done.status == 2
    assert "nothing says what `a` is" in done.out
    done = opentrn("check", f"{kernels}:odd", *ARG)
    assert done.status == 3
    assert "a lambda expression" in done.out


def test_json_for_every_kernel_and_target(opentrn, kernels):
    done = opentrn("check", kernels, *ARG, "--target", "trn2,trn3", "--json")
    told = json.loads(done.out)
    assert (done.status, told["schema"], told["status"]) == (1, "opentrn.check/1", "refused")
    found = {(k["kernel"], k["target"]): k for k in told["kernels"]}
    assert {key: k["status"] for key, k in found.items()} == {
        ("good", "trn2"): "clean",
        ("good", "trn3"): "clean",
        ("bad", "trn2"): "refused",
        ("bad", "trn3"): "clean",
    }
    refusal = found["bad", "trn2"]["refusals"][0]
    assert set(refusal) == {"code", "what", "at", "rule", "fix", "neuron"}
    assert refusal["code"] == "nc_matmul.N"
    assert refusal["at"]["file"] == str(kernels)
    assert refusal["at"]["text"] == "nisa.nc_matmul(acc, w, x)"


def test_files_and_names_that_do_not_exist(opentrn, kernels, script):
    done = opentrn("check", "nothing.py", "--json")
    assert (done.status, json.loads(done.err)["code"]) == (2, "dropin.kernel")
    done = opentrn("check", f"{kernels}:goof", *ARG)
    assert done.status == 2
    assert "nearest: good" in done.err
    done = opentrn("check", script("x = 1\n", "empty.py"))
    assert done.status == 2
    assert "defines no kernel" in done.err
    done = opentrn("check", f"{kernels}:good", "--arg", "a=float32[", "--json")
    assert (done.status, json.loads(done.err)["code"]) == (2, "nki.check_argument")
    for grid in ("x", "0", "2,0", "-1", "1.5"):
        done = opentrn("check", f"{kernels}:good", *ARG, "--cores", grid, "--json")
        assert (done.status, json.loads(done.err)["code"]) == (2, "nki.check_grid")


def test_a_name_nothing_is_like_tells_what_the_file_defines(opentrn, script):
    path = script("import math\n\ndef build():\n    pass\n\nclass Net:\n    pass\n", "model.py")
    assert "fix   it defines build, Net" in opentrn("compile", f"{path}:zzz").err
    path = script("x = 1\n", "nothing_in_it.py")
    assert "fix   define it at the top level" in opentrn("compile", f"{path}:zzz").err


def test_a_file_inside_a_package_may_import_its_neighbours(opentrn, script, tmp_path):
    (tmp_path / "mypkg").mkdir()
    script("", "mypkg/__init__.py")
    script("def width():\n    return 512\n", "mypkg/sizes.py")
    text = KERNELS.replace("import nki\n", "import nki\nfrom .sizes import width\n", 1)
    path = script(
        text.replace('print("loaded")', "example_inputs = ('float32[4,4]',)"), "mypkg/kernels.py"
    )
    done = opentrn("check", f"{path}:good")
    assert done.out.startswith("good on trn2: clean"), done.err
    assert done.status == 0


def test_a_small_kernel_takes_less_than_a_second(opentrn, kernels):
    """Processor time of the whole process, as the machine may be busy with something else."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert opentrn("check", f"{kernels}:good", *ARG).status == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_a_kernel_is_checked_as_written_for_an_older_nki(opentrn, tmp_path):
    (tmp_path / "old.py").write_text(
        "import nki, nki.isa as nisa, nki.language as nl\n"
        "@nki.jit\n"
        "def k(x):\n"
        "    out = nl.ndarray((128, 8), nl.float32, buffer='shared_hbm')\n"
        "    tile = nl.ndarray((128, 8), nl.float32, buffer=nl.sbuf)\n"
        "    nisa.dma_copy(tile, x)\n"
        "    nisa.dma_copy(out, tile)\n"
        "    return out\n"
    )
    given = ("check", "old.py:k", "--arg", "x=float32[128,8]", "--json")
    older, today = opentrn(*given, "--nki", "0.2"), opentrn(*given)
    assert (older.status, today.status) == (3, 1)
    (found,) = json.loads(older.out)["kernels"][0]["findings"]
    assert (found["code"], found["at"]["line"]) == ("nki.migrate.ndarray", 4)
    (refused,) = json.loads(today.out)["kernels"][0]["refusals"]
    assert refused["code"] == "nki.buffer"
