"""The HTTP API as the page /api documents it: endpoints, their fields, and the fields of a result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    verb: str
    path: str
    about: str
    takes: tuple[tuple[str, str], ...]
    example: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].replace(".", "-")


_RESULT = (
    ("result", "name of the query set"),
    ("method", "method id; may be left out"),
    ("rule", "stop rule; `full`: scored with all rounds of the recipe; may be left out: the newest"),
    ("picture", "id of a picture in the set; default: its first"),
)

ENDPOINTS = (
    Endpoint(
        "POST", "/api/attribute",
        "Score one picture; answers once the stop rule is met, and keeps scoring if nobody waits any more. Of a "
        "picture that was scored with all rounds, the stored answer (rule null).",
        (
            ("picture", "the file, as multipart/form-data"),
            ("prompt", "the prompt or class that made it, for models that take one"),
            ("rule", "stop rule; default top1@0.95"),
            ("method", "method id; default: the page's"),
        ),
        "curl -H 'Authorization: Bearer TOKEN' -F picture=@picture.png -F rule=top1@0.95 BASE/api/attribute",
    ),
    Endpoint("GET", "/api/result", "One stored result.", _RESULT,
             "curl -H 'Authorization: Bearer TOKEN' 'BASE/api/result?result=upload-0123456789ab'"),
    Endpoint("GET", "/api/result.csv", "The groups of a stored result as CSV, best first.", _RESULT,
             "curl -H 'Authorization: Bearer TOKEN' 'BASE/api/result.csv?result=upload-0123456789ab'"),
    Endpoint("GET", "/api/results", "Every stored result, newest first: a list of {result, method, rule, pictures}.",
             (), "curl -H 'Authorization: Bearer TOKEN' BASE/api/results"),
    Endpoint("GET", "/api/leaderboard",
             "Methods compared with retraining: for each evaluated query set what its evaluation.json holds.",
             (), "curl -H 'Authorization: Bearer TOKEN' BASE/api/leaderboard"),
)  # fmt: skip

FIELDS = (
    ("result", "name of the query set"),
    ("picture", "id of the picture in it"),
    ("prompt", "its prompt, or null"),
    ("method", "how it was scored"),
    ("unit", "of a score"),
    ("sign", "what a positive score means"),
    ("estimand", "what a score estimates"),
    ("rule", "name of the stop rule, or null: all rounds"),
    ("settled", "whether the stop rule was met; null: no confidence level was requested"),
    ("evaluations", "network evaluations spent on this picture"),
    ("verdict", "kind (stands-out, close, nothing, foreign, copy, unmeasured), headline, detail, note"),
    ("origin", "whether the model makes such pictures, and whether this one nearly repeats a training image; or null"),
    ("placebo_floor", "the score that 95 % of placebo scores are below, or null"),
    ("groups", "best first: group, rank, score, lo, hi, rounds, left_early"),
    ("note", "how the picture was changed, if it was, and that the answer is a stored one, if it is"),
)
