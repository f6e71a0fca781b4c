"""`undercurrent audit`: print what administrators did."""

from contextlib import closing

from service.api.audit import entry_of
from service.base.settings import Settings
from service.storage.audit import page
from service.storage.schema import require_current
from service.storage.store import Store
from service.web.times import parse_interval

PAGE = 500


def print_audit(settings: Settings, campaign: str | None, start: str | None, end: str | None) -> int:
    """Every entry as a line of JSON, newest first, from the database itself."""
    asked = parse_interval(start, end)
    with closing(Store(settings.database_url)) as store:
        require_current(store)
        with store.reading() as tx:
            rows = page(tx, None, PAGE, campaign, asked)
            while rows:
                for row in rows:
                    print(entry_of(row).model_dump_json())
                rows = page(tx, rows[-1].number, PAGE, campaign, asked)
    return 0
