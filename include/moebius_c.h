/* SPDX-FileCopyrightText: 2026 the Moebius authors */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C API of Moebius: everything that a program or another language needs to run Mixture-of-
 * Experts layers over many workers.  C99 and C++ take this header; it needs nothing but libc.
 * The headers in moebius/ describe the same objects for C++; rules that are not repeated here
 * (rounding, formats, protocols) stand there and in docs/.
 * Why longer than 500 lines: it is all of the C API, so that a program includes one file and a
 * binding reads one.
 *
 * Letters: T tokens of this rank, H hidden, E experts, L experts of this rank, K top-k, R ranks,
 * I intermediate size of an expert, N rows of w1 (2 * I for gated experts, else I), M rows.
 *
 * STATUS.  Functions return MOEBIUS_OK or the kind of the error; moebius_last_error() has the rest.
 * After an error the places for results (handles, structs, numbers) are unchanged, nothing is
 * half-made, and the objects can be used as before, except for a group that is broken.  Memory of
 * output tensors is unchanged after MOEBIUS_INVALID_ARGUMENT for what can be seen before the work
 * begins (null, sizes, handles, shapes, dtypes, devices, and on the CPU values of ids); after other
 * errors it may hold anything.  What each function may return:
 *   MOEBIUS_INVALID_ARGUMENT, MOEBIUS_OUT_OF_MEMORY   all
 *   MOEBIUS_UNSUPPORTED   those that make an object or name a device, and all for fields of structs
 *                         that this library does not know
 *   MOEBIUS_COMM_ERROR    those marked "collective", and on GPUs any later call that learns of it
 *   MOEBIUS_CUDA_ERROR    those that are given a stream or an object of a GPU
 *   MOEBIUS_ERROR         those that read or write files or call a function of the caller's
 *
 * HANDLES.  Objects are opaque handles.  NULL means "none" where a function says so.  A handle that
 * was destroyed, or that is of another kind, is found out (MOEBIUS_INVALID_ARGUMENT) and never
 * followed.  Destroying NULL does nothing.  Objects keep what they are made of: a layer keeps its
 * group and its transports, so handles may be destroyed in any order, and the object ends with the
 * last one that needs it.  What the caller has lent (memory of tensors, streams, communicators) is
 * never freed here.
 *
 * THREADS.  Any thread may call any function, and a handle may move between threads.  One thread at
 * a time may use an object; groups and what is made from them count as one object.  A call on an
 * object that another thread is using, or that this thread is using further up (in a callback),
 * gives MOEBIUS_INVALID_ARGUMENT.  Destroying it is allowed even then: the handle ends at once, and
 * the object with the call that is using it.  Streams of the CPU, events, checkpoints, and arrays
 * (but not the values in them) may be used by several threads at the same time.  Functions without
 * a handle may be called at any time.  A child of fork() makes its own objects; it uses none of its
 * parent.
 *
 * CALLBACKS get the `user` pointer that was given with them, which must be valid as long as they
 * may be called.  They return to the library: no exception and no longjmp leaves them.
 *
 * STRUCTS begin with their size: set struct_size to sizeof(the struct), and clear the rest.  Zero
 * is the default of every field unless its comment says otherwise.  A larger size comes from a
 * program that is newer than the library, which then refuses fields that it does not know unless
 * they are zero (MOEBIUS_UNSUPPORTED), and leaves them as they are in structs that it fills.
 * Structs only grow.  Texts and structs are read within the call, and may be freed after it.
 *
 * TENSORS are borrowed views.  Memory that a call reads or writes stays the caller's, and must live
 * until the call returns; on a GPU, until the work that it enqueued is done.  The address is a
 * multiple of the size of an element.  All tensors of a call are on the device of its stream.
 *
 * GPUS.  Calls enqueue on the stream that they are given, and return.  A stream of NULL is a CPU
 * stream with as many threads as the setting MOEBIUS_THREADS says.
 */
#ifndef MOEBIUS_C_H_
#define MOEBIUS_C_H_

#include <stddef.h>
#include <stdint.h>

#define MOEBIUS_C_API __attribute__((visibility("default")))

/* Grows by one when a program that was built with an older header would no longer work. */
#define MOEBIUS_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ errors and versions --- */

typedef int32_t moebius_status;
enum {
  MOEBIUS_OK = 0,
  MOEBIUS_INVALID_ARGUMENT = 1, /* the caller or a file is at fault; nothing has been done */
  MOEBIUS_UNSUPPORTED = 2,      /* valid, but not for this build, machine or implementation */
  MOEBIUS_COMM_ERROR = 3,       /* a collective call did not complete; the error names the rank */
  MOEBIUS_CUDA_ERROR = 4,
  MOEBIUS_OUT_OF_MEMORY = 5,
  MOEBIUS_ERROR = 6 /* anything else: files, callbacks of the caller */
};

typedef struct moebius_error_info {
  size_t struct_size;
  moebius_status status;
  int32_t rank;           /* MOEBIUS_COMM_ERROR: the rank that reports; otherwise -1 */
  int32_t peer;           /* MOEBIUS_COMM_ERROR: the rank to blame, or -1 */
  int32_t peer_is_silent; /* 1: the peer has left or has not come, and reports nothing itself */
  const char* message;    /* one line, both values; valid until the thread's next error */
} moebius_error_info;

/* Describes the last call of this thread that failed; after none, status is MOEBIUS_OK and the
 * message is empty.  A call that succeeds changes nothing.  It fails on wrong arguments only, and
 * that is then the last error.  Messages end after 4095 bytes. */
MOEBIUS_C_API moebius_status moebius_last_error(moebius_error_info* info);
/* "invalid argument", "communication failed", ...: what a status means; "unknown status" for other
 * numbers.  The text is always valid. */
MOEBIUS_C_API const char* moebius_status_name(moebius_status status);

MOEBIUS_C_API int32_t moebius_abi_version(void); /* MOEBIUS_ABI_VERSION of the library */
MOEBIUS_C_API const char* moebius_version(void); /* "0.1.0" */

/* ---------------------------------------------------------- settings, logs, interruption --- */

/* Gives a setting (moebius_setting_at lists all) a value for this process, whatever the environment
 * says; "" is no value, and NULL lets the environment decide again.  A name that does not exist and
 * a number out of range are MOEBIUS_INVALID_ARGUMENT. */
MOEBIUS_C_API moebius_status moebius_set_setting(const char* name, const char* value);
/* Writes the value, or an empty text where the setting has none, with its final 0 to `value`, which
 * has room for `room` bytes.  *bytes, if it is not NULL, becomes the bytes needed.  Too little room
 * is MOEBIUS_INVALID_ARGUMENT; with value NULL and room 0 the call only tells the bytes. */
MOEBIUS_C_API moebius_status moebius_get_setting(const char* name,
                                                 char* value,
                                                 size_t room,
                                                 size_t* bytes);

typedef struct moebius_setting_info {
  size_t struct_size;
  /* Texts of the library that are always valid. */
  const char* name;
  const char* default_value;
  const char* meaning;
  const char* read; /* when it is read: a change counts from then on */
} moebius_setting_info;
/* Settings are counted from 0. */
MOEBIUS_C_API int64_t moebius_num_settings(void);
MOEBIUS_C_API moebius_status moebius_setting_at(int64_t index, moebius_setting_info* info);

enum { MOEBIUS_LOG_DEBUG = 0, MOEBIUS_LOG_INFO = 1, MOEBIUS_LOG_WARN = 2, MOEBIUS_LOG_ERROR = 3 };
/* Takes one message; both texts live as long as the call, and topic may be empty.  Any thread may
 * call it, several at a time, also while this or another call of the library is under way. */
typedef void (*moebius_log_function)(void* user,
                                     int32_t level,
                                     const char* topic,
                                     const char* message);
/* From now on messages go to the function instead of stderr; NULL brings stderr back.  The setting
 * MOEBIUS_LOG says which messages there are.  Returns when no other thread is in the function that
 * was set before, so what that uses may go then; hold no lock that it takes. */
MOEBIUS_C_API moebius_status moebius_set_log_function(moebius_log_function function, void* user);

/* Returns a value other than 0 to end the wait. */
typedef int32_t (*moebius_interrupt_function)(void* user);
/* While a thread waits for other ranks, it calls the function about 20 times a second.  If that
 * asks for it, the wait ends with MOEBIUS_COMM_ERROR whose peer is the rank itself; the group is
 * then broken, and the others are told.  NULL: nobody is asked.  It holds for all threads; the
 * function must not use the group whose call is waiting.  Returns as moebius_set_log_function()
 * does. */
MOEBIUS_C_API moebius_status moebius_set_interrupt_function(moebius_interrupt_function function,
                                                            void* user);

/* ----------------------------------------------------------------- devices and memory --- */

