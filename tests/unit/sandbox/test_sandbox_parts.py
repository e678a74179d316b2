"""Small decisions: what is kept of an output, what an error advises, which hosts and groups a text names."""

import ipaddress

import pytest

from services.sandbox.backends import Limits
from services.sandbox.backends.bubblewrap import arguments
from services.sandbox.backends.capture import Capture, OutputLimitReached, Tail, cut_text
from services.sandbox.backends.cgroups import ControlGroups
from services.sandbox.backends.namespaces import explain
from services.sandbox.changes import parse_changes
from services.sandbox.egress import INSIDE, AllowedHost
from services.sandbox.registries import Registries


@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize("length", [0, 9, 10, 11, 5000])
def test_tail_keeps_both_ends(pieces, length):
    data = bytes(32 + number % 90 for number in range(length))
    tail = Tail(10)
    for start in range(0, length, pieces):
        tail.feed(data[start : start + pieces])
    assert tail.truncated == (length > 10)
    if length <= 10:
        assert tail.content() == data
    else:
        note = f"\n[… {length - 10} bytes left out …]\n".encode()
        assert tail.content() == data[:5] + note + data[-5:]


def test_both_streams_share_one_budget():
    capture = Capture(Limits(output_bytes=10))
    capture.feed("stdout", b"12345")
    capture.feed("stderr", b"12345")
    with pytest.raises(OutputLimitReached):
        capture.feed("stdout", b"1")


@pytest.mark.parametrize("characters", [0, 5, 40, 400])
def test_text_is_cut_to_its_length(characters):
    assert len(cut_text(b"x" * 1000, characters)) <= characters


def test_text_is_cut_with_a_note_and_its_end_kept():
    text = cut_text("é".encode() * 300 + b"the end", 200)
    assert "characters left out" in text
    assert text.endswith("the end")
    assert cut_text(b"short \xff", 100) == "short �"


@pytest.mark.parametrize(
    ("switches", "advice"),
    [
        ({"/proc/sys/user/max_user_namespaces": "0"}, "sysctl -w user.max_user_namespaces"),
        ({"/proc/sys/kernel/unprivileged_userns_clone": "0"}, "sysctl -w kernel.unprivileged_userns_clone=1"),
        ({"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"),
        ({"/proc/sys/user/max_user_namespaces": "15000"}, "seccomp=unconfined"),
    ],
)
def test_refused_namespaces_are_explained(switches, advice):
    text = explain("bwrap: No permissions to create new namespace", switches)
    assert "No permissions to create new namespace" in text
    assert advice in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Registry.Example", AllowedHost("registry.example", (443, 80))),
        ("registry.example:8443", AllowedHost("registry.example", (8443,))),
        ("mirror@10.0.0.0/8", AllowedHost("mirror", (443, 80), (ipaddress.ip_network("10.0.0.0/8"),))),
        ("[::1]:80", AllowedHost("::1", (80,), (ipaddress.ip_network("::1"),))),
    ],
)
def test_allowed_host_is_read(text, expected):
    assert AllowedHost.parse(text) == expected


@pytest.mark.parametrize("text", ["", "https://x", "x/y", "x:port", "mirror@nonsense"])
def test_text_that_names_no_host_is_refused(text):
    with pytest.raises(ValueError):
        AllowedHost.parse(text)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "100.100.100.200", "fd00::1", "fe80::1", "::1", "64:ff9b::a00:1"]
)
def test_address_inside_is_known_as_such(address):
    found = ipaddress.ip_address(address)
    assert any(found in network for network in INSIDE if network.version == found.version)


def test_registries_become_hosts_once():
    registries = Registries()
    registries.add(
        "https://user:secret@mirror.example/simple", "https://mirror.example/other", "http://10.0.0.5:8081/npm/", "file:///srv/pypi"
    )
    assert registries.hosts() == (
        AllowedHost("mirror.example", (443, 80)),
        AllowedHost("10.0.0.5", (8081,), (ipaddress.ip_network("10.0.0.5"),)),
    )


def test_changes_are_read_from_gits_raw_output():
    zero, one, two = "0" * 40, "1" * 40, "2" * 40
    output = (
        f":100644 100644 {one} {two} M\0a b.py\0"
        f":100644 100755 {one} {one} M\0run.sh\0"
        f":100644 100644 {one} {two} R090\0old\nname\0nämé ☃.py\0"
        f":000000 120000 {zero} {two} A\0link\0"
        f":100644 000000 {one} {zero} D\0gone\0"
        "3\t1\ta b.py\0" + "0\t0\trun.sh\0" + "1\t2\t\0old\nname\0nämé ☃.py\0" + "-\t-\tlink\0" + "0\t9\tgone\0"
    ).encode()
    found = [
        (change.path, change.status, change.renamed_from, change.added_lines, change.deleted_lines) for change in parse_changes(output)
    ]
    assert found == [
        ("a b.py", "modified", None, 3, 1),
        ("run.sh", "mode_changed", None, 0, 0),
        ("nämé ☃.py", "renamed", "old\nname", 1, 2),
        ("link", "added", None, None, None),
        ("gone", "deleted", None, 0, 9),
    ]


def test_version_1_groups_are_made_where_they_can_be_written(tmp_path):
    for controller in ("memory", "pids"):
        (tmp_path / controller / "service").mkdir(parents=True)
    groups = ControlGroups.discover(tmp_path, own="4:memory:/service\n8:pids:/service\n1:cpu:/\n0::/\n")
    group = groups.group(Limits(memory_bytes=64 * 1024 * 1024, processes=9))
    assert group.controllers == {"memory", "pids"}
    (made,) = (tmp_path / "pids" / "service").iterdir()
    assert (made / "pids.max").read_text() == "9"
    (made,) = (tmp_path / "memory" / "service").iterdir()
    assert (made / "memory.limit_in_bytes").read_text() == str(64 * 1024 * 1024)


def test_version_2_groups_hold_what_can_be_shared_out(tmp_path):
    group = ControlGroups({"memory": tmp_path, "pids": tmp_path}, version=2).group(Limits(memory_bytes=64 * 1024 * 1024, processes=9))
    (made,) = tmp_path.iterdir()
    assert group.controllers == {"memory", "pids"}
    assert (made / "memory.max").read_text() == str(64 * 1024 * 1024)
    assert (made / "pids.max").read_text() == "9"
    (made / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.out_of_memory_kills() == 1


def test_version_2_without_a_share_is_no_group(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("memory pids cpu")
    groups = ControlGroups.discover(tmp_path, own="0::/service\n")
    assert groups.group(Limits()).controllers == frozenset()


def test_arguments_name_no_host_folder_but_the_workspaces(backend_parts, tmp_path):
    spec, toolchains, runtime = backend_parts
    given = arguments(spec, toolchains, runtime, None, ())
    binds = [given[index + 1] for index, word in enumerate(given) if word == "--bind"]
    assert binds == [str(spec.home), str(spec.workspace)]
    assert "--unshare-net" in given
    assert "--share-net" not in given
