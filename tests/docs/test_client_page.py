"""docs/reference/client.md is what the docstrings of the client say."""

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract import errors
from tests.docs import client_page
from tests.docs.pages import page


def test_page_is_made_from_docstrings_of_today() -> None:
    assert client_page.PAGE.read_text(encoding="utf-8") == client_page.text(), (
        "run: python -m tests.docs.client_page"
    )


def test_page_has_every_method_of_asynchronous_client() -> None:
    names = {name for name in vars(AsyncClient) if not name.startswith("_")}
    public = {name for name in names if callable(getattr(AsyncClient, name))}

    assert set(client_page.METHODS) == public
    assert all(f"### Client.{name}\n" in page("docs/reference/client.md").text for name in public)


def test_every_error_that_docstring_names_exists() -> None:
    named = {
        name
        for method in client_page.METHODS
        for names, _ in client_page.entries(getattr(Client, method))
        for name in names
    }

    assert named - {"TypeError", "ValueError"} == {name for name in named if hasattr(errors, name)}
