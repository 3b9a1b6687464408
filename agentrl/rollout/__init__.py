"""Episodes: agents act through model calls and tools, and everything they did is stored, classified and scored.

    answers, scorers, math...          what was answered, and how right it is
    loops, single_turn, tool_agent     how an agent goes about a task; loops of one's own are registered by name
    exits                              what leads out of an episode from below
    own_code                           the run's own files with loops and scorers
    episode, clock                     what a loop works with: model calls, tool calls, limits, deadlines
    model_calls, tool_calls            one logical call, whatever engines and toolboxes do meanwhile
    recording                          what an episode did, durable in order
    ending, together                   from the end of an episode to a scored Record, those of a moment at once
    fleet                              the engines and toolboxes that are there now
    attempt, sampler                   one claimed Record; many of them in one process: claims, concurrency, drain
    knobs, ports, speech               what may change while it runs; what is needed of others; the model's words

Invariants: tokens are those of the engine, never made from text again; what was generated is durable before anything
that follows from it is seen outside; every Record ends for exactly one reason; no wait is without an end.
"""
