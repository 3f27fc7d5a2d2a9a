"""Facts that are written in two places must agree.

These are reason codes and their page, metrics and their page, records of the journal and their page, and terms in names.
"""

from __future__ import annotations

import re

import repository

# A word that names of messages, fields and flags may not contain → the term for it. Parameter names of tf.data service are
# exempt. Elsewhere an iteration is what an iterator reads, which only the client has (docs/glossary.md).
REPLACED = {
    "iteration": "epoch",
    "task": "stream",
    "partition": "split",
    "shard": "stream or split",
    "round": "epoch",
    "sample": "element",
    "example": "element",
    "pipeline": "dataset",
    "master": "dispatcher",
    "coordinator": "dispatcher",
    "server": "worker or dispatcher",
    "executor": "worker",
}
# A word that names, comments, messages and pages may not contain → the term for it.
RETIRED = {
    "beat": "heartbeat",
    "beats": "heartbeats",
    "costly": "expensive",
    "dear": "expensive",
    "knowledge": "learned",
    "passage": "data path",
    "renewable": "rejoining",
    "soft": "volatile",
    "spoilt": "invalid or unusable",
    "taught": "learned",
    "tandem": "paired run",
    "teach": "learned",
    "teaches": "learned",
    "teeth": "mutants",
    "told": "asked",
    "wary": "crash guard",
}
# Names that contain such a word for a reason.
KEPT = {"ShardingFiles"}
# The files that are searched for retired words.
SEARCHED = (".go", ".py", ".md", ".proto", ".yaml", ".yml", ".toml", ".c", ".h", ".sh", ".dot", ".ipynb", ".txt", "Makefile")


def reasons() -> dict[str, str]:
    """Reason code → gRPC code, from proto/reason."""
    source = repository.text("proto/reason/reason.go")
    words = dict(re.findall(r'^\s*(\w+)\s+Reason = "([A-Z_]+)"$', source, re.MULTILINE))
    table = source[source.index("var codeOf") :]
    codes = dict(re.findall(r"(\w+): codes\.(\w+)", table[: table.index("\n}")]))
    return {words[name]: code for name, code in codes.items()}


def documented_reasons() -> dict[str, str]:
    """Reason code → gRPC code, from docs/reference/errors.md."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \|", repository.text("docs/reference/errors.md"), re.MULTILINE)
    return {reason: code for reason, code in rows}


def test_the_page_of_errors_explains_exactly_the_reason_codes():
    in_code, in_page = reasons(), documented_reasons()
    assert len(in_code) > 30, "could not read the reason codes from proto/reason"
    assert not set(in_code) - set(in_page), f"docs/reference/errors.md does not explain {sorted(set(in_code) - set(in_page))}"
    assert not set(in_page) - set(in_code), (
        f"docs/reference/errors.md explains {sorted(set(in_page) - set(in_code))}, which the code does not have"
    )


def test_the_page_of_errors_has_the_grpc_code_of_each_reason():
    def upper(name: str) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper().replace("CANCELED", "CANCELLED")

    wrong = {
        reason: (code, upper(reasons()[reason]))
        for reason, code in documented_reasons().items()
        if reason in reasons() and code != upper(reasons()[reason])
    }
    assert not wrong, f"docs/reference/errors.md and proto/reason have different codes: {wrong}"


def test_the_page_of_errors_explains_why_a_step_cannot_be_cached():
    source = repository.text("proto/pecan/v1/caching.proto")
    in_code = {word.lower() for word in re.findall(r"CACHE_REFUSAL_(\w+) = [1-9]", source)}
    page = repository.text("docs/reference/errors.md").partition("## Why a step cannot be cached")[2]
    in_page = set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE))
    assert len(in_code) > 10, "could not read CacheRefusal from caching.proto"
    assert in_code == in_page, f"only in the code: {sorted(in_code - in_page)}; only in the page: {sorted(in_page - in_code)}"


def test_the_page_of_metrics_explains_exactly_the_metrics():
    name = r"pecan_(?:dispatcher|worker)_[a-z_]+"
    in_code = set()
    for file in repository.hand_written_go():
        if file.startswith("service/") and not file.endswith("_test.go"):
            in_code |= set(re.findall(f'"({name})"', repository.text(file)))
    rows = re.findall(rf"^\| `({name})` \| (\w+) \|", repository.text("docs/reference/metrics.md"), re.MULTILINE)
    in_page = {row for row, _ in rows}
    assert len(in_code) > 25, "could not read the metrics from service"
    assert in_code == in_page, f"only in the code: {sorted(in_code - in_page)}; only in the page: {sorted(in_page - in_code)}"
    wrong = [row for row, kind in rows if row.endswith("_total") != (kind == "counter")]
    assert not wrong, f"only counters, and all counters, end in _total: {wrong}"


def recorded() -> dict[str, set[str]]:
    """Message → fields and values of enums, from the files of proto/pecan/v1 with records and with the state."""
    files = [name for name in repository.with_suffix("records.proto") if name.startswith("proto/pecan/v1/")]
    files += [f"proto/pecan/v1/{name}.proto" for name in ("snapshot", "learned")]
    bare = re.sub(r"//.*", "", "".join(map(repository.text, files)))
    _, *parts = re.split(r"^message (\w+) ", bare, flags=re.MULTILINE)
    messages = dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: set(re.findall(r"(\w+) = [1-9]\d*;", body)) for name, body in messages.items() if name != "Record"}


def test_the_page_of_the_journal_explains_exactly_its_fields():
    in_code = recorded()
    kinds = re.findall(r"^    ([A-Z]\w+) \w+ = \d+;", repository.text("proto/pecan/v1/records.proto"), re.MULTILINE)
    assert len(kinds) > 20 and set(kinds) < set(in_code), "could not read the records from proto/pecan/v1"
    assert {"cause", "DIED", "crashed"} <= in_code["LeaseLost"] and in_code["CacheRemoved"] == {"key"}
    rows = re.findall(r"^\| `([A-Z]\w+)` \|(.*)\|$", repository.text("docs/formats/journal.md"), re.MULTILINE)
    in_page = {name: set(re.findall(r"`(\w+)`", words)) for name, words in rows}
    assert len(in_page) == len(rows), "docs/formats/journal.md explains a message twice"
    wrong = {
        name: in_code.get(name, set()) ^ in_page.get(name, set())
        for name in in_code.keys() | in_page.keys()
        if in_code.get(name) != in_page.get(name)
    }
    assert not wrong, f"proto/pecan/v1 and docs/formats/journal.md have different fields: {wrong}"


def test_every_exception_is_explained():
    public = re.findall(r'^    "(\w+)",$', repository.text("python/pecan/errors.py"), re.MULTILINE)
    assert len(public) > 5, "could not read the exceptions from python/pecan/errors.py"
    mute = [name for name in public if f"`{name}`" not in repository.text("docs/reference/errors.md")]
    mute = [name for name in mute if f"`pecan.{name}`" not in repository.text("docs/reference/errors.md")]
    assert not mute, f"docs/reference/errors.md does not explain {mute}"


def words_of(name: str) -> list[str]:
    """The words of a name in camel, snake or kebab case, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def replaced(names: list[str]) -> list[str]:
    """A sentence for every name that contains a replaced word."""
    return [
        f"{name}: the term is {REPLACED[word]}, not {word}"
        for name in names
        if name not in KEPT
        for word in words_of(name)
        if word in REPLACED
    ]


