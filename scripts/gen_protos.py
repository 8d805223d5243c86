"""Generate `runtime/paceline/v1` from `proto/`: messages, stubs and types. `--check` fails on any difference."""

import filecmp
import os
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TARGET = ROOT / "runtime/paceline/v1"
INIT = '"""Generated from proto/paceline/v1 by scripts/gen_protos.py; do not edit."""\n'


def generate(out: Path) -> None:
    """Write the generated package below `out`."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # protoc-gen-mypy
    protos = sorted(str(path) for path in PROTO.rglob("*.proto"))
    services = [path for path in protos if path.endswith("_service.proto")]
    base = ["protoc", f"-I{PROTO}", f"-I{files('grpc_tools') / '_proto'}"]
    runs = [
        [*base, f"--python_out={out}", f"--mypy_out={out}", *protos],
        [*base, f"--grpc_python_out={out}", f"--mypy_grpc_out={out}", *services],
    ]
    for arguments in runs:
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed; its message is above")
    (out / "paceline/v1/__init__.py").write_text(INIT)


def main() -> None:
    """Regenerate, or with `--check` compare."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        generate(out)
        fresh = out / "paceline/v1"
        if "--check" in sys.argv[1:]:
            names = sorted({p.name for p in fresh.iterdir()} | {p.name for p in TARGET.glob("*.py*")})
            _, differing, missing = filecmp.cmpfiles(fresh, TARGET, names, shallow=False)
            if differing or missing:
                raise SystemExit(f"generated code is stale: {', '.join(differing + missing)}; run `make gen`")
            return
        TARGET.mkdir(parents=True, exist_ok=True)
        for old in TARGET.glob("*.py*"):
            old.unlink()
        for path in fresh.iterdir():
            shutil.copy(path, TARGET / path.name)


if __name__ == "__main__":
    main()
