"""The checks of `rdmacoll doctor` about the node: cores, memory, limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rdmacoll.cli.doctor_facts import UNLIMITED, Machine
from rdmacoll.cli.doctor_findings import Finding, limit_cure, note, ok, problem, size_text
from rdmacoll.cli.profile_text import summary

# Descriptors: the engine keeps some for each peer; Python and TensorFlow keep hundreds.
_FILES_TIGHT, _FILES_FEW = 1024, 256
_THREADS_FEW = 256  # processes and threads of the user


def cores(machine: Machine) -> Iterator[Finding]:
    """The number of cores, and the quota of their time."""
    found = machine.cores
    check = "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
    count = len(found.allowed)
    seen = f"{count} of {found.online}"
    if found.quota is None or found.quota >= count:
        quota = "" if found.quota is None else f", quota {found.quota:g}"
        why = "threads may use all of these cores all the time"
        yield ok("cores", seen + quota, why=why, check=check)
        return
    yield (problem if found.quota < 1 else note)(
        "cores",
        f"{seen}, but the control group grants the time of {found.quota:g} ({found.quota_from})",
        why="threads on all cores use up the granted time early in each period; then they stand still, and "
        "the other ranks wait",
        cure="give the container as much time as cores (docker --cpus, Kubernetes limits.cpu), or limit "
        f"TensorFlow's threads to {max(1, int(found.quota))} (tf.config.threading)",
        check=check,
    )


def binding(machine: Machine) -> Iterator[Finding]:
    """Whether a launcher bound this process to one core."""
    found = machine.cores
    check = "taskset -cp $$; mpirun --report-bindings -np 2 true"
    if len(found.allowed) != 1 or found.online == 1:
        seen = "one core is all there is" if found.online == 1 else "not tied to one core"
        yield ok("binding", seen, why="threads of TensorFlow and of the engine need room", check=check)
        return
    launched = machine.start.launch
    yield (problem if launched else note)(
        "binding",
        f"this process may run on core {found.allowed[0]} only, of {found.online}"
        + (f"; it was started by {launched.source}" if launched else ""),
        why="all threads of TensorFlow and of the engine share that core",
        cure="mpirun --bind-to none (Open MPI), -bind-to none (MPICH), srun --cpu-bind=none; else taskset",
        check=check,
    )


def huge_pages(machine: Machine) -> Iterator[Finding]:
    """Huge pages of the kernel."""
    found = machine.memory
    check = "cat /sys/kernel/mm/transparent_hugepage/enabled"
    reserved = "none reserved"
    if found.huge_total:
        free = f"{found.huge_free} of {found.huge_total} free"
        reserved = f"{free}, {size_text(found.huge_page_bytes)} each"
    if found.transparent == "never":
        yield note(
            "huge pages",
            f"{reserved}; transparent: never",
            why="each 4 KiB of a large array then costs a page fault, and the adapter one address",
            cure="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            check=check,
            is_standing=True,
        )
    else:
        seen = f"{reserved}; transparent: {found.transparent or 'not in this kernel'}"
        why = "with them, large arrays cost fewer page faults, and the adapter fewer addresses"
        yield ok("huge pages", seen, why=why, check=check)


def one_copy(machine: Machine) -> Iterator[Finding]:
    """Whether ranks of a node may read each other's memory."""
    found = machine.one_copy
    scope = "" if found.ptrace_scope is None else f" (kernel.yama.ptrace_scope is {found.ptrace_scope})"
    check = "cat /proc/sys/kernel/yama/ptrace_scope; rdmacoll doctor"
    if not found.problem:
        seen = f"process_vm_readv works between processes{scope}"
        why = "ranks of one node read large arrays from each other in one copy"
        yield ok("one-copy reads", seen, why=why, check=check)
        return
    demanded = machine.settings.set_value("RDMACOLL_ONE_COPY") == "true"
    yield (problem if demanded else note)(
        "one-copy reads",
        f"process_vm_readv of another process fails: {found.problem}{scope}"
        + ("; RDMACOLL_ONE_COPY demands it" if demanded else ""),
        why="ranks of one node read large arrays from each other in one copy; without it they take two",
        cure="sysctl -w kernel.yama.ptrace_scope=0"
        if found.ptrace_scope
        else "start the container with --cap-add=SYS_PTRACE, or with a seccomp profile that permits it",
        check=check,
    )


