"""The programs of environments of other packages give the scores that the packages give themselves."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import pytest
import reasoning_gym

from agentrl.adapters.programs import gymnasium_games, reasoning_gym_puzzles


def played(program: Any, row: dict[str, Any], texts: list[str]) -> tuple[Any, list[dict[str, Any]]]:
    play = program.begin(row)
    said = [play.answer(text) for text in texts if not play.done]
    return play, said


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Blackjack-v1", "CliffWalking-v1", "Taxi-v4"])
def test_a_game_has_the_rewards_of_the_package(name: str) -> None:
    program = gymnasium_games.Environment(name, {}, rows=6, held_out=2)
    for row in program.rows():
        game = gymnasium.make(name)
        game.reset(seed=row["seed"])
        game.action_space.seed(row["seed"])
        actions, total, over = [], 0.0, False
        while not over and len(actions) < 40:
            actions.append(int(game.action_space.sample()))
            _, reward, terminated, truncated, _ = game.step(actions[-1])
            total, over = total + float(reward), terminated or truncated
        play, said = played(program, row, [f"I go <action>{action}</action>" for action in actions])
        found = play.result()
        assert (found["value"], found["parts"]["steps"]) == (total, len(actions))
        assert play.done == over
        assert [each.get("message", "").splitlines()[-1:] for each in said[:-1]] == [
            [line] for line in _observations(name, row["seed"], actions)[: len(said) - 1]
        ]


def _observations(name: str, seed: int, actions: list[int]) -> list[str]:
    game = gymnasium.make(name)
    game.reset(seed=seed)
    return [f"observation: {gymnasium_games.json.dumps(gymnasium_games._plain(game.step(one)[0]))}" for one in actions]


def test_members_of_a_group_start_alike_and_invalid_actions_change_nothing() -> None:
    program = gymnasium_games.Environment("Blackjack-v1", {}, rows=20, held_out=0)
    rows = program.rows()
    assert len({row["query"] for row in rows}) > 5, "different seeds give different starts"
    wrong = ["7", "x", "true", "9" * 30, "[" * 100_000, '{"a": 1}']
    play, said = played(program, rows[0], ["hm", *(f"<action>{each}</action>" for each in wrong)])
    assert {each["message"] for each in said} == {
        "That is no action. Write <action>NUMBER</action>, a number from 0 to 1."
    }
    assert play.result() == {
        "value": 0.0,
        "parts": {"reward": 0.0, "steps": 0, "no_action": 7, "terminated": 0},
    }


def test_a_map_of_characters_shows_the_position_of_the_player() -> None:
    program = gymnasium_games.Environment("FrozenLake-v1", {"is_slippery": False}, rows=1, held_out=0)
    (row,) = program.rows()
    assert row["query"] == "[S]FFF\nFHFH\nFFFH\nHFFG\nobservation: 0"
    assert "2: Move right" in program.describe()["system"]


def test_a_game_that_ignores_its_seed_is_refused() -> None:
    drawn = gymnasium_games.Environment("FrozenLake-v1", {"map_name": None}, rows=4, held_out=0)
    with pytest.raises(ValueError, match="with the same seed the game starts otherwise"):
        drawn.rows()


@pytest.mark.parametrize("name", ["basic_arithmetic", "letter_counting", "word_sorting", "simple_equations"])
def test_an_answer_has_the_score_of_the_package(name: str) -> None:
    program = reasoning_gym_puzzles.Environment(name, {"seed": 3}, rows=8, held_out=4)
    theirs = reasoning_gym.create_dataset(name, seed=3, size=12)
    drawn = random.Random(1)
    for row in program.rows():
        puzzle = theirs[row["index"]]
        assert (row["query"], row["answer"]) == (puzzle["question"], str(puzzle["answer"]))
        wrong = f"{puzzle['answer']} {drawn.randint(10, 99)}"
        for answer in (puzzle["answer"], wrong, "", None):
            text = "I do not know" if answer is None else f"So <answer>{answer}</answer>"
            play, _ = played(program, row, [text])
            assert play.result()["value"] == theirs.score_answer(None if answer is None else answer.strip(), puzzle)
    assert play.done
