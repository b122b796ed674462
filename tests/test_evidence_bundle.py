"""auditor evidence, the whole way: a run of the model and of faulty plug-ins, its bundle, and what its reader can do with it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditor import analysis, store
from auditor.analysis.signatures import matches
from auditor.cli import main
from auditor.config import load
from auditor.errors import ConfigError
from auditor.evidence.choice import choose
from auditor.evidence.script import LINES
from auditor.model import Finding
from auditor.pipeline import RunOptions, run

CONFIG = """
title = "a model"
[[arm]]
name = "model"
backend = "simulator"
ranks = 2
options = { preset = "b300" }
[[arm]]
name = "off"
backend = "simulator"
ranks = 2
options = { preset = "b300", rule = false }
[sweep]
format = ["bfloat16"]
count = [7, 18]
shift = [1]
repeats = 2
seed = 7
[probes]
run = ["rounding", "tail"]
"""


def record(directory: Path, config: str, name: str = "run") -> Path:
    path = directory / f"{name}.toml"
    path.write_text(config)
    run(load(path, ()), RunOptions(out=directory / name, hang_budget=6))
    return directory / name


def auditor(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in arguments])
    return int(end.value.code or 0)


def findings(run_dir: Path) -> list[Finding]:
    return [Finding.from_json(raw) for raw in analysis.read_findings(run_dir)["findings"]]


def unzipped(path: Path, into: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(into)
    return into


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("model"), CONFIG)


@pytest.fixture(scope="module")
def bundle(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worst finding's, made on the model itself."""
    path = tmp_path_factory.mktemp("bundle") / "worst.zip"
    assert auditor("evidence", recorded, "-o", path) == 0
    return unzipped(path, path.parent / "worst")


# ----------------------------------------------------------------------------------------------------- what is in the zip


def test_the_worst_finding_is_bundled_and_every_file_is_summed(bundle: Path) -> None:
    names = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())
    assert names == [
        *("SHA256SUMS", "bits.csv", "case.json", "environment.json", "issue.md", "reproduce.py"),
        *("run/findings.json", "run/plan.json", "run/run.h5"),
    ]
    sums = dict(reversed(line.split("  ")) for line in (bundle / "SHA256SUMS").read_text().splitlines())
    assert sorted(sums) == sorted(set(names) - {"SHA256SUMS"})
    for name, digest in sums.items():
        assert hashlib.sha256((bundle / name).read_bytes()).hexdigest() == digest
    assert "foreign_read" in json.loads((bundle / "case.json").read_text())["kind"]


