// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The PTX instructions that C++ has no name for: memory orders with their scope, bulk copies,
// mbarriers, proxy fences and clocks, with one instruction per function.  The asm of the library is
// here, in mma.cuh, wgmma.cuh and ftz.cuh.
// REQUIRES: sm_90.  Global addresses may be in a peer's memory unless a function says otherwise.
#pragma once

#include <cstdint>

namespace moebius::ptx {

// Loads and stores of words that other GPUs (sys) or other blocks (gpu) write and read.

__device__ __forceinline__ uint64_t ld_acquire_sys(const uint64_t* p) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
__device__ __forceinline__ uint64_t ld_relaxed_sys(const uint64_t* p) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
__device__ __forceinline__ void st_release_sys(uint64_t* p, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}
__device__ __forceinline__ void st_relaxed_sys(uint64_t* p, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t atom_cas_relaxed_sys(uint64_t* p,
                                                         uint64_t expected,
                                                         uint64_t desired) {
  uint64_t old;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(p), "l"(expected), "l"(desired)
               : "memory");
  return old;
}

__device__ __forceinline__ uint64_t atom_add_acq_rel_gpu(uint64_t* p, uint64_t value) {
  uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(p), "l"(value)
               : "memory");
  return old;
}

__device__ __forceinline__ int ld_acquire_gpu(const int* p) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ __forceinline__ void red_add_relaxed_gpu(int* p, int value) {
  asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ void fence_acq_rel_gpu() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
__device__ __forceinline__ void fence_acq_rel_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// Returns the value, of which the compiler then knows nothing.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ uint32_t opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Returns `value`, which ptxas then keeps in a register instead of making it again for each use: it
// does so of constants, and sees through opaque().
// REQUIRES: parameter >= 0, which is known at run time alone.
__device__ __forceinline__ uint32_t kept(uint32_t value, int parameter) {
  return value | static_cast<uint32_t>(parameter >> 31);
}

// Returns 16 bytes of global memory, or any bytes unless they are `wanted`.
__device__ __forceinline__ uint4 ld_global_if(bool wanted, const void* from) {
  uint4 words;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "r"(static_cast<int>(wanted)), "l"(from)
      : "memory");
  return words;
}

// atomicAdd(p, 1), which lane 0 of a warp alone may call.  ptxas sees that other lanes would add
// something else.  Otherwise it would make one addition of all lanes', and they would wait at once.
__device__ __forceinline__ int draw_next(int* p) {
  int before;
  asm volatile(
      "{\n .reg .s32 more;\n mov.u32 more, %%laneid;\n add.s32 more, more, 1;\n"
      " atom.relaxed.gpu.global.add.s32 %0, [%1], more;\n}"
      : "=r"(before)
      : "l"(p)
      : "memory");
  return before;
}

