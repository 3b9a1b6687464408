"""vLLM's server as an engine: started with the first verified weights, updated with each publication, and ended.

The server listens on a socket file that only the user of the run can open, because its control endpoints take no key.
Samplers call the unit, which has the same API as all engines of a run, and passes calls on as ids. A server holds one
version: before another is loaded, calls under way end with the tokens that they have (samplers continue them), so each
answer has one version.

The used endpoints of vLLM: `/inference/v1/generate` (ids in, ids and log-probs out), and with `VLLM_SERVER_DEV_MODE`
`/collective_rpc` for `reload_weights`, `/reset_prefix_cache`, `/pause`, `/resume`, `/sleep` and `/wake_up`.
"""
