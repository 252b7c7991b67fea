"""The default limits: which a job falls under, how large they are, and how much room they have (spec 4)."""

from hypothesis import given
from hypothesis import strategies as st

from nextslot.domain import Office, default_office, limits
from nextslot.domain.limits import UNLIMITED, Limits, is_local
from nextslot.system.instant import Instant

OFFICE = Office(office_id="o", name="O", created_at=Instant(0))


def test_a_job_falls_under_the_scheduler_its_office_its_role_its_type_and_its_resources() -> None:
    keys = Limits().keys("o", "FE", "build", {"gpu": 2, "ollama": 1})

    assert keys == {
        "scheduler": 1,
        "office:o": 1,
        "role:o/FE": 1,
        "type:build": 1,
        "resource:gpu": 2,
        "resource:ollama": 1,
    }


def test_a_job_without_role_or_resources_falls_under_no_limit_of_such() -> None:
    assert set(Limits().keys("o", None, "build", {})) == {"scheduler", "office:o", "type:build"}


def test_the_limits_of_an_office_and_its_roles_are_local_and_all_others_are_shared() -> None:
    keys = Limits().keys("o", "FE", "build", {"gpu": 1})

    assert {key for key in keys if is_local(key)} == {"office:o", "role:o/FE"}


def test_the_defaults_of_spec_4() -> None:
    limits, default = Limits(), default_office(Instant(0))

    assert limits.capacity("scheduler", OFFICE) == 0
    assert limits.capacity("office:default", default) == 1
    assert limits.capacity("office:o", OFFICE) == 3
    assert [limits.capacity(f"role:o/{role}", OFFICE) for role in ("FE", "BE", "QA", "DevOps")] == [1, 1, 1, 1]
    assert [limits.capacity(f"role:o/{role}", OFFICE) for role in ("PO", "Architect", "a/b")] == [0, 0, 0]
    assert limits.capacity("resource:ollama", OFFICE) == 1
    assert limits.capacity("resource:anything", OFFICE) == 1
    assert limits.capacity("resource:remote", OFFICE) == 0
    assert limits.capacity("type:build", OFFICE) == 0


def test_what_is_configured_takes_the_place_of_the_defaults() -> None:
    limits = Limits(running=7, job_types={"build": 2}, resources={"gpu": 4, "remote": 5, "ollama": 0})

    assert limits.capacity("scheduler", OFFICE) == 7
    assert limits.capacity("type:build", OFFICE) == 2
    assert limits.capacity("resource:gpu", OFFICE) == 4
    assert limits.capacity("resource:remote", OFFICE) == 5
    assert limits.capacity("resource:ollama", OFFICE) == 0


def test_a_name_with_a_colon_or_a_slash_is_looked_up_whole() -> None:
    office = Office(office_id="o", name="O", created_at=Instant(0), role_limits={"a/b": 4})
    limits = Limits(job_types={"x:y": 2}, resources={"r:1/2": 3})

    assert limits.capacity("type:x:y", office) == 2
    assert limits.capacity("resource:r:1/2", office) == 3
    assert limits.capacity("role:o/a/b", office) == 4


@given(capacity=st.integers(1, 1000), used=st.integers(0, 2000))
def test_room_is_what_is_not_used_and_below_nothing_when_a_limit_was_lowered(capacity: int, used: int) -> None:
    assert Limits().room("k", capacity, used) == capacity - used


@given(used=st.integers(0, 10**6))
def test_0_means_no_limit(used: int) -> None:
    assert Limits().room("k", 0, used) == UNLIMITED


def test_a_local_limit_says_whose_it_is() -> None:
    assert limits.office_of(limits.office_key("a")) == "a"
    assert limits.office_of(limits.role_key("a", "FE")) == "a"
    assert limits.is_local(limits.role_key("a", "FE"))
    assert not limits.is_local(limits.resource_key("a"))
