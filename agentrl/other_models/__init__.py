"""Models other than the trained one: judges, simulated users, summaries.

`dialects` writes requests and reads answers, `service_health` decides when a service is asked again; both are pure.
`service_calls` makes one call of a service, also for engines and for models that are tried by their address. `client`
asks the services of a model in their order. `ledger` is what it keeps of each call: who asked, tokens, cost, outcome,
and the answer, so that the same question is not asked twice.

Invariants of the room:
- A service that is down only costs time: it never causes a score, ends an episode or counts as an attempt.
- A key is read when it is used, and is in no record, log or error.
- The answer of a service is untrusted text: bounded, decoded, and never executed.
"""
