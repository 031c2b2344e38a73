"""What `make` runs: the environment, the book, the sample class and the tests, step by step.

Usage: python tools/course.py course | test | lab | serve | exercises | venv | lock | clean

This file runs before anything is installed, so it uses the standard library alone. On Windows without make it
is called by hand: `py -3.12 tools\\course.py course`. Every foreseeable failure ends in one line that starts
with `error:` and says what to do, and exit status 1.
"""

import contextlib
import functools
import hashlib
import http.server
import json
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "course.json"  # written last: a .venv without it is unfinished
BUILD = ROOT / "_build"
SAMPLE = Path("class") / "sample"
NO_SANDBOX = 3  # autograder doctor's exit status for that
ACCEPTED = ((3, 11), (3, 12), (3, 13))
GIB = 2**30


class Stop(Exception):
    """A failure that has been understood: its text is the one line to print."""


# --- what is shown ------------------------------------------------------------------------------------------

START = time.monotonic()
LIVE = sys.stdout.isatty()


def clock(seconds):
    """Seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def say(text):
    """Print a line now, indented under its step."""
    print("      " + text, flush=True)


class Steps:
    """Numbered step lines, each with the time since the command began.

    Args:
        total: how many steps the command has.
    """

    def __init__(self, total):
        self.total, self.number = total, 0

    def next(self, title):
        """Announce the next step."""
        self.number += 1
        print(f"[{self.number}/{self.total}] {clock(time.monotonic() - START)}  {title}", flush=True)


def follow(command, log, interesting):
    """Run a command with its whole output in a log file, showing only its progress.

    Args:
        command: list of str or path, run in the repository's root.
        log: path of the file that gets everything the command prints.
        interesting: function from a line of output to the text to show for it, or None to show nothing new.

    On a terminal one line is rewritten. Elsewhere a line appears after 10 s if there is something new to say,
    and after 30 s in any case: a silent command still shows that it is alive.

    Returns:
        The exit status.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = shown_at = time.monotonic()
    lines = queue.Queue()
    shown, before = "started", None
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )

        def read():
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        while True:
            with contextlib.suppress(queue.Empty):
                line = lines.get(timeout=1)
                if line is None:
                    break
                file.write(line)
                file.flush()
                shown = interesting(re.sub(r"\x1b\[[0-9;]*m", "", line).strip()) or shown
            now = time.monotonic()
            if LIVE:
                width = shutil.get_terminal_size().columns - 1
                print("\r\x1b[K" + f"      {clock(now - began)}  {shown}"[:width], end="", flush=True)
            elif now - shown_at >= (30 if shown == before else 10):
                say(f"{clock(now - began)}  {shown}")
                shown_at, before = now, shown
    status = process.wait()
    if LIVE:
        print("\r\x1b[K", end="", flush=True)
    if status == 0:
        say(f"done in {clock(time.monotonic() - began)}")
    return status


def run(command):
    """Run a command in the repository's root with its own output on the screen; returns the exit status."""
    process, began = (
        subprocess.Popen([str(part) for part in command], cwd=ROOT, env=environment()),
        time.monotonic(),
    )
    try:
        while True:
            try:
                return process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                if not LIVE:  # a command's own progress bar shows on a terminal alone
                    say(f"{clock(time.monotonic() - began)}  at work")
    except KeyboardInterrupt:  # the command got it too: let it end what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        raise


def ask(command):
    """Run a command in the repository's root without showing its output.

    Returns:
        (exit status, output); status None where there is no such program.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            check=False,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as problem:
        return None, str(problem)
    return done.returncode, done.stdout


def become(command, **more):
    """Turn into a command (on Windows: run it, then end), so that Ctrl-C is the command's own affair."""
    sys.stdout.flush()
    command, variables = [str(part) for part in command], {**environment(), **more}
    os.chdir(ROOT)
    if os.name == "nt":
        sys.exit(subprocess.run(command, check=False, env=variables).returncode)
    os.execve(command[0], command, variables)


# --- the environment ----------------------------------------------------------------------------------------


