"""The option and the function that all commands with a maintenance task share."""

from typing import TYPE_CHECKING

import click

from s3notify_platform.cli.printing import confirm, print_json, say_wrapped

if TYPE_CHECKING:
    from s3notify_platform.maintenance.task import Report, Task

dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")


def carry_out(task: "Task", *, dry_run: bool, as_json: bool, yes: bool = True) -> None:
    """Run the task and print its report; with `dry_run`, only print its plan. Exit code 1 if work is left, or if a part
    of the plan could not be made.

    Without `yes`, a task that needs a confirmation prints its plan and asks, unless there is nothing to do. With
    `as_json`, plan and question go to stderr.
    """
    if not dry_run and not yes and task.asks:
        planned = task.plan()
        if not planned.nothing:
            for line in planned.lines:
                say_wrapped(line, err=as_json)
            confirm(task.asks, err=as_json)
    done = task.plan() if dry_run else task.run()
    _show(done, dry_run=dry_run, as_json=as_json)
    if done.left:
        raise click.exceptions.Exit(1)


def _show(report: "Report", *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({**report.document, "dry_run": dry_run})
    else:
        for line in report.lines:
            say_wrapped(line)
