"""Take the `@triton.jit` functions, and nothing else, out of a submission.

What is taken runs in the kernel driver. Under the interpreter a jitted body is Python, and when Triton compiles one it calls
plain Python functions that the body names; so a body may name only its own variables, other jitted functions that were
taken, literal constants, `tl`, and a few built-ins. A body that names anything else is refused, with the name.
"""

import ast
import builtins
import functools
import re

# Methods and fields of a Triton value, and nothing that leads from one to the machinery below it.
_ATTRIBUTES = {
    "T", "abs", "advance", "associative_scan", "atomic_add", "broadcast_to", "cast", "cdiv", "cumsum", "device_print",
    "dtype", "element_ty", "exp", "exp2", "expand_dims", "flip", "gather", "histogram", "is_floating", "item",
    "load", "load_block", "log", "log2", "logical_and", "logical_or", "max", "min", "next_power_of_2", "numel",
    "permute", "ravel", "reduce", "reshape", "rsqrt", "scalar", "shape", "sigmoid", "sort", "split", "sqrt", "store",
    "sum", "to", "trans", "type", "value", "view", "xor_sum",
}  # fmt: skip
# What a kernel may take from `tl`: operations and types by name. An allow-list, so that what a next release of Triton adds
# (modules, decorators, whatever leads to Python) is refused until somebody has looked at it.
_TL = {
    "abs", "arange", "argmax", "argmin", "assume", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min",
    "atomic_or", "atomic_xchg", "atomic_xor", "bfloat16", "bitonic_merge", "broadcast", "broadcast_to", "cast", "cat", "cdiv",
    "ceil", "clamp", "constexpr", "cos", "cumprod", "cumsum", "debug_barrier", "device_assert", "device_print",
    "div_rn", "dot", "erf", "exp", "exp2", "expand_dims", "fdiv", "flip", "float16", "float32", "float64", "floor", "fma", "full",
    "gather", "int1", "int16", "int32", "int64", "int8", "interleave", "join", "load", "log", "log2", "make_block_ptr",
    "max", "max_constancy", "max_contiguous", "maximum", "min", "minimum", "multiple_of", "num_programs", "permute", "program_id",
    "range", "ravel", "reshape", "rsqrt", "sigmoid", "sin", "softmax", "sort", "split", "sqrt", "sqrt_rn", "static_assert",
    "static_print", "static_range", "store", "sum", "swizzle2d", "topk", "trans", "uint16", "uint32", "uint64", "uint8",
    "umulhi", "view", "where", "xor_sum", "zeros", "zeros_like", "advance", "math", "pointer_type",
}  # fmt: skip
_TL_MATH = {"abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt",
            "sqrt_rn", "umulhi"}  # fmt: skip
_BUILTINS = {"range", "min", "max", "abs", "int", "float", "bool", "len", "tuple", "print", "True", "False", "None"}
# Names that a kernel can't give to something of its own: where Triton looks a name up before the kernel does, the
# variable would hide from us what the name really means.
_RESERVED = {"tl", "triton"} | {n for n in dir(builtins) if n not in {"min", "max", "abs", "sum", "id", "input"}}
_ANNOTATION = re.compile(r"(['\"]?)(tl\.(constexpr|dtype|tensor|int32|int64|float32)|int|float|bool)\1")
_HEADER = "import triton\nimport triton.language as tl\n\n"


class NotTaken(ValueError):
    """The kernel can't be taken from the notebook. The message is for the student."""


def _is_jit(decorator):
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target) in {"triton.jit", "jit"}


