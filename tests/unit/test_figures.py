"""The README's figures are exactly rows of FIGURES.md."""

import pytest

from tests.benchmarks import report
from tests.benchmarks.figures import Figure


def test_readme_has_the_headlines_of_the_figures():
    """Otherwise the README would show figures that no benchmark has measured."""
    readme = report.README.read_text()
    assert report.with_headlines(readme, report.FIGURES.read_text()) == readme


def test_benchmark_replaces_its_section_and_its_headlines(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a benchmark would delete the results of other benchmarks."""
    readme, figures = tmp_path / "README.md", tmp_path / "FIGURES.md"
    monkeypatch.setattr(report, "README", readme)
    monkeypatch.setattr(report, "FIGURES", figures)
    readme.write_text(f"before\n{report.BEGIN}stale\n{report.END}after\n")
    figures.write_text("# Figures\n\n## Sweeping\n\nas it was\n")
    for ours in ("9 ms", "7 ms"):
        rows = [
            Figure(what=what, ours=ours, instead="9 s", ratio="1×") for what in ("other", report.HEADLINES[0])
        ]
        report.write("discovery", rows)
    row = f"| {report.HEADLINES[0]} | 7 ms | 9 s | 1× |\n"
    assert readme.read_text() == f"before\n{report.BEGIN}{report.HEADER}{row}{report.END}after\n"
    assert "as it was" in figures.read_text()
    assert row in figures.read_text()
    assert "9 ms" not in figures.read_text()
    assert report.absent() == [*report.HEADLINES[1:]]
