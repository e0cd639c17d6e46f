"""Run an experiment: `train.py --config FILE [--stage NAME …] [--force NAME …] [--dry-run] [key=value …]`."""

from __future__ import annotations

if __name__ == "__main__":  # first, so that Ctrl-C while the rest is imported is one line too
    import pipeline.launcher

    pipeline.launcher.handle_signals()

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from common.errors import ConfigError, DataError
from common.terminal import prepare_terminal, say
from evaluation.report.failure_page import page_on_failure, write_failure_page
from pipeline.command_line import parse
from pipeline.launcher import Ranks, exit_with, handle_signals, launch, needs_launch, process_group, require_gpus
from pipeline.leaks import Leaks
from pipeline.loader import load
from pipeline.loggers import check_loggers, log_summary
from pipeline.plan import Plan
from pipeline.show import preview, shown
from pipeline.stages import announce, record, run_stage


def main(arguments: Sequence[str]) -> int:
    """Load, plan, run, report; 2 for a wrong setting or input, before any work, 1 for any other error, 0 at the end."""
    options = parse(arguments)
    prepare_terminal()
    handle_signals()
    ranks, code = Ranks(), 2
    try:
        configuration = load(options.config, options.overrides)
        if options.show:
            say(shown(options.show, configuration))
            return 0
        if configuration.experiment.accelerator == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # models outside the Trainer stay on the CPU too
        with process_group(configuration.experiment) as ranks:
            launches = needs_launch(configuration.experiment)
            checks = {"contents": options.verify, "imported": not (options.dry_run or launches)}
            choice = {"only": options.stage, "force": options.force}
            plan = ranks.broadcast_from_rank0(lambda: Plan.of(configuration, **choice).checked(**checks))
            ranks.broadcast_from_rank0(lambda: check_loggers(plan))
            leaks = Leaks(plan)
            if options.dry_run:
                leaks.check()
                say(preview(plan))
                return 0
            require_gpus(plan.experiment, needed=not plan.done)
            if launches and not plan.done:
                return launch(Path(__file__), arguments, plan, write_failure_page)
            ranks.broadcast_from_rank0(leaks.check)
            code = 1
            ranks.broadcast_from_rank0(lambda: announce(plan, configuration.question))
            with page_on_failure(plan.folder, alone=ranks.world_size == 1):
                for stage in plan.chosen:
                    run_stage(stage, plan, ranks)
                    ranks.broadcast_from_rank0(leaks.check)
            ranks.broadcast_from_rank0(lambda: write_report(plan, configuration.question))
    except Exception as error:
        ranks.report(error)
        return code if isinstance(error, ConfigError | DataError) else 1
    return 0


def write_report(plan: Plan, question: str) -> None:
    """Write the experiment's pages, which begin with its question, and print its headline table."""
    from evaluation import tensorboard_summary
    from evaluation.report import report

    output, experiment = Path(plan.experiment.output), plan.experiment
    with FileLock(plan.folder / ".report.lock"):  # the same experiment may run in another process
        record(plan, question)
        say(report.write(output, experiment.experiment, experiment.seed, plan.artifacts(), question=question))
        tensorboard_summary.write(plan.folder, plan.settings())
    log_summary(plan)


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
