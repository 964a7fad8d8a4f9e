"""The order that a kernel's synchronisation gives its accesses, and the races it leaves. Nothing here moves data."""
