"""What names a revision."""

import pytest

from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.checkouts import BundleRef

COMMIT = "3f786850e387550fdab836ed7e6dc881de23001b"


@pytest.mark.parametrize("text", [f"git:{COMMIT}", f"git:{'a' * 64}", f"sha256:{'0' * 64}"])
def test_ref_is_read_as_it_was_written(text: str) -> None:
    assert str(BundleRef.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "git:",
        "git:HEAD",
        f"git:{COMMIT.upper()}",
        f"git:{COMMIT}\n",
        f"sha256:{COMMIT}",
        "git:--upload-pack=x",
    ],
)
def test_malformed_ref_names_no_revision(text: str) -> None:
    with pytest.raises(BundleRevisionUnavailableError, match="names no revision"):
        BundleRef.parse(text)
