"""Small bugs in rates, keys, affinities, devices, failures, formats and placed runs; `planted_source` plants them."""

from tests.simulation.planted_bug import NODES, SIMULATION, Bug

_RATES = "tests/engine/test_04_rates.py::test_"
_AFFINITY = "tests/engine/test_04_affinity.py::test_"
_SIGNATURE = "tests/server/test_nodes.py::test_the_signature_of_a_node_is_valid_for_one_file_of_one_node_and_a_minute"
_PLACED = "tests/simulation/test_placed_runs.py"

LIMITS = (
    # Rates and the keys of jobs.
    Bug(
        "of several used-up rates the last one sets the alarm",
        "engine/dispatch/rates.py",
        "first = opens if first is None else min(first, opens)",
        "first = opens",
        _RATES + "of_several_used_up_rates_the_first_that_refills_lets_its_work_start",
    ),
    Bug(
        "direct work takes no tokens",
        "engine/direct/direct_requests.py",
        "        self._lanes.counters(tx).use_tokens(lane, outcome)\n",
        "",
        _RATES + "tokens_of_direct_work_are_taken_too",
    ),
    Bug(
        "a direct caller does not count in its keys",
        "engine/direct/direct_requests.py",
        "resources, affinity, keys)",
        "resources, affinity, None)",
        SIMULATION,
    ),
    Bug(
        "a changed job loses its keys",
        "engine/submit/intake.py",
        "job.job_type, resources, affinity, job.limit_keys)",
        "job.job_type, resources, affinity, None)",
        SIMULATION,
    ),
    Bug(
        "units are kept free for a caller whose key is full",
        "engine/dispatch/dispatcher.py",
        "not is_here) and not any(map(is_key, round_.full_limits(lane)))",
        "not is_here)",
        _RATES + "so_many_direct_requests_of_a_key_run_at_once_and_no_unit_lies_idle_for_the_next",
    ),
    Bug(
        "a caller waits behind callers that wait for something else",
        "engine/dispatch/dispatcher.py",
        "is_next = earlier.isdisjoint(lane.needs)",
        "is_next = not earlier",
        "tests/engine/test_11_direct.py",
    ),
    # What a resource has loaded.
    Bug(
        "each start begins the wait for another affinity anew",
        "engine/dispatch/dispatch_round.py",
        "if resource not in self.loaded or self.loaded[resource][0] != lane.affinity:",
        "if True:",
        SIMULATION,
    ),
    Bug(
        "a job that needs nothing loaded is passed over for what is loaded",
        "engine/dispatch/affinity.py",
        "for resource in lane.resources if lane.affinity is not None else ():",
        "for resource in lane.resources:",
        SIMULATION,
    ),
    Bug(
        "a caller that needs nothing loaded is passed over for what is loaded",
        "engine/dispatch/affinity.py",
        "not _is_loaded(round_, one[1], but=plain))",
        "not _is_loaded(round_, one[1]))",
        _AFFINITY + "a_direct_caller_that_needs_nothing_loaded_goes_in_its_turn_and_ends_no_preference",
    ),
    Bug(
        "a paused office starts what is loaded",
        "engine/dispatch/affinity.py",
        "if round_.counters.is_closed(lane) or (needs_room",
        "if (needs_room",
        "tests/engine/test_04_affinity.py::test_a_pause_holds_back_what_is_loaded_as_well",
    ),
    Bug(
        "affinity lets a job go past a waiting caller",
        "engine/dispatch/affinity.py",
        "if round_.counters.is_closed(lane) or (needs_room",
        "if round_.counters.office(lane.office_id).is_paused or (needs_room",
        _AFFINITY + "a_waiting_caller_holds_back_what_is_loaded_as_well",
    ),
    # Limits that a purge takes.
    Bug(
        "a purge takes limits that a lane has",
        "store/tables/lanes.py",
        "if is_of_jobs(one.limit_key) and one.limit_key not in needed]",
        "if is_of_jobs(one.limit_key)]",
        "tests/engine/test_19_retention.py::test_a_limit_stays_while_a_lane_with_other_limits_has_it_too",
    ),
    Bug(
        "a purge takes limits of lanes that are made meanwhile",
        "store/tables/lanes.py",
        "column_codec.key_set(set(keys) - newer)",
        "column_codec.key_set(set(keys))",
        "tests/engine/test_19_retention.py::test_a_purge_leaves_the_limits_of_lanes_that_are_made_meanwhile",
    ),
    # Devices.
    Bug(
        "a recovery frees the devices of direct work",
        "store/statements/devices.sql",
        "        and direct_executions.status = 'RUNNING');",
        "        and direct_executions.status = 'WAITING');",
        "tests/engine/test_04_devices.py::test_a_recovery_leaves_direct_work_its_devices",
    ),
    # Answers, failures, quotas, messages.
    Bug(
        "a rejection ends a session that failed before it asked",
        "engine/signals/signals.py",
        "runs.of_job(tx, before[-1].job_id)",
        "runs.of_job(tx, before[0].job_id)",
        "tests/engine/test_06_signals.py::test_a_rejection_reaches_a_session_that_failed_before_it_asked",
    ),
    Bug(
        "a session that waits counts as a failure",
        "engine/finish/job_finisher.py",
        "if kind is not FailureKind.PARKED:",
        "if kind is not FailureKind.PARKED or found.line:",
        "tests/engine/test_16_failures.py::test_a_session_that_waits_for_an_answer_has_not_failed",
    ),
    Bug(
        "the quota that a job names is held only if the job needs a resource",
        "engine/finish/job_finisher.py",
        "says_something = lane.resources or outcome.failure_kind is FailureKind.QUOTA",
        "says_something = lane.resources",
        "tests/engine/test_06_quota.py::test_a_resource_that_a_job_names_is_held_though_the_job_needs_none",
    ),
    Bug(
        "a test message goes out in another form than the others",
        "engine/webhooks/webhook_outbox.py",
        "is_own=False, chat=webhook.format)",
        "is_own=False)",
        "tests/engine/test_12_chat_formats.py",
    ),
    # Placed runs.
    Bug(
        "a lease runs out while nobody can read the records",
        "engine/placement/placed_executor.py",
        "        one.lease_over_at = max(one.lease_over_at, self._clock.monotonic() + _first_watch(one.spec))\n",
        "",
        _PLACED,
    ),
    Bug(
        "a stop goes over the claim of a wrapper",
        "engine/placement/placed_executor.py",
        "            return None  # A wrapper claimed first, and must be stopped.\n",
        "            pass\n",
        _PLACED,
    ),
    Bug(
        "the last output of a placed run is lost",
        "engine/placement/placed_executor.py",
        "return None if look.output else await self._outcome(one, look.end)",
        "return await self._outcome(one, look.end)",
        "tests/engines/test_faults.py::test_an_output_above_the_cap_keeps_its_beginning_and_its_end",
    ),
    # Files on other nodes.
    Bug(
        "a node's signature is valid for ever",
        "services/files_of_nodes.py",
        "if abs(int(self._clock.now()) / 1_000_000 - int(time)) > VALID_SECONDS:",
        "if int(time) - int(self._clock.now()) / 1_000_000 > VALID_SECONDS:",
        _SIGNATURE,
    ),
    Bug(
        "a node's signature is valid for every file",
        "services/files_of_nodes.py",
        'text = f"nextslot:files\\n{node_id}\\n{time}\\n{target}"',
        'text = f"nextslot:files\\n{node_id}\\n{time}"',
        _SIGNATURE,
    ),
    # Leases.
    Bug(
        "a node whose lease is renewed again starts nothing",
        "store/postgres/lease_and_leader.py",
        "        if self._has_lapsed:\n            self._notify(lambda: self._membership.member.lapsed(False))\n",
        "",
        NODES,
    ),
)
