"""Fetch what students pushed to repositories of their own, as data, into a folder for `autograder intake`.

Usage: python tools/fetch_class.py ROSTER.csv ASSIGNMENT --to FOLDER [--report FILE.csv]

ROSTER.csv has the columns `student` and `repository` (an https address), and may have `path`, where in the repository the
notebook lies; without it the places of PLACES are tried. What is found goes to FOLDER/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb.

A repository is never checked out. Git fetches one commit into a bare repository, and the one file is read out of it: so no
hook, filter, submodule, LFS pointer or symbolic link of a student's can act here, and none is followed. The dates of
commits are not used: whoever makes a commit chooses them.

A private repository needs a token that may read it, in the variable CLASS_TOKEN. It is given to git in its environment and
sent to GITHUB_SERVER_URL (https://github.com) alone.

Names of students and repositories go to the report alone; what is printed can stand in a log that others read.
Exit status: 0 all fetched; 1 some were not, and the report says why; 2 the roster or the arguments can't be used.
"""

import argparse
import base64
import csv
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

PROTOCOL = "https"
BRANCH = "HEAD"  # the repository's default branch
PLACES = tuple(
    f"{folder}{{notebook}}"
    for folder in ("work/{assignment}/", "exercises/{assignment}/", "{assignment}/", "")
)
SECONDS = 120
MIB = 2**20
PACK_BYTES = 64 * MIB  # of one commit, packed
NOTEBOOK_BYTES = 20 * MIB  # autograder.rebuild.MAX_NOTEBOOK_BYTES; this file needs nothing installed
MEMORY_BYTES = 2048 * MIB


class Refused(Exception):
    """One student's repository gives nothing. The message says why."""


class Unusable(Exception):
    """The roster or the arguments can't be used at all."""


