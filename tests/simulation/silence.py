"""Walks are full of faults that the product logs."""

import logging

import structlog


def silence() -> None:
    """Log nothing from now on."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def speak() -> None:
    """Log as before."""
    logging.disable(logging.NOTSET)
    structlog.reset_defaults()
