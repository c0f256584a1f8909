"""The address at which a call can be completed from outside (DESIGN §6)."""

import base64
import hashlib
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class CallbackToken:
    """The token by which a completion comes. It holds for one run."""

    text: str
    #: that of the claim of which the token was made; empty if the record has the callback
    claim_token: str = ""


#: of what comes by no callback
NO_CALLBACK = CallbackToken("")


def callback_token(claim_token: str) -> str:
    """Return the secret of a run's callback, 43 characters.

    It is made of the token of the run's claim, which is random, stands in the ledger before the handler runs,
    and leaves it when the run has ended: so it costs nothing where nobody asks for it.
    """
    digest = hashlib.sha256(f"callback {claim_token}".encode()).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


def callback_url(public_url: str, call_id: str, claim_token: str) -> str:
    """Return the address of a run's callback below ``public_url``."""
    return f"{public_url.rstrip('/')}/callbacks/{quote(call_id, safe='')}/{callback_token(claim_token)}"