enum { MOEBIUS_CPU = 0, MOEBIUS_CUDA = 1 };
typedef struct moebius_device { /* this struct never grows */
  int32_t type;
  int32_t index; /* the ordinal of a GPU; 0 for the CPU */
} moebius_device;

/* How many GPUs the CUDA runtime shows; 0 without a driver or in a build without CUDA. */
MOEBIUS_C_API int32_t moebius_cuda_device_count(void);
/* MOEBIUS_UNSUPPORTED with the reason where this build cannot work on the device. */
MOEBIUS_C_API moebius_status moebius_expect_usable(moebius_device device);

/* Where memory comes from.  The functions may be called by any thread at any time, also while the
 * process ends, and must not call the library. */
typedef struct moebius_allocator {
  size_t struct_size;
  void* user;
  /* Returns `bytes` > 0 bytes at a multiple of `alignment`, or NULL.  On a GPU they must be ready
   * for what is enqueued on `stream` (a cudaStream_t) from now on; it must not wait for the GPU. */
  void* (*allocate)(
      void* user, int64_t bytes, int64_t alignment, moebius_device device, void* stream);
  /* Takes it back.  On a GPU earlier work of `stream` may still use it. */
  void (*deallocate)(void* user, void* data, int64_t bytes, moebius_device device, void* stream);
  /* Called once, when the allocator is no longer set and all its memory is back; may be NULL. */
  void (*destroy)(void* user);
} moebius_allocator;
/* From now on memory of the device comes from the allocator, whose struct is copied; NULL brings
 * the library's own back.  What was allocated before goes back to the allocator that gave it. */
MOEBIUS_C_API moebius_status moebius_set_allocator(moebius_device device,
                                                   const moebius_allocator* allocator);

typedef struct moebius_memory_statistics {
  size_t struct_size;
  int64_t bytes;           /* allocated now */
  int64_t peak_bytes;      /* the most since the process began or reset_peak */
  int64_t num_blocks;      /* allocated now */
  int64_t num_allocations; /* ever */
} moebius_memory_statistics;
MOEBIUS_C_API moebius_status moebius_get_memory_statistics(moebius_device device,
                                                           moebius_memory_statistics* statistics);
MOEBIUS_C_API moebius_status moebius_reset_peak_memory(moebius_device device);
/* Gives back memory that the library keeps for later calls and that nobody uses.  Workspaces and
 * transports have a trim of their own. */
MOEBIUS_C_API moebius_status moebius_trim_memory(moebius_device device);

/* Runs parallel loops of CPU calls: calls job(context, i) on any threads, each i of [0,
 * num_threads) at most once and at least one of them, and returns 0 when all calls that began have
 * ended.  Other values end the call with MOEBIUS_ERROR; no job has been called then.  Threads of
 * different ranks call it at the same time, and no call may wait for another. */
typedef int32_t (*moebius_executor_function)(void* user,
                                             int32_t num_threads,
                                             void (*job)(void* context, int32_t thread_idx),
                                             void* context);
/* From now on loops run there; NULL brings the library's own threads back.  A loop that is under
 * way ends where it began, so `user` stays valid until the calls of that time have returned. */
MOEBIUS_C_API moebius_status moebius_set_executor(moebius_executor_function function, void* user);

/* ---------------------------------------------------------------------------- streams --- */

typedef struct moebius_stream_handle* moebius_stream;
/* A CPU stream: calls on it use so many threads; 0: as the setting MOEBIUS_THREADS says. */
MOEBIUS_C_API moebius_status moebius_stream_cpu(int32_t num_threads, moebius_stream* stream);
/* A new non-blocking stream of the GPU `index`.  MOEBIUS_UNSUPPORTED where there is none. */
MOEBIUS_C_API moebius_status moebius_stream_cuda(int32_t index, moebius_stream* stream);
/* The caller's cudaStream_t, which must outlive the handle and the objects that were given it.
 * Keep the handle for all calls, since calls keep their scratch memory in it. */
MOEBIUS_C_API moebius_status moebius_stream_wrap_cuda(void* cuda_stream,
                                                      int32_t index,
                                                      moebius_stream* stream);
/* Waits until the work of the stream is done. */
MOEBIUS_C_API moebius_status moebius_stream_synchronize(moebius_stream stream);
/* The number of the capture of a CUDA graph that the stream is in, which no other capture of the
 * process has; 0 for none, and on the CPU. */
MOEBIUS_C_API moebius_status moebius_stream_capture_id(moebius_stream stream, uint64_t* id);
/* The cudaStream_t, for calls of others that are enqueued on it; nobody destroys it.  Valid as long
 * as the handle.  NULL on the CPU, and for the legacy default stream. */
MOEBIUS_C_API moebius_status moebius_stream_get_cuda(moebius_stream stream, void** cuda_stream);
/* Objects that were made with the stream keep it as long as they need it. */
MOEBIUS_C_API moebius_status moebius_stream_destroy(moebius_stream stream);
/* Lets what `stream` is given from now on begin after what `other` has been given so far; a CPU
 * stream waits in the call.  Both are in the same capture of a CUDA graph, or only `other` is in
 * one, whose capture `stream` then joins. */
MOEBIUS_C_API moebius_status moebius_stream_wait_stream(moebius_stream stream,
                                                        moebius_stream other);

/* What a stream had been given at some moment.  Events hold little, and are used again inside. */
typedef struct moebius_event_handle* moebius_event;
/* The event of what the stream has been given so far; on the CPU that is done already. */
MOEBIUS_C_API moebius_status moebius_stream_record(moebius_stream stream, moebius_event* event);
/* Lets what the stream is given from now on begin after the event; a CPU stream waits in the call.
 * Events of any GPU are accepted. */
MOEBIUS_C_API moebius_status moebius_stream_wait(moebius_stream stream, moebius_event event);
/* *is_complete becomes 1 if the work is done, else 0, as for every event that was recorded in a
 * capture.  The call does not wait. */
MOEBIUS_C_API moebius_status moebius_event_is_complete(moebius_event event, int32_t* is_complete);
/* What waits for the event goes on waiting. */
MOEBIUS_C_API moebius_status moebius_event_destroy(moebius_event event);

/* ---------------------------------------------------------------------------- tensors --- */

enum {
  MOEBIUS_F32 = 0,
  MOEBIUS_F16 = 1,
  MOEBIUS_BF16 = 2,
  MOEBIUS_F8E4M3 = 3,
  MOEBIUS_F8E5M2 = 4,
  MOEBIUS_I8 = 5,
  MOEBIUS_U8 = 6,
  MOEBIUS_I32 = 7,
  MOEBIUS_I64 = 8,
  MOEBIUS_BOOL = 9,
  /* Packed types: two elements per byte (first in the low nibble), or four in three bytes.  Shapes
   * count elements, and rows are whole bytes. */
  MOEBIUS_F4E2M1 = 10,
  MOEBIUS_U4 = 11,
  MOEBIUS_F6E3M2 = 12,
  MOEBIUS_F6E2M3 = 13,
  MOEBIUS_E8M0 = 14
};
/* "bf16", "f8e4m3", ...; NULL for an unknown dtype. */
MOEBIUS_C_API const char* moebius_dtype_name(int32_t dtype);
MOEBIUS_C_API int32_t moebius_dtype_bits(int32_t dtype); /* of an element; 0 for an unknown dtype */

enum { MOEBIUS_READ_ONLY = 1 }; /* flag of a tensor: calls refuse it as an output */

typedef struct moebius_tensor {
  size_t struct_size;
  void* data; /* may be NULL where there are no elements */
  int32_t dtype;
  moebius_device device;
  int32_t num_dims; /* 0 to 4; 0 is one element */
  uint32_t flags;   /* 0 or MOEBIUS_READ_ONLY */
  int64_t shape[4]; /* in elements, each at least 0; [0, num_dims) are read */
  /* In elements, each at least 0; all 0: contiguous rows.  Inputs that are not contiguous are
   * copied first, and outputs must be contiguous.  With other strides among them, 0 repeats
   * elements. */
  int64_t strides[4];
} moebius_tensor;

/* An array is memory of the library's, or of a DLPack producer's: results come as arrays.  It may
 * outlive the object that made it. */
typedef struct moebius_array_handle* moebius_array;
/* A new array, uninitialised and 256-byte aligned, of the device's allocator.  shape [num_dims] may
 * be NULL without dimensions. */
MOEBIUS_C_API moebius_status moebius_array_empty(int32_t dtype,
                                                 moebius_device device,
                                                 int32_t num_dims,
                                                 const int64_t* shape,
                                                 moebius_array* array);
/* Fills all of *tensor but its struct_size: a view of the array, valid as long as the array. */
MOEBIUS_C_API moebius_status moebius_array_view(moebius_array array, moebius_tensor* tensor);
/* Lets the array be destroyed while the stream still uses its memory. */
MOEBIUS_C_API moebius_status moebius_array_record_stream(moebius_array array,
                                                         moebius_stream stream);
