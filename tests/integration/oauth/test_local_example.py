"""The example of a consent on one's own machine: as it stands, and with a browser."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from goondan_tasks.bundle import inspect_bundle
from tests.integration.goondan_process import environment

EXAMPLE = Path(__file__).parents[3] / "examples" / "oauth-local"

#: opens the page, and answers its form
BROWSER = """\
import sys
import httpx2
page = httpx2.get(sys.argv[1]).raise_for_status()
assert page.headers["content-type"].startswith("text/html") and 'name="answer"' in page.text
form = {"user": sys.argv[2], "answer": "allow"}
print(httpx2.post(sys.argv[1], data=form, follow_redirects=True).status_code)
"""


def connect(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the program beside the example."""
    return subprocess.run(
        [sys.executable, str(EXAMPLE / "connect.py"), *arguments],
        env={**environment(), **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_example_has_no_findings() -> None:
    bundle, findings = inspect_bundle(EXAMPLE)

    assert findings == []
    assert bundle is not None


def test_program_beside_example_goes_whole_way_by_itself() -> None:
    done = connect()

    assert done.returncode == 0, done.stderr
    steps = ("authorization_required", '"type": "auth.granted"', '"owner": "ada"', "From Charles")
    assert [step in done.stdout for step in steps] == [True] * len(steps)


def test_with_browser_it_waits_for_user(tmp_path: Path) -> None:
    script = tmp_path / "browser.py"
    script.write_text(BROWSER, encoding="utf-8")

    done = connect("--browser", BROWSER=f"{sys.executable} {script} %s ada")

    assert done.returncode == 0, done.stderr
    assert "Answer the page in your browser" in done.stdout
    assert done.stdout.splitlines().count("200") == 1
    assert '"owner": "ada"' in done.stdout


@pytest.mark.parametrize("form", [{"user": "ada", "answer": "deny"}, {}])
def test_page_gives_no_code_without_consent(form: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from provider import make_app\n"
        "from starlette.testclient import TestClient\n"
        "place = TestClient(make_app(), follow_redirects=False).post('/authorize?response_type=code'\n"
        "    '&client_id=goondan&redirect_uri=http%3A%2F%2F127.0.0.1%3A9%2Foauth%2Fcallback&state=s'\n"
        "    '&scope=letters.read&code_challenge_method=S256&code_challenge=' + 'a' * 43,\n"
        f"    data={form!r}).headers['location']\n"
        "print(place)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(EXAMPLE)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "error=access_denied" in done.stdout, done.stderr
    assert "code=" not in done.stdout.replace("response_type=code", "")
