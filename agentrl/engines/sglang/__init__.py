"""SGLang's server as an engine: started with the first verified weights, updated with each publication, and ended.

A server holds one version. To load another, the unit leaves the routing, closes its guard, ends the requests that run
(samplers continue them), loads, compares the canary and opens again. After a refusal it loads the version before. So
weights that are refused later never produce a token. A unit whose server ended, or that loads for longer than
`engines.load_s`, dies and is restarted. The first engine unit serves the pinned version of an evaluation.

What SGLang does by itself and callers must know: it aborts every request whose id begins with the given one, so ids
get an end mark; requests continued after a pause in place keep the cache of the old weights, after `retract` they are
computed again; `sampling_seed` counts only with `--enable-deterministic-inference`; releasing memory needs
`--enable-memory-saver`, which the build for processors does not have.
"""