MOEBIUS_C_API moebius_status moebius_array_destroy(moebius_array array);

/* DLPack 1.1 (moebius/dlpack.h has the rules).  `managed` is a DLManagedTensorVersioned
 * (is_versioned 1) or a DLManagedTensor (0); other numbers are refused, and then nothing is done
 * with it. from_dlpack takes the tensor over: its deleter is called once, when the array and what
 * was made from it are gone, or at once when the call fails.  Rows that are not contiguous are
 * copied. as_dtype -1 keeps the type; otherwise bytes (u8) are read as that type.  to_dlpack gives
 * a tensor whose receiver calls its deleter once; the array may be destroyed before.  A
 * DLManagedTensor cannot say that it is read-only, so a read-only array is refused there. */
MOEBIUS_C_API moebius_status moebius_array_from_dlpack(void* managed,
                                                       int32_t is_versioned,
                                                       int32_t as_dtype,
                                                       moebius_array* array);
MOEBIUS_C_API moebius_status moebius_array_to_dlpack(moebius_array array,
                                                     int32_t is_versioned,
                                                     void** managed);
/* Copies between tensors of equal dtype and shape that do not overlap.  Each is on the CPU or on
 * the stream's device; with a GPU the copy is enqueued. */
MOEBIUS_C_API moebius_status moebius_copy(const moebius_tensor* from,
                                          const moebius_tensor* to,
                                          moebius_stream stream);

/* ----------------------------------------------------------------------------- groups --- */

/* One rank's handle on its peers.  Calls marked "collective" are made by every rank in the same
 * order.  Every wait ends at the group's timeout, and at once when a peer has failed: with
 * MOEBIUS_COMM_ERROR, after which the group is broken: later calls give the same error, and the
 * group and what was made from it can only be destroyed (but see moebius_group_set_dead). */
typedef struct moebius_group_handle* moebius_group;

typedef struct moebius_group_options {
  size_t struct_size;
  int32_t ranks_per_node; /* 0: as the machines are; > 0: pretended nodes */
  int64_t timeout_ms;     /* 0: setting MOEBIUS_TIMEOUT_MS; at most 24 h */
} moebius_group_options;

/* Groups for num_ranks threads (at most 1024) of the caller's: groups [num_ranks]; groups[r] is for
 * the thread that is rank r.  NULL options are the defaults.  Each is destroyed on its own. */
MOEBIUS_C_API moebius_status moebius_make_thread_groups(int32_t num_ranks,
                                                        const moebius_group_options* options,
                                                        moebius_group* groups);
/* Gathers `bytes` bytes of every process: those of rank r go to out + r * bytes.  Returns 0; any
 * other value ends moebius_make_process_group with MOEBIUS_ERROR. */
typedef int32_t (*moebius_all_gather_function)(void* user,
                                               const void* in,
                                               int64_t bytes,
                                               void* out);
/* A group of at most 256 processes of one machine that the caller has started in whatever way;
 * all_gather is called once, within this call, and its waits have the deadline that it gives them.
 * NULL options are the defaults.  Collective. */
MOEBIUS_C_API moebius_status moebius_make_process_group(int32_t rank,
                                                        int32_t size,
                                                        moebius_all_gather_function all_gather,
                                                        void* user,
                                                        const moebius_group_options* options,
                                                        moebius_group* group);
/* A group of the processes of an MPI communicator; comm points to an MPI_Comm, which stays the
 * caller's, or is NULL for MPI_COMM_WORLD (MPI is then initialised unless it is).  Its destruction
 * is collective, too.  MOEBIUS_UNSUPPORTED where MPI is not to be had.  Collective. */
MOEBIUS_C_API moebius_status moebius_make_mpi_group(const void* comm,
                                                    const moebius_group_options* options,
                                                    moebius_group* group);
/* Gives each rank of a host group a GPU; several ranks may share one.  The host group's handle is
 * used up on success, and stays as it is after an error.  Collective. */
MOEBIUS_C_API moebius_status moebius_make_cuda_group(moebius_group host,
                                                     int32_t cuda_index,
                                                     moebius_group* group);
/* The same over NCCL, a GPU for each rank.  comm is an ncclComm_t of the same ranks that stays the
 * caller's, or NULL: the group makes its own.  Collective. */
MOEBIUS_C_API moebius_status moebius_make_nccl_group(moebius_group host,
                                                     int32_t cuda_index,
                                                     void* comm,
                                                     moebius_group* group);
/* The same for a caller that has nothing but the communicator, an ncclComm_t whose ranks are
 * processes of one machine.  timeout_ms as in moebius_group_options.  Collective. */
MOEBIUS_C_API moebius_status moebius_make_nccl_group_of(void* comm,
                                                        int64_t timeout_ms,
                                                        moebius_group* group);

typedef struct moebius_group_info {
  size_t struct_size;
  int32_t rank, size;
  int32_t node, num_nodes;           /* of this rank; of the group */
  int32_t local_rank, ranks_on_node; /* within the rank's node */
  moebius_device device;             /* of the rank's windows */
  int64_t timeout_ms;
  int64_t waited_ns;  /* in all calls so far */
  int64_t bytes_sent; /* to other ranks, in all calls so far */
  const char* name;   /* "threads", "processes", "mpi", "peer", "nccl"; always valid */
} moebius_group_info;
MOEBIUS_C_API moebius_status moebius_group_get_info(moebius_group group, moebius_group_info* info);

/* Returns when every rank has made the call.  Collective. */
MOEBIUS_C_API moebius_status moebius_group_barrier(moebius_group group);
/* Gathers `bytes` of every rank, the same number on all, in host memory; those of rank r are at
 * out + r * bytes.  Collective. */
MOEBIUS_C_API moebius_status moebius_group_all_gather(moebius_group group,
                                                      const void* in,
                                                      int64_t bytes,
                                                      void* out);
/* A group of the ranks that give the same color, ordered by key, then by rank; a negative color
 * gets NULL.  The group stays usable, and the part may outlive it.  Collective. */
MOEBIUS_C_API moebius_status moebius_group_split(moebius_group group,
                                                 int32_t color,
                                                 int32_t key,
                                                 moebius_group* part);
/* Tells every peer that this rank cannot go on, and why; their waits end with MOEBIUS_COMM_ERROR,
 * which names this rank.  The group is then broken.  It does not wait. */
MOEBIUS_C_API moebius_status moebius_group_abort(moebius_group group, const char* why);
/* Goes on without a rank, or takes it back; see Group::set_dead in moebius/group.h. */
MOEBIUS_C_API moebius_status moebius_group_set_dead(moebius_group group,
                                                    int32_t rank,
                                                    int32_t is_dead);
/* Tells the peers that this rank has left, once no object needs the group any more.  A rank that
 * still waits for it then ends with MOEBIUS_COMM_ERROR.  It does not wait (but see MPI). */
MOEBIUS_C_API moebius_status moebius_group_destroy(moebius_group group);

/* -------------------------------------------------------------------------- placement --- */

/* Where experts live.  Wherever a function takes one, NULL is the linear placement: neighbours live
 * together, and the first E % R ranks own one more.  Models have at most 2^20 experts. */
typedef struct moebius_placement {
  size_t struct_size;
  const int32_t* rank_of; /* [num_experts], each a rank of the group; copied */
  int64_t num_experts;
} moebius_placement;

/* Which physical experts a model should have, by the load of its logical experts;
 * moebius/rebalance.h has the rule.  Physical experts are slots, numbered rank by rank, of which
 * the first P % R ranks have one more. */
typedef struct moebius_rebalance_options {
  size_t struct_size;
  int64_t num_physical; /* P, at least num_experts */
  int64_t num_groups;   /* groups of neighbours that are best kept on one node; 0: 1 */
  int64_t num_nodes;    /* 0: 1 */
  int64_t num_ranks;    /* R; 0: 1 */
  const char* policy;   /* NULL or "deepseek" */
} moebius_rebalance_options;
typedef struct moebius_rebalanced {
  size_t struct_size;
  int64_t* physical_to_logical; /* [num_layers, P], written */
  int64_t* replica_index;       /* [num_layers, P], written: from 0 for each expert; may be NULL */
  int64_t* replica_count;       /* [num_layers, num_experts], written; may be NULL */
} moebius_rebalanced;
/* load [num_layers, num_experts] on the host: each finite and at least 0. */
MOEBIUS_C_API moebius_status moebius_rebalance(const float* load,
                                               int64_t num_layers,
                                               int64_t num_experts,
                                               const moebius_rebalance_options* options,
                                               const moebius_rebalanced* out);

/* ----------------------------------------------------------------------- quantization --- */