def environment():
    """The variables for all that runs inside .venv: its programs first, nothing of the user's Python set-up.

    nbgrader calls `alembic` by its bare name, so .venv's programs have to be on PATH.
    """
    strays = (
        "PYTHON",
        "PYTHONHOME",
        "PYTHONPATH",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "MAKEFLAGS",
        "MAKELEVEL",
    )
    variables = {name: value for name, value in os.environ.items() if name not in strays}
    variables.update(
        PATH=os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]),
        VIRTUAL_ENV=str(VENV),
        PYTHONNOUSERSITE="1",
        PYTHONUNBUFFERED="1",
        PIP_USER="0",
        PIP_NO_INPUT="1",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        JUPYTER_PREFER_ENV_PATH="1",  # .venv's kernel, not one of the same name in the user's home
        PYDEVD_DISABLE_FILE_VALIDATION="1",  # no debugger notice in every notebook that starts
    )
    if not LIVE:
        variables.setdefault("COLUMNS", "110")  # tables are cut to 80 where there is no terminal to ask
    return variables


def digest(paths):
    """One SHA-256 of the names and contents of files, and of all files under folders; missing: empty."""
    total = hashlib.sha256()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" in file.parts or ".ipynb_checkpoints" in file.parts or file.is_dir():
                continue
            total.update(file.relative_to(ROOT).as_posix().encode() + b"\0")
            total.update(hashlib.sha256(file.read_bytes() if file.exists() else b"").digest())
    return total.hexdigest()


