"""The hand-kept stub names exactly what the native module has."""

from __future__ import annotations

import ast
from pathlib import Path

import apexrl
from apexrl import _native


def test_stub_names_equal_the_module():
    tree = ast.parse((Path(apexrl.__file__).parent / "_native.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            declared = {item.name for item in node.body if isinstance(item, ast.FunctionDef) and item.name[0] != "_"}
            declared |= {item.targets[0].id for item in node.body if isinstance(item, ast.Assign)}  # members of an enum
            actual = {name for name in vars(getattr(_native, node.name)) if not name.startswith("_")}
            assert declared == actual, node.name
    declared = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    declared |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert declared == {name for name in vars(_native) if not name.startswith("_")}
