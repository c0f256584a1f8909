"""Injected faults: real processes, real signals, and a record of every run that is kept outside Redis.

What could break the fast path of a call (:mod:`workers.pool.lead`), and which tests would show it:

| risk | test |
|---|---|
| the process dies while results wait to be sent | `test_storms` (kills), `test_awkward_moments` |
| a mark is lost with its connection | `test_storms` (kills behind a slow Redis, half-open connections) |
| a mark is sent for a claim that was revoked | `test_storms` (freezes), `test_long_and_frozen_workers` |
| a command of the lead, or its answer, is lost | `test_lost_answers`, `test_network` |
| results are sent twice after a reconnection | `test_lost_answers` |
| claims are given back wrongly | `test_give_back`, `test_awkward_moments` (rolling restart), `test_soak` |
| two threads use one connection | `test_takeover` |
| calls wait in one worker while another is idle | `test_fairness`; the times: `benchmarks.cases.fairness` |
| records and messages have another version | `test_versions` |
| monitors or operators interfere | `test_remote_control`, `test_cancel` |
"""
