// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/onednn_matmul.h"

#ifdef MOEBIUS_HAVE_ONEDNN

#ifdef MOEBIUS_HAVE_OPENMP
#include <omp.h>
#endif

#include <dnnl.hpp>

namespace moebius::cpu {

namespace {

// oneDNN runs on OpenMP's threads; for the calling thread, one.
class SingleThreaded {
 public:
#ifdef MOEBIUS_HAVE_OPENMP
  SingleThreaded() : before_(omp_get_max_threads()) {
    omp_set_num_threads(1);
  }
  ~SingleThreaded() {
    omp_set_num_threads(before_);
  }

 private:
  int before_;
#else
  SingleThreaded() = default;
#endif
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;
};

dnnl::engine& cpu_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type operand_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return dnnl::memory::data_type::bf16;
    case DType::kI8:
      return dnnl::memory::data_type::s8;
    default:
      return dnnl::memory::data_type::f32;
  }
}

dnnl::matmul::primitive_desc make_desc(const dnnl::memory::desc& a,
                                       const dnnl::memory::desc& b,
                                       const dnnl::memory::desc& c,
                                       const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), a, b, c, attr};
#else
  return {dnnl::matmul::desc(a, b, c), attr, cpu_engine()};
#endif
}

}  // namespace

struct OnednnMatmul::Impl {
  dnnl::memory::desc a, b, c;
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul matmul;
};

OnednnMatmul::OnednnMatmul(DType operands, int64_t m, int64_t n, int64_t k, int64_t ldc)
    : impl_(std::make_unique<Impl>()) {
  const SingleThreaded single;
  const auto type = operand_type(operands);
  const auto result =
      operands == DType::kI8 ? dnnl::memory::data_type::s32 : dnnl::memory::data_type::f32;
  using Dims = dnnl::memory::dims;
  impl_->a = dnnl::memory::desc(Dims{m, k}, type, Dims{k, 1});
  impl_->b = dnnl::memory::desc(Dims{k, n}, type, Dims{1, k});
  impl_->c = dnnl::memory::desc(Dims{m, n}, result, Dims{ldc, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  impl_->desc = make_desc(impl_->a, impl_->b, impl_->c, attr);
  impl_->matmul = dnnl::matmul(impl_->desc);
}

OnednnMatmul::~OnednnMatmul() = default;
OnednnMatmul::OnednnMatmul(OnednnMatmul&&) noexcept = default;
OnednnMatmul& OnednnMatmul::operator=(OnednnMatmul&&) noexcept = default;

size_t OnednnMatmul::scratchpad_bytes() const {
  return impl_->desc.scratchpad_desc().get_size();
}

std::string OnednnMatmul::implementation() const {
  return impl_->desc.impl_info_str();
}

void OnednnMatmul::run(const void* a, const void* b, void* c, void* scratchpad) const {
  const SingleThreaded single;
  static thread_local dnnl::stream stream(cpu_engine());
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, cpu_engine(), const_cast<void*>(data));
  };
  impl_->matmul.execute(stream,
                        {{DNNL_ARG_SRC, memory(impl_->a, a)},
                         {DNNL_ARG_WEIGHTS, memory(impl_->b, b)},
                         {DNNL_ARG_DST, memory(impl_->c, c)},
                         {DNNL_ARG_SCRATCHPAD, memory(impl_->desc.scratchpad_desc(), scratchpad)}});
  stream.wait();
}

bool onednn_has_native(DType operands) {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  unsigned wanted = 0;
  if (operands == DType::kBF16) {
    wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  } else if (operands == DType::kI8) {
    wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_vnni);
  }
  if ((isa & wanted) != wanted) {
    return false;
  }
  try {
    return OnednnMatmul(operands, 64, 64, 64, 64).implementation().find("ref") == std::string::npos;
  } catch (const dnnl::error&) {
    return false;  // this version has no matmul for them
  }
}

}  // namespace moebius::cpu

#endif  // MOEBIUS_HAVE_ONEDNN
