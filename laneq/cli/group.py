"""The root command, the options that all commands share, and groups of verbs.

Errors end here: a LaneqError is one line on stderr and an exit status from
`laneq.cli.status`; anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import click

from laneq.cli.report import print_json
from laneq.cli.settings import Settings
from laneq.cli.status import Status, status_of
from laneq.errors import LaneqError, suggest

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that is not imported yet: where it is, and its line in the help."""

    module: str
    help: str


#: Name → command, in the order of the help. A test compares the lines.
COMMANDS: Final = {
    "dev": Entry("laneq.cli.dev", "Start a private server and a worker, for development."),
    "worker": Entry("laneq.cli.worker", "Run jobs until told to stop."),
    "enqueue": Entry("laneq.cli.enqueue", "Enqueue a job by the name of its task."),
    "lanes": Entry("laneq.cli.lanes", "Look at and steer lanes."),
    "jobs": Entry("laneq.cli.jobs", "Look at and steer jobs."),
    "dead": Entry("laneq.cli.dead", "Look at, retry and purge jobs that were given up on."),
    "workers": Entry("laneq.cli.workers", "Look at live workers."),
    "health": Entry(
        "laneq.cli.health", "Tell whether work can be enqueued, claimed and acknowledged."
    ),
    "check": Entry("laneq.cli.check", "Prove that the books balance and that nothing is broken."),
    "doctor": Entry("laneq.cli.doctor", "Say what is wrong, by which figures, and what mends it."),
    "size": Entry("laneq.cli.size", "Say how many slots to reserve, and to have."),
    "plan": Entry("laneq.cli.plan", "Simulate a pool before paying for it."),
    "bench": Entry("laneq.cli.bench", "Measure laneq on this machine."),
}


# --- shared options ---------------------------------------------------------


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None or param.name is None:
        return
    if not value:
        # Of a variable that is not set, most likely: the default would be another place.
        raise click.BadParameter("is empty. Leave the option out for the default.", ctx, param)
    ctx.ensure_object(Settings).given[param.name] = value


def _note_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001
    if value:
        ctx.ensure_object(Settings).wants_json = True


def _setting(flag: str, metavar: str, text: str) -> Callable[[F], F]:
    """Return an option that is noted in the settings, wherever on the line it is given."""
    return click.option(
        flag, metavar=metavar, expose_value=False, callback=_note, is_eager=True, help=text
    )


_URL: Final = _setting("--url", "URL", "Address of Redis [env: LANEQ_URL].")
_NAMESPACE: Final = _setting(
    "--namespace", "NAME", "The queue system in that Redis [env: LANEQ_NAMESPACE]."
)
_APP: Final = _setting(
    "--app", "MODULE:ATTR", "The app, also as MODULE or path/file.py [env: LANEQ_APP]."
)
_JSON: Final = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_note_json,
    is_eager=True,
    help="Print one JSON document on stdout.",
)


def where_options(command: F) -> F:
    """Let a command take --url, --namespace and --app too, after its name."""
    return _URL(_NAMESPACE(_APP(command)))


def data_options(command: F) -> F:
    """Let a command take --json, and the options of `where_options`."""
    return where_options(_JSON(command))


# --- groups -----------------------------------------------------------------


def _no_such_command(ctx: click.Context, name: str, known: Sequence[str]) -> NoReturn:
    raise click.UsageError(f"no command {name!r}. {suggest(name, known)}", ctx)


class NounGroup(click.Group):
    """The verbs of one noun; with none given it is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front where no verb is given."""
        if self._has_no_verb(args):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def _has_no_verb(self, args: list[str]) -> bool:
        flags = {"--json"}
        with_value = {"--url", "--namespace", "--app"}
        rest = iter(args)
        for arg in rest:
            if arg == "--help":
                return False
            if not arg.startswith("-"):
                return False
            if arg in with_value:
                next(rest, None)
            elif arg not in flags and arg.partition("=")[0] not in with_value:
                return True  # an option of `list`
        return True

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or suggest the nearest."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            _no_such_command(ctx, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their first line whole."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, _first_line(command)) for name, command in commands if command]
            )


def _first_line(command: click.Command) -> str:
    return (command.help or "").partition("\n")[0]


class Root(click.Group):
    """The ``laneq`` command: imports commands when they are used, and ends them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return all names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            _no_such_command(ctx, args[0], list(COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002, FBT001, FBT002  click's signature
        **extra: Any,
    ) -> NoReturn:
        """Run the command line and exit with its status."""
        settings = Settings()
        try:
            answer = super().main(
                args,
                prog_name or "laneq",
                complete_var,
                standalone_mode=False,
                obj=settings,
                **extra,
            )
            # click gives back the status of ctx.exit, else what the command returned.
            status = answer if isinstance(answer, int) else Status.DONE
        except click.ClickException as error:
            error.show()
            _print_error(settings, error, error.exit_code)
            status = error.exit_code
        except click.Abort:
            status = Status.INTERRUPTED
        except LaneqError as error:
            status = status_of(error)
            click.echo(f"laneq: {error}", err=True)
            _print_error(settings, error, status)
        sys.exit(status)


def _print_error(settings: Settings, error: Exception, status: int) -> None:
    if settings.wants_json:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        kind = type(error).__name__
        print_json({"error": {"type": kind, "message": message, "exit_status": int(status)}})


@click.group(
    "laneq",
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings: command line, then the app, then the environment, then [tool.laneq] in the "
    "nearest pyproject.toml.  Exit status: 0 done, 1 bad news, 2 wrong usage, 3 no Redis, "
    "130 interrupted.",
)
@where_options
@click.version_option(package_name="laneq-redis", prog_name="laneq")
def main() -> None:
    """Run and steer jobs in priority lanes on Redis."""
