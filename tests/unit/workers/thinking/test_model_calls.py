"""Requests to models as calls: which Model is asked."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.errors import ConfigError
from workers.thinking.model_calls import Models
from workers.thinking.model_request import ModelRequest


def test_a_model_that_the_bundle_does_not_have_is_named_with_the_nearest(tmp_path: Path) -> None:
    nothing: Any = None
    models = Models(nothing, nothing, nothing, 60, {"small": nothing}, tmp_path, lambda: None)
    with pytest.raises(ConfigError, match="The bundle has no Model 'smal'") as caught:
        asyncio.run(models.ask_first(["smal"], ModelRequest("", ()), step=0, event_id=""))
    assert caught.value.code == "E_CONFIG_REF_NOT_FOUND"
    assert "small" in (caught.value.suggestion or "")