enum {
  MOEBIUS_NOT_QUANTIZED = 0,
  MOEBIUS_FP8 = 1,   /* e4m3 */
  MOEBIUS_INT8 = 2,  /* symmetric */
  MOEBIUS_INT4 = 3,  /* unsigned, zero point 8 unless one is given */
  MOEBIUS_MXFP4 = 4, /* e2m1, e8m0 scale per 32 */
  MOEBIUS_MXFP6_E3M2 = 5,
  MOEBIUS_MXFP6_E2M3 = 6,
  MOEBIUS_MXFP8 = 7,
  MOEBIUS_NVFP4 = 8 /* e2m1, e4m3 scale per 16, f32 global scale */
};

/* How a matrix [rows, cols] is quantized; struct QuantizeSpec in moebius/quantize.h. */
typedef struct moebius_quant_spec {
  size_t struct_size;
  int32_t format;
  /* How many elements share a scale; -1 stands for all of that dimension.  {-1, -1} is per tensor,
   * {1, -1} per token.  mx formats have {1, 32} and nvfp4 {1, 16}. */
  int64_t group_rows, group_cols;
  int32_t power_of_two_scale;   /* fp8 blocks: scales are rounded up to powers of two */
  int32_t asymmetric;           /* int4: codes from min to max with a zero point */
  int32_t global_scale_per_row; /* nvfp4 */
} moebius_quant_spec;

/* The tensors of a quantized matrix. */
typedef struct moebius_quantized {
  size_t struct_size;
  moebius_tensor* values;
  moebius_tensor* scale;
  moebius_tensor* zero_point;   /* int4 asymmetric; otherwise NULL */
  moebius_tensor* global_scale; /* nvfp4; otherwise NULL */
} moebius_quantized;

/* Sets dtype, device, shape and (contiguous) strides of the tensors that a [rows, cols] matrix is
 * quantized to; data and flags stay as they are.  Tensors that the format does not have get
 * num_dims -1.  Any of the four may be NULL here.  Nothing is allocated. */
MOEBIUS_C_API moebius_status moebius_quantized_shapes(const moebius_quant_spec* spec,
                                                      int64_t rows,
                                                      int64_t cols,
                                                      moebius_device device,
                                                      const moebius_quantized* out);
/* x [rows, cols] f32, bf16 or f16 -> out, with the dtypes and shapes of moebius_quantized_shapes,
 * in memory that x does not have.
 * static_scale f32 [1] (fp8 and int8 per tensor) and global_scale f32 [1] (nvfp4) replace what is
 * computed from x; both may be NULL. */
MOEBIUS_C_API moebius_status moebius_quantize(const moebius_tensor* x,
                                              const moebius_quant_spec* spec,
                                              const moebius_quantized* out,
                                              const moebius_tensor* static_scale,
                                              const moebius_tensor* global_scale,
                                              moebius_stream stream);
/* out [rows, cols] f32, bf16 or f16: the values that q stands for, rounded once, in memory that q
 * does not have. */
MOEBIUS_C_API moebius_status moebius_dequantize(const moebius_quantized* q,
                                                const moebius_quant_spec* spec,
                                                const moebius_tensor* out,
                                                moebius_stream stream);

/* How one operand of the experts is quantized; struct QuantDesc in moebius/quant_config.h, which
 * has the shapes.  format 0: it is not. */
typedef struct moebius_quant_operand {
  size_t struct_size;
  int32_t format;
  int64_t group_rows, group_cols; /* as in moebius_quant_spec; both 0: none */
  const moebius_tensor* scale;
  const moebius_tensor* alpha_or_gscale;
  const moebius_tensor* zero_point;
  const moebius_tensor* bias; /* weights */
  int32_t power_of_two_scale;
  int32_t calls_bring_scales; /* a2: every call has an a2_scale */
} moebius_quant_operand;

/* ----------------------------------------------------------------------------- router --- */

enum {
  MOEBIUS_SOFTMAX = 0,
  MOEBIUS_SIGMOID = 1,
  MOEBIUS_SQRT_SOFTPLUS = 2,
  MOEBIUS_SPARSE_MIXER = 3
};

/* How logits become ids and weights; struct RouterConfig in moebius/router.h has the steps. */
typedef struct moebius_router_config {
  size_t struct_size;
  int64_t num_experts;
  int64_t topk;
  int32_t scoring;
  int32_t score_after_topk;
  int32_t renormalize;
  int64_t num_groups;          /* 0: 1 */
  int64_t topk_groups;         /* 0: 1 */
  float routed_scaling_factor; /* 0: 1 */
  int32_t tensor_core_logits;  /* GPUs, bf16: sums in the order of the tensor cores */
  float mixer_epsilon;         /* MOEBIUS_SPARSE_MIXER only */
} moebius_router_config;

/* Copied by the router; values are complete when the call is made.  Each is bf16, f16 or f32. */
typedef struct moebius_router_weights {
  size_t struct_size;
  const moebius_tensor* gate;            /* [E, H]; NULL where the caller brings logits */
  const moebius_tensor* bias;            /* [E], added to the logits; may be NULL */
  const moebius_tensor* correction_bias; /* [E]; may be NULL */
  const moebius_tensor* expert_scale;    /* [E], a factor of each expert's weight; may be NULL */
} moebius_router_weights;

/* Chooses experts.  weights NULL: the caller brings logits. */
typedef struct moebius_router_handle* moebius_router;
MOEBIUS_C_API moebius_status moebius_router_create(const moebius_router_config* config,
                                                   const moebius_router_weights* weights,
                                                   moebius_device device,
                                                   moebius_router* router);
/* hidden [T, H] f32, bf16 or f16 -> logits f32 [T, E]. */
MOEBIUS_C_API moebius_status moebius_router_logits(moebius_router router,
                                                   const moebius_tensor* hidden,
                                                   const moebius_tensor* logits,
                                                   moebius_stream stream);
/* logits f32 [T, E] -> ids i32 or i64 [T, K], weights f32 [T, K], the best expert first. */
MOEBIUS_C_API moebius_status moebius_router_select(moebius_router router,
                                                   const moebius_tensor* logits,
                                                   const moebius_tensor* ids,
                                                   const moebius_tensor* weights,
                                                   moebius_stream stream);
/* Replaces the values of the weights in place.  Those that the router was made from are given, with
 * the same shapes and dtypes. */
MOEBIUS_C_API moebius_status moebius_router_update(moebius_router router,
                                                   const moebius_router_weights* weights,
                                                   moebius_stream stream);
MOEBIUS_C_API moebius_status moebius_router_destroy(moebius_router router);
/* Counts the tokens of each local expert among ids i32 or i64 [T, K] into counts i32 [L].
 * expert_map i32 [E] maps global ids to local ones, -1 for those elsewhere; NULL: ids are local. An
 * id of -1 is not counted; other ids out of range are MOEBIUS_INVALID_ARGUMENT on the CPU.  counts
 * may not overlap ids or expert_map. */
MOEBIUS_C_API moebius_status moebius_count_expert_tokens(const moebius_tensor* ids,
                                                         const moebius_tensor* expert_map,
                                                         const moebius_tensor* counts,
                                                         moebius_stream stream);

/* ---------------------------------------------------------------------------- experts --- */

enum {
  MOEBIUS_SILU = 0,
  MOEBIUS_GELU = 1,
  MOEBIUS_GELU_TANH = 2,
  MOEBIUS_SWIGLU_OAI = 3,
  MOEBIUS_RELU2 = 4,
  MOEBIUS_SWIGLU_STEP = 5
};

typedef struct moebius_activation {
  size_t struct_size;
  int32_t kind;
  int32_t is_not_gated; /* 1: w1 has no gate */
  int32_t interleaved;  /* 1: gate and up rows of w1 alternate */
  /* swiglu_oai and swiglu_step; with alpha and limit 0 all three are as 1.702, 1 and 7. */
  float alpha, beta, limit;
} moebius_activation;

enum { MOEBIUS_STANDARD = 0, MOEBIUS_BATCHED = 1 }; /* formats of activations */

/* Adapters; struct LoraWeights in moebius/experts.h has the shapes. */
typedef struct moebius_lora_weights {
  size_t struct_size;
  const moebius_tensor* w1_a;
  const moebius_tensor* w1_b;
  const moebius_tensor* w2_a;
  const moebius_tensor* w2_b;
  const moebius_tensor* scaling;
} moebius_lora_weights;

typedef struct moebius_expert_weights {
  size_t struct_size;
  const moebius_tensor* w1; /* [L, N, H] */
  const moebius_tensor* w2; /* [L, H, I] */
  /* How the two activations and the two weights are quantized; NULL: not, and without bias. */
  const moebius_quant_operand* a1;
  const moebius_quant_operand* a2;
  const moebius_quant_operand* quant_w1;
  const moebius_quant_operand* quant_w2;
  const moebius_lora_weights* lora;
} moebius_expert_weights;