def _is_literal(node):
    """A number, string or tuple of them, arithmetic on them, or `tl.constexpr` / a `tl` dtype of one."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_literal, node.elts))
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) and _is_literal(node.right) and not isinstance(node.op, ast.Pow)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return name in {"tl.constexpr", "float"} and len(node.args) == 1 and not node.keywords and _is_literal(node.args[0])
    return False


def take(sources, kernel):
    """The source of a module that holds `kernel`, the jitted functions it calls and the literal constants it names.

    Args:
        sources: the code of the cells up to the check, in order; a later definition replaces an earlier one.
        kernel: the name that the exercise fixes.

    Raises:
        NotTaken: no such jitted function is defined at the top level of a cell, or its code names something refused.
    """
    functions, constants = {}, {}
    for source in sources:
        try:
            tree = ast.parse(as_python(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # that cell failed when it ran, too
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                if any(map(_is_jit, node.decorator_list)):
                    functions[node.name] = node
                else:
                    functions.pop(node.name, None)  # a plain function of that name hides the kernel, here as in the notebook
            elif isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
                for target in node.targets:
                    constants.pop(target.id, None)
                    if _is_literal(node.value):
                        constants[target.id] = ast.Assign([ast.Name(target.id, ast.Store())], node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                if _is_literal(node.value) and ast.unparse(node.annotation) in {"tl.constexpr", "int", "float"}:
                    constants[node.target.id] = node  # with its annotation: triton reads `X: tl.constexpr = 1` by it
    for name in _RESERVED:
        functions.pop(name, None)
        constants.pop(name, None)
    if kernel not in functions:
        raise NotTaken(f"no function {kernel} decorated with @triton.jit is defined at the top level of a cell")
    wanted, order = [kernel], []
    used = set()
    while wanted:
        name = wanted.pop()
        if name in order:
            continue
        order.append(name)
        names = _names(functions[name], functions, constants)
        used |= names & constants.keys()
        wanted += sorted(names & functions.keys())
    lines = [ast.unparse(ast.fix_missing_locations(node)) for name, node in constants.items() if name in used]
    for name in sorted(order, key=list(functions).index):
        node = functions[name]
        node.decorator_list = [ast.parse("triton.jit", mode="eval").body]
        lines.append(ast.unparse(node))
    return _HEADER + "\n\n".join(lines) + "\n"


_RUNS_HERE = {"time", "capture", "prun"}  # cell magics whose cell defines names as any other cell does
_MAGIC = re.compile(r"^[ \t]*[%!?,;/]|=[ \t]*[%!]|\?[ \t]*$", re.MULTILINE)


@functools.lru_cache(maxsize=256)  # a notebook has a few checks of one kernel, and each looks at every cell
def as_python(source):
    """`source` as the Python that IPython makes of it: magics (`%timeit f()`), shell lines (`x = !ls`), help (`np.exp?`).

    Raises:
        SyntaxError: IPython can't read it either.
    """
    head, _, rest = source.lstrip("\n").partition("\n")
    if head.startswith("%%"):
        words = head[2:].split()
        source = rest if words and words[0] in _RUNS_HERE else ""
    try:
        ast.parse(source)
        return source
    except SyntaxError:
        # IPython reads a cell once more for each magic in it, so what is not a cell that a person wrote is not tried.
        if len(source) > 20_000 or len(_MAGIC.findall(source)) > 50:
            raise
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return TransformerManager().transform_cell(source)
    except RuntimeError as error:
        raise SyntaxError(str(error)) from None


def _names(function, functions, constants):
    """The outside names that `function` uses; raises NotTaken for one that it may not."""
    where = f"{function.name}, line {{}} of the function"

    def refuse(node, what):
        line = getattr(node, "lineno", function.lineno) - function.lineno + 1
        raise NotTaken(f"{where.format(line)}: {what}; a kernel may use only tl, its arguments, other jitted "
                       "functions and literal constants")

    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    local = {a.arg for a in every if a}
    for name in sorted(local & _RESERVED):
        refuse(function, f"an argument called {name}")
    # Both would be run, as Python, where the function is defined.
    if function.returns is not None or getattr(function, "type_params", None):
        refuse(function, "a return annotation or type parameters")
    for a in every:
        if a and a.annotation is not None and not _ANNOTATION.fullmatch(ast.unparse(a.annotation)):
            refuse(a, f"the annotation {ast.unparse(a.annotation)[:60]} is not known")
    for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
        if not _is_literal(default):
            refuse(default, f"the default {ast.unparse(default)[:60]} is not a literal")
    body = [n for statement in function.body for n in ast.walk(statement)]
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda,
                             ast.Global, ast.Nonlocal, ast.Try, ast.With, ast.AsyncWith, ast.Await, ast.Yield,
                             ast.YieldFrom, ast.Delete, ast.NamedExpr, ast.JoinedStr, ast.Raise, ast.GeneratorExp,
                             ast.ListComp, ast.SetComp, ast.DictComp, ast.Match)):  # fmt: skip
            refuse(node, f"`{type(node).__name__}` can't stand in a kernel")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if node.id in _RESERVED:
                refuse(node, f"assigning to {node.id}")
            local.add(node.id)
    roots = {id(n.value) for n in body if isinstance(n, ast.Attribute)}
    outside = set()
    for node in body:
        if isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                refuse(node, f"assigning to {ast.unparse(node)[:60]}")
            root = ast.unparse(node.value)
            if node.attr.startswith("_"):
                refuse(node, f"the name {ast.unparse(node)[:60]}")
            if root == "tl":
                if node.attr not in _TL:
                    refuse(node, f"the name tl.{node.attr[:40]}")
                if node.attr == "math" and id(node) not in roots:
                    refuse(node, "the name tl.math")
            elif root == "tl.math":
                if node.attr not in _TL_MATH:
                    refuse(node, f"the name tl.math.{node.attr[:40]}")
            elif root == "triton":
                if node.attr not in {"cdiv", "next_power_of_2"}:
                    refuse(node, f"the name triton.{node.attr[:40]}")
            elif node.attr not in _ATTRIBUTES:
                refuse(node, f"the name {ast.unparse(node)[:60]}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name = node.id
            if name in local or name in _BUILTINS:
                continue
            if name in functions or name in constants:
                outside.add(name)
            elif name in {"tl", "triton"} and id(node) in roots:
                continue  # looked at as an attribute's root
            else:
                refuse(node, f"the name {name[:60]}")
    return outside
