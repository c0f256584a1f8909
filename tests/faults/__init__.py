"""Faults on purpose: real processes, real signals, and an account of every run kept outside Redis.

What could break the fast path of a call (:mod:`workers.pool.lead`), and where a test would show it:

| risk | test |
|---|---|
| results wait for a packet when the process dies | `test_storms` (kills), `test_awkward_moments` |
| a mark is lost with its connection | `test_storms` (kills behind a slow Redis, half-open connections) |
| a mark belongs to a claim that was taken away | `test_storms` (freezes), `test_long_and_frozen_workers` |
| a command of the lead is lost, or its answer | `test_lost_answers`, `test_network` |
| results are sent twice after a reconnection | `test_lost_answers` |
| claims are given back | `test_give_back`, `test_awkward_moments` (rolling restart), `test_soak` |
| two threads use one connection | `test_takeover` |
| calls wait in one worker while another is idle | `test_fairness`; the times: `benchmarks.cases.fairness` |
| records and messages of another version | `test_versions` |
| monitors look and operators intervene | `test_remote_control`, `test_cancel` |
"""
