"""``goondan oauth serve``: the callbacks of all OAuthApps, and what has to be looked after meanwhile."""

from goondan_tasks.cli.extras import extra
from goondan_tasks.cli.http_options import announced
from goondan_tasks.cli.interruption import Interruption
from goondan_tasks.cli.oauth_session import oauth_session
from goondan_tasks.cli.session import Session
from goondan_tasks.logs import configure_logging


def serve_oauth(session: Session, *, port: int | None, address: str | None) -> None:
    """Serve until Ctrl-C."""
    with extra("oauth"):  # optional: only now
        from goondan_tasks.http import serve
        from goondan_tasks.oauth.callback_app import make_app
        from goondan_tasks.oauth.consent import Callback, Maintenance, public_url_of
    configure_logging(session.settings)
    host = address or session.settings.http_host
    with oauth_session(session) as oauth:
        public_url = public_url_of(session.settings)
        callback = Callback(oauth.apps, oauth.store, oauth.client.send, oauth.clock, public_url)
        app = make_app(callback)
        with (
            Interruption().listening(),
            Maintenance(callback).running(),
            announced(session, host, port, "") as server,
        ):
            serve(app, server)
