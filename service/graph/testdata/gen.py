"""Writes the serialised datasets that the Go tests read, with the installed TensorFlow.

The datasets are small, and the repository contains them, so that the Go tests need no TensorFlow. Run this script by hand
after you add a case.
"""

import os
import pathlib
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

D = tf.data.Dataset
FILES = [f"/data/part-{i}.tfrecord" for i in range(8)]


def twice(x: tf.Tensor) -> tf.Tensor:
    return x * 2


def cached(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.take(-1, name="pecan_cache")


def pairs_of(file: tf.Tensor) -> tf.data.Dataset:
    """The records of a file with their lengths. Two of the steps may change places."""
    records = tf.data.TFRecordDataset(file).map(lambda r: (r, tf.strings.length(r)), name="measures")
    return on_length(on_record(records, "lowers"), "doubles")


def on_record(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    return dataset.map(lambda r, n: (tf.strings.lower(r), n), name=name)


def on_length(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    return dataset.map(lambda r, n: (r, n * 2), name=name)


def swapping(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """Adds two steps that may change places."""
    return on_length(on_record(dataset, name + "_lowers"), name + "_doubles")


def numbered() -> tf.data.Dataset:
    return D.range(300).map(lambda i: (tf.strings.as_string(i), i), name="numbers")


def noisy(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) + tf.random.uniform([])


def python_step(x: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda v: v, [x], tf.int64)


def unordered() -> tf.data.Options:
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


def seed_generator(calls: int | None = None) -> tf.data.Dataset:
    state = keras.random.SeedGenerator(3)
    return D.range(64).map(lambda x: keras.random.uniform([], seed=state), num_parallel_calls=calls)


def two_seed_generators() -> tf.data.Dataset:
    one, two = keras.random.SeedGenerator(3), keras.random.SeedGenerator(3)
    images = D.range(64).map(lambda x: keras.random.uniform([], seed=one))
    return D.zip((images, D.range(64).map(lambda x: keras.random.uniform([], seed=two))))


def records() -> tf.data.Dataset:
    return tf.data.TFRecordDataset(FILES)


@tf.function
def outside(x: tf.Tensor) -> tf.Tensor:
    return tf.reverse(x, [1])


def checked(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.control_dependencies([tf.debugging.assert_less(y, tf.constant(100, tf.int64))]):
        return tf.identity(x), y


def steps() -> tf.data.Dataset:
    """The name of each step says what the step does to the two components of an element."""
    offset = tf.Variable(3, dtype=tf.int64)
    total = tf.Variable(0, dtype=tf.int64)
    dataset = D.range(8).map(lambda i: (tf.fill([8, 8, 3], tf.cast(i, tf.uint8)), i), name="source")
    dataset = dataset.map(lambda x, y: (tf.reverse(x, [1]), y), name="reads_0_writes_0")
    dataset = dataset.map(lambda x, y: (outside(x), y), name="calls_reads_0_writes_0")
    dataset = dataset.map(lambda x, y: (x, y + offset), name="captures_reads_1_writes_1")
    dataset = dataset.map(lambda x, y: (x + tf.cast(y, tf.uint8), y), num_parallel_calls=2, name="reads_0_1_writes_0")
    dataset = dataset.map(lambda x, y: (tf.zeros([4, 4, 3], tf.uint8), y), name="writes_0")
    dataset = dataset.map(checked, name="reads_1")
    dataset = dataset.map(lambda x, y: (tf.identity(x), y), name="nothing")
    dataset = dataset.prefetch(2, name="passes")
    dataset = dataset.map(lambda x, y: (noisy(x), y), name="random_reads_0_writes_0")
    dataset = dataset.filter(lambda x, y: y % 2 == 0, name="drops_reads_1")
    dataset = dataset.map(lambda x, y: (x, y + total.assign_add(1)), name="stateful_reads_1_writes_1")
    dataset = dataset.shuffle(3, name="barrier_shuffles")
    dataset = dataset.map(lambda x, y: (y, x), name="reads_0_1_writes_0_1")
    dataset = dataset.map(lambda x, y: (x, y, x), name="barrier_adds")
    return dataset.batch(4, name="batches_writes_0_1_2")


def rotated(interpolation: str, fill_mode: str = "CONSTANT", fill: float = 0.0) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a step that rotates an image by a small angle."""
    return lambda x: tf.raw_ops.ImageProjectiveTransformV3(
        images=x[tf.newaxis],
        transforms=[[0.9, 0.1, 0.0, -0.1, 0.9, 0.0, 0.0, 0.0]],
        output_shape=tf.shape(x)[:2],
        fill_value=fill,
        fill_mode=fill_mode,
        interpolation=interpolation,
    )[0]


def blurred(x: tf.Tensor) -> tf.Tensor:
    """Replaces each value by the mean of itself and its neighbours."""
    return tf.nn.depthwise_conv2d(x[tf.newaxis], tf.ones([3, 3, 3, 1]) / 9, [1, 1, 1, 1], "SAME")[0]


def blurred_uniformly(x: tf.Tensor) -> tf.Tensor:
    kernel = tf.tile(tf.ones([3, 3, 1, 1]) / 9, tf.stack([1, 1, tf.shape(x)[-1], 1]))
    return tf.nn.depthwise_conv2d(x[tf.newaxis], kernel, [1, 1, 1, 1], "SAME")[0]


def image_steps(size: int | None) -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
    """Steps over images. A name says what the step does to the values; after "__" it identifies the step."""
    image = tf.image

    def sized(change: str, known: str, unknown: str, what: str) -> str:
        """Names a step that depends on sizes. Known sizes are constants in its function, so the dimensions must have them."""
        at = known if size else unknown
        return f"{change}_size_{at}__{what}" if at else f"{change}__{what}"

    return {
        "moves_1__flips": image.flip_left_right,
        "moves_1__flips_at_random": image.random_flip_left_right,
        "moves_0__flips_by_a_seed": lambda x: image.stateless_random_flip_up_down(x, [1, 2]),
        sized("moves_0_1", "2", "0_1_2", "crops_at_random"): lambda x: image.random_crop(x, [16, 16, 3]),
        sized("moves_0_1", "", "0_1", "crops_in_the_middle"): lambda x: image.central_crop(x, 0.5),
        "moves_0_1__cuts": lambda x: x[2:-2, 3:],
        "computes_affine_mixes_0_1__resizes": lambda x: image.resize(x, [24, 24]),
        "moves_0_1__takes_the_nearest": lambda x: image.resize(x, [24, 24], "nearest"),
        sized("computes_affine_moves_0_1", "", "0_1", "pads"): lambda x: image.pad_to_bounding_box(x, 0, 0, 40, 40),
        "moves_0__mirrors_the_edge": lambda x: tf.pad(x, [[1, 1], [0, 0], [0, 0]], "SYMMETRIC"),
        "computes_affine__scales": lambda x: x / 2.0 - 1.0,
        "computes_affine_position_2_size_2__normalises": lambda x: (
            (x - tf.constant([0.1, 0.2, 0.3])) / tf.constant([1.0, 2.0, 3.0])
        ),
        "computes_affine_position_2_size_2__adds_a_row": lambda x: (
            x + tf.reshape(tf.range(3, dtype=tf.float32), [1, 3])
        ),
        "computes__clips": lambda x: tf.clip_by_value(x, 0.1, 0.9),
        "computes_affine__brightens": lambda x: image.random_brightness(x, 0.2),
        "computes_affine_mixes_0_1__contrasts": lambda x: image.random_contrast(x, 0.2, 0.4),
        "computes_mixes_2__turns_the_colour": lambda x: image.adjust_hue(x, 0.2),
        "computes_mixes_2__saturates": lambda x: image.random_saturation(x, 0.2, 0.4),
        sized("computes_affine_mixes_2", "0_1_2", "2", "greys"): image.rgb_to_grayscale,
        sized("computes_mixes_0_1_2", "", "0_1_2", "standardises"): image.per_image_standardization,
        sized("computes_affine_mixes_0_1", "", "0_1", "rotates"): rotated("BILINEAR"),
        sized("computes_affine_moves_0_1", "", "0_1", "rotates_to_the_nearest"): rotated("NEAREST"),
        sized("moves_0_1", "", "0_1", "rotates_in_a_hall_of_mirrors"): rotated("NEAREST", "REFLECT"),
        "computes_affine_position_2_mixes_0_1_size_2__blurs": blurred,
        "computes_affine_mixes_0_1_size_2__blurs_all_channels_alike": blurred_uniformly,
        "computes_affine_mixes_0_1_size_0_1__resizes_by_all_values": lambda x: image.resize(
            x, [24, 24], antialias=True
        ),
        "computes__rounds": lambda x: tf.cast(tf.cast(x * 255, tf.uint8), tf.float32),
        "computes__squares": lambda x: x * x,
        "computes_affine_moves_1_mixes_1__adds_its_mirror": lambda x: x + x[:, ::-1],
        "moves_2__swaps_channels": lambda x: tf.gather(x, [2, 1, 0], axis=2),
        "moves_0__doubles": lambda x: tf.tile(x, [2, 1, 1]),
        "computes_affine_position_0_1_2_size_0_1_2__adds_noise": lambda x: x + tf.random.normal(tf.shape(x)),
        "moves_0_1__stays_square": lambda x: tf.transpose(tf.transpose(x[1:, 1:], [2, 0, 1]), [1, 2, 0]),
        "opaque__transposes": lambda x: tf.transpose(x, [1, 0, 2]),
        "opaque__sorts": lambda x: tf.sort(x, axis=0),
        "opaque__is_replaced": lambda x: tf.zeros_like(x),
        "opaque__is_chosen_by_its_values": lambda x: tf.where(x > 0.5, x, tf.zeros_like(x)),
        "opaque__is_flattened": lambda x: tf.reshape(x, [-1]),
        "opaque__cuts_by_its_values": lambda x: x[: tf.cast(x[0, 0, 0] * 4, tf.int32)],
    }


def changes(size: int | None) -> tf.data.Dataset:
    """A dataset with one component for each of the image steps."""

    def image(i: tf.Tensor) -> tf.Tensor:
        noise = tf.random.stateless_uniform([32, 32, 3], [i, i])
        some = tf.cast(i, tf.int32)
        return tf.ensure_shape(noise, [32, 32, 3]) if size else noise[: some + 20, : 24 - some % 3]

    images = D.range(8).map(image)
    return D.zip(tuple(images.map(step, name=name) for name, step in image_steps(size).items()))


def badly_ordered() -> tf.data.Dataset:
    """Expensive steps over whole images come before cheap ones that keep little of them."""
    dataset = D.range(1000).map(lambda i: (tf.fill([64, 64, 3], tf.cast(i, tf.float32)), i), name="source")
    dataset = dataset.map(lambda x, y: (tf.tanh(x), y), num_parallel_calls=2, name="expensive")
    dataset = dataset.prefetch(2)
    dataset = dataset.map(lambda x, y: (tf.reverse(x, [1]), y), name="mirror")
    dataset = dataset.map(lambda x, y: (x, y + 1), name="next_label")
    dataset = dataset.filter(lambda x, y: y % 4 == 0, name="some")
    dataset = dataset.map(lambda x, y: (x[:8], y), name="crop")
    return dataset.prefetch(2)


CASES = {
    "range": lambda: D.range(100),
    "map_batch": lambda: (
        D.range(100).map(twice, num_parallel_calls=2, deterministic=False).shuffle(40).batch(8, drop_remainder=True)
    ),
    "filter_batch": lambda: D.range(100).filter(lambda x: x % 3 == 0).batch(8, drop_remainder=True).prefetch(2),
    "filter_batch_map": lambda: D.range(100).filter(lambda x: x % 3 == 0).batch(8).map(twice),
    "map_filter_batch": lambda: D.range(100).map(twice).filter(lambda x: x % 3 == 0).batch(8),
    "records": lambda: records().shuffle(100, seed=3).batch(8),
    "slices": lambda: D.from_tensor_slices(
        ({"a": list(range(20)), "b": [f"text {i}" for i in range(20)]}, [0.5] * 20)
    ).batch(3),
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
    "assert_cardinality": lambda: (
        D.range(30).filter(lambda x: x > 2).apply(tf.data.experimental.assert_cardinality(27))
    ),
    "options": lambda: D.range(30).map(twice, num_parallel_calls=2).with_options(unordered()),
    "hint": lambda: D.range(30).shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT).map(twice),
    "hint_cached": lambda: cached(
        D.range(30)
        .map(twice)
        .take(-1, name="pecan_cache_candidate_upstream")
        .shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT)
        .map(twice)
    ).map(twice),
    "lookup": lookup,
    "padded": lambda: D.range(30).filter(lambda x: x > 2).map(lambda x: tf.fill([x % 5], x)).padded_batch(4),
    "py_function": lambda: D.range(5).map(python_step),
    "generator": lambda: D.from_generator(lambda: iter([1, 2]), output_signature=tf.TensorSpec([], tf.int64)),
    "print": lambda: D.range(5).map(lambda x: (tf.print(x), x)[1]),
    "write_file": lambda: D.range(5).map(lambda x: (tf.io.write_file("/tmp/x", "y"), x)[1]),
    "counter": counter,
    "filtered_counter": filtered_counter,
    "two_counters": two_counters,
    "seed_generator": seed_generator,
    "seed_generator_in_parallel": lambda: seed_generator(2),
    "seed_generator_filtered": lambda: seed_generator().filter(lambda x: x > 0.5),
    "two_seed_generators": two_seed_generators,
    "nested_datasets": lambda: D.range(10).window(2),
    "clock": lambda: D.range(20).map(lambda x: tf.timestamp()),
    "clock_filter": lambda: D.range(20).filter(lambda x: tf.timestamp() > 5),
    "generator_state": generator_state,
    "counter_in_parallel": lambda: counter(2),
    "nested_parallel": lambda: D.range(4).interleave(lambda x: D.range(x).map(noisy, num_parallel_calls=2).prefetch(2)),
    "nested_choice": lambda: D.range(4).interleave(
        lambda x: D.range(x).map(noisy).filter(lambda y: y > 0.5), num_parallel_calls=2
    ),
    "nested_cache": lambda: D.range(4).flat_map(lambda x: D.range(x).cache()),
    "listed": lambda: D.range(2).flat_map(lambda i: D.from_tensor_slices(tf.io.matching_files("/data/*"))),
    "automatic_cycle": lambda: D.range(2).flat_map(
        lambda i: D.from_tensor_slices(FILES).interleave(tf.data.TextLineDataset)
    ),
    "cached": lambda: cached(D.range(300).map(twice)).map(twice).batch(8),
    "cached_shuffled": lambda: cached(D.range(300).map(twice)).shuffle(20).map(noisy),
    "cached_filtered": lambda: cached(D.range(300).filter(lambda x: x > 2)).map(noisy),
    "cached_one_more": lambda: cached(D.range(301).map(twice)).map(twice).batch(8),
    "cached_noise": lambda: cached(D.range(300).map(noisy)).map(lambda x: x + 1).batch(8),
    "cached_noise_batched": lambda: cached(D.range(300).map(noisy)).batch(8),
    "uncached": lambda: D.range(300).map(twice).take(-1).map(twice).batch(8),
    "cached_records": lambda: (
        cached(D.from_tensor_slices(FILES).interleave(tf.data.TFRecordDataset))
        .map(tf.strings.length)
        .batch(8)
        .map(twice)
    ),
    "cached_repeated": lambda: cached(D.range(300).map(twice)).map(twice).repeat(3),
    "cached_before_take": lambda: cached(D.range(300).map(twice)).take(20),
    "cached_before_zip": lambda: D.zip((cached(D.range(300)), D.range(300))),
    "cached_before_shorter_zip": lambda: D.zip((cached(D.range(300)), D.range(200))),
    "cached_before_filter_take": lambda: cached(D.range(300).map(twice)).filter(lambda x: x > 2).take(20),
    "cached_filter_batch": lambda: cached(D.range(300).filter(lambda x: x > 2).batch(8)),
    "cached_endless": lambda: cached(D.range(30).repeat()),
    "cached_clock": lambda: cached(D.range(30).map(lambda x: tf.timestamp())),
    "cached_listed": lambda: cached(
        D.range(2).flat_map(lambda i: D.from_tensor_slices(tf.io.matching_files("/data/*")))
    ),
    "cached_ignoring": lambda: cached(D.range(30).map(lambda x: tf.debugging.check_numerics(1 / x, "zero")).ignore_errors()).map(twice),
    "cached_ignoring_in_function": lambda: cached(D.range(3).flat_map(lambda x: D.range(x).map(lambda x: tf.debugging.check_numerics(1 / x, "zero")).ignore_errors())),
    "parts_list": lambda: cached(
        D.from_tensor_slices(FILES).shuffle(9).interleave(tf.data.TFRecordDataset).map(tf.strings.length)
    ).batch(8),
    "parts_list_otherwise": lambda: cached(
        D.from_tensor_slices(FILES)
        .shuffle(5, seed=3)
        .interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=3)
        .map(tf.strings.length)
    ).map(twice),
    "parts_list_filtered": lambda: cached(
        D.from_tensor_slices(FILES)
        .shuffle(9)
        .interleave(tf.data.TFRecordDataset)
        .filter(lambda r: tf.strings.length(r) > 2)
    ),
    "parts_records_shuffled": lambda: cached(
        D.from_tensor_slices(FILES).interleave(tf.data.TFRecordDataset).shuffle(20).map(tf.strings.length)
    ),
    "parts_records_shuffled_filtered": lambda: cached(
        D.from_tensor_slices(FILES).interleave(tf.data.TFRecordDataset).shuffle(20).filter(lambda r: tf.strings.length(r) > 2)
    ),
    "parts_batches": lambda: cached(D.range(3000).batch(10)).map(twice),
    "parts_taken": lambda: cached(D.range(3000).map(twice).filter(lambda x: x > 2).take(100)),
    "cached_remote_records": lambda: cached(
        D.from_tensor_slices(["gs://b/" + f for f in FILES]).interleave(tf.data.TFRecordDataset)
    ),
    "cached_unversioned_records": lambda: cached(
        D.from_tensor_slices(["s3://b/" + f for f in FILES]).interleave(tf.data.TFRecordDataset)
    ),
    "cached_twice": lambda: cached(cached(D.range(300).map(twice)).map(twice)),
    "cached_noise_filter_batch": lambda: cached(
        D.range(300).map(noisy).filter(lambda x: x > 0.1).batch(8).map(noisy)
    ),
    "cached_in_function": lambda: D.range(4).interleave(lambda x: cached(D.range(x)), cycle_length=2),
    "cached_computed_files": lambda: cached(
        D.from_tensor_slices(["a", "b"]).map(lambda name: tf.io.read_file("/data/" + name))
    ).map(tf.strings.length),
    "cached_named_files": lambda: cached(
        D.from_tensor_slices((FILES, list(range(len(FILES)))))
        .map(lambda name, i: (name, i + 1))
        .map(lambda name, i: (tf.io.read_file(name), i))
    ).map(lambda text, i: i),
    "snapshot": lambda: D.range(30).snapshot("/data/snapshot"),
    "steps": steps,
    "steps_in_a_function": lambda: swapping(D.from_tensor_slices(FILES).interleave(pairs_of, cycle_length=2), "outside"),
    "steps_in_branches": lambda: D.zip((swapping(numbered(), "first"), swapping(numbered(), "second"))).map(lambda a, b: (*a, *b)),
    "badly_ordered": badly_ordered,
    "changes": lambda: changes(32),
    "changes_of_any_size": lambda: changes(None),
}


def main() -> None:
    """Writes one file for each case next to this script."""
    here = pathlib.Path(__file__).resolve().parent
    for name, build in CASES.items():
        try:
            graph = build()._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE)
        except TypeError:
            graph = build()._as_serialized_graph()
        (here / f"{name}.pb").write_bytes(graph.numpy())


if __name__ == "__main__":
    main()
