"""How we reach the broker: settings, queue names, keys, connections.

No word of the domain is spoken here but the queue names.
"""