def read_json(path):
    """The dict in a JSON file, or {} where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def venv_version():
    """(major, minor) of the Python in .venv, or None where it does not run or has no pip."""
    status, output = ask([PYTHON, "-c", "import sys, pip; print(*sys.version_info[:2])"])
    return tuple(int(part) for part in output.split()) if status == 0 else None


def check_machine():
    """Stop where the lock cannot be installed, before anything is downloaded."""
    if sys.version_info[:2] not in ACCEPTED:
        raise Stop(
            f"the course needs Python 3.11, 3.12 or 3.13; {sys.executable} is {platform.python_version()}"
        )
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        raise Stop("PyTorch has no builds for Intel Macs: open the course in its dev container (README)")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as problem:
        raise Stop(
            f"{sys.executable} has no {problem.name} module, which .venv needs. Debian and Ubuntu: "
            f"apt-get install python3.{sys.version_info[1]}-venv; elsewhere name another Python: "
            f"PYTHON=/path/to/python3.12"
        ) from None


def check_disk():
    """Stop, or warn, where the packages will not fit: .venv takes 2.4 GiB with a CPU build of PyTorch."""
    free = shutil.disk_usage(ROOT).free / GIB
    wanted = 10 if sys.platform == "linux" else 3
    if free < 3:
        raise Stop(f"{free:.1f} GiB free on the disk of {ROOT}: the packages need 3 GiB, {wanted} to be safe")
    if free < wanted:
        say(f"{free:.1f} GiB free: enough for a CPU build of PyTorch; a CUDA build takes up to 10 (README)")


def pip_failure(log):
    """The one line that explains a failed pip, from its output."""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if "WARNING: Location" not in line]
    end = "\n".join(lines[-60:])
    rest = f"the whole output is in {log.relative_to(ROOT)}"
    if re.search(r"No space left on device|Errno 28|not enough space on the disk", end):
        return f"a disk is full (of .venv, pip's cache or temporary files): free some space; {rest}"
    network = (
        r"NewConnectionError|NameResolutionError|name resolution|getaddrinfo|unreachable|ProxyError|"
        r"ConnectTimeoutError|ReadTimeoutError|Read timed out|Max retries exceeded|CERTIFICATE_VERIFY_FAILED|"
        r"ConnectionResetError|RemoteDisconnected|IncompleteRead"
    )
    if re.search(network, end):
        return f"pip cannot reach the package index: check the network or proxy, then try again; {rest}"
    errors = [
        line.strip()[7:] for line in lines if re.match(r"\s*(ERROR|error): (?!subprocess-exited)", line)
    ]
    return f"pip failed: {errors[0] if errors else 'no reason given'}; {rest}"


class PipProgress:
    """Turns pip's lines into short ones.

    Args:
        total: how many packages the lock has for this machine, roughly.
    """

    def __init__(self, total):
        self.total, self.seen = total, 0

    def __call__(self, line):
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            self.seen += 1
            name = re.split(r"[=<>!~;\[ ]", line.split(": " if ": " in line else " ", 1)[1])[0]
            return f"package {self.seen} of about {max(self.total, self.seen)}: {name}"
        size = re.match(r"Downloading (\S+) \((\d+)\.\d+ MB\)", line)
        if size and int(size[2]) >= 20:
            return f"downloading {size[1].rsplit('/', 1)[-1]} ({size[2]} MB)"
        if line.startswith("Installing collected packages"):
            return f"installing {line.count(',') + 1} packages, a few minutes"
        return None


def make_venv():
    """Make .venv and install the lock and the course's own packages, or reuse what is there.

    Reused as it is when its stamp names this folder and the same requirements.txt and pyproject.toml. Made
    again from nothing when the folder has moved (its scripts hold absolute paths), when its Python does not
    run, or when PYTHON= asks for another version than it has.
    """
    check_machine()
    inputs = digest([ROOT / "requirements.txt", ROOT / "pyproject.toml"])
    stamp, have = read_json(STAMP), venv_version()
    asked = bool(os.environ.get("PYTHON"))
    sound = have in ACCEPTED and (have == sys.version_info[:2] or not asked)
    if stamp and stamp.get("root") != str(ROOT):
        sound = False
    if sound and stamp.get("inputs") == inputs:
        say(f"as it was: Python {have[0]}.{have[1]} in .venv")
        return
    check_disk()
    if not sound:
        say(
            f"making .venv with Python {platform.python_version()}"
            + (", from nothing" if VENV.exists() else "")
        )
        status, output = ask([sys.executable, "-m", "venv", "--clear", VENV])
        if status:
            raise Stop(f"cannot make .venv: {(output.strip() or 'no reason given').splitlines()[-1]}")
    STAMP.unlink(missing_ok=True)
    lock = [line for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines() if line]
    log = VENV / "pip.log"
    install = [PYTHON, "-m", "pip", "install", "--progress-bar", "off"]
    if follow([*install, "-r", "requirements.txt"], log, PipProgress(len(lock))):
        raise Stop(pip_failure(log))
    say("installing the course itself")
    if follow([*install, "--no-deps", "--no-build-isolation", "-e", "."], log, lambda line: None):
        raise Stop(pip_failure(log))
    STAMP.write_text(json.dumps({"root": str(ROOT), "inputs": inputs}), encoding="utf-8")


# --- the steps ----------------------------------------------------------------------------------------------


def build_book():
    """Build the book to _build/html with every warning an error, or reuse it when no source has changed.

    All pages are read again in each build, since one that is reused does not repeat its warnings.
    """
    sources = (
        "chapters",
        "widgets",
        "kernels",
        "autograder",
        "solutions",
        "_config.yml",
        "_toc.yml",
        "requirements.txt",
    )
    inputs = digest([ROOT / name for name in sources])
    record = BUILD / "book.json"
    if read_json(record) == {"inputs": inputs} and (BUILD / "html" / "index.html").exists():
        say("as it was: no source has changed")
        return
    record.unlink(missing_ok=True)
    shutil.rmtree(BUILD / "html", ignore_errors=True)
    log = BUILD / "book.log"

    def interesting(line):
        found = re.match(r"(reading sources|writing output|copying images)\.\.\. \[ *(\d+%)\] (.*)", line)
        if found:
            return f"{found[1]}, {found[2]}: {found[3]}"
        return "running the cells of a page" if "Executing notebook" in line else None

    if follow([BIN / "jb", "build", ".", "--all", "-W", "-n", "--keep-going"], log, interesting):
        output = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8")).splitlines()
        # A kernel's own notices, about its transport, are not the book's.
        output = [line for line in output if not line.startswith("[IPKernelApp]")]
        problems = [line for line in output if re.search(r"\b(WARNING|ERROR|Error|Exception)\b", line)]
        for line in problems[:20] or output[-20:]:
            say(line)
        raise Stop("the book has warnings or errors; the whole output is in _build/book.log")
    record.write_text(json.dumps({"inputs": inputs}), encoding="utf-8")


PLAYWRIGHT_PROBE = """
from playwright.sync_api import sync_playwright
with sync_playwright() as play:
    play.chromium.launch().close()
