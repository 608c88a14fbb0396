"""Tests the world and the process sets of rdmacoll.tensorflow, with Horovod's meaning. The argument names the
launcher."""

from __future__ import annotations

import sys

import tensorflow as tf
from tf_common import close, raised, run_all

import rdmacoll
import rdmacoll.tensorflow as hvd

raised(ValueError, hvd.rank)
raised(ValueError, lambda: hvd.allreduce(tf.ones(1)))
raised(ValueError, hvd.mpi_threads_supported)
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
IS_MPI = sys.argv[1] == "mpirun"


def end() -> None:
    """Leaves the world after all ranks have come here."""
    hvd.barrier()
    hvd.shutdown()


def again(**arguments: object) -> None:
    end()
    hvd.init(**arguments)


def check_questions_are_answered() -> None:
    assert hvd.mpi_enabled() == IS_MPI
    assert hvd.gloo_enabled() != IS_MPI
    assert hvd.mpi_built()
    assert hvd.gloo_built() is True
    assert hvd.mpi_threads_supported() is True
    assert hvd.nccl_built() == 0
    for built in (hvd.cuda_built, hvd.rocm_built, hvd.ddl_built, hvd.ccl_built):
        assert built() is False
    assert hvd.is_homogeneous() is True
    hvd.init()  # changes nothing
    assert hvd.size() == SIZE


def check_ops_of_the_world_are_evaluated_when_they_run() -> None:
    one = hvd.add_process_set([0]) if SIZE > 1 else hvd.global_process_set
    number = one.process_set_id

    def answers() -> list[tf.Tensor]:
        return [
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op("local"),
            hvd.local_size_op(),
            hvd.size_op(number),
            hvd.process_set_included_op(number),
        ]

    traced = tf.function(answers)
    expected = [RANK, SIZE, hvd.local_rank(), hvd.local_size(), 1, int(RANK == 0)]
    for results in (answers(), traced()):
        assert [int(one) for one in results] == expected
        assert all(one.dtype == tf.int32 for one in results)
    if SIZE > 1:
        hvd.remove_process_set(one)
        raised((ValueError, tf.errors.OpError), traced)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run([hvd.rank_op(), hvd.size_op()]) == [RANK, SIZE]


def check_sets_come_and_go_as_horovods() -> None:
    if SIZE == 1:
        raised(ValueError, lambda: hvd.add_process_set([0]))
        return
    early = hvd.ProcessSet(range(SIZE - 1, 0, -1))
    assert early.ranks == list(range(1, SIZE))
    assert (early.process_set_id, early.size(), early.rank()) == (None, None, None)
    assert early.included() is (RANK > 0)
    assert not hvd.remove_process_set(early)
    first, second = hvd.add_process_set([0]), hvd.add_process_set(early)
    assert second is early
    assert str(first) == f"ProcessSet(process_set_id={first.process_set_id}, ranks=[0], mpi_comm=None)"
    everyone = list(range(SIZE))
    assert str(hvd.global_process_set) == f"ProcessSet(process_set_id=0, ranks={everyone}, mpi_comm=None)"
    assert second.size() == SIZE - 1
    if RANK > 0:
        assert second.rank() == RANK - 1
        close(hvd.allreduce(tf.ones(1), op=hvd.Sum, process_set=second), [SIZE - 1])
        close(hvd.allgather(tf.ones(1), None, False, second), [1] * (SIZE - 1))
    else:
        raised(ValueError, second.rank)
        for call in (hvd.allreduce, tf.function(hvd.allreduce)):
            raised(tf.errors.InvalidArgumentError, lambda: call(tf.ones(1), process_set=second))  # noqa: B023
    for twice in ([0], list(range(SIZE))):
        raised(ValueError, lambda: hvd.add_process_set(twice))  # noqa: B023
    twin = hvd.ProcessSet([0])
    twin.process_set_id = first.process_set_id
    assert twin.process_set_id == first.process_set_id
    with_wrong_number = hvd.ProcessSet([0])
    raised(ValueError, lambda: setattr(with_wrong_number, "process_set_id", 10))
    assert hvd.remove_process_set(second) is True
    assert second.process_set_id is None
    assert hvd.remove_process_set(second) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    raised(ValueError, lambda: hvd.allreduce(tf.ones(1), process_set=second))
    hvd.remove_process_set(first)


