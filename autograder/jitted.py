"""Take the `@triton.jit` functions, and nothing else, out of a submission.

What is taken runs in the kernel driver. Under the interpreter a jitted body is Python, and when Triton compiles one it calls
plain Python functions that the body names; so a body may name only its own variables, other jitted functions that were
taken, literal constants, `tl`, and a few built-ins. A body that names anything else is refused, with the name.
"""

import ast

# Methods and fields of a Triton value, and nothing that leads from one to the machinery below it.
_ATTRIBUTES = {
    "T", "abs", "advance", "associative_scan", "atomic_add", "broadcast_to", "cast", "cdiv", "cumsum", "device_print",
    "dtype", "element_ty", "exp", "exp2", "expand_dims", "flip", "gather", "histogram", "is_floating", "item",
    "load", "load_block", "log", "log2", "logical_and", "logical_or", "max", "min", "next_power_of_2", "numel",
    "permute", "ravel", "reduce", "reshape", "rsqrt", "scalar", "shape", "sigmoid", "sort", "split", "sqrt", "store",
    "sum", "to", "trans", "type", "value", "view", "xor_sum",
}  # fmt: skip
# Names of `triton.language` that lead to Python objects rather than to operations.
_NOT_OPERATIONS = {"core", "semantic", "standard", "random", "extra", "tensor", "builtin", "ir", "str_to_ty", "target_info"}
_BUILTINS = {"range", "min", "max", "abs", "int", "float", "bool", "len", "tuple", "print", "True", "False", "None"}
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
            tree = ast.parse(_without_magics(source))
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


def _without_magics(source):
    return "\n".join("pass" if line.startswith(("%", "!")) else line for line in source.splitlines())


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
    for a in every:
        if a and a.annotation is not None and not ast.unparse(a.annotation).strip("'\"").startswith(("tl.", "int", "float")):
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
            if node.id in {"tl", "triton"}:
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
                if node.attr in _NOT_OPERATIONS:
                    refuse(node, f"the name tl.{node.attr}")
            elif root == "tl.math":
                pass
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
                continue
            else:
                refuse(node, f"the name {name[:60]}")
    return outside
