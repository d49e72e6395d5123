"""Whether a file that holds a secret is closed to others. Pure but for asking who this process is."""

from __future__ import annotations

import os
import stat


def open_to_others(found: os.stat_result) -> bool:
    """Whether others than this process's user may use a file of secrets; the rule is that of PostgreSQL.

    A file of root may be readable for a group, as Debian's ssl-cert, systemd's credentials and Kubernetes' Secrets
    have it.
    """
    of_root = found.st_uid == 0 and os.geteuid() != 0
    shared = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP if of_root else stat.S_IRWXO | stat.S_IRWXG
    return bool(stat.S_IMODE(found.st_mode) & shared)
