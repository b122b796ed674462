"""Every command of docs/guides is run here, unless its block is marked; ``guide_blocks`` says how a guide is written."""

from __future__ import annotations

from pathlib import Path

import guide_blocks
import pytest
from guide_blocks import ROOT, Block, Session, absent_package, blocks, commands, missing

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_every_command_of_the_guide_does_what_it_says(guide: Path, tmp_path: Path) -> None:
    session = Session(tmp_path)
    followed = 0
    for block in blocks(guide.read_text(encoding="utf-8")):
        if block.needs == "hardware":
            commands(block)  # it must be readable all the same
            continue
        if package := absent_package(block):
            pytest.skip(f"{guide.name}, line {block.line}: needs {package}, which is not installed")
        assert session.follow(block) == []
        followed += block.language in guide_blocks.COMMANDS
    assert followed, f"{guide.name} has no command that a test runs"


# ------------------------------------------------------------------------------------------------------ the helper itself

GUIDE = """
Text with `code`.
```toml
# saved.toml
key = 1
```
```console
$ grep key saved.toml
key = ...
$ auditor --version
auditor, version ...
$ auditor show \\
> nowhere  # exit code 3
auditor: nowhere: ...
```
```sh needs hardware
launch-the-rocket
```
```sh needs no_such_package
false
```
```text
$ not a command
```
"""


def test_blocks_are_found_with_their_marks() -> None:
    found = blocks(GUIDE)
    assert [(b.language, b.needs) for b in found] == [
        ("toml", ""),
        ("console", ""),
        ("sh", "hardware"),
        ("sh", "no_such_package"),
        ("text", ""),
    ]
    assert [(c.exit_code, len(c.shown)) for c in commands(found[1])] == [(0, 1), (0, 1), (3, 1)]
    assert [absent_package(b) for b in found] == ["", "", "", "no_such_package", ""]


def test_a_session_saves_files_and_runs_commands(tmp_path: Path) -> None:
    session = Session(tmp_path)
    saved, console = blocks(GUIDE)[:2]
    assert session.follow(saved) == session.follow(console) == []
    assert (tmp_path / "saved.toml").read_text() == "# saved.toml\nkey = 1\n"
    assert (tmp_path / "configs" / "b300.toml").is_file()


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("console", "$ false", "ends with 1, not 0"),
        ("console", "$ true  # exit code 1", "ends with 0, not 1"),
        ("console", "$ echo one\ntwo", "does not print 'two'"),
        ("console", "$ echo b; echo a\na\nb", "does not print 'b'"),
        ("sh", "false\ntrue", "ends with 1, not 0"),
        ("sh", "cat missing.txt | true", "ends with 1, not 0"),
        ("sh", "true\nfalse  # exit code 0", "ends with 1, not 0"),
    ],
)
def test_what_goes_otherwise_than_a_guide_says_is_seen(tmp_path: Path, language: str, text: str, said: str) -> None:
    (wrong,) = Session(tmp_path).follow(Block(language, "", text, 7))
    assert wrong.startswith("line 7: ")
    assert said in wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```bash\nls\n```", "'bash'"),
        ("```\nls\n```", "''"),
        ("```sh\nls", "no end"),
        ("```sh needing hardware\nls\n```", "marks nothing"),
        ("```toml needs hardware\nls\n```", "marks nothing"),
    ],
)
def test_a_block_that_would_escape_the_test_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        blocks(text)


def test_a_console_block_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with"):
        commands(blocks("```console\nls\n```")[0])


def test_shown_lines_match_in_order_with_gaps() -> None:
    assert missing(["a ... c", "...", "z"], "a b c\nm\nz") is None
    assert missing(["z", "a"], "a\nz") == "a"
    assert missing(["a  b"], "a b") is None
    assert missing(["a ... b ... c"], "a b  c") is None