"""


def find_browser():
    """The path of a Chromium or Chrome that runs, or None."""
    names = [
        os.environ.get("CHROMIUM"),
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ]
    names.append("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
    for name in filter(None, names):
        path = shutil.which(name)
        # Ubuntu has a chromium-browser that only says "install the snap": hence the try.
        if path and ask([path, "--version"])[0] == 0:
            return path
    return None


def get_browser():
    """Find a browser for the tests; where there is none get one.

    The system's own package comes first, where it can be installed without asking anyone (root and apt-get),
    then the build that Playwright downloads to its own folder.

    Returns:
        The path of the browser, "" for Playwright's own, or None where none could be had.
    """
    found = find_browser()
    if found:
        say(found)
        return found
    log = BUILD / "browser.log"
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get")
    playwright = [PYTHON, "-m", "playwright", "install"]
    if ask([PYTHON, "-c", PLAYWRIGHT_PROBE])[0] == 0:
        say("Playwright's own")
        return ""
    if as_root:
        say("none found: installing the system's chromium package")
        apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
        follow([*apt, "update"], log, lambda line: line or None)
        follow([*apt, "install", "--no-install-recommends", "chromium"], log, lambda line: line or None)
        found = find_browser()
        if found:
            return found
    say("getting Playwright's own Chromium")
    follow([*playwright, *(["--with-deps"] if as_root else []), "chromium"], log, lambda line: line or None)
    return "" if ask([PYTHON, "-c", PLAYWRIGHT_PROBE])[0] == 0 else None


def copy_exercises(source, target):
    """Copy files that the target does not have; a file that is there is the student's and stays as it is.

    Args:
        source: folder of released exercises.
        target: the student's folder, made if need be.

    Returns:
        (copied, kept): lists of paths relative to target; kept holds only files that differ from the release.
    """
    copied, kept = [], []
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name = file.relative_to(source)
        if ".ipynb_checkpoints" in name.parts:
            continue
        mine = target / name
        if os.path.lexists(mine):
            if not mine.is_file() or mine.read_bytes() != file.read_bytes():
                kept.append(name)
            continue
        mine.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, mine)
        copied.append(name)
    return copied, kept


def port_or(default):
    """The port in the variable PORT, or the default; stops on anything that is no port."""
    text = os.environ.get("PORT", "")
    if text and not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise Stop(f"PORT={text}: a port is a number from 1 to 65535")
    return int(text or default)


# --- the commands -------------------------------------------------------------------------------------------


def autograder(*arguments):
    """Run the grader's command line with its output on the screen; stops if it fails."""
    if run([BIN / "autograder", *arguments]):
        raise Stop(f"autograder {' '.join(map(str, arguments))} failed (above)")


def course():
    """The book, the exercises, and a sample class from submission to grade."""
    steps = Steps(6)
    steps.next("Python environment in .venv")
    make_venv()
    if sys.platform != "linux":
        say("Triton has builds for Linux alone: those parts run in the dev container, WSL or Colab (README)")
    steps.next("The book, warnings as errors, to _build/html")
    build_book()
    steps.next("Exercises, compared with solutions/")
    if run([PYTHON, "-m", "autograder.exercise", "compare"]):
        raise Stop(
            "exercises/ does not match solutions/ (above); after a change in solutions/: make exercises"
        )
    steps.next("A sandbox for students' code")
    status = run([BIN / "autograder", "doctor", "--sandbox"])
    if status not in (0, NO_SANDBOX) and sys.platform == "linux":
        raise Stop("autograder doctor failed (above)")
    graded = status == 0
    if graded:
        steps.next(f"A small sample class of exercise 03 in {SAMPLE.as_posix()}, made and graded")
        autograder("sample", SAMPLE, "--small")
        autograder("grade", "03_flash_forward", "--class", SAMPLE)
        steps.next("Its grades, compared with what each submission must score")
        autograder("report", "--class", SAMPLE)
        autograder("sample", SAMPLE, "--verify")
    else:
        say("No sandbox can be had here, so grading is left out; the fix is above. Everything else is ready.")
    print(f"\nReady after {clock(time.monotonic() - START)}. Where to go next:")
    print(f"  the book       {BUILD / 'html' / 'index.html'}  (or: make serve)")
    print("  the exercises  make lab")
    if graded:
        print(f"  the class      {ROOT / SAMPLE}  (nbgrader's folder; README, Instructor)")


