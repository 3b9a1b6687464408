"""Plays environments with verifiers 0.1: `play_classic.py URL NAME...`; prints their rewards as one JSON document."""

import importlib
import json
import os
import sys


def main(url: str, names: list[str]) -> None:
    os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
    from verifiers.types import ClientConfig

    client = ClientConfig(api_base_url=url, api_key_var="OPENAI_API_KEY")
    rewards = {}
    for name in names:
        environment = importlib.import_module(name).load_environment()
        played = environment.evaluate_sync(client, "scripted", rollouts_per_example=1)
        rewards[name] = [each["reward"] for each in played["outputs"]]
    print(json.dumps(rewards))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
