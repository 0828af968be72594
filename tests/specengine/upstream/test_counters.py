"""Facts about the counters of servers."""

from __future__ import annotations

from specengine.upstream.counters import read_counters

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 113.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 7.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 448.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 3.42e+02
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 100.0
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e+09
vllm:num_requests_running{engine="0"} 1.0
"""


def test_counters_of_vllm_are_summed_over_engines():
    assert read_counters(VLLM) == {
        "spec_decode_num_drafts_total": 120.0,
        "spec_decode_num_draft_tokens_total": 448.0,
        "spec_decode_num_accepted_tokens_total": 342.0,
    }


def test_counters_without_labels_are_read():
    page = "llamacpp:spec_decode_num_draft_tokens_total 12\n"
    assert read_counters(page) == {"spec_decode_num_draft_tokens_total": 12.0}


def test_gauges_of_sglang_are_not_summed():
    page = 'sglang:spec_accept_length{rank="0"} 2.5\nsglang:spec_accept_length{rank="1"} 2.7\n'
    assert read_counters(page) == {"spec_accept_length": 2.7}


def test_pages_of_something_else_hold_none():
    assert read_counters("<html>vllm:spec_decode_num_drafts_total</html>") == {}
    assert read_counters("vllm:spec_decode_num_drafts_total 1.2.3\n") == {}