def test():
    """Everything that is tested; pytest's closing line comes last."""
    steps = Steps(5)
    steps.next("Python environment in .venv")
    make_venv()
    steps.next("The book, warnings as errors, to _build/html")
    build_book()
    steps.next("A browser")
    browser = get_browser()
    if browser is None:
        if os.environ.get("CI"):
            raise Stop("no browser could be had for the tests of the site; see _build/browser.log")
        say(
            "None could be had (_build/browser.log): the tests of the site are left out. Install Chromium for them."
        )
    steps.next("Ruff")
    if run([PYTHON, "-m", "ruff", "check", "."]):
        raise Stop("ruff has findings (above)")
    steps.next("Tests")
    # A file's tests share what they set up, such as the graded sample class: they stay together, in the order of tests/conftest.py.
    command = [PYTHON, "-m", "pytest", "-n", "logical", "--maxprocesses=4", "--dist=loadfile", "--no-loadscope-reorder"]
    if browser is None:
        become([*command, "--ignore=tests/site"])
    become(command, CHROMIUM=browser)  # "" for Playwright's own


def test_gpu():
    """What a GPU adds to the tests; a short table comes last."""
    make_venv()
    become([PYTHON, "-B", "tests/gpu.py"])


def lab():
    """A student's copies in work/, and JupyterLab on them."""
    steps = Steps(2)
    steps.next("Python environment in .venv")
    make_venv()
    steps.next("JupyterLab in work/")
    port = port_or(8888)
    if not (ROOT / "exercises").is_dir():
        raise Stop("there is no exercises/ folder here: restore it with git checkout exercises")
    copied, kept = copy_exercises(ROOT / "exercises", ROOT / "work")
    for name in copied:
        say(f"new: {Path('work') / name}")
    for name in kept:
        say(f"kept: {Path('work') / name} is yours and stays (it differs from the release in exercises/)")
    command = [PYTHON, "-m", "jupyterlab", f"--port={port}", f"--ServerApp.root_dir={ROOT / 'work'}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    become(command)


def serve():
    """The built book on this machine's own address."""
    site, port = BUILD / "html", port_or(8000)
    if not (site / "index.html").exists():
        raise Stop("there is no book yet: run make course first")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as problem:
        raise Stop(
            f"port {port} cannot be used ({problem.strerror}): choose another, make serve PORT={port + 1}"
        ) from None
    with server:
        print(f"The book is at http://localhost:{port}/ until Ctrl-C.", flush=True)
        server.serve_forever()


def exercises():
    """exercises/ made again from solutions/."""
    steps = Steps(2)
    steps.next("Python environment in .venv")
    make_venv()
    steps.next("Exercises from solutions/")
    become([PYTHON, "-m", "autograder.exercise", "build"])


def venv():
    """The environment alone."""
    Steps(1).next("Python environment in .venv")
    make_venv()


def lock():
    """requirements.txt made again from pyproject.toml, with the newest versions that its ranges allow."""
    uv = shutil.which("uv")
    if not uv:
        raise Stop("make lock needs uv on PATH: pip install uv, or your system's package")
    command = [uv, "pip", "compile", "-q", "--universal", "--python-version", "3.11", "--extra", "test"]
    command += ["--no-annotate", "--no-header", "pyproject.toml"]
    done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Stop("uv could not resolve the ranges in pyproject.toml (above); requirements.txt is as it was")
    # PyTorch's own metadata asks for the CUDA packages where they are wanted; nvidia-ml-py is ours.
    pins = [pin for pin in done.stdout.splitlines() if not re.match(r"cuda-|nvidia-(?!ml-py)", pin)]
    (ROOT / "requirements.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    print(f"requirements.txt: {len(pins)} packages")


def clean():
    """Remove what the commands above make, but .venv, which takes long; never anything in work/ or class/."""
    doomed = [
        BUILD,
        ROOT / ".pytest_cache",
        ROOT / ".ruff_cache",
        ROOT / ".hypothesis",
        ROOT / "jupyter_execute",
    ]
    mine = {VENV, ROOT / "work", ROOT / "class", ROOT / ".git"}
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.is_symlink() and folder not in mine:
            doomed += [
                path
                for path in [folder, *folder.rglob("*")]
                if path.name in ("__pycache__", ".ipynb_checkpoints")
            ]
    for path in doomed:
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
    print("Removed _build and the caches. Kept .venv (to start over: delete the folder), work/ and class/.")


COMMANDS = {
    command.__name__.replace("_", "-"): command
    for command in (course, test, test_gpu, lab, serve, exercises, venv, lock, clean)
}


def main(arguments):
    """Run one command; returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        print(
            f"error: give one of {', '.join(COMMANDS)}; got {' '.join(arguments) or 'nothing'}",
            file=sys.stderr,
        )
        return 2
    try:
        COMMANDS[arguments[0]]()
    except Stop as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
