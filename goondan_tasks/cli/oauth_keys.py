"""``goondan oauth rotate-key``: encrypt the store with another key."""

from goondan_tasks.cli.oauth_session import oauth_store
from goondan_tasks.cli.session import Session
from goondan_tasks.oauth.file_store import KeyFile
from goondan_tasks.oauth.opening import open_keys


def rotate_key(session: Session) -> None:
    """Encrypt every record with the first key of ``GOONDAN_OAUTH_KEY``, or with a new one in the key file.

    The keys before it still decrypt: no process has to be stopped.
    """
    keys = open_keys(session.settings)
    if isinstance(keys, KeyFile):
        keys.rotate()
    with oauth_store(session) as store:
        count = store.encrypt_again()
    if session.output.as_json:
        return session.output.document({"keyId": keys.current.id, "encryptedAgain": count})
    return session.output.print(f"{count} records are encrypted again, with the key {keys.current.id}")