// Words in shared memory.
__device__ __forceinline__ uint32_t ld_acquire_cta(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}
__device__ __forceinline__ void st_release_cta(uint32_t* p, uint32_t value) {
  asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// Rows, 16 bytes at a time, past L1.  REQUIRES: addresses are multiples of 16.

// For memory that is not written while the kernel runs.
__device__ __forceinline__ int4 ld_nc_no_allocate(const int4* p) {
  int4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
// For memory that is written while the kernel runs; an acquire precedes it.
__device__ __forceinline__ int4 ld_no_allocate(const int4* p) {
  int4 v;
  asm volatile("ld.global.L1::no_allocate.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void st_no_allocate(int4* p, int4 v) {
  asm volatile("st.global.L1::no_allocate.v4.s32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// A __syncthreads for kThreads threads in whole warps, the first that arrive.  __syncthreads uses
// id 0.
template <int kThreads>
__device__ __forceinline__ void barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// mbarriers in shared memory.

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// Call this between mbarrier_init and the first use of the barrier.  If bulk copies use it, call
// fence_proxy_async_shared, too.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// `barrier` is a shared address.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  mbarrier_arrive(shared_address(barrier));
}
// Arrives, and makes the phase wait for `bytes` more bytes.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  mbarrier_arrive_expect_tx(shared_address(barrier), bytes);
}
// Returns true once the phase of that parity is complete, and false after a time that the hardware
// chooses.  `barrier` is a shared address.
__device__ __forceinline__ bool mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ bool mbarrier_try_wait_parity(uint64_t* barrier, uint32_t parity) {
  return mbarrier_try_wait_parity(shared_address(barrier), parity);
}
// The same without waiting at all.
__device__ __forceinline__ bool mbarrier_test_wait_parity(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
// REQUIRES: only work of this GPU completes the phase, or waits in that work end as await_wave
// does.
__device__ __forceinline__ void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait_parity(barrier, parity)) {
  }
}
__device__ __forceinline__ void mbarrier_wait_parity(uint64_t* barrier, uint32_t parity) {
  mbarrier_wait_parity(shared_address(barrier), parity);
}
// The same, asleep after a first look: threads that look again and again take instructions and
// power from those that compute.
__device__ __forceinline__ void mbarrier_sleep_parity(uint32_t barrier, uint32_t parity) {
  constexpr uint32_t kNanoseconds = 10'000'000;  // after which it looks again
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2;\n"
      "@!p bra AGAIN;\n"
      "}" ::"r"(barrier),
      "r"(parity), "r"(kNanoseconds)
      : "memory");
}
__device__ __forceinline__ void mbarrier_sleep_parity(uint64_t* barrier, uint32_t parity) {
  mbarrier_sleep_parity(shared_address(barrier), parity);
}

// Loads from a shared address; use it after waiting for an mbarrier.
__device__ __forceinline__ float ld_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
// Loads two neighbours.  REQUIRES: address % 8 == 0.
__device__ __forceinline__ void ld_shared_pair(uint32_t address, float& first, float& second) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(address));
}
// These load two bytes, and one.
__device__ __forceinline__ uint32_t ld_shared_half(uint32_t address) {
  uint16_t half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
  return half;
}
__device__ __forceinline__ uint32_t ld_shared_byte(uint32_t address) {
  uint32_t byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address) : "memory");
  return byte;
}
__device__ __forceinline__ uint32_t ld_shared_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ __forceinline__ void ld_shared(uint32_t address, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void st_shared_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ __forceinline__ void st_shared(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Bulk copies.  REQUIRES: addresses and bytes are multiples of 16.

// `barrier` counts the bytes when they have arrived (see mbarrier_arrive_expect_tx).
__device__ __forceinline__ void bulk_load(void* shared,
                                          const void* global,
                                          uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
// The store belongs to this thread's current group.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the latest kPending groups of this thread are complete and what they store is
// visible to the thread.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
// Waits until the same groups have read their shared memory, which may then be overwritten.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Call this between ordinary accesses to shared memory and bulk copies of it, in the thread that
// made (or has acquired) the ordinary accesses.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same for global memory, too.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Clusters of CTAs.

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address of the same place in another CTA's shared memory.
__device__ __forceinline__ uint32_t cluster_address(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
__device__ __forceinline__ uint32_t cluster_address(const void* p, uint32_t rank) {
  return cluster_address(shared_address(p), rank);
}
// REQUIRES: `address` is a cluster_address whose memory was written before a cluster_arrive that
// this thread has waited for.
__device__ __forceinline__ float ld_cluster(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ int ld_cluster_int(uint32_t address) {
  int value;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
// Arrives at a barrier of another CTA (or of this one), without a release.  Why there is none: a
// release for the cluster would wait for all earlier accesses of the thread.  REQUIRES: the thread
// has written nothing that others read after this arrival; `barrier` is a cluster_address.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t* barrier, uint32_t rank) {
  mbarrier_arrive_cluster(cluster_address(barrier, rank));
}
// Stores to the same place in another CTA (or in this one).  The barrier there, in the same place
// as `barrier`, counts four bytes.
__device__ __forceinline__ void st_async(int* to, int value, uint64_t* barrier, uint32_t rank) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];" ::"r"(
                   cluster_address(to, rank)),
               "r"(value), "r"(cluster_address(barrier, rank))
               : "memory");
}

// These load a box of a tensor map (a CUtensorMap in kernel parameters).  `barrier` counts the
// bytes as for bulk_load, and elements outside the tensor arrive as zeros.  Coordinates are
// innermost first; `shared` and `barrier` are shared addresses.

__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void tensor_load(
    uint32_t shared, const void* map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void tensor_load(uint32_t shared,
                                            const void* map,
                                            const int (&at)[5],
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier)
      : "memory");
}
// The policy of lines of L2 that are the first to make room for others.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void tensor_load(
    uint32_t shared, const void* map, int x, int y, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tensor_load(
    uint32_t shared, const void* map, const int (&at)[5], uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier),
      "l"(policy)
      : "memory");
}
// Loads a box to the same place in every CTA whose bit is set in `ranks`; each CTA's barrier in the
// same place counts the bytes.
__device__ __forceinline__ void tensor_load_multicast(
    uint32_t shared, const void* map, int x, int y, uint32_t barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(ranks)
      : "memory");
}
__device__ __forceinline__ void tensor_load_multicast(
    uint32_t shared, const void* map, const int (&at)[5], uint32_t barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier), "h"(ranks)
      : "memory");
}

// Stores a box, without what is outside of the tensor.  It belongs to this thread's current group.
__device__ __forceinline__ void tensor_store(const void* map, const int (&at)[3], uint32_t shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(shared)
      : "memory");
}

// Prefetches to L2; address and bytes are multiples of 16.
__device__ __forceinline__ void bulk_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Fetches the line of an address to L2.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
// The same to L1.
__device__ __forceinline__ void prefetch_to_l1(const void* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}
// These prefetch a box to L2.
__device__ __forceinline__ void tensor_prefetch(const void* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x),
               "r"(y)
               : "memory");
}
__device__ __forceinline__ void tensor_prefetch(const void* map, const int (&at)[5]) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
               "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
               : "memory");
}

// Programmatic launches; core/cuda/launch.cuh explains them.

__device__ __forceinline__ void await_kernel_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_next_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// This does both.  `lets_first`: the next kernel may begin before the wait.
__device__ __forceinline__ void await_and_let_next(bool lets_first) {
  if (lets_first) {
    let_next_begin();
  }
  await_kernel_before();
  let_next_begin();
}

// Returns true in one thread of a whole warp, always the same one.  The compiler then knows that
// the branch has one thread, and makes no loop over the lanes for an instruction with uniform
// operands.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}
// The lane of this thread.  The compiler keeps it in a register, but would read threadIdx.x at each
// use.
__device__ __forceinline__ uint32_t lane() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));
  return lane;
}
// Gives all threads of a whole warp the value of lane 0, which the compiler then keeps in a uniform
// register.
__device__ __forceinline__ uint32_t uniform(uint32_t value) {
  return __shfl_sync(0xffffffffu, value, 0);
}
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

// These change the registers per thread of this warpgroup from the number at launch.
// REQUIRES: sm_90a; kRegisters is a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Transposes an 8 x 8 matrix of 16-bit elements; lane l has row l / 4, columns 2 (l % 4) and the
// next.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// copy_async_4 copies four bytes.  mbarrier_arrive_after_copies arrives at `barrier` once all such
// copies of this thread have arrived.
__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Nanoseconds; the clock ticks about every microsecond.
__device__ __forceinline__ uint64_t globaltimer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

}  // namespace moebius::ptx
