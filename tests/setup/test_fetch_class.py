"""tools/fetch_class.py: students' repositories are read as data, and nothing in them can act."""

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autograder import rebuild

ROOT = Path(__file__).resolve().parents[2]
NAME = "work/03_flash_forward/flash_forward.ipynb"


@pytest.fixture
def tool(monkeypatch):
    """The script as a module, with git's protocol for files in place of https."""
    spec = importlib.util.spec_from_file_location("fetch_class", ROOT / "tools/fetch_class.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PROTOCOL", "file")
    return module


def git(folder, *arguments):
    who = (
        "-c",
        "user.name=student",
        "-c",
        "user.email=student@localhost",
        "-c",
        "protocol.file.allow=always",
    )
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """A function: make a student's repository with these files (path -> bytes, or a str for a link's target)."""

    def make(student, files):
        folder = tmp_path / "theirs" / student
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet")
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(content) if isinstance(content, str) else path.write_bytes(content)
        git(folder, "add", "--all", "--force")
        git(folder, "commit", "--quiet", "--allow-empty", "--message", "done")
        return folder

    return make


@pytest.fixture
def fetch(tool, tmp_path):
    """A function: run the tool on {student: repository}; (status, {student: (bytes or None, reason)})."""

    def run(repositories):
        roster, target, report = tmp_path / "roster.csv", tmp_path / "hand-ins", tmp_path / "report.csv"
        lines = [f"{student},file://{folder}" for student, folder in repositories.items()]
        roster.write_text("\n".join(["student,repository", *lines]) + "\n")
        status = tool.main([str(roster), "03_flash_forward", "--to", str(target), "--report", str(report)])
        found = {}
        for row in csv.DictReader(report.open(encoding="utf-8")):
            file = target / row["student"] / "03_flash_forward" / "flash_forward.ipynb"
            assert file.exists() == (row["refused"] == "")
            assert not file.is_symlink()
            found[row["student"]] = (file.read_bytes() if file.exists() else None, row["refused"])
        return status, found

    return run


def test_the_notebook_is_found_where_students_keep_it_and_nothing_else_is_taken(
    fetch, repository, capsys, tmp_path
):
    status, found = fetch({
        "ada": repository("ada", {NAME: b"ada's", "exercises/03_flash_forward/flash_forward.ipynb": b"as released"}),
        "bob": repository("bob", {"exercises/03_flash_forward/flash_forward.ipynb": b"bob's", "secret": b"x"}),
        "cyd": repository("cyd", {"flash_forward.ipynb": b"cyd's"}),
        "eve": repository("eve", {"Flash Forward (1).ipynb": b"eve's"}),
        "fay": tmp_path / "nowhere",
    })  # fmt: skip
    assert status == 1
    assert {k: v[0] for k, v in found.items()} == {
        "ada": b"ada's", "bob": b"bob's", "cyd": b"cyd's", "eve": None, "fay": None}  # fmt: skip
    assert "there is no work/03_flash_forward/flash_forward.ipynb or" in found["eve"][1]
    assert "git fetch failed" in found["fay"][1]
    assert sum(path.is_file() for path in (tmp_path / "hand-ins").rglob("*")) == 3
    printed = capsys.readouterr()
    assert printed.out == "3 of 5 fetched, 2 refused\n" and printed.err == ""  # no names: others read this


def test_nothing_of_a_repository_runs_or_is_followed(fetch, repository, tmp_path):
    mark = tmp_path / "it-ran"
    outside = tmp_path / "the instructor's"
    outside.write_bytes(b"secret")
    acting = repository("acting", {
        NAME: b"plain",
        ".gitattributes": b"*.ipynb filter=lfs\n*.ipynb filter=mine\n",
        ".gitmodules": f'[submodule "m"]\n\tpath = m\n\turl = file://{tmp_path}/m\n'.encode(),
        ".lfsconfig": b"[lfs]\n\turl = file:///\n",
    })  # fmt: skip
    for hook in ("post-checkout", "post-merge", "pre-receive", "reference-transaction", "post-upload-pack"):
        path = acting / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
        path.chmod(0o755)
    git(acting, "config", "filter.mine.smudge", f"touch '{mark}'; cat")
    inner = repository("inner", {"flash_forward.ipynb": b"x"})
    module = repository("module", {})
    git(module, "submodule", "add", "--quiet", f"file://{inner}", "work/03_flash_forward/flash_forward.ipynb")
    git(module, "commit", "--quiet", "--message", "a module in its place")
    status, found = fetch({
        "acting": acting,
        "link": repository("link", {NAME: str(outside)}),
        "linked-folder": repository("linked-folder", {"work": str(outside.parent)}),
        "module": module,
        "lfs": repository("lfs", {NAME: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}),
    })  # fmt: skip
    assert status == 1 and not mark.exists()
    assert found["acting"] == (b"plain", "")
    assert "is not a plain file" in found["link"][1] and "is not a plain file" in found["module"][1]
    assert found["linked-folder"][0] is None
    assert "Git LFS pointer" in found["lfs"][1]


