"""mbarriers, rings of versions, clusters, and the asynchronous copies that arrive at barriers. No arithmetic is
here."""
