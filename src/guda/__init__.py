"""guda: which training data is this picture owed to?"""

__version__ = "0.1.0"
