"""Breaks each guard of AutoOrder, and guards of AutoCache and AutoPlacement, in turn and expects a test to fail (`make mutate`).

A guard of AutoOrder is a condition in the Go code that keeps steps in their registered order. One of AutoCache refuses a
step whose stored elements would not be those of each epoch. One of AutoPlacement keeps elements while workers come and go.
One of its policy, the search, keeps it from changing workers without a reason.

Each mutation replaces one text of the Go code under service/ or policies/ by another one and names a test. The test passes
before and must fail after. The go command reads the changed file through its -overlay flag, so the working tree stays as it is.

A text is found by its content, because files move. It must exist exactly once.

    python tests/mutate.py              # all guards
    python tests/mutate.py draws type   # the guards whose description has one of these words
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARALLEL = 2
GRAPH = "tests/graph/test_"
ADVERSARY = GRAPH + "adversaries.py::test_no_proposed_order_changes_the_dataset"
STAYS = GRAPH + "proposals.py::test_a_step_that_would_change_elements_stays_with_a_reason"
TRIAL = GRAPH + "proposals.py::test_an_order_that_a_trial_would_refuse_is_not_proposed"
MARKS = "TestMarksAreLegalOrHaveAReason"
BATCH = GRAPH + "batches.py::test_a_map_that_is_not_pointwise_stays_before_the_batch"


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A guard, its text, the text that breaks it, and the test that must then fail."""

    guard: str
    before: str
    after: str
    test: str


def off(guard: str, text: str, test: str) -> Mutation:
    """Returns a mutation that makes a condition always false. The text ends with the condition and its ":" or "{"."""
    start = max(text.rfind(word) + len(word) for word in ("case ", "if ", "; ") if word in text)
    return Mutation(guard, text, f"{text[:start]}false && ({text[start:-1].rstrip()}){' {' if text[-1] == '{' else ':'}", test)


