"""The table of targets: its rows are complete, and no other code refers to targets by name."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name

import pytest

import vpps
from vpps.errors import HandleError
from vpps.targets import TARGETS, Hook, Target, present_target, target_named

pytestmark = pytest.mark.host

OTHER_MEANINGS = {
    "runtime/cores.py": "a controller of cgroups",
    "runtime/driver.py": "a package",
    "kernel/simt_compiler.py": "a folder of templates",
    **dict.fromkeys(
        [f"torch/{name}.py" for name in "chains function module on_device recurrent state".split()],
        "a device of PyTorch",
    ),
}


def texts(source: str) -> set[str]:
    """Return the strings of a module."""
    return {n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_only_the_table_names_targets() -> None:
    folder = Path(vpps.__file__).parent
    modules = {str(path.relative_to(folder)): path for path in folder.rglob("*.py")}
    naming = {name for name, path in modules.items() if texts(path.read_text("utf-8")) & {*TARGETS}}
    assert naming == {"targets.py", *OTHER_MEANINGS}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_hooks_are_functions(target: Target) -> None:
    hooks = [getattr(target, field.name) for field in fields(target)]
    for hook in hooks:
        if isinstance(hook, Hook) and hook:
            assert callable(resolve_name(hook.place))
    assert target.machine
    assert all((target.device, target.render, target.compile)) == target.is_gpu


def test_a_machine_has_the_name_of_its_row() -> None:
    for name, target in TARGETS.items():
        assert resolve_name(target.machine.place.rpartition(".")[0]).target == name


def test_names() -> None:
    assert target_named("cpu").name == "cpu"
    with pytest.raises(HandleError, match="target='hip': expected 'cpu', 'cuda' or 'simt'"):
        target_named("hip")
    with pytest.raises(HandleError, match=r"target=\['cpu'\]: expected"):
        target_named(["cpu"])


def test_automatic_is_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpps.runtime.driver.why_cuda_is_unusable", lambda: "there is no GPU")
    assert present_target().name == "cpu"
    monkeypatch.setattr("vpps.runtime.driver.why_cuda_is_unusable", lambda: None)
    assert present_target().name == "cuda"
