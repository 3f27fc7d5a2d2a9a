"""Writes the serialised datasets that the Go tests read, from the TensorFlow that is installed.

Small on purpose, and kept in the repository so that the Go tests need no TensorFlow. Run it by hand after adding a case.
"""

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

D = tf.data.Dataset
FILES = [f"/data/part-{i}.tfrecord" for i in range(8)]


def twice(x: tf.Tensor) -> tf.Tensor:
    return x * 2


def kept(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.take(-1, name="pecan_cache")


def noisy(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) + tf.random.uniform([])


def python_step(x: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda v: v, [x], tf.int64)


def loose() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 3
    return options


def lookup() -> tf.data.Dataset:
    keys = tf.constant([1, 2, 3], tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 10), -1)
    offset = tf.Variable(5, dtype=tf.int64)
    return D.range(5).map(lambda x: table.lookup(x) + offset)


def counter(calls: int | None = None) -> tf.data.Dataset:
    total = tf.Variable(0, dtype=tf.int64)
    return D.range(5).map(lambda x: total.assign_add(x), num_parallel_calls=calls)


def generator_state() -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(3)
    return D.range(64).map(lambda x: generator.uniform([]))


def filtered_counter() -> tf.data.Dataset:
    total = tf.Variable(0, dtype=tf.int64)
    return D.range(100).map(lambda x: total.assign_add(x)).filter(lambda x: x % 2 == 0).repeat(2)


def two_counters() -> tf.data.Dataset:
    total = tf.Variable(0, dtype=tf.int64)
    return D.range(5).map(lambda x: total.assign_add(x)).filter(lambda x: total > 3)


def drawn(calls: int | None = None) -> tf.data.Dataset:
    state = keras.random.SeedGenerator(3)
    return D.range(64).map(lambda x: keras.random.uniform([], seed=state), num_parallel_calls=calls)


def drawn_in_step() -> tf.data.Dataset:
    one, two = keras.random.SeedGenerator(3), keras.random.SeedGenerator(3)
    images = D.range(64).map(lambda x: keras.random.uniform([], seed=one))
    return D.zip((images, D.range(64).map(lambda x: keras.random.uniform([], seed=two))))


def records() -> tf.data.Dataset:
    return tf.data.TFRecordDataset(FILES)


