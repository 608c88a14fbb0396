// Functions by which a test looks into the fake driver and directs it. The library has them beside
// the driver's own; a test finds them by dlsym.
//
// Environment, read at the first call:
//   CUDA_SIM_MACHINE   the machine (see machine.h); default k80
//   CUDA_SIM_SEED      orders the work of streams; default 1
//   CUDA_SIM_DELAY_US  longest pause before a piece of work; default 200
//   CUDA_SIM_MISUSE    count: go on after misuse, instead of ending the process
//   CUDA_SIM_LOG       at its end, the process writes its counters to $CUDA_SIM_LOG.<pid>.json
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns the counters as JSON. The text is valid until the thread's next call.
const char* cuda_sim_counters(void);
// Returns one counter, 0 if nothing was counted under that name.
long long cuda_sim_count(const char* name);
// Forgets counts. Live numbers stay.
void cuda_sim_reset_counters(void);

// 1: streams stop before their next work. 0: they go on.
void cuda_sim_hold(int is_held);
// Carries out one piece of work while streams are held. Returns 0 if none is ready.
int cuda_sim_step(void);

// Lets a later call of a function return this result, after `calls_before` calls of it.
void cuda_sim_fail(const char* function, int result, int calls_before);
// Breaks the context of a GPU, as a kernel's illegal access does.
void cuda_sim_break(int gpu);

// Returns where the CPU finds the bytes of device memory, or null if they are not all in one
// allocation. A NIC without an IOMMU sees memory so.
void* cuda_sim_bytes(unsigned long long address, size_t bytes);
// Returns the GPU of device memory, or -1.
int cuda_sim_gpu(unsigned long long address);
// Takes part of a GPU's BAR1, or gives it back by a negative number. Returns 0 if it is too small.
int cuda_sim_take_bar1(int gpu, long long bytes);
// Calls the function for each flush of writes of NICs.
void cuda_sim_on_flush(void (*function)(int gpu, void* context), void* context);

#ifdef __cplusplus
}
#endif