def test_what_is_too_large_is_refused_and_the_next_is_fetched(fetch, repository, tool, monkeypatch):
    monkeypatch.setattr(tool, "NOTEBOOK_BYTES", 1000)
    monkeypatch.setattr(tool, "PACK_BYTES", 100_000)
    monkeypatch.setattr(tool, "MIB", 1)
    status, found = fetch({
        "long": repository("long", {NAME: b"x" * 1001}),
        "wide": repository("wide", {NAME: b"fine", "video": os.urandom(200_000)}),
        "ada": repository("ada", {NAME: b"x" * 1000}),
    })  # fmt: skip
    assert status == 1
    assert "has 1001 MiB; 1000 is the most" in found["long"][1]
    assert "git fetch failed (a commit may have 100000 MiB)" in found["wide"][1]
    assert found["ada"] == (b"x" * 1000, "")


def test_only_the_newest_commit_is_fetched(tool, repository, monkeypatch):
    ada = repository("ada", {NAME: b"first", "large": os.urandom(200_000)})
    (ada / NAME).write_bytes(b"second")
    (ada / "large").unlink()
    git(ada, "commit", "--quiet", "--all", "--message", "again")
    monkeypatch.setattr(tool, "PACK_BYTES", 100_000)  # the older commit would not fit
    assert tool.fetch(f"file://{ada}", [NAME]) == (b"second", NAME)


def test_the_token_goes_to_one_server_by_gits_environment_alone(tool, monkeypatch, tmp_path):
    monkeypatch.setenv("CLASS_TOKEN", "hush")
    monkeypatch.setenv("OTHER_SECRET", "hush-hush")
    env = tool.environment(tmp_path)
    asked = ["git", "config", "--get-urlmatch", "http.extraHeader"]

    def header(address):
        return subprocess.run([*asked, address], env=env, capture_output=True, text=True, check=False).stdout

    assert header("https://github.com/a/b").startswith("Authorization: Basic ")
    for other in (
        "https://github.com.evil.example/a",
        "https://evil.example/github.com",
        "http://github.com/a",
    ):
        assert header(other) == ""
    assert "hush-hush" not in str(env) and "CLASS_TOKEN" not in env
    calls = []
    monkeypatch.setattr(tool.subprocess, "run", lambda command, **_: calls.append(command) or
                        subprocess.CompletedProcess(command, 1, b"", b""))  # fmt: skip
    with pytest.raises(tool.Refused):
        tool.fetch("https://github.com/a/b", [NAME])
    assert calls and "hush" not in str(calls)
    monkeypatch.delenv("CLASS_TOKEN")
    assert "Authorization" not in str(tool.environment(tmp_path))


@pytest.mark.parametrize(
    "address", ["ssh://host/a", "ext::sh -c id", "file:///etc", "-oProxyCommand=id", "git@host:a", ""]
)
def test_a_roster_has_addresses_of_https_alone(tool, tmp_path, monkeypatch, address):
    monkeypatch.setattr(tool, "PROTOCOL", "https")
    roster = tmp_path / "roster.csv"
    roster.write_text(f"student,repository\nada,{address}\n")
    with pytest.raises(
        tool.Unusable, match="line 2: the repository needs an address that starts with https://"
    ):
        tool.read_roster(roster)


def test_git_itself_speaks_nothing_but_https(tool, repository, tmp_path, monkeypatch):
    ada = repository("ada", {NAME: b"x"})
    assert tool.fetch(f"file://{ada}", [NAME])[0] == b"x"
    monkeypatch.setattr(tool, "PROTOCOL", "https")
    for address in (f"file://{ada}", str(ada), f"ext::touch {tmp_path}/it-ran", "ssh://localhost/a"):
        with pytest.raises(tool.Refused, match="not allowed"):
            tool.fetch(address, [NAME])
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs a first line"),
        ("name,address\nada,https://a/b\n", "needs a first line"),
        ("student,repository\n../up,https://a/b\n", "line 2: a student's name"),
        ("student,repository\n.hidden,https://a/b\n", "line 2: a student's name"),
        ("student,repository\nada,https://a/b\nada,https://a/c\n", "line 3: this student is there twice"),
        ("student,repository,path\nada,https://a/b,../x\n", "line 2: path"),
        ("student,repository,path\nada,https://a/b,:(glob)**\n", "line 2: path"),
    ],
)
def test_a_roster_that_cannot_be_used_is_one_line_without_names(
    tool, tmp_path, monkeypatch, capsys, text, words
):
    monkeypatch.setattr(tool, "PROTOCOL", "https")
    (tmp_path / "roster.csv").write_text(text)
    assert tool.main([str(tmp_path / "roster.csv"), "03_flash_forward", "--to", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert "ada" not in error and "hidden" not in error


def test_a_folder_in_use_and_an_odd_assignment_are_refused(tool, tmp_path, capsys):
    (tmp_path / "roster.csv").write_text("student,repository\n")
    assert tool.main([str(tmp_path / "roster.csv"), "03_flash_forward", "--to", str(tmp_path)]) == 2
    assert tool.main([str(tmp_path / "roster.csv"), "../03_x", "--to", str(tmp_path / "new")]) == 2
    assert (
        capsys.readouterr().err.splitlines()[1]
        == "error: an assignment is called like 03_flash_forward, not '../03_x'"
    )


def test_its_limit_is_the_graders(tool):
    assert tool.NOTEBOOK_BYTES == rebuild.MAX_NOTEBOOK_BYTES


def test_it_says_how_it_is_used():
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "tools/fetch_class.py"), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "ROSTER" in done.stdout.upper() and done.stderr == ""