def test_the_script_runs_alone_and_shows_it(bundle: Path) -> None:
    text = (bundle / "reproduce.py").read_text()
    assert text.count("\n") <= LINES
    assert "auditor" not in text.partition('"""')[2].partition('"""')[2]  # nothing but numpy is imported
    done = subprocess.run(
        [sys.executable, "-I", "reproduce.py"], cwd=bundle, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.rstrip().splitlines()[-1].startswith("REPRODUCED: 2 places")
    assert "MODEL" in text


def test_the_smallest_case_is_small_and_stands_in_numbers(bundle: Path) -> None:
    content = json.loads((bundle / "case.json").read_text())
    assert content["found"]["how"] == "live"
    assert content["found"]["shown_when_confirmed"] == [3, 3]
    assert content["rank_n"] == 2
    assert [one["count"] for one in content["steps"]] == [1, 1]
    assert content["steps"][0]["send"] == content["steps"][1]["send"]
    around = [one["head"] + one["tail"] for one in content["steps"]]
    assert around[0] != around[1]
    assert content["records"][0]["class"] in ("nearest", "away", "toward_zero")


def test_the_record_in_it_verifies_and_gives_the_finding_again(bundle: Path, recorded: Path) -> None:
    assert store.verify(bundle / "run") == []
    worst = findings(recorded)[0]
    with store.RunReader(bundle / "run") as reader:
        again = [Finding.from_json(raw) for raw in analysis.analyze(reader)["findings"]]
        assert reader.arm_names == ["model"]
    assert [(one.kind, one.claim, one.measure, one.evidence) for one in again] == [
        (worst.kind, worst.claim, analysis.plain(worst.measure), worst.evidence)
    ]
    assert (bundle / "run" / "run.h5").stat().st_size < (recorded / "run.h5").stat().st_size


def test_bits_hold_whole_groups_with_what_lies_outside(bundle: Path) -> None:
    rows = [line.split(",") for line in (bundle / "bits.csv").read_text().splitlines()]
    head, body = rows[0], [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert head[:6] == ["source", "trial", "repeat", "step", "rank", "buffer"]
    assert {row["source"] for row in body} == {"smallest (live)", "recorded"}
    sent = [row for row in body if row["buffer"] == "send"]
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in sent:
        index, address = int(row["index"]), int(row["address_mod_16"])
        key = (row["source"], row["trial"], row["repeat"], row["step"], row["rank"], str(index - address // 2))
        groups.setdefault(key, []).append(address)
    assert all(sorted(addresses) == list(range(0, 16, 2)) for addresses in groups.values())
    assert any(row["in_range"] == "0" and int(row["code"], 16) for row in sent)


def test_the_same_run_gives_the_same_bytes(recorded: Path, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        assert auditor("evidence", recorded, "--finding", "F1", "--offline", "-o", tmp_path / name) == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


# -------------------------------------------------------------------------------------------------------------- the page


def test_the_page_says_model_match_and_limits(bundle: Path) -> None:
    page = (bundle / "issue.md").read_text()
    assert page.startswith("# all_reduce sum of bfloat16: results depend on bytes outside the send range")
    assert "shows a model, not hardware" in page
    assert "match NVSHMEM issue 132" in page
    assert "That confirms nothing" in page
    for part in (
        "**Environment:**",
        "**What was run:**",
        "**Smallest case**",
        "**Questions**",
        "**What this does not show**",
    ):
        assert part in page
    assert "3 of 3 fresh starts" in page
    assert "REPRODUCED" in page
    assert len(page) < 8000
    assert "there: " in page  # beside the arm without the rule


def test_a_legal_property_is_a_question(recorded: Path, tmp_path: Path) -> None:
    mixed = next(one for one in findings(recorded) if one.kind == "rounding_mode" and one.measure["mode"] == "mixed")
    assert auditor("evidence", recorded, "--offline", "--finding", mixed.id, "-o", tmp_path / "x.zip") == 0
    page = (unzipped(tmp_path / "x.zip", tmp_path / "x") / "issue.md").read_text()
    assert "not reported as a fault" in page
    assert "| model | bfloat16 |" in page
    assert "| off | bfloat16 |" in page
    assert "by no single IEEE mode" in page.splitlines()[0]


def test_offline_the_smallest_recorded_call_is_told_from_a_reduced_one(recorded: Path, tmp_path: Path) -> None:
    assert auditor("evidence", recorded, "--offline", "-o", tmp_path / "x.zip") == 0
    where = unzipped(tmp_path / "x.zip", tmp_path / "x")
    content = json.loads((where / "case.json").read_text())
    assert content["found"]["how"] == "recorded"
    assert [one["count"] for one in content["steps"]] == [7, 7]
    page = (where / "issue.md").read_text()
    assert "the smallest recorded call that shows it; not cut down, because the backend was not to be tried" in page
    assert "When this bundle was made it printed" in page  # the model's script needs nothing that is not here
    done = subprocess.run(
        [sys.executable, "reproduce.py"], cwd=where, capture_output=True, text=True, timeout=60, check=True
    )
    assert "\nREPRODUCED" in done.stdout


def test_a_record_that_this_version_words_otherwise_is_bundled_with_a_note(recorded: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(recorded, older)
    content = json.loads((older / "findings.json").read_text())
    content["findings"][0]["claim"] = "What an older version said."
    (older / "findings.json").write_text(json.dumps(content))
    assert auditor("evidence", older, "--offline", "-o", tmp_path / "x.zip") == 0
    page = (unzipped(tmp_path / "x.zip", tmp_path / "x") / "issue.md").read_text()
    assert "- What an older version said." in page
    assert "another version of the auditor; this one says of the attached record: all_reduce sum of bfloat16" in page


# ------------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--finding", "F99"], 2, "no such finding; it has F1 (FAIL foreign_read)"),
        (["--finding", "PASS"], 2, "was looked for and not found"),
        (["--finding", "EVEN"], 2, "nothing to show"),
        (["-o", "x.tar"], 2, "ends in .zip"),
        (["-o", "no/such/x.zip"], 2, "there is no directory no/such"),
    ],
)
def test_wrong_input_is_one_line(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    some = findings(recorded)
    named = {
        "PASS": next(one.id for one in some if one.verdict == "PASS"),
        "EVEN": next(one.id for one in some if one.measure.get("mode") == "ties_to_even"),
    }
    assert auditor("evidence", recorded, *(named.get(word, word) for word in arguments)) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert auditor("evidence", tmp_path / "nothing") == 3
    assert "no such run" in capsys.readouterr().err


def test_without_a_fail_and_a_known_signature_one_must_choose(recorded: Path) -> None:
    some = findings(recorded)
    legal = [one for one in some if one.verdict == "INFORMATION" and matches(one) is None]
    with pytest.raises(ConfigError, match=rf"choose one of the legal properties with --finding: {legal[0].id} \("):
        choose(legal, None)
    with pytest.raises(ConfigError, match=r"nothing FAILs, and no finding matches what is known$"):
        choose([one for one in some if one.verdict == "PASS"], None)
    known = replace(legal[0], id="F7", kind="rounding_mode", measure={"mode": "ties_to_away"})
    assert choose([*legal, known], None).id == "F7"
    assert choose([*legal, known, some[0]], None).id == some[0].id


def test_a_torn_record_is_told(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("plan.json", "findings.json"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    raw = bytearray((recorded / "run.h5").read_bytes())
    with store.RunReader(recorded) as reader:
        file, view = reader.files[0], reader.arm("model")
        mine = {one.trial.trial_id.encode() for one in view.planned if "tail" in one.probes}
        rows = file.select((file.rows["encoding"] == b"raw") & (file.rows["arm"] == b"model"))
        longest = max((row for row in rows if row.trial in mine), key=lambda row: row.nbytes)
        at = raw.find(file.read(longest).tobytes())
    assert at > 0
    raw[at] ^= 1
    (tmp_path / "run.h5").write_bytes(raw)
    assert auditor("evidence", tmp_path, "--offline", "-o", tmp_path / "x.zip") == 3
    assert "SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "x.zip").exists()


# ---------------------------------------------------------------------------------------------------------------- plug-ins

FAULTY = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from outside_subjects import Clean

class Talks(Clean):
    '''Its error gives away what it can.'''
    def run(self, call, send, recv):
        if call.count == 7:
            home, user, token = os.environ["HOME"], os.environ["USER"], os.environ["SOME_TOKEN"]
            raise RuntimeError(f"{{home}}/lib.so of {{user}} on node17.cluster, 10.1.2.3: token {{token}}")
        super().run(call, send, recv)
"""
SHORT = """
[[arm]]
name = "x"
backend = "{backend}"
ranks = 2
env = {{ NCCL_AUTH_WORD = "hunter2hunter2", NCCL_SOCKET_IFNAME = "eth-of-{user}", SLURM_JOB_NODELIST = "node17" }}
[sweep]
format = ["bfloat16"]
count = [7]
shift = [0]
repeats = 2
[probes]
run = ["{probe}"]
"""


@pytest.fixture
def alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a user and a secret; the current directory lies in it."""
    home = tmp_path / "homes" / "alice"
    home.mkdir(parents=True)
    for name, value in (("HOME", str(home)), ("USER", "alice"), ("LOGNAME", "alice"), ("SOME_TOKEN", "s3cr3t-value")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_SECRET_SAUCE", "pepper-and-salt")
    monkeypatch.setenv("SLURM_NODELIST", "node17,node18.cluster")
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    return home


def everything(path: Path) -> str:
    """All texts of a bundle, those inside the HDF5 file too."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
        target = path.with_suffix(".h5")
        target.write_bytes(parts.pop("run/run.h5"))
    raw = target.read_bytes().decode("latin-1")
    return "\n".join([*(part.decode() for part in parts.values()), store.texts(target), raw])


@pytest.mark.parametrize("anonymize", [False, True])
def test_no_secret_no_user_and_no_home_leaves(alice: Path, anonymize: bool) -> None:
    (alice / "talks.py").write_text(FAULTY.format(tests=str(Path(__file__).parent)))
    run_dir = record(alice, SHORT.format(backend="talks:Talks", user="alice", probe="coverage"))
    flags = ["--anonymize-hosts"] if anonymize else []
    assert auditor("evidence", run_dir, "--offline", "-o", alice / "x.zip", *flags) == 0
    text = everything(alice / "x.zip")
    assert "backend_error" in text
    for word in ("alice", "s3cr3t-value", "pepper-and-salt", "hunter2hunter2", str(alice)):
        assert word not in text, word
    assert "eth-of-USER" in text
    assert ("node17" in text) is not anonymize
    assert ("10.1.2.3" in text) is not anonymize
    assert ("address1" in text) is anonymize


def test_a_name_that_cannot_be_replaced_stops_the_bundle(alice: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = SHORT.format(backend="simulator", user="x", probe="rounding").replace('name = "x"', 'name = "alice"')
    run_dir = record(alice, config + '[expect]\nrounding_mode = "toward_zero"\n')
    assert auditor("evidence", run_dir, "--offline", "-o", alice / "x.zip") == 3
    said = capsys.readouterr().err
    assert "would give away the user name alice" in said
    assert not (alice / "x.zip").exists()


def test_crashes_and_what_was_skipped_after_them_are_in_the_excerpt(alice: Path) -> None:
    """Shards of a process that died stay, with the parent's notes beside them; each note is in the bundle once."""
    (alice / "dies.py").write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom outside_subjects import Clean\n"
        "class Dies(Clean):\n    def run(self, call, send, recv):\n        os.abort()\n"
    )
    run_dir = record(alice, SHORT.format(backend="dies:Dies", user="x", probe="coverage"))
    assert (run_dir / "shards").is_dir()
    assert auditor("evidence", run_dir, "--offline", "-o", alice / "x.zip") == 0
    where = unzipped(alice / "x.zip", alice / "x")
    assert store.verify(where / "run") == []
    with store.RunReader(where / "run") as reader:
        view = reader.arm("x")
        seen = [one.status for planned in view.planned for one in view.observations(planned.trial.trial_id)]
    assert sorted(set(seen)) == ["crash", "skipped"]
    assert seen.count("crash") == 2
    assert json.loads((where / "case.json").read_text())["kind"] == "crash"


def test_a_plug_ins_case_is_cut_down_and_its_script_needs_the_plug_in(alice: Path) -> None:
    tests = str(Path(__file__).parent)
    (alice / "past.py").write_text(
        f"import sys\nsys.path.insert(0, {tests!r})\nfrom outside_subjects import WritesPast\n"
    )
    run_dir = record(alice, SHORT.format(backend="past:WritesPast", user="x", probe="coverage"))
    assert auditor("evidence", run_dir, "-o", alice / "x.zip") == 0
    where = unzipped(alice / "x.zip", alice / "x")
    content = json.loads((where / "case.json").read_text())
    assert content["found"]["how"] == "live"
    assert content["steps"][0]["count"] == 1
    assert "from past import WritesPast" in (where / "reproduce.py").read_text()
    assert "REPRODUCED: 12 places" in (where / "issue.md").read_text()


def test_the_zip_is_whole_or_not_there(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "x.zip"
    target.mkdir()
    assert auditor("evidence", recorded, "--offline", "-o", target) == 3
    assert "cannot be written" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["x.zip"]


def test_a_zip_lists_its_files_in_order(bundle: Path) -> None:
    with zipfile.ZipFile(io.BytesIO((bundle.parent / "worst.zip").read_bytes())) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert archive.getinfo("reproduce.py").external_attr >> 16 == 0o755
