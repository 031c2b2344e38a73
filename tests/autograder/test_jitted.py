"""Only jitted functions and literal constants are taken from a submission."""

import pytest

from autograder.jitted import NotTaken, take

KERNEL = "@triton.jit\ndef k(p, N: tl.constexpr):\n    i = tl.arange(0, N)\n    tl.store(p + i, {})\n"


def test_helpers_and_constants_come_along_and_nothing_else():
    source = (
        "import os\nprint('side effect')\nUNUSED = 1\nHALF: tl.constexpr = 0.5\nTWO = tl.constexpr(2)\nSECRET = os.environ\n"
        "@triton.jit\ndef helper(x):\n    return x * HALF\n" + KERNEL.format("helper(i) * TWO")
    )
    module = take([source], "k")
    assert "def helper" in module and "HALF: tl.constexpr = 0.5" in module and "TWO = tl.constexpr(2)" in module
    for word in ("os", "print", "UNUSED", "SECRET"):
        assert word not in module


def test_the_last_definition_counts_and_a_plain_function_hides_a_kernel():
    assert "i + 2" in take([KERNEL.format("i + 1"), KERNEL.format("i + 2")], "k")
    with pytest.raises(NotTaken, match="no function k decorated"):
        take([KERNEL.format("i"), "def k(p, N):\n    pass"], "k")
    with pytest.raises(NotTaken, match="no function k decorated"):
        take(["k = None", "this is not python"], "k")


@pytest.mark.parametrize(
    "body",
    [
        "torch.zeros(3)", "i.handle", "().__class__", "tl.core.os", "tl.load.__globals__", "getattr(tl, 'load')", "tl",
        "open('x')", "__import__('os')", "[j for j in range(3)]", "(lambda: i)()", "f'{i}'", "eval('1')", "i._value",
        "triton.language", "triton.runtime", "'{0.handle}'.format(i)", "globals()", "tl.semantic", "tl.tensor",
        "helper_outside(i)", "i.to.__self__", "print.__self__",
    ],
)  # fmt: skip
def test_a_body_that_leads_out_of_the_kernel_is_refused_by_name(body):
    with pytest.raises(NotTaken, match=r"k, line 3 of the function"):
        take([KERNEL.format(body)], "k")


@pytest.mark.parametrize(
    "source",
    [
        "@triton.jit\ndef k(p):\n    import os",
        "@triton.jit\ndef k(p) -> exec('x'):\n    pass",
        "@triton.jit\ndef k(p: int(bool(exec('x')))):\n    pass",
        "@triton.jit\ndef k(p: tl.core.os):\n    pass",
        "@triton.jit\ndef h(tl):\n    return tl.builtins\n@triton.jit\ndef k(p):\n    h(tl.math.core)",
        "@triton.jit\ndef tl(a):\n    pass\n@triton.jit\ndef k(p):\n    tl.get_capture_scope()",
        "@triton.jit\ndef k(p):\n    tl.math.wraps(p, assigned=('__code__',))(p)",
        "@triton.jit\ndef k(p):\n    if False:\n        getattr = 0\n    getattr(tl.load, 'x')",
        "@triton.jit\ndef k(p):\n    x = tl.math",
        "@triton.jit\ndef k(getattr):\n    getattr(tl.load, 'x')",
        "@triton.jit\ndef k(p):\n    tl = 3",
        "@triton.jit\ndef k(p):\n    p.attr = 3",
        "@triton.jit\ndef k(p=open('x')):\n    pass",
        "@triton.jit\ndef k(p: open('x')):\n    pass",
        "@triton.jit\ndef k(p):\n    def inner():\n        pass",
        "@triton.jit\ndef k(p):\n    global np",
        "@triton.jit\ndef h(p):\n    os.system('x')\n@triton.jit\ndef k(p):\n    h(p)",
    ],
)
def test_statements_defaults_annotations_and_helpers_are_looked_at_too(source):
    with pytest.raises(NotTaken):
        take([source], "k")


@pytest.mark.parametrize(
    "cell",
    [
        "files = !ls\n{}", "{}\n%timeit -n 1 print(1)", "np.exp?\n{}", "{}\n?np.exp", "%matplotlib inline\n{}", "!pip list\n{}",
        "%%time\n{}", "%%capture out\n{}", "\n%%time\n%matplotlib inline\n{}", "if True:\n    %time print(1)\n{}",
        "x = %pwd\n{}", "!echo 'it\n{}", "text = '''\n%timeit\n!ls\n'''\n!ls\n{}",
    ],
)  # fmt: skip
def test_magics_and_shell_lines_cost_no_kernel(cell):
    assert "i + 3" in take([cell.format(KERNEL.format("i + 3"))], "k")


@pytest.mark.parametrize("magic", ["%%writefile k.py", "%%bash", "%%html", "%%timeit", "%%script false", "%%"])
def test_a_cell_that_a_magic_takes_for_itself_defines_nothing(magic):
    with pytest.raises(NotTaken, match="no function k decorated"):
        take([f"{magic}\n{KERNEL.format('i')}"], "k")
    assert "i + 1" in take([KERNEL.format("i + 1"), f"{magic}\n{KERNEL.format('i + 2')}"], "k")


@pytest.mark.timeout(30)
def test_magics_without_end_are_not_read_for_ever():
    many = "\n".join(["x = !ls"] * 20_000)
    assert "i + 1" in take([KERNEL.format("i + 1"), *(many + f"\ny = {n}" for n in range(20))], "k")


def test_a_constant_that_is_not_a_literal_is_not_taken():
    with pytest.raises(NotTaken, match="the name C"):
        take(["C = __import__('os').getpid()\n" + KERNEL.format("i * C")], "k")
    with pytest.raises(NotTaken, match="the name C"):  # hidden by what came later
        take(["C = 2\n", "C = np.e\n" + KERNEL.format("i * C")], "k")
