"""Skeletons: what an import would say of a signature, read from the source without one."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pipeline.skeletons import Unread, reading

SOURCE = """
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal
from torch import Tensor, nn
import torch
from tests.toys import Limits, Piece
if TYPE_CHECKING:
    from somewhere import Hidden

Kind = Literal["a", "b"]
FIRST, SECOND = 1, 2
raise RuntimeError("nothing of this runs")

class Base(nn.Module):
    role = "eval"
    def __init__(self, piece: Piece, *, kind: Kind = "a", count: int = SECOND, more: Hidden = torch.zeros(2)) -> None:
        raise RuntimeError

class Child(Base):
    def make(self): ...

@dataclass(frozen=True)
class Settings:
    name: ClassVar[str] = "x"
    limits: Limits
    sizes: list[int] = field(default_factory=lambda: [1])

@torch.no_grad()
def score(x: Tensor | None, *, by: Callable[[Tensor], Tensor], **rest: int): ...

@nowhere
def changed(x): ...

Made = score(None)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "one_s_own.py"
    path.write_text(SOURCE)
    return path


def test_classes_and_functions_have_their_signatures_and_nothing_runs(module: Path) -> None:
    with reading() as skeletons:
        child = skeletons.locate("one_s_own:Child")
        assert str(inspect.signature(child)) == (
            "(piece: 'Piece', *, kind: 'Kind' = 'a', count: 'int' = 2, more: 'Hidden' = Ellipsis) -> 'None'"
        )
        assert child.role == "eval"
        assert {"make", "role"} <= set(dir(child))
        assert not hasattr(child, "merge")  # though a base is of a library
        assert issubclass(child, skeletons.locate("one_s_own:Base"))
        settings = inspect.signature(skeletons.locate("one_s_own:Settings")).parameters
        assert list(settings) == ["limits", "sizes"]
        assert settings["limits"].default is inspect.Parameter.empty
        assert list(inspect.signature(skeletons.locate("one_s_own:score")).parameters) == ["x", "by", "rest"]
        names = skeletons.module("one_s_own")
        assert eval("Kind", names, names).__args__ == ("a", "b")
        assert eval("Piece", names, names) is skeletons.locate("tests.toys:Piece")
        with pytest.raises(NameError):
            eval("Hidden", names, names)  # for the type checker alone: an import would not find it either
    assert not {"one_s_own", "<one_s_own>"} & sys.modules.keys()


@pytest.mark.parametrize("target", ["one_s_own:changed", "one_s_own:Made", "one_s_own:Gone", "one_s_own:nn", "gone:X"])
def test_what_only_an_import_could_explain_is_left_to_it(module: Path, target: str) -> None:
    with reading() as skeletons, pytest.raises(Unread):
        skeletons.locate(target)


@pytest.mark.parametrize("code", ["def (:", "import not_installed_anywhere", "from tests.not_there import X"])
def test_a_module_that_cannot_be_imported_is_not_read(module: Path, code: str) -> None:
    module.write_text(f"class Thing: ...\n{code}\n")
    with reading() as skeletons, pytest.raises(Unread):
        skeletons.locate("one_s_own:Thing")


def test_an_edited_module_is_read_again(module: Path) -> None:
    for arguments in ("a", "a, b"):
        module.write_text(f"def make({arguments}): ...\n")
        with reading() as skeletons:
            assert str(inspect.signature(skeletons.locate("one_s_own:make"))) == f"({arguments})"


@pytest.mark.parametrize(
    "target",
    [
        "lightning.pytorch.callbacks:ModelCheckpoint",
        "callbacks.rollout:RolloutCallback",
        "datamodules.sources.hotpotqa:HotpotQA",
        "evaluation.evaluate:Benchmark",
        "modules.grpo:GRPO",
        "modules.lora:LoRA",
        "modules.policy:load_policy",
    ],
)
def test_a_signature_is_that_of_the_import(target: str) -> None:
    def shape(target: object) -> list[tuple[str, object, bool]]:
        parameters = inspect.signature(target).parameters.values()  # type: ignore[arg-type]
        return [(each.name, each.kind, each.default is each.empty) for each in parameters]

    path, _, name = target.partition(":")
    with reading() as skeletons:
        assert shape(skeletons.locate(target)) == shape(getattr(import_module(path), name))
