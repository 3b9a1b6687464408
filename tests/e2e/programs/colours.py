"""An environment with images: in its tasks, and returned by a tool."""

import io

import agentrl as rl


@rl.tool(effect="pure")
def paint(red: int) -> list:
    """Paints a square."""
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", (48, 32), (red, 0, 0)).save(written, "PNG")
    return ["painted:", rl.Image(written.getvalue())]


@rl.agent
async def looks(episode: rl.Conversation) -> None:
    await episode.chat()
    await episode.chat(f"Compare with this: {await episode.call('paint', red=200)}")


@rl.scorer
def small_letters(episode: rl.Episode) -> float:
    """What random weights can learn in a few steps."""
    text = "".join(episode.texts)
    return sum(one.islower() for one in text) / (len(text) + 1)


colours = rl.Environment(
    "colours",
    dataset="colours.jsonl",
    tools=[paint],
    agent=looks,
    scorers=[small_letters],
    system="Answer in a word.",
    max_turns=2,
    epochs=50,
)
