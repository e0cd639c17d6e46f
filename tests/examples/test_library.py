"""The notebook, run cell by cell as Jupyter does, and the code of the page on the library: both show what they say."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "library.ipynb"


def run(source: str, names: dict[str, Any]) -> Any:
    """Execute a cell; the value of its last expression, which Jupyter would show."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)


@pytest.mark.slow
def test_the_notebook_loads_a_policy_runs_episodes_scores_and_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(mpl.rcParams, "backend", "agg")
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells), "clear the outputs: they would age"
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run("".join(cell["source"]), names) for cell in cells]
    _, question, _, episode, scores, means = shown
    assert question.text in episode._repr_html_()
    assert "holds" in scores._repr_html_()
    assert len(names["episodes"]) == len(names["questions"]) >= 30
    assert sorted(means) == [1, 2, 3]
    assert means[1] > 0.5 > max(means[2], means[3]), "what the notebook says of one search"
    assert len(names["axes"].patches) == 3


def test_the_code_of_the_page_runs_an_episode_and_scores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "library.md").read_text(), re.M | re.S)
    model = "models/SmolLM2-135M-Instruct"
    assert model in code
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "title": "Zebra", "text": "Ada Lind founded its maker."}\n')
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code.replace(model, str(ROOT / "assets" / "world_base")), names)
    assert names["episode"].status == "answered"
    assert [hit.document.id for hit in names["episode"].turns[0].hits] == ["a"]
    assert names["row"]["searches"] == 1
    assert names["scores"].outcome_B.tolist() == pytest.approx([names["row"]["f1"]])
