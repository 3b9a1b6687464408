"""The agent configuration file of AgentCPM (`rollout.agent_config`): its judge and summaries as sections of ours.

Invariants:
- The file is used unchanged; values of the run file in `models`, `judges` and `summaries` have priority.
- An API key in the file is moved to a separate file that only the user may read; no configuration contains it.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import yaml

from agentrl.config import paths
from agentrl.config.extended_files import Written
from agentrl.config.secrets import is_reference
from agentrl.config.typed_paths import path_of
from agentrl.errors import ConfigError

JUDGES = ("agentcpm", "asearcher")
"""The names of scorers for which the judge is used; the second is an older name for the first."""
JUDGE_MODEL, BROWSE_MODEL = "agentcpm_judge", "agentcpm_browse"
CHARS_OF_A_TOKEN = 4
_AT = ("rollout", "agent_config")
_PLACES = {"question": "{query}", "labeled_answer": "{truth}", "pred_answer": "{answer}"}
_VERDICT = "\n\nWhatever is said above about the form: end with one line, VERDICT: CORRECT or VERDICT: WRONG\n"


def fill_in(written: Written, base: Path) -> None:
    """Add the sections of the file to the tree of the run file. Raises ConfigError."""
    rollout = written.value.get("rollout")
    named = rollout.get("agent_config") if isinstance(rollout, dict) else None
    if not isinstance(named, str) or not named:
        return
    path = Path(os.path.normpath(written.directories.get(_AT, base) / path_of(named)))
    for section, found in sections_of(path, written.sources.get(_AT, "rollout.agent_config")).items():
        own = written.value.setdefault(section, {})
        if isinstance(own, dict):
            for key, value in found.items():
                if key not in own:
                    own[key] = value
                    written.sources[(section, key)] = path.name
                    written.directories[(section, key)] = path.parent


def sections_of(path: Path, where: str) -> dict[str, dict[str, Any]]:
    """The equivalent sections of a run file."""
    whole = _read(path, where)
    models: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {"models": models}
    if judge := _section(whole, "scorer_agent", path, where):
        models[JUDGE_MODEL] = _services(judge, "scorer_agent", path, where)
        template = _template(judge.get("judge_prompt_template"))
        found["judges"] = {name: {"model": JUDGE_MODEL, "template": template} for name in JUDGES}
    if browse := _section(whole, "browse_agent", path, where):
        models[BROWSE_MODEL] = _services(browse, "browse_agent", path, where)
        found["summaries"] = _summaries(browse)
    if not models:
        raise ConfigError(f"{where}: {path.name} has neither scorer_agent nor browse_agent.")
    return found


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        whole = yaml.safe_load(path.read_bytes())
    except OSError as refused:
        raise ConfigError(f"{where}: {path} cannot be read: {refused.strerror}.") from None
    except yaml.YAMLError as wrong:
        raise ConfigError(f"{where}: {path.name} is no YAML: {' '.join(str(wrong).split())}.") from None
    if not isinstance(whole, dict):
        raise ConfigError(f"{where}: {path.name} has neither scorer_agent nor browse_agent.")
    return whole


def _section(whole: dict[str, Any], name: str, path: Path, where: str) -> dict[str, Any] | None:
    section = whole.get(name)
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{where}: {path.name}: {name} must be a section.")
    return section


def _services(section: dict[str, Any], name: str, path: Path, where: str) -> list[dict[str, Any]]:
    listed = section.get("models")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{where}: {path.name}: {name}.models must list at least one model.")
    services = []
    for number, given in enumerate(listed, 1):
        missing = [key for key in ("base_url", "model") if not (isinstance(given, dict) and given.get(key))]
        if missing:
            raise ConfigError(f"{where}: {path.name}: model {number} of {name} has no {missing[0]}.")
        services.append(
            {
                "url": str(given["base_url"]).rstrip("/"),
                "model": str(given["model"]),
                "timeout_s": section.get("timeout", 60),
                **({"key": _reference(str(given["api_key"]))} if given.get("api_key") else {}),
                **({"more": section["extra_body"]} if section.get("extra_body") else {}),
            }
        )
    return services


def _reference(key: str) -> str:
    if is_reference(key):
        return key
    folder = paths.cache() / "keys"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = folder / hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
    if not place.exists():
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(key)
    return f"file:{place}"


def _template(given: object) -> str:
    """A template of `str.format` with the place names of our judges; empty if there is none."""
    if not isinstance(given, str) or not given.strip():
        return ""
    text = re.sub(r"\{(question|labeled_answer|pred_answer)\}", lambda found: _PLACES[found[1]], given)
    return text.replace("{{", "{ ").replace("}}", " }").rstrip() + _VERDICT


def _summaries(section: dict[str, Any]) -> dict[str, Any]:
    purposes = section.get("default_purpose")
    purpose = next(iter(purposes.values()), "") if isinstance(purposes, dict) else purposes
    found = {
        "on": bool(section.get("status", True)),
        "model": BROWSE_MODEL,
        "tools": list(section.get("browse_tools") or ()),
        "longer_than": int(section.get("min_prompt_length", 1_000)) * CHARS_OF_A_TOKEN,
        "most_read": int(section.get("max_prompt_length", 15_000)) * CHARS_OF_A_TOKEN,
    }
    return found | ({"purpose": str(purpose)} if purpose else {})