def congestion(machine: Machine) -> Iterator[Finding]:
    """The congestion control of TCP connections."""
    system = machine.congestion
    chosen = machine.settings.set_value("RDMACOLL_TCP_CONGESTION")
    check = "sysctl net.ipv4.tcp_congestion_control net.ipv4.tcp_allowed_congestion_control"
    seen = system.control or "not to be read"
    if chosen:
        seen = f"{chosen}, as RDMACOLL_TCP_CONGESTION says (the system's is {seen})"
    if system.refusal:
        yield problem(
            "TCP",
            f"{seen}; the kernel refuses it: {system.refusal}",
            why="ranks with this setting fail at the start",
            cure=f"choose one that it allows everybody: {' '.join(system.allowed) or 'reno'}",
            check=check,
        )
        return
    if not (chosen or system.control).startswith("bbr"):
        why = "ranks of different nodes without RDMA send by this congestion control"
        yield ok("TCP", seen, why=why, check=check)
        return
    others = [name for name in system.allowed if not name.startswith("bbr")]
    cure = f"export RDMACOLL_TCP_CONGESTION={(others or ['reno'])[0]} on all ranks, and measure both"
    if system.allowed and not others:
        allowed = " ".join((*system.allowed, "reno"))
        cure = f"as root: sysctl -w net.ipv4.tcp_allowed_congestion_control='{allowed}'; then {cure}"
    yield note(
        "TCP",
        seen,
        why="bbr mistakes pauses between messages for a slow network; it then delays sums of some 100 KB "
        "between nodes by milliseconds",
        cure=cure,
        check=check,
    )


def memory(machine: Machine) -> Iterator[Finding]:
    """The memory that the control group grants."""
    limit, set_value = machine.memory.group_limit, machine.settings.set_value("RDMACOLL_BUF_SIZE")
    pool = int(machine.settings.value("RDMACOLL_BUF_SIZE") or 0)
    check = f"cat {machine.memory.group_file or '/sys/fs/cgroup/memory.max'}"
    if limit is None or limit >= pool:
        seen = "no limit" if limit is None else f"{size_text(limit)} ({machine.memory.group_file})"
        yield ok("memory", seen, why="the buffer pool and TensorFlow need room", check=check)
        return
    yield (problem if set_value else note)(
        "memory",
        f"the control group grants {size_text(limit)} ({machine.memory.group_file}), and the buffer pool of "
        f"a rank has {size_text(pool)}",
        why="the kernel ends a process that goes beyond it" if set_value else "the pool becomes smaller",
        cure="give the container or job step more memory (docker --memory, Kubernetes limits.memory, srun "
        f"--mem), or set RDMACOLL_BUF_SIZE={max(limit // 4, 16 << 20)}",
        check=check,
    )


def _number(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else str(limit)


def threads(machine: Machine) -> Iterator[Finding]:
    """Whether threads have room: the cores, and the limit of their number."""
    found, count = machine.threads, len(machine.cores.allowed)
    soft = found.limit.soft
    check = "ulimit -u; env | grep OMP_NUM_THREADS"
    if soft != UNLIMITED and soft < _THREADS_FEW:
        yield problem(
            "threads",
            f"this user may have {soft} processes and threads (RLIMIT_NPROC), {_THREADS_FEW} are advised",
            why="the engine, TensorFlow and numpy start threads, and a start without them fails",
            cure=limit_cure(found.limit, _THREADS_FEW, f"-u {_number(found.limit.hard)}", "nproc 65536"),
            check=check,
        )
    elif found.omp_threads is not None and found.ranks > 1 and found.omp_threads * found.ranks > count:
        yield note(
            "threads",
            f"OMP_NUM_THREADS={found.omp_threads} for each of {found.ranks} ranks of this node makes "
            f"{found.omp_threads * found.ranks} threads, for {count} cores",
            why="threads that wait for a core hold all ranks up",
            cure=f"export OMP_NUM_THREADS={max(1, count // found.ranks)}",
            check=check,
        )
    else:
        omp_threads = f", OMP_NUM_THREADS={found.omp_threads}" if found.omp_threads is not None else ""
        seen = ("no limit" if soft == UNLIMITED else f"up to {soft}") + omp_threads
        yield ok("threads", seen, why="the engine, TensorFlow and numpy start threads", check=check)


def profile(machine: Machine) -> Iterator[Finding]:
    """The measured costs of this machine, and the file that keeps them."""
    found = machine.profile
    if not found:
        return
    why = "rank 0 chooses algorithms within a node by what copies and signals cost on the slowest machine"
    check = "rdmacoll tune"
    if not found["note"]:
        yield ok("profile", summary(found), why=why, check=check)
        return
    yield note(
        "profile",
        found["note"].rstrip("."),
        why=why,
        cure="rdmacoll tune, which writes it anew; or RDMACOLL_PROFILE with another file, or off",
        check=check,
    )


def files(machine: Machine) -> Iterator[Finding]:
    """The number of descriptors that this process may open."""
    soft, hard = machine.files.soft, machine.files.hard
    why = "each rank keeps connections to its peers, and TensorFlow opens many files of its own"
    check = "ulimit -n, on each node and as the ranks are started"
    if soft == UNLIMITED or soft >= _FILES_TIGHT:
        yield ok("open files", _number(soft), why=why, check=check)
        return
    yield (problem if soft < _FILES_FEW else note)(
        "open files",
        f"this process may open {soft} files, {_FILES_TIGHT} are advised",
        why=why,
        cure=limit_cure(
            machine.files, _FILES_TIGHT, f"-n {65536 if hard == UNLIMITED else hard}", "nofile 65536"
        ),
        check=check,
    )
