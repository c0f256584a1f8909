"""docs/reference/settings.md lists every setting with its default, and nothing else."""

from broker_config.settings import Settings
from tests.docs.pages import page


def _documented() -> dict[str, str]:
    rows = [row for table in page("docs/reference/settings.md").tables() for row in table]
    return {name.strip("`"): default.strip("`") for name, default, *_ in rows}


def _default(value: object) -> str:
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_page_lists_every_setting_with_its_default() -> None:
    settings = {
        f"GOONDAN_{name.upper()}": _default(field.default) for name, field in Settings.model_fields.items()
    }

    assert _documented() == settings
