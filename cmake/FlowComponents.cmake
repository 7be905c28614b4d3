# Finds every component. A missing required one stops the configuration with its package; optional
# ones (CUDA, NVTX, NCCL, UCX, LIBEDIT, GRPC) are AUTO, ON or OFF, and a summary lists what was found and what was
# left out.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(ZLIB REQUIRED)
find_package(Protobuf REQUIRED)
if(NOT FLOW_PORTABLE)
  find_package(fmt REQUIRED)
endif()
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
if(BUILD_TESTING OR NOT DEFINED BUILD_TESTING)  # CTest's own option, ON by default
  find_package(Catch2 2 REQUIRED)
endif()
pkg_check_modules(LUA REQUIRED IMPORTED_TARGET lua5.4-c++)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
find_library(ROCKSDB_LIBRARY rocksdb REQUIRED)
if(FLOW_PORTABLE)
  flow_rocksdb_parts(ROCKSDB_LIBRARY)
endif()

# For the sessions between the processes of a cluster.
find_path(SODIUM_INCLUDE sodium.h)
find_library(SODIUM_LIBRARY sodium)
if(NOT SODIUM_INCLUDE OR NOT SODIUM_LIBRARY)
  message(FATAL_ERROR "libsodium was not found (sodium.h: ${SODIUM_INCLUDE}, library: ${SODIUM_LIBRARY}). "
                      "Install libsodium-dev, or run cmake/setup build.")
endif()

# The engine's log, header-only (engine/log); Debian's package also installs fmt's headers.
find_path(SPDLOG_INCLUDE spdlog/spdlog.h)
if(NOT SPDLOG_INCLUDE)
  message(FATAL_ERROR "spdlog was not found (spdlog/spdlog.h). Install libspdlog-dev, or run cmake/setup build.")
endif()

# flow.toml, header-only (engine/config).
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h)
if(NOT TOMLPLUSPLUS_INCLUDE)
  message(FATAL_ERROR "toml++ was not found (toml++/toml.h). Install libtomlplusplus-dev, or run cmake/setup build.")
endif()

# The HTTP server (engine/serve): Boost.Asio and Boost.Beast are headers only, and simdjson is a
# library that Debian has only shared.
find_path(BOOST_INCLUDE boost/beast/http.hpp)
if(NOT BOOST_INCLUDE)
  message(FATAL_ERROR "Boost was not found (boost/beast/http.hpp). Install libboost1.81-dev, or run cmake/setup build.")
endif()
pkg_check_modules(SIMDJSON REQUIRED IMPORTED_TARGET simdjson)

# Inputs and outputs by URL (engine/fetch).
set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
if(FLOW_PORTABLE)  # a static libcurl would need the archives of all that it links
  set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
endif()
find_package(CURL 7.85)
set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})
if(NOT CURL_FOUND)
  message(FATAL_ERROR "libcurl 7.85 or later was not found. Install libcurl4-openssl-dev, or run cmake/setup build.")
endif()

# The screen of `flow top` (engine/cli/top): the wide ncurses.
find_path(FLOW_NCURSES_INCLUDE curses.h)
find_library(FLOW_NCURSES_LIBRARY ncursesw)
find_library(FLOW_TINFO_LIBRARY tinfo)
if(NOT FLOW_NCURSES_INCLUDE OR NOT FLOW_NCURSES_LIBRARY OR NOT FLOW_TINFO_LIBRARY)
  message(FATAL_ERROR "ncurses was not found (curses.h, libncursesw, libtinfo). Install libncurses-dev, or run cmake/setup build.")
endif()

# The heap of the programs: many small blocks are allocated on one thread and freed on another,
# which with jemalloc takes an eighth less of a run's time than with glibc. A host program chooses
# its own heap.
find_library(JEMALLOC_LIBRARY jemalloc REQUIRED)
add_library(flow_heap INTERFACE)
if(NOT FLOW_SANITIZE)  # a sanitizer has its own
  target_link_libraries(flow_heap INTERFACE ${JEMALLOC_LIBRARY})
