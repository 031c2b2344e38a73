"""`python -m kernels`, and what importing the rooms needs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernels.__main__ as program

ROOT = Path(program.__file__).parents[1]


def python(*args):
    return subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, check=False)


def test_it_runs_and_repeats_itself(capsys):
    first = python("-m", "kernels", "--seed", "7")
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stderr == ""
    agreement, again = first.stdout.split("\n2. Peak memory")[0], {}
    for seed in (7, 8):
        program.show_agreement(np.random.default_rng(seed))
        again[seed] = capsys.readouterr().out
    assert agreement == again[7] != again[8]
    assert "All four agree. The same run again: python -m kernels --seed 7" in first.stdout


def test_the_memory_table_and_its_words(capsys):
    program.show_memory(np.random.default_rng(0), [256, 512, 1024])
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.split() and line.split()[0].isdigit()]
    table = np.array([[float(x.replace(",", "")) for x in row] for row in rows])
    assert table[:, 0].tolist() == [256, 512, 1024]
    naive, flash = table[:, 1], table[:, 2]
    assert naive[2] * 1024 >= 2 * 8 * 1024**2
    assert naive[2] > 3.5 * naive[1]
    assert flash[2] <= 1.1 * flash[0]
    words = {line.split()[0]: line for line in out.splitlines() if "N doubles" in line}
    assert "quadratic" in words["naive"]
    assert "constant" in words["flash"]
    assert "linear" in words["paged"]
    assert "linear" in words["decoding"]


@pytest.mark.parametrize("name", ["flash_attention", "paged_attention", "flash_decoding"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("error", [1e-13, np.nan])
def test_it_fails_when_a_form_is_wrong(name, which, error, monkeypatch, capsys):
    right = getattr(program, name)

    def wrong(*args, **kwargs):
        result = list(right(*args, **kwargs))
        result[which] = result[which] + error * (
            result[which].size - 1 == np.arange(result[which].size)
        ).reshape(result[which].shape)
        return tuple(result)

    monkeypatch.setattr(program, name, wrong)
    assert not program.show_agreement(np.random.default_rng(0), cases=4)
    assert "DISAGREE" in capsys.readouterr().out


def test_it_shows_the_nan_and_the_guard(capsys):
    program.show_nan()
    without, guarded, later = capsys.readouterr().out.splitlines()[3:6]
    assert "p = [nan nan nan nan], l = nan, o = [nan nan]" in without
    assert "p = [0. 0. 0. 0.], l = 0.0, o = [0. 0.]" in guarded
    assert later.endswith("without [nan nan], with [1. 1.]")


def test_options_are_checked():
    assert python("-m", "kernels", "--seed", "-1").returncode == 2
    assert python("-m", "kernels", "--seed", "x").returncode == 2


def test_the_reference_needs_numpy_alone():
    code = (
        "import sys, numpy; before = {name.split('.')[0] for name in sys.modules}; import kernels.__main__;"
        "print({name.split('.')[0] for name in sys.modules} - before - sys.stdlib_module_names)"
    )
    assert python("-c", code).stdout.strip() == "{'kernels'}"


def test_without_triton_one_line_says_where_to_go():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "try:\n    import kernels.triton\nexcept ImportError as error:\n    print(error)"
    )
    result = python("-c", code)
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    assert "Linux" in result.stdout
    assert "Colab" in result.stdout
