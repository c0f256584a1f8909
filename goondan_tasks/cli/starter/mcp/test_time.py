from pathlib import Path

from workers.testing import run_tool

BUNDLE = Path(__file__).parent


def test_the_server_converts_times() -> None:
    args = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Seoul"}
    result = run_tool(BUNDLE, "clerk", "time__convert_time", args)
    assert "21:00" in str(result.output)
