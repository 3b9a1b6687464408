"""A game with a state: find a number with the hints that the tool gives on each guess."""

import agentrl as rl


class Game(rl.Session):
    def setup(self, task: rl.Task) -> None:
        self.number, self.left = task.row["number"], 6


@rl.tool
def guess(number: int, game: Game) -> str:
    """Guess the number."""
    if game.left == 0:
        raise rl.ToolError("no guesses are left")
    game.left -= 1
    return "right" if number == game.number else "higher" if number < game.number else "lower"


@rl.scorer
def found(episode: rl.Episode) -> float:
    return float(any(call.result == "right" for call in episode.calls))


@rl.scorer(weight=0.1)
def quickly(episode: rl.Episode) -> float:
    return episode.state.get("Game", {"left": 0})["left"] / 6


rules = "Find the number by the tool guess, in at most 6 guesses. Then answer in <answer></answer>."
game = rl.Environment("guess", dataset="guess.jsonl", tools=[guess], scorers=[found, quickly], system=rules)