def retired(texts: dict[str, str]) -> list[str]:
    """A sentence for every file that contains a retired word, in a text or as a word of a name."""
    return [
        f"{name}: the term is {RETIRED[word]}, not {word}"
        for name, text in texts.items()
        for word in sorted({word for token in set(re.findall(r"\w+", text)) for word in words_of(token)} & RETIRED.keys())
    ]


def test_messages_use_the_projects_terms():
    names = []
    for file in repository.with_suffix(".proto"):
        bare = re.sub(r"//.*", "", repository.text(file))
        names += re.findall(r"\b(?:message|enum|rpc|service)\s+(\w+)", bare)
        names += re.findall(r"\b(\w+)\s*=\s*\d+;", bare)
    assert len(names) > 50, "could not read the names from the .proto files"
    assert not replaced(names), "\n".join(replaced(names))


def test_flags_use_the_projects_terms():
    defined = re.compile(r"\.(?:\w+?)(?:Var)?P?\((?:&[\w.]+, )?\"([a-z][\w-]*)\", ")
    sources = [repository.text(name) for name in repository.hand_written_go() if name.startswith("service/")]
    flags = [flag for source in sources if "spf13/pflag" in source for flag in defined.findall(source)]
    assert flags, "could not read the flags of the commands"
    assert not replaced(flags), "\n".join(replaced(flags))


def test_no_file_uses_a_retired_word():
    files = [name for name in repository.tracked() if name.endswith(SEARCHED)]
    found = retired({name: repository.text(name) for name in files if name != "tests/repo/test_documents.py"})
    assert not found, "\n".join(found)


def test_a_retired_word_is_detected():
    assert len(retired({"a.go": "// Told: x", "b.go": "d.beats++", "c.go": "wary"})) == 3
    assert len(retired({"a.go": "func beatOnce()", "b.py": "def is_wary()", "c.go": "TestFilesAreToldApart"})) == 3
    assert not retired({"a.go": "heartbeats, untold", "b.go": "staleHeartbeats", "c.go": "heartbeatOnce"})


def test_a_replaced_word_is_detected():
    assert len(replaced(["TaskId", "worker_partition", "max-iteration"])) == 3
    assert not replaced(["StreamId", "sharding", "max-streams"])
