"""Agents that hand work to each other: events, handoffs, mailboxes and instances."""
