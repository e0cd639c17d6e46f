"""The API site, built by the command of `make docs`: a page for every module, without a warning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_structure import FILES, ROOT

NOT_BUILT = ROOT / "modules" / "samplers" / "vllm" / "weight_files.py"  # vLLM is in another environment


@pytest.mark.slow
def test_every_module_has_a_page(tmp_path: Path) -> None:
    [command] = re.findall(r"^docs: setup\n\t\$\(BIN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.M)
    arguments = shlex.split(command.replace("--output-directory site", f"--output-directory {tmp_path}"))
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    made = {page.relative_to(tmp_path).with_suffix("").as_posix() for page in tmp_path.rglob("*.html")}
    modules = {path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__") for path in FILES}
    assert modules - made == {NOT_BUILT.relative_to(ROOT).with_suffix("").as_posix()}
    tool = (tmp_path / "envs" / "interfaces.html").read_text()
    assert "Answers a query that is no search" in tool
    assert '<h6 id="raises">Raises</h6>' in tool or "Raises:" in tool
