"""API keys."""

from sqlalchemy import insert, update

from service.storage.rows import KeyRow, select_rows
from service.storage.tables import keys
from service.storage.transaction import Transaction


def add_key(tx: Transaction, key: KeyRow) -> None:
    tx.connection.execute(insert(keys).values(key._asdict()))


def read_keys(tx: Transaction) -> list[KeyRow]:
    """All keys, the revoked ones too, oldest first."""
    query = select_rows(KeyRow, keys).order_by(keys.c.created_at, keys.c.id)
    return tx.read_rows(KeyRow, query)


def revoke_key(tx: Transaction, key_id: str, now: int) -> bool:
    """Revoke a key; False if there is no such key, or it was revoked before."""
    revoked = update(keys).where(keys.c.id == key_id, keys.c.revoked_at.is_(None)).values(revoked_at=now)
    return tx.connection.execute(revoked).rowcount == 1