MUTATIONS = (
    # A filter moves upstream.
    off("a filter does not pass a map that changes a component that it reads", "if c, found := readComponent(b, a); found {", f"{ADVERSARY}[a filter of NaN values]"),
    off(
        "a filter that can fail does not pass a filter", 'case a.Drops && b.CanFail != "":',
        f"{ADVERSARY}[a filter that divides by values that a filter drops]",
    ),
    off(
        "a filter does not pass a step that draws", "case p.draws(a) || a.Drops && p.draws(b):",
        f"{ADVERSARY}[a filter past random noise]",
    ),
    off(
        "under exact a filter does not pass a check", 'case a.Checks != "" && p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT:',
        f"{ADVERSARY}[a step that checks]",
    ),
    # A map moves upstream past a filter.
    off("a map does not pass a filter that reads a component that it changes", "if c, found := readComponent(a, b); found {", f"{STAYS}[a map that changes the input of a filter]"),
    off("a map that can fail does not pass a filter", 'case b.CanFail != "":', f"{ADVERSARY}[a map that divides by values that a filter drops]"),
    off("a map that draws does not pass a filter", "case p.draws(b):", f"{STAYS}[a random step past a filter]"),
    # Two maps of one component.
    off("a map does not pass a map that reads the component for another result", "if !slices.Contains(t.SelfReads, c) {", f"{STAYS}[a component that another result uses]"),
    off(
        "a division of integers does not pass a map that makes other values", 'FailsForIntegers; op != "" && (pair.other.Opaque != "" || pair.other.Computes || '
        "pair.other.Permutes|pair.other.Sizes != 0) {", f"{ADVERSARY}[a map that divides by values that a crop removes]",
    ),
    off("a change of type does not pass arithmetic", '; was != is && (other.Arithmetic || other.Opaque != "") {', f"{ADVERSARY}[a cast that overflows]"),
    off("two maps that compute do not pass each other", "case c.Computes && other.Computes:", f"{STAYS}[sums past a resize]"),
    off(
        "a step that moves values does not pass a step that depends on positions",
        "if both := pair[0].Moves & (pair[1].PositionDependent | pair[1].Moves | pair[1].Mixes); both != 0 {",
        f"{ADVERSARY}[a random crop past a random flip]",
    ),
    off(
        "a step that moves values does not pass a step whose last bits depend on positions",
        "if pair[0].Moves != 0 && (pair[1].AlignmentDependent || pair[1].Mixes != 0) {",
        f"{ADVERSARY}[a quotient of complex numbers, and a crop]",
    ),
    off(
        "a change of size does not pass a step that depends on that size", "if both := pair[0].Sizes & pair[1].DependsOnSize; both != 0 {",
        f"{ADVERSARY}[values computed from a size]",
    ),
    off(
        "a change of size does not pass a step that checks that size", "if both := pair[0].Sizes & pair[1].ChecksSize; both != 0 {",
        f"{ADVERSARY}[a check of the size that a crop produces]",
    ),
    # Constants that a step inserts.
    off(
        "a step that inserts a constant does not pass a step that changes it", "if pair[1].Computes && !pair[1].keeps(constant) {",
        f"{ADVERSARY}[zeros around an image that becomes brighter]",
    ),
    off(
        "two steps that insert different constants do not pass each other",
        "if slices.ContainsFunc(pair[1].Inserts, func(v float64) bool { return !sameBits(v, constant) }) {",
        f"{ADVERSARY}[two frames of other constants]",
    ),
    Mutation(
        "a step that keeps a zero keeps its sign", "return certain && sameBits(got, v)", "return certain && got == v",
        f"{ADVERSARY}[zeros around a negated image]",
    ),
    Mutation(
        "a step that computes has no constants to keep", "c.Computes, c.Arithmetic, c.Inserts, c.value = true, true, nil, value",
        "c.Computes, c.Arithmetic, c.Inserts, c.value = true, true, nil, unchanged",
        f"{ADVERSARY}[a frame that a step computes, and another frame]",
    ),
    # Branches.
    Mutation(
        "no step leaves its branch", "r.g.Freezes(s.Node) || begins(s) {", "r.g.Freezes(s.Node) {",
        "TestNoStepLeavesItsBranch",
    ),
    Mutation(
        "a filter after a join counts as a reader of each branch", "all = all || t.Calls || t.Joins", "all = all || t.Calls",
        f"{GRAPH}branches.py::test_values_that_may_differ_decide_nothing_below_a_join",
    ),
    # Functions of interleaves.
    off(
        "a filter keeps the turns of a parallel interleave", 'case a.CanFail != "" && p.failuresTakeTurns(j) != "":',
        f"{GRAPH}functions.py::test_a_filter_does_not_change_the_turns_of_an_interleave_over_failed_elements[True]",
    ),
    Mutation(
        "random values in functions are not keyed", "t.Keyable, t.Stateful = false, t.Stateful ||", "t.Keyable, t.Stateful = t.Keyable, t.Stateful ||",
        f"{GRAPH}functions.py::test_no_proposed_order_in_a_function_changes_the_dataset[a random crop past a random flip-flat_map]",
    ),
    Mutation(
        "a step that uses what its function captures does not move", "t.Stateful || capturesResource(c.g, s)", "t.Stateful",
        f"{GRAPH}functions.py::test_a_step_in_a_function_stays_with_a_reason[a step that uses a variable of the outside]",
    ),
    Mutation(
        "steps of functions upstream of the cut stay", "switch name := p.all[at].Outermost(); {", "switch name := p.all[at].Node; {",
        f"{GRAPH}functions.py::test_steps_of_a_function_upstream_of_a_cached_step_stay",
    ),
    # Caches in orders.
    Mutation(
        "steps in functions count for the key of a cache", "append(append(cached.Upstream, name), inside[name]...)", "append(cached.Upstream, name)",
        "TestTheKeyOfACacheFollowsEachOrderOfItsSteps",
    ),
    Mutation(
        "steps of other branches do not count for the key of a cache", "cached.Before = uint32(max(0, ", "cached.Before = 0 * uint32(max(0, ",
        "TestTheKeyOfACacheFollowsEachOrderOfItsSteps",
    ),
    # Steps that must not be cached.
    off("a step that is random in each epoch is not cached", "if why.None() && !freezes && !q.ByParts[step] {", MARKS),
    off("a step after another one that produces other values in each run is not cached", "case f.Stateful || f.WritesVariables || f.Unrepeatable:", MARKS),
    off("a step that is read more than once, or not to its end, is not cached", "if input.refusal.None() && !f.readsOnce(s, in) {", MARKS),
    off("a step before random values by another number is not cached", "if first := f.shiftsIndex(s); at.refusal.None() && through && first != nil {", MARKS),
    off("files without versions are not cached", 'if scheme := r.unversioned(); why.None() && scheme != "" {', MARKS),
    off("files with computed names are not cached", "if !r.opensOnly(name, known) {", "TestThePlannerFindsCandidates"),
    # Rollbacks.
    Mutation(
        "a failure in an order excuses no later one", "return last.GetError() != nil && !last.GetFailedInOrder()", "return last.GetError() != nil",
        "TestAFailureInTheRegisteredOrderExcusesTheNextOneOnly",
    ),
    Mutation(
        "an order in which elements fail does not return", "r.rollBack(key, &pecanv1.OrderJudged{Why: s.failed, ElementsFailed: true})",
        "r.rollBack(key, &pecanv1.OrderJudged{Why: s.failed, Suspected: true})", "TestAnOrderThatIsRolledBackForACauseDoesNotReturn",
    ),
    # Under approximate and any.
    off("under approximate two steps that draw do not pass each other", "case random:", f"{TRIAL}[two random steps]"),
    off("under approximate two steps that combine values do not pass each other", "if both := one.Mixes & other.Mixes; both != 0 {", f"{TRIAL}[two mixes]"),
    off("under approximate a mirror does not pass a step that does not commute with it", "if both := one.Moves & other.Skews; both != 0 {", f"{TRIAL}[a rotation and a mirror]"),
    Mutation(
        "no filter reads values that may differ slightly", 'case t.Barrier != "" && t.Decides, t.Drops && touches(t.Reads):', "case t.Drops && t.Batches:",
        f"{GRAPH}proposals.py::test_no_filter_reads_values_that_may_differ",
    ),
    # Batches.
    off("a step that draws does not pass a batch", "case t.Random:", f"{BATCH}[a random map]"),
    off("a step that can fail does not pass a batch", 'case t.CanFail != "" || t.Checks != "":', f"{BATCH}[a map that can fail]"),
    off("only a map of single values passes a batch", "case !change.PerValue():", f"{BATCH}[a crop]"),
    off("a map whose last bits depend on positions does not pass a batch", "case differs:", f"{BATCH}[a map whose last bits differ]"),
    off(
        "a map that treats rows differently does not pass a batch", "case afterBatch && (change.PositionDependent|change.DependsOnSize)&1 != 0:",
        f"{GRAPH}batches.py::test_a_map_that_treats_rows_differently_stays_after_the_batch",
    ),
    off("a map that reads other components does not pass a batch", "if len(t.Reads) > len(t.Writes) {", f"{BATCH}[a map that reads another component]"),
    # Steps that stay, and past which no step moves.
    off("a step with a state stays", "case t.Stateful:", f"{ADVERSARY}[a step that counts]"),
    off(
        "a step upstream of the cut or of a cache stays", 'case upstream != "":',
        f"{GRAPH}proposals.py::test_no_step_moves_before_a_cache_or_without_metrics",
    ),
    Mutation(
        "a step that changes which elements there are stays", 't.Barrier = "it may change which elements there are, or their sequence"', "t.Passes = true", f"{STAYS}[a shuffle]"
    ),
    Mutation(
        "pecan.keep_position keeps a step", "Barrier: authorBarrier, Random:", "Passes: true, Random:",
        f"{GRAPH}kept.py::test_no_proposed_order_moves_a_barrier_or_a_step_past_it",
    ),
    # The graph and the plan.
    off(
        "a function does not get a size that it was not traced for", "if reads && !refines(shapes[i], stated[i]) && "
        "!(alone && sameOnShapes(r.g, name, i, shapes[i], stated[i], r.batchesGained[s])) {",
        f"{GRAPH}orders.py::test_impossible_orders_are_refused",
    ),
    Mutation(
        "a position names only an order that the steps allow", "p.Steps[j].Fixed, p.Constraints[[2]int{i, j}]} {",
        "p.Steps[j].Fixed, p.Constraints[[2]int{i, j}]}[:0] {",
        "TestNamedAcceptsOnlyOrdersThatTheTraitsAllow",
    ),
    Mutation(
        "an order divides the source as the registered order does", "if why = p.planDiffers(ordered); why", "if why = p.planDiffers(ordered)[:0]; why",
        f"{GRAPH}batches.py::test_batches_after_a_filter_keep_their_plan",
    ),
    # Workers that leave a job or the service.
    Mutation(
        "a worker that was asked to leave gets no more streams", "return worker.departure == nil && c.answers(worker)", "return c.answers(worker)",
        "TestSimulation",
    ),
    Mutation(
        "a placement cuts no stream short", "return cheap && job.Options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE && ", "return cheap && ",
        "TestSimulation",
    ),
    # A trainer that reaches other workers than the others do.
    Mutation(
        "a stream whose rest would be lost does not leave its worker for a trainer that waits",
        "|| split.MayMove(epoch.Job.Plan, epoch.Job.Options) && c", "|| (true || split.MayMove(epoch.Job.Plan, epoch.Job.Options)) && c", "TestScripts",
    ),
    Mutation(
        "a stream stays with a worker that was not chosen, if its trainer reaches no other one", "s.serves[id] || p.schedule.NeedsOthers(epoch, stream.Stream) {", "s.serves[id] {",
        "TestScripts",
    ),
    # The search for the number of workers.
    Mutation("the search follows no gain below the margin", "Search{Margin: 0.02, Horizon: 200}", "Search{Margin: 0, Horizon: 200}", "TestAGainBelowTheMarginChangesNothing"),
    Mutation("one window of the search decides nothing", "max(0, math.Abs(difference)-oneWindow)", "math.Abs(difference)", "TestOneOutlierDecidesNothing"),
    Mutation(
        "the search measures its choice twice", "if s.target = s.best; m.windows(s.best) < 2 && s.left > 0 {", "if s.target = s.best; m.windows(s.best) < 1 && s.left > 0 {",
        "TestASearchMeasuresItsChoiceTwice",
    ),
    Mutation("the search measures a slow probe once more", "m.cells[i].ratio > surprise &&", "m.cells[i].ratio > 99*surprise &&", "TestASearchMeasuresASlowProbeAgain"),
    off("the search measures an outlier of the best once more", "case m.windows(c) >= 2 && m.windows(s.best) == 1:", "TestASearchMeasuresAnOutlierOfTheBestAgain"),
    off("the last windows of a search confirm what was measured", "if s.left <= confirmWindows {", "TestTheLastWindowsOfASearchConfirmWhatWasMeasured"),
    Mutation("a search has an end", "case c == s.best || gain < needed || s.left <= 0:", "case c == s.best || gain < needed:", "TestASearchEndsAfterNineWindows"),
    Mutation("a probe of the search pays for itself within the horizon", "return max(s.Margin, probeWindows/float64(s.Horizon))", "return s.Margin", "TestAProbePaysForItselfInWhatIsLeftOfTheJob"),
    Mutation("three windows confirm a change before a search", "normal, change) < confirming {", "normal, change) < 0*confirming {", "TestTheMonitorIgnoresTwoOutliersAndFindsAChange"),
    Mutation("a small change begins no search", ">= realChange {\n", ">= 0*realChange {\n", "TestTheMonitorIgnoresTwoOutliersAndFindsAChange"),
    Mutation("the search awaits a missing worker", "if s.missing++; s.missing < patience {", "if s.missing++; s.missing < 0*patience {", "TestAMissingWorkerIsAwaitedForTwoWindows"),
    Mutation(
        "the search does not ask again and again for missing workers", "if s.ceiling != nil {\n\t\tl.Max", "if false && s.ceiling != nil {\n\t\tl.Max",
        "TestMissingWorkersAreNotAwaitedForLong",
    ),
    Mutation(
        "the search asks less and less for missing workers", "&limit, s.backoff, min(2*s.backoff, mostBackoff)", "&limit, s.backoff, s.backoff",
        "TestMissingWorkersAreTriedLessAndLess",
    ),
    off("the search ignores a window with a gap", "case w.Gap:", "TestUnusableWindowsChangeNothing"),
    Mutation("the search forgets windows of an earlier plan", "s.plan, s.obs, s.replanned, s.calm = plan, nil,", "s.plan, s.obs, s.replanned, s.calm = plan, s.obs,", "TestWindowsOfAnEarlierPlanDoNotCount"),
)  # fmt: skip


