"""Configuration (spec 17): file < environment < command line; all problems are reported at once, each with its
place.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nextslot.config import Configuration, load
from nextslot.config.fields import leaves
from nextslot.config.settings import Section, Settings, settings_class
from nextslot.errors import Invalid
from scripts.make_configuration_tables import tables

ROOT = Path(__file__).parents[2]
SECRET = "whsec_" + "c2VjcmV0IHRoYXQgbm9ib2R5IG1heSBzZWUh"


def roles_of(configuration: Configuration) -> Any:
    """Returns the roles: the loaded settings have the tables of an extension, but their class does not declare them."""
    return getattr(configuration.settings, "roles")  # noqa: B009


def loaded(
    directory: Path,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Configuration:
    if text:
        (directory / "nextslot.toml").write_text(text)
    return load(directory, environment=environment or {}, overrides=overrides)


def problems(directory: Path, text: str = "", environment: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(Invalid) as refused:
        loaded(directory, text, environment)
    return [str(problem) for problem in refused.value.problems]


def origin(configuration: Configuration, name: str) -> tuple[Any, str]:
    return next((one.value, one.origin) for one in configuration.effective() if one.name == name)


# Precedence.


def test_no_file_at_all_is_a_working_set_up(tmp_path: Path) -> None:
    configuration = loaded(tmp_path)

    assert configuration.settings == settings_class()()
    assert configuration.file is None
    assert {one.origin for one in configuration.effective()} == {"default"}


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    configuration = loaded(
        tmp_path,
        "[server]\nhost = '10.0.0.1'\nport = 1\n[limits]\nrunning = 1",
        {"NEXTSLOT_SERVER__PORT": "2", "NEXTSLOT_LIMITS__RUNNING": "2"},
        {"limits.running": 3, "server.host": None},
    )

    assert origin(configuration, "server.host") == ("10.0.0.1", "nextslot.toml")
    assert origin(configuration, "server.port") == (2, "NEXTSLOT_SERVER__PORT")
    assert origin(configuration, "limits.running") == (3, "command line")
    assert origin(configuration, "server.docs") == (True, "default")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("SERVER__PORT", "9000", 9000),
        ("SERVER__DOCS", "off", False),
        ("SERVER__ALLOWED_HOSTS", "a.example, b.example", ["a.example", "b.example"]),
        ("SERVER__ALLOWED_HOSTS", '["a.example"]', ["a.example"]),
        ("SERVER__HOST", "0", "0"),
        ("LIMITS__STARVATION_AFTER_SECONDS", "1.5", 1.5),
        ("STORE__SYNCHRONOUS", "NORMAL", "NORMAL"),
        ("RETENTION__JOBS_DAYS", "30", 30),
        ("LOGS__LEVEL", "debug", "debug"),
    ],
)
def test_a_variable_means_what_the_type_of_its_setting_says(tmp_path: Path, name: str, text: str, value: Any) -> None:
    section, key = name.lower().split("__")

    configuration = loaded(tmp_path, environment={f"NEXTSLOT_{name}": text})

    assert getattr(getattr(configuration.settings, section), key) == value


def test_a_variable_reaches_into_tables_of_names_whatever_their_case_in_the_file(tmp_path: Path) -> None:
    configuration = loaded(
        tmp_path,
        "[roles.FE]\ntimeout_seconds = 1\n",
        {"NEXTSLOT_ROLES__FE__TIMEOUT_SECONDS": "2", "NEXTSLOT_LIMITS__RESOURCES__GPU": "4"},
    )

    assert roles_of(configuration)["FE"].timeout_seconds == 2
    assert configuration.settings.limits.resources == {"gpu": 4}


@pytest.mark.parametrize("name", ["NEXTSLOT_URL", "NEXTSLOT_TEST_PG", "NEXTSLOT_EXAMPLES", "NEXTSLOT_PORT"])
def test_other_variables_of_ours_are_not_settings(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, environment={name: "anything"}).settings == settings_class()()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NEXTSLOT_SERVER_PORT", "NEXTSLOT_SERVER__PORT"),
        ("NEXTSLOT_SERVER_PROT", "NEXTSLOT_SERVER__PORT"),
        ("NEXTSLOT_LIMITS_RUNNING", "NEXTSLOT_LIMITS__RUNNING"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_causes_a_warning(tmp_path: Path, name: str, meant: str) -> None:
    found = loaded(tmp_path, environment={name: "9000", "NEXTSLOT_URL": "x", "NEXTSLOT_API_KEY": "x", "PORT": "1"})

    assert found.settings.server.port == 8000
    assert found.warnings() == [f"the environment variable {name} has no effect; did you mean {meant}?"]


def test_an_empty_variable_says_nothing(tmp_path: Path) -> None:
    assert loaded(tmp_path, environment={"NEXTSLOT_SERVER__PORT": ""}).settings.server.port == 8000


def test_a_file_that_is_named_is_read_in_place_of_the_one_in_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text("[server]\nport = 1")
    (tmp_path / "other.toml").write_text("[server]\nport = 2")

    assert load(tmp_path, tmp_path / "other.toml", environment={}).settings.server.port == 2
    with pytest.raises(Invalid, match=r"missing\.toml cannot be read: No such file"):
        load(tmp_path, tmp_path / "missing.toml", environment={})


# Problems.


def test_an_unknown_key_is_told_with_file_place_and_the_likely_one(tmp_path: Path) -> None:
    assert problems(tmp_path, "[server]\nprot = 1") == [
        "nextslot.toml: server.prot: there is no such setting; did you mean port?"
    ]


def test_an_unknown_variable_is_told_by_its_name(tmp_path: Path) -> None:
    assert problems(tmp_path, environment={"NEXTSLOT_SERVR__PORT": "1", "NEXTSLOT_SERVER__PROT": "1"}) == [
        "NEXTSLOT_SERVER__PROT: there is no such setting; did you mean port?",
        "NEXTSLOT_SERVR__PORT: there is no such setting; did you mean server?",
    ]


def test_an_unknown_name_on_the_command_line_is_told(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"command line: server\.prot: there is no such setting"):
        loaded(tmp_path, overrides={"server.prot": 1})


def test_all_problems_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    text = """
        speed = 3
        [server]
        port = "eighty"
        [limits.resources]
        gpu = -1
        [job_types.thumb]
        command = "thumb.py"
        [offices.web]
        retry_policy = { max_attempts = "many" }
        [roles.FE]
        command = ["agent"]
        patterns = { "(" = "permission" }
        [llm.providers.ollama]
        base_url = "http://127.0.0.1"
    """

    told = problems(tmp_path, text, {"NEXTSLOT_LOGS__LEVEL": "loud"})

    assert [line.partition(": ")[2] if line.startswith("nextslot") else line for line in told] == [
        "server.port is text; it must be a whole number from 0 to 65,535",
        "limits.resources.gpu is -1; it must be a whole number from 0 to 1,000,000",
        "NEXTSLOT_LOGS__LEVEL has a value that is not allowed; use one of 'debug', 'info', 'warning' or 'error'",
        "speed: there is no such setting; remove it",
        'job_types.thumb.command is not a list of texts; write the program first: ["python", "thumb.py", "{path}"]',
        "offices.web.retry_policy.max_attempts is text; it must be a whole number from 0 to 1,000",
        "roles.FE.patterns.(: not a regular expression: missing ), unterminated subpattern at position 0",
        "llm.providers.ollama cannot be the name of a provider; use letters and digits, and not ollama",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server = 3", "server is not a table"),
        ("[server]\nport = 70000", "server.port is 70000; it must be a whole number from 0 to 65,535"),
        ("[server]\nport = true", "server.port is true; it must be a whole number"),
        ("[server]\nport = 80.5", "server.port is 80.5; it must be a whole number"),
        ("[server]\ndocs = 1", "server.docs is neither true nor false"),
        ("[server]\nhost = ''", "server.host is empty; write a value"),
        ("[server]\nroot_path = 'x/'", "server.root_path is not a path of this form; write one such as /scheduler"),
        ("[server]\nallowed_hosts = 'a'", "server.allowed_hosts is not a list"),
        (
            "[server]\nshutdown_grace_seconds = nan",
            "server.shutdown_grace_seconds is nan; it must be",
        ),
        ("[store]\nurl = 'mysql://x'", "store.url is not a database address; use sqlite:///file.db"),
        ("[store]\nsynchronous = 'OFF'", "store.synchronous has a value that is not allowed; use one of"),
        (
            "[limits]\nstarvation_after_seconds = 1e12",
            "limits.starvation_after_seconds is 1000000000000.0;",
        ),
        ("[offices.'a b']", "offices.a b is not an office id; use up to 100 letters, digits, '.', '_' and '-'"),
        ("[offices.a]\nstatus = 'gone'", "offices.a.status has a value that is not allowed; use one of"),
        ("[offices.a]\nspeed = 1", "offices.a.speed: there is no such setting"),
        ("[roles.FE]\ncomand = ['x']", "roles.FE.comand: there is no such setting; did you mean command?"),
        ("[roles.FE]\ncommand = []", "roles.FE.command has no program"),
        ("[job_types.a]\ncomand = ['x']", "job_types.a.comand is not a setting of a command"),
        ("[job_types]\na = 3", "job_types.a is not a table"),
        ("[job_types.a]\nhandler = 'json'", "job_types.a.handler: 'json' names no function"),
        ("[job_types.a]\nhandler = 'json:no'", "job_types.a.handler: 'json' has no function 'no'"),
        (
            "[job_types.a]\nhandler = 'json:loads'\ncommand = ['x']",
            "job_types.a.handler: the job type has a command too",
        ),
        ("[llm.providers.x]\nbase_url = 'ftp://x'", "llm.providers.x.base_url is not a web address; begin it"),
        ("[llm.providers.x]", "llm.providers.x.base_url is missing"),
        ("[webhooks]\nsecret = 'short'", "webhooks.secret is not a signing secret; it must be whsec_ and 24"),
        ("[retention]\njobs_days = 0", "retention.jobs_days is 0; it must be a number of days above 0"),
        ("[node]\nname = 'a/b'", "node.name has characters that are not allowed"),
    ],
)
def test_a_wrong_value_is_told_in_a_sentence(tmp_path: Path, text: str, problem: str) -> None:
    told = problems(tmp_path, text)

    assert told[0].removeprefix("nextslot.toml: ").startswith(problem)


@pytest.mark.parametrize("content", [b"[server\n", b"\xff", b"a = 1\na = 2"])
def test_what_is_not_TOML_is_told_with_its_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nextslot.toml").write_bytes(content)

    with pytest.raises(Invalid, match=r"nextslot\.toml is not valid TOML: "):
        load(tmp_path, environment={})


def test_a_value_that_is_refused_is_never_repeated(tmp_path: Path) -> None:
    told = problems(tmp_path, "[webhooks]\nsecret = 'hunter2-hunter2'\n[server]\nport = 'hunter2-hunter2'")

    assert len(told) == 2
    assert "hunter2" not in str(told)


# Paths and secrets.


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///nextslot.db", "{data}/nextslot.db"),
        ("sqlite:///sub/my%20jobs.db", "{data}/sub/my%20jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
    ],
)
def test_a_relative_path_is_relative_to_the_data_directory(tmp_path: Path, url: str, path: str) -> None:
    configuration = loaded(tmp_path, f"[store]\nurl = '{url}'")

    assert configuration.store_url == "sqlite:///" + path.format(data=tmp_path)


def test_a_schema_is_looked_for_in_the_data_directory_wherever_the_file_is(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "etc"
    data.mkdir()
    elsewhere.mkdir()
    (data / "a.schema.json").write_text("{}")
    (elsewhere / "x.toml").write_text("[job_types.a]\ncommand = ['true']\nparams_schema = 'a.schema.json'")

    assert load(data, elsewhere / "x.toml", environment={}).settings.job_types["a"]["params_schema"] == "a.schema.json"


SECRETS = f"""
    [store]
    url = "postgresql://nextslot:correct-horse@db/nextslot"
    [webhooks]
    secret = "{SECRET}"
    [roles.FE]
    command = ["agent"]
    env = {{ AGENT_TOKEN = "battery-staple", COLOUR = "no" }}
    [job_types.a]
    command = ["true"]
    env = {{ API_KEY = "very-secret-key" }}
