"""The address of a MongoDB outside of the run (`mongo.url`), and how the coordinator passes it to other hosts.

Invariants:
- Only the coordinator reads the reference, and the files that the URL names. Other hosts get the contents, and keep
  them in files of mode 0600 of their own.
- No error message contains the URL, because the URL may contain a password.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from agentrl.config.secrets import SecretRef, resolve_secret
from agentrl.errors import ConfigError

FILE_OPTIONS = ("tlsCAFile", "tlsCertificateKeyFile", "tlsCRLFile")
"""Options of a URL whose values are paths of files."""
_PLAIN_NAME = {name.lower(): name for name in FILE_OPTIONS}


@dataclasses.dataclass(frozen=True, slots=True)
class OutsideDatabase:
    """The URL as it is on the coordinator's host, and the text of each file that it names, by option."""

    url: str = dataclasses.field(repr=False)
    files: Mapping[str, str] = dataclasses.field(repr=False)


def read(reference: SecretRef, environ: Mapping[str, str] | None = None) -> OutsideDatabase:
    """The URL and the content of its files. Raises ConfigError if the URL or a file that it names is missing."""
    url = resolve_secret(reference, environ)
    files = {}
    for option, value in _options(url):
        if name := _PLAIN_NAME.get(option.lower()):
            path = unquote(value)
            try:
                files[name] = Path(path).read_text()
            except (OSError, UnicodeDecodeError) as failed:
                why = failed.strerror if isinstance(failed, OSError) else "it is not text"
                raise ConfigError(
                    f"The URL of mongo.url names {path} as {name}, which cannot be read: {why}.",
                    hint="The file must be on the host of the coordinator; the other hosts get it from there.",
                ) from None
    return OutsideDatabase(url, files)


def moved(database: OutsideDatabase, folder: Path) -> tuple[str, dict[Path, str]]:
    """The URL with its files in this folder, and the content of each file."""
    files = {folder / f"{name}.pem": text for name, text in database.files.items()}
    options = [
        (option, quote(str(folder / f"{_PLAIN_NAME[option.lower()]}.pem"), safe=""))
        if _PLAIN_NAME.get(option.lower()) in database.files
        else (option, value)
        for option, value in _options(database.url)
    ]
    before, mark, _ = database.url.partition("?")
    return before + mark + "&".join(f"{option}={value}" for option, value in options), files


def _options(url: str) -> list[tuple[str, str]]:
    """The options of a URL. Does not use `parse_qsl`, which would decode them: the URL must be passed on unchanged."""
    pairs = (each.partition("=") for each in url.partition("?")[2].split("&") if each)
    return [(option, value) for option, _, value in pairs]