def go_files() -> list[pathlib.Path]:
    """Returns the files that may have a guard or a test."""
    return [path for directory in ("service", "policies") for path in (ROOT / directory).rglob("*.go")]


def sources() -> dict[pathlib.Path, str]:
    """Returns the Go code with the guards, without its tests."""
    return {path: path.read_text() for path in go_files() if not path.name.endswith("_test.go")}


def place(mutation: Mutation, code: dict[pathlib.Path, str]) -> pathlib.Path:
    """Returns the only file that has the text."""
    found = [path for path, text in code.items() for _ in range(text.count(mutation.before))]
    if len(found) != 1:
        raise SystemExit(f"tests/mutate.py: {mutation.guard}: {mutation.before!r} is in {len(found)} places, not one: {[str(p) for p in found]}")
    return found[0]


def run(*words: str, overlay: pathlib.Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command whose Go builds read changed files."""
    flags = [os.environ.get("GOFLAGS", ""), "-trimpath", f"-overlay={overlay}" if overlay else ""]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "GOFLAGS": " ".join(filter(None, flags))}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


def outcome(tests: list[str], overlay: pathlib.Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs one Go test, or some Python tests."""
    if not tests[0].startswith("tests/"):
        packages = sorted({str(path.parent) for path in go_files() if f"func {tests[0]}(" in path.read_text()})
        return run("go", "test", "-count=1", f"-run=^{tests[0]}$", *packages, overlay=overlay)
    return run(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, overlay=overlay)


def caught(mutation: Mutation, path: pathlib.Path, text: str) -> tuple[bool, str]:
    """Returns whether the test fails for a mutation, and the output if not."""
    with tempfile.TemporaryDirectory() as directory:
        changed, overlay = pathlib.Path(directory) / "changed.go", pathlib.Path(directory) / "overlay.json"
        changed.write_text(text.replace(mutation.before, mutation.after))
        overlay.write_text(json.dumps({"Replace": {str(path): str(changed)}}))
        # Otherwise a mutation that does not compile would count as caught.
        built = run("go", "build", f"./{path.parent.relative_to(ROOT)}", overlay=overlay)
        if built.returncode:
            return False, f"it does not compile:\n{built.stderr}"
        done = outcome([mutation.test], overlay)
        return done.returncode == 1, "" if done.returncode == 1 else f"{mutation.test} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def main() -> int:
    """Runs the named mutations, or all of them, and returns 1 if one was not caught."""
    words, code = sys.argv[1:], sources()
    chosen = [m for m in MUTATIONS if not words or any(word in m.guard for word in words)]
    places = [place(m, code) for m in chosen]
    began = time.monotonic()
    for tests in ([m.test for m in chosen if m.test.startswith("tests/")], *([m.test] for m in chosen if not m.test.startswith("tests/"))):
        if tests and (done := outcome(sorted(set(tests)))).returncode:
            print(f"these tests must pass without a mutation:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
            return 1
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        for m, (is_caught, why) in zip(chosen, pool.map(lambda m, path: caught(m, path, code[path]), chosen, places)):
            missed += not is_caught
            print(f"{'caught' if is_caught else 'MISSED'}  {m.guard}{': ' + why if why else ''}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations were caught in {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
