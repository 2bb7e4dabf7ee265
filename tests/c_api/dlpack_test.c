/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack both ways, with the structs of its version 1.1 written out. */
#include <stdlib.h>

#include "tests/c_api/check.h"

typedef struct dl_tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
  dl_tensor tensor;
  void* context;
  void (*deleter)(struct dl_managed* self);
} dl_managed;

typedef struct dl_versioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct dl_versioned* self);
  uint64_t flags;
  dl_tensor tensor;
} dl_versioned;

enum { kFloat = 2, kUInt = 1, kReadOnly = 1 };

/* A producer's tensor [2, 3] f32 over memory of its own; *num_deleted counts. */
typedef struct producer {
  dl_versioned versioned;
  dl_managed managed;
  float data[6];
  int64_t shape[2], strides[2];
  int num_deleted;
} producer;

static void delete_versioned(dl_versioned* self) {
  ++((producer*)self->context)->num_deleted;
}
static void delete_managed(dl_managed* self) {
  ++((producer*)self->context)->num_deleted;
}

static void produce(producer* p) {
  memset(p, 0, sizeof(*p));
  for (int i = 0; i < 6; ++i) {
    p->data[i] = (float)i;
  }
  p->shape[0] = 2;
  p->shape[1] = 3;
  p->strides[0] = 3;
  p->strides[1] = 1;
  const dl_tensor tensor = {.data = p->data,
                            .device_type = 1,
                            .ndim = 2,
                            .code = kFloat,
                            .bits = 32,
                            .lanes = 1,
                            .shape = p->shape,
                            .strides = p->strides};
  p->versioned = (dl_versioned){.major = 1, .minor = 1, .context = p, .deleter = delete_versioned};
  p->versioned.tensor = tensor;
  p->managed = (dl_managed){.tensor = tensor, .context = p, .deleter = delete_managed};
}

static void check_import(void) {
  producer p;
  moebius_array array = NULL;
  moebius_tensor view = {.struct_size = sizeof(view)};
  for (int32_t is_versioned = 0; is_versioned < 2; ++is_versioned) {
    produce(&p);
    void* const managed = is_versioned ? (void*)&p.versioned : (void*)&p.managed;
    CHECK_OK(moebius_array_from_dlpack(managed, is_versioned, -1, &array));
    CHECK_OK(moebius_array_view(array, &view));
    CHECK(view.data == p.data);
    CHECK_EQ(view.dtype, MOEBIUS_F32);
    CHECK_EQ(view.shape[1], 3);
    CHECK_EQ(p.num_deleted, 0);
    CHECK_OK(moebius_array_destroy(array));
    CHECK_EQ(p.num_deleted, 1);
  }
  produce(&p);
  p.versioned.flags = kReadOnly;
  CHECK_OK(moebius_array_from_dlpack(&p.versioned, 1, -1, &array));
  CHECK_OK(moebius_array_view(array, &view));
  CHECK_EQ(view.flags, MOEBIUS_READ_ONLY);
  CHECK_INVALID(moebius_copy(&view, &view, NULL));
  CHECK_OK(moebius_array_destroy(array));

  produce(&p); /* bytes that are fp8 */
  p.versioned.tensor.code = kUInt;
  p.versioned.tensor.bits = 8;
  CHECK_OK(moebius_array_from_dlpack(&p.versioned, 1, MOEBIUS_F8E4M3, &array));
  CHECK_OK(moebius_array_view(array, &view));
  CHECK_EQ(view.dtype, MOEBIUS_F8E4M3);
  CHECK_OK(moebius_array_destroy(array));

  produce(&p); /* columns are copied */
  p.strides[0] = 1;
  p.strides[1] = 2;
  CHECK_OK(moebius_array_from_dlpack(&p.versioned, 1, -1, &array));
  CHECK_EQ(p.num_deleted, 1);
  CHECK_OK(moebius_array_view(array, &view));
  CHECK(((float*)view.data)[1] == 2);
  CHECK_OK(moebius_array_destroy(array));
}

