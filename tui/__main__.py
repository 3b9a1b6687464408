"""Starts the console: `python -m tui [--run NAME | --key FILE | --playback RUN|FILE|@demo] [--read-only] [--ascii]
[--theme dark|light]`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from agentrl.errors import AgentrlError, ExitCode, UsageError
from agentrl.import_interrupts import quiet_interrupts


def main() -> int:
    parser = argparse.ArgumentParser(prog="agentrl tui", description="The operator's console.")
    parser.add_argument("--run", metavar="NAME")
    parser.add_argument("--key", metavar="FILE")
    parser.add_argument("--playback", metavar="RUN|FILE|@demo", help="play a recording instead of showing a run")
    parser.add_argument("--at", metavar="TIME", default="", help="where to begin, such as 14:05 or 2030-01-31T14:05")
    parser.add_argument("--speed", metavar="X", type=float, default=1.0)
    parser.add_argument("--read-only", action="store_true", help="show everything, change nothing")
    parser.add_argument("--ascii", action="store_true", help="use ASCII characters only")
    parser.add_argument("--no-color", action="store_true")
    parser.add_argument("--theme", choices=("dark", "light"), default=None)
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument("--serve", metavar="ADDRESS", help="serve the console to browsers on this host, read-only")
    parser.add_argument("--writable", action="store_true", help="with --serve: allow commands, too")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    # For the console of one browser page: Textual's driver for browsers replaces the terminal.
    parser.add_argument("--in-browser", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        return _serve(args) if args.serve else _run(args)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except AgentrlError as error:
        if args.json:
            print(json.dumps(error.document()), flush=True)
        else:
            print(f"agentrl: {error}", file=sys.stderr)
        return error.exit_code


def _serve(args: argparse.Namespace) -> int:
    """Serve pages; each has a console with the same options."""
    try:
        with quiet_interrupts():
            import asyncio

            from tui.serving import web_server
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"The console for browsers needs {missing.name}.", hint="Install it: pip install 'agentrl[web]'."
        ) from missing
    from agentrl.client.discovery import find
    from tui import preferences, recording_lookup

    # Faults are reported here, and not in the first page.
    preferences.load(preferences.path())
    if args.playback:
        recording_lookup.link(args.playback, args.at, args.speed)
    else:
        target = find(args.run, key_file=args.key)
        if target.state_dir is not None and not os.environ.get("AGENTRL_STATE_DIR"):
            # An address keeps showing the same run, even if other runs come up or end later.
            args.run = target.state_dir.name
    asyncio.run(web_server.serve(args.serve, options_of_page(args), as_json=args.json))
    return ExitCode.OK


def options_of_page(args: argparse.Namespace) -> list[str]:
    valued = (("--run", args.run), ("--key", args.key), ("--playback", args.playback), ("--theme", args.theme))
    options = [f"{name}={value}" for name, value in valued if value]
    options += [f"--at={args.at}", f"--speed={args.speed:g}"] if args.playback else []
    flags = (
        ("--read-only", args.read_only or not args.writable),
        ("--ascii", args.ascii),
        ("--no-color", args.no_color),
        ("--no-mouse", args.no_mouse),
    )
    return options + [name for name, wanted in flags if wanted]


def _run(args: argparse.Namespace) -> int:
    if args.in_browser:
        from tui.serving.console_process import end_with_parent

        end_with_parent()
    # Textual draws on stderr, so that stdout may be redirected.
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("The console needs a terminal.", hint="Programs use `agentrl status --follow --json`.")
    colour = not (args.no_color or os.environ.get("NO_COLOR"))
    if colour:
        # An empty value means "unset", but Textual only checks whether the variable exists.
        os.environ.pop("NO_COLOR", None)
    else:
        os.environ["NO_COLOR"] = "1"
    with quiet_interrupts():
        from tui import preferences, recording_lookup, run_list
        from tui.app import Console
        from tui.console_interface import Settings
        from tui.run_list import Place

    own = preferences.load(preferences.path())
    place = Place(args.run or "", args.key or "")
    # A missing run or recording is reported before the screen is drawn.
    link = recording_lookup.link(args.playback, args.at, args.speed) if args.playback else run_list.link(place)
    settings = Settings(
        read_only=args.read_only,
        ascii_only=args.ascii or own.ascii,
        theme=f"agentrl-{args.theme or own.theme or 'dark'}",
        colour=colour,
        colours={theme: dict(found) for theme, found in own.colours.items()},
        keys={id: tuple(keys) for id, keys in own.keys.items()},
        target_options=place.options,
        local=not args.key and not args.playback,
        in_browser=args.in_browser,
        key_files=tuple(
            filter(None, (args.key, os.environ.get("AGENTRL_KEY"), *map(os.path.expanduser, own.key_files)))
        ),
    )
    app = Console(link, settings)
    code = app.run(mouse=not args.no_mouse)
    return ExitCode.FAILED if app.return_code and code is None else int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
