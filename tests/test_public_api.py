"""What the package promises as a whole: layers, public names, docstrings, dependencies."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kvarray

# A module imports only modules that stand before it.
LAYERS = [
    "errors", "arrays", "units", "ragged", "index", "hashing", "fitting", "timeline", "link", "economics", "policies",
    "trace", "reuse", "block", "prefix", "tier", "migrate", "stepping", "deploy", "grid", "demo", "plot", "cli",
    "__main__",
]  # fmt: skip
FOLDER = Path(kvarray.__file__).parent


def _layer(path: Path) -> str:
    return path.relative_to(FOLDER).parts[0].removesuffix(".py")


SOURCES = sorted(FOLDER.rglob("*.py"))
MODULES = [path for path in SOURCES if path.stem not in ("__init__", "__main__")]


def _imports(path: Path):
    """Names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            yield node.module
            if node.module == "kvarray":
                yield from (f"kvarray.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_module_imports_only_lower_layers(path):
    here = _layer(path)
    if here == "__init__":
        return
    assert here in LAYERS, f"{here} has no place in the layers"
    for name in _imports(path):
        if name == "kvarray" and here in ("cli", "__main__"):
            continue
        if name.split(".")[0] == "kvarray":
            there = name.split(".")[1] if "." in name else "__init__"
            if there == here:  # within a folder
                continue
            assert there in LAYERS, f"{path.name} imports {name}"
            assert LAYERS.index(there) < LAYERS.index(here), f"{path.name} imports {name}"


def test_importing_kvarray_brings_numpy_alone():
    probe = (
        "import sys, sysconfig; import numpy; before = set(sys.modules); import kvarray;"
        "[getattr(kvarray, name) for name in kvarray.__all__];"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'kvarray', 'numpy'}))"
    )
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_type_checkers_see_the_names_that_are_there():
    stub = ast.parse((FOLDER / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert sorted(homes) == kvarray.__all__
    for name, home in homes.items():
        assert getattr(importlib.import_module(home), name) is getattr(kvarray, name)


def test_names_that_are_not_there():
    assert kvarray.reuse.hit_curve is kvarray.hit_curve
    assert set(kvarray.__all__) <= set(dir(kvarray))
    with pytest.raises(AttributeError, match="module 'kvarray' has no attribute 'hit_curves'"):
        kvarray.hit_curves  # noqa: B018


def test_public_names_are_there_and_documented():
    assert len(set(kvarray.__all__)) == len(kvarray.__all__)
    for name in kvarray.__all__:
        public = getattr(kvarray, name)
        if inspect.isclass(public) or inspect.isfunction(public):
            assert inspect.getdoc(public), name
            assert name in importlib.import_module(public.__module__).__all__


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_each_module_names_what_is_public(path):
    module = importlib.import_module(".".join(("kvarray", *path.relative_to(FOLDER).with_suffix("").parts)))
    assert module.__doc__, path.name
    defined = {
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    assert defined <= set(module.__all__), defined - set(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_public_functions_and_methods_have_docstrings(path):
    module = importlib.import_module(".".join(("kvarray", *path.relative_to(FOLDER).with_suffix("").parts)))
    for name in module.__all__:
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or value.__module__ != module.__name__:
            continue
        assert value.__doc__, name
        for method, member in vars(value).items() if inspect.isclass(value) else ():
            if not method.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{method}"
