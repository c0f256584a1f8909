"""Ours and other task queues, measured side by side in one run: ``python -m benchmarks``.

``systems`` lists what takes part, ``programs`` holds the code that each system runs, ``lanes`` starts one
of them on the private Redis and measures what it uses, ``cases`` decide what is measured, ``report`` shows
it.
"""
