"""SGLang's server as an engine: started with the first verified weights, updated with each publication, and ended.

A server holds one version. To load another, the unit leaves routing, lets the files be read and checked, closes its
guard, pauses the running requests, loads, compares the canary and opens again. Requests go on where they were; their
answers are withheld until the canary has agreed. After a refusal they fail, and the previous version is loaded again. A
unit whose server ended, or that loads for longer than `engines.load_s`, dies and is restarted. The first engine unit
serves the pinned version of an evaluation.

Behaviour of SGLang that callers must know: it aborts every request whose id begins with the given one, so ids get an
end mark; requests continued after a pause in place keep the cache of the old weights, while after `retract` they are
computed again; it tokenizes a prompt with images again and resizes the images, so `image_processors` replaces its
processor; `sampling_seed` has an effect only with `--enable-deterministic-inference`; releasing memory needs
`--enable-memory-saver`, which the build for processors does not have.
"""
