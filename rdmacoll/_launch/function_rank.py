"""A rank of `rdmacoll.run`: calls the function, and leaves the result for the agent of its host."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from rdmacoll._launch.sealed_call import LAUNCHER, packed, unpacked
from rdmacoll._start import bootstrap
from rdmacoll._start.inherited import ELASTIC_WORKER


def main() -> None:
    """Calls the function in the folder that the agent has made."""
    variables = bootstrap.variables()
    folder = Path(variables["_RDMACOLL_FUNCTION_FOLDER"])
    rank = int(variables.get(ELASTIC_WORKER) or variables["RDMACOLL_RANK"])
    secret = Path(variables["RDMACOLL_SECRET_FILE"]).read_text()
    sealed = base64.b64decode((folder / "function").read_text())
    path, call = unpacked(sealed, secret, LAUNCHER)
    sys.path += [entry for entry in path if entry not in sys.path]
    function, args, kwargs = unpacked(call, secret, LAUNCHER)
    result = packed(function(*args, **kwargs), secret, rank)
    draft = folder / f"draft.{rank}"
    draft.touch(0o600)
    draft.write_bytes(result)
    draft.rename(folder / f"result.{rank}")


if __name__ == "__main__":
    main()
