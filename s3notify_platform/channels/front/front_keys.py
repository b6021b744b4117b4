"""The keys of the front's clients. The keys are read from named environment variables or from a file, never from the
command line.
"""

import os
import re
import stat
from pathlib import Path
from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import SECRET_MIN

KEYS_MAX: Final = 1000

_KEY_ID: Final = re.compile(r"[\w.+=@-]{3,128}", re.ASCII)


def keys_of(key_id_env: str, secret_env: str, file: str | None) -> dict[str, str]:
    """Secrets by key id. The keys come from the file, one in each line, and from the two variables, if these are set.

    `UsageError` if there is no key, if a key is malformed, or if anybody but the file's owner may read the file.
    """
    keys = _in_file(Path(file)) if file else {}
    key_id, secret = os.environ.get(key_id_env, ""), os.environ.get(secret_env, "")
    if bool(key_id) != bool(secret):
        raise UsageError(f"{secret_env if key_id else key_id_env} is not set: set both variables, or neither")
    if key_id:
        keys[key_id] = secret
    if not keys:
        raise UsageError(
            f"no key is set: set {key_id_env} and {secret_env}, or name a file with lines KEY_ID SECRET (--keys-file)"
        )
    for known in keys:
        if not _KEY_ID.fullmatch(known):
            raise UsageError("a key id must have 3 to 128 letters, digits, and any of . _ + = @ -")
        if len(keys[known]) < SECRET_MIN or not keys[known].isascii():
            raise UsageError(
                f"the secret of key {known!r} must have at least {SECRET_MIN} characters, all ASCII"
            )
    return keys


def _in_file(path: Path) -> dict[str, str]:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError(f"keys file {str(path)!r}: other users may read it: chmod 600 this file")
        lines = [line.split() for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    except (OSError, ValueError) as error:
        raise UsageError(f"keys file {str(path)!r}: {error}") from error
    pairs = [line for line in lines if line]
    if any(len(pair) != 2 for pair in pairs) or len(pairs) > KEYS_MAX:
        raise UsageError(f"keys file {str(path)!r}: write at most {KEYS_MAX} lines KEY_ID SECRET")
    return {line[0]: line[1] for line in pairs}
