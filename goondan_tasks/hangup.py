"""The end of a terminal, which SIGHUP tells."""

import signal


def heeds_hangup() -> bool:
    """Say whether it ends this process: not if SIGHUP is ignored, as by nohup.

    To be asked before anybody else takes the signal.
    """
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