typedef struct moebius_experts_options {
  size_t struct_size;
  int64_t num_experts;                  /* E; 0: all experts are local */
  int64_t topk;                         /* K */
  int32_t in_dtype;                     /* of hidden states and outputs: MOEBIUS_BF16, F16 or F32 */
  int32_t format;                       /* MOEBIUS_STANDARD or MOEBIUS_BATCHED */
  const moebius_activation* activation; /* NULL: gated silu */
  /* 1: the experts compute on the caller's memory, which stays alive and in place as long as they
   * do.  0: on their own, and the caller's may be freed after the call. */
  int32_t lends_weights;
  const char* implementation; /* "ref", "cpu_portable", ...; NULL: one is chosen */
} moebius_experts_options;

typedef struct moebius_experts_handle* moebius_experts;
/* Sizes are taken from the shapes of the weights.  The experts work on the device of the stream,
 * and with at most as many threads.  MOEBIUS_UNSUPPORTED names every implementation that was tried,
 * and why it refused. */
MOEBIUS_C_API moebius_status moebius_experts_create(const moebius_expert_weights* weights,
                                                    const moebius_experts_options* options,
                                                    moebius_stream stream,
                                                    moebius_experts* experts);

typedef struct moebius_experts_info {
  size_t struct_size;
  const char* name; /* of the implementation; always valid */
  int64_t num_experts, num_local_experts, topk, hidden, intermediate;
  int32_t in_dtype, format;
  int32_t retains_weights; /* 1: the caller must keep the weights alive and in place */
} moebius_experts_info;
MOEBIUS_C_API moebius_status moebius_experts_get_info(moebius_experts experts,
                                                      moebius_experts_info* info);

/* All experts of the tokens, weighted and summed, of standard experts: hidden [T, H] in_dtype,
 * topk_ids i32 or i64 [T, K] with -1 for masked ones, topk_weights f32 [T, K] -> output [T, H]
 * in_dtype.  expert_map i32 [E] as for moebius_count_expert_tokens; NULL where all are local.
 * output may be hidden, and may not overlap another input. */
MOEBIUS_C_API moebius_status moebius_experts_forward(moebius_experts experts,
                                                     const moebius_tensor* hidden,
                                                     const moebius_tensor* topk_ids,
                                                     const moebius_tensor* topk_weights,
                                                     const moebius_tensor* expert_map,
                                                     const moebius_tensor* output,
                                                     moebius_stream stream);

/* Rows of a dispatch; struct ExpertsInput in moebius/experts.h. */
typedef struct moebius_experts_input {
  size_t struct_size;
  const moebius_tensor* x;                 /* [M, H] or [L, rows, H] */
  const moebius_tensor* x_scale;           /* of quantized rows */
  const moebius_tensor* topk_ids;          /* standard: [M, K] */
  const moebius_tensor* topk_weights;      /* standard: f32 [M, K] */
  const moebius_tensor* expert_num_tokens; /* batched: i32 [L] */
  const moebius_tensor* expert_map;        /* standard: i32 [E]; NULL: ids are local */
  const moebius_tensor* lora_ids;          /* i32 [M] or [L, rows]; may be NULL */
  const moebius_tensor* a2_scale;          /* f32 [M] or [L, rows]; with calls_bring_scales of a2 */
} moebius_experts_input;
/* Computes rows of a dispatch.  Standard: output [M, H] in_dtype, the weighted sum over this rank's
 * experts of each row, as combine takes it; it may be x.  Batched: output [L, rows, H] in_dtype,
 * unweighted, which may not overlap x.  Neither may overlap another input. */
MOEBIUS_C_API moebius_status moebius_experts_apply(moebius_experts experts,
                                                   const moebius_experts_input* input,
                                                   const moebius_tensor* output,
                                                   moebius_stream stream);
/* Replaces the values of the weights in place, so that a recorded CUDA graph computes with the new
 * ones.  What is NULL stays as it is. */
MOEBIUS_C_API moebius_status moebius_experts_update(moebius_experts experts,
                                                    const moebius_expert_weights* weights,
                                                    moebius_stream stream);
MOEBIUS_C_API moebius_status moebius_experts_destroy(moebius_experts experts);

/* ------------------------------------------------------- transports: dispatch, combine --- */

/* What moves the rows of all layers of a group; several layers share one, and then need the memory
 * of one.  Making it is local. */
typedef struct moebius_transports_handle* moebius_transports;
MOEBIUS_C_API moebius_status moebius_transports_create(moebius_group group,
                                                       moebius_transports* transports);
/* Makes window memory ahead, on one node.  A low-latency transport of `transports` that fits in
 * what is left of it is then made without a word to other ranks, so that it does not matter if one
 * is gone by then; moebius_low_latency_size_hint tells what one takes.  Memory that nobody touches
 * costs nothing.  Collective; all ranks give the same number. */
MOEBIUS_C_API moebius_status moebius_transports_reserve_low_latency(moebius_transports transports,
                                                                    int64_t bytes);
/* The bytes of windows and buffers that this rank holds for them now. */
MOEBIUS_C_API moebius_status moebius_transports_bytes(moebius_transports transports,
                                                      int64_t* bytes);
MOEBIUS_C_API moebius_status moebius_transports_destroy(moebius_transports transports);

typedef struct moebius_transport_statistics {
  size_t struct_size;
  int64_t selections;  /* sent, without masked ones */
  int64_t copies;      /* rows sent to ranks, one per (token, rank) */
  int64_t node_copies; /* rows that crossed to another node */
} moebius_transport_statistics;

/* What a dispatch, combine or layout has made: arrays by name, and what a later call needs. */
typedef struct moebius_result_handle* moebius_result;
/* The array of a name, which the functions below list; `index` counts payloads and is 0 otherwise.
 * A name that this result does not have gives NULL.  Each call gives a new handle, to be destroyed.
 * Arrays may outlive the result, and those in the caller's memory are valid as long as that is. */
MOEBIUS_C_API moebius_status moebius_result_array(moebius_result result,
                                                  const char* name,
                                                  int32_t index,
                                                  moebius_array* array);
/* Arrays of a result that are wanted as DLManagedTensors of DLPack. */
typedef struct moebius_dlpack_arrays {
  size_t struct_size;
  int32_t num_arrays;       /* at least 1 */
  const char* const* names; /* [num_arrays] */
  const int32_t* indices;   /* [num_arrays] */
  /* [num_arrays], written: tensors of the caller's, who calls their deleters; NULL where the result
   * has no array of the name.  After a failed call they are as they were. */
  void** managed;
  /* The stream that uses the arrays last: their memory is used again after its work.  NULL stands
   * for the stream of the dispatch, and in moebius_result_dlpack for a CPU. */
  moebius_stream user;
} moebius_dlpack_arrays;
/* Gives so many arrays, in one call for moebius_result_array, moebius_array_record_stream and
 * moebius_array_to_dlpack of each. */
MOEBIUS_C_API moebius_status moebius_result_dlpack(moebius_result result,
                                                   const moebius_dlpack_arrays* arrays);
/* Makes the stream wait until the result is complete; a CPU stream waits in the call.  Needed after
 * calls with is_async, and by other streams. */
MOEBIUS_C_API moebius_status moebius_result_wait(moebius_result result, moebius_stream stream);
/* The cudaEvent_t that is complete when the result is; NULL on the CPU.  Valid as long as the
 * result. */
MOEBIUS_C_API moebius_status moebius_result_event(moebius_result result, void** cuda_event);
/* Gives the memory of the result back, unless an array or a pending call still needs it.  A result
 * of low latency frees its bank. */
MOEBIUS_C_API moebius_status moebius_result_destroy(moebius_result result);

/* A dispatch or combine whose rows are on their way. */
typedef struct moebius_pending_handle* moebius_pending;
/* Completes the transfer; on a GPU it enqueues that.  It is optional, since moebius_pending_finish
 * does it, too; a second call does nothing.  Collective. */
MOEBIUS_C_API moebius_status moebius_pending_hook(moebius_pending pending);
/* Completes the transfer, and hands over the result, once.  The handle is then of no use but to be
 * destroyed, also when the transfer has failed.  Collective. */
MOEBIUS_C_API moebius_status moebius_pending_finish(moebius_pending pending,
                                                    moebius_result* result);
/* moebius_pending_finish and moebius_pending_destroy in one call.  The handle has ended also when
 * the transfer has failed, but not when another thread is using it.  `result` may be NULL where it
 * is not needed, as that of a combine with x_into.  Collective. */
MOEBIUS_C_API moebius_status moebius_pending_take(moebius_pending pending, moebius_result* result);
/* Destroying one that was not finished abandons the transfer: the group is then broken. */
MOEBIUS_C_API moebius_status moebius_pending_destroy(moebius_pending pending);