CASES = {
    "range": lambda: D.range(100),
    "map_batch": lambda: D.range(100).map(twice, num_parallel_calls=2, deterministic=False).shuffle(40).batch(8, drop_remainder=True),
    "filter_batch": lambda: D.range(100).filter(lambda x: x % 3 == 0).batch(8, drop_remainder=True).prefetch(2),
    "filter_batch_map": lambda: D.range(100).filter(lambda x: x % 3 == 0).batch(8).map(twice),
    "map_filter_batch": lambda: D.range(100).map(twice).filter(lambda x: x % 3 == 0).batch(8),
    "records": lambda: records().shuffle(100, seed=3).batch(8),
    "slices": lambda: D.from_tensor_slices(({"a": list(range(20)), "b": [f"text {i}" for i in range(20)]}, [0.5] * 20)).batch(3),
    "zip": lambda: D.zip((D.range(50).shuffle(10, seed=5), D.range(50).shuffle(10, seed=5))),
    "enumerate_records": lambda: records().enumerate(),
    "cache_file": lambda: D.range(20).map(twice).shuffle(5).cache("/cache/file").repeat(3),
    "noise": lambda: D.range(20).map(noisy, num_parallel_calls=2),
    "noise_filter": lambda: D.range(20).map(noisy, num_parallel_calls=2).filter(lambda x: x > 0.5),
    "noise_sequential": lambda: D.range(20).map(noisy),
    "two_noises": lambda: D.range(20).map(lambda x: tf.random.uniform([]) - tf.random.uniform([])),
    "one_noise_twice": lambda: D.range(20).map(lambda x: (lambda r: r - r)(tf.random.uniform([]))),
    "nested_shuffle": lambda: D.range(4).interleave(lambda x: D.range(x).shuffle(3).map(noisy), num_parallel_calls=2),
    "shuffle_fixed": lambda: D.range(50).shuffle(10, seed=5, reshuffle_each_iteration=False),
    "endless": lambda: D.range(30).shuffle(5).repeat(),
    "endless_batch": lambda: D.range(30).repeat().batch(4),
    "assert_cardinality": lambda: D.range(30).filter(lambda x: x > 2).apply(tf.data.experimental.assert_cardinality(27)),
    "options": lambda: D.range(30).map(twice, num_parallel_calls=2).with_options(loose()),
    "hint": lambda: D.range(30).shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT).map(twice),
    "lookup": lookup,
    "padded": lambda: D.range(30).filter(lambda x: x > 2).map(lambda x: tf.fill([x % 5], x)).padded_batch(4),
    "py_function": lambda: D.range(5).map(python_step),
    "generator": lambda: D.from_generator(lambda: iter([1, 2]), output_signature=tf.TensorSpec([], tf.int64)),
    "print": lambda: D.range(5).map(lambda x: (tf.print(x), x)[1]),
    "write_file": lambda: D.range(5).map(lambda x: (tf.io.write_file("/tmp/x", "y"), x)[1]),
    "counter": counter,
    "filtered_counter": filtered_counter,
    "two_counters": two_counters,
    "drawn": drawn,
    "drawn_in_parallel": lambda: drawn(2),
    "drawn_filtered": lambda: drawn().filter(lambda x: x > 0.5),
    "drawn_in_step": drawn_in_step,
    "nested_datasets": lambda: D.range(10).window(2),
    "clock": lambda: D.range(20).map(lambda x: tf.timestamp()),
    "clock_filter": lambda: D.range(20).filter(lambda x: tf.timestamp() > 5),
    "generator_state": generator_state,
    "counter_in_parallel": lambda: counter(2),
    "nested_parallel": lambda: D.range(4).interleave(lambda x: D.range(x).map(noisy, num_parallel_calls=2).prefetch(2)),
    "nested_choice": lambda: D.range(4).interleave(lambda x: D.range(x).map(noisy).filter(lambda y: y > 0.5), num_parallel_calls=2),
    "nested_cache": lambda: D.range(4).flat_map(lambda x: D.range(x).cache()),
    "listed": lambda: D.range(2).flat_map(lambda i: D.from_tensor_slices(tf.io.matching_files("/data/*"))),
    "automatic_cycle": lambda: D.range(2).flat_map(lambda i: D.from_tensor_slices(FILES).interleave(tf.data.TextLineDataset)),
    "kept": lambda: kept(D.range(300).map(twice)).map(twice).batch(8),
    "kept_otherwise": lambda: kept(D.range(300).map(twice)).shuffle(20).map(noisy),
    "kept_more": lambda: kept(D.range(301).map(twice)).map(twice).batch(8),
    "kept_drawn": lambda: kept(D.range(300).map(noisy)).map(lambda x: x + 1).batch(8),
    "kept_drawn_otherwise": lambda: kept(D.range(300).map(noisy)).batch(8),
    "kept_unmarked": lambda: D.range(300).map(twice).take(-1).map(twice).batch(8),
    "kept_records": lambda: kept(D.from_tensor_slices(FILES).interleave(tf.data.TFRecordDataset)).map(tf.strings.length).batch(8).map(twice),
    "kept_repeated": lambda: kept(D.range(300).map(twice)).map(twice).repeat(3),
    "kept_below_take": lambda: kept(D.range(300).map(twice)).take(20),
    "kept_below_zip": lambda: D.zip((kept(D.range(300)), D.range(300))),
    "kept_joined": lambda: kept(D.range(300).filter(lambda x: x > 2).batch(8)),
    "kept_endless": lambda: kept(D.range(30).repeat()),
    "kept_clock": lambda: kept(D.range(30).map(lambda x: tf.timestamp())),
    "kept_listed": lambda: kept(D.range(2).flat_map(lambda i: D.from_tensor_slices(tf.io.matching_files("/data/*")))),
    "kept_remote": lambda: kept(D.from_tensor_slices(["gs://b/" + f for f in FILES]).interleave(tf.data.TFRecordDataset)),
    "kept_twice": lambda: kept(kept(D.range(300).map(twice)).map(twice)),
    "snapshot": lambda: D.range(30).snapshot("/data/snapshot"),
}


def main() -> None:
    """Writes one file for each case beside this script."""
    here = pathlib.Path(__file__).resolve().parent
    for name, build in CASES.items():
        try:
            graph = build()._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE)
        except TypeError:
            graph = build()._as_serialized_graph()
        (here / f"{name}.pb").write_bytes(graph.numpy())


if __name__ == "__main__":
    main()
