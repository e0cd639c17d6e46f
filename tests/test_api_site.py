"""The API site, built by the command of `make docs`: a page for every module."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_structure import FILES, ROOT

NOT_BUILT = "modules/samplers/vllm/weight_files"  # it needs vLLM, which is in another environment


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_module_has_a_page(tmp_path: Path) -> None:
    [command] = re.findall(r"^docs: setup\n\t\$\(BIN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.M)
    arguments = shlex.split(command.replace("--output-directory site", f"--output-directory {tmp_path}"))
    assert str(tmp_path) in arguments
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = {page.relative_to(tmp_path).with_suffix("").as_posix() for page in tmp_path.rglob("*.html")}
    names = (path.relative_to(ROOT).with_suffix("").as_posix() for path in FILES)
    modules = {name.removesuffix("/__init__") for name in names if not name.endswith("/__main__")}
    assert modules - made == {NOT_BUILT}
    assert re.findall(r"Couldn't import ([\w.]+)", done.stderr) == [NOT_BUILT.replace("/", ".")]
    tool = (tmp_path / "envs" / "interfaces.html").read_text()
    assert "Answers a query that is no search" in tool
    assert '<h6 id="raises">Raises:</h6>' in tool, "docstrings are read in their format"
