"""Placement and admission: nobody exceeds a replica's capacity, nobody is lost, tenants take turns."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.routing.admission import Admission, Waiter
from paceline.routing.placement import ReplicaLoad, ReplicaPhase, choose


def replica(
    name: str, capacity: int = 1, running: int = 0, phase: ReplicaPhase = ReplicaPhase.READY
) -> ReplicaLoad:
    return ReplicaLoad(name, "m", capacity, phase, running)


def admission(*replicas: ReplicaLoad) -> Admission:
    made = Admission()
    for one in replicas:
        made.add(one)
    return made


def test_a_new_workflow_goes_to_the_least_loaded() -> None:
    chosen = choose([replica("a", 4, 2), replica("b", 4, 1), replica("c", 8, 3)], None)
    assert chosen is not None
    assert chosen.name == "b"


def test_a_bound_workflow_waits_for_its_replica_and_leaves_a_dead_one() -> None:
    full = replica("a", 1, 1)
    assert choose([full, replica("b")], "a") is None
    full.phase = ReplicaPhase.DOWN
    moved = choose([full, replica("b")], "a")
    assert moved is not None
    assert moved.name == "b"


def test_a_replica_that_starts_takes_nothing() -> None:
    assert choose([replica("a", phase=ReplicaPhase.STARTING)], None) is None


def test_waiting_tenants_take_turns() -> None:
    queue = admission(replica("a"))
    assert queue.request(Waiter("x", "m"))
    waiters = [Waiter("x", "m"), Waiter("x", "m"), Waiter("x", "m"), Waiter("y", "m")]
    assert [queue.request(waiter) for waiter in waiters] == [None] * 4
    assert [queue.position(waiter) for waiter in waiters] == [0, 2, 3, 1]
    order = []
    for _ in waiters:
        ((waiter, _),) = queue.release("a")
        order.append(waiters.index(waiter))
    assert order == [0, 3, 1, 2]


def test_a_bound_waiter_does_not_block_the_others() -> None:
    queue = admission(replica("a"), replica("b"))
    assert queue.request(Waiter("t", "m", "a"))
    assert queue.request(Waiter("t", "m", "b"))
    bound, free = Waiter("t", "m", "a"), Waiter("t", "m")
    queue.request(bound)
    queue.request(free)
    ((admitted, where),) = queue.release("b")
    assert (admitted, where.name) == (free, "b")


def test_a_replica_that_becomes_ready_admits_its_waiters() -> None:
    queue = admission(replica("a", 2, phase=ReplicaPhase.STARTING))
    waiters = [Waiter("t", "m") for _ in range(3)]
    for waiter in waiters:
        assert queue.request(waiter) is None
    assert [waiter for waiter, _ in queue.set_phase("a", ReplicaPhase.READY)] == waiters[:2]
    assert queue.waiting("m") == 1


@given(st.lists(st.tuples(st.sampled_from("+-w"), st.integers(0, 3), st.integers(0, 2)), max_size=60))
def test_the_books_balance(moves: list[tuple[str, int, int]]) -> None:
    queue = admission(replica("a", 1), replica("b", 2))
    held: list[str] = []
    waiting: list[Waiter] = []
    for move, tenant, which in moves:
        admitted = []
        if move == "+":
            waiter = Waiter(f"t{tenant}", "m", (None, "a", "b")[which])
            got = queue.request(waiter)
            held.append(got.name) if got else waiting.append(waiter)
        elif move == "-" and held:
            admitted = queue.release(held.pop(which % len(held)))
        elif move == "w" and waiting:
            queue.withdraw(waiting.pop(which % len(waiting)))
        for waiter, where in admitted:
            waiting.remove(waiter)
            held.append(where.name)
        assert {r.name: r.running for r in queue.replicas.values()} == {n: held.count(n) for n in ("a", "b")}
        assert all(r.running <= r.capacity for r in queue.replicas.values())
        assert queue.waiting("m") == len(waiting)
