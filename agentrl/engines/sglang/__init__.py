"""SGLang's server as an engine: started with the first verified weights, updated with each publication, and ended.

A server holds one version. To load another, the unit leaves the routing, has the files read and checked, closes its
guard, pauses the requests that run, loads, compares the canary and opens again. Requests go on where they were; what
they answer is withheld until the canary agreed. After a refusal they fail, and the version before is loaded again. A
unit whose server ended, or that loads for longer than `engines.load_s`, dies and is restarted. The first engine unit
serves the pinned version of an evaluation.

What SGLang does by itself and callers must know: it aborts every request whose id begins with the given one, so ids
get an end mark; requests continued after a pause in place keep the cache of the old weights, after `retract` they are
computed again; it tokenizes a prompt with images again and resizes them, so `image_processors` replaces its processor;
`sampling_seed` counts only with `--enable-deterministic-inference`; releasing memory needs `--enable-memory-saver`,
which the build for processors does not have.
"""