typedef struct moebius_high_throughput_handle* moebius_high_throughput;
typedef struct moebius_high_throughput_options {
  size_t struct_size;
  int64_t num_experts; /* needed unless there is a placement */
  const moebius_placement* placement;
  /* GPUs: the SMs of the kernels, even; 0: the library chooses. */
  int32_t dispatch_sms, combine_sms;
  moebius_transports transports; /* the object is shared with others of the same shape; or NULL */
} moebius_high_throughput_options;
/* Collective.  moebius/dispatch.h describes the transport. */
MOEBIUS_C_API moebius_status
moebius_high_throughput_create(moebius_group group,
                               const moebius_high_throughput_options* options,
                               moebius_high_throughput* transport);
typedef struct moebius_layout_input {
  size_t struct_size;
  const moebius_tensor* topk_ids; /* i32 or i64 [T, K] global, -1 = masked */
  /* Memory of the caller's for the arrays; each may be NULL. */
  const moebius_tensor* tokens_per_rank_into;
  const moebius_tensor* tokens_per_node_into;
  const moebius_tensor* tokens_per_expert_into;
  const moebius_tensor* is_token_in_rank_into;
} moebius_layout_input;
/* Counts where tokens go.  Arrays: tokens_per_rank i32 [R], tokens_per_node i32 [nodes],
 * tokens_per_expert i32 [E], is_token_in_rank bool [T, R].  `layout` may be NULL where all of them
 * but tokens_per_node go to memory of the caller's: then there is nothing to destroy. */
MOEBIUS_C_API moebius_status moebius_high_throughput_layout(moebius_high_throughput transport,
                                                            const moebius_layout_input* input,
                                                            moebius_stream stream,
                                                            moebius_result* layout);

typedef struct moebius_dispatch_input {
  size_t struct_size;
  const moebius_tensor* const* payloads; /* [num_payloads], each [T, ...] */
  int32_t num_payloads;
  /* i32 or i64 [T, K] global, -1 = masked; may be NULL where a layout says where tokens go */
  const moebius_tensor* topk_ids;
  const moebius_tensor* topk_weights; /* f32 [T, K]; may be NULL */
  moebius_result layout;              /* of these ids; may be NULL, on all ranks alike */
  int64_t expert_alignment;           /* counts are rounded up to a multiple; 0: 1 */
  /* GPUs: rows that outputs have room for, so that no host waits; 0: as many as come. */
  int64_t capacity;
  int64_t combine_row_bytes; /* with a capacity: the bytes of a row of combine's x */
  void* previous_cuda_event; /* the stream waits for it first; may be NULL */
  int32_t is_async;          /* the stream does not wait for the result */
  int32_t lists_counts;      /* GPUs: "expert_counts" is filled, and the host waits */
  /* Memory of the caller's for the results; see DispatchInto.  All or none of the payloads. */
  const moebius_tensor* const* payloads_into;
  const moebius_tensor* topk_ids_into;
  const moebius_tensor* topk_weights_into;
  /* A layout of the caller's, in place of `layout`, on all ranks alike: bool [T, R] and i32 [E], as
   * moebius_high_throughput_layout counts them. */
  const moebius_tensor* is_token_in_rank;
  const moebius_tensor* tokens_per_expert;
  /* Arrays of the result that the call gives at once, in place of moebius_result_dlpack; NULL:
   * none. The first half of a dispatch has no result yet and refuses them. */
  const moebius_dlpack_arrays* arrays;
  /* With lists_counts and without a capacity: [L] on the host, a place for "expert_counts"; may be
   * NULL.  The first half of a dispatch refuses it, too. */
  int64_t* expert_counts_into;
} moebius_dispatch_input;
/* Arrays: payload (index), topk_ids [M, K] local or -1, topk_weights f32 [M, K], expert_num_tokens
 * i32 [L], expert_counts i64 [L] on the host, num_rows i32 [1] (with a capacity), source_rank and
 * source_token i32 [M], rank_prefix i32 [R, R].  Collective. */
MOEBIUS_C_API moebius_status moebius_high_throughput_dispatch(moebius_high_throughput transport,
                                                              const moebius_dispatch_input* input,
                                                              moebius_stream stream,
                                                              moebius_result* result);
/* The first half of the same; moebius_pending_hook or _finish is the second.  `is_async` has no
 * meaning: the caller waits for the result.  Collective. */
MOEBIUS_C_API moebius_status
moebius_high_throughput_dispatch_start(moebius_high_throughput transport,
                                       const moebius_dispatch_input* input,
                                       moebius_stream stream,
                                       moebius_pending* pending);
/* Sends payloads along the route of an earlier dispatch of this transport.  Arrays: payload.  Of
 * the input only payloads, previous_cuda_event, is_async and arrays are used.  `result` may be NULL
 * where arrays are given and the call is not asynchronous: then only these have to be destroyed.
 * Collective. */
MOEBIUS_C_API moebius_status
moebius_high_throughput_dispatch_cached(moebius_high_throughput transport,
                                        const moebius_dispatch_input* input,
                                        moebius_result route,
                                        moebius_stream stream,
                                        moebius_result* result);
/* Rows of a dispatch of this transport grouped by local expert, each group filled with zero rows to
 * a multiple of expert_alignment (1 to 65536).  Arrays: payload (index), expert_offsets i32 [L +
 * 1], copy_row i32 [rows] (the row of the dispatch, -1 = padding) and slot i32 [rows]. */
MOEBIUS_C_API moebius_status moebius_high_throughput_expert_order(moebius_high_throughput transport,
                                                                  moebius_result dispatched,
                                                                  int64_t expert_alignment,
                                                                  moebius_stream stream,
                                                                  moebius_result* result);

typedef struct moebius_combine_input {
  size_t struct_size;
  const moebius_tensor* x;            /* [M, H] f32, bf16 or f16 */
  const moebius_tensor* topk_weights; /* f32 [M, K], summed beside x; may be NULL */
  const moebius_tensor* bias[2];      /* [T, H]; may be NULL */
  void* previous_cuda_event;
  int32_t is_async;
  const moebius_tensor* x_into;            /* [T, H], apart from x, and is a bias or
                                            * apart from it; may be NULL */
  const moebius_tensor* topk_weights_into; /* f32 [T, K], apart from topk_weights; or NULL */
} moebius_combine_input;
/* Sums the copies of each token of a dispatch of this transport.  Arrays: x [T, H], topk_weights
 * f32 [T, K].  `result` may be NULL where all sums go to memory of the caller's and the call is not
 * asynchronous: then there is nothing to destroy.  Collective. */
MOEBIUS_C_API moebius_status moebius_high_throughput_combine(moebius_high_throughput transport,
                                                             const moebius_combine_input* input,
                                                             moebius_result dispatched,
                                                             moebius_stream stream,
                                                             moebius_result* result);
/* The first half of the same.  Collective. */
MOEBIUS_C_API moebius_status
moebius_high_throughput_combine_start(moebius_high_throughput transport,
                                      const moebius_combine_input* input,
                                      moebius_result dispatched,
                                      moebius_stream stream,
                                      moebius_pending* pending);
/* GPUs: the SMs of the next calls, even and at least 2; CPUs have none to set. */
MOEBIUS_C_API moebius_status moebius_high_throughput_set_sms(moebius_high_throughput transport,
                                                             int32_t dispatch_sms,
                                                             int32_t combine_sms);
/* The bytes of windows and buffers that this rank holds for it now. */
MOEBIUS_C_API moebius_status moebius_high_throughput_bytes(moebius_high_throughput transport,
                                                           int64_t* bytes);
/* Counts since it was made; calls along a known route are left out. */
MOEBIUS_C_API moebius_status moebius_high_throughput_statistics(
    moebius_high_throughput transport, moebius_transport_statistics* statistics);
/* Gives back memory of results that are gone. */
MOEBIUS_C_API moebius_status moebius_high_throughput_trim(moebius_high_throughput transport);
MOEBIUS_C_API moebius_status moebius_high_throughput_destroy(moebius_high_throughput transport);

typedef struct moebius_low_latency_handle* moebius_low_latency;
typedef struct moebius_low_latency_options {
  size_t struct_size;
  int64_t num_experts; /* needed unless there is a placement */
  const moebius_placement* placement;
  int64_t max_tokens; /* per rank and call; 0: 128 */
  int64_t hidden;
  int64_t topk;
  int32_t in_dtype;         /* MOEBIUS_BF16, F16 or F32 */
  int32_t num_sms;          /* GPUs: the most blocks of a call; 0: as many as there are SMs */
  int32_t sums_per_rank;    /* 1: LowLatencySum::kRanks */
  int32_t excludes_missing; /* 1: calls go on without a rank that is missed; ranks of one node */
  moebius_transports transports; /* shared with others of the same shape; or NULL */
} moebius_low_latency_options;
/* Collective.  moebius/low_latency.h describes the transport. */
MOEBIUS_C_API moebius_status moebius_low_latency_create(moebius_group group,
                                                        const moebius_low_latency_options* options,
                                                        moebius_low_latency* transport);
