"""What in a submission's source a person should look at.

A score never depends on it: what a trick gains is nothing, by construction, whether it is seen here or not. It only saves the
instructor from reading every notebook. Names are listed because honest solutions of this course have no use for them.
"""

import ast

from autograder.jitted import as_python

_MODULES = {
    "builtins", "cffi", "ctypes", "gc", "http", "inspect", "kernels", "multiprocessing", "nbgrader", "requests", "resource",
    "signal", "socket", "solutions", "sqlite3", "subprocess", "urllib", "zmq",
}  # fmt: skip
_CALLS = {"__import__", "compile", "eval", "exec", "globals", "setattr"}
_ATTRIBUTES = {
    "__builtins__", "__closure__", "__code__", "__globals__", "__subclasses__", "_exit", "abort", "fork", "getoutput",
    "iopub_socket", "kill", "memfd_create", "popen", "scaled_dot_product_attention", "setsid", "system",
}  # fmt: skip
_METHODS = {"__array_function__", "__array_ufunc__", "__eq__"}
_TEXTS = ("/dev/shm", "/proc", "answer.json", "gradebook", "seeds.json", "verdict")
_PATCHED = {"builtins", "np", "numpy", "time", "tl", "torch", "tracemalloc", "triton"}
_OURS = {"check", "handin"}  # what a notebook imports of the course


def oddities(source):
    """Names and texts in `source`, the code of one cell, that are worth a look; sorted. [] when it is not Python."""
    try:
        tree = ast.parse(as_python(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            found |= {f"import {n}" for n in names if n.split(".")[0] in _MODULES | {"autograder"}}
        elif isinstance(node, ast.ImportFrom):
            root = (node.module or "").split(".")[0]
            if root in _MODULES or (root == "autograder" and {alias.name for alias in node.names} - _OURS):
                found.add(f"from {node.module} import {node.names[0].name}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef) and node.name in _METHODS:
            found.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {text for text in _TEXTS if text in node.value} | ({node.value} & _ATTRIBUTES)
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id in _METHODS:
                    found.add(target.id)
                root = target
                while isinstance(root, ast.Attribute):
                    root = root.value
                if root is not target and isinstance(root, ast.Name) and root.id in _PATCHED:
                    found.add(f"{ast.unparse(target)} = ...")
    return sorted(name[:60] for name in found)
