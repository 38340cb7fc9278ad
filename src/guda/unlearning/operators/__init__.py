"""One small file per unlearning operator (listed in unlearning/unlearn.py)."""
