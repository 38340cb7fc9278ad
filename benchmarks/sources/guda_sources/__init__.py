"""Data sources of the benchmarks, found through the entry-point group "guda.sources": emoji, fonts."""
