// Times the copies that DyNet makes to bring the arguments of a batch together, and reads its own profile.
//
// Loaded before DyNet into the global scope of symbols, so that DyNet's calls of these two functions arrive here. That takes a
// DyNet whose compiler left such calls to the linker: the wheel, or build_dynet's. Nothing else may be visible, or DyNet would
// take this file's instances of std::map for its own.
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace dynet {

struct Tensor;

// Only what is needed of dynet/timing.h: its first members, in order.
struct NamedTimer {
  std::map<std::string, double> milliseconds;
  std::map<std::string, std::chrono::high_resolution_clock::time_point> running;
};

struct BatchedExecutionEngine {
  void combine_tensors(const std::vector<unsigned>& batch, int argument, Tensor& result);
  void accumulate_tensors(const Tensor& gradient, const std::vector<unsigned>& batch, int argument);
};

}  // namespace dynet

namespace {

using Clock = std::chrono::steady_clock;
using Combine = void (*)(dynet::BatchedExecutionEngine*, const std::vector<unsigned>&, int, dynet::Tensor&);
using Accumulate = void (*)(dynet::BatchedExecutionEngine*, const dynet::Tensor&, const std::vector<unsigned>&, int);

Combine combine;
Accumulate accumulate;
dynet::NamedTimer* timer;
double gathered, scattered;  // seconds
std::string report;

void add_line(const std::string& name, double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9f\t", seconds);
  report += text + name + "\n";
}

template <typename F>
void timed(double& seconds, F call) {
  const auto start = Clock::now();
  call();
  seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

namespace dynet {

void BatchedExecutionEngine::combine_tensors(const std::vector<unsigned>& batch, int argument, Tensor& result) {
  timed(gathered, [&] { combine(this, batch, argument, result); });
}

void BatchedExecutionEngine::accumulate_tensors(const Tensor& gradient, const std::vector<unsigned>& batch, int argument) {
  timed(scattered, [&] { accumulate(this, gradient, batch, argument); });
}

}  // namespace dynet

extern "C" {

// Find the functions of the library at `path`, which is loaded already. 0 where one is missing.
int profile_attach(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return 0;
  const char* engine = "_ZN5dynet22BatchedExecutionEngine";
  combine = reinterpret_cast<Combine>(
      dlsym(library, (engine + std::string("15combine_tensorsERKSt6vectorIjSaIjEEiRNS_6TensorE")).c_str()));
  accumulate = reinterpret_cast<Accumulate>(
      dlsym(library, (engine + std::string("18accumulate_tensorsERKNS_6TensorERKSt6vectorIjSaIjEEi")).c_str()));
  timer = static_cast<dynet::NamedTimer*>(dlsym(library, "_ZN5dynet5timerE"));
  return combine && accumulate && timer;
}

// What was timed since the last call, as lines of "seconds<tab>name"; valid until the next call. Emptied, DyNet's timer prints
// nothing when the process ends.
const char* profile_take() {
  report.clear();
  add_line("combine_tensors", gathered);
  add_line("accumulate_tensors", scattered);
  for (const auto& [name, milliseconds] : timer->milliseconds) add_line(name, milliseconds * 1e-3);
  gathered = scattered = 0;
  timer->milliseconds.clear();
  timer->running.clear();
  return report.c_str();
}

}  // extern "C"
