"""Ours and other task queues, measured side by side in one run: ``python -m benchmarks``.

``systems`` says who takes part, ``programs`` holds what each runs, ``lane`` is one of them at work on the
private Redis, ``cases`` measure, ``report`` shows.
"""
