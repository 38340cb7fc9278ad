"""A plug-in for guda with one file of each kind."""
