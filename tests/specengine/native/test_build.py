"""The native pass is compiled once for this processor, or the engine does without it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from specengine.native import build
from specengine.native.build import Variant, best_kernel, load_kernel, usable_variants

EMPTY_SOURCE = """
int specengine_prepare(void) { return PREPARED; }
void specengine_pass(void *pass, void *parallel) { (void)pass; (void)parallel; }
"""


@pytest.fixture
def variant() -> Variant:
    variants = usable_variants()
    if not variants:
        pytest.skip("this processor has none of the instruction sets")
    return variants[-1]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that is compiled in place of the real one, in no time."""
    file = tmp_path / "pass.c"
    file.write_text(EMPTY_SOURCE.replace("PREPARED", "1"))
    monkeypatch.setattr(build, "SOURCE", file)
    best_kernel.cache_clear()
    return file


@pytest.mark.parametrize(
    ("machine", "facts", "names"),
    [
        ("x86_64", "flags\t: fpu avx2 fma avx_vnni", ["avx-vnni", "avx2"]),
        ("x86_64", "flags\t: fpu avx2 fma", ["avx2"]),
        ("x86_64", "flags\t: fpu", []),
        ("aarch64", "Features\t: fp asimd atomics asimddp", ["arm64-dotprod", "arm64"]),
        ("aarch64", "Features\t: fp asimd", ["arm64"]),
        ("riscv64", "isa\t: rv64imafdc", []),
    ],
)
def test_what_a_processor_says_of_itself_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, facts: str, names: list[str]
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\n{facts}\n")
    monkeypatch.setattr(build, "CPU_FACTS", file)
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    assert [variant.name for variant in usable_variants()] == names


def test_a_library_is_compiled_once(tmp_path: Path, source: Path, variant: Variant) -> None:
    for _ in range(2):
        kernel = load_kernel(variant, tmp_path / "native")
        assert kernel is not None
        assert kernel.variant == variant.name
    (library,) = (tmp_path / "native").iterdir()
    assert library.suffix == ".so"


def test_another_source_gives_another_library(
    tmp_path: Path, source: Path, variant: Variant
) -> None:
    load_kernel(variant, tmp_path / "native")
    source.write_text(source.read_text() + "\n")
    load_kernel(variant, tmp_path / "native")
    assert len(list((tmp_path / "native").iterdir())) == 2


def test_without_a_compiler_there_is_no_kernel(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert best_kernel(tmp_path / "native") is None


def test_a_compiled_library_needs_no_compiler(
    tmp_path: Path, source: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_kernel(variant, tmp_path / "native")
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert load_kernel(variant, tmp_path / "native") is not None


def test_source_that_does_not_compile_gives_no_kernel_and_leaves_nothing(
    tmp_path: Path, source: Path, variant: Variant, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text("this is no C")
    assert load_kernel(variant, tmp_path / "native") is None
    assert not list((tmp_path / "native").iterdir())
    assert "did not compile" in caplog.text


def compiler_is(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Make a shell script the only compiler."""
    file = folder / "compiler"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr(build, "COMPILERS", (str(file),))


def test_a_folder_that_cannot_be_made_gives_no_kernel(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the cache is read-only: the model runs all the same, by torch."""
    (tmp_path / "file").touch()
    assert best_kernel(tmp_path / "file" / "native") is None
    assert "no native pass can be kept in" in caplog.text


def test_a_compiler_that_writes_nothing_gives_no_kernel(
    tmp_path: Path, source: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_is(monkeypatch, tmp_path, "exit 0")
    assert load_kernel(variant, tmp_path / "native") is None


def test_a_compiler_may_complain_in_any_encoding(
    tmp_path: Path,
    source: Path,
    variant: Variant,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiler_is(monkeypatch, tmp_path, r"printf 'caf\351' >&2; exit 1")
    assert load_kernel(variant, tmp_path / "native") is None
    assert "caf\N{REPLACEMENT CHARACTER}" in caplog.text


def test_a_unit_that_the_system_keeps_to_itself_is_not_used(
    tmp_path: Path, source: Path, variant: Variant
) -> None:
    source.write_text(EMPTY_SOURCE.replace("PREPARED", "0"))
    assert load_kernel(variant, tmp_path / "native") is None


@pytest.fixture
def damaged(tmp_path: Path, source: Path, variant: Variant) -> Path:
    """Return the folder of a library of which a full disk has left the name."""
    load_kernel(variant, tmp_path / "native")
    (library,) = (tmp_path / "native").iterdir()
    file = tmp_path / "other" / library.name
    file.parent.mkdir()
    file.touch()
    return file.parent


def test_a_library_that_cannot_be_loaded_is_compiled_again(damaged: Path, variant: Variant) -> None:
    assert load_kernel(variant, damaged) is not None


def test_a_library_that_cannot_be_loaded_gives_no_kernel_without_a_compiler(
    damaged: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert load_kernel(variant, damaged) is None


def test_where_one_compiler_fails_the_next_is_asked(
    tmp_path: Path, source: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = build.COMPILERS
    compiler_is(monkeypatch, tmp_path, "exit 1")
    monkeypatch.setattr(build, "COMPILERS", (*build.COMPILERS, *compilers))
    assert load_kernel(variant, tmp_path / "native") is not None


def test_several_may_compile_at_once(tmp_path: Path, source: Path, variant: Variant) -> None:
    kernels: list[object] = []
    threads = [
        threading.Thread(target=lambda: kernels.append(load_kernel(variant, tmp_path / "native")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in kernels
    assert len(kernels) == 4
    assert len(list((tmp_path / "native").iterdir())) == 1


@pytest.mark.parametrize(
    ("machine", "flags", "names"),
    [
        ("x86_64", "fpu avx2 fma", ["avx2"]),
        ("x86_64", "fpu", []),
        ("AMD64", "avx2", []),
        ("aarch64", "", ["arm64"]),
        ("riscv64", "", []),
    ],
)
def test_the_processor_decides_what_can_be_used(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, names: list[str]
) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    monkeypatch.setattr(build, "_processor_flags", lambda: frozenset(flags.split()))
    assert [variant.name for variant in usable_variants()] == names
