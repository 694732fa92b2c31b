// The functions of mpi.h, through the module.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "fabric/mpi_module.h"

namespace megalith::fabric {
namespace {

/// Beside the program as in a build folder, and where it is installed.
std::array<std::string, 2> Candidates() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  std::string folder(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  folder.resize(folder.find_last_of('/') == std::string::npos ? 0 : folder.find_last_of('/'));
  return {folder + "/" + kMpiModuleFile,
          folder + "/../" MEGALITH_MODULE_FOLDER "/" + kMpiModuleFile};
}

Result<const MpiModule*> LoadModule() {
  const std::array<std::string, 2> candidates = Candidates();
  for (const std::string& path : candidates) {
    if (::access(path.c_str(), F_OK) != 0) continue;
    // Global, because plugins of MPI libraries look for the library's symbols.
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      return Fail(ErrorCode::kUnsupported, "the MPI part cannot be loaded: {}", ::dlerror());
    }
    const auto* module = static_cast<const MpiModule*>(::dlsym(handle, kMpiModuleSymbol));
    if (module == nullptr || std::strcmp(module->version, kMpiModuleVersion) != 0) {
      return Fail(ErrorCode::kUnsupported, "{} is of another build than this program", path);
    }
    module->set_log_sink([](LogLevel level, std::string_view message) { Log(level, message); });
    return module;
  }
  return Fail(ErrorCode::kUnsupported,
              "started by an MPI launcher, but this build has no MPI: there is neither {} nor {}; "
              "configure with -DMEGALITH_WITH_MPI=ON",
              candidates[0], candidates[1]);
}

/// Loaded once, never unloaded: MPI libraries do not bear it.
const Result<const MpiModule*>& Module() {
  static const Result<const MpiModule*> module = LoadModule();
  return module;
}

}  // namespace

Result<std::unique_ptr<Fabric>> StartMpiJob(const MpiOptions& options) {
  const Result<const MpiModule*>& module = Module();
  if (!module) return tl::unexpected(module.error());
  return (*module)->start(options);
}

bool MpiAllGather(Fabric& fabric, std::span<const std::byte> mine, std::span<std::byte> all) {
  return Module() && (*Module())->all_gather(fabric, mine, all);
}

bool MpiAllReduce(Fabric& fabric, std::span<const float> mine, std::span<float> sum) {
  return Module() && (*Module())->all_reduce(fabric, mine, sum);
}

}  // namespace megalith::fabric
