"""How large the pages of the console are over many calls, agents and days, each of them at its largest."""

import httpx2

from benchmarks.cases.pages import MOST_KB, pages_of, served_console
from benchmarks.histories import History

AMOUNTS = History(3_000, 60, 30, 1_500, 3_000, 2_000, 1_000_000, approvals=60, days=90)


def test_pages_stay_below_size_limit_when_full() -> None:
    with served_console(AMOUNTS) as (url, written), httpx2.Client(base_url=url) as browser:
        pages = {name: browser.get(address) for name, address in pages_of(written).items()}
        assert {page.status_code for page in pages.values()} <= {200, 303}
    sizes = {name: len(page.content) for name, page in pages.items()}
    assert {name: size for name, size in sizes.items() if size > MOST_KB * 1_000} == {}
