#include <string.h>
#include <time.h>

#include "iterator.h"

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void publish(pecan_iterator* it, int64_t rows) { __atomic_store_n(it->progress, rows, __ATOMIC_RELEASE); }

static bool flush_due(pecan_iterator* it, const pecan_pace* pace, int64_t rows, int64_t begun) {
  if (rows >= pace->max_rows) return true;
  int64_t age = now_ns() - begun;
  if (age >= pace->linger_ns) return true;
  return age >= pace->hurry_ns && __atomic_load_n(it->hurry, __ATOMIC_RELAXED) != 0;
}

static bool fits(const pecan_shape* shape, const pecan_tensor* tensor) {
  if (shape->rank < 0) return true;
  if (shape->rank != tensor->rank) return false;
  for (int i = 0; i < shape->rank; i++)
    if (shape->dims[i] >= 0 && shape->dims[i] != tensor->dims[i]) return false;
  return true;
}

int64_t pecan_fill_columns(pecan_iterator* it, const pecan_column* columns, const pecan_pace* pace, pecan_tensor* mismatch,
                           int32_t* has_mismatch, TF_Status* status) {
  int64_t rows = 0, begun = now_ns();
  *has_mismatch = 0;
  publish(it, 0);
  for (;;) {
    if (pecan_next(it, mismatch, status) != TF_OK) return rows;
    for (int i = 0; i < it->components; i++) {
      if (!fits(&columns[i].shape, &mismatch[i]) || mismatch[i].bytes != columns[i].width) {
        *has_mismatch = 1;
        return rows;
      }
    }
    for (int i = 0; i < it->components; i++) memcpy(columns[i].data + rows * columns[i].width, mismatch[i].data, columns[i].width);
    pecan_delete_tensors(mismatch, it->components);
    rows++;
    publish(it, rows);
    if (flush_due(it, pace, rows, begun)) return rows;
  }
}

static size_t align_up(size_t n) { return (n + 63) & ~(size_t)63; }

static size_t packed_size(const pecan_tensor* t) {
  return t->dtype == TF_STRING ? pecan_strings_size(t->tensor) : t->bytes;
}

static char* put(char* at, const void* value, size_t len) {
  memcpy(at, value, len);
  return at + len;
}

bool pecan_put_pack(pecan_pack* pack, const pecan_tensor* element, int components) {
  size_t payload = pack->payload_len, table = pack->table_len;
  for (int i = 0; i < components; i++) {
    const pecan_tensor* t = &element[i];
    size_t bytes = packed_size(t), at = align_up(payload), row = 16 + 8 * (size_t)t->rank;
    if (bytes > pack->payload_cap || at > pack->payload_cap - bytes || row > pack->table_cap - table) return false;
    // The padding between two components is sent with them.
    memset(pack->payload + payload, 0, at - payload);
    if (t->dtype == TF_STRING)
      pecan_strings_pack(t->tensor, pack->payload + at);
    else
      memcpy(pack->payload + at, t->data, bytes);
    payload = at + bytes;
    uint32_t dtype = (uint32_t)t->dtype, rank = (uint32_t)t->rank;
    uint64_t size = bytes;
    char* to = pack->table + table;
    to = put(to, &dtype, sizeof dtype);
    to = put(to, &rank, sizeof rank);
    to = put(to, &size, sizeof size);
    for (int d = 0; d < t->rank; d++) {
      int64_t dim = d < PECAN_INLINE_DIMS ? t->dims[d] : TF_Dim(t->tensor, d);
      to = put(to, &dim, sizeof dim);
    }
    table += row;
  }
  // The element counts only now: one that fits partly leaves no trace.
  pack->payload_len = payload;
  pack->table_len = table;
  return true;
}

int64_t pecan_fill_pack(pecan_iterator* it, const pecan_shape* shapes, pecan_pack* pack, size_t max_element,
                        const pecan_pace* pace, pecan_tensor* mismatch, int32_t* has_mismatch, TF_Status* status) {
  int64_t rows = 0, begun = now_ns();
  *has_mismatch = 0;
  publish(it, 0);
  for (;;) {
    if (pecan_next(it, mismatch, status) != TF_OK) return rows;
    size_t total = 0;
    bool good = true;
    for (int i = 0; i < it->components && good; i++) {
      total += packed_size(&mismatch[i]);
      good = mismatch[i].rank <= PECAN_INLINE_DIMS && fits(&shapes[i], &mismatch[i]) && total <= max_element;
    }
    if (!good || !pecan_put_pack(pack, mismatch, it->components)) {
      *has_mismatch = 1;
      return rows;
    }
    pecan_delete_tensors(mismatch, it->components);
    rows++;
    publish(it, rows);
    if (flush_due(it, pace, rows, begun)) return rows;
  }
}
