"""Small bugs in cancels, moves, timers, clock steps, wake-ups, deliveries and keys; `planted_source` plants them."""

from tests.simulation.planted_bug import HTTP, Bug

_CLOCK = "tests/engine/test_05_clock_steps.py::test_"
_DIRECT = "tests/engine/test_11_direct.py::test_"
_ORDER = "tests/engine/test_03_order.py::test_"
_OUTAGES = "tests/engine/test_04_outages.py::test_"
_QUOTA = "tests/engine/test_06_quota.py::test_"
_SIGNALS = "tests/engine/test_06_signals.py::test_"
_CANCEL = "tests/engine/test_07_cancel.py::test_"
_SCHEDULES = "tests/engine/test_10_schedules.py::test_"
_DELIVERIES = "tests/engine/test_12_deliveries.py::test_"

RULES = (
    # The lane and the place of a job that was changed.
    Bug(
        "a changed job stays in its lane",
        "store/statements/jobs.sql",
        "resources = :resources, affinity = :affinity, lane_id = :lane_id\nwhere",
        "resources = :resources, affinity = :affinity\nwhere",
        "tests/engine/test_02_job_and_run.py::test_other_params_work_resources_and_limits_out_again",
    ),
    Bug(
        "a changed job is counted in its old lane",
        "engine/submit/queue_order.py",
        "            counters.add_ready(after.lane_id, ",
        "            counters.add_ready(before.lane_id, ",
        "tests/engine/test_02_job_and_run.py::test_other_params_work_resources_and_limits_out_again",
    ),
    Bug(
        "a job that moves down by some places counts itself",
        "store/statements/jobs.sql",
        "where office_id = :office_id and stage = 'QUEUED' and job_id <> :but\norder by order_priority desc",
        "where office_id = :office_id and stage = 'QUEUED' and :but = :but\norder by order_priority desc",
        _ORDER + "a_job_moves_where_it_is_told",
    ),
    Bug(
        "a moved job takes the position of another",
        "engine/submit/queue_order.py",
        "if position - below > (count + 1) ** 2:",
        "if position - below >= (count + 1) ** 2:",
        _ORDER + "thousands_of_moves_into_the_same_spot_cost_little_and_keep_the_order",
    ),
    Bug(
        "jobs that make room take the place that they make",
        "engine/submit/queue_order.py",
        "enumerate(between, start=2)",
        "enumerate(between, start=1)",
        _ORDER + "thousands_of_moves_into_the_same_spot_cost_little_and_keep_the_order",
    ),
    Bug(
        "a job that is moved behind another is put before it",
        "engine/submit/queue_order.py",
        "self._free_position(tx, job.office_id, other.position, other,",
        "self._free_position(tx, job.office_id, other.position - 1, other,",
        _ORDER + "thousands_of_moves_into_the_same_spot_cost_little_and_keep_the_order",
    ),
    Bug(
        "an order names jobs of another office",
        "engine/submit/queue_order.py",
        "if office_id in (None, job.office_id)",
        "if office_id in (None, office_id)",
        "tests/server/test_18_neighbours.py::test_a_foreign_neighbour_in_an_order_is_answered_like_an_unknown_one",
    ),
    Bug(
        "no event says that a job was made due by hand",
        "engine/submit/queue_order.py",
        '            if not before.is_ready:\n                self._events.note(tx, "job_ready"',
        '            if False:\n                self._events.note(tx, "job_ready"',
        "tests/engine/test_02_job_and_run.py::test_a_job_that_is_made_due_by_hand_is_told_of",
    ),
    # A second cancel.
    Bug(
        "a second cancel takes an interrupt back",
        "domain/job_lifecycle.py",
        "if CancelMode.INTERRUPT in (wanted, job.cancel_mode):",
        "if wanted is CancelMode.INTERRUPT:",
        "tests/domain/test_lifecycle.py::test_cancel_depends_on_what_the_job_does_and_on_who_asks_how",
    ),
    Bug(
        "a second cancel changes nothing",
        "engine/finish/job_finisher.py",
        "if job.cancel_mode is not mode:",
        "if job.cancel_mode is None:",
        _CANCEL + "a_second_request_may_turn_finish_into_interrupt",
    ),
    Bug(
        "a second cancel keeps the mode of the first",
        "store/statements/jobs.sql",
        "cancel_mode = :mode,",
        "cancel_mode = coalesce(cancel_mode, :mode),",
        _CANCEL + "a_second_request_may_turn_finish_into_interrupt",
    ),
    Bug(
        "a second cancel replaces the reason of the first",
        "store/statements/jobs.sql",
        "cancel_reason = coalesce(cancel_reason, :reason)",
        "cancel_reason = :reason",
        _CANCEL + "a_second_request_may_turn_finish_into_interrupt",
    ),
    Bug(
        "a second cancel moves the time of the first",
        "store/statements/jobs.sql",
        "cancel_requested_at = coalesce(cancel_requested_at, :now)",
        "cancel_requested_at = :now",
        _CANCEL + "a_second_request_may_turn_finish_into_interrupt",
    ),
    Bug(
        "a job that expires after it was cancelled ends twice",
        "engine/finish/job_finisher.py",
        "if current is not None and current.stage is Stage.QUEUED:",
        "if current is not None:",
        "tests/engine/test_08_dependencies.py::test_a_job_that_expires_with_what_it_depends_on_ends_once",
    ),
    Bug(
        "the cancel of a large group leaves what runs",
        "engine/finish/job_finisher.py",
        "            some = jobs.live_members(tx, group.group_id, ALL)\n",
        "            pass\n",
        _CANCEL + "a_large_group_is_cancelled_as_a_whole_too",
    ),
    # What a retry is.
    Bug(
        "a retry inherits the webhook status of its job",
        "engine/finish/retries.py",
        '            webhook_status="none",\n',
        "",
        _DELIVERIES + "webhook_status_of_a_retry_is_its_own",
    ),
    # Timers.
    Bug(
        "the timer forgets the time limit of direct work",
        "engine/direct/direct_requests.py",
        "for at in (wait, timeout, renewal) if",
        "for at in (wait, renewal) if",
        _DIRECT + "direct_work_always_has_a_timeout",
    ),
    Bug(
        "the timer forgets how long a caller waits",
        "engine/direct/direct_requests.py",
        "for at in (wait, timeout, renewal) if",
        "for at in (timeout, renewal) if",
        _DIRECT + "a_wait_runs_out_though_another_one_has_run_out_before",
    ),
    Bug(
        "the timer forgets the renewal of reservations",
        "engine/direct/direct_requests.py",
        "for at in (wait, timeout, renewal) if",
        "for at in (wait, timeout) if",
        _DIRECT + "the_reservation_is_renewed_while_its_owner_lives",
    ),
    Bug(
        "a reservation sets no timer",
        "engine/direct/direct_requests.py",
        "        self._timer.note_here(tx, now.after(RESERVATION_SECONDS - RENEWED_BEFORE_SECONDS))\n",
        "",
        _DIRECT + "the_reservation_is_renewed_while_its_owner_lives",
    ),
    Bug(
        "a new schedule sets no timer",
        "engine/schedules/schedule_settings.py",
        "        self._timer.note(tx, upcoming)\n",
        "",
        _SCHEDULES + "every_occurrence_makes_a_job_of_its_template",
    ),
    Bug(
        "a resource that is held sets no timer",
        "engine/dispatch/resource_outages.py",
        "        outages.hold(tx, resource, pause, now)\n        self._timer.note(tx, now.after(pause))\n",
        "        outages.hold(tx, resource, pause, now)\n",
        _OUTAGES + "a_held_resource_is_tried_though_nothing_else_is_due",
    ),
    Bug(
        "a resource whose quota is used up sets no timer",
        "engine/dispatch/resource_outages.py",
        "            self._timer.note(tx, until)\n",
        "",
        _QUOTA + "a_direct_caller_waits_while_the_quota_is_used_up",
    ),
    Bug(
        "a success that began before ends the hold of a quota",
        "store/statements/outages.sql",
        "delete from outages where resource = :resource and quota_until is null returning",
        "delete from outages where resource = :resource returning",
        _QUOTA + "a_success_that_began_before_does_not_end_the_hold",
    ),
    Bug(
        "the hold of a renewed quota does not end",
        "engine/dispatch/resource_outages.py",
        "[one for one in due if one.quota_until is not None]",
        "[one for one in due if one.quota_until is None]",
        _QUOTA + "a_used_up_quota_holds_its_resource_until_it_is_renewed_and_asks_once",
    ),
    Bug(
        "a used-up quota counts as a retry",
        "domain/retry.py",
        "    if kinds[-1] in (FailureKind.QUOTA, FailureKind.PARKED):\n        return False\n",
        "",
        _QUOTA + "a_used_up_quota_costs_no_retry_however_often_it_comes",
    ),
    Bug(
        "a job that has expired starts while the timer is late",
        "engine/execution/timeouts.py",
        "any(at is not None and at < now for at in (self._due, self._next))",
        "any(at is not None and at > now for at in (self._due, self._next))",
        _ORDER + "a_job_that_has_expired_never_starts_even_before_its_timer_rings",
    ),
    Bug(
        "a cancelled run says that its resource answers",
        "engine/dispatch/resource_outages.py",
        "(FailureKind.CRASH, FailureKind.INTERRUPTED, FailureKind.CANCELLED)",
        "(FailureKind.CRASH, FailureKind.INTERRUPTED)",
        _OUTAGES + "a_cancelled_run_says_nothing_about_its_resource",
    ),
    # Steps of the clock.
    Bug(
        "the time limit of direct work does not follow the clock",
        "store/statements/due_times.sql",
        "wait_until = wait_until + :shift, timeout_at = timeout_at + :shift",
        "wait_until = wait_until + :shift",
        _CLOCK + "a_callers_work_has_its_time_and_its_reservation_stays",
    ),
    Bug(
        "the wait of a caller does not follow the clock",
        "store/statements/due_times.sql",
        "wait_until = wait_until + :shift, timeout_at = timeout_at + :shift",
        "timeout_at = timeout_at + :shift",
        _CLOCK + "a_caller_waits_as_long_as_it_said",
    ),
    Bug(
        "retries are moved against the clock",
        "store/statements/due_times.sql",
        "scheduled_for = scheduled_for + :shift",
        "scheduled_for = scheduled_for - :shift",
        _CLOCK + "a_retry_waits_for_its_delay",
    ),
    Bug(
        "times that callers have given are moved with the clock",
        "store/statements/due_times.sql",
        "is_due = 0 and retry_of is not null",
        "is_due = 0",
        _CLOCK + "a_job_that_a_caller_planned_starts_when_the_clock_says_so",
    ),
    Bug(
        "deliveries in memory do not follow the clock",
        "engine/cluster/clock_steps.py",
        "            self._deliveries.shift(shift)\n",
        "            pass\n",
        _CLOCK + "a_delivery_is_tried_again_after_5_and_15_seconds",
    ),
    Bug(
        "how long a job was passed over does not follow the clock",
        "store/tables/due_times.py",
        '    tx.execute("due_times.shift_ages", shift=shift)\n',
        "",
        _CLOCK + "a_job_that_others_go_past_starves_after_its_time",
    ),
    # Nobody is woken.
    Bug(
        "a raised limit of an office wakes nobody",
        "engine/settings/office_settings.py",
        "limit.limit_key, office))\n        self._lanes.counters(tx).office(office.office_id)\n",
        "limit.limit_key, office))\n",
        "tests/engine/test_04_limits_and_dispatch.py::test_a_limit_that_is_changed_applies_at_once_and_stops_no_running_job",
    ),
    Bug(
        "raised limits of the configuration wake nobody",
        "engine/settings/office_settings.py",
        "        self._lanes.counters(tx).include_all_offices()\n",
        "",
        "tests/config/test_reload.py",
    ),
    Bug(
        "a resource that answers again wakes nobody",
        "engine/dispatch/resource_outages.py",
        "            self._lanes.counters(tx).is_freed = True\n",
        "",
        _OUTAGES + "a_probe_is_asked_instead_of_a_job",
    ),
    Bug(
        "the end of a starving job wakes no other office",
        "engine/finish/job_finisher.py",
        "        if job.passed_over_since is not None:\n            counters.is_freed = True\n",
        "",
        "tests/engine/test_04_limits_and_dispatch.py::test_what_was_kept_for_a_starving_job_goes_to_other_offices_once_it_is",
    ),
    # Schedules.
    Bug(
        "an occurrence fires again after the clock was set back",
        "engine/schedules/schedule_trigger.py",
        "accounted = max(now, occurrences.last(tx, schedule.schedule_id) or now)",
        "accounted = now",
        _SCHEDULES + "after_a_clock_was_set_back_a_schedule_goes_on_after_the_last_instant_that_fired",
    ),
    Bug(
        "a trigger by hand leaves a gap in the ledger",
        "engine/schedules/schedule_trigger.py",
        "Progress(schedule_id, now, schedule.accounted_until, schedule.next_trigger_at)",
        "Progress(schedule_id, now, now, schedule.next_trigger_at)",
        _SCHEDULES + "a_trigger_by_hand_while_disabled_leaves_no_gap_in_the_ledger",
    ),
    Bug(
        "times while a schedule was disabled are not in the ledger",
        "engine/schedules/schedule_trigger.py",
        "        if left_out is not None:\n            self._account_skipped(tx, [(schedule, left_out)], now)\n"
        "        return replace(schedule, acc",
        "        return replace(schedule, acc",
        _SCHEDULES + "times_while_disabled_are_one_row_for_the_whole_span",
    ),
    # Deliveries.
    Bug(
        "a message whose result is being stored is sent again",
        "engine/webhooks/delivery_worker.py",
        "if delivery.delivery_id not in before and delivery.delivery_id not in endpoint.taken:",
        "if True:",
        _DELIVERIES + "what_was_sent_while_the_store_was_being_read_is_not_sent_again",
    ),
    Bug(
        "a job whose message has failed says that it was delivered",
        "store/statements/deliveries.sql",
        "when sum(case when status = 'FAILED' then 1 else 0 end) > 0 then 'failed'",
        "when sum(case when status = 'FAILED' then 1 else 0 end) > 1 then 'failed'",
        _DELIVERIES + "webhook_status_is_failed_if_one_of_several_has_failed",
    ),
    # Dependents and callers.
    Bug(
        "the dependents of a chain that was retried are forgotten",
        "store/statements/jobs.sql",
        "dependencies.chain_id = jobs.chain_id and dependencies.is_met = 0)",
        "dependencies.chain_id = jobs.job_id and dependencies.is_met = 0)",
        "tests/engine/test_08_dependencies.py::test_the_success_of_a_retry_counts",
    ),
    Bug(
        "a chain that is retried by hand dooms new dependents",
        "store/statements/dependencies.sql",
        "    and not exists (select 1 from jobs later where later.retry_of = jobs.job_id);",
        "    ;",
        "tests/engine/test_08_dependencies.py::test_while_a_chain_is_retried_by_hand_nothing_is_doomed",
    ),
    Bug(
        "a stop sends only the first waiting caller away",
        "engine/direct/direct_requests.py",
        "if not caller.has_started]:",
        "if not caller.has_started][:1]:",
        _DIRECT + "while_draining_waiting_callers_are_sent_away_and_running_work_finishes",
    ),
    Bug(
        "callers starve the jobs of other offices unnoticed",
        "engine/dispatch/dispatcher.py",
        "                note_passed_over_by_caller(round_, lane)\n",
        "",
        _DIRECT + "spec_4_12_callers_who_come_without_end_do_not_starve_the_job_of_another_office",
    ),
    Bug(
        "of several jobs that starve the last goes first",
        "engine/dispatch/starvation.py",
        "head.place < first[office_id][1].place",
        "head.place > first[office_id][1].place",
        "tests/engine/test_04_limits_and_dispatch.py::"
        "test_one_starving_job_per_office_keeps_units_back_and_only_those_it_needs",
    ),
    # Keys and offices, by clients that ask over HTTP.
    Bug(
        "a key sees the runs of other offices",
        "server/auth.py",
        'caller.check_thing((await scheduler.job(run.job_id)).office_id, "run", run.run_id)',
        'caller.check_thing(caller.office_id, "run", run.run_id)',
        HTTP,
    ),
    Bug(
        "a list shows the offices that a key names",
        "server/auth.py",
        "        for office_id in office_ids:\n            self.check_office(office_id)\n"
        "        return (self.office_id,)",
        "        return office_ids or (self.office_id,)",
        HTTP,
    ),
    Bug(
        "a key that was rotated opens for ever",
        "store/statements/keys.sql",
        "and old_key_until > :now;",
        "and :now = :now;",
        HTTP,
    ),
    Bug(
        "a key may do what needs the next scope",
        "server/auth.py",
        "if not caller.scope.includes(scope):",
        "if not caller.scope.includes(scope) and scope is Scope.ADMIN:",
        HTTP,
    ),
    # Answers to jobs that wait for somebody.
    Bug(
        "another payload is taken for the same answer",
        "engine/signals/signals.py",
        "if (before.answer, before.payload) == (answer, payload):",
        "if before.answer == answer:",
        _SIGNALS + "the_same_answer_again_is_the_same_and_another_one_is_refused",
    ),
    Bug(
        "an answer that is sent again with its id answers the next wait",
        "engine/signals/signals.py",
        "None if signal_id is None else signals.sent(tx, job.chain_id, name, signal_id)",
        "None",
        _SIGNALS + "the_first_answer_sent_again_late_does_not_answer_the_next_wait",
    ),
    Bug(
        "an answer after the deadline counts until the timer has come",
        "engine/signals/signals.py",
        "if last.answer_by is not None and last.answer_by <= now and sent_by != BY_DEADLINE:",
        "if last.answer_by is not None and last.answer_by <= now and sent_by == BY_DEADLINE:",
        _SIGNALS + "an_answer_after_the_deadline_is_late_even_if_the_timer_has_not_come_yet",
    ),
    Bug(
        "somebody who is not named may answer",
        "engine/signals/signals.py",
        "if callers is not None and allowed and not set(callers) & set(allowed):",
        "if callers is not None and allowed and not set(callers):",
        _SIGNALS + "only_those_who_are_named_may_answer",
    ),
    Bug(
        "every deadline rejects",
        "engine/signals/signals.py",
        'answer = Answer(job.await_signal["on_deadline"])',
        "answer = Answer.REJECT",
        _SIGNALS + "without_an_answer_in_time_the_default_answers",
    ),
    Bug(
        "after a restart nothing wakes up for the deadline of an answer",
        "store/statements/jobs.sql",
        "    (select min(answer_by) from jobs where stage = 'QUEUED' and is_awaiting = 1 and answer_by is not null),",
        "    null,",
        _SIGNALS + "a_wait_survives_a_restart_and_its_deadline_too",
    ),
    Bug(
        "a rejection ends a parked session",
        "engine/signals/signals.py",
        "elif signal.answer is Answer.REJECT and not self._is_parked(tx, job):",
        "elif signal.answer is Answer.REJECT:",
        _SIGNALS + "a_parked_run_uses_up_no_attempt_and_goes_on_with_the_answer",
    ),
)
