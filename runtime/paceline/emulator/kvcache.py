"""Prefix cache in blocks, as vLLM's scheduler keeps it: pure bookkeeping, no clock and no I/O.

Only full blocks are cached. A block's hash chains its parent's hash with its own ids; the salt enters at the
first block. A prompt hits the longest chain of cached blocks, but at most its length - 1 tokens, since the last
token must be computed. Blocks of ended sequences stay cached until their place is needed: the one freed longest
ago goes first, and of one sequence the tail goes first.

One simplification: two sequences with the same prefix share its blocks even when both computed it, where vLLM
keeps a second copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Literal

from paceline.emulator.prefixmemo import PrefixMemo

ID_BYTES = 4
_ROOT = b"paceline-emulator"
_REMEMBERED_CHAINS = 128


@dataclass(frozen=True, slots=True)
class KvEvent:
    """Blocks became cached, or left the cache. `parent` is the hash before the first of `hashes`."""

    sequence_number: int
    kind: Literal["stored", "removed"]
    hashes: tuple[bytes, ...]
    parent: bytes | None = None


def block_hashes(ids: bytes | bytearray, block_size: int, parent: bytes) -> list[bytes]:
    """Chained hashes of the full blocks of uint32 `ids`, which follow the block `parent`."""
    width = block_size * ID_BYTES
    view = memoryview(ids)
    hashes = []
    for at in range(0, len(ids) - width + 1, width):
        parent = blake2b(view[at : at + width], digest_size=16, key=parent).digest()
        hashes.append(parent)
    return hashes


def root_hash(salt: str) -> bytes:
    """The parent of every first block under this salt."""
    return blake2b(salt.encode(), digest_size=16, key=_ROOT).digest()


@dataclass(slots=True, eq=False)
class CachedSequence:
    """The blocks of one running request."""

    ids: bytearray
    """uint32 little-endian prompt and output ids."""
    root: bytes
    hashes: list[bytes] = field(default_factory=list)
    """The computed full blocks, in order."""
    computed: int = 0
    """Tokens whose KV is in the cache."""
    blocks: int = 0
    """Blocks held, full and partial."""
    hit_tokens: int = 0
    """Tokens found in the cache at the start."""

    @property
    def tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.ids) // ID_BYTES


class BlockCache:
    """A pool of KV blocks with prefix caching. Everything here mutates it except `usage`, `hit` and `check`."""

    def __init__(self, num_blocks: int, block_size: int, *, event_limit: int = 100_000) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.events: list[KvEvent] = []
        self._event_limit = event_limit
        self._next_event = 0
        self._chains: PrefixMemo[list[bytes]] = PrefixMemo(_REMEMBERED_CHAINS)
        self._empty = num_blocks
        self._holders: dict[bytes, int] = {}
        """How many sequences hold each cached block."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Cached blocks that nobody holds, the next to go first."""

    @property
    def usage(self) -> float:
        """Share of the blocks that running sequences hold; cached idle blocks count as free, as in vLLM."""
        return 1 - self._available / self.num_blocks if self.num_blocks else 0.0

    @property
    def _available(self) -> int:
        return self._empty + len(self._idle)

    def start(self, prompt: bytes | bytearray, salt: str) -> CachedSequence | None:
        """Begin a sequence: hold the cached prefix and a place for the rest. None: there is no room now."""
        root = root_hash(salt)
        hit = self.hit(prompt, root)
        sequence = CachedSequence(ids=bytearray(prompt), root=root, hashes=hit)
        needed = -(-sequence.tokens // self.block_size)
        idle_hits = sum(1 for block in hit if not self._holders[block])
        if needed - len(hit) > self._available - idle_hits:
            return None
        for block in hit:
            self._hold(block)
        sequence.hit_tokens = sequence.computed = len(hit) * self.block_size
        sequence.blocks = len(hit)
        self._grow(sequence, needed)
        return sequence

    def hit(self, prompt: bytes | bytearray, root: bytes) -> list[bytes]:
        """The cached blocks that this prompt begins with."""
        most = (len(prompt) // ID_BYTES - 1) // self.block_size
        chain = self._chain(root, bytes(prompt[: most * self.block_size * ID_BYTES]))
        known = self._holders
        length = next((at for at, block in enumerate(chain) if block not in known), len(chain))
        return chain[:length]

    def _chain(self, root: bytes, ids: bytes) -> list[bytes]:
        """`block_hashes` of whole blocks; where an earlier prompt goes on, only its new end is hashed."""
        text = root + ids
        known = self._chains.longest(text)
        prefix, hashes = known or (root, [])
        parent = hashes[-1] if hashes else root
        fresh = block_hashes(text[len(prefix) :], self.block_size, parent)
        if fresh:
            hashes = [*hashes, *fresh]
            self._chains.put(text, hashes, instead=known and prefix)
        return hashes

    def compute(self, sequence: CachedSequence, upto: int) -> None:
        """The first `upto` tokens of the sequence are computed: cache every block that became full."""
        sequence.computed = upto
        done = len(sequence.hashes)
        full = upto // self.block_size
        if full == done:
            return
        width = self.block_size * ID_BYTES
        parent = sequence.hashes[-1] if sequence.hashes else sequence.root
        fresh = block_hashes(sequence.ids[done * width : full * width], self.block_size, parent)
        stored = [block for block in fresh if block not in self._holders]
        for block in fresh:
            if block in self._holders:
                self._hold(block)
                self._empty += 1
            else:
                self._holders[block] = 1
        sequence.hashes.extend(fresh)
        if stored:
            self._publish("stored", stored, parent)

    def append(self, sequence: CachedSequence, ids: bytes) -> bool:
        """Add output ids. The last one is computed by the next step only. False: no room, nothing was added."""
        needed = -(-(sequence.tokens + len(ids) // ID_BYTES) // self.block_size)
        if needed - sequence.blocks > self._available:
            return False
        self._grow(sequence, needed)
        sequence.ids += ids
        self.compute(sequence, sequence.tokens - 1)
        return True

    def release(self, sequence: CachedSequence) -> None:
        """End a sequence. Its full blocks stay cached."""
        self._empty += sequence.blocks - len(sequence.hashes)
        for block in reversed(sequence.hashes):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._idle[block] = None
        sequence.hashes = []
        sequence.blocks = 0

    def clear(self) -> None:
        """Forget every idle block."""
        self._evict(len(self._idle))

    def events_since(self, sequence_number: int) -> AbstractSequence[KvEvent]:
        """Kept events with this number or a later one."""
        first = self.events[0].sequence_number if self.events else 0
        return self.events[max(0, sequence_number - first) :]

    def check(self, running: AbstractSequence[CachedSequence]) -> None:
        """Audit the books against the running sequences. Raises `AssertionError` where they do not fit."""
        counts: dict[bytes, int] = dict.fromkeys(self._holders, 0)
        for sequence in running:
            for block in sequence.hashes:
                counts[block] += 1
        if counts != self._holders:
            raise AssertionError("the holders of the cached blocks do not fit the running sequences")
        if set(self._idle) != {block for block, holders in counts.items() if not holders}:
            raise AssertionError("the idle blocks are not the cached blocks without a holder")
        private = sum(sequence.blocks - len(sequence.hashes) for sequence in running)
        if self._empty + len(self._holders) + private != self.num_blocks:
            raise AssertionError("blocks were lost or made up")

    def _hold(self, block: bytes) -> None:
        if not self._holders[block]:
            del self._idle[block]
        self._holders[block] += 1

    def _grow(self, sequence: CachedSequence, blocks: int) -> None:
        wanted = blocks - sequence.blocks
        if wanted > self._empty:
            self._evict(wanted - self._empty)
        self._empty -= wanted
        sequence.blocks = blocks

    def _evict(self, count: int) -> None:
        victims = list(islice(self._idle, count))
        for block in victims:
            del self._idle[block], self._holders[block]
        self._empty += len(victims)
        if victims:
            self._publish("removed", victims)

    def _publish(
        self, kind: Literal["stored", "removed"], hashes: list[bytes], parent: bytes | None = None
    ) -> None:
        self.events.append(KvEvent(self._next_event, kind, tuple(hashes), parent))
        self._next_event += 1
        if len(self.events) > self._event_limit:
            del self.events[: self._event_limit // 2]