/* What is refused is deleted all the same, once. */
static void check_refused(void) {
  producer p;
  moebius_array untouched = UNTOUCHED;
  for (int i = 0; i < 11; ++i) {
    int32_t as = -1;
    moebius_array* place = &untouched;
    produce(&p);
    switch (i) {
      case 0:
        p.versioned.major = 2;
        break;
      case 1:
        p.versioned.tensor.ndim = 5;
        break;
      case 2:
        p.versioned.tensor.ndim = -1;
        break;
      case 3:
        p.shape[0] = -2;
        break;
      case 4:
        p.strides[0] = -3;
        break;
      case 5:
        p.versioned.tensor.bits = 64;
        break;
      case 6:
        p.versioned.tensor.device_type = 10;
        break;
      case 7:
        p.versioned.tensor.data = NULL;
        break;
      case 8:
        as = 99;
        break;
      case 9:
        as = MOEBIUS_I8;
        break;
      default:
        place = NULL;
        break;
    }
    CHECK_INVALID(moebius_array_from_dlpack(&p.versioned, 1, as, place));
    CHECK_EQ(p.num_deleted, 1);
  }
  for (int i = 0; i < 2; ++i) { /* sizes that no memory has */
    produce(&p);
    p.shape[0] = p.shape[1] = INT64_MAX / 2;
    p.versioned.tensor.strides = i == 0 ? NULL : p.strides;
    CHECK_INVALID(moebius_array_from_dlpack(&p.versioned, 1, -1, &untouched));
    CHECK_EQ(p.num_deleted, 1);
  }
  CHECK_INVALID(moebius_array_from_dlpack(NULL, 1, -1, &untouched));
  CHECK_INVALID(moebius_array_from_dlpack(NULL, 0, -1, &untouched));
  produce(&p); /* nobody knows which struct it is */
  CHECK_INVALID(moebius_array_from_dlpack(&p.versioned, 2, -1, &untouched));
  CHECK_EQ(p.num_deleted, 0);
  CHECK(untouched == UNTOUCHED);
}

static void check_export(void) {
  const moebius_device cpu = {MOEBIUS_CPU, 0};
  const int64_t shape[2] = {2, 3};
  moebius_array array = NULL;
  moebius_tensor view = {.struct_size = sizeof(view)};
  void* managed = NULL;
  CHECK_OK(moebius_array_empty(MOEBIUS_F32, cpu, 2, shape, &array));
  CHECK_OK(moebius_array_view(array, &view));
  fill(view.data, 6, 9);
  CHECK_OK(moebius_array_to_dlpack(array, 0, &managed));
  dl_managed* const plain = managed;
  CHECK_OK(moebius_array_to_dlpack(array, 1, &managed));
  dl_versioned* const versioned = managed;
  CHECK_OK(moebius_array_destroy(array)); /* the memory stays */
  CHECK_EQ(versioned->major, 1);
  CHECK_EQ(versioned->flags, 0);
  CHECK_EQ(versioned->tensor.device_type, 1);
  CHECK_EQ(versioned->tensor.bits, 32);
  CHECK_EQ(versioned->tensor.shape[1], 3);
  CHECK(plain->tensor.data == versioned->tensor.data);
  float expected[6];
  fill(expected, 6, 9);
  CHECK_EQ(memcmp(plain->tensor.data, expected, sizeof(expected)), 0);
  plain->deleter(plain);
  CHECK_EQ(memcmp(versioned->tensor.data, expected, sizeof(expected)), 0);
  /* The library takes its own back. */
  CHECK_OK(moebius_array_from_dlpack(versioned, 1, -1, &array));
  managed = UNTOUCHED;
  CHECK_INVALID(moebius_array_to_dlpack(array, 2, &managed));
  CHECK_INVALID(moebius_array_to_dlpack(array, 1, NULL));
  CHECK_BAD_HANDLES(moebius_array, NULL, moebius_array_to_dlpack(handle, 1, &managed));
  CHECK(managed == UNTOUCHED);
  CHECK_OK(moebius_array_destroy(array));
}

void test_dlpack(void) {
  check_import();
  check_refused();
  check_export();
}