endif()

# flow_component(NAME found part install): sets FLOW_HAS_NAME and FLOW_NAME_TEXT, the line of the summary.
# `found` is empty if the component is missing. `part` lists the sources of this program that use it.
function(flow_component name found part install)
  set(wish "${FLOW_${name}}")
  if(NOT wish MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "FLOW_${name} is AUTO, ON or OFF, not `${wish}`")
  endif()
  if(wish STREQUAL "OFF")
    set(has OFF)
    set(text "left out: FLOW_${name} is OFF")
  elseif(found)
    set(has ON)
    set(text "${found}")
    if(NOT part)
      set(text "${found} found; this version does not use it")
    endif()
  elseif(wish STREQUAL "ON")
    message(FATAL_ERROR "FLOW_${name} is ON, but ${name} was not found. ${install}, or set FLOW_${name} to AUTO.")
  else()
    set(has OFF)
    set(text "left out: not found. ${install} and configure again")
  endif()
  set(FLOW_HAS_${name} ${has} PARENT_SCOPE)
  set(FLOW_${name}_TEXT "${text}" PARENT_SCOPE)
endfunction()

# Sources of this program that use a component.
file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
file(GLOB nccl_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/transports/nccl/*.cc)
file(GLOB ucx_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/transports/ucx/*.cc)

if(FLOW_CUDA STREQUAL "ON" AND FLOW_CUDA_ARCHITECTURES STREQUAL "none")
  message(FATAL_ERROR "FLOW_CUDA is ON, but FLOW_CUDA_ARCHITECTURES is none: set it to all, or FLOW_CUDA to AUTO.")
endif()
if(NOT FLOW_CUDA STREQUAL "OFF")
  find_program(FLOW_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
endif()
set(found "")
if(FLOW_NVCC AND NOT FLOW_CUDA_ARCHITECTURES STREQUAL "none")
  execute_process(COMMAND ${FLOW_NVCC} --version OUTPUT_VARIABLE said ERROR_QUIET)
  if(said MATCHES "release ([0-9.]+)")
    set(found "CUDA ${CMAKE_MATCH_1}")
    if(NOT FLOW_CUDA_ARCHITECTURES STREQUAL "all")
      list(JOIN FLOW_CUDA_ARCHITECTURES " " architectures)
      string(APPEND found ", only for ${architectures}")
    endif()
  endif()
endif()
flow_component(CUDA "${found}" "${cuda_sources}" "Install the CUDA toolkit (nvcc)")
if(FLOW_CUDA STREQUAL "AUTO" AND FLOW_CUDA_ARCHITECTURES STREQUAL "none")
  # `cmake/setup run` chooses it.
  set(FLOW_CUDA_TEXT "left out: built for a machine without a GPU. `cmake/setup build` adds it")
endif()
if(FLOW_HAS_CUDA AND cuda_sources)
  set(CMAKE_CUDA_COMPILER ${FLOW_NVCC})
  if(NOT DEFINED ENV{CUDAARCHS})  # CMake's own variable: to build for one GPU architecture
    set(CMAKE_CUDA_ARCHITECTURES "${FLOW_CUDA_ARCHITECTURES}")
    if(FLOW_CUDA_ARCHITECTURES STREQUAL "all")
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;90-virtual")  # `cmake/setup run` takes those it needs
    endif()
  endif()
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # nvcc has C++20, which CMake 3.25 does not know
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
endif()

# Ranges for profilers: headers only, which come with the CUDA toolkit; a build without CUDA uses them too.
find_path(FLOW_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
set(found "")
if(FLOW_NVTX_INCLUDE)
  set(found "NVTX 3")
endif()
flow_component(NVTX "${found}" "engine/base/profiler_range.cc" "Install the CUDA toolkit (nvtx3/nvToolsExt.h)")

# Loaded at run time. Only a test reads its header, and compares our declarations with it.
find_path(FLOW_NCCL_INCLUDE nccl.h HINTS /usr/local/cuda/include)
flow_component(NCCL "loaded where it is needed (libnccl.so.2)" "${nccl_sources}" "")

pkg_check_modules(UCX QUIET IMPORTED_TARGET ucx)
set(found "")
if(UCX_FOUND)
  set(found "UCX ${UCX_VERSION}")
endif()
flow_component(UCX "${found}" "${ucx_sources}" "Install UCX (libucx-dev)")

# Line editing of `flow repl`. A program for other machines depends on none of their libraries.
set(found "")
if(NOT FLOW_PORTABLE)
  pkg_check_modules(LIBEDIT QUIET IMPORTED_TARGET libedit)
  if(LIBEDIT_FOUND)
    set(found "libedit ${LIBEDIT_VERSION}")
  endif()
endif()
flow_component(LIBEDIT "${found}" "engine/executor/line_editor.cc" "Install libedit-dev")

# flow_find_grpc(VERSION): sets GRPC_VERSION, GRPC_INCLUDE_DIRS and GRPC_LINK_LIBRARIES in the cache. pkg_check_modules() would
# call pkg-config some 20 times; for the modules of gRPC each call takes most of a second.
function(flow_find_grpc version)
  if(GRPC_LINK_LIBRARIES)
    return()
  endif()
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --modversion "grpc++ >= ${version}" RESULT_VARIABLE code OUTPUT_VARIABLE found
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT code EQUAL 0)
    return()
  endif()
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --cflags-only-I --libs grpc++ OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(words UNIX_COMMAND "${said}")
  list(REMOVE_DUPLICATES words)
  set(includes "")
  set(folders "")
  set(libraries "")
  foreach(word IN LISTS words)
    if(word MATCHES "^-I(.+)")
      list(APPEND includes ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-L(.+)")
      list(APPEND folders ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-l(.+)")
      set(name ${CMAKE_MATCH_1})
      find_library(library ${name} HINTS ${folders} NO_CACHE)
      if(NOT library)
        set(library ${name})  # the linker finds it, as the compiler's own libatomic
      endif()
      list(APPEND libraries ${library})
      unset(library)
    endif()
  endforeach()
  set(GRPC_VERSION "${found}" CACHE INTERNAL "")
  set(GRPC_INCLUDE_DIRS "${includes}" CACHE INTERNAL "")
  set(GRPC_LINK_LIBRARIES "${libraries}" CACHE INTERNAL "")
endfunction()

# Services over gRPC (engine/serve/grpc). The portable programs do without: its archives are many.
set(found "")
if(NOT FLOW_PORTABLE)
  flow_find_grpc(1.51)
  find_program(FLOW_GRPC_PLUGIN grpc_cpp_plugin)
  if(GRPC_VERSION AND FLOW_GRPC_PLUGIN)
    set(found "gRPC ${GRPC_VERSION}")
  endif()
endif()
flow_component(GRPC "${found}" "engine/serve/grpc/grpc_server.cc" "Install libgrpc++-dev and protobuf-compiler-grpc")

configure_file(${PROJECT_SOURCE_DIR}/cmake/flow_build_config.hpp.in
               ${PROJECT_BINARY_DIR}/generated/flow_build_config.hpp @ONLY)

message(STATUS "flow ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}:")
message(STATUS "  Lua ${LUA_VERSION}, OpenBLAS ${OPENBLAS_VERSION}, Protobuf ${Protobuf_VERSION}, RocksDB ${ROCKSDB_LIBRARY}")
foreach(component CUDA NVTX NCCL UCX LIBEDIT GRPC)
  message(STATUS "  ${component}: ${FLOW_${component}_TEXT}")
endforeach()
if(FLOW_SANITIZE)
  message(STATUS "  sanitizers: ${FLOW_SANITIZE}")
endif()
