"""What a scraper reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specengine.decoding.session import Drafting
from specengine.engine import Status
from specengine.metrics import MAX_DRAFTERS, OTHER, Metrics
from specengine.protocol import EngineState, PhaseTimes, TokenCounts
from specengine.record import Record
from specengine.watch import Watch


def status() -> Status:
    return Status(EngineState.READY, "tiny", "suffix", 1.0, "ready", active=2, waiting=3)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    content, kind = metrics.render()
    assert kind.startswith("text/plain")
    families = text_string_to_metric_families(content.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def record(drafter: str = "suffix") -> Record:
    ms = PhaseTimes(queue=1.0, prefill=20.0, draft=0.5, verify=200.0, total=230.0)
    tokens = TokenCounts(prompt=10, reused=7, prefilled=3, drafted=12, accepted=6, emitted=9)
    told = {
        drafter: Drafting(drafts=4, drafted=12, accepted=6, accepted_at=[3, 2, 1]),
        "": Drafting(timed_tokens=2, verify_ms=4.0),
    }
    return Record(100.0, 1, "length", drafter, ms, tokens, 5, told, "def secret", "text")


def test_drafts_are_counted_under_vllm_s_suffixes() -> None:
    metrics = Metrics(status, Watch())
    metrics.add(record())
    metrics.add(record())
    known = samples(metrics)
    suffix = (("drafter", "suffix"),)
    assert known["specengine:spec_decode_num_drafts_total", suffix] == 8
    assert known["specengine:spec_decode_num_draft_tokens_total", suffix] == 24
    assert known["specengine:spec_decode_num_accepted_tokens_total", suffix] == 12
    name = "specengine:spec_decode_num_accepted_tokens_per_pos_total"
    by_place = [known[name, (*suffix, ("position", str(at)))] for at in range(3)]
    assert by_place == [6, 4, 2]
    assert sum(by_place) == 12


def test_requests_tokens_and_phases_are_counted() -> None:
    metrics = Metrics(status, Watch())
    metrics.add(record())
    known = samples(metrics)
    assert known["specengine:requests_total", (("result", "length"),)] == 1
    assert known["specengine:prompt_tokens_total", (("source", "reused"),)] == 7
    assert known["specengine:generation_tokens_total", ()] == 9
    phase = (("phase", "verify"),)
    assert known["specengine:phase_seconds_sum", phase] == pytest.approx(0.2)
    assert known["specengine:phase_seconds_bucket", (("le", "0.1"), *phase)] == 0
    assert known["specengine:phase_seconds_bucket", (("le", "0.2"), *phase)] == 1


def test_phases_are_timed_of_requests_that_wrote_something() -> None:
    """One that ended while it waited has read and verified nothing in no time."""
    metrics = Metrics(status, Watch())
    metrics.add(record())
    metrics.add(replace(record(), result="superseded", steps=0, ms=PhaseTimes(queue=90.0)))
    known = samples(metrics)
    assert known["specengine:requests_total", (("result", "superseded"),)] == 1
    assert known["specengine:phase_seconds_count", (("phase", "prefill"),)] == 1


def test_states_are_read_when_asked() -> None:
    watch = Watch()
    metrics = Metrics(status, watch)
    known = samples(metrics)
    assert known["specengine:num_requests_running", ()] == 2
    assert known["specengine:num_requests_waiting", ()] == 3
    watch.switch_off("precision", "int8", 'it says "no"')
    labels = (("kind", "precision"), ("name", "int8"), ("reason", 'it says "no"'))
    assert samples(metrics)["specengine:switched_off", labels] == 1


def test_names_of_drafters_do_not_fill_the_memory() -> None:
    metrics = Metrics(status, Watch())
    for number in range(MAX_DRAFTERS + 10):
        metrics.add(record(f"drafter {number}"))
    known = samples(metrics)
    counted = [key for key in known if key[0] == "specengine:spec_decode_num_drafts_total"]
    assert len(counted) == MAX_DRAFTERS + 1
    assert known["specengine:spec_decode_num_drafts_total", (("drafter", OTHER),)] == 40


def test_no_metric_holds_text() -> None:
    metrics = Metrics(status, Watch())
    metrics.add(record())
    assert b"secret" not in metrics.render()[0]
