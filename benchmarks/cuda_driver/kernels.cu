// The kernels of this benchmark beside those of the library. kernels.py makes kernels.ptx from them.

extern "C" __global__ void empty() {}

extern "C" __global__ void write_word(volatile unsigned* to, unsigned value) { *to = value; }

// Keeps one multiprocessor busy for this many cycles.
extern "C" __global__ void spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}
