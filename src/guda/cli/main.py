"""guda command line (placeholder until the verbs land)."""


def main() -> None:
    print("guda")
