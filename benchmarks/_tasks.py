"""Coding tasks for a real model: small programs, what is asked about them, and what tools answered."""

from __future__ import annotations

from dataclasses import dataclass

PROGRAMS = {
    "stack.py": '''class Stack:
    """A last-in, first-out store with a fixed capacity."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.items = []

    def push(self, item):
        if len(self.items) >= self.capacity:
            raise OverflowError("the stack is full")
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items.pop()

    def peek(self):
        return self.items[-1]

    def size(self):
        return len(self.items)
''',
    "intervals.py": '''def merge(intervals):
    """Merge overlapping (start, end) pairs."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total_length(intervals):
    """Length that the intervals cover together."""
    return sum(end - start for start, end in merge(intervals))


def contains(intervals, point):
    """Whether any interval holds the point."""
    return any(start <= point < end for start, end in intervals)
''',
    "inventory.py": '''class Inventory:
    """Counts of goods by name."""

    def __init__(self):
        self.counts = {}

    def add(self, name, count):
        if count <= 0:
            raise ValueError("count must be positive")
        self.counts[name] = self.counts.get(name, 0) + count

    def remove(self, name, count):
        if self.counts.get(name, 0) < count:
            raise ValueError("not enough " + name)
        self.counts[name] -= count
        if self.counts[name] == 0:
            del self.counts[name]

    def total(self):
        return sum(self.counts.values())
''',
    "matrix.py": '''def transpose(matrix):
    """Swap rows and columns."""
    return [list(column) for column in zip(*matrix)]


def multiply(left, right):
    """The product of two matrices."""
    columns = transpose(right)
    result = []
    for row in left:
        result.append([sum(a * b for a, b in zip(row, column)) for column in columns])
    return result


def identity(size):
    """The identity matrix."""
    return [[1 if row == column else 0 for column in range(size)] for row in range(size)]
''',
    "schedule.py": '''from collections import deque


def order(tasks):
    """Tasks in an order that honours their requirements; `tasks` maps a name to the names it needs."""
    needed_by = {}
    missing = {}
    for name, needs in tasks.items():
        missing[name] = len(needs)
        for need in needs:
            needed_by.setdefault(need, []).append(name)
    ready = deque(sorted(name for name, count in missing.items() if count == 0))
    result = []
    while ready:
        name = ready.popleft()
        result.append(name)
        for other in needed_by.get(name, []):
            missing[other] -= 1
            if missing[other] == 0:
                ready.append(other)
    return result
''',
}

QUESTIONS = (
    "Find out why the tests fail and repair the program.",
    "Add a method that returns a copy, and show how it is used.",
    "Make the program safe for bad input.",
    "Write two unit tests for the most complex part.",
)

RESULTS = (
    "$ python -m pytest -q\nE       AssertionError: expected 3, got 2\n1 failed, 1 passed in 0.03s",
    "$ git diff --stat\n 1 file changed, 4 insertions(+), 1 deletion(-)",
    "$ python -m pytest -q\n2 passed in 0.02s",
    "$ ruff check .\nAll checks passed!",
)


@dataclass(frozen=True, slots=True)
class Edit:
    """A turn that copies a program with a small change."""

    name: str
    prompt: str


def edits() -> list[Edit]:
    """One edit of each program."""
    renames = {
        "stack.py": "Rename the method `push` to `put`",
        "intervals.py": "Rename the function `merge` to `merge_all`",
        "inventory.py": "Rename the attribute `counts` to `stock`",
        "matrix.py": "Rename the parameter `matrix` of `transpose` to `rows`",
        "schedule.py": "Rename the variable `ready` to `queue`",
    }
    return [
        Edit(name, f"{change} in the file below. Answer with the complete file only.\n\n```python\n{program}```")
        for (name, program), change in zip(PROGRAMS.items(), renames.values(), strict=True)
    ]
