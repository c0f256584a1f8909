"""``goondan callbacks serve``: pending calls are completed over HTTP (DESIGN §6, result statuses).

Needs the extra ``serve``.
"""