def check_sets_of_wrong_values_are_refused() -> None:
    for wrong in ("a string", None, 3, [0.5], [0, 0]):
        raised(ValueError, lambda: hvd.ProcessSet(wrong))  # noqa: B023
    raised(ValueError, lambda: hvd.init(process_sets=hvd.ProcessSet([0])))


def check_sets_of_init_may_be_given_again_after_an_error() -> None:
    if SIZE == 1:
        return
    end()
    everyone, last = list(range(SIZE)), [SIZE - 1]
    wrong = raised(ValueError, lambda: hvd.init(process_sets=[hvd.ProcessSet([0]), last, everyone, last]))
    assert f"{everyone}, mpi_comm=None) has all ranks of this world: leave it out" in str(wrong)
    assert f"{last}, mpi_comm=None) is given twice: give each set once." in str(wrong)
    if SIZE > 2:
        unknown = raised(ValueError, lambda: hvd.init(process_sets=[hvd.ProcessSet([0, SIZE - 1])]))
        assert "is none of the sets that the first init() has made" in str(unknown)
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(last)]
    hvd.init(process_sets=sets)
    assert [one.process_set_id for one in sets] == [1, 2]
    assert {number: one.ranks for number, one in rdmacoll.process_sets().items()} == {
        0: everyone,
        1: [0],
        2: last,
    }
    if RANK == SIZE - 1:
        close(hvd.allreduce(tf.ones(1), op=hvd.Sum, process_set=sets[1]), [1])
    end()
    assert sets[0].process_set_id is None
    hvd.init(process_sets="dynamic")


def check_sets_of_init_outlive_a_restart_of_the_same_world() -> None:
    if SIZE == 1:
        return
    first, last = hvd.ProcessSet([0]), hvd.ProcessSet([SIZE - 1])
    again(process_sets=[first, last])
    added = hvd.add_process_set([0, SIZE - 1]) if SIZE > 2 else None
    again()
    assert [one.process_set_id for one in (first, last)] == [1, 2]
    if RANK == SIZE - 1:
        close(hvd.allreduce(tf.ones(1), op=hvd.Sum, process_set=last), [1])
    assert added is None or added.process_set_id is None
    # A program that adds its sets after each start finds them, once.
    assert hvd.add_process_set([0]).process_set_id == 1
    raised(ValueError, lambda: hvd.add_process_set([0]))
    hvd.remove_process_set(last)
    end()
    rdmacoll.init()
    assert [one.ranks for one in rdmacoll.process_sets().values()] == [list(range(SIZE)), [0]]
    again(process_sets="dynamic")
    assert list(rdmacoll.process_sets()) == [0]
    again()
    assert list(rdmacoll.process_sets()) == [0]


def check_the_world_may_be_a_list_of_its_ranks() -> None:
    again(comm=list(range(SIZE)))
    assert (hvd.rank(), hvd.size()) == (RANK, SIZE)
    again(comm=[])
    end()
    raised(ValueError, lambda: hvd.init(comm="no"))
    if not IS_MPI:
        if SIZE > 1:
            raised(ValueError, lambda: hvd.init(comm=[0]))
        hvd.init()
        return
    hvd.init()
    # The ranks in another order, and then worlds of one and of the other ranks.
    again(comm=list(range(SIZE))[::-1])
    assert hvd.rank() == SIZE - 1 - RANK
    again(comm=[0] if RANK == 0 else list(range(1, SIZE)))
    assert hvd.size() == (1 if RANK == 0 else SIZE - 1)
    close(hvd.allreduce(tf.ones(1), op=hvd.Sum), [hvd.size()])
    again()


def check_sets_may_be_communicators() -> None:
    if not IS_MPI:
        return
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    half = comm.Split(RANK % 2, RANK)
    end()
    one = hvd.ProcessSet(half)
    assert (one.ranks, one.included(), one.process_set_id) == (None, None, None)
    raised(ValueError, lambda: hvd.init(comm=comm, process_sets=[one, hvd.ProcessSet(comm.Dup())]))
    hvd.init(comm=comm, process_sets=[one])
    assert hvd.global_process_set.mpi_comm is comm
    assert one.ranks == list(range(RANK % 2, SIZE, 2))
    assert one.process_set_id == 1 + RANK % 2
    close(hvd.allreduce(tf.ones(1), op=hvd.Sum, process_set=one), [one.size()])
    raised(NotImplementedError, lambda: hvd.add_process_set(hvd.ProcessSet(half)))
    again()


run_all(globals())
