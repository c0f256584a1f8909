"""How we reach the broker: settings, queue names, keys and connections."""
