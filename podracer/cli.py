"""The `podracer` command.

Exit status: 0 is success, 1 an error of the program, 2 a setting that is refused, 130 an interruption.
Nothing heavy is imported before it is known what to do.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podracer import jobs

if TYPE_CHECKING:
    from rich.table import Table

    from podracer.runners.evaluator import EvaluationResult

_REFUSED, _INTERRUPTED = jobs.REFUSED, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      arguments: of the command line, without the program; None takes them from the process.

    Returns:
      The exit status.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help", "help"):
        from podracer.reference import overview

        print(overview())
        return 0
    if command in ("-V", "--version"):
        import podracer

        print(f"podracer {podracer.__version__}")
        return 0
    if command not in _COMMANDS:
        print(f"podracer: there is no command {command!r}, but {', '.join(_COMMANDS)}, --help", file=sys.stderr)
        return _REFUSED
    # Parts of the user's own are named by import path, and most often lie where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return _COMMANDS[command](rest)
    except KeyboardInterrupt as interrupt:
        for note in getattr(interrupt, "__notes__", ()):  # threads that did not stop
            print(f"podracer: {note}", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        return jobs.report(error)


def _train(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        from podracer.reference import train_reference

        print(train_reference())
        return 0
    # Who takes a machine away says so by SIGTERM: it ends everything in order, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    import hydra
    from hydra._internal.utils import get_args_parser

    from podracer import composition

    composition.check_overrides(get_args_parser().parse_args(arguments).overrides)
    # Hydra's own report cuts tracebacks short and ends the process; errors are reported here instead.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    main = hydra.main(config_path=None, config_name=composition.PRIMARY, version_base=composition.HYDRA_VERSION_BASE)
    status = 0
    with jobs.Jobs() as started, _program_arguments(arguments):
        try:
            with composition.translated_errors():
                main(jobs.run)()
        except Exception as error:
            # At the end of a sweep Hydra raises the first of the failures, which has been told of; another error is
            # that of a process that died.
            if not started.knows(error):
                status = jobs.report(error)
        failed = started.summarise(is_sweep=bool({"-m", "--multirun"} & set(arguments)))
    return status or failed


def _plan(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "podracer plan",
        description="Shows who acts and who learns, without training; with --calibrate, what would be fastest.",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of podracer train")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--calibrate", action="store_true", help="measure this machine, and propose what is fastest")
    parser.add_argument(
        "--seconds",
        type=_positive,
        default=60.0,
        metavar="S",
        help="about how long to calibrate; by default 60",
    )
    options = parser.parse_args(arguments)

    from podracer.config import load_config

    config = load_config(options.overrides)

    from podracer import runtime
    from podracer.api import make_plan
    from podracer.parallel import plan_table

    runtime.prepare(config)
    if options.calibrate:
        from podracer.calibration import command

        return command.run(config, options.overrides, options.seconds, options.json)
    plan = make_plan(config)
    if options.json:
        print(json.dumps(plan_table.to_json(plan), indent=2))
    else:
        import rich

        rich.print(plan_table.to_table(plan))
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _evaluate(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("podracer evaluate", description="Evaluates the final parameters of a run.")
    parser.add_argument("run_folder", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--episodes", type=int, metavar="N", help="number of episodes; by default as in the run")
    parser.add_argument("--seed", type=int, metavar="S", help="of environments and actions; by default as in the run")
    parser.add_argument("--sample", action="store_true", help="sample actions in place of the most likely ones")
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="WHICH",
        type=_checkpoint_name,
        help="latest (default), best, or a number of updates",
    )
    parser.add_argument("--table", action="store_true", help="show the return and length of every episode")
    options = parser.parse_args(arguments)

    from podracer import runtime
    from podracer.api import evaluate_episodes
    from podracer.loop import evaluation_values

    runtime.enable_compile_cache()
    greedy = False if options.sample else None
    result = evaluate_episodes(
        options.run_folder,
        num_episodes=options.episodes,
        seed=options.seed,
        greedy=greedy,
        which=options.checkpoint,
    )
    if options.table:
        _print_table(_episode_table(result))
    print(json.dumps(evaluation_values(result), indent=2))
    return 0


def _checkpoint_name(text: str) -> int | str:
    if text.isdigit():
        return int(text)
    if text not in ("latest", "best"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither latest nor best nor a number of updates")
    return text


def _episode_table(result: "EvaluationResult") -> "Table":
    from rich.table import Table

    table = Table("episode", "return", "length", header_style="bold", box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for number, (episode_return, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        table.add_row(str(number), f"{episode_return:.6g}", str(length))
    return table


def _runs(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("podracer runs", description="Lists the runs below a folder, oldest first.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("."), metavar="FOLDER", help="by default this one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    from podracer import runs

    try:
        found = runs.find_runs(options.folder)
    except FileNotFoundError as error:
        print(f"podracer: {error}", file=sys.stderr)
        return _REFUSED
    if options.json:
        print(json.dumps(runs.to_json(found), indent=2))
    elif not found:
        print(f"there are no runs below {options.folder}")
    else:
        _print_table(runs.to_table(found, options.folder))
    return 0


def _print_table(table: "Table") -> None:
    import rich.console

    # Into a file or a pipe whole: there is no width to fit in.
    width = None if sys.stdout.isatty() else 10_000
    rich.console.Console(width=width).print(table)


def _plot(arguments: list[str]) -> int:
    from podracer.analysis.command import plot

    return plot(arguments)


def _compare(arguments: list[str]) -> int:
    from podracer.analysis.command import compare

    return compare(arguments, _train)


_COMMANDS = {
    "train": _train,
    "plan": _plan,
    "evaluate": _evaluate,
    "runs": _runs,
    "plot": _plot,
    "compare": _compare,
}


@contextlib.contextmanager
def _program_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads its arguments from the process."""
    saved: Any = sys.argv
    sys.argv = [saved[0], *arguments]
    try:
        yield
    finally:
        sys.argv = saved


if __name__ == "__main__":
    sys.exit(main())
