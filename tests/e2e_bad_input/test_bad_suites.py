"""Test suites that hang, flood, fork, eat, write or spy: each is stopped with its reason, and the machine is as before."""

import time
from pathlib import Path

import psutil
import pytest

from tests.e2e_bad_input.hostile import ADDER, DONE, FIX, Case

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
MEBI = 1024 * 1024
ENVIRONMENT = {
    "AGENT_CODER_SANDBOX_MEMORY_BYTES": str(200 * MEBI),
    "AGENT_CODER_SANDBOX_PROCESSES": "60",
    "AGENT_CODER_SANDBOX_OUTPUT_BYTES": str(8 * MEBI),
    "AGENT_CODER_SANDBOX_DISK_BYTES": str(150 * MEBI),
    "AGENT_CODER_SANDBOX_TMP_BYTES": str(32 * MEBI),
    "OPENAI_API_KEY": "sk-secret-of-the-host",
}
SEEN = "AGENT_CODER_WAS_HERE_7391"
BEFORE = time.time()


def _suite(command: str, seconds: int = 20, *, attempts: int = 1) -> Case:
    """The untouched tree passes; the suite misbehaves once the fix is in."""
    guarded = f"grep -q 'a - b' adder.py && exit 0\n{command}"
    return Case(
        files=ADDER,
        turns=[FIX, DONE],
        policy={"test_commands": [guarded], "setup_commands": [], "test_timeout_seconds": seconds, "max_attempts": attempts},
    )


CASES = {
    "hangs": _suite("sleep 1000", 2),
    "hangs-deaf": _suite("trap '' TERM INT HUP; (trap '' TERM; exec sleep 1001) & while :; do sleep 1; done", 2),
    "floods": _suite("head -c 104857600 /dev/zero | tr '\\0' x"),
    "forks": _suite("f() { f | f & }; f; sleep 30", 5),
    "eats": _suite("python3 -c 'x = []\nwhile True: x.append(bytearray(10_000_000))'"),
    "fills": _suite("head -c 400M /dev/zero > big || exit 3; sleep 5"),
    "fills-home": _suite("for i in $(seq 40); do head -c 10M /dev/zero > $HOME/f$i || exit 3; done; sleep 5"),
    "many-files": _suite("i=0; mkdir m; while [ $i -lt 20000 ]; do echo > m/$i; i=$((i+1)); done; exit 0", 60),
    "outside": _suite(f"echo x > /{SEEN}; echo x > /usr/{SEEN}; echo x > /etc/passwd; echo x > ../{SEEN}; exit 0"),
    "daemon": _suite("setsid nohup sleep 1002 >/dev/null 2>&1 & exit 0"),
    "deletes": _suite("rm -rf .git .* * 2>/dev/null; exit 0"),
    "kills": _suite("kill -9 $PPID; kill -9 1; kill -9 -1; exit 0"),
    "spies": _suite("env; cat /proc/1/environ /proc/self/environ; cat /proc/[0-9]*/cmdline; ls -la /root /home; exit 1"),
    "binary-output": _suite("head -c 100000 /dev/urandom; printf '\\033[2J\\000\\377'; exit 1"),
    "lies": _suite("echo '1 passed'; exit 1"),
    "stdin": _suite("read answer; cat; exit 0", 10),
    "half-lines": _suite("while :; do printf .; done", 3),
}


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("hangs", "timeout"),
        ("hangs-deaf", "timeout"),
        ("half-lines", "output_limit"),
        ("floods", "output_limit"),
        ("eats", None),
        ("fills", "disk_limit"),
        ("fills-home", "disk_limit"),
        ("forks", None),
        ("lies", "exited"),
        ("spies", "exited"),
        ("binary-output", "exited"),
    ],
)
async def test_a_suite_that_misbehaves_is_stopped_and_the_run_says_why(served, name, outcome):
    shown = await served.failed(name)
    tests = [run for run in shown["commands"] if run["phase"] in {"test", "rerun"}]
    assert tests, shown["commands"]
    assert outcome is None or tests[0]["outcome"] in {outcome, "timeout"}, tests
    assert all(len(run["output_tail"]) <= 4000 for run in tests)
    assert all(run["exit_code"] is None or run["outcome"] == "exited" for run in tests)


@pytest.mark.parametrize("name", ["many-files", "outside", "daemon", "deletes", "stdin"])
async def test_a_suite_that_does_harm_and_says_that_it_passed_harms_nothing(served, name):
    shown = await served.ended(name)
    assert shown["status"] == "finished", shown["why"]
    assert served.changed(shown) == ["adder.py", "test_adder.py"]
    for place in (f"/{SEEN}", f"/usr/{SEEN}", str(served.running.home / SEEN)):
        assert not Path(place).exists()


async def test_a_suite_that_kills_all_it_sees_kills_only_itself(served):
    shown = await served.ended("kills")
    assert shown["status"] in {"finished", "failed"}
    assert served.running.process.returncode is None


async def test_no_secret_of_the_host_is_seen(served):
    shown = await served.failed("spies")
    told = "\n".join(run["output_tail"] for run in shown["commands"])
    token = (served.running.home / "token").read_text().strip()
    for secret in ("sk-secret-of-the-host", token, "AGENT_CODER_HOME", "nats-server"):
        assert secret not in told


async def test_nothing_of_the_suites_is_left_running(served):
    for name in CASES:
        await served.ended(name)
    left = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = process.info["cmdline"] or []
        if words[:1] == ["sleep"] and words[1:] in (["1000"], ["1001"], ["1002"]) and process.info["create_time"] > BEFORE:
            left.append(words)
    assert not left
