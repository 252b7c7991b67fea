"""The files of runs in a store that all nodes read: logs in pieces that are readable while they grow, and artifacts."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nextslot.domain import Artifact
from nextslot.errors import Invalid, Unavailable
from nextslot.executors import run_log
from nextslot.executors.object_store import ObjectStore, url_problem
from nextslot.executors.run_files import RunFiles
from nextslot.executors.run_log import RunLog
from nextslot.executors.shared_run_files import PIECE, SharedRunFiles, pieces_in, without_contained
from tests.object_storage import S3, s3

RUN = "01a1f06a-c133-7030-ba3e-f9c2a4d89c16"
FOLDER = f"runs/16/{RUN}"


@pytest.fixture(scope="module")
def storage() -> Iterator[S3]:
    with s3() as server:
        yield server


@pytest.fixture
def on_s3(storage: S3, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in storage.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectStore(storage.url)


def shared_in(directory: Path) -> SharedRunFiles:
    return SharedRunFiles(ObjectStore(f"file://{directory}/store"))


def new_log(directory: Path, shared: SharedRunFiles, cap: int = 10**7) -> tuple[RunFiles, RunLog]:
    files = RunFiles(directory / "data", shared=shared)
    return files, files.open_log(RUN, cap)


def stored_pieces(shared: SharedRunFiles) -> list[Any]:
    return pieces_in(shared.objects.list(f"{FOLDER}/log"))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_shipped_reads_like_the_log_on_the_disk_at_any_moment(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    shared = shared_in(tmp_path)
    cap = chance.choice([700, 5000, 40_000, 2_000_000])
    files, log = new_log(tmp_path, shared, cap)
    paths, shipped = files.log_paths(RUN), shared.shipped_log(RUN, is_new=True)
    position, followed = 0, b""

    for number in range(40):
        log.write(b"%d %s\n" % (number, b"x" * chance.randrange(cap // 10)))
        if chance.random() < 0.5:
            shipped.ship(paths)
            here, there = run_log.read(paths, 0, 10**9), run_log.read(shared.log(RUN), 0, 10**9)
            assert there == here
            assert run_log.tail(shared.log(RUN), 3, 1000) == run_log.tail(paths, 3, 1000)
            part = run_log.read(shared.log(RUN), position, 10**9)
            position, followed = part.next, followed + part.text
            assert sum(one.end - one.start for one in stored_pieces(shared)) <= cap
    log.close()

    assert files.ship(RUN) is None
    assert run_log.read(shared.log(RUN), 0, 10**9) == run_log.read(paths, 0, 10**9)
    assert followed + run_log.read(shared.log(RUN), position, 10**9).text
    assert not files.is_unshipped(RUN)


def test_a_slow_log_has_few_pieces_and_each_byte_is_sent_a_few_times(tmp_path: Path) -> None:
    shared = shared_in(tmp_path)
    files, log = new_log(tmp_path, shared)
    shipped, sent = shared.shipped_log(RUN, is_new=True), 0
    put = shared.objects.put

    def counted(path: str, data: bytes | Path) -> None:
        nonlocal sent
        sent += len(data) if isinstance(data, bytes) else 0
        put(path, data)

    shared.objects.put = counted  # type: ignore[method-assign]
    for number in range(2000):
        log.write(b"%07d %s\n" % (number, b"x" * 291))
        shipped.ship(files.log_paths(RUN))
    log.close()

    found = stored_pieces(shared)
    assert found == without_contained(found), "none is there twice"
    assert len(found) < 20
    assert max(one.end - one.start for one in found) <= PIECE
    assert sent < 600_000 * 12


@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_dies_at_any_call_leaves_a_log_that_reads_right_and_is_continued(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    shared = shared_in(tmp_path)
    files, log = new_log(tmp_path, shared, 30_000)
    paths = files.log_paths(RUN)
    shipped = shared.shipped_log(RUN, is_new=True)
    objects = shared.objects
    put, delete, written = objects.put, objects.delete, b""

    def dying_put(path: str, data: bytes | Path) -> None:
        if chance.random() < 0.1:
            raise ConnectionError
        put(path, data)

    def dying_delete(paths: Iterable[str]) -> None:
        if chance.random() < 0.3:
            raise ConnectionError
        delete(paths)

    objects.put, objects.delete = dying_put, dying_delete  # type: ignore[method-assign]
    for number in range(300):
        line = b"%d %s\n" % (number, b"y" * chance.randrange(300))
        log.write(line)
        written += line
        try:
            shipped.ship(paths)
        except ConnectionError:
            shipped = shared.shipped_log(RUN)  # Another process, which knows nothing.
        part = run_log.read(shared.log(RUN), 0, 10**9)
        head = part.text.partition(b"\n\xe2\x80\xa6")[0] if part.cut else part.text
        assert written.startswith(head)
        assert part.cut == 0 or written[: part.next].endswith(part.text.rpartition("cut here …\n".encode())[2])
    objects.put, objects.delete = put, delete  # type: ignore[method-assign]
    log.close()

    assert files.ship(RUN) is None
    assert run_log.read(shared.log(RUN), 0, 10**9) == run_log.read(paths, 0, 10**9)
    found = stored_pieces(shared)
    assert found == without_contained(found), "what was left is deleted"


def test_artifacts_and_a_log_are_stored_in_s3_and_removed_with_their_run(tmp_path: Path, on_s3: ObjectStore) -> None:
    shared = SharedRunFiles(on_s3)
    files, log = new_log(tmp_path, shared)
    log.write(b"made\n")
    log.close()
    root = files.artifacts_directory(RUN)
    (root / "a b").mkdir()
    (root / "a b" / "ä.txt").write_text("text")
    (root / "large").write_bytes(b"z" * 12_000_000)

    assert files.ship(RUN) is None
    assert run_log.read(shared.log(RUN), 0, 100).text == b"made\n"
    assert b"".join(shared.artifact(RUN, "a b/ä.txt")) == b"text"
    assert sum(map(len, shared.artifact(RUN, "large"))) == 12_000_000
    assert shared.missing(RUN, True, ["a b/ä.txt", "large", "other"]) == ["other"]

    elsewhere = RunFiles(tmp_path / "elsewhere", shared=shared)
    assert elsewhere.fetch(RUN, [Artifact(name="a b/ä.txt", path="", size=4)]) is None
    fetched = elsewhere.artifacts_root(RUN) / "a b" / "ä.txt"
    assert (fetched.read_text(), fetched.stat().st_mode & 0o077) == ("text", 0)

    files.remove_all([RUN])
    assert list(on_s3.list("runs")) == []
    assert shared.missing(RUN, True, ["large"]) == ["large", "log"]
    with pytest.raises(FileNotFoundError):
        shared.artifact(RUN, "large")


def test_a_store_that_does_not_answer_is_told_in_a_sentence_without_keys(
    tmp_path: Path, storage: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    files, log = new_log(tmp_path, SharedRunFiles(ObjectStore("s3://nowhere/here")))
    assert files.shared is not None
    log.write(b"line\n")
    log.close()

    said = files.ship_growing(RUN, files.shared.shipped_log(RUN, is_new=True))
    later = files.ship(RUN)

    assert said is not None
    assert said.startswith("the store of files s3://nowhere/here did not take")
    assert "could not be listed" in str(later)
    assert "a-secret" not in said
    assert "\n" not in said
    assert files.unshipped() == [RUN]
    monkeypatch.setenv("AWS_ENDPOINT_URL", storage.address)
    with pytest.raises(Unavailable, match=r"could not be listed.*NoSuchBucket"):
        list(ObjectStore("s3://nowhere/here").list("runs"))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3:///prefix", "write s3://BUCKET/PREFIX"),
        ("gs://bucket/prefix", "write s3://BUCKET/PREFIX"),
        ("file://host/directory", "write s3://BUCKET/PREFIX"),
        ("file:///", "write s3://BUCKET/PREFIX"),
        ("s3://[x", "write s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket/prefix", "read from the environment"),
        ("s3://bucket/prefix?region=x", "read from the environment"),
    ],
)
def test_an_address_that_is_no_store_is_refused_with_a_sentence(url: str, sentence: str) -> None:
    assert sentence in str(url_problem(url))
    with pytest.raises(Invalid, match="the store of files"):
        ObjectStore(url)


def test_the_directory_of_a_store_is_its_owners_alone(tmp_path: Path) -> None:
    ObjectStore(f"file://{tmp_path}/new%20store")
    open_to_others = tmp_path / "open"
    open_to_others.mkdir(mode=0o755)
    (tmp_path / "file").write_text("")

    assert (tmp_path / "new store").stat().st_mode & 0o077 == 0
    with pytest.raises(Invalid, match="others may enter"):
        ObjectStore(f"file://{open_to_others}")
    with pytest.raises(Invalid, match="cannot create the directory"):
        ObjectStore(f"file://{tmp_path}/file/below")


def test_without_the_package_the_setting_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert url_problem("s3://bucket") == "needs the package obstore; install nextslot[objects]"
