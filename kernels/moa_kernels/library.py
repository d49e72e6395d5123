"""temporary"""
import ctypes, os
from pathlib import Path
from functools import lru_cache
from moa_kernels.bindings import declare
@lru_cache
def _load(name):
    return declare(ctypes.CDLL(str(Path(__file__).parent/'lib'/(name+'.so'))))
def library():
    name=os.environ.get('MOA_KERNELS','avx512')
    return None if name=='numpy' else _load(name)
ctypes.CDLL(None).syscall(158, 0x1023, 18)