/* The bytes of window memory that each of num_ranks ranks needs for these options. */
MOEBIUS_C_API moebius_status
moebius_low_latency_size_hint(const moebius_low_latency_options* options,
                              int32_t num_ranks,
                              moebius_device device,
                              int64_t* bytes);

enum { MOEBIUS_CAST_NONE = 0, MOEBIUS_CAST_FP8 = 1, MOEBIUS_CAST_FP8_UE8M0 = 2 };
enum { MOEBIUS_SCALES_ROWS = 0, MOEBIUS_SCALES_COLUMNS = 1, MOEBIUS_SCALES_PACKED_COLUMNS = 2 };
enum { MOEBIUS_CODING_NONE = 0, MOEBIUS_CODING_LOGFMT10 = 1 };

typedef struct moebius_low_latency_dispatch_input {
  size_t struct_size;
  const moebius_tensor* x;        /* [T, H] in_dtype, or rows that were quantized before */
  const moebius_tensor* x_scale;  /* of rows that were quantized before; may be NULL */
  const moebius_tensor* topk_ids; /* i32 or i64 [T, K] global, -1 = masked */
  int32_t cast;
  int32_t scales;                 /* how the scales of a cast lie in memory */
  int64_t max_tokens;             /* the room of this call; 0: that of the options */
  const moebius_tensor* row_tags; /* i32 [T]; may be NULL */
  const moebius_tensor* received; /* i32 [L], added to; may be NULL */
  const moebius_tensor* wait_us;  /* i64 [R], added to; may be NULL */
  void* previous_cuda_event;
  int32_t records_event; /* the result has an event */
  /* Memory of the caller's for the results; each may be NULL. */
  const moebius_tensor* x_into;
  const moebius_tensor* x_scale_into;
  const moebius_tensor* expert_num_tokens_into;
  const moebius_tensor* row_tags_into;
  const moebius_tensor* source_token_into;
  const moebius_tensor* source_ranges_into;
} moebius_low_latency_dispatch_input;
/* Arrays, with rows = max_tokens * R: x [L, rows, H], x_scale, expert_num_tokens i32 [L], row_tags
 * and source_token i32 [L, rows], source_ranges i64 [L, R]; combine_buffer [L, rows, H], memory
 * for the x of the combine.  Two results may be alive at a time.  Collective. */
MOEBIUS_C_API moebius_status
moebius_low_latency_dispatch(moebius_low_latency transport,
                             const moebius_low_latency_dispatch_input* input,
                             moebius_stream stream,
                             moebius_result* result);
/* The send half; moebius_pending_hook or _finish is the receive half. */
MOEBIUS_C_API moebius_status
moebius_low_latency_dispatch_start(moebius_low_latency transport,
                                   const moebius_low_latency_dispatch_input* input,
                                   moebius_stream stream,
                                   moebius_pending* pending);

typedef struct moebius_low_latency_combine_input {
  size_t struct_size;
  const moebius_tensor* x;            /* [L, rows, H] in_dtype, in the order of the dispatch */
  const moebius_tensor* topk_ids;     /* as given to dispatch */
  const moebius_tensor* topk_weights; /* f32 [T, K] */
  const moebius_tensor* wait_us;      /* i64 [R], added to; may be NULL */
  int32_t coding;
  void* previous_cuda_event;
  int32_t records_event;
  const moebius_tensor* x_into; /* [T, H] in_dtype; may be NULL */
} moebius_low_latency_combine_input;
/* Arrays: x [T, H].  Each dispatch is combined once; a second combine gives
 * MOEBIUS_INVALID_ARGUMENT.  `result` may be NULL where there is x_into and no event is recorded:
 * then there is nothing to destroy.  Collective. */
MOEBIUS_C_API moebius_status
moebius_low_latency_combine(moebius_low_latency transport,
                            const moebius_low_latency_combine_input* input,
                            moebius_result dispatched,
                            moebius_stream stream,
                            moebius_result* result);
/* The first half of the same.  Collective. */
MOEBIUS_C_API moebius_status
moebius_low_latency_combine_start(moebius_low_latency transport,
                                  const moebius_low_latency_combine_input* input,
                                  moebius_result dispatched,
                                  moebius_stream stream,
                                  moebius_pending* pending);
/* Excludes another rank or takes it back; every live rank makes the same call before its next one.
 */
MOEBIUS_C_API moebius_status moebius_low_latency_set_dead(moebius_low_latency transport,
                                                          int32_t rank,
                                                          int32_t is_dead);
/* is_dead [R] becomes 1 for excluded ranks. */
MOEBIUS_C_API moebius_status moebius_low_latency_dead_ranks(moebius_low_latency transport,
                                                            int32_t* is_dead);
/* Reports what has gone wrong in calls whose work is done by now (GPUs). */
MOEBIUS_C_API moebius_status moebius_low_latency_check(moebius_low_latency transport);
/* The bytes of windows and buffers that this rank holds for it now. */
MOEBIUS_C_API moebius_status moebius_low_latency_bytes(moebius_low_latency transport,
                                                       int64_t* bytes);
/* Counts since it was made; on a GPU, of the calls whose work is done. */
MOEBIUS_C_API moebius_status moebius_low_latency_statistics(
    moebius_low_latency transport, moebius_transport_statistics* statistics);
MOEBIUS_C_API moebius_status moebius_low_latency_destroy(moebius_low_latency transport);

/* ------------------------------------------------------------------------ checkpoints --- */

/* A Hugging Face model folder.  Several threads may load layers of one at the same time. */
typedef struct moebius_checkpoint_handle* moebius_checkpoint;
MOEBIUS_C_API moebius_status moebius_checkpoint_open(const char* directory,
                                                     moebius_checkpoint* checkpoint);
typedef struct moebius_model_info {
  size_t struct_size;
  /* Valid as long as the checkpoint. */
  const char* family;        /* model_type */
  const char* quant_method;  /* "none", "fp8", "mxfp4", ... */
  const int64_t* moe_layers; /* [num_moe_layers] */
  int64_t num_moe_layers;
  int64_t num_layers;
  int64_t hidden, intermediate, num_experts, topk;
  int64_t num_shared_experts, shared_intermediate;
  int32_t dtype; /* of unquantized weights; -1 where config.json does not say */
} moebius_model_info;
MOEBIUS_C_API moebius_status moebius_checkpoint_get_info(moebius_checkpoint checkpoint,
                                                         moebius_model_info* info);
MOEBIUS_C_API moebius_status moebius_checkpoint_destroy(moebius_checkpoint checkpoint);
/* Writes a synthetic model to a folder, which is made if need be, over a model that is there.
 * `moebius make-model --preset list` prints the presets, and --help the formats.  num_layers 0:
 * one, or all of a tiny preset.  quant NULL: "none".  *bytes, if not NULL, becomes what was
 * written.  Equal seeds give equal models. */
MOEBIUS_C_API moebius_status moebius_make_model(const char* preset,
                                                int64_t num_layers,
                                                const char* quant,
                                                uint64_t seed,
                                                const char* directory,
                                                int64_t* bytes);

/* ------------------------------------------------------------------------------ layer --- */

/* Scratch memory that the layers of a rank share, one set per micro-batch. */
typedef struct moebius_workspaces_handle* moebius_workspaces;
MOEBIUS_C_API moebius_status moebius_workspaces_create(moebius_workspaces* workspaces);
/* The bytes that they hold now. */
MOEBIUS_C_API moebius_status moebius_workspaces_bytes(moebius_workspaces workspaces,
                                                      int64_t* bytes);
/* Gives the memory back; the next call makes new.  A call in steps keeps what it uses. */
MOEBIUS_C_API moebius_status moebius_workspaces_trim(moebius_workspaces workspaces);
MOEBIUS_C_API moebius_status moebius_workspaces_destroy(moebius_workspaces workspaces);

/* Options of a call: struct KernelOptions in moebius/modular_kernel.h. */
typedef struct moebius_kernel_options {
  size_t struct_size;
  int64_t chunk_tokens;          /* 0: setting MOEBIUS_CHUNK_TOKENS */
  int32_t microbatches;          /* 0: 1 */
  int64_t min_microbatch_tokens; /* -1: no micro-batch is too small; 0: the library's number */
  int32_t combine_parts;         /* 0: the library chooses */
  int64_t early_rows;            /* -1: never; 0: the library's number */
} moebius_kernel_options;