"""


def test_secrets_are_masked_where_settings_are_shown(tmp_path: Path) -> None:
    configuration = loaded(tmp_path, SECRETS)

    shown = {one.name: one.value for one in configuration.effective()}

    assert shown["webhooks.secret"] == "********"
    assert shown["store.url"] == "postgresql://nextslot:********@db/nextslot"
    assert shown["roles.FE.env.AGENT_TOKEN"] == shown["job_types.a.env.API_KEY"] == "********"
    assert not re.search("correct-horse|battery-staple|very-secret|c2Vjc", str(shown))


def test_every_secret_is_known_to_be_one(tmp_path: Path) -> None:
    assert set(loaded(tmp_path, SECRETS).secrets()) == {
        SECRET,
        SECRET.removeprefix("whsec_"),
        "correct-horse",
        "battery-staple",
        "very-secret-key",
    }


def test_a_configuration_does_not_print_its_secrets(tmp_path: Path) -> None:
    assert SECRET not in repr(loaded(tmp_path, SECRETS).settings.webhooks)


# Declarations and documents.


def declared(section: type[Section]) -> list[tuple[str, str | None]]:
    return [(name, field.description) for name, field in section.model_fields.items()]


@pytest.mark.parametrize("section", Section.__subclasses__(), ids=lambda section: section.__name__)
def test_every_setting_says_in_one_sentence_what_it_does(section: type[Section]) -> None:
    for name, description in declared(section):
        if section is not Settings:
            assert description is not None, name
            assert re.fullmatch(r"[A-Z`].*\.", description), name


def test_the_documentation_has_the_tables_that_the_declarations_make() -> None:
    page = (ROOT / "docs/configuration.md").read_text()

    written = page.partition("<!-- made by: python scripts/make_configuration_tables.py -->\n")[2].partition(
        "<!-- end -->"
    )[0]

    assert written.strip() == tables().strip()


def test_the_tables_can_be_printed() -> None:
    script = ROOT / "scripts/make_configuration_tables.py"

    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)

    assert printed.stdout == tables()


def test_every_setting_is_in_the_tables() -> None:
    headings = re.findall(r"^### (\w+)", tables(), re.MULTILINE)

    assert headings == list(settings_class().model_fields)
    for path, _ in leaves(settings_class()()):
        assert f"`{path[-1]}`" in tables() or path[-1] in headings


def test_the_example_is_a_valid_configuration_with_the_recommended_role_timeouts(tmp_path: Path) -> None:
    configuration = load(tmp_path, ROOT / "examples/nextslot.toml", environment={})

    minutes = {name: (role.timeout_seconds or 0) / 60 for name, role in roles_of(configuration).items()}
    assert minutes == {"PO": 15, "Architect": 20, "FE": 30, "BE": 30, "QA": 45, "DevOps": 20}
    assert {path[0] for path in configuration.origins} == set(settings_class().model_fields)


def test_the_sample_of_the_specification_is_valid(tmp_path: Path) -> None:
    (tmp_path / "thumb.schema.json").write_text('{"properties": {"size": {}, "path": {}}}')
    text = """
        [server]
        host = "127.0.0.1"
        port = 8000
        [store]
        url = "sqlite:///nextslot.db"
        [limits]
        running = 0
        [limits.resources]
        ollama = 1
        gpu = 1
        [node.resources]
        gpu = 1
        [job_types.thumbnail]
        command = ["python", "thumb.py", "--size", "{size}", "--", "{path}"]
        resources = { gpu = 1 }
        timeout_seconds = 600
        params_schema = "thumb.schema.json"
        [offices.default]
        max_concurrent_jobs = 1
        [roles.FE]
        command = ["agent", "--role", "FE"]
        timeout_seconds = 1800
    """

    assert loaded(tmp_path, text).settings.node.resources == {"gpu": 1}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["ls", "{path}"], ["{path}"]),
        (["ls", "--", "{path}"], []),
        (["thumb", "--size", "{size}", "{path}", "{more}"], ["{path}", "{more}"]),
        (["cat", "{inputs.first.path}"], []),
    ],
)
def test_config_check_warns_of_a_parameter_that_a_program_could_take_for_an_option(
    tmp_path: Path, command: list[str], words: list[str]
) -> None:
    (tmp_path / "nextslot.toml").write_text(f"[job_types.x]\ncommand = {json.dumps(command)}\n")

    found = load(tmp_path, environment={}).command_warnings()

    assert [sentence.partition(" that ")[0] for sentence in found] == [
        f"job_types.x.command: a parameter {word}" for word in words
    ]
