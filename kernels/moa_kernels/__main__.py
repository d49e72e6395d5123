"""`python -m moa_kernels` says which kernels this machine uses, and why."""

import sys

from moa_kernels.bindings import KernelError
from moa_kernels.library import explain

try:
    print(explain())
except KernelError as error:
    sys.exit(str(error))
