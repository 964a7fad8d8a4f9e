"""mbarriers, barriers of a block and a cluster, fences, branches, and cluster launch control. The order that follows
from them is kept in `races`.
"""
