"""The units under a real systemd, sandbox and all: its own process 1, in namespaces on a copy of this machine's root.

Only where `GLM53_EXL3_SYSTEMD=1` says that root may do that here.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.serve.ports import free_port
from support.fetching import pack_files
from support.hub_server import running_hub
from support.nixos_module import ROOT, evaluate_module
from support.programs import require_program

CONTAINER = ROOT / "tests" / "support" / "systemd_container.sh"
SECRET = "c0ffee" * 8
#: A home that only its owner may enter, and a name with everything that systemd might read as syntax.
HOME = "/home/ada"
PACK = f'{HOME}/100% "K2": $HOME\\n'
#: Run before the server is started.
PREPARE = f"""#!/bin/sh
mkdir -p {HOME} && chmod 700 {HOME} && cp -r {demo_pack()} {shlex.quote(PACK)} && chmod -R a+rX {shlex.quote(PACK)}
"""
#: What root sees of the units once they have started or failed; the container ends with it.
PROBE = """#!/bin/sh
trap 'journalctl --boot --no-pager > /out/journal; systemctl exit 0 --force' EXIT
for unit in glm53-exl3-fetch-other glm53-exl3-demo; do
  for second in $(seq 500); do
    case $(systemctl show --property ActiveState --value $unit) in active|failed) break;; esac
    sleep 1
  done
  systemctl show $unit --property Id,ActiveState,Result,StatusText,NRestarts
done
curl -s -m 60 -o /dev/null -w 'without key %{http_code}\\n' http://127.0.0.1:PORT/v1/models
curl -s -m 60 -H "Authorization: Bearer $(cat /out/secret)" -o /dev/null -w 'with key %{http_code}\\n' \\
  http://127.0.0.1:PORT/v1/models
main=$(systemctl show --property MainPID --value glm53-exl3-demo)
grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' /proc/$main/status
stat -c '%U %a %n' /var/cache/private/glm53-exl3/demo /var/lib/private/glm53-exl3/packs
ls /var/lib/private/glm53-exl3/packs/me/pack
systemctl stop glm53-exl3-demo
systemctl show glm53-exl3-demo --property ActiveState,Result,ExecMainStatus
"""
#: The least that a unit of tests has; its sandbox is the module's.
EXTRA = """[Service]
StandardOutput=append:/out/{name}.log
StandardError=append:/out/{name}.log
{more}"""


@pytest.fixture(autouse=True)
def _may_start_systemd() -> None:
    if os.environ.get("GLM53_EXL3_SYSTEMD") != "1":
        pytest.skip("GLM53_EXL3_SYSTEMD is not 1, so no systemd is started in namespaces")
    for program in ("nix-instantiate", "unshare", "curl"):
        require_program(program)


@pytest.fixture
def hub_url() -> Iterator[str]:
    with running_hub() as hub:
        hub.add("me/pack", pack_files(), token=SECRET)
        yield hub.url


def nix_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${") + '"'


def write_units(folder: Path, port: int, hub_url: str) -> None:
    program = Path(sys.executable).parents[1]
    package = f'{{ type = "derivation"; name = "venv"; outPath = "{program}"; }}'
    common = f'runtime = "upstream"; gpu = false; package = {package};'
    pack = f"(builtins.fromJSON {nix_text(json.dumps(PACK))})"
    demo = f'pack = {pack}; apiKeyFile = "/out/secret"; settings = {{ profile = "demo"; port = {port}; }};'
    other = 'pack = { repository = "me/pack"; }; tokenFile = "/out/secret";'
    instances = f"demo = {{ {common} {demo} }}; other = {{ {common} {other} }};"
    made = evaluate_module(
        f"{{ services.glm53-exl3 = {{ enable = true; instances = {{ {instances} }}; }}; }}",
        "units",
        system="x86_64-linux",
    )
    # An interpreter in a home is not there for a hardened unit.
    home = Path(sys.executable).resolve().parents[1]
    hidden = f"ProtectHome=tmpfs\nBindReadOnlyPaths={home}\n" if home.is_relative_to("/root") else ""
    for name, text in made.items():
        (folder / f"{name}.service").write_text(text)
        (folder / f"{name}.service.d").mkdir()
        more = hidden + (f"Environment=HF_ENDPOINT={hub_url}\n" if "fetch" in name else "")
        (folder / f"{name}.service.d" / "test.conf").write_text(EXTRA.format(name=name, more=more))
    wants = "Wants=prepare.service probe.service glm53-exl3-demo.service glm53-exl3-fetch-other.service"
    prepare = "[Unit]\nBefore=glm53-exl3-demo.service\n[Service]\nType=oneshot\nExecStart=/out/prepare\n"
    (folder / "prepare.service").write_text(prepare)
    (folder / "test.target").write_text(f"[Unit]\n{wants}\n")
    probe = "[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/out/probe\nStandardOutput=append:/out/seen\n"
    (folder / "probe.service").write_text(probe)


@pytest.mark.timeout(900)
def test_server_and_fetch_work_within_their_sandbox(tmp_path: Path, hub_url: str) -> None:
    units, out = tmp_path / "units", tmp_path / "out"
    units.mkdir()
    out.mkdir()
    port = free_port()
    write_units(units, port, hub_url)
    (out / "secret").write_text(SECRET)
    (out / "secret").chmod(0o400)
    for name, text in {"probe": PROBE.replace("PORT", str(port)), "prepare": PREPARE}.items():
        (out / name).write_text(text)
        (out / name).chmod(0o755)
    done = subprocess.run([CONTAINER, tmp_path], capture_output=True, text=True, timeout=800)
    logs = "\n".join(path.read_text(errors="replace")[-4000:] for path in out.glob("*.log"))
    assert (out / "seen").exists(), done.stderr
    seen = (out / "seen").read_text()
    # Each property a line, in systemd's order.
    assert {"Id=glm53-exl3-fetch-other.service", "Id=glm53-exl3-demo.service", "StatusText=serving"} <= set(
        seen.splitlines()
    ), seen + logs
    assert seen.count("Result=success") == 3, seen + logs
    assert seen.count("NRestarts=0") == 2, seen + logs
    assert "without key 401\nwith key 200\n" in seen
    assert "CapEff:\t0000000000000000\n" in seen
    assert "NoNewPrivs:\t1\n" in seen
    assert "Seccomp:\t2\n" in seen
    assert "Uid:\t0" not in seen
    assert "glm53-exl3 700 /var/cache/private/glm53-exl3/demo\n" in seen
    assert set(pack_files()) - {"notes/empty.txt"} <= set(seen.splitlines())
    assert "ActiveState=inactive" in seen
    assert "ExecMainStatus=0" in seen
