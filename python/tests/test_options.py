"""Checks of the arguments of distribute(), register_dataset() and from_dataset_id(), before any connection."""

import enum
import inspect

import numpy
import pecan
import pytest
from pecan._src import checks, options, workers

# For each mistake: the arguments, the exception, and a part of its message.
MISTAKES = {
    "a lower-case policy": (dict(processing_mode="dynamic"), ValueError, "ShardingPolicy"),
    "a number for a policy": (dict(processing_mode=1), ValueError, "ShardingPolicy"),
    "a sharding that is not a policy": (dict(sharding="exactly_once"), ValueError, "sharding should be"),
    "two policies": (
        dict(processing_mode=pecan.ShardingPolicy.FILE, sharding=pecan.ShardingPolicy.DATA),
        ValueError,
        "give one of them",
    ),
    "off, and each element once": (
        dict(processing_mode="exactly_once", sharding=pecan.ShardingPolicy.OFF),
        ValueError,
        "once per worker",
    ),
    "off, and a policy that divides": (
        dict(processing_mode="off", sharding=pecan.ShardingPolicy.FILE),
        ValueError,
        "divides it",
    ),
    "off, and deterministic": (
        dict(processing_mode="parallel_epochs", deterministic=True),
        ValueError,
        "deterministic=True",
    ),
    "sharding off, and deterministic": (
        dict(sharding=pecan.ShardingPolicy.OFF, deterministic=True),
        ValueError,
        "ShardingPolicy.OFF does not",
    ),
    "a number for a flag": (dict(deterministic=1), TypeError, "True or False"),
    "a string for a flag": (dict(allow_nondeterministic="yes"), TypeError, "True or False"),
    "num_consumers alone": (dict(num_consumers=2, job_name="j"), ValueError, "both"),
    "consumer_index alone": (dict(consumer_index=0, job_name="j"), ValueError, "both"),
    "num_consumers without job_name": (dict(consumer_index=0, num_consumers=2), ValueError, "job_name"),
    "consumer_index too high": (dict(consumer_index=2, num_consumers=2, job_name="j"), ValueError, "from 0 to 1"),
    "zero consumers": (dict(consumer_index=0, num_consumers=0, job_name="j"), ValueError, "above 0"),
    "coordinated reads": (
        dict(consumer_index=0, num_consumers=2, job_name="j"),
        NotImplementedError,
        "not supported yet",
    ),
    "a cross-trainer cache": (dict(cross_trainer_cache=object()), NotImplementedError, "cross_trainer_cache"),
    "an unknown kind of workers": (dict(target_workers="foo"), ValueError, "target_workers"),
    "zero requests": (dict(max_outstanding_requests=0), ValueError, "positive"),
    "a negative number of requests": (dict(max_outstanding_requests=-5), ValueError, "positive"),
    "a request and a half": (dict(max_outstanding_requests=1.5), TypeError, "integer"),
    "zero bytes": (dict(max_outstanding_bytes=0), ValueError, "above 0"),
    "more bytes than an int64 holds": (dict(max_outstanding_bytes=1 << 70), ValueError, "at most"),
    "an unknown protocol": (dict(data_transfer_protocol="foo"), ValueError, "tcp"),
    "an unknown compression": (dict(compression="zip"), ValueError, "snappy"),
    "an empty job name": (dict(job_name=""), ValueError, "must not be empty"),
    "a number for a job name": (dict(job_name=7), ValueError, "must be a string"),
    "a seed that does not fit": (dict(seed=1 << 64), ValueError, "64 bits"),
    "a string for a seed": (dict(seed="7"), TypeError, "integer"),
    "a timeout of zero": (dict(dispatcher_timeout_s=0), ValueError, "above 0"),
    "an infinite timeout": (dict(dispatcher_timeout_s=float("inf")), ValueError, "finite"),
    "a timeout of NaN": (dict(dispatcher_timeout_s=float("nan")), ValueError, "finite"),
    "elements above 2 GiB": (dict(max_element_bytes=(2 << 30) + 1), ValueError, "2 GiB"),
    "zero local workers in the private cluster": (dict(local_workers=0), ValueError, "without workers"),
    "fewer than no local workers": (dict(service="h:1", local_workers=-1), ValueError, "from 0 to 1024"),
    "a word for local workers": (dict(local_workers="many"), ValueError, '"auto" or a number'),
    "half a local worker": (dict(local_workers=0.5), TypeError, "local_workers"),
    "a nice value above the largest": (dict(local_worker_nice=20), ValueError, "from 0 to 19"),
    "an unknown order": (dict(order="on"), ValueError, "'off', 'auto', 'paper', 'paper_unguarded'"),
    "a boolean for an order": (dict(order=True), ValueError, "'off', 'auto', 'paper', 'paper_unguarded'"),
    "a number for a tolerance": (dict(order_tolerance=0.1), ValueError, "'approximate', 'exact', 'any'"),
    "an unknown choice of caches": (dict(cache="on"), ValueError, "'candidates', 'auto', 'paper', 'off'"),
    "a boolean for caches": (dict(cache=False), ValueError, "'candidates', 'auto', 'paper', 'off'"),
    "no weight": (dict(weight=0), ValueError, "from 0.01 to 100"),
    "too much weight": (dict(weight=101), ValueError, "from 0.01 to 100"),
    "a weight that is no number": (dict(weight=float("nan")), ValueError, "from 0.01 to 100"),
    "a text as weight": (dict(weight="3"), TypeError, "must be a number"),
    "an empty tenant": (dict(tenant=""), ValueError, "lower-case letters"),
    "a tenant with a space": (dict(tenant="a b"), ValueError, "lower-case letters"),
    "a number as tenant": (dict(tenant=7), TypeError, "must be a string"),
    "no streams": (dict(streams=0), ValueError, "above 0"),
    "None for streams": (dict(streams=None), ValueError, '"auto" or a number'),
    "a word for streams": (dict(streams="many"), ValueError, '"auto" or a number'),
    "half a stream": (dict(streams=0.5), TypeError, "streams"),
    "too many streams": (dict(streams=65_537), ValueError, "at most 65536"),
    "streams without sharding": (dict(streams=4, sharding=pecan.ShardingPolicy.OFF), ValueError, "another policy"),
    "an unknown objective": (dict(objective="speed"), ValueError, "objective"),
    "a budget without its objective": (dict(objective="cost", budget_per_hour=3.0), ValueError, "need each other"),
    "an objective without its budget": (dict(objective="budget"), ValueError, "need each other"),
    "limits without an objective": (
        dict(service="h:1", worker_limits={"remote": (1, 2)}),
        ValueError,
        "without an `objective`",
    ),
    "limits of a number of workers": (
        dict(local_workers=2, worker_limits={"local": (1, 2)}),
        ValueError,
        "without an `objective`",
    ),
    "limits of another kind": (dict(objective="cost", worker_limits={"far": (1, 2)}), ValueError, "worker_limits"),
    "limits that contradict": (dict(objective="cost", worker_limits={"local": (3, 2)}), ValueError, "at least 0"),
    "an objective with fixed parts": (
        dict(objective="cost", sharding=pecan.ShardingPolicy.FILE),
        ValueError,
        "ShardingPolicy.FILE does not allow that",
    ),
    "an objective that gives every worker everything": (
        dict(objective="cost", processing_mode="off"),
        ValueError,
        "leave `objective` out",
    ),
    "a private cluster that may have no worker": (
        dict(service=None, objective="cost", worker_limits={"local": (0, 0)}),
        ValueError,
        "leaves the private cluster without workers",
    ),
    "one limit": (dict(objective="cost", worker_limits={"local": 3}), ValueError, "least, most"),
    "streams with a hint": (dict(streams=4, sharding=pecan.ShardingPolicy.HINT), ValueError, "choose another policy"),
    "paper with a tolerance": (dict(order="paper", order_tolerance="exact"), ValueError, "leave `order_tol"),
    "paper without guards with a tolerance": (
        dict(order="paper_unguarded", order_tolerance="exact"),
        ValueError,
        '"paper_unguarded" does not limit',
    ),
    "a number for a service": (dict(service=7), ValueError, "must be a string"),
    "an empty service": (dict(service=""), ValueError, "must not be empty"),
    "two protocols": (dict(service="pecan://a://b:1"), ValueError, "multiple"),
    "tf.data service's protocol": (dict(service="grpc://a:1"), ValueError, "pecan://host:port"),
    "no port": (dict(service="localhost"), ValueError, "host:port"),
    "a port above 65535": (dict(service="localhost:70000"), ValueError, "65535"),
    "a processing mode for a service": (dict(service="exactly_once"), ValueError, "processing_mode='exactly_once'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_arguments_raise_at_the_call(name):
    arguments, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words.replace("(", r"\(")) as caught:
        pecan.distribute(**arguments)
    assert isinstance(caught.value, pecan.PecanError)


@pytest.mark.parametrize(
    "name", [n for n in MISTAKES if "private cluster" not in n and n != "a processing mode for a service"]
)
def test_from_dataset_id_refuses_the_same_arguments(name):
    arguments, kind, _ = MISTAKES[name]
    with pytest.raises(kind):
        pecan.from_dataset_id(**{"processing_mode": None, "service": "h:1", "dataset_id": "x", **arguments})


def test_register_dataset_refuses_ids_that_are_not_strings():
    with pytest.raises(TypeError, match="dataset_id"):
        pecan.register_dataset("h:1", None, dataset_id=7)
    with pytest.raises(ValueError, match="must not be empty"):
        pecan.register_dataset("h:1", None, dataset_id="")


class Elsewhere:
    """An enumeration with TensorFlow's names, which is recognised by them."""

    class ShardingPolicy(enum.IntEnum):
        OFF = 0
        DYNAMIC = 1


ALL = dict(
    processing_mode=None, sharding=None, deterministic=False, job_name=None, consumer_index=None, num_consumers=None,
    max_outstanding_requests=None, data_transfer_protocol="auto", compression="auto", cross_trainer_cache=None,
    target_workers="AUTO", max_outstanding_bytes=1, max_element_bytes=None, payload_checksum=False,
    dispatcher_timeout_s=1, seed=None, allow_nondeterministic=False, order="off", order_tolerance=None,
    cache="candidates",
    streams="auto",
    objective=None,
    budget_per_hour=None,
    worker_limits=None,
    trainer_type="",
    weight=1,
    tenant="default",
    service="h:1",
    local_workers="auto",
    local_worker_nice=None,
)  # fmt: skip

MODES = {
    "defaults": (dict(), "exactly_once", "unspecified"),
    "parallel epochs": (dict(processing_mode="parallel_epochs"), "off", "off"),
    "distributed epoch": (dict(processing_mode="distributed_epoch"), "exactly_once", "dynamic"),
    "TensorFlow's policy": (dict(processing_mode=Elsewhere.ShardingPolicy.DYNAMIC), "exactly_once", "dynamic"),
    "TensorFlow's off": (dict(processing_mode=Elsewhere.ShardingPolicy.OFF), "off", "off"),
    "Pecan's off": (dict(processing_mode="off"), "off", "off"),
    "a policy as sharding": (dict(sharding=pecan.ShardingPolicy.FILE_OR_DATA), "exactly_once", "file_or_data"),
    "deterministic": (dict(deterministic=True), "deterministic", "unspecified"),
    "deterministic, by files": (
        dict(deterministic=True, processing_mode=pecan.ShardingPolicy.FILE),
        "deterministic",
        "file",
    ),
    "a guarantee and a policy": (
        dict(processing_mode="at_most_once", sharding=pecan.ShardingPolicy.DYNAMIC),
        "at_most_once",
        "dynamic",
    ),
}


@pytest.mark.parametrize("name", MODES)
def test_processing_mode_and_sharding_are_passed_on(name):
    arguments, mode, sharding = MODES[name]
    chosen = options.read_options(**{**ALL, **arguments})
    assert (chosen.mode, chosen.sharding) == (mode, sharding)


@pytest.mark.parametrize(
    ("order", "tolerance", "chosen"),
    [
        ("off", None, ("off", "approximate")),
        ("auto", None, ("auto", "approximate")),
        ("auto", "exact", ("auto", "exact")),
        ("auto", "any", ("auto", "any")),
        ("paper", None, ("paper", "any")),
        ("paper", "any", ("paper", "any")),
        ("paper_unguarded", None, ("paper_unguarded", "any")),
    ],
)
def test_the_default_tolerance_follows_from_the_order(order, tolerance, chosen):
    options_ = options.read_options(**{**ALL, "order": order, "order_tolerance": tolerance})
    assert (options_.order, options_.order_tolerance) == chosen


def test_an_objective_and_its_limits_are_passed_on():
    assert options.read_options(**ALL).placement is None
    limits = {"remote": (1, None), "local": (0, 0)}
    given = dict(objective="budget", budget_per_hour=7, worker_limits=limits, trainer_type="v2-8")
    assert options.read_options(**{**ALL, **given}).placement == {
        "objective": "budget",
        "budget_per_hour": 7.0,
        "trainer_type": "v2-8",
        "min_remote": 1,
        "max_remote": 0,
        "min_local": 0,
        "max_local": -1,
    }


def test_a_weight_and_a_tenant_are_passed_on():
    chosen = options.read_options(**ALL)
    assert (chosen.weight, chosen.tenant) == (1.0, "default")
    chosen = options.read_options(**{**ALL, "weight": 0.5, "tenant": "team-7"})
    assert (chosen.weight, chosen.tenant) == (0.5, "team-7")


def test_a_private_cluster_sizes_itself():
    """Unless the user gives the number of workers, or workers may not take any part of the dataset."""
    private = {**ALL, "service": None}
    for given, objective, most in [
        (dict(), "cost", None),
        (dict(processing_mode="distributed_epoch"), "cost", None),
        (dict(deterministic=True), "cost", None),
        (dict(worker_limits={"local": (1, 3)}), "cost", 3),
        (dict(objective="time"), "time", None),
        (dict(local_workers=2), None, None),
        (dict(processing_mode="off"), None, None),
        (dict(sharding=pecan.ShardingPolicy.FILE), None, None),
    ]:
        chosen = options.read_options(**{**private, **given})
        local = chosen.local_workers
        assert (chosen.placement or {}).get("objective") == objective, given
        assert (local.decided, local.most) == (objective is not None, most), given


# Arguments, and what follows: the number, whether the dispatcher decides, the nice value, whether some are started.
LOCAL = {
    "none for a service": (dict(), (None, False, 10, False)),
    "as many as the service wants": (dict(objective="cost"), (None, True, 10, True)),
    "a number": (dict(local_workers=3), (3, False, 10, True)),
    "a number with an objective": (dict(local_workers=3, objective="time"), (3, False, 10, True)),
    "none with an objective": (dict(local_workers=0, objective="time"), (0, False, 10, False)),
    "the usual priority": (dict(local_workers=1, local_worker_nice=0), (1, False, 0, True)),
    "a private cluster": (dict(service=None), (None, True, None, True)),
    "a private cluster of two workers": (dict(service=None, local_workers=2), (2, False, None, True)),
    "a private cluster with fixed parts": (
        dict(service=None, sharding=pecan.ShardingPolicy.FILE),
        (None, False, None, True),
    ),
    "a private cluster with an objective": (dict(service=None, objective="cost"), (None, True, 10, True)),
}


@pytest.mark.parametrize("name", LOCAL)
def test_who_decides_on_local_workers(name):
    arguments, expected = LOCAL[name]
    local = options.read_options(**{**ALL, **arguments}).local_workers
    assert (local.number, local.decided, local.nice, local.starts) == expected


def test_more_local_workers_than_the_memory_holds_are_refused(monkeypatch):
    monkeypatch.setattr(workers, "_memory", lambda: 480 << 20)
    assert options.read_options(**{**ALL, "local_workers": 10}).local_workers.number == 10
    with pytest.raises(ValueError, match=r"`local_workers`=11 needs more memory .* Give at most 10, .* or \"auto\""):
        options.read_options(**{**ALL, "local_workers": 11})


@pytest.mark.parametrize(("given", "name"), [("auto", "unspecified"), ("ANY", "unspecified"), ("local", "local")])
def test_target_workers_are_passed_on(given, name):
    assert options.read_options(**{**ALL, "target_workers": given}).target_workers == name


def test_a_number_of_streams_is_passed_on():
    assert options.read_options(**ALL).streams == 0
    assert options.read_options(**{**ALL, "streams": 65_536}).streams == 65_536


def test_the_default_tolerance_of_deterministic_mode_is_exact():
    for order, tolerance, meant in [
        ("auto", None, "exact"),
        ("auto", "approximate", "approximate"),
        ("paper", None, "any"),
    ]:
        chosen = options.read_options(**{**ALL, "deterministic": True, "order": order, "order_tolerance": tolerance})
        assert chosen.order_tolerance == meant


def test_the_default_order_is_auto_everywhere():
    defaults = [inspect.signature(f).parameters["order"].default for f in (pecan.distribute, pecan.from_dataset_id)]
    assert [*defaults, options.ReadOptions().order] == [options.DEFAULT_ORDER] * 3 == ["auto"] * 3


def test_equivalent_forms_of_a_value_give_the_same_option():
    assert options.compression_name("AUTO") == "auto"
    assert options.compression_name(None) == "none"
    assert checks.service_target("pecan://host:1") == checks.service_target(("pecan", "host:1")) == "host:1"
    assert checks.dataset_id(b"x") == "x"
    assert options.read_options(**{**ALL, "seed": -1}).seed == (1 << 64) - 1
    assert options.read_options(**{**ALL, "max_outstanding_requests": -1}).max_outstanding_requests is None


def test_numbers_and_booleans_of_numpy_are_accepted():
    for kind in (numpy.float32, numpy.float64, numpy.int64):
        chosen = options.read_options(**{**ALL, "dispatcher_timeout_s": kind(5)})
        assert (chosen.dispatcher_timeout_s, type(chosen.dispatcher_timeout_s)) == (5, float)
    few = options.read_options(**{**ALL, "max_outstanding_requests": numpy.int64(3)}).max_outstanding_requests
    assert few == 3
    assert type(few) is int
    assert options.read_options(**{**ALL, "max_outstanding_requests": numpy.int64(-1)}).max_outstanding_requests is None
    flags = {"deterministic": numpy.True_, "payload_checksum": numpy.True_}
    chosen = options.read_options(**{**ALL, **flags})
    assert (chosen.mode, chosen.payload_checksum) == ("deterministic", True)
    assert options.read_options(**{**ALL, "deterministic": numpy.False_}).mode == "exactly_once"
    with pytest.raises(TypeError, match="number of seconds"):
        checks.seconds("dispatcher_timeout_s", numpy.True_)


def test_the_argument_order_of_tf_data_service_is_accepted():
    assert callable(pecan.distribute("distributed_epoch", "host:1"))
    assert callable(pecan.distribute(pecan.ShardingPolicy.OFF, "host:1", job_name="j"))
    assert callable(pecan.distribute(processing_mode=pecan.ShardingPolicy.OFF, service="host:1"))
    with pytest.raises(TypeError, match="by name"):
        pecan.distribute("distributed_epoch", "host:1", "j")
    with pytest.raises(TypeError, match="twice"):
        pecan.distribute("distributed_epoch", processing_mode="parallel_epochs")
    with pytest.raises(TypeError, match="only positional argument"):
        pecan.distribute("host:1", "distributed_epoch")
