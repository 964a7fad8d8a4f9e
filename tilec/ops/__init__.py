"""Every `T.*` operation. Importing this package registers all of them."""

from tilec.ops import copy as copy
from tilec.ops import fill as fill
from tilec.ops import gemm as gemm
from tilec.ops import reduce as reduce
