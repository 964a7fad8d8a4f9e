"""mbarriers, rings of versions, clusters, and asynchronous copies that arrive at barriers; no arithmetic."""
