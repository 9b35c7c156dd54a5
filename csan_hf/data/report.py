# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What happened to the pairs of a corpus on their way into the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FilterReport:
    """Counts of pairs by split: `read` and `kept`, and by reason those `dropped`, and `noted` (odd, but kept)."""

    read: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    noted: dict[str, Counter[str]] = field(default_factory=dict)

    def start(self, split: str, pairs: int) -> None:
        """Begins counting for a split of `pairs` pairs."""
        self.read.setdefault(split, pairs)
        self.kept[split] = pairs

    def drop(self, split: str, reason: str, pairs: int) -> None:
        """Counts pairs that were removed; 0 leaves no trace."""
        if pairs:
            self.dropped.setdefault(split, Counter())[reason] += pairs
            self.kept[split] -= pairs

    def note(self, split: str, remark: str, pairs: int) -> None:
        """Counts pairs that are kept although something is odd about them; 0 leaves no trace."""
        if pairs:
            self.noted.setdefault(split, Counter())[remark] += pairs

    def add(self, split: str, other: FilterReport, name: str) -> None:
        """Adds the counts of another report's split `name` to those of a split."""
        for mine, theirs in ((self.read, other.read), (self.kept, other.kept)):
            mine[split] = mine.get(split, 0) + theirs[name]
        for counts, more in ((self.dropped, other.dropped), (self.noted, other.noted)):
            if name in more:
                counts.setdefault(split, Counter()).update(more[name])

    def merge(self, later: FilterReport) -> FilterReport:
        """The report of this step followed by a later one."""
        merged = FilterReport(dict(self.read), dict(self.kept))
        for report in (self, later):
            for split, counts in report.dropped.items():
                merged.dropped.setdefault(split, Counter()).update(counts)
            for split, counts in report.noted.items():
                merged.noted.setdefault(split, Counter()).update(counts)
        merged.read = {**later.read, **self.read}
        merged.kept.update(later.kept)
        return merged

    def to_dict(self) -> dict[str, Any]:
        """The counts as plain dictionaries, for JSON."""
        return {
            split: {
                "read": self.read[split],
                "kept": self.kept[split],
                "dropped": dict(self.dropped.get(split, {})),
                "noted": dict(self.noted.get(split, {})),
            }
            for split in self.read
        }

    def __str__(self) -> str:
        lines = []
        for split, counts in self.to_dict().items():
            line = f"{split}: {counts['kept']:,} of {counts['read']:,} pairs"
            for label, reasons in (("dropped", counts["dropped"]), ("kept", counts["noted"])):
                if reasons:
                    line += f"; {label}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
            lines.append(line)
        return "\n".join(lines)