/* Chooses the experts of hidden [T, H]: writes ids i32 [T, K] (-1 = masked) and weights f32 [T, K].
 * On a GPU it enqueues on `stream` (a cudaStream_t).  Returns 0, or the call fails with
 * MOEBIUS_ERROR. */
typedef int32_t (*moebius_routing_function)(void* user,
                                            const moebius_tensor* hidden,
                                            const moebius_tensor* ids,
                                            const moebius_tensor* weights,
                                            void* stream);
/* Sets output [T, H] from hidden [T, H], for shared experts of the caller's. */
typedef int32_t (*moebius_shared_function)(void* user,
                                           const moebius_tensor* hidden,
                                           const moebius_tensor* output,
                                           void* stream);

typedef struct moebius_layer_options {
  size_t struct_size;
  int32_t format;          /* MOEBIUS_STANDARD or MOEBIUS_BATCHED */
  const char* experts;     /* the implementation; NULL: one is chosen */
  int32_t lends_weights;   /* as in moebius_experts_options; moebius_layer_create only */
  int32_t computes_in_f64; /* 1: the oracle, on the CPU */
  const moebius_kernel_options* kernel;
  moebius_workspaces workspaces; /* NULL: the layer has its own */
  /* The rest is for groups.  rank = dp_rank * tp_size + tp_rank. */
  const char* backend; /* "allgather_reducescatter", "high_throughput", "low_latency", "none", or
                          vLLM's names; NULL: high_throughput, or low_latency if batched; "none"
                          where the ranks hold the same tokens */
  int32_t tp_size;     /* ranks that hold the same tokens; 0: 1 */
  int32_t no_expert_parallel; /* 1: every expert is sharded over all ranks */
  int64_t max_num_tokens;     /* batched: the most tokens of a rank per pass; 0: 256 */
  moebius_transports transports;
  int32_t monolithic; /* allgather_reducescatter only */
  int32_t comm_sms;   /* GPUs: SMs of transport kernels; 0: the backend chooses */
  /* high_throughput on GPUs.  0: in each call the host waits for the number of rows that come.
   * > 0: there is room for so many rows, and no host waits; -1: for the tokens of all ranks. */
  int64_t capacity;
  int32_t sums_per_rank; /* low_latency: LowLatencySum::kRanks */
  int32_t sequence_parallel;
  /* Parts of the caller's; NULL: the layer's. */
  moebius_routing_function routing;
  void* routing_user;
  moebius_shared_function shared_experts;
  void* shared_experts_user;
} moebius_layer_options;

typedef struct moebius_layer_handle* moebius_layer;

typedef struct moebius_load_options {
  size_t struct_size;
  const char* quant; /* NULL or "auto": as stored; "none"; or a scheme such as "int4_w4a16" */
  const moebius_placement* placement;
  int32_t allow_nonfinite; /* 1: NaN and infinity in experts' weights are let through */
} moebius_load_options;
/* Loads a layer of a checkpoint, in a group this rank's share of it.  `layer_index` counts all
 * layers of the model; -1 is the first that has experts.  options and load may be NULL; group may
 * be NULL for one rank.  The stream says where the layer works.  Collective with a group. */
MOEBIUS_C_API moebius_status moebius_layer_load(moebius_checkpoint checkpoint,
                                                int64_t layer_index,
                                                const moebius_load_options* load,
                                                const moebius_layer_options* options,
                                                moebius_group group,
                                                moebius_stream stream,
                                                moebius_layer* layer);

typedef struct moebius_layer_weights {
  size_t struct_size;
  const moebius_router_config* router_config; /* num_experts and topk are always needed */
  /* NULL: the layer does not route; every call brings ids, or the caller's routing chooses. */
  const moebius_router_weights* router;
  int32_t apply_router_weight_on_input;
  int64_t hidden, intermediate;          /* of a whole expert; 0: as the weights' shapes say */
  int32_t in_dtype;                      /* MOEBIUS_BF16, F16 or F32 */
  const moebius_activation* activation;  /* NULL: gated silu */
  const moebius_expert_weights* experts; /* this rank's, in the order of their ids */
  const moebius_placement* placement;
  const moebius_expert_weights* shared; /* w1 [1, 2 * Is, H], w2 [1, H, Is]; may be NULL */
  const moebius_tensor* shared_gate;    /* [1, H]; may be NULL */
} moebius_layer_weights;
/* Makes a layer from tensors.  options may be NULL; group may be NULL for one rank.  The stream
 * says where the layer works.  Collective with a group. */
MOEBIUS_C_API moebius_status moebius_layer_create(const moebius_layer_weights* weights,
                                                  const moebius_layer_options* options,
                                                  moebius_group group,
                                                  moebius_stream stream,
                                                  moebius_layer* layer);

typedef struct moebius_layer_info {
  size_t struct_size;
  int64_t num_experts, num_local_experts, topk, hidden, intermediate;
  int32_t in_dtype;
  int32_t has_router;      /* 0: every call brings ids, or the caller's routing chooses */
  int32_t retains_weights; /* 1: the caller must keep the experts' weights alive and in place */
  int32_t can_be_captured; /* 1: a CUDA graph can record forward */
  /* Valid as long as the layer. */
  const char* experts;          /* the implementation */
  const char* backend;          /* "no_ep", "high_throughput", ... */
  const char* why_not_captured; /* empty where it can be */
} moebius_layer_info;
MOEBIUS_C_API moebius_status moebius_layer_get_info(moebius_layer layer, moebius_layer_info* info);

typedef struct moebius_layer_input {
  size_t struct_size;
  const moebius_tensor* hidden;   /* [T, H] f32, bf16 or f16 */
  const moebius_tensor* topk_ids; /* i32 or i64 [T, K], -1 = masked; with topk_weights, or NULL */
  const moebius_tensor* topk_weights;   /* f32 [T, K] */
  const moebius_tensor* lora_ids;       /* i32 [T]; may be NULL */
  const moebius_kernel_options* kernel; /* for this call; NULL: the layer's */
  /* Selects the workspaces, 0 to 255; different for calls in flight that share workspaces. */
  int32_t microbatch;
  const moebius_tensor* a2_scale; /* f32 [T]; with calls_bring_scales of a2 */
} moebius_layer_input;
/* output [T, H] f32, bf16 or f16: the routed and the shared experts' results.  It may be hidden,
 * and may not overlap another input.  Collective with a group. */
MOEBIUS_C_API moebius_status moebius_layer_forward(moebius_layer layer,
                                                   const moebius_layer_input* input,
                                                   const moebius_tensor* output,
                                                   moebius_stream stream);

/* A forward in steps of the caller; see moebius/layer_call.h. */
typedef struct moebius_call_handle* moebius_call;
/* The tensors stay alive until the call is over.  Nothing is enqueued yet.  A layer has one call at
 * a time: until it is over, another start or forward gives MOEBIUS_INVALID_ARGUMENT. */
MOEBIUS_C_API moebius_status moebius_layer_start(moebius_layer layer,
                                                 const moebius_layer_input* input,
                                                 const moebius_tensor* output,
                                                 moebius_stream stream,
                                                 moebius_call* call);
/* Runs until rows have been sent (*has_more becomes 1) or to the end of the call (0).  After an
 * error the call is over.  Collective with a group. */
MOEBIUS_C_API moebius_status moebius_call_step(moebius_call call, int32_t* has_more);
/* A call that is not over is given up, and other ranks are told. */
MOEBIUS_C_API moebius_status moebius_call_destroy(moebius_call call);

/* Replaces the values of weights in place, between calls.  Of `weights` only experts, shared,
 * shared_gate and router are read; what is NULL stays as it is. */
MOEBIUS_C_API moebius_status moebius_layer_update(moebius_layer layer,
                                                  const moebius_layer_weights* weights,
                                                  moebius_stream stream);
/* low_latency: goes on without another rank, whose experts then add nothing, or takes it back.
 * Every live rank makes the same call.  MOEBIUS_UNSUPPORTED with other backends. */
MOEBIUS_C_API moebius_status moebius_layer_set_dead(moebius_layer layer,
                                                    int32_t rank,
                                                    int32_t is_dead);
/* Reports the loss of a rank that is known by now (GPUs). */
MOEBIUS_C_API moebius_status moebius_layer_check(moebius_layer layer);
/* load i64 [count] on the host: with count E, selections per expert of this rank's tokens in the
 * last forward; or with is_local 1 and count L, rows that each expert of this rank has computed. */
MOEBIUS_C_API moebius_status moebius_layer_expert_load(moebius_layer layer,
                                                       int32_t is_local,
                                                       int64_t* load,
                                                       int64_t count);
MOEBIUS_C_API moebius_status moebius_layer_destroy(moebius_layer layer);

#ifdef __cplusplus
}
#endif

#endif /* MOEBIUS_C_H_ */
