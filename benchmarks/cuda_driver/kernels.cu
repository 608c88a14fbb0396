// The kernels of this benchmark. kernels.py makes kernels.ptx from them.
// A thread sums 16 bytes a turn, which it loads with one instruction.

extern "C" __global__ void empty() {}

extern "C" __global__ void write_word(volatile unsigned* to, unsigned value) { *to = value; }

// Keeps one multiprocessor busy for this many cycles.
extern "C" __global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// Capability 3.5 has conversions of halves, but neither their sums nor bfloat16.
static __device__ float half_to_float(unsigned short raw) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(raw));
  return value;
}
static __device__ unsigned short float_to_half(float value) {
  unsigned short raw;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(value));
  return raw;
}
static __device__ unsigned short float_to_brain(float value) {
  const unsigned word = __float_as_uint(value);
  const unsigned rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  return value != value ? 0x7fc0 : rounded;
}

struct Float32 {
  static __device__ unsigned sum(unsigned a, unsigned b) {
    return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
  }
};
struct Float16 {
  static __device__ unsigned sum(unsigned a, unsigned b) {
    const unsigned low = float_to_half(half_to_float(a) + half_to_float(b));
    const unsigned high = float_to_half(half_to_float(a >> 16) + half_to_float(b >> 16));
    return low | high << 16;
  }
};
struct Bfloat16 {
  static __device__ unsigned sum(unsigned a, unsigned b) {
    const unsigned low = float_to_brain(__uint_as_float(a << 16) + __uint_as_float(b << 16));
    const unsigned high =
        float_to_brain(__uint_as_float(a & 0xffff0000u) + __uint_as_float(b & 0xffff0000u));
    return low | high << 16;
  }
};

template <typename T>
static __device__ uint4 sum4(uint4 a, uint4 b) {
  return make_uint4(T::sum(a.x, b.x), T::sum(a.y, b.y), T::sum(a.z, b.z), T::sum(a.w, b.w));
}

// `unroll` loads of each source are under way before the first sum.
template <typename T, int unroll>
static __device__ void sum_two(uint4* to, const uint4* a, const uint4* b, unsigned long long n) {
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + (unroll - 1) * stride < n; i += unroll * stride) {
    uint4 left[unroll], right[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k) left[k] = a[i + k * stride];
#pragma unroll
    for (int k = 0; k < unroll; ++k) right[k] = b[i + k * stride];
#pragma unroll
    for (int k = 0; k < unroll; ++k) to[i + k * stride] = sum4<T>(left[k], right[k]);
  }
  for (; i < n; i += stride) to[i] = sum4<T>(a[i], b[i]);
}

#define SUM(name, T, unroll)                                                 \
  extern "C" __global__ void name(uint4* to, const uint4* a, const uint4* b, \
                                  unsigned long long n) {                    \
    sum_two<T, unroll>(to, a, b, n);                                         \
  }
SUM(sum_f32_1, Float32, 1)
SUM(sum_f32_4, Float32, 4)
SUM(sum_f16_1, Float16, 1)
SUM(sum_f16_4, Float16, 4)
SUM(sum_bf16_1, Bfloat16, 1)
SUM(sum_bf16_4, Bfloat16, 4)

// Four sources in the canonical tree: neighbours first.
extern "C" __global__ void sum4_f32(uint4* to, const uint4* a, const uint4* b, const uint4* c,
                                    const uint4* d, unsigned long long n) {
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    const uint4 first = a[i], second = b[i], third = c[i], fourth = d[i];
    to[i] = sum4<Float32>(sum4<Float32>(first, second), sum4<Float32>(third, fourth));
  }
}