def read_roster(path):
    """The rows of the roster: dicts with `student`, `repository` and `path` ("" where none is given).

    Raises:
        Unusable: a column is missing, a name can't be a folder's, a student is there twice, an address is none of https.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Unusable(f"{path} can't be read: {error}") from None
    if not rows or not {"student", "repository"} <= rows[0].keys():
        raise Unusable(
            f"{path} needs a first line with the columns student,repository and a line for each student"
        )
    seen = set()

    def refuse(number, why):  # by the line's number: what stands in it is a name
        raise Unusable(f"{path}, line {number}: {why}")

    for number, row in enumerate(rows, 2):
        name, address, place = ((row.get(key) or "").strip() for key in ("student", "repository", "path"))
        if not re.fullmatch(r"\w[\w.@+-]{0,99}", name):
            refuse(number, "a student's name has to be made of letters, digits and . _ @ + -")
        if name in seen:
            refuse(number, "this student is there twice")
        if not address.startswith(f"{PROTOCOL}://"):
            refuse(number, f"the repository needs an address that starts with {PROTOCOL}://")
        if place.startswith(("/", ":", "-")) or ".." in place.split("/"):
            refuse(number, "path has to be a file's place in the repository, such as work/notebook.ipynb")
        seen.add(name)
        row |= {"student": name, "repository": address, "path": place}
    return rows


def environment(home):
    """The whole environment of git: none of the user's configuration, no prompt, and the token for one server alone."""
    settings = {
        "core.hooksPath": os.devnull,
        "protocol.allow": "never",
        f"protocol.{PROTOCOL}.allow": "always",
        "transfer.fsckObjects": "true",
        "fetch.unpackLimit": "1",  # one pack, so that the limit on a file's size is a limit on all
        "http.followRedirects": "false",
        "gc.auto": "0",
    }
    token = os.environ.get("CLASS_TOKEN")
    if token:
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/")
        basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        settings[f"http.{server}/.extraHeader"] = f"Authorization: Basic {basic}"
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0",
           "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_COUNT": str(len(settings))}  # fmt: skip
    for proxy in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE", "GIT_SSL_CAINFO"):
        if proxy in os.environ:
            env[proxy] = os.environ[proxy]
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def _limits():
    resource.setrlimit(resource.RLIMIT_FSIZE, (PACK_BYTES, PACK_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def git(folder, *arguments):
    """The output (bytes) of a git command in the bare repository `folder`.

    Raises:
        Refused: it failed, or took too long; the message has git's last line.
    """
    command = ["git", f"--git-dir={folder}", *arguments]
    try:
        done = subprocess.run(command, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True,
                              check=False, timeout=SECONDS, preexec_fn=_limits)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refused(f"git {arguments[0]} took longer than {SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        limit = f"a commit may have {PACK_BYTES // MIB} MiB"
        raise Refused(f"git {arguments[0]} failed ({limit}): {last[:200]}")
    return done.stdout


def fetch(repository, places):
    """The bytes of the first file of `places` that the newest commit of `repository` has, and its place.

    Raises:
        Refused: there is none; it is no plain file; it or the commit is too large; git could not fetch it.
    """
    with tempfile.TemporaryDirectory(prefix="fetch-") as folder:
        git(folder, "init", "--quiet", "--bare", "--template=", folder)
        git(
            folder,
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--no-recurse-submodules",
            "--",
            repository,
            BRANCH,
        )
        for place in places:
            entry = git(folder, "--literal-pathspecs", "ls-tree", "-z", "FETCH_HEAD", "--", place).rstrip(
                b"\0"
            )
            if not entry:
                continue
            mode, kind, name = entry.split(b"\t")[0].split()
            if kind != b"blob" or mode not in (b"100644", b"100755"):
                raise Refused(f"{place} is not a plain file")
            size = int(git(folder, "cat-file", "-s", name.decode()))
            if size > NOTEBOOK_BYTES:
                raise Refused(f"{place} has {size / MIB:.0f} MiB; {NOTEBOOK_BYTES // MIB} is the most")
            data = git(folder, "cat-file", "blob", name.decode())
            if data.startswith(b"version https://git-lfs"):
                raise Refused(f"{place} is a Git LFS pointer: the notebook has to be committed itself")
            return data, place
    raise Refused(f"there is no {' or '.join(places)} in its newest commit")


def fetch_all(rows, assignment, target):
    """Fetch every row's notebook to `target`/STUDENT/`assignment`/; yields (student, place or None, reason or "")."""
    notebook = f"{assignment.split('_', 1)[1]}.ipynb"
    for row in rows:
        places = (
            [row["path"]]
            if row["path"]
            else [p.format(assignment=assignment, notebook=notebook) for p in PLACES]
        )
        try:
            data, place = fetch(row["repository"], places)
        except Refused as reason:
            yield row["student"], None, str(reason)
            continue
        file = target / row["student"] / assignment / notebook
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        yield row["student"], place, ""


def main(arguments):
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="fetch_class.py", description=__doc__.splitlines()[0])
    parser.add_argument("roster", type=Path, help="CSV with the columns student,repository and perhaps path")
    parser.add_argument("assignment", help="such as 03_flash_forward")
    parser.add_argument("--to", type=Path, required=True, help="a new or empty folder")
    parser.add_argument("--report", type=Path, help="write a CSV: student, where it lay, why it was refused")
    options = parser.parse_args(arguments)
    try:
        if not re.fullmatch(r"\d+_\w+", options.assignment):
            raise Unusable(f"an assignment is called like 03_flash_forward, not {options.assignment!r}")
        if options.to.exists() and any(options.to.iterdir()):
            raise Unusable(f"{options.to} is not empty: name a new folder")
        rows = read_roster(options.roster)
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.to.mkdir(parents=True, exist_ok=True)
    found = list(fetch_all(rows, options.assignment, options.to))
    if options.report:
        with open(options.report, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                [("student", "place", "refused"), *((s, p or "", why) for s, p, why in found)]
            )
    refused = sum(place is None for _, place, _ in found)
    print(f"{len(found) - refused} of {len(found)} fetched" + (f", {refused} refused" if refused else ""))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
