"""Full text of titles and errors: one function a statement. A row is written with the job, and when the job fails."""

from collections.abc import Iterable, Sequence

from nextslot.domain import Job
from nextslot.domain.job_query import READ_CHARACTERS
from nextslot.store.contract import Tx

from . import column_codec


def add(tx: Tx, jobs: Iterable[Job]) -> None:
    """Makes the titles of new jobs known."""
    titled = [(job.job_id, job.title[:READ_CHARACTERS]) for job in jobs if job.title]
    if titled:
        tx.execute_batch("search.add", ("job_id", "title"), titled)


def add_error(tx: Tx, job_id: str, error_line: str) -> None:
    tx.execute_later("search.add_error", job_id=job_id, error=error_line)


def set_title(tx: Tx, job_id: str, title: str | None) -> None:
    tx.execute("search.drop", job_ids=column_codec.key_set([job_id]))
    if title:
        tx.execute("search.add", job_id=job_id, title=title[:READ_CHARACTERS])


def find(tx: Tx, words: Sequence[str], error_words: Sequence[str], limit: int) -> list[str] | None:
    """Returns the jobs whose title or error has words that begin so; None if they are more than the limit."""
    match, tsquery = _for_sqlite(words, error_words), _for_postgres(words, error_words)
    # A job that failed has two rows on SQLite.
    rows = tx.rows("search.find", match=match, tsquery=tsquery, limit=2 * limit + 1)
    return None if len(rows) > 2 * limit else list(dict.fromkeys(job_id for (job_id,) in rows))


def fill(tx: Tx) -> None:
    """Makes the whole index again."""
    tx.execute("search.empty")
    tx.execute("search.fill")


def _for_sqlite(words: Sequence[str], error_words: Sequence[str]) -> str:
    anywhere = [f'{{title error}} : "{word}" *' for word in words]
    return " AND ".join([*anywhere, *(f'error : "{word}" *' for word in error_words)])


def _for_postgres(words: Sequence[str], error_words: Sequence[str]) -> str:
    return " & ".join([*(f"'{word}':*" for word in words), *(f"'!{word}':*" for word in error_words)])
