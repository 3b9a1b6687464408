"""Episodes: agents act through model calls and tool calls; everything they do is stored, classified and scored.

    sampler, attempt                    claims, concurrency and drain of one process; one claimed Record
    episode, agent_loops                what an agent loop works with; the registry of loops
    single_turn, tool_agent             the loops that are shipped
    model_calls, tool_calls             one logical call, whatever engines and toolboxes do meanwhile
    episode_recorder                    writes what an episode does, durable and in order
    episode_clock, episode_errors       the deadline of an episode; what ends it from below
    ended_episode                       what a score may depend on, as it is stored
    record_ending, scorers, batched_requests   from the end of an episode to a scored Record, several at once
    answer_extraction, math...          the answer in a text, and whether it is right
    service_directory                   the engines and toolboxes that serve now
    chat_format                         tokenizer and chat template of the published model
    user_code                           the run's own files with loops and scorers
    sampler_reporting                   orders of the unit, its status and metrics
    sampler_knobs                       settings that may change while a sampler runs

Invariants: tokens come from the engine and are never made from text again; output is durable before any consequence of
it is visible; every Record ends for exactly one reason; every wait has a deadline.
"""
