#pragma once

#include "base/log.h"
#include "fabric/mpi.h"

namespace megalith::fabric {

/// What the module with the MPI part offers. It is a shared object of its own, loaded only into
/// processes that an MPI launcher has started: MPI libraries bring others along that replace mmap
/// and madvise in every process they are loaded into, and one program should run with and without
/// MPI installed. The module has its own copies of the libraries it uses; nothing but this passes
/// between them, and what it returns is used through virtual functions or is plain data.
struct MpiModule {
  const char* version;  ///< kMpiModuleVersion of the sources it was built from
  void (*set_log_sink)(LogSink sink);
  Result<std::unique_ptr<Fabric>> (*start)(const MpiOptions& options);
  bool (*all_gather)(Fabric& fabric, std::span<const std::byte> mine, std::span<std::byte> all);
  bool (*all_reduce)(Fabric& fabric, std::span<const float> mine, std::span<float> sum);
};

/// Program and module share the layout of Fabric and Mailboxes: they must be of one build.
inline constexpr const char* kMpiModuleVersion = MEGALITH_FABRIC_BUILD;
/// The symbol: `const MpiModule` with C linkage.
inline constexpr const char* kMpiModuleSymbol = "megalith_mpi_module";
inline constexpr const char* kMpiModuleFile = "megalith_mpi.so";

}  // namespace megalith::fabric
