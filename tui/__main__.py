"""`python -m tui [--run NAME | --key FILE | --replay RUN|FILE] [--read-only] [--ascii] [--theme dark|light]`."""

from __future__ import annotations

import argparse
import os
import sys

from agentrl.errors import AgentrlError, ExitCode, UsageError


def main() -> int:
    parser = argparse.ArgumentParser(prog="agentrl tui", description="The operator's console.")
    parser.add_argument("--run", metavar="NAME")
    parser.add_argument("--key", metavar="FILE")
    parser.add_argument("--replay", metavar="RUN|FILE", help="play a recording in the place of a run")
    parser.add_argument("--at", metavar="TIME", default="", help="where to begin, as 14:05 or 2030-01-31T14:05")
    parser.add_argument("--speed", metavar="X", type=float, default=1.0)
    parser.add_argument("--read-only", action="store_true", help="show everything, change nothing")
    parser.add_argument("--ascii", action="store_true", help="ASCII signs only")
    parser.add_argument("--no-color", action="store_true")
    parser.add_argument("--theme", choices=("dark", "light"), default=None)
    args = parser.parse_args()
    try:
        return _run(args)
    except AgentrlError as error:
        print(f"agentrl: {error}", file=sys.stderr)
        return error.exit_code


def _run(args: argparse.Namespace) -> int:
    # Textual draws on stderr, so that stdout may lead elsewhere.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "The console needs a terminal.", hint="`agentrl status --watch --json` tells a program the same."
        )
    colour = not (args.no_color or os.environ.get("NO_COLOR"))
    if colour:
        # Set to nothing it means nothing, but Textual asks only whether it is set.
        os.environ.pop("NO_COLOR", None)
    else:
        os.environ["NO_COLOR"] = "1"
    from tui import preferences, recordings, runs
    from tui.app import Console, Settings
    from tui.model.runs import Place

    own = preferences.load(preferences.path())
    place = Place(args.run or "", args.key or "")
    # What does not exist is told before the screen is taken.
    link = recordings.link(args.replay, args.at, args.speed) if args.replay else runs.link(place)
    settings = Settings(
        read_only=args.read_only,
        ascii_only=args.ascii or own.ascii,
        theme=f"agentrl-{args.theme or own.theme or 'dark'}",
        colour=colour,
        keys={id: tuple(keys) for id, keys in own.keys.items()},
        aim=place.options,
        local=not args.key and not args.replay,
        key_files=tuple(
            filter(None, (args.key, os.environ.get("AGENTRL_KEY"), *map(os.path.expanduser, own.key_files)))
        ),
    )
    app = Console(link, settings)
    code = app.run()
    return ExitCode.FAILED if app.return_code and code is None else int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
