"""Take the pictures of the documentation from a run's page: overview, an episode, a tree, two arms.

    python examples/pictures.py runs/quickstart/seed0

It drives Chromium (`apt install chromium`) through Playwright, of the development requirements.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import ConfigError, DataError, UserError
from common.terminal import print_error
from evaluation.report.page import write_page
from evaluation.report.view import find_runs

_FORM = """const form = document.getElementById('filters');
        const filter = () => form.dispatchEvent(new Event('input'));
        const choose = (select, stage) => {
            const found = [...select.options].find((one) => one.text === (names[stage] ?? stage));
            if (!found) throw new Error(stage);
            select.value = found.value; };
        const unfold = (one) => { one.open = true; one.dispatchEvent(new Event('toggle')); };"""
# By picture: its height, and what is done on the page before it is taken. An episode is shown to its end.
_SCENES = {
    "overview": (1060, "scrollTo(0, 0)"),
    "episode": (
        1040,
        """
        choose(form.arm, 'eval_rl'); form.outcome.value = 'wrong'; filter();
        const question = document.querySelector('#list > :not([hidden])');
        unfold(question); question.scrollIntoView()""",
    ),
    "tree": (
        1180,
        """
        const tree = document.querySelector('details.t'); unfold(tree);
        tree.querySelectorAll('details').forEach(unfold); tree.scrollIntoView()""",
    ),
    "two_arms": (
        1760,
        """
        form.reset(); choose(form.arm, 'eval_sft'); choose(form.against, 'eval_rl');
        form.differ.checked = true; filter();
        const first = document.querySelector('#list > :not([hidden])'); unfold(first); form.scrollIntoView()""",
    ),
}


def take(page: Path, folder: Path, chromium: str, names: Mapping[str, str]) -> list[Path]:
    """Write `page_<name>.png` for every picture; returns their paths. `names` are the display names of stages.

    Raises:
        DataError: the page lacks what a picture is of.
    """
    from playwright.sync_api import Error, sync_playwright

    paths: list[Path] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (height, scene) in _SCENES.items():
            shown = browser.new_page(viewport={"width": 1100, "height": height}, color_scheme="light")
            shown.set_default_timeout(120_000)
            shown.goto(page.resolve().as_uri())
            try:
                shown.evaluate(f"(names) => {{ {_FORM} {scene} }}", dict(names))
            except Error:
                raise DataError(
                    f"{page} has nothing for the picture {name}: take one of configs/quickstart.yaml"
                ) from None
            paths.append(folder / f"page_{name}.png")
            shown.screenshot(path=paths[-1])
        browser.close()
    return paths


def main(arguments: Sequence[str]) -> int:
    """Make the run's page anew and take its pictures; 1 for any error, 0 at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="runs/<experiment>/seed<k>")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), metavar="FOLDER", help="docs/pictures")
    options = parser.parse_args(arguments)
    try:
        chromium = shutil.which("chromium")
        if chromium is None:
            raise ConfigError("no Chromium on this machine: apt install chromium")
        run, *others = find_runs(options.run)
        if others:
            raise ConfigError(f"{options.run} has several seeds: name one of them, {options.run}/seed0 say")
        write_page(run.folder / "report.html", [run])
        options.out.mkdir(parents=True, exist_ok=True)
        print(*take(run.folder / "report.html", options.out, chromium, run.names), sep="\n")
    except UserError as error:
        print_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
